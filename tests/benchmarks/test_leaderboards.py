from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.estimators.signals import PERIOD, wave
from tests.support import message
from tests.training.pretraining_cases import tiny_model
from toa.data import DatasetNotFoundError
from toa.estimators.families import FAMILIES
from toa.integrations import fev
from toa.integrations.gift_eval import LEVELS, GiftEvalPredictor
from toa.models import pretrained
from toa_bench import gift_eval
from toa_bench.gift_eval import CONFIGS, ETT_1H, FORECASTERS, Config, evaluate

# the published MASE of the seasonal naive forecast
PUBLISHED = {
    "ett1/15T/short": 0.9342,
    "ett1/15T/medium": 1.1883,
    "ett1/15T/long": 1.1909,
    "ett1/H/short": 0.9773,
    "ett1/H/medium": 1.5678,
    "ett1/H/long": 1.4787,
    "ett1/D/short": 1.7784,
    "ett1/W/short": 1.7689,
    "m4_hourly/H/short": 1.1932,
    "m4_weekly/W/short": 2.7773,
    "m4_quarterly/Q/short": 1.6022,
    "hospital/M/short": 0.9205,
}


@pytest.mark.data
@pytest.mark.parametrize("name", PUBLISHED)
def test_seasonal_naive_has_its_published_score(name):
    try:
        found = evaluate(CONFIGS[name], "seasonal naive")["metrics"]
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    assert round(found["mase"], 4) == PUBLISHED[name]


@pytest.mark.data
def test_seasonal_naive_has_its_published_score_of_fev():
    try:
        found = evaluate(ETT_1H, "seasonal naive")["metrics"]
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    # WAPE is a mean over windows and columns there
    assert (round(found["mase"], 4), round(found["wape"], 4)) == (1.3227, 0.2864)


def small(windows: int = 3) -> Config:
    series = [np.stack([wave(rows, level=20.0), wave(rows, level=5.0, seed=1)], 1) for rows in (150, 110)]
    return Config(name="small", horizon=6, season=PERIOD, windows=windows, load=lambda folder: series)


def test_windows_lie_at_the_end_and_are_scaled_by_their_own_history():
    config = small()
    first = config.load(None)[0]
    found = evaluate(config, "seasonal naive")["metrics"]
    parts = []
    for values in config.load(None):
        for origin in range(len(values) - 18, len(values), 6):
            history = values[:origin]
            actual = values[origin : origin + 6]
            scale = np.abs(history[PERIOD:] - history[:-PERIOD]).mean(0)
            parts.append(np.abs(history[-PERIOD : -PERIOD + 6] - actual) / scale)
    assert found["mase"] == pytest.approx(np.mean(parts))
    # a point forecast at every level has the absolute error as its quantile loss
    assert found["wql"] == pytest.approx(found["wape"])
    assert first.shape == (150, 2)


def test_toa_is_fitted_to_the_rows_before_the_windows_and_weighted():
    found = evaluate(small(), "toa", backbone="dlinear", epochs=2)
    metrics = found["metrics"]
    assert sum(found["weights"].values()) == pytest.approx(1.0)
    assert metrics["mase"] <= 1.02 * evaluate(small(), "seasonal naive")["metrics"]["mase"]
    assert metrics["wql"] < metrics["wape"]
    alone = evaluate(small(), "toa-network", backbone="dlinear", epochs=2, lookback=24)
    assert alone["weights"] == {"toa": 1.0}
    with pytest.raises(ValueError, match=message("unknown method 'prophet'", "toa, toa-network, boosting, seasonal")):
        evaluate(small(), "prophet")


def test_scores_of_the_leaderboards_follow_their_definitions():
    config = small(windows=1)
    actual = np.array([2.0, -4.0]).reshape(1, 2, 1)
    point = np.zeros((1, 2, 1))
    scale = np.array([[2.0]])
    quantiles = np.linspace(-0.8, 0.8, 9).reshape(1, 1, 9, 1).repeat(2, 1)
    found = gift_eval._scores(config, point, quantiles, actual, scale)
    assert (found["mse"], found["mape"], found["nrmse"]) == pytest.approx((10.0, 1.0, 10.0**0.5 / 3.0))
    # the tails continue by log 4 / log 2 steps between levels: from -0.8 to -1.2 and from 0.8 to 1.2
    assert found["msis"] == pytest.approx((2.4 + 40 * np.mean([0.8, 2.8])) / 2.0)
    loss = [
        2 * np.mean([max(q * (y - f), (q - 1) * (y - f)) for q, f in zip(LEVELS, quantiles[0, 0, :, 0], strict=True)])
        for y in (2, -4)
    ]
    assert found["sql"] == pytest.approx(np.mean(loss) / 2.0)
    assert found["wql"] == pytest.approx(np.sum(loss) / 6.0)


