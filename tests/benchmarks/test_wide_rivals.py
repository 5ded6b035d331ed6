"""Rivals of the protocol toa-wide: the same windows as the networks, and settings that validation chooses."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support import load_script, message
from toa.data import Windows
from toa_bench.wide_boosting import LagFeatures, draw_rows, load_lightgbm, season_of
from toa_bench.wide_rivals import RIVALS, RivalData, measure

LOOKBACK = 24
HORIZON = 4


def data_of(rows: np.ndarray) -> RivalData:
    """Standardised rows, split 6:2:2."""
    count = len(rows)
    border = int(0.6 * count)
    stop = int(0.8 * count)
    parts = {"train": (0, border), "val": (border - LOOKBACK, stop), "test": (stop - LOOKBACK, count)}
    windows = {name: Windows(rows, None, part, LOOKBACK, HORIZON) for name, part in parts.items()}
    found: Any = SimpleNamespace(**windows, name="made up", channels=rows.shape[1])
    return RivalData(windows=found, rows=rows, border=border, stop=stop)


def led_channels(rows: int, channels: int = 6, seed: int = 0) -> np.ndarray:
    """White noise; each channel of the first half is minus one of the second, five rows later."""
    values = np.random.default_rng(seed).standard_normal((rows, channels))
    half = channels // 2
    values[5:, :half] = -values[:-5, ::-1][:, :half]
    return values


def test_errors_are_those_of_all_windows():
    data = data_of(led_channels(200))
    test = data.rows[data.stop :]
    expected = np.mean([test[start : start + HORIZON] ** 2 for start in range(len(test) - HORIZON + 1)])
    zero = lambda x: np.zeros((len(x), HORIZON, 6))  # noqa: E731
    assert measure(zero, data.windows.test)["mse"] == pytest.approx(expected, rel=1e-5)


def test_validation_chooses_the_season():
    steps = np.arange(400)
    rows = np.stack([np.sin(2 * np.pi * (steps + shift) / 7) for shift in range(5)], 1)
    found = RIVALS["seasonal-naive"](data_of(rows))
    assert found["chosen"]["season"] in (7, 14, 21)
    assert found["metrics"]["mse"] < 1e-9


def test_channels_that_lead_others_help_the_rival_that_reads_them():
    data = data_of(led_channels(900))
    own, everything = (RIVALS[name](data) for name in ("own-lags", "all-channels"))
    assert everything["chosen"]["components"] > 0
    assert everything["metrics"]["mse"] < 0.75 * own["metrics"]["mse"]
    assert own["chosen"]["components"] == 0


def test_test_rows_have_no_effect_on_the_fit():
    rows = led_channels(600)
    changed = rows.copy()
    changed[-120:] = 5.0
    first, second = (RIVALS["all-channels"](data_of(values)) for values in (rows, changed))
    assert first["chosen"] == second["chosen"]
    assert first["metrics"]["val_mse"] == second["metrics"]["val_mse"]
    assert first["metrics"]["mse"] != second["metrics"]["mse"]


def test_the_stored_rivals_are_complete():
    script = load_script("benchmarks/wide_rivals.py")
    from toa_bench.wide import horizons, read_wide_plan

    plan = read_wide_plan()
    records = script.read_rivals(script.OUT)
    cells = {
        (dataset, horizon, system)
        for members in plan.units.values()
        for dataset in members
        for horizon in horizons(plan, dataset)
        for system in {record["system"] for record in records}
    }
    assert cells <= {script.key_of(record) for record in records}
    assert len({script.key_of(record) for record in records}) == len(records)


def test_the_season_of_the_trees_is_that_of_the_rows():
    steps = np.arange(500)
    noise = 0.1 * np.random.default_rng(0).standard_normal((500, 3))
    assert season_of(np.sin(2 * np.pi * steps / 12)[:, None] + noise, 24) in (12, 24)
    assert season_of(np.cumsum(np.ones((50, 2)), 0), 10) == 10


def test_inputs_of_the_trees_align_with_the_season_before_the_step_ahead():
    features = LagFeatures(lookback=12, season=5, relative=False)
    past = np.arange(24.0).reshape(2, 12)
    inputs = features.inputs(past, 100 + past, np.array([0, 6]))
    # step, last value, eight last values, then the aligned value
    assert inputs[:, 0].tolist() == [0, 6]
    assert inputs[:, 1].tolist() == [11, 23]
    # 5 steps before the first step, 10 steps before the seventh
    assert inputs[:, 10].tolist() == [12 - 5, 12 + 12 + 6 - 10]


def test_inputs_relative_to_the_last_value_do_not_change_with_the_level_but_for_that_value():
    features = LagFeatures(lookback=12, season=5, relative=True)
    past = np.random.default_rng(0).standard_normal((4, 12))
    step = np.arange(4)
    low, high = (features.inputs(past + shift, past + shift, step) for shift in (0.0, 3.0))
    assert np.allclose(np.delete(low, 1, 1), np.delete(high, 1, 1))
    assert np.allclose(features.base(past + 3.0) - features.base(past), 3.0)


def test_rows_of_the_trees_are_targets_of_windows():
    data = data_of(np.arange(400.0)[:, None] + 1000.0 * np.arange(3))
    drawn = draw_rows(data, data.windows.test, 50, np.random.default_rng(0))
    assert np.array_equal(drawn.target, drawn.past[:, -1] + 1 + drawn.step)
    assert np.array_equal(drawn.channel, (drawn.target // 1000).astype(int))
    assert drawn.target[drawn.channel == 0].min() >= data.stop


def test_trees_without_lightgbm_name_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ValueError, match=message("boosted-trees must have the package lightgbm")):
        load_lightgbm()
