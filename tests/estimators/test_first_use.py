"""Tables that people have, which were read or scored wrongly without a word."""

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support import message
from toa.data.formats import read_frame, write_frame
from toa.data.frames import read_panel
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.estimators.calibrated import Choice
from toa.estimators.scorers import PCA

pl = pytest.importorskip("polars")

DAYS = pd.date_range("2024-01-01", periods=60, freq="D")


def cases(count: int = 24) -> pd.DataFrame:
    """One case per row, of two classes, with ids in another order than the rows."""
    generator = np.random.default_rng(0)
    kind = np.arange(count) % 2
    waves = np.sin(np.arange(20) * (0.5 + kind[:, None])) + 0.1 * generator.normal(size=(count, 20))
    table = pd.DataFrame(waves, columns=[f"t{step}" for step in range(20)])
    return table.assign(id=generator.permutation(count), kind=np.where(kind, "fast", "slow"))


def test_labels_with_the_index_of_the_cases_are_those_of_its_rows() -> None:
    table = cases()
    labels = table.pop("kind")
    model = Classifier(id="id", effort="least", device="cpu").fit(table, labels)
    by_id = pd.Series(labels.to_numpy(), index=pd.Index(table["id"], name="id"))
    assert model.score(table, labels) == model.score(table, by_id) == model.score(table, labels.tolist()) > 0.9


def test_score_compares_labels_as_text_if_one_side_is() -> None:
    table = cases()
    labels = (table.pop("kind") == "fast").astype(int)
    model = Classifier(id="id", effort="least", device="cpu").fit(table, labels.astype(str))
    assert model.score(table, labels.to_numpy()) == model.score(table, labels.astype(str).to_numpy()) > 0.9


@pytest.mark.parametrize("kind", [Forecaster, AnomalyDetector, Classifier])
def test_values_are_a_list(kind) -> None:
    estimator = kind(3, values="sales") if kind is Forecaster else kind(values="sales")
    with pytest.raises(ValueError, match=message("values must be a list of columns, got 'sales'; write ['sales']")):
        estimator.fit(pd.DataFrame({"sales": range(60)}), [0, 1] * 30)


def test_holidays_need_dates() -> None:
    with pytest.raises(ValueError, match=message("holidays must be left out for data without dates, got 'DE'")):
        Forecaster(3, holidays="DE", device="cpu").fit(np.arange(60.0))


def test_dates_in_a_text_index_are_times() -> None:
    table = pd.DataFrame({"y": np.arange(60.0)}, index=DAYS.astype(str))
    panel = read_panel(table)
    assert panel.times is not None
    assert list(panel.times[0]) == list(DAYS)
    with pytest.raises(ValueError, match=message("sort")):
        read_panel(table[::-1])
    # other text is no time
    assert read_panel(table.set_axis([f"row {row}" for row in range(60)])).times is None
    assert read_panel(table.set_axis(DAYS.date)).freq == "D"
    # a column with dates decides
    other = table.assign(day=DAYS + pd.Timedelta(days=1))
    for index in (other.index, pd.to_timedelta(np.arange(60), unit="h")):
        panel = read_panel(other.set_axis(index))
        assert panel.times is not None
        assert panel.times[0][0] == other["day"].iloc[0]
    with pytest.raises(ValueError, match=message("must have one time, got the index beside a column 'y'")):
        read_panel(table.set_index(DAYS).rename_axis("y"))
    with pytest.raises(ValueError, match=message("data must have dates as times, got durations; add a start date")):
        read_panel(table.set_axis(pd.to_timedelta(np.arange(60), unit="h")))


@pytest.mark.parametrize("kind", [pl.Duration, pl.Time])
def test_durations_are_no_dates(kind) -> None:
    cells: list[Any] = [datetime.timedelta(hours=hour) for hour in range(5)]
    cells = cells if kind is pl.Duration else [datetime.time(hour) for hour in range(5)]
    with pytest.raises(ValueError, match=message("column 't' of data must have dates or whole numbers, got")):
        read_panel(pl.DataFrame({"t": cells, "y": range(5)}))


