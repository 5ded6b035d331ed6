"""Baselines for counts with many zeros and for growing series, and when they are candidates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimators.stages import ensemble_of, training_on, validate_series
from toa.estimators import Forecaster
from toa.estimators.baselines import BASELINES, align_histories
from toa.estimators.families import FAMILIES
from toa.estimators.intermittent import croston, is_intermittent, median, sba, tsb
from toa.estimators.logarithms import grows, line, log_drift, log_line
from toa.estimators.origins import RollingOrigins
from toa.estimators.special_baselines import SPECIAL_BASELINES, FittedSpecial, SpecialMethod

DEMAND = np.array([0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 5.0, 0.0, 2.0, 0.0])


def follow_croston(values, factor):
    """Size and interval of Croston's method, and each value with both before it, one value after the other."""
    first = int(np.flatnonzero(values)[0])
    size = values[first]
    interval = first + 1.0
    waited = 0
    steps = []
    for value in values[first + 1 :]:
        waited += 1
        steps.append((value, size, interval))
        if value > 0:
            size += factor * (value - size)
            interval += factor * (waited - interval)
            waited = 0
    return size, interval, steps


@pytest.mark.parametrize(("method", "bias"), [(croston, 0.0), (sba, 0.5)])
def test_croston_by_hand(method, bias):
    candidates = []
    for factor in (0.02, 0.05, 0.1, 0.2, 0.3):
        times = 1.0 - bias * factor
        size, interval, errors = follow_croston(DEMAND, factor)
        loss = sum((value - times * before / wait) ** 2 for value, before, wait in errors)
        candidates.append((loss, times * size / interval))
    expected = min(candidates)[1]
    np.testing.assert_allclose(method(align_histories([DEMAND]), 7, 3), np.full((1, 3), expected))


def test_tsb_by_hand():
    candidates = []
    for of_size in (0.02, 0.05, 0.1, 0.2, 0.3):
        for of_chance in (0.02, 0.05, 0.1, 0.2, 0.3):
            size, chance, loss = 3.0, 1.0 / 3.0, 0.0
            for value in DEMAND[3:]:
                loss += (value - size * chance) ** 2
                chance += of_chance * ((value > 0) - chance)
                if value > 0:
                    size += of_size * (value - size)
            candidates.append((loss, size * chance))
    np.testing.assert_allclose(tsb(align_histories([DEMAND]), 7, 2), np.full((1, 2), min(candidates)[1]))


def test_a_demand_that_ended_falls_to_zero_by_tsb_but_not_by_croston():
    values = np.concatenate([np.tile([0.0, 4.0], 60), np.zeros(120)])
    history = align_histories([values])
    assert tsb(history, 7, 1)[0, 0] < 0.3
    assert croston(history, 7, 1)[0, 0] > 1.5
    assert median(history, 7, 1)[0, 0] == 0.0


def test_the_bias_of_croston_is_smaller_by_sba():
    random = np.random.default_rng(0)
    history = np.where(random.random((400, 200)) < 0.2, 5.0, 0.0)
    assert croston(history, 1, 1).mean() > sba(history, 1, 1).mean() > 0.9


def test_demand_that_is_often_zero_is_intermittent():
    series = [DEMAND, np.ones(9), np.array([0.0, -1.0, 0.0]), np.zeros(5), np.array([0.0, 2.0])]
    assert is_intermittent(align_histories(series)).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize("name", list(SPECIAL_BASELINES))
@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000), st.integers(1, 40), st.booleans())
def test_a_forecast_depends_on_its_own_series_only(name, seed, rows, zeros):
    random = np.random.default_rng(seed)
    values = random.poisson(0.4, rows).astype(float) if zeros else np.exp(random.normal(0.05, 0.1, rows).cumsum())
    method = SPECIAL_BASELINES[name].forecast
    alone = method(align_histories([values]), 6, 5)[0]
    beside = method(align_histories([np.arange(50.0), values, np.ones(3)]), 6, 5)[1]
    np.testing.assert_allclose(beside, alone, rtol=1e-7, atol=1e-9)
    assert np.isfinite(alone).all()


def test_a_line_through_logarithms_continues_growth_by_a_rate():
    steps = np.arange(48)
    season = np.tile([1.2, 0.8, 1.1, 0.9], 15)
    values = 20.0 * np.exp(0.03 * np.arange(60)) * season
    forecast = log_line(align_histories([values[:48]]), 4, 12)[0]
    np.testing.assert_allclose(forecast, values[48:], rtol=0.06)
    rising = np.exp(0.05 * steps)
    np.testing.assert_allclose(log_drift(align_histories([rising]), 1, 4)[0], np.exp(0.05 * (48 + np.arange(4))))


