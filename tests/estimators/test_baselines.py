import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import ROOT
from toa.estimators import baselines
from toa.estimators.baselines import BASELINES, LinearModel, align_histories, repeat_season


def seasonal_series(seed, rows, season=6, trend=0.3):
    rng = np.random.default_rng(seed)
    steps = np.arange(rows)
    return 50.0 + trend * steps + 8.0 * np.sin(2 * np.pi * steps / season) + rng.normal(size=rows)


def smooth_by_hand(values, alpha):
    """Level and squared error of simple exponential smoothing, one value after the other."""
    level = values[0]
    error = 0.0
    for value in values[1:]:
        error += (value - level) ** 2
        level += alpha * (value - level)
    return level, error


def test_series_are_aligned_at_their_ends():
    history = align_histories([np.array([1.0, 2.0, 3.0]), np.array([4.0])])
    np.testing.assert_array_equal(history, [[1, 2, 3], [np.nan, np.nan, 4]])
    assert align_histories([np.arange(9.0)], most=2).tolist() == [[7.0, 8.0]]


def test_the_seasonal_naive_forecast_repeats_the_last_season_or_the_last_value_of_a_shorter_series():
    history = align_histories([np.arange(7.0), np.array([5.0, 6.0])])
    forecast = BASELINES["seasonal naive"](history, 3, 5)
    assert forecast.tolist() == [[4, 5, 6, 4, 5], [6, 6, 6, 6, 6]]
    # where other series show that there is a season, the known part of it
    assert repeat_season(history, 3, 5).tolist() == [[4, 5, 6, 4, 5], [6, 5, 6, 6, 5]]


def test_drift_and_damped_trend_continue_a_line():
    line = align_histories([3.0 + 2.0 * np.arange(40.0)])
    np.testing.assert_allclose(BASELINES["drift"](line, 1, 4), [[83, 85, 87, 89]])
    forecast = BASELINES["damped trend"](line, 1, 4)[0]
    assert (np.diff(forecast) > 0).all()
    # its trend is always damped a little
    assert 82.5 < forecast[0] < 83.0


def test_theta_equals_its_definition():
    values = seasonal_series(0, 60, season=7, trend=0.0) + np.arange(60) * 0.5
    forecast = BASELINES["theta"](align_histories([values]), 1, 5)[0]
    grid = np.concatenate(([0.01], np.linspace(0.05, 0.95, 19), [0.99]))
    alpha = min(grid, key=lambda weight: smooth_by_hand(values, weight)[1])
    slope = np.polyfit(np.arange(60), values, 1)[0]
    level = smooth_by_hand(values, alpha)[0]
    steps = np.arange(5) + (1 - (1 - alpha) ** 60) / alpha
    np.testing.assert_allclose(forecast, level + slope / 2 * steps)


def test_the_optimised_theta_equals_its_definition():
    """One value after the other, with the line through the values so far by least squares."""
    values = 2.0 * np.arange(30) + 9.0 * np.random.default_rng(3).normal(size=30)

    def follow(alpha, share, steps):
        extended = list(values[:1])
        level = values[0]
        error = 0.0
        for place in range(1, len(values) + steps):
            slope, first = np.polyfit(np.arange(1, place + 1), extended, 1) if place > 1 else (0.0, extended[0])
            kept = (1 - alpha) ** place
            expected = level + share * (kept * first + (1 - kept * (1 - alpha)) / alpha * slope)
            now = values[place] if place < len(values) else expected
            error += (now - expected) ** 2 if place > 2 else 0.0
            level = alpha * now + (1 - alpha) * level
            extended.append(now)
        return error, extended[len(values) :]

    grid = [(alpha, share) for share in (0.0, 0.25, 0.5, 0.75, 1.0) for alpha in (0.05, *np.arange(1, 10) / 10, 0.99)]
    best = min(grid, key=lambda pair: follow(pair[0], pair[1], 0)[0])
    assert best[1] > 0
    forecast = BASELINES["optimised theta"](align_histories([np.ones(50), values]), 1, 4)[1]
    np.testing.assert_allclose(forecast, follow(best[0], best[1], 4)[1])


@pytest.mark.parametrize("values", [[10.0], [10.0, 1000.0], [10.0, 1000.0, 1010.0]])
def test_the_optimised_theta_of_series_without_a_counted_error_is_theta(values):
    history = align_histories([np.arange(31.0), np.array(values)])
    forecasts = BASELINES["optimised theta"](history, 1, 3)
    np.testing.assert_array_equal(forecasts[1], BASELINES["theta"](history, 1, 3)[1])
    # about the last value, and not the first
    assert (forecasts[1] >= values[-1]).all()
    np.testing.assert_allclose(forecasts[0], [31, 32, 33], rtol=0.05)


