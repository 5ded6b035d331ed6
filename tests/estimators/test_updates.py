"""Rows that arrive after `fit`: they move the end of the series, and nothing is fitted."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.estimators.signals import long, quick, wave, wide
from tests.metamorphic.promises import tiny_effort
from tests.support import message
from toa.estimators import AnomalyDetector, Forecaster

ROWS = 120
NEW_ROWS = 37


def weighted(horizon: int = 4, **options: Any) -> Forecaster:
    """Several methods that are fitted in a tenth of a second."""
    usual: dict[str, Any] = {"effort": tiny_effort(), "season": 12, "interval": 0.8, "device": "cpu"}
    return Forecaster(horizon, **usual | options)


def frame(rows: int = ROWS + NEW_ROWS) -> pd.DataFrame:
    return wide(rows, noise=0.3)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Loads a forecaster of the first rows, in which no stream has begun."""
    path = tmp_path_factory.mktemp("updates") / "model.toa"
    weighted().fit(frame()[:ROWS]).save(path)
    return lambda: Forecaster.load(path)


def assert_equal(got: Any, expected: Any) -> None:
    pd.testing.assert_frame_equal(got, expected, check_exact=True)


def pieces(rows: pd.DataFrame, *sizes: int) -> list[pd.DataFrame]:
    """The rows in parts of these sizes, one after another until none is left."""
    parts: list[pd.DataFrame] = []
    while len(rows):
        size = sizes[len(parts) % len(sizes)]
        parts.append(rows[:size])
        rows = rows[size:]
    return parts


@pytest.mark.parametrize("sizes", [(1,), (5, 1, 12), (NEW_ROWS,)])
def test_a_stream_gives_the_forecast_of_all_its_rows_together(fitted, sizes) -> None:
    model = fitted()
    model.update(frame()[:ROWS])
    for part in pieces(frame()[ROWS:], *sizes):
        model.update(part)
    assert_equal(model.predict(), model.predict(frame()))
    assert_equal(model.predict_baseline("theta"), model.predict_baseline("theta", frame()))


def test_rows_after_a_fit_follow_the_rows_of_the_fit() -> None:
    model = weighted().fit(frame()[:ROWS])
    weights = dict(model.weights_)
    before = model.predict()
    after = model.update(frame()[ROWS:]).predict()
    assert_equal(after, model.predict(frame()))
    assert not before.equals(after)
    assert model.weights_ == weights


def test_rows_may_be_dicts_lists_or_arrays(fitted) -> None:
    rows = frame()
    model = fitted().update(rows[:-3])
    expected = model.predict(rows)
    model.update(rows.iloc[-3].to_dict()).update(rows[-2:].to_dict("records"))
    assert_equal(model.predict(), expected)
    values = rows[["load", "heat"]].to_numpy()
    array = weighted().fit(values[:ROWS])
    array.update(values[ROWS:-2]).update(values[-2]).update(values[-1].tolist())
    np.testing.assert_array_equal(array.predict()["forecast"], array.predict(values)["forecast"])


def test_each_id_is_a_stream_and_a_new_id_begins_one() -> None:
    rows = long().drop(columns="promo")
    first = rows[rows["day"] < "2024-04-01"]
    later = rows[rows["day"] >= "2024-04-01"]
    model = weighted(id="id").fit(first)
    for id in ("y", "x"):
        for part in pieces(later[later["id"] == id], 7, 2):
            model.update(part)
    assert_equal(model.predict(), model.predict(rows))
    new = rows[rows["id"] == "x"].assign(id="z")[:30]
    model.update(new[:20]).update(new[20:])
    with pytest.warns(UserWarning, match="series 'z' of (data|the stream) has 30 rows"):
        updated = model.predict()
    with pytest.warns(UserWarning, match="series 'z' of data has 30 rows"):
        expected = model.predict(pd.concat([rows, new]))
    assert_equal(updated, expected)


def test_the_network_reads_covariates_of_the_new_rows() -> None:
    rows = long(x=100)
    model = quick(id="id", covariates=["promo"], epochs=1).fit(rows[:80])
    for part in pieces(rows[80:], 3):
        model.update(part)
    days = pd.date_range(rows["day"].iloc[-1], periods=7, freq="D")[1:]
    future = pd.DataFrame({"id": "x", "day": days, "promo": 1.0})
    assert_equal(model.predict(future=future), model.predict(rows, future=future))


