"""Panel: one or more time series with the same columns, the table type of all data.

Benchmark files (`toa.data.tables`), user frames (`toa.data.frames`) and labelled cases become a Panel. Reading
never repairs data silently: it raises ValueError, with row or column, for times that repeat, decrease or have no common
frequency, for text, for infinities, and for missing values or rows unless `missing` chooses how to fill them.

Alphabet: S series, T rows, C columns.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64

from toa._checks import Argument, ArgumentError, ArgumentWarning, Name, Phrase, check_choice
from toa._limits import list_first, memory_budget, shorten
from toa.data.frequency import Frequency, make_times
from toa.data.series_times import SeriesId, check_times, group_rows, series_name

Missing = Literal["error", "ffill", "interpolate", "zero"]
FILLS = ("ffill", "interpolate", "zero")
MISSING = ("error", *FILLS)
Id = SeriesId
Values = Float64[np.ndarray, "t c"]
# how many times larger than the table one series may become by its missing rows, whatever the memory budget
_MOST_FILLED = 100
# columns of fit that an error names
_COLUMNS_SHOWN = 10
# what to do about missing values
FILL_REMEDY = Phrase(
    "fill them with ",
    Argument("missing", "ffill"),
    " (the last value) or ",
    Argument("missing", "interpolate"),
    " (linear, uses later values)",
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Panel:
    """Series of one table.

    Attributes:
        values: Values (T, C) per series.
        ids: Id per series; (None,) for a table without ids, 0, 1, … for a list of arrays.
        times: T dates or integers per series, or None.
        freq: Pandas alias for dates, step for integers, None if unknown.
        rows: Per series the source row of each row, counted from 0; -1 for an inserted row.
        backend: Library of the source frame, None for arrays and files.
        time_in_index: Whether the times were the index of a pandas frame.
        day_first: Whether the day came first in dates such as 01/02/2015; None for other dates.
        categories: Texts of the columns that hold places in such a list.
        begins: Per series and column the first row with a value (C,), if columns may begin later than others; the
            rows before it repeat that value. None if all columns begin at the first row.
        steps: Names of the steps, if a row of the source table was a case.
        filled: Per series which values (T, C) were missing in the table and are filled; None if none was missing.
        looks_ahead: Whether filled values depend on later ones, as those of "interpolate" do.
    """

    values: tuple[Values, ...]
    columns: tuple[str, ...]
    ids: tuple[Id, ...] = (None,)
    times: tuple[pd.Index, ...] | None = None
    freq: Frequency | None = None
    rows: tuple[Int64[np.ndarray, " t"], ...] = ()
    labels: np.ndarray | None = None
    id_column: str | None = None
    time_column: str | None = None
    backend: Any = None
    time_in_index: bool = False
    day_first: bool | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    begins: tuple[Int64[np.ndarray, " c"], ...] | None = None
    steps: tuple[str, ...] = ()
    filled: tuple[Bool[np.ndarray, "t c"], ...] | None = None
    looks_ahead: bool = False

    def __len__(self) -> int:
        return len(self.values)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of rows per series."""
        return tuple(map(len, self.values))

    def label(self, place: int, name: Name = "data") -> Name:
        """Name of a series in error messages."""
        return series_name(self.ids[place], name)

    def check_rows(self, least: int, what: str | Phrase, *remedies: str | Phrase) -> None:
        """Raise ValueError if a series has fewer rows than `least`."""
        for index, rows in enumerate(self.lengths):
            if rows < least:
                raise ArgumentError(self.label(index), Phrase("have at least ", what), rows, *remedies)

    def select(self, columns: Sequence[str], name: Name = "data") -> "Panel":
        """The panel with exactly these columns, in this order; raises ValueError if one is missing or new."""
        missing = [column for column in columns if column not in self.columns]
        new = [column for column in self.columns if column not in columns]
        if missing or new:
            found = f"no {shorten(missing[0])}" if missing else f"a new one, {shorten(new[0])}"
            raise ArgumentError(
                name,
                f"have the columns of fit, {list_first([shorten(name) for name in columns], _COLUMNS_SHOWN)}",
                found,
                Phrase("choose columns with ", Argument("values")),
                "fit again",
            )
        return self.with_columns(columns, self.take(columns))

    def with_columns(self, columns: Sequence[str], values: Sequence[Values]) -> "Panel":
        """The panel with these of its columns only, and new values (T, ·) of them."""
        places = [self.columns.index(column) for column in columns]
        begins = None if self.begins is None else tuple(begin[places] for begin in self.begins)
        filled = None if self.filled is None else tuple(cells[:, places] for cells in self.filled)
        return replace(self, columns=tuple(columns), values=tuple(values), begins=begins, filled=filled)

    def take(self, columns: Sequence[str]) -> list[Values]:
        """Values (T, ·) of these columns, per series."""
        places = [self.columns.index(column) for column in columns]
        return [values[:, places] for values in self.values]

    def observed(self, columns: Sequence[str]) -> list[Values]:
        """Values (T, ·) of these columns, per series; NaN where the table has none."""
        values = self.take(columns)
        if self.filled is None:
            return values
        places = [self.columns.index(column) for column in columns]
        return [np.where(cells[:, places], np.nan, part) for part, cells in zip(values, self.filled, strict=True)]

    def open_gaps(self, index: int, end: int) -> dict[str, int]:
        """Columns of a series whose value before the row `end` depends on later rows, with their last observed row."""
        if self.filled is None or not self.looks_ahead or end < 1:
            return {}
        cells = self.filled[index][:end]
        lengths = {place: int(cells[::-1, place].argmin()) for place in np.flatnonzero(cells[-1]).tolist()}
        # without an earlier value, which has the length 0 here, nothing can be repeated
        return {self.columns[place]: end - 1 - length for place, length in lengths.items() if length}

    def past(self, columns: Sequence[str], ends: Sequence[tuple[int, int]], rows: int | None = None) -> list[Values]:
        """Windows (·, C) of these columns before a row, as they were known then.

        A gap that is open there repeats its last value: values that were filled with the help of later rows are not
        used. Before a series, its first row is repeated.

        Args:
            ends: Windows as index of the series and first row after the window.
            rows: Number of rows, the last ones; None for all.
        """
        places = {column: place for place, column in enumerate(self.columns)}
        chosen = np.array([places[column] for column in columns])
        windows = []
        for index, end in ends:
            steps = np.arange(0 if rows is None else end - rows, end).clip(0)
            values = self.values[index][np.ix_(steps, chosen)]
            for column, last in self.open_gaps(index, end).items():
                place = places[column]
                values[np.ix_(steps > last, chosen == place)] = self.values[index][last, place]
            windows.append(values)
        return windows

    def tail(self, rows: int) -> "Panel":
        """The last rows of each series."""
        return self if max(self.lengths) <= rows else self._cut([slice(-rows, None)] * len(self))

    def before(self, last: Sequence[int]) -> "Panel":
        """Each series without its last rows, as many as `last` has for it; see `past`."""
        ends = [rows - cut for rows, cut in zip(self.lengths, last, strict=True)]
        cut = self._cut([slice(end) for end in ends])
        if self.filled is None or not self.looks_ahead:
            return cut
        return replace(cut, values=tuple(self.past(self.columns, list(enumerate(ends)))))

    def _cut(self, slices: Sequence[slice]) -> "Panel":
        names = ("values", "times", "rows", "filled")
        cut: dict[str, Any] = {
            name: tuple(part[rows] for part, rows in zip(getattr(self, name), slices, strict=True))
            for name in names
            if getattr(self, name)
        }
        begins = None
        if self.begins is not None:
            firsts = [part.indices(rows)[0] for part, rows in zip(slices, self.lengths, strict=True)]
            begins = tuple(np.maximum(0, begin - first) for begin, first in zip(self.begins, firsts, strict=True))
        return replace(self, **cut, begins=begins)

    def complete(self, columns: Sequence[str] = ()) -> "Panel":
        """Each series from the row on at which all columns but `columns` have begun, and these have the most values."""
        places = [self.columns.index(column) for column in columns]
        slices = []
        for begins, rows in zip(self.begins or (), self.lengths, strict=self.begins is not None):
            free = begins[places]
            least = np.delete(begins, places).max(initial=0)
            firsts = np.append(free[free > least], least)
            values = (free <= firsts[:, None]).sum(1) * (rows - firsts)
            slices.append(slice(int(firsts[values.argmax()]), None))
        return self._cut(slices) if slices else self

    def histories(
        self, columns: Sequence[str], ends: Sequence[tuple[int, int]] | None = None, most: int | None = None
    ) -> list[Float64[np.ndarray, " _"]]:
        """Each column by itself, from its first value on, see `past`; the columns of a series are adjacent.

        Args:
            ends: Windows as index of the series and first row after the window; None for all rows of each series.
            most: Largest number of rows, the last ones.
        """
        places = [self.columns.index(column) for column in columns]
        begins = [[0] * len(self.columns)] * len(self)
        if self.begins is not None:
            begins = [begin.tolist() for begin in self.begins]
        histories = []
        for index, end in enumerate(self.lengths) if ends is None else ends:
            gaps = self.open_gaps(index, end)
            for place in places:
                first = max(min(begins[index][place], end - 1), 0 if most is None else end - most)
                rows = self.values[index][first:end, place]
                last = gaps.get(self.columns[place])
                if last is not None:
                    rows = np.where(np.arange(first, end) > last, self.values[index][last, place], rows)
                histories.append(rows)
        return histories

    def gaps(self, columns: Sequence[str]) -> list[Bool[np.ndarray, " _"]] | None:
        """Which values of `histories` were missing in the table; None if none was."""
        if self.filled is None:
            return None
        places = [self.columns.index(column) for column in columns]
        begins = [np.zeros(len(self.columns), dtype=int)] * len(self) if self.begins is None else self.begins
        return [
            cells[min(begin[place], len(cells) - 1) :, place]
            for cells, begin in zip(self.filled, begins, strict=True)
            for place in places
        ]

    def with_labels(self, y: Any, name: Name = "y") -> "Panel":
        """The panel with labels from y: one label per case, or a mapping or pandas series by id."""
        if self.backend is not None and isinstance(y, Mapping | pd.Series):
            for id in self.ids:
                if id not in y:
                    raise ArgumentError(name, "have a label for each case", f"none for case {id!r}", "add it")
            y = [y[id] for id in self.ids]
        labels = np.asarray(y)
        if labels.dtype == object or not hasattr(y, "dtype"):
            # numpy turns numbers beside text into text
            _check_one_type(np.asarray(y, dtype=object).ravel(), name)
        if np.iscomplexobj(labels):
            raise ArgumentError(name, "have labels that are text, booleans or real numbers", labels.dtype)
        if labels.ndim == 2 and labels.shape[1] == 1:
            from sklearn.exceptions import DataConversionWarning

            vector = f"A column-vector {name} was passed when a 1d array was expected; its only column is used."
            warnings.warn(vector, DataConversionWarning, stacklevel=4)
            labels = labels[:, 0]
        if labels.ndim != 1:
            raise ArgumentError(name, "have one label per case", f"shape {labels.shape}")
        empty = np.flatnonzero(pd.isna(labels))
        if len(empty):
            raise ArgumentError(name, "have a label for each case", f"none for case {empty[0] + 1}", "add or drop it")
        if len(labels) != len(self):
            raise ArgumentError(name, f"have a label for each of the {len(self)} cases", len(labels))
        return replace(self, labels=labels)

    def next_times(self, steps: int) -> list[pd.Index | None]:
        """The stamps that follow each series; None without times."""
        if self.times is None or self.freq is None:
            return [None] * len(self)
        ends = [times[-1] for times in self.times]
        # most series of a table end at the same time
        ahead: dict[Any, pd.Index] = {end: make_times(end, self.freq, steps + 1)[1:] for end in dict.fromkeys(ends)}
        return [ahead[end] for end in ends]