def test_wape_of_fev_is_a_mean_over_windows_and_columns():
    config = replace(small(windows=2), by_window=True)
    actual = np.array([10.0, 0.1]).reshape(2, 1, 1)  # one series, two windows
    parts = actual + 1.0, np.repeat(actual[:, :, None] + 1.0, 9, 2), actual, np.ones((2, 1))
    # a mean value below 1 counts as 1
    assert gift_eval._scores(config, *parts)["wape"] == pytest.approx(np.mean([1 / 10, 1 / 1]))
    assert gift_eval._scores(small(), *parts)["wape"] == pytest.approx(2 / 10.1)


def test_boosting_learns_from_the_rows_before_the_windows_only():
    config = small()
    assert evaluate(config, "boosting")["metrics"]["mase"] < evaluate(config, "drift")["metrics"]["mase"]
    short = replace(config, load=lambda folder: [wave(20)[:, None]])
    with pytest.raises(ValueError, match="at least 3 rows before the windows of small"):
        evaluate(short, "boosting")


def test_the_predictor_gives_a_forecast_with_quantiles_per_entry():
    entries = [{"target": wave(rows, level=9.0), "item_id": f"s{rows}"} for rows in (90, 60)]
    found = list(GiftEvalPredictor(6, PERIOD, backbone="dlinear", epochs=1).predict(entries))
    assert [one.item_id for one in found] == ["s90", "s60"]
    assert found[0].mean.shape == (6,)
    assert (found[0].quantile("0.1") <= found[0].quantile(0.9)).all()
    assert all(found[0].quantile(str(level)).shape == (6,) for level in LEVELS)
    for level in (0.25, 0.99):
        with pytest.raises(ValueError, match=f"unknown level '{level}'"):
            found[0].quantile(level)


def test_forecasts_of_fev_have_a_mean_and_every_level():
    options = {"horizon": 6, "season": PERIOD, "backbone": "dlinear", "epochs": 1}
    (found,) = fev.predict([wave(90)], **options)  # type: ignore[arg-type]
    assert list(found) == ["predictions", *map(str, LEVELS)]
    assert all(part.shape == (6,) for part in found.values())


def test_configurations_are_those_of_the_leaderboard():
    assert len(CONFIGS) == 14
    assert CONFIGS["m4_monthly/M/short"].horizon == 18
    assert set(PUBLISHED) <= set(CONFIGS)
    assert gift_eval.METHODS[:2] == ("toa", "toa-network")
    assert [(one.horizon, one.season) for one in gift_eval.M3] == [(18, 12), (8, 4), (6, 1)]


def test_earlier_windows_end_before_the_tested_ones():
    config = small(windows=2)
    earlier = config.before_test(2)
    assert earlier.name == "small, 2 earlier"
    for values, whole in zip(earlier.load(None), config.load(None), strict=True):
        np.testing.assert_array_equal(values, whole[:-24])
    # the second series has 110 rows: four parts of 24 are left out, and 14 are not more than two parts
    assert [len(values) for values in config.before_test(8).load(None)] == [54]


def test_a_forecaster_without_trees_has_no_weight_of_them():
    with_trees, without = (evaluate(small(), name, backbone="dlinear", epochs=1) for name in FORECASTERS[:2])
    assert "boosting" not in without["weights"]
    assert "trees" in FAMILIES
    assert with_trees["weights"].keys() != without["weights"].keys()


def test_the_pretrained_model_is_scored_without_a_fit_and_can_be_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    with pytest.raises(ValueError, match="no weights are part of this version"):
        evaluate(small(), "toa-zero-shot")
    model = tiny_model()
    model.save_pretrained(tmp_path / pretrained.DEFAULT_NAME)
    config = small()
    found = evaluate(config, "toa-zero-shot")
    assert found["metrics"]["mase"] > 0
    assert found["metrics"]["wql"] > 0
    options: dict[str, Any] = {"effort": "least", "backbone": "dlinear", "epochs": 1}
    assert "pretrained" not in evaluate(config, "toa-without-pretrained", **options)["weights"]
    assert "pretrained" in FAMILIES