def test_the_network_reads_its_look_back_of_the_new_rows() -> None:
    model = quick(epochs=1, interval=0.5).fit(frame()[:ROWS])
    assert_equal(model.update(frame()[ROWS:]).predict(), model.predict(frame()))


def test_a_row_of_many_columns_is_no_series() -> None:
    values = np.stack([wave(ROWS, seed=seed) for seed in range(30)], 1)
    model = weighted().fit(values)
    # a warning is an error
    model.update(values[0])
    assert model.predict()["forecast"].shape == (4, 30)
    AnomalyDetector(model="z-score", device="cpu").fit(values).detect(values[0])


def test_a_stream_keeps_the_rows_that_a_forecast_reads_and_no_more(fitted) -> None:
    model = fitted()
    most = model.fitted_.rows_kept
    rows = frame(most + 300)
    model.update(rows[:most]).update(rows[most:])
    assert model.fitted_.tail.lengths == (most,)
    assert_equal(model.predict(), model.predict(rows))


def test_values_that_were_filled_stay_in_the_kept_rows() -> None:
    rows = frame()
    rows.loc[100:102, "load"] = np.nan
    model = weighted(missing="ffill").fit(rows[:ROWS]).update(rows[ROWS:])
    assert_equal(model.predict(), model.predict(rows))


def test_a_column_that_begins_late_stays_one() -> None:
    rows = frame()
    rows.loc[:60, "heat"] = np.nan
    with pytest.warns(UserWarning, match="begin"):
        model = weighted().fit(rows[:ROWS])
    assert_equal(model.update(rows[ROWS:]).predict(), model.predict(rows))


def test_polars_rows_give_polars_forecasts() -> None:
    pl = pytest.importorskip("polars")
    rows = pl.from_pandas(frame())
    model = weighted().fit(rows[:ROWS]).update(rows[ROWS:])
    assert model.predict().equals(model.predict(rows))


def test_a_saved_forecaster_holds_no_rows_of_a_stream(fitted, tmp_path) -> None:
    model = fitted().update(frame())
    model.save(tmp_path / "model.toa")
    again = Forecaster.load(tmp_path / "model.toa")
    with pytest.raises(ValueError, match=message("files hold no rows", "update")):
        again.predict()
    assert_equal(again.update(frame()).predict(), model.predict())


WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "again": (frame()[ROWS - 1 : ROWS], ("continue with 2024-01-11 00:00:00", "2024-01-10 22:00:00", "in order")),
    "gap": (frame()[ROWS + 1 :], ("continue with 2024-01-11 00:00:00", "2024-01-11 02:00:00")),
    "inner gap": (frame()[ROWS:].drop(index=ROWS + 2), ("have a row at every step", "2024-01-11 06:00:00")),
    "column": (frame()[ROWS:].drop(columns="heat"), ("have the columns of fit", "no 'heat'")),
    "further column": (frame()[ROWS:].assign(wind=1.0), ("have the columns of fit", "a new one, 'wind'")),
    "no times": (frame()[ROWS:].drop(columns="date"), ("have times",)),
    "missing": (
        frame()[ROWS:].assign(heat=lambda rows: rows["heat"].where(rows.index > ROWS + 1)),
        ("have no missing values", "fill it before the call"),
    ),
    "text": (frame()[ROWS:].assign(heat=lambda rows: rows["heat"].map(str) + " K"), ("only numeric columns", "heat")),
    "far away": (frame()[ROWS:].assign(heat=1e30), ("'heat'",)),
    "lists": ([[1.0, 2.0], [3.0]], ("lists of different lengths",)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_rows_raise_an_error_and_change_nothing(fitted, kind) -> None:
    rows, words = WRONG[kind]
    model = fitted().update(frame()[:ROWS])
    expected = model.predict()
    with pytest.raises(ValueError, match=message(*words)):
        model.update(rows)
    assert_equal(model.predict(), expected)


def test_rows_with_times_do_not_follow_rows_without() -> None:
    model = weighted().fit(wave(ROWS)[:, None])
    times = pd.date_range("2024-01-01", periods=3, freq="h")
    with pytest.raises(ValueError, match=re.escape("rows must have no times, as the rows before")):
        model.update(pd.DataFrame({"date": times, "0": 1.0}))


def test_a_forecaster_must_be_fitted_before_an_update() -> None:
    with pytest.raises(ValueError, match="fitted before it is given rows"):
        weighted().update(frame())