def _check_one_type(labels: np.ndarray, name: Name) -> None:
    """Raise ValueError for text beside numbers; missing labels do not count."""
    filled = [label for label in labels if not pd.isna(label)]
    text = [label for label in filled if isinstance(label, str)]
    if text and len(text) < len(filled):
        raise ArgumentError(
            name,
            "have labels of one type",
            f"text such as {text[0]!r} beside other values",
            "convert all labels to text, or all to numbers",
        )


class MissingValuesError(ArgumentError):
    """Values are missing. What to do depends on what the user called; see `ArgumentError.with_remedies`."""


def make_panel(
    values: Values,
    columns: Sequence[str],
    *,
    ids: Any = None,
    times: pd.Index | None = None,
    freq: Frequency | None = None,
    regular: bool = True,
    allow_duplicates: bool = False,
    missing: str = "error",
    late_columns: bool = False,
    usual_freq: Frequency | None = None,
    name: Name = "data",
    **source: Any,
) -> Panel:
    """Group rows into series, check their times, and fill or reject missing values.

    Args:
        values: (T, C), NaN where a value is missing.
        ids: Id per row. The rows of an id need not be adjacent. None for one series.
        times: Date or integer per row, increasing within each series; None for no times.
        regular: Whether times must have one frequency. False accepts any increasing times and inserts no rows.
        allow_duplicates: Whether a date may occur in two consecutive rows.
        missing: "error", or how to fill missing values and missing rows: "ffill" repeats the last value, "interpolate"
            is linear and uses later values, "zero" inserts zeros.
        late_columns: Whether columns may begin later than others, with NaN before; see `Panel.begins`.
        usual_freq: Frequency if none can be inferred, because no series has two rows.
        source: Further fields of the Panel.
    """
    check_choice("missing", missing, MISSING)
    groups = group_rows(ids, source.get("id_column"), len(values), name)
    if ids is not None:
        values = values[groups.order]
        times = None if times is None else times[groups.order]
    places = None
    if times is not None:
        if regular:
            freq = freq if groups.inner.any() else freq or usual_freq
        freq, places = check_times(
            times,
            groups,
            name,
            freq=freq,
            regular=regular,
            allow_duplicates=allow_duplicates,
            may_have_gaps=missing != "error",
        )
    elif freq is not None:
        remedy = Phrase("name it with ", Argument("time"))
        raise ArgumentError(name, f"have times of the frequency {freq!r}", "no time column", remedy)
    texts = [place for place, column in enumerate(columns) if column in source.get("categories", ())]
    parts: list[_Part] = []
    begins: list[np.ndarray] = []
    absent: list[np.ndarray] = []
    ends: list[Phrase] = []
    for id, start, stop in zip(groups.ids, groups.borders[:-1].tolist(), groups.borders[1:].tolist(), strict=True):
        part = _Part(values[start:stop], groups.order[start:stop], None if times is None else times[start:stop])
        if places is not None and places[stop - 1] - places[start] >= stop - start:
            assert freq is not None
            _check_filled(places[start:stop] - places[start], part.times, values, name)
            part = part.with_all_steps(places[start:stop] - places[start], freq)
        begin = np.zeros(len(columns), dtype=np.int64)
        nothing = np.isnan(part.values)
        if nothing.any():
            filled = part.values
            if late_columns:
                filled, begin = _without_late_begins(filled)
                nothing = np.isnan(filled)
            if texts and missing != "error":
                # texts have no order, so an inserted row keeps the last text
                filled = filled.copy()
                filled[:, texts] = pd.DataFrame(filled[:, texts]).ffill()
            label = series_name(id, name)
            end = _empty_end(filled, columns)
            part = part._replace(values=fill_missing(filled, columns, label, missing, end=end))
            ends += [Phrase(label, f": {end}")] if end else []
        parts.append(part)
        begins.append(begin)
        absent.append(nothing)
    _warn_of_empty_ends(ends, missing)
    return Panel(
        values=tuple(part.values for part in parts),
        columns=tuple(columns),
        ids=groups.ids,
        times=None if times is None else tuple(part.times for part in parts),
        freq=freq,
        rows=tuple(part.rows for part in parts),
        begins=tuple(begins) if any(begin.any() for begin in begins) else None,
        filled=tuple(absent) if any(cells.any() for cells in absent) else None,
        looks_ahead=missing == "interpolate",
        **source,
    )


