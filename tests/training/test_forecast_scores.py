from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import message
from toa.training.metrics import score_forecasts, seasonal_error

LEVELS = (0.1, 0.5, 0.9)


def sample(seed=0, shape=(6, 4, 2)):
    rng = np.random.default_rng(seed)
    actual = rng.normal(5.0, 2.0, shape)
    forecast = actual + rng.normal(size=shape)
    quantiles = np.stack([forecast + shift for shift in (-1.0, 0.0, 1.0)], axis=2)
    parts = {"lower": forecast - 1, "upper": forecast + 1, "quantiles": quantiles, "levels": LEVELS}
    return forecast, actual, {"columns": ("a", "b"), "scale": np.full((len(actual), 2), 2.0), **parts}


def test_every_score_equals_its_definition():
    forecast, actual, parts = sample()
    found = score_forecasts(forecast, actual, **parts)
    error = forecast - actual
    loss = np.mean([np.where(e >= 0, q * e, (q - 1) * e) for q, e in _residuals(actual, parts)])
    expected = {
        "mae": np.abs(error).mean(),
        "rmse": np.sqrt((error**2).mean()),
        "mase": np.abs(error).mean() / 2.0,
        "wape": np.abs(error).sum() / np.abs(actual).sum(),
        "smape": np.mean(2 * np.abs(error) / (np.abs(actual) + np.abs(forecast))),
        "pinball": loss,
        "crps": 2 * loss,
        "wql": 2 * loss * actual.size / np.abs(actual).sum(),
        "coverage": np.mean(np.abs(error) <= 1.0),
    }
    assert found.overall == pytest.approx(expected)
    assert np.mean([column["mae"] for column in found.by_column.values()]) == pytest.approx(expected["mae"])


def _residuals(actual, parts):
    return [(q, actual - parts["quantiles"][:, :, index]) for index, q in enumerate(LEVELS)]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(0.01, 100.0))
def test_relative_scores_do_not_depend_on_the_unit_and_absolute_ones_follow_it(seed, unit):
    forecast, actual, parts = sample(seed)
    before = score_forecasts(forecast, actual, **parts).overall
    scaled = {name: part * unit for name, part in parts.items() if isinstance(part, np.ndarray)}
    after = score_forecasts(forecast * unit, actual * unit, **(parts | scaled)).overall
    # an end of the interval may round to the other side of a value
    for name in ("mase", "wape", "smape", "wql"):
        assert after[name] == pytest.approx(before[name], rel=1e-9)
    for name in ("mae", "rmse", "pinball", "crps"):
        assert after[name] == pytest.approx(unit * before[name], rel=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000))
def test_a_perfect_forecast_has_no_error_and_mae_is_at_most_rmse(seed):
    forecast, actual, parts = sample(seed)
    found = score_forecasts(forecast, actual, **parts).overall
    assert found["mae"] <= found["rmse"]
    assert 0.0 <= found["smape"] <= 2.0
    perfect = score_forecasts(actual, actual, columns=("a", "b"), scale=parts["scale"]).overall
    assert set(perfect.values()) == {0.0}


def test_values_that_are_missing_are_left_out():
    forecast, actual, parts = sample()
    actual[0] = np.nan
    found = score_forecasts(forecast, actual, **parts)
    rest: Any = {name: part[1:] if isinstance(part, np.ndarray) else part for name, part in parts.items()}
    assert found.overall == pytest.approx(score_forecasts(forecast[1:], actual[1:], **rest).overall)
    with pytest.raises(ValueError, match=message("at least one actual value")):
        score_forecasts(forecast, np.full_like(actual, np.nan), **parts)


def test_windows_without_a_scale_have_no_mase():
    forecast, actual, parts = sample()
    parts["scale"][0, 0] = 0.0
    parts["scale"][1, 0] = np.nan
    found = score_forecasts(forecast, actual, **parts).by_column["a"]["mase"]
    assert found == pytest.approx(np.abs(forecast - actual)[2:, :, 0].mean() / 2.0)
    zeros = np.zeros((1, 2, 1))
    nothing = score_forecasts(zeros, zeros, columns=("a",), scale=np.zeros((1, 1))).overall
    assert np.isnan(nothing["mase"])
    assert np.isnan(nothing["wape"])
    assert nothing["smape"] == 0.0


def test_the_scale_is_the_error_of_the_seasonal_naive_forecast_of_the_history():
    history = np.array([[np.nan, 1.0, 2.0, 4.0, 7.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert seasonal_error(history, 1).tolist() == [2.0, 0.0]
    assert seasonal_error(history, 2).tolist() == [4.0, 0.0]
    assert np.isnan(seasonal_error(history, 4)[0])


def test_shapes_that_differ_raise():
    forecast, actual, _ = sample()
    with pytest.raises(ValueError, match=message("forecast must have the shape of actual", "(6, 3, 2)")):
        score_forecasts(forecast[:, :3], actual, columns=("a", "b"))
