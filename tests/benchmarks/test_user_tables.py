"""`toa bench tables`: scores of forecasts and intervals by hand, and the made sets."""

import sys

import numpy as np
import pytest

from toa_bench import table_rivals
from toa_bench.user_tables import METHODS, RIVALS, SETS, TITLES, UserTable, evaluate, score


def table() -> UserTable:
    """Two series whose seasonal error is 1."""
    history = np.tile([0.0, 1.0], 6)
    return UserTable(
        histories=(history, history), actual=(np.zeros(3), np.ones(3)), horizon=3, season=1, freq="D", together=True
    )


def test_scores_by_hand() -> None:
    forecast = [np.array([0.0, 1.0, 2.0]), np.ones(3)]
    lower = [part - 0.5 for part in forecast]
    upper = [part + 0.5 for part in forecast]
    scores = score(table(), forecast, lower, upper)
    assert scores.keys() == TITLES.keys()
    assert scores["mase"] == pytest.approx(3.0 / 6)
    assert scores["coverage"] == pytest.approx(4.0 / 6)
    assert (scores["first"], scores["middle"], scores["last"]) == pytest.approx((1.0, 0.5, 0.5))
    assert scores["width"] == pytest.approx(1.0)
    # two values lie 0.5 and 1.5 below the bounds, at 10 per unit
    assert scores["interval_score"] == pytest.approx(1.0 + 10.0 * 2.0 / 6)


def test_series_without_bounds_count_as_not_covered() -> None:
    forecast = [np.zeros(3), np.ones(3)]
    missing = [np.full(3, np.nan)] * 2
    scores = score(table(), forecast, missing, missing)
    assert scores["coverage"] == 0.0
    assert np.isnan(scores["width"])


@pytest.mark.parametrize("name", ["growth", "random walk", "intermittent counts"])
def test_made_sets_are_equal_in_every_call_and_large_enough(name) -> None:
    first, second = SETS[name](None), SETS[name](None)
    assert all(np.array_equal(one, two) for one, two in zip(first.histories, second.histories, strict=True))
    assert sum(map(len, first.actual)) >= 2_000


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_baseline_is_scored_on_a_made_set(method) -> None:
    found = evaluate("intermittent counts", method)
    assert 0.5 < found["metrics"]["coverage"] < 1.0
    assert found["cells"] == 2_100


def test_an_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="growth"):
        evaluate("grwth", "toa")


def test_a_rival_without_its_package_names_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "statsforecast.models", None)
    with pytest.raises(ValueError, match=r"statsforecast.models must be installed, .* pip install statsforecast"):
        evaluate("intermittent counts", "auto ets")


def test_rivals_are_not_among_the_default_methods() -> None:
    assert set(RIVALS) == {"auto ets", "mstl", "lightgbm"}
    assert not set(RIVALS) & set(METHODS)


class LastStep:
    """Stands for LightGBM: predicts the last change again."""

    Dataset = staticmethod(lambda features, target, params: (features, target))

    @classmethod
    def train(cls, parameters, data, num_boost_round):
        features, target = data
        assert len(features) == len(target)
        return cls()

    @staticmethod
    def predict(rows, num_threads):
        return -rows[:, -2]


def test_trees_forecast_one_step_after_another_without_bounds(monkeypatch) -> None:
    monkeypatch.setattr(table_rivals, "load_package", lambda name: LastStep)
    line = np.arange(40.0) + 1.0
    whole = UserTable(
        histories=(line[:30], 2.0 * line[:30]),
        actual=(line[30:36], 2.0 * line[30:36]),
        horizon=3,
        season=1,
        freq="D",
    )
    forecast, lower, _ = table_rivals.forecast_by_rival(whole, "lightgbm", 0.8)
    np.testing.assert_allclose(forecast[0], line[30:36])
    np.testing.assert_allclose(forecast[1], 2.0 * line[30:36])
    assert np.isnan(lower[0]).all()