class _Part(NamedTuple):
    """The rows of one series: values (T, C), row numbers of the source with -1 for inserted rows, and times."""

    values: Values
    rows: Int64[np.ndarray, " t"]
    times: Any

    def with_all_steps(self, places: np.ndarray, freq: Frequency) -> "_Part":
        """The series with a row of NaN at each step that has none; its rows are at these places."""
        count = int(places[-1]) + 1
        values = np.full((count, self.values.shape[1]), np.nan)
        rows = np.full(count, -1)
        values[places] = self.values
        rows[places] = self.rows
        return _Part(values, rows, None if self.times is None else make_times(self.times[0], freq, count))


def _without_late_begins(values: Values) -> tuple[Values, Int64[np.ndarray, " c"]]:
    """Values with the first one of each column repeated before it, and the row of that first value."""
    begin = np.isfinite(values).argmax(0)
    # a column without values stays NaN
    before = np.arange(len(values))[:, None] < begin
    return np.where(before, values[begin, np.arange(values.shape[1])], values), begin


def _empty_end(values: Values, columns: Sequence[str]) -> str:
    """The column with the most rows at its end without a value, in words; empty if there are less than two."""
    count = np.isnan(values)[::-1].argmin(0)
    most = int(count.argmax())
    return f"column {columns[most]!r} has no value in its last {count[most]} rows" if count[most] > 1 else ""


