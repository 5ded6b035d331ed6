import decimal
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import message
from toa.data.columns import warn_of_misread
from toa.data.frames import read_cases, read_panel, to_native
from toa.data.frequency import calendar_of, make_times
from toa.data.panel import to_numbers

pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")


def wide(rows: int = 30, freq: str = "h", **changes: Any) -> pd.DataFrame:
    dates = pd.date_range("2024-01-01", periods=rows, freq=freq)
    return pd.DataFrame({"date": dates, "a": np.arange(float(rows)), "b": np.arange(rows)} | changes)


def long() -> pd.DataFrame:
    """Two series, 4 and 3 rows, interleaved."""
    return pd.DataFrame(
        {
            "who": ["x", "y", "x", "y", "x", "y", "x"],
            "when": pd.to_datetime([f"2024-01-0{day}" for day in (1, 3, 2, 4, 3, 5, 4)]),
            "y": [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0],
        }
    )


KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas text": lambda frame: frame.assign(date=frame["date"].astype(str)),
    "pandas index": lambda frame: frame.set_index("date"),
    "polars": pl.from_pandas,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_frame_of_any_library_survives_a_round_trip(kind) -> None:
    frame = KINDS[kind](wide())
    panel = read_panel(frame)
    assert (panel.ids, panel.columns, panel.freq, panel.lengths) == ((None,), ("a", "b"), "h", (30,))
    assert panel.times is not None
    assert panel.times[0].tolist() == wide()["date"].tolist()
    np.testing.assert_array_equal(panel.values[0], np.stack([np.arange(30.0)] * 2, 1))
    back = to_native(panel, {"date": panel.times[0], "a": panel.values[0][:, 0]})
    assert type(back) is type(frame)
    again = read_panel(back)
    assert (again.freq, again.columns, again.time_in_index) == ("h", ("a",), kind == "pandas index")


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_a_time_zone_survives_a_round_trip(kind) -> None:
    frame = wide(60, "D")
    # the clocks change on 31 March
    frame["date"] = pd.date_range("2024-03-01", periods=60, freq="D", tz="Europe/Rome")
    panel = read_panel(KINDS[kind](frame))
    assert panel.freq == "D"
    assert panel.times is not None
    assert panel.times[0].tolist() == frame["date"].tolist()
    again = read_panel(to_native(panel, {"date": panel.times[0], "a": panel.values[0][:, 0]}))
    assert again.times is not None
    assert str(again.times[0].tz) == "Europe/Rome"


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_the_rows_of_an_id_are_a_series(kind) -> None:
    panel = read_panel(KINDS[kind](long()), id="who")
    assert (panel.ids, panel.columns, panel.freq, panel.time_column) == (("x", "y"), ("y",), "D", "when")
    assert [values[:, 0].tolist() for values in panel.values] == [[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0]]
    assert [rows.tolist() for rows in panel.rows] == [[0, 2, 4, 6], [1, 3, 5]]


def test_arrays_are_read_without_times() -> None:
    panel = read_panel(np.arange(6).reshape(3, 2))
    assert (panel.ids, panel.columns, panel.times, panel.backend) == ((None,), ("0", "1"), None, None)
    several = read_panel([np.arange(3.0), np.arange(5.0)])
    assert (several.ids, several.lengths, several.columns) == ((0, 1), (3, 5), ("0",))


def test_integers_may_be_times() -> None:
    panel = read_panel(pd.DataFrame({"step": [10, 15, 20], "a": [1.0, 2.0, 3.0]}), time="step")
    assert panel.freq == 5
    assert make_times(20, 5, 3).tolist() == [20, 25, 30]


@pytest.mark.parametrize("freq", ["D", "B", "MS", "ME", "QS", "YE", "15min", "2h", "7D", "W-MON", "s"])
def test_a_frequency_is_found_through_gaps_and_continued(freq) -> None:
    dates = pd.date_range("2021-01-03", periods=43, freq=freq)
    kept = [row for row in range(40) if row not in (20, 21, 33)]
    frame = pd.DataFrame({"date": dates[kept], "a": np.arange(40.0)[kept]})
    panel = read_panel(frame, missing="interpolate")
    assert panel.times is not None
    assert panel.freq is not None
    assert panel.times[0].tolist() == dates[:40].tolist()
    np.testing.assert_allclose(panel.values[0][:, 0], np.arange(40.0))
    assert panel.rows[0][[19, 20, 21, 22]].tolist() == [19, -1, -1, 20]
    assert make_times(dates[39], panel.freq, 4)[1:].tolist() == dates[40:].tolist()


