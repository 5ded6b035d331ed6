"""Missing rows in backtests and in the rolling origins of fit: filled from the past alone, and never scored."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.estimators.signals import quick, wide
from tests.support import message
from toa.data.frames import read_panel
from toa.estimators import Forecaster
from toa.estimators.choice import weigh_at
from toa.estimators.origins import RollingOrigins

# the first row after the gap
ORIGIN = 200
GAP = slice(195, ORIGIN)
HORIZON = 6


def gappy(column: str = "load", *, change: float = 0.0, rows: int = 240) -> pd.DataFrame:
    """The table with a gap before a row, and with this row changed."""
    frame = wide(rows)
    frame.loc[GAP.start : GAP.stop - 1, column] = np.nan
    frame.loc[ORIGIN, column] += change
    return frame


@pytest.fixture(scope="module")
def forecasters() -> dict[str, Forecaster]:
    """The network alone, with a past covariate, and all methods; fitted before the gap."""
    early = wide(190)
    return {
        "network": quick(missing="interpolate").fit(early),
        "past covariate": quick(missing="interpolate", past_covariates=("heat",)).fit(early),
        "all methods": Forecaster(HORIZON, missing="interpolate", epochs=2, interval=0.8).fit(early),
    }


@pytest.mark.parametrize(("name", "column"), [("network", "load"), ("past covariate", "heat"), ("all methods", "load")])
def test_no_forecast_at_an_origin_moves_with_a_later_row(forecasters, name, column) -> None:
    model = forecasters[name]
    tested = [model.backtest(gappy(column, change=change), test_size=40) for change in (0.0, 50.0)]
    at = np.flatnonzero(tested[0].origins == ORIGIN)
    assert len(at) == 1
    first, second = (np.concatenate([part.forecast[at], *_bounds(part, at)]) for part in tested)
    np.testing.assert_array_equal(first, second)
    # the changed row is seen one row later
    after = tested[0].origins == ORIGIN + 1
    assert not np.array_equal(tested[0].forecast[after], tested[1].forecast[after])


def _bounds(tested: Any, at: np.ndarray) -> list[np.ndarray]:
    return [] if tested.lower is None else [tested.lower[at], tested.upper[at]]


def test_a_refit_in_a_backtest_reads_no_later_row(forecasters) -> None:
    model = quick(missing="interpolate", epochs=1)
    model.fit(wide(190))
    tested = [model.backtest(gappy(change=change), test_size=40, stride=20, refit=40) for change in (0.0, 50.0)]
    np.testing.assert_array_equal(tested[0].forecast[0], tested[1].forecast[0])


def test_the_rolling_origins_of_fit_see_the_gap_as_it_was_then() -> None:
    panels = [read_panel(gappy(change=change), missing="interpolate") for change in (0.0, 50.0)]
    origins = RollingOrigins(series=np.array([0, 0]), back=np.array([40, 38]), held=np.array([40]), horizon=HORIZON)
    for panel in panels:
        each = origins.per_column(np.array([[240, 240]]), panel.gaps(panel.columns), looks_ahead=panel.looks_ahead)
        series = panel.histories(panel.columns)
        first, *_, last, _ = each.histories(series)
        assert (first[GAP] == panel.values[0][GAP.start - 1, 0]).all(), "an open gap repeats the last value"
        assert last[GAP.start] != first[GAP.start], "a gap that is closed before the origin is interpolated"
        np.testing.assert_array_equal(each.earlier(series)[0], first)
        np.testing.assert_array_equal(panel.before([40]).values[0][:, 0], first)


def test_a_gap_after_an_origin_is_no_actual_value() -> None:
    panel = read_panel(gappy(), missing="interpolate")
    origins = RollingOrigins(series=np.array([0]), back=np.array([47]), held=np.array([47]), horizon=HORIZON)
    each = origins.per_column(np.array([[240, 240]]), panel.gaps(panel.columns), looks_ahead=True)
    actual = each.actual(panel.histories(panel.columns))
    assert np.isnan(actual[0]).tolist() == [False, False, True, True, True, True]
    assert np.isfinite(actual[1]).all()


@pytest.mark.parametrize(("missing", "repeats"), [("zero", False), ("ffill", True)])
def test_zeros_and_repeated_values_are_the_same_at_every_origin(missing, repeats) -> None:
    panel = read_panel(gappy(), missing=missing)
    (window,) = panel.past(("load",), [(0, 198)], 4)
    expected = panel.values[0][GAP.start - 1, 0] if repeats else 0.0
    assert window[1:, 0].tolist() == [expected] * 3


@pytest.mark.parametrize("missing", ["ffill", "interpolate", "zero"])
def test_only_observed_values_are_scored(forecasters, missing) -> None:
    frame = wide(240)
    absent = np.random.default_rng(0).permutation(np.arange(201, 240))[:25]
    frame.loc[absent, "load"] = np.nan
    model = quick(horizon=1, missing=missing, values=["load"]).fit(wide(190))
    tested = model.backtest(frame, test_size=40)
    assert tested.scored == 15
    assert "15 of 40 forecast values are scored" in tested.note
    assert "15 of 40 values scored" in repr(tested)
    truth = wide(240)["load"].to_numpy()[200:]
    seen = ~np.isin(np.arange(200, 240), absent)
    errors = np.abs(tested.forecast[:, 0, 0] - truth)[seen]
    assert tested.by_column["load"]["mae"] == pytest.approx(errors.mean())
    assert tested.table().loc["model", "mae"] == pytest.approx(errors.mean())
    assert np.isnan(tested.actual[:, 0, 0]).tolist() == (~seen).tolist()
    assert tested.frame()["load_actual"].isna().sum() == 25


def test_coverage_and_pinball_loss_leave_out_filled_values() -> None:
    frame = wide(240)
    frame.loc[200::2, "load"] = np.nan
    model = quick(missing="ffill", interval=0.5, quantiles=(0.5,), epochs=1).fit(wide(190))
    tested = model.backtest(frame, test_size=40)
    actual = tested.actual
    is_actual = np.isfinite(actual)
    inside = (actual >= tested.lower) & (actual <= tested.upper)
    assert tested.metrics["coverage"] == pytest.approx(inside[is_actual].mean())
    assert np.isfinite(tested.metrics["pinball"])


def test_a_test_without_any_observed_value_raises() -> None:
    frame = wide(240)
    frame.loc[200:, ["load", "heat"]] = np.nan
    model = quick(missing="ffill", epochs=1).fit(wide(190))
    with (
        pytest.warns(UserWarning, match="has no value in its last 40 rows"),
        pytest.raises(ValueError, match=message("values in the tested rows", "test more rows")),
    ):
        model.backtest(frame, test_size=40)


def test_methods_are_weighted_by_observed_values_alone() -> None:
    """Weights and errors are the same, whatever is filled in where the data have no value."""
    values = wide(240)["load"].to_numpy()
    cells = np.isin(np.arange(240), [211, 212, 230])
    origins = RollingOrigins.choose([240], horizon=HORIZON, share=0.2).per_column(np.array([[240]]), [cells])
    forecasts = {
        name: np.stack([values[-back:][:HORIZON] + error for back in origins.back])
        for name, error in (("drift", 1.0), ("seasonal naive", 2.0))
    }
    series = [values, np.where(cells, 1e6, values)]
    first, second = (weigh_at(origins, [rows], forecasts, np.ones(1)) for rows in series)
    assert first == second
    assert first[1]["drift"] == pytest.approx(1.0)


def test_a_fit_without_values_at_its_origins_repeats_the_season() -> None:
    frame = wide(120)
    frame.loc[60:, "load"] = np.nan
    # no row of the last seasons has a value, which two checks notice
    with (
        pytest.warns(UserWarning, match="'load' since"),
        pytest.warns(UserWarning, match="has no value in its last 60 rows"),
    ):
        model = Forecaster(HORIZON, missing="ffill", epochs=1, values=["load"]).fit(frame)
    assert model.weights_ == {"seasonal naive": 1.0}
