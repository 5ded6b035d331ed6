"""Rivals of the protocol toa-wide: the same windows as the networks, and settings that validation chooses."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support import load_script
from toa.data import Windows
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
        for horizon in horizons(plan.protocol, plan.backbone, dataset)
        for system in RIVALS
    }
    assert cells <= {script.key_of(record) for record in records}
    assert len({script.key_of(record) for record in records}) == len(records)