@given(st.sampled_from([1, 5, 15, 60, 180, 1440]), st.sets(st.integers(1, 28)), st.data())
def test_inserted_rows_are_the_removed_ones(minutes, gone, data) -> None:
    dates = pd.date_range("2024-02-27 03:00", periods=60, freq=f"{minutes}min")
    kept = [row for row in range(60) if row not in gone]
    panel = read_panel(pd.DataFrame({"date": dates[kept], "a": np.arange(60.0)[kept]}), missing="zero")
    assert panel.lengths == (60,)
    assert set(np.flatnonzero(panel.rows[0] < 0)) == gone


@pytest.mark.parametrize(
    ("missing", "expected"), [("ffill", [1.0, 1.0, 3.0]), ("interpolate", [1.0, 2.0, 3.0]), ("zero", [1.0, 0.0, 3.0])]
)
def test_missing_values_are_filled_as_asked(missing, expected) -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0]})
    for one in (frame, pl.from_pandas(frame), frame["a"].to_numpy()):
        panel = read_panel(one, missing=missing)
        assert panel.values[0][:, 0].tolist() == expected


def off(frame: pd.DataFrame, row: int, column: str, value: object) -> pd.DataFrame:
    frame = frame.astype({column: object}) if isinstance(value, str) else frame
    frame.loc[row, column] = value
    return frame