@pytest.mark.parametrize("name", ["theta", "damped trend", "optimised theta"])
@pytest.mark.parametrize("level", [0.0, -50.0], ids=["factors", "shifts"])
def test_smoothing_follows_a_season(name, level):
    season = np.array([0.0, 8.0, -3.0, 4.0, -9.0, 0.0])
    values = 50.0 + level + np.tile(season, 12)
    forecast = BASELINES[name](align_histories([values]), 6, 12)[0]
    np.testing.assert_allclose(forecast, values[:12], atol=0.5)


@pytest.mark.parametrize("name", list(BASELINES))
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1000), st.integers(1, 60))
def test_a_forecast_depends_on_its_own_series_only(name, seed, rows):
    """Whatever other series, however long, stand beside it; and one value is enough."""
    series = seasonal_series(seed, rows)
    alone = BASELINES[name](align_histories([series]), 6, 9)[0]
    beside = BASELINES[name](align_histories([seasonal_series(1, 80), series, np.ones(3)]), 6, 9)[1]
    np.testing.assert_allclose(beside, alone, rtol=1e-9)
    assert np.isfinite(alone).all()


@pytest.mark.parametrize("name", list(BASELINES))
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1000), st.floats(0.1, 1000.0))
def test_a_forecast_has_the_unit_of_its_series(name, seed, unit):
    series = seasonal_series(seed, 48)
    forecast = BASELINES[name](align_histories([series * unit]), 6, 9)
    np.testing.assert_allclose(forecast, unit * BASELINES[name](align_histories([series]), 6, 9), rtol=1e-6)


def test_the_linear_model_learns_a_season_from_other_series():
    history = align_histories([seasonal_series(seed, 90) for seed in range(20)])
    model = LinearModel.fit(history[:, :-6], season=6, horizon=6, lookback=18)
    assert model is not None
    new = align_histories([seasonal_series(99, 90)])
    error = np.abs(model.predict(new[:, :-6]) - new[:, -6:]).mean()
    naive = np.abs(BASELINES["seasonal naive"](new[:, :-6], 6, 6) - new[:, -6:]).mean()
    assert error < 0.75 * naive


@pytest.mark.parametrize("by_season", [True, False])
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), unit=st.floats(0.01, 100.0), level=st.floats(-1000.0, 1000.0))
def test_the_linear_model_follows_unit_and_level(by_season, seed, unit, level):
    history = align_histories([seasonal_series(seed + place, 40 + 5 * place) for place in range(4)])
    model = LinearModel.fit(history, season=6, horizon=4, lookback=12, by_season=by_season)
    assert model is not None
    expected = model.predict(history) * unit + level
    np.testing.assert_allclose(model.predict(history * unit + level), expected, rtol=1e-6, atol=1e-6 * (unit + 1))


def test_one_series_with_outliers_does_not_decide_the_linear_model():
    series = [seasonal_series(seed, 90) for seed in range(20)]
    rng = np.random.default_rng(3)
    wild = [np.where(rng.random(90) < 0.2, 1e6, series[0])]
    clean, spoilt = (
        LinearModel.fit(align_histories(rows), season=6, horizon=6, lookback=12) for rows in (series, series + wild)
    )
    assert clean is not None
    assert spoilt is not None
    history = align_histories(series)
    assert np.abs(clean.predict(history) - spoilt.predict(history)).mean() < 0.5


def test_short_series_are_used_as_far_as_they_go():
    history = align_histories([seasonal_series(0, 9), np.array([3.0]), np.full(5, 2.0)])
    model = LinearModel.fit(history, season=6, horizon=3, lookback=24)
    assert model is not None
    assert np.isfinite(model.predict(history)).all()
    assert LinearModel.fit(history[:, -3:], season=6, horizon=3, lookback=24) is None


def _as_list(weights):
    return weights if isinstance(weights, list) else [weights]


def test_every_baseline_has_a_weight_in_a_stored_record():
    """One that no record weights must leave the candidates; methods with covariates are in no stored record."""
    records = [
        json.loads(line)
        for path in (ROOT / "results" / "leaderboards").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    # records of covariates have the weights of several fits
    weights = [part for record in records for part in _as_list(record.get("weights", {}))]
    weighted = {name for part in weights for name, weight in part.items() if weight > 0}
    assert set(BASELINES) - weighted == set()


def test_seasons_are_told_some_values_at_a_time(monkeypatch) -> None:
    waves = np.sin(2.0 * np.pi * np.arange(240.0) / 24.0) + np.random.default_rng(0).normal(size=(7, 240))
    assert baselines.has_season(waves, 24)
    assert not baselines.has_season(waves, 17)
    sizes = []
    plain = baselines._is_seasonal

    def watched(history, season):
        sizes.append(history.size)
        return plain(history, season)

    monkeypatch.setattr(baselines, "_is_seasonal", watched)
    monkeypatch.setattr(baselines, "_TRANSFORMED_VALUES", 500)
    assert baselines.has_season(waves, 24)
    assert sizes == [480, 480, 480, 240]