def _warn_of_empty_ends(ends: Sequence[Phrase], missing: str) -> None:
    if ends:
        count = f" ({len(ends)} such series)" if len(ends) > 1 else ""
        fill = Phrase(Argument("missing", missing), " fills them: cut them off unless that is right.")
        warnings.warn(ArgumentWarning(ends[0], f"{count}; ", fill), stacklevel=5)


def _check_filled(places: np.ndarray, times: Any, values: np.ndarray, name: Name) -> None:
    """Raise if missing rows would make a series, with rows at these places, far larger than the whole table."""
    count = int(places[-1]) + 1
    budget = memory_budget()
    if 8 * count * values.shape[1] > max(budget, _MOST_FILLED * values.nbytes):
        gap = int(np.diff(places).argmax())
        raise ArgumentError(
            name,
            f"fit into {budget / 2**30:g} GiB with its missing rows filled",
            f"{count:,} rows of a series (longest gap: {times[gap]} to {times[gap + 1]})",
            "correct the dates, or raise TOA_MEMORY",
        )


def to_numbers(
    frame: pd.DataFrame, name: Name, remedies: Sequence[str | Phrase] = ("drop the column", "convert it to numbers")
) -> Values:
    """The frame as float64 (T, C), NaN where a value is missing."""
    if not len(frame):
        raise ArgumentError(name, "have at least one row of values", "none", "is the file complete?")
    if not len(frame.columns):
        raise ArgumentError(name, "have at least one column of values", "none besides ids and times")
    for column in frame.columns:
        if pd.api.types.is_complex_dtype(frame[column]):
            raise ArgumentError(
                name,
                "be real",
                f"complex numbers in column {str(column)!r}",
                "give the real and the imaginary part as two columns. Complex data not supported",
            )
        if not pd.api.types.is_numeric_dtype(frame[column]) or pd.api.types.is_bool_dtype(frame[column]):
            cells = frame[column]
            if pd.api.types.is_bool_dtype(cells) or (cells.dtype == object and cells.dropna().map(_is_float).all()):
                # numbers or flags beside None; flags are 0 and 1
                # not `assign`: names of columns may be numbers
                frame = frame.copy(deep=False)
                frame[column] = cells.astype(object).where(cells.notna(), np.nan).astype(np.float64)
                continue
            bad = cells.notna() & ~cells.map(is_number)
            if not bad.any():
                raise ArgumentError(
                    name,
                    "have only numeric columns",
                    f"numbers as text in column {shorten(str(column))}",
                    *remedies,
                )
            row = int(bad.to_numpy().argmax())
            if 2 * (count := int(bad.sum())) < int(cells.notna().sum()):
                remedies = (f"correct it ({count} such cells)", "leave it empty for a missing value", *remedies)
            raise ArgumentError(
                name,
                "have only numeric columns",
                f"{shorten(str(cells.iloc[row]))} in column {shorten(str(column))} at data row {row + 1}",
                *remedies,
            )
    values = frame.to_numpy(dtype=np.float64, na_value=np.nan)  # (T, C)
    infinite = np.isinf(values)
    if infinite.any():
        row, place = np.argwhere(infinite)[0].tolist()
        raise ArgumentError(
            name,
            "be finite",
            f"{int(infinite.sum())} infinite values (inf), the first in column {str(frame.columns[place])!r} at data "
            f"row {row + 1}",
            "remove them, or leave them empty and fill missing values",
        )
    return values