DATES = wide()["date"]
BAD: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "duplicate": (off(wide(), 7, "date", DATES[6]), {}, ("data must have each date once", "06:00:00", "data row 8")),
    "unsorted": (off(wide(), 7, "date", DATES[3]), {}, ("data must be sorted by date", "03:00:00", "data row 8")),
    "unsorted, with duplicates and gaps": (
        wide().iloc[[0, 1, 2, 4, 3, 3, *range(5, 20), *range(22, 30)]],
        {},
        (
            "data must be sorted by date, have each date once and have a row at every step of its frequency 'h', "
            "got 2024-01-01 03:00:00 after 2024-01-01 04:00:00 at data row 5 (1 such row), "
            "2024-01-01 03:00:00 again at data row 6 (1 such row) and "
            "2024-01-01 22:00:00 after 2024-01-01 19:00:00 at data row 22 (1 such gap); "
            "sort it, keep one row per date and add the missing rows, or fill them with missing='interpolate', "
            "missing='ffill' or missing='zero', or give id, if it has several series.",
        ),
    ),
    "unsorted with gaps that may be filled": (
        wide().iloc[[0, 1, 2, 4, 3, *range(5, 20), *range(22, 30)]],
        {"missing": "ffill"},
        ("data must be sorted by date, got 2024-01-01 03:00:00 after", "(1 such row); sort it, or give id"),
    ),
    "two recordings": (
        pd.DataFrame({"run": [1, 2, 2, 2, 1, 1], "t": [0, 0, 1, 0, 1, 2], "x": 1.0}),
        {"id": "run", "time": "t"},
        (
            "series 2 of data must be sorted by step and have each step once, got 0 after 1 at data row 4",
            "; sort it and keep one row per step, or give two recordings different ids.",
        ),
    ),
    "two interleaved recordings": (
        pd.DataFrame({"run": [1, 2, 2, 2], "t": [0, 0, 0, 1], "x": 1.0}),
        {"id": "run", "time": "t"},
        ("series 2 of data must have each step once, got 0 again", "per step, or give two recordings different ids."),
    ),
    "only NaN": (
        wide().assign(load=np.nan),
        {},
        ("only NaN in column 'load'; fill in its values, or fit without this column.",),
    ),
    "mixed": (
        off(wide(), 29, "date", DATES[29] + pd.Timedelta("20min")),
        {},
        ("data must have one frequency", "'h'", "at data row 30"),
    ),
    "mixed series": (
        pd.concat([wide().assign(id=1), wide(12, "2h").assign(id=2)]),
        {"id": "id"},
        ("data must have one frequency, 'h'", "mostly 2 steps apart", "data row 32"),
    ),
    "gap": (
        wide().drop(index=[4, 5]),
        {},
        ("data must have a row at every step of its frequency 'h'", "06:00:00 after", "data row 5", "missing="),
    ),
    "far date": (
        off(wide(4, "s"), 3, "date", pd.Timestamp("2204-01-01")),
        {"missing": "ffill"},
        ("data must fit into 1 GiB", "rows of a series", "to 2204-01-01 00:00:00", "correct the dates"),
    ),
    "texts": (
        wide().assign(a=[f"s{row % 2}" for row in range(len(wide()))]),
        {},
        ("only numeric columns", "'s0' in column 'a' at data row 1; give id, if the column names the series"),
    ),
    "text": (
        off(wide(), 3, "a", "three"),
        {},
        ("only numeric columns", "'three' in column 'a' at data row 4; correct it (1 such cells), or leave it empty"),
    ),
    "infinite": (off(wide(), 3, "a", np.inf), {}, ("must be finite", "column 'a' at data row 4")),
    "missing": (off(wide(), 3, "a", np.nan), {}, ("no missing values, got 1 NaN: 1 in 'a'", "'ffill'")),
    "all missing": (wide(a=np.nan), {"missing": "zero"}, ("values in every column", "NaN in column 'a'")),
    "nothing before": (off(wide(), 0, "a", np.nan), {"missing": "ffill"}, ("1 in 'a'", "cut the first rows")),
    "all missing in a series": (
        long().assign(y=[1.0, np.nan] * 3 + [4.0]),
        {"id": "who", "missing": "zero"},
        ("series 'y' of data must have values in every column", "NaN in column 'y'"),
    ),
    "no date": (off(wide(), 3, "date", pd.NaT), {}, ("column 'date' of data", "a date in every row", "data row 4")),
    "bad date": (
        off(wide().astype({"date": str}), 3, "date", "soon"),
        {},
        ("column 'date' of data must have a date in every row", "'soon' at data row 4"),
    ),
    "two dates": (wide(again=DATES), {}, ("one time column", "'date', 'again'", "time")),
    "no id": (long().assign(who=["x", None] * 3 + ["x"]), {"id": "who"}, ("an id in every row", "data row 2")),
    "ids": (long().assign(who=1.5), {"id": "who"}, ("text or integers", "1.5")),
    "unknown column": (wide(), {"values": ["c"]}, ("data must have a column 'c', got 'date', 'a', 'b'",)),
    "no values": (wide()[["date"]], {}, ("at least one column of values",)),
    "no rows": (wide()[:0], {}, ("at least one row",)),
    "one row": (wide(1), {}, ("two rows", "give freq")),
    "frequency": (
        wide(),
        {"freq": "hourly"},
        ("freq must be a pandas frequency, such as 'h', '15min', 'D' or 'MS'", "'hourly'"),
    ),
    "local days": (
        pd.DataFrame({"date": pd.date_range("2024-03-25", periods=9, tz="Europe/Rome").tz_convert("UTC"), "a": 1.0}),
        {},
        ("data must have one frequency, 'D', its most frequent step", "resample it, or give time_zone, such as"),
    ),
    "other frequency": (wide(), {"freq": "2h"}, ("data must have one frequency, '2h'", "data row 2")),
    "frequency alone": (
        wide()[["a"]],
        {"freq": "h"},
        ("data must have times of the frequency 'h'",),
    ),
    "kind": ({"a": [1.0]}, {}, ("pandas, polars or arrow frame", "got dict")),
    "lazy": (pl.from_pandas(wide()).lazy(), {}, ("LazyFrame", "collect it first")),
    "policy": (wide(), {"missing": "guess"}, ("unknown missing 'guess'", "error, ffill, interpolate, zero")),
    "index": (wide().set_index(["date", "a"]), {}, ("MultiIndex", "reset_index")),
    "axes": (np.zeros((2, 2, 2)), {}, ("array (T,) or (T, C)", "(2, 2, 2)")),
    "columns": ([np.zeros((4, 2)), np.zeros((4, 3))], {}, ("series 1 of data must have 2 columns", "got 3")),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_rejected_by_row_and_column(case) -> None:
    data, options, parts = BAD[case]
    with pytest.raises(ValueError, match=message(*parts)):
        read_panel(data, **options)


@pytest.mark.parametrize("case", ["duplicate", "gap", "infinite", "mixed series", "missing", "all missing in a series"])
def test_polars_frames_are_rejected_in_the_same_words(case) -> None:
    data, options, parts = BAD[case]
    with pytest.raises(ValueError, match=message(*parts)):
        read_panel(pl.from_pandas(data), **options)


def test_a_polars_column_of_text_is_no_number() -> None:
    with pytest.raises(ValueError, match=message("only numeric columns", "'two' in column 'a' at data row 2")):
        read_panel(pl.DataFrame({"a": ["1", "two"]}))


@pytest.mark.parametrize(
    ("freq", "marks"), [("15min", "5min"), ("h", "h"), ("6h", "h"), ("D", "D"), ("B", "D"), ("W-SUN", "W"), ("MS", "W")]
)
def test_calendar_features_follow_the_frequency(freq, marks) -> None:
    assert calendar_of(freq) == marks


