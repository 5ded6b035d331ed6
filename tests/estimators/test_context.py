"""A forecast from fewer rows than were validated says so; rows that nothing reads make no difference."""

import warnings

import numpy as np
import pandas as pd
import pytest

from tests.estimators.signals import quick, wave
from tests.estimators.stages import only
from tests.support import message
from toa.data.frames import read_panel
from toa.estimators import Forecaster
from toa.estimators.context import ContextRows
from toa.estimators.lag_methods import FittedBaseline, linear_lookbacks
from toa.estimators.methods import Histories

ROWS = 600


def hourly(rows: int = ROWS, *, seed: int = 0) -> pd.DataFrame:
    """A daily wave on a wandering level."""
    random = np.random.default_rng(seed)
    level = np.cumsum(0.1 * random.standard_normal(rows))
    values = np.sin(2 * np.pi * np.arange(rows) / 24) + level
    return pd.DataFrame({"time": pd.date_range("2024-01-01", periods=rows, freq="h"), "load": values})


def validated_rows(model: Forecaster) -> np.ndarray:
    context = model.fitted_.context
    assert context is not None
    return context.validated


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    with only("linear"):
        return Forecaster(12, interval=0.8).fit(hourly())


def test_five_rows_of_a_seasonal_series_are_named_with_the_rows_that_were_validated(fitted) -> None:
    needed = fitted.fitted_.rows_read
    with pytest.warns(UserWarning, match=message("data has 5 rows, but", f"read {needed} rows")) as told:
        fitted.predict(hourly().tail(5))
    assert len(told) == 1


def test_rows_that_no_method_reads_make_no_difference_and_no_warning(fitted) -> None:
    needed = fitted.fitted_.rows_read
    assert needed <= linear_lookbacks(24, 12)[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short = fitted.predict(hourly().tail(needed))
        assert short.equals(fitted.predict(hourly()))
        fitted.predict()
    with pytest.warns(UserWarning, match=message(f"data has {needed - 1} rows")):
        assert not fitted.predict(hourly().tail(needed - 1)).equals(short)


def test_a_series_that_was_validated_with_as_few_rows_is_not_named() -> None:
    frame = hourly(60)
    with only("linear"):
        model = Forecaster(6).fit(frame)
    validated = int(validated_rows(model)[0, 0])
    assert validated < model.fitted_.rows_read
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(frame.tail(validated))
    with pytest.warns(UserWarning, match=message(f"at least the last {validated} rows")):
        model.predict(frame.tail(validated - 1))


def test_all_short_series_are_named_in_one_warning_and_new_ones_by_the_shortest_that_was_validated(recwarn) -> None:
    context = ContextRows(np.array([[100], [40], [0]]))
    series = [np.arange(rows, dtype=float) for rows in (90, 30, 39)]
    panel = read_panel(series)
    context.warn_of_short(panel, (0, 1, 7), panel.columns, read=512)
    assert len(recwarn.list) == 1
    assert "90 rows (and 2 more series have too few)" in str(recwarn.list[0].message)
    assert context.of_series(None).tolist() == [40]
    # never validated
    assert context.of_series(2).tolist() == [0]


def test_a_column_counts_from_its_first_value(recwarn) -> None:
    frame = pd.DataFrame({"a": wave(100), "b": wave(100)})
    frame.loc[:79, "b"] = np.nan
    panel = read_panel(frame, late_columns=True)
    ContextRows(np.array([[50, 20]])).warn_of_short(panel, (None,), panel.columns, read=512)
    assert not recwarn.list
    ContextRows(np.array([[50, 21]])).warn_of_short(panel, (None,), panel.columns, read=512)
    assert "data has 20 rows" in str(recwarn.list[0].message)


def test_the_network_alone_names_a_context_that_it_pads() -> None:
    frame = hourly(200)
    model = quick(lookback=None, epochs=1).fit(frame)
    lookback = model.lookback_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(frame.tail(lookback))
    with pytest.warns(UserWarning, match=message("data has 3 rows", f"at least the last {lookback} rows")):
        model.predict(frame.tail(3))


def test_a_loaded_forecaster_names_a_short_context(fitted, tmp_path) -> None:
    fitted.save(tmp_path / "model.toa")
    loaded = Forecaster.load(tmp_path / "model.toa")
    assert validated_rows(loaded).tolist() == validated_rows(fitted).tolist()
    with pytest.warns(UserWarning, match=message("data has 5 rows")):
        loaded.predict(hourly().tail(5))


@pytest.mark.parametrize("name", ["seasonal naive", "drift", "theta", "optimised theta", "damped trend"])
def test_a_baseline_reads_as_many_rows_as_it_states(name) -> None:
    method = FittedBaseline(name, season=24, horizon=30)
    values = hourly(900).load.to_numpy()
    read = method.rows_read
    full = method.forecast(Histories(values=[values]))
    assert np.array_equal(method.forecast(Histories(values=[values[-read:]])), full)
    assert not np.array_equal(method.forecast(Histories(values=[values[-read + 1 :]])), full)