def _is_float(cell: object) -> bool:
    """Whether a cell is a number or a flag, not text of one."""
    return isinstance(cell, int | float | Decimal) and is_number(cell)


def is_number(cell: object) -> bool:
    """Whether a cell is a number, or text of one."""
    try:
        float(cell)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def fill_missing(
    values: Values, columns: Sequence[str], name: Name, missing: str, row: str = "data row", end: str = ""
) -> Values:
    """Values with NaN filled according to `missing`; raises MissingValuesError if a value stays missing, at a `row`."""
    for column in np.flatnonzero(np.isnan(values).all(0)):
        empty = f"only NaN in column {columns[column]!r}"
        raise MissingValuesError(
            name, "have values in every column", empty, "fill in its values", "fit without this column"
        )
    remedies: list[str | Phrase] = [FILL_REMEDY]
    if end and np.isnan(values)[::-1].argmin(0).sum() == np.isnan(values).sum():
        remedies = [f"{end}: cut them off", FILL_REMEDY]
    if missing != "error":
        cut = f" has no earlier value to start from: cut the first {row.split()[-1]}s or drop the column"
        remedies = [Phrase(Argument("missing", missing), cut)]
        frame = pd.DataFrame(values)
        if missing == "zero":
            frame = frame.fillna(0.0)
        else:
            frame = frame.ffill() if missing == "ffill" else frame.interpolate("linear", limit_direction="forward")
        values = frame.to_numpy(dtype=np.float64)
    left = np.isnan(values)
    if left.any():
        counts = [f"{int(n)} in {column!r}" for column, n in zip(columns, left.sum(0), strict=True) if n]
        more = f" and more in {len(counts) - 8} further columns" if len(counts) > 8 else ""
        first = f"the first at {row} {int(left.any(1).argmax()) + 1}"
        listed = f"{int(left.sum())} NaN: {', '.join(counts[:8])}{more}, {first}"
        raise MissingValuesError(name, "have no missing values", listed, *remedies)
    return values