@pytest.mark.parametrize(
    "cells", [["00:15", "00:30"], ["1-Jan", "2-Jan"], ["8:00 am", "9:00 am"], ["00:15Z", "00:30Z"], ["00:15+01:00"] * 2]
)
def test_no_date_is_invented(cells) -> None:
    with pytest.raises(ValueError, match=message("column 't' of data must have a date in every row, got '")):
        read_panel(pd.DataFrame({"t": cells, "y": np.arange(len(cells))}), time="t")


def test_rows_without_a_value_at_the_end_are_named() -> None:
    table = pd.DataFrame({"day": DAYS, "y": [*range(50), *[np.nan] * 10]})
    with pytest.raises(ValueError, match=message("column 'y' has no value in its last 10 rows: cut them off")):
        read_panel(table)
    with pytest.warns(
        UserWarning, match=message("column 'y' has no value in its last 10 rows; missing='ffill' fills them")
    ):
        read_panel(table, missing="ffill")
    # cutting them off would not be enough
    with pytest.raises(ValueError, match=message("got 11 NaN")) as raised:
        read_panel(table.assign(y=table["y"].where(table["y"] != 5)))
    assert "cut them off" not in str(raised.value)
    several = pd.concat([table.assign(id=name) for name in "abc"])
    with pytest.warns(UserWarning, match=message("series 'a' of data: column 'y'", "(3 such series)")) as caught:
        read_panel(several, id="id", missing="ffill")
    assert len(caught) == 1


def test_an_inserted_row_keeps_the_last_text() -> None:
    table = pd.DataFrame({"day": DAYS[[0, 1, 3, 4]], "y": [1.0, 2.0, 4.0, 5.0], "kind": ["a", "a", "c", "b"]})
    panel = read_panel(table, missing="interpolate", categories={"kind": None})
    assert panel.values[0].tolist() == [[1, 0], [2, 0], [3, 0], [4, 2], [5, 1]]


def test_pca_leaves_out_a_direction_that_varies() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3))
    rows[:, 2] = 7.0
    plain, constant = (PCA.fit(part, seed=0).parts(part) for part in (rows[:, :2], rows))
    np.testing.assert_allclose(constant.sum(1), plain.sum(1))
    assert constant.sum(1).mean() > 0.1


def test_json_keeps_microseconds(tmp_path: Path) -> None:
    times = pd.date_range("2024-01-01", periods=4, freq="200us")
    path = tmp_path / "a.jsonl"
    write_frame(pd.DataFrame({"time": times, "y": range(4)}), path)
    assert pd.to_datetime(read_frame(path)["time"]).tolist() == times.tolist()
    # also where clocks change
    times = pd.date_range("2024-10-27", periods=5, freq="h", tz="Europe/Rome")
    write_frame(pd.DataFrame({"time": times}), path)
    assert pd.to_datetime(read_frame(path)["time"], utc=True).tolist() == times.tolist()
    # no more digits than needed
    write_frame(pd.DataFrame({"time": DAYS[:2]}), path)
    assert json.loads(path.read_text().splitlines()[0]) == {"time": "2024-01-01T00:00:00.000"}


@pytest.mark.filterwarnings("ignore:.* wherever it was validated")
def test_a_new_series_of_one_row_has_the_usual_interval() -> None:
    generator = np.random.default_rng(0)
    levels = {"a": (1000.0, 50.0), "b": (1200.0, 50.0), "c": (1.0, 1e-3)}
    parts = [
        pd.DataFrame({"id": name, "day": DAYS, "y": level + noise * generator.normal(size=60)})
        for name, (level, noise) in levels.items()
    ]
    model = Forecaster(3, id="id", interval=0.8, effort="least", device="cpu").fit(pd.concat(parts))
    assert isinstance(model.choice_, Choice)
    new = pd.DataFrame({"id": ["new"], "day": DAYS[-1:], "y": [1000.0]})
    forecast = model.predict(new)
    width = (forecast["y_upper"] - forecast["y_lower"]).to_numpy()
    assert (width > 20.0).all()
    # as wide, relative to its level, if that is another
    small = model.predict(new.assign(y=1.0))
    np.testing.assert_allclose((small["y_upper"] - small["y_lower"]).to_numpy(), width / 1000.0, rtol=0.01)