def test_series_with_a_zero_keep_the_method_without_logarithms():
    values = np.arange(12.0)
    np.testing.assert_allclose(log_line(align_histories([values]), 1, 3), line(align_histories([values]), 1, 3))
    np.testing.assert_allclose(line(align_histories([values]), 1, 3), [[12.0, 13.0, 14.0]])


def test_a_forecast_on_logarithms_leaves_the_last_value_by_at_most_the_range_so_far():
    values = np.exp(np.concatenate([np.zeros(8), [0.0, 3.0]]))
    forecast = log_drift(align_histories([values]), 1, 100)[0]
    assert forecast.max() <= np.exp(6.0) * (1 + 1e-9)


def test_growth_is_a_change_by_half_between_the_first_and_the_last_quarter():
    flat = np.full(40, 5.0)
    series = [flat, np.exp(0.03 * np.arange(40.0)), np.exp(-0.03 * np.arange(40.0)), np.arange(40.0), np.ones(3)]
    assert grows(align_histories(series)).tolist() == [False, True, True, False, False]


def test_special_baselines_are_candidates_for_data_that_suit_them():
    counts = [np.where(np.random.default_rng(seed).random(60) < 0.2, 3.0, 0.0) for seed in range(4)]
    training = training_on(counts, 7, 5)
    names = {name for name in SPECIAL_BASELINES if SpecialMethod(name).fit(training) is not None}
    assert names == {"last value", "croston", "sba", "tsb", "median"}
    growing = training_on([np.exp(0.05 * np.arange(40.0))], 1, 5)
    names = {name for name in SPECIAL_BASELINES if SpecialMethod(name).fit(growing) is not None}
    assert names == {"log line", "log drift", "log theta", "log damped trend"}


def test_counts_with_many_zeros_have_a_lower_error_than_by_the_usual_methods():
    random = np.random.default_rng(1)
    series = [np.where(random.random(90) < 0.25, 1.0 + random.poisson(2.0, 90), 0.0) for _ in range(12)]
    past = [values[:-14] for values in series]
    origins = RollingOrigins.choose([len(values) for values in past], horizon=14, share=0.125)
    validated = validate_series(past, origins, 7)
    usual = {name: method for name, method in validated.items() if name not in SPECIAL_BASELINES}
    errors = []
    for methods in (validated, usual):
        forecast = ensemble_of(past, origins, methods, 7)[0].predict(past)
        errors.append(np.mean([np.abs(f - v[-14:]).mean() for f, v in zip(forecast, series, strict=True)]))
    assert errors[0] < 0.98 * errors[1]


def test_the_mean_of_random_walks_is_the_last_value():
    """The mean of several methods was up to 1 % worse."""
    random = np.random.default_rng(4)
    series = [random.normal(size=120).cumsum() for _ in range(40)]
    origins = RollingOrigins.choose([120] * 40, horizon=14, share=0.125)
    ensemble, mean = ensemble_of(series, origins, validate_series(series, origins, 7), 7)
    assert ensemble.weights == {"last value": 1.0}
    assert ensemble.errors["ensemble"] == ensemble.errors["last value"]
    assert mean is not None
    np.testing.assert_array_equal(ensemble.predict(series), np.repeat([[part[-1]] for part in series], 14, axis=1))


def test_a_clear_season_is_not_given_up_for_the_last_value():
    steps = np.arange(96)
    series = [
        10.0 + np.sin(2 * np.pi * steps / 6) + 0.1 * np.random.default_rng(seed).normal(size=96) for seed in (0, 1)
    ]
    origins = RollingOrigins.choose([96, 96], horizon=6, share=0.125)
    ensemble, _ = ensemble_of(series, origins, validate_series(series, origins, 6), 6)
    assert ensemble.weights.get("last value", 0.0) < 0.2


def test_a_saved_forecaster_with_a_special_baseline_forecasts_the_same(tmp_path):
    random = np.random.default_rng(2)
    rows = np.where(random.random((80, 2)) < 0.2, 4.0, 0.0)
    model = Forecaster(horizon=5, season=7, interval=0.8, effort="least").fit(rows)
    assert model.weights_.keys() & SPECIAL_BASELINES.keys()
    assert model.predict_baseline("tsb").shape == (5, 2)
    model.save(tmp_path / "m.toa")
    again = Forecaster.load(tmp_path / "m.toa")
    expected = model.predict(rows)
    for name, part in again.predict(rows).items():
        np.testing.assert_allclose(part, expected[name], rtol=1e-9)


def test_a_file_cannot_name_an_unknown_special_baseline():
    assert FAMILIES["special"].load({}, ["tsb"], 1, 2) == {"tsb": FittedSpecial("tsb", 1, 2)}
    with pytest.raises(ValueError, match="known: last value, croston"):
        FAMILIES["special"].load({}, ["arima"], 1, 2)


def test_special_baselines_are_none_of_the_usual_ones():
    assert not SPECIAL_BASELINES.keys() & BASELINES.keys()
