"""Covariates with effects of known size: curves, holidays by the hour, and what a forecast may not read."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support import message
from toa.data.frames import read_panel
from toa.estimators import Forecaster
from toa.estimators.clock import clock_groups, clock_of
from toa.estimators.covariate_effects import CovariateEffect, EffectRows, FeatureShape, fit_curves
from toa.estimators.covariate_inputs import InputPlan, plan_inputs
from toa.estimators.covariate_trees import COVARIATE_TREES, LEVEL_TREES
from toa.estimators.covariate_use import find_unused
from toa.estimators.covariates import Covariates
from toa.estimators.effort import EFFORTS
from toa.estimators.regressions import LINEAR

HOURS = 24
DAYS = 120
TESTED = 10 * HOURS
HOLIDAY = {8: -6.0, 9: -6.0, 12: 4.0}


@cache
def load(seed: int = 0) -> pd.DataFrame:
    """A load with a shape of the day, a temperature that acts as a U, and holidays that act by the hour."""
    random = np.random.default_rng(seed)
    hours = np.arange(DAYS * HOURS)
    hour = hours % HOURS
    weather = 12.0 * np.sin(2 * np.pi * np.arange(DAYS) / 11.0 + random.normal(size=DAYS).cumsum() / 3.0)
    temperature = 15.0 + weather[hours // HOURS] + 3.0 * np.sin(2 * np.pi * hour / HOURS)
    holiday = (random.random(DAYS) < 0.15).astype(float)[hours // HOURS]
    by_hour = np.array([HOLIDAY.get(step, 0.0) for step in range(HOURS)])[hour]
    values = 50.0 + 5.0 * np.sin(2 * np.pi * hour / HOURS) + 0.04 * (temperature - 15.0) ** 2 + holiday * by_hour
    times = pd.date_range("2024-01-01", periods=len(hours), freq="h")
    noise = 0.2 * random.standard_normal(len(hours))
    return pd.DataFrame({"time": times, "y": values + noise, "temperature": temperature, "holiday": holiday})


def forecaster(**options: Any) -> Forecaster:
    chosen: dict[str, Any] = {"covariates": ["temperature", "holiday"], "effort": "trees", "device": "cpu"}
    return Forecaster(HOURS, **(chosen | options))


@pytest.fixture(scope="module", autouse=True)
def effort() -> Iterator[None]:
    """An effort with a few trees and without a network."""
    with pytest.MonkeyPatch.context() as patch:
        few = replace(
            EFFORTS["quick"], network_windows=0, networks=0, tree_windows=1_000, trees=40, linear_windows=2_000
        )
        patch.setitem(EFFORTS, "trees", few)
        yield


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    return forecaster(interval=0.8).fit(load()[:-TESTED])


def test_a_temperature_in_the_form_of_a_u_and_holidays_by_hour_are_found(fitted) -> None:
    tested = fitted.backtest(load(), test_size=TESTED, stride=HOURS)
    errors = tested.table()["mae"]
    # the noise alone has 0.16
    assert errors["model"] < 0.25
    assert errors["model"] < 0.25 * errors["theta"]
    effect = fitted.fitted_.covariate_effect
    assert effect is not None
    scale = fitted.choice_.scale[0, 0]

    def value(temperature: float, holiday: float, hour: int) -> float:
        features = fitted.known_.features(None, np.array([[temperature, holiday]]))
        return float(effect.of(features, np.array([[hour, 2, 60]]))[0, 0]) * scale

    # 0.04 per squared degree from 15
    assert value(5.0, 0.0, 3) - value(15.0, 0.0, 3) == pytest.approx(4.0, abs=1.0)
    assert value(25.0, 0.0, 3) - value(15.0, 0.0, 3) == pytest.approx(4.0, abs=1.0)
    for hour, size in ((8, -6.0), (12, 4.0), (20, 0.0)):
        assert value(15.0, 1.0, hour) - value(15.0, 0.0, hour) == pytest.approx(size, abs=0.8)


def test_methods_with_covariates_survive_a_file(fitted, tmp_path) -> None:
    assert {LINEAR, COVARIATE_TREES, LEVEL_TREES} & fitted.weights_.keys()
    seen, ahead = load()[:-TESTED], load()[["time", "temperature", "holiday"]][-TESTED:][:HOURS]
    forecast = fitted.predict(seen, future=ahead)
    fitted.save(tmp_path / "m.toa")
    loaded = Forecaster.load(tmp_path / "m.toa")
    pd.testing.assert_frame_equal(loaded.predict(seen, future=ahead), forecast)
    # the last rows are enough, and a backtest gives the same
    tail = seen[-fitted.fitted_.rows_read :]
    np.testing.assert_allclose(loaded.predict(tail, future=ahead)["y"], forecast["y"], rtol=1e-9)
    tested = fitted.backtest(load(), test_size=TESTED, stride=HOURS)
    np.testing.assert_allclose(tested.forecast[0, :, 0], forecast["y"], rtol=1e-9)


def test_two_fits_are_equal(fitted) -> None:
    ahead = load()[["time", "temperature", "holiday"]][-TESTED:][:HOURS]
    again = forecaster(interval=0.8).fit(load()[:-TESTED])
    pd.testing.assert_frame_equal(again.predict(future=ahead), fitted.predict(future=ahead))


def test_values_at_and_after_an_origin_change_no_forecast_there() -> None:
    """Own values and those of a past covariate; a covariate beyond the horizon neither."""
    table = load().rename(columns={"holiday": "measured"})
    origin = len(table) - 3 * HOURS
    model = forecaster(covariates=["temperature"], past_covariates=["measured"]).fit(table[:-TESTED])
    assert {LINEAR, COVARIATE_TREES, LEVEL_TREES} & model.weights_.keys()
    expected = model.backtest(table, test_size=3 * HOURS, stride=HOURS).forecast[0]
    after = np.arange(len(table)) >= origin
    beyond = np.arange(len(table)) >= origin + HOURS
    changed = table.assign(
        y=np.where(after, 10.0, table["y"]),
        measured=np.where(after, 1.0 - table["measured"], table["measured"]),
        temperature=np.where(beyond, 0.0, table["temperature"]),
    )
    for name, rows in model.fitted_.forecast_panel(model.read_fitted(changed), [(0, origin)]).items():
        same = model.fitted_.forecast_panel(model.read_fitted(table), [(0, origin)])[name]
        np.testing.assert_array_equal(rows, same, err_msg=name)
    np.testing.assert_array_equal(model.backtest(changed, test_size=3 * HOURS, stride=HOURS).forecast[0], expected)
    # but the covariate within the horizon does
    moved = table.assign(temperature=np.where(after, table["temperature"] + 8.0, table["temperature"]))
    assert np.abs(model.backtest(moved, test_size=3 * HOURS, stride=HOURS).forecast[0] - expected).max() > 0.5


def test_trees_read_a_past_covariate_some_steps_back() -> None:
    """y follows the covariate eight days later."""
    lead = np.random.default_rng(2).standard_normal(408)
    days = pd.date_range("2023-01-01", periods=400, freq="D")
    noise = 0.1 * np.random.default_rng(3).standard_normal(400)
    table = pd.DataFrame({"day": days, "y": 3.0 * lead[:-8] + noise, "lead": lead[8:]})
    model = Forecaster(6, past_covariates=["lead"], effort="trees", device="cpu").fit(table[:-60])
    errors = model.backtest(table, test_size=60).table()["mae"]
    assert errors["model"] < 0.5 * errors["theta"]
    assert not model.fitted_.unused


def test_a_table_without_dates_has_trees_with_covariates() -> None:
    """Its season is 1, so that no row lies between a step and the value a season before."""
    random = np.random.default_rng(7)
    lead = random.standard_normal(204)
    table = pd.DataFrame({"y": 3.0 * lead[:-4] + 0.1 * random.standard_normal(200), "lead": lead[4:]})
    model = Forecaster(4, past_covariates=["lead"], effort="trees", device="cpu").fit(table[:-20])
    assert {COVARIATE_TREES, LEVEL_TREES} & set(model.fitted_.panel_methods)
    errors = model.backtest(table, test_size=20).table()["mae"]
    assert errors["model"] < 0.5 * errors["theta"]


def test_the_message_states_by_how_much_an_unused_covariate_would_change_the_error() -> None:
    random = np.random.default_rng(5)
    days = pd.date_range("2023-01-01", periods=300, freq="D")
    table = pd.DataFrame({"day": days, "y": random.standard_normal(300), "noise": random.standard_normal(300)})
    model = Forecaster(6, covariates=["noise"], effort="trees", device="cpu").fit(table)
    assert model.fitted_.unused["noise"] is not None
    after = pd.DataFrame({"day": pd.date_range(days[-1], periods=7, freq="D")[1:], "noise": 0.0})
    with pytest.warns(
        UserWarning, match=message("does not depend on 'noise' (with it the error at the rolling origins would be")
    ):
        model.predict(future=after)


def test_changes_are_named_in_words() -> None:
    covariates = Covariates(covariates=("a", "b", "c"))
    text = covariates.describe_unused({"a": 0.0231, "b": -0.004, "c": None})
    assert text == (
        "The forecast does not depend on 'a' (with it the error at the rolling origins would be 2.3 % higher), "
        "'b' (with it the error at the rolling origins would be 0.4 % lower, which is too little for a weight), "
        "'c': no method with a weight uses them."
    )
    assert covariates.describe_unused({}) == ""
    masks = [np.array([True, False, False]), np.array([False, True, False])]
    assert find_unused(covariates, masks[:1], {"trees": masks[1]}, {"trees": 0.1}) == {"b": 0.1, "c": None}


def test_a_short_table_with_covariates_is_named() -> None:
    days = pd.date_range("2023-01-01", periods=12, freq="D")
    table = pd.DataFrame({"day": days, "y": np.arange(12.0) % 5, "promo": np.arange(12.0) % 3})
    with pytest.warns(UserWarning, match=message("the rows are too few to validate methods", "'promo'", "more rows")):
        Forecaster(6, covariates=["promo"], effort="trees", device="cpu").fit(table)


def test_an_effect_of_noise_is_small_or_none() -> None:
    random = np.random.default_rng(0)
    rows = EffectRows(
        features=[random.standard_normal((600, 3))],
        clocks=[np.zeros((600, 3), dtype=np.int64)],
        values=[random.standard_normal((600, 2))],
        begins=[np.zeros(2, dtype=np.int64)],
        groups=(1, 1),
    )
    effect = fit_curves(rows, 7, 1)
    assert effect is not None
    assert np.abs(effect.of(rows.features[0], rows.clocks[0])).mean() < 0.15
    again = CovariateEffect.from_state(effect.state(), effect.weights)
    np.testing.assert_array_equal(again.weights, effect.weights)
    with pytest.raises(ValueError, match="effect of covariates"):
        CovariateEffect.from_state(effect.state(), effect.weights[1:])


def test_a_clock_follows_the_frequency() -> None:
    panel = read_panel(load()[:50])
    assert clock_groups(panel) == (24, 7)
    clock = clock_of(panel, 3)[0]
    assert clock[[0, 25, 52]].tolist() == [[0, 0, 1], [1, 1, 2], [4, 2, 3]]
    days = read_panel(pd.DataFrame({"day": pd.date_range("2024-01-01", periods=9, freq="D"), "y": 1.0}))
    assert clock_groups(days) == (1, 7)
    assert clock_groups(read_panel(np.arange(9.0))) == (1, 1)
    assert clock_of(read_panel(np.arange(9.0)), 2)[0].shape == (11, 3)


def test_inputs_of_a_damaged_file_are_refused() -> None:
    covariates = Covariates(covariates=("a",), past_covariates=("b",))
    plan = plan_inputs(covariates, season=24, horizon=4, relative=True, limit=500, with_longer=True)
    state: dict[str, Any] = {name: getattr(plan, name) for name in ("relative", "longer", "limit", "around")}
    state |= {"references": [0], "past": [[1, 1]]}
    assert InputPlan.from_state(state, season=24, horizon=4).longer == 168
    with pytest.raises(ValueError, match="the file is damaged"):
        InputPlan.from_state(state | {"past": [[1, -1]]}, season=24, horizon=4)


def test_a_value_that_fit_has_not_seen_acts_like_those_beside_it():
    """Discounts of 0, 10 and 20 with an effect of 1 per unit: 15 acts like 15, and 30 like the highest."""
    shape = FeatureShape(place=0, levels=(10.0, 20.0), knots=(), low=0.0, high=20.0, by_group=False)
    effects = shape.curves(np.array([-5.0, 0.0, 10.0, 15.0, 20.0, 30.0])) @ np.array([10.0, 20.0])
    np.testing.assert_allclose(effects, [0.0, 0.0, 10.0, 15.0, 20.0, 20.0])