def test_numbers_have_no_calendar() -> None:
    with pytest.raises(ValueError, match=message("calendar must be False", "dates")):
        calendar_of(5)


def test_an_id_that_is_repeated_by_mistake_makes_no_long_table() -> None:
    frame = pd.DataFrame(np.arange(20.0).reshape(5, 4) / 3, columns=list("abcd")).assign(rec=["u", "v", "v", "w", "x"])
    found = "column 'rec' of X must have each id once", "got 'v' more than once beside 3 ids that occur once"
    with pytest.raises(ValueError, match=message(*found)):
        read_cases(frame, id="rec")
    # a step per row, as soon as there is a time, or most cases have several rows
    assert read_cases(frame.assign(step=[0, 0, 1, 0, 0]), id="rec", time="step").lengths == (1, 2, 1, 1)
    assert read_cases(frame.assign(rec=[1, 1, 2, 3, 3]), id="rec").lengths == (2, 1, 2)


@pytest.mark.parametrize(("cells", "warned"), [([103, 101, 100, 102], True), ([103, 101, 101, 102], False)])
def test_a_first_step_of_whole_numbers_beside_fractions_looks_like_an_id(cells, warned) -> None:
    steps = pd.DataFrame(np.arange(12.0).reshape(4, 3) / 7 + 0.1, columns=list("abc"))
    steps.insert(0, "rec", cells)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_misread(read_cases(steps))
        # whole numbers in other steps as well: counts
        warn_of_misread(read_cases(steps.assign(a=[3, 1, 4, 1])))
    notes = ["column 'rec' is read as step 1 of each case, but looks like an id; give id='rec' if it names the cases."]
    assert [str(one.message) for one in found] == notes * warned


@pytest.mark.parametrize("scale", [1, 0.01])
def test_a_channel_that_counts_the_rows_of_each_case_looks_like_a_time(scale) -> None:
    step = np.tile(np.arange(5), 3) * scale
    frame = pd.DataFrame({"rec": np.repeat(list("uvw"), 5), "step": step, "amp": np.sin(np.arange(15.0))})
    note = "column 'step' is read as a channel, but looks like a time; give time='step' if it is one, or choose the"
    for one in (frame, frame.drop(index=14), frame.sample(frac=1, random_state=0)):
        with pytest.warns(UserWarning, match=message(note)):
            warn_of_misread(read_cases(one, id="rec"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_misread(read_cases(frame.drop(columns="step"), id="rec"))
        warn_of_misread(read_cases(frame.drop(columns="amp"), id="rec"))
        warn_of_misread(read_cases(frame.assign(step=range(15)), id="rec", time="step"))


@pytest.mark.parametrize(
    "data",
    [
        pd.DataFrame(np.ones((9, 2)), columns=["a", "a"]),
        pa.table([pa.array([1.0]), pa.array([2.0])], names=["a", "a"]),
    ],
    ids=["pandas", "arrow"],
)
def test_a_column_that_stands_twice_is_named(data):
    with pytest.raises(ValueError, match=message("data must have each column once, got 'a' twice; rename one.")):
        read_panel(data)


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (pd.Index([1.0, 2.0]), "got Index; make it a frame with to_frame()."),
        ([1.0, 2.0], "got list; make it an array, or join frames with"),
    ],
    ids=["index", "list"],
)
def test_one_column_outside_of_a_frame_has_a_remedy(data, remedy):
    with pytest.raises(ValueError, match=message("data must be a pandas, polars or arrow frame", remedy)):
        read_panel(data)


def test_decimals_are_numbers() -> None:
    cells = [decimal.Decimal("1.5"), None, decimal.Decimal(2)]
    panel = read_panel(pd.DataFrame({"y": cells, "z": [0.0, 1.0, 2.0]}), missing="zero")
    np.testing.assert_array_equal(panel.values[0][:, 0], [1.5, 0.0, 2.0])


def test_a_column_of_objects_may_have_a_number_as_its_name() -> None:
    # integers beyond 64 bits are objects
    numbers = to_numbers(pd.DataFrame({0: [10**30, 1, None]}, dtype=object), "data")
    np.testing.assert_array_equal(numbers[:, 0], [1e30, 1.0, np.nan])


def test_numbers_as_text_are_named() -> None:
    frame = pd.DataFrame({"y": ["1", "2", "3"], "z": [0.0, 1.0, 2.0]})
    with pytest.raises(ValueError, match=message("numbers as text in column 'y'", "convert it to numbers")) as caught:
        read_panel(frame)
    assert "such cells" not in str(caught.value)
