"""Each kind of covariate lowers the error of a series that depends on it, and survives a file."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.estimators.signals import quick
from tests.support import message
from toa.estimators import Forecaster
from toa.estimators.covariate_use import find_unused

ROWS = 400
HORIZON = 6
DAYS = pd.date_range("2023-01-01", periods=ROWS, freq="D")
NOISE = 0.1 * np.random.default_rng(0).standard_normal(ROWS)


def error(model: Forecaster, table: pd.DataFrame) -> float:
    return model.fit(table[: ROWS - 60]).backtest(table, test_size=60).by_column["y"]["mae"]


def learner(**options: Any) -> Forecaster:
    return quick(HORIZON, lookback=14, epochs=15, **options)


def test_a_text_covariate_is_a_category(tmp_path) -> None:
    kind = np.random.default_rng(1).choice(["fair", "none", "sale"], ROWS)
    effect = pd.Series(kind).map({"fair": -3.0, "none": 0.0, "sale": 5.0}).to_numpy()
    table = pd.DataFrame({"day": DAYS, "y": effect + NOISE, "event": kind})
    model = learner(covariates=["event"])
    assert error(model, table) < 0.3 * error(learner(values=["y"]), table)
    model.save(tmp_path / "m.toa")
    seen = table[: ROWS - 60]
    after = table[["day", "event"]][ROWS - 60 : ROWS - 54]
    forecast = model.predict(seen, future=after)
    loaded = Forecaster.load(tmp_path / "m.toa")
    pd.testing.assert_frame_equal(loaded.predict(seen, future=after), forecast)
    with pytest.raises(ValueError, match=message("column 'event' of future", "['fair', 'none', 'sale']", "'party'")):
        loaded.predict(seen, future=after.assign(event="party"))
    # the same before training; nothing of the estimator changes
    fresh = learner(covariates=["event"])
    before = copy.deepcopy(vars(fresh))
    fresh.check_future(seen, after)
    with pytest.raises(ValueError, match=message("column 'event' of future", "['fair', 'none', 'sale']", "'party'")):
        fresh.check_future(seen, after.assign(event="party"))
    assert vars(fresh) == before


def test_without_a_network_a_regression_uses_covariates(tmp_path) -> None:
    """The trend and the weekly season are no effect of the promotion."""
    promo = (np.random.default_rng(4).random(ROWS) < 0.3).astype(float)
    usual = 0.05 * np.arange(ROWS) + 2 * np.sin(2 * np.pi * np.arange(ROWS) / 7) + NOISE
    table = pd.DataFrame({"day": DAYS, "y": usual + 8 * promo, "promo": promo})
    model = Forecaster(HORIZON, covariates=["promo"], effort="least", interval=0.8, device="cpu")
    model.fit(table[: ROWS - 60])
    tested = model.backtest(table, test_size=60)
    scores = tested.table()["mae"]
    assert "toa" not in model.weights_
    assert scores["model"] < 0.1 * scores["seasonal naive"]
    assert scores["model"] < 1.1 * scores.min()
    assert "beats theta on every column" in tested.verdicts()
    assert model.choice_ is not None
    assert model.effect_ is not None
    step = model.known_.features(None, np.array([[0.0], [1.0]])) @ model.effect_ * model.choice_.scale
    np.testing.assert_allclose(step[1] - step[0], 8.0, rtol=0.05)
    # the file has the effect, and rows after the origin are not read
    model.save(tmp_path / "m.toa")
    seen = table[: ROWS - 60]
    after = table[["day", "promo"]][ROWS - 60 : ROWS - 54]
    forecast = model.predict(seen, future=after)
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path / "m.toa").predict(seen, future=after), forecast)
    np.testing.assert_allclose(forecast["y"], tested.forecast[0, :, 0])
    later = table.assign(y=table["y"].where(table.index < ROWS - 60, 0.0))
    np.testing.assert_array_equal(model.backtest(later, test_size=60).forecast[0], tested.forecast[0])


def test_a_past_covariate_is_used_without_future_values() -> None:
    """y follows the covariate eight days later; the forecast of six days can see that."""
    lead = np.random.default_rng(2).standard_normal(ROWS + 8)
    table = pd.DataFrame({"day": DAYS, "y": 3.0 * lead[:-8] + NOISE, "lead": lead[8:]})
    model = learner(past_covariates=["lead"])
    assert error(model, table) < 0.5 * error(learner(values=["y"]), table)
    assert model.columns_ == ("y",)
    assert len(model.predict()) == HORIZON
    # rows after the origin are not read
    later = table.assign(lead=table["lead"].where(table.index < ROWS - HORIZON, 50.0))
    first, second = (model.backtest(rows, test_size=HORIZON).forecast for rows in (table, later))
    np.testing.assert_array_equal(first, second)


@pytest.mark.slow
def test_static_columns_change_the_effect_of_others() -> None:
    """A promotion raises sales in one region and lowers them in the other."""
    promo = (np.random.default_rng(3).random(ROWS) < 0.4).astype(float)
    parts = [
        pd.DataFrame({"shop": shop, "region": region, "day": DAYS, "y": sign * 4.0 * promo + NOISE, "promo": promo})
        for shop, region, sign in (("a", "north", 1.0), ("b", "south", -1.0))
    ]
    table = pd.concat(parts, ignore_index=True)
    ends = table.groupby("shop").cumcount() < ROWS - 60
    options: dict[str, Any] = {"id": "shop", "values": ["y"], "covariates": ["promo"]}
    errors = [
        learner(**options, **more).fit(table[ends]).backtest(table, test_size=60).by_column["y"]["mae"]
        for more in ({"static": ["region"]}, {})
    ]
    assert errors[0] < 0.5 * errors[1]
    with pytest.raises(ValueError, match="in the static column 'promo', got several"):
        learner(id="shop", values=["y"], static=["promo"]).fit(table)


def test_holidays_of_a_country_are_a_feature() -> None:
    pytest.importorskip("holidays")
    days = pd.date_range("2020-01-01", periods=1200, freq="D")
    model = quick(HORIZON, holidays="DE", epochs=1).fit(pd.DataFrame({"day": days, "y": np.arange(1200.0) % 7}))
    when = pd.DatetimeIndex(["2024-10-02", "2024-10-03", "2024-12-25 13:00"])
    assert model.known_.features(when, np.zeros((3, 0)))[:, 0].tolist() == [0.0, 1.0, 1.0]
    with pytest.raises(ValueError, match=message("holidays must be the code of a country", "'XX'")):
        quick(HORIZON, holidays="XX").fit(pd.DataFrame({"day": days, "y": 1.0}))
    months = pd.date_range("2010-01-01", periods=90, freq="MS")
    with pytest.raises(ValueError, match=message("holidays must be left out for steps longer than a day")):
        quick(HORIZON, holidays="DE").fit(pd.DataFrame({"day": months, "y": np.arange(90.0)}))


def test_what_no_method_with_a_weight_uses_is_named() -> None:
    """Regressions use neither past and static columns nor what does not change; the network uses all features."""
    table = pd.DataFrame({"day": DAYS, "y": NOISE, "promo": NOISE > 0, "lead": NOISE, "same": "a", "none": 0.0})
    kinds: dict[str, Any] = {"covariates": ["promo", "none"], "past_covariates": ["lead"], "static": ["same"]}
    model = Forecaster(HORIZON, **kinds, calendar=True, effort="least", device="cpu").fit(table)
    unused = {"none", "same", "lead"}
    effect = model.fitted_.covariate_effect
    assert effect is not None
    features = model.known_.count
    masks = [effect.used(features)]
    assert unused <= find_unused(model.known_, masks, {}, {}).keys()
    assert find_unused(model.known_, [], {}, {}).keys() == {"calendar", "promo", *unused}
    text = model.known_.describe_unused(dict.fromkeys(["none", "same"]))
    assert text == "The forecast does not depend on 'none', 'same': no method with a weight uses them."


def test_a_column_has_one_kind() -> None:
    table = pd.DataFrame({"day": DAYS, "y": NOISE, "x": NOISE})
    with pytest.raises(ValueError, match=message("a covariate must have one kind, got 'x' twice")):
        learner(covariates=["x"], past_covariates=["x"]).fit(table)


def test_the_effect_on_a_column_that_begins_late_is_that_of_its_own_rows() -> None:
    random = np.random.default_rng(0)
    promo = random.random(200)
    table = pd.DataFrame({"a": 3.0 * promo, "late": 3.0 * promo, "promo": promo}) + 0.01 * random.random((200, 3))
    table.loc[:149, "late"] = np.nan
    model = quick(model="auto", covariates=["promo"], season=1, effort="least")
    with pytest.warns(UserWarning, match="'late' at row 151"):
        model.fit(table)
    assert model.choice_ is not None
    assert model.effect_ is not None
    step = model.known_.features(None, np.array([[0.0], [1.0]])) @ model.effect_ * model.choice_.scale
    np.testing.assert_allclose(step[1] - step[0], 3.0, rtol=0.15)
