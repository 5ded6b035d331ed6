"""Tables of a person's own as one description, and results as a table of the same kind.

    panel = read_panel(frame)                           # wide: one series, a column of dates, all others values
    panel = read_panel(frame, id="sensor", time="when") # long: the rows of an id are a series
    panel = read_panel(array)                           # (T,) or (T, C), or a list of those, without times
    panel.ids[0], panel.times[0], panel.values[0]       # an id, T stamps, (T, C) in float64 without gaps
    panel.give_back({"sensor": [...], "score": [...]})  # a frame of pandas, polars or arrow, as it was read

Nothing is repaired unasked. What is refused, naming row or column: times that repeat, fall back or have no one
frequency; text among numbers; infinities; a column without any value. Missing values, and rows that are missing
between two dates, are refused too unless `missing` says how to fill them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import narwhals as nw
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64

from toa._checks import check_choice
from toa.data.series import check_rising, fill_missing, read_dates, to_numbers
from toa.estimators.frequency import Frequency, check_frequency, check_regular, infer_frequency, span_times

Missing = Literal["error", "ffill", "interpolate", "zero"]
MISSING = ("error", "ffill", "interpolate", "zero")
# None is the one series of a table without ids
Id = str | int | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Panel:
    """Series of one table.

    Attributes:
        ids: Of each series; (None,) for a table without ids, 0, 1, … for a list of arrays.
        columns: C names; those of arrays are "0", "1", ….
        values: Of each series (T, C), finite.
        times: Of each series T dates or whole numbers; None where the table has none.
        freq: Alias of pandas for dates, the step for whole numbers, None without times.
        rows: Of each series the table's rows that its own come from, counted from 0; -1 for one that was filled in.
        id_column: Name of the column of ids.
        time_column: That of the times.
        backend: Library of the frame; None for arrays.
        time_in_index: Whether times were the index of a pandas frame.
        filled: Values that were missing and filled.
    """

    ids: tuple[Id, ...]
    columns: tuple[str, ...]
    values: tuple[Float64[np.ndarray, "t c"], ...]
    times: tuple[pd.Index, ...] | None = None
    freq: Frequency | None = None
    rows: tuple[Int64[np.ndarray, " t"], ...] = ()
    id_column: str | None = None
    time_column: str | None = None
    backend: nw.Implementation | None = None
    time_in_index: bool = False
    filled: int = 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each series."""
        return tuple(map(len, self.values))

    def label(self, place: int, name: str = "data") -> str:
        """What errors call a series."""
        return name if self.ids[place] is None else f"series {self.ids[place]!r} of {name}"

    def give_back(self, columns: Mapping[str, Any]) -> Any:
        """A frame of the library that the panel was read from; dates are passed as pandas has them."""
        assert self.backend is not None, "arrays are given back by who knows their shape"
        if self.backend is nw.Implementation.PANDAS:
            frame = pd.DataFrame(dict(columns), copy=False)
            return frame.set_index(self.time_column) if self.time_in_index else frame
        plain, zones = {}, {}
        for name, values in columns.items():
            if isinstance(values, pd.DatetimeIndex) and values.tz is not None:
                zones[name] = str(values.tz)
                values = values.tz_convert("UTC").tz_localize(None)
            plain[name] = np.asarray(values)
        made = nw.from_dict(plain, backend=self.backend)  # type: ignore[arg-type]
        for name, zone in zones.items():
            made = made.with_columns(nw.col(name).dt.replace_time_zone("UTC").dt.convert_time_zone(zone))
        return made.to_native()


def read_panel(
    data: Any,
    *,
    id: str | None = None,
    time: str | None = None,
    values: Sequence[str] | None = None,
    freq: Frequency | None = None,
    missing: Missing = "error",
    name: str = "data",
) -> Panel:
    """Read a frame of pandas, polars or arrow, an array (T,) or (T, C), or a list of arrays.

    Args:
        data: The table. In a frame, the rows of an id need not stand together, but rise in time.
        id: Column of ids, text or whole numbers; None for one series.
        time: Column of dates, or of whole numbers. None is the index of a pandas frame if that has dates, else the one
            column of dates, else the one column of text; a table with neither is read without times.
        values: Columns to read; None is all but those two.
        freq: Alias of pandas, such as "h"; None infers it.
        missing: "error", or how missing values are filled, rows that are missing between two dates included: "ffill"
            repeats the last value, "interpolate" draws a line between the neighbours, which looks ahead, "zero" puts
            zeros.
        name: What errors call the table.

    Raises:
        ValueError: For whatever cannot be read as it stands.
    """
    check_choice("missing", missing, MISSING)
    if isinstance(data, np.ndarray) or (isinstance(data, list | tuple) and data and isinstance(data[0], np.ndarray)):
        for option, given in (("id", id), ("time", time), ("values", values), ("freq", freq)):
            if given is not None:
                raise ValueError(
                    f"{option} must be None for arrays, which have no columns, got {given!r}; leave it out."
                )
        return _read_arrays(data, missing, name)
    table = _open(data, time, (id, *(values or ())), name)
    series, times, kinds = table.series_of(id), None, None
    if table.time is not None:
        times = table.times()[series.order]
        check_rising(times, name, rows=series.order, inner=series.inner)
        kinds = infer_frequency(times, series.inner, series.order, name) if freq is None else check_frequency(freq)
        places = check_regular(times, series.inner, series.order, kinds, name)
    elif freq is not None:
        raise ValueError(f"{name} must have times, of the frequency {freq!r}, got no column of them; name it.")
    else:
        places = np.arange(len(series.order))
    columns = table.columns(id) if values is None else table.named(values)
    numbers = table.numbers(columns)[series.order]  # (T, C)
    if missing == "error":
        _check_gaps(times, places, series, kinds, name)
    cut = _Cut(names=tuple(map(str, columns)), missing=missing, name=name, freq=kinds)
    parts = [cut.series(*piece) for piece in series.pieces(numbers, places, times)]
    return Panel(
        ids=series.ids,
        columns=cut.names,
        values=tuple(part.values for part in parts),
        times=None if times is None else tuple(part.times for part in parts),
        freq=kinds,
        rows=tuple(part.rows for part in parts),
        id_column=id,
        time_column=table.time,
        backend=table.frame.implementation,
        time_in_index=table.time_in_index,
        filled=sum(part.filled for part in parts),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Groups:
    """The rows of a table, series by series: their order, and where each series begins and ends in it."""

    ids: tuple[Id, ...]
    order: Int64[np.ndarray, " t"]
    bounds: Int64[np.ndarray, " s"]

    @property
    def inner(self) -> Bool[np.ndarray, " t"]:
        """Of each row and the next in the order, whether both are of one series."""
        same = np.ones(max(0, len(self.order) - 1), dtype=bool)
        same[self.bounds[1:-1] - 1] = False
        return same

    def pieces(
        self, numbers: Float64[np.ndarray, "t c"], places: Int64[np.ndarray, " t"], times: pd.Index | None
    ) -> list[tuple[Any, ...]]:
        """What `_Cut.series` takes, series by series."""
        spans = [slice(*span) for span in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True)]
        return [
            (label, numbers[span], places[span], self.order[span], None if times is None else times[span])
            for label, span in zip(self.ids, spans, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    values: Float64[np.ndarray, "t c"]
    times: pd.Index
    rows: Int64[np.ndarray, " t"]
    filled: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    """How a series is cut from a table and its gaps closed."""

    names: tuple[str, ...]
    missing: Missing
    name: str
    freq: Frequency | None

    def series(
        self,
        label: Id,
        values: Float64[np.ndarray, "t c"],
        places: Int64[np.ndarray, " t"],
        rows: Int64[np.ndarray, " t"],
        times: pd.Index | None,
    ) -> _Part:
        """One series, whole and finite."""
        name = self.name if label is None else f"series {label!r} of {self.name}"
        absent = np.isnan(values)
        for column in np.flatnonzero(absent.all(0)):
            raise ValueError(
                f"{name} must have values in every column, got none in column {self.names[column]!r}; drop it."
            )
        if times is not None and len(places) and places[-1] - places[0] >= len(places):
            at = places - places[0]
            count = int(at[-1]) + 1
            whole, known = np.full((count, values.shape[1]), np.nan), np.full(count, -1)
            whole[at], known[at] = values, rows
            values, rows = whole, known
            assert self.freq is not None
            times = span_times(times[0], self.freq, count)
        filled = int(np.isnan(values).sum())
        if filled:
            fill = None if self.missing == "error" else self.missing
            values = fill_missing(values, self.names, name, fill, option="missing")
        return _Part(values=values, times=times, rows=rows, filled=filled)


def _check_gaps(
    times: pd.Index | None, places: Int64[np.ndarray, " t"], series: _Groups, freq: Frequency | None, name: str
) -> None:
    if times is None:
        return
    gaps = np.flatnonzero((np.diff(places) != 1) & series.inner)
    if len(gaps):
        last = int(gaps[0]) + 1
        raise ValueError(
            f"{name} must have a row at every step of its frequency {freq!r}, got {times[last]} after "
            f"{times[last - 1]} at data row {series.order[last] + 1} ({len(gaps)} such gaps); add the rows, or have "
            "them filled by missing='interpolate', 'ffill' or 'zero'."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """A frame of any library, and the name of its column of times."""

    frame: Any
    time: str | None
    name: str
    time_in_index: bool = False

    def series_of(self, id: str | None) -> _Groups:
        """Its rows, series by series; ids in the order in which they come."""
        count = len(self.frame)
        if not count:
            raise ValueError(f"{self.name} must have at least one row, got none.")
        if id is None:
            return _Groups(ids=(None,), order=np.arange(count), bounds=np.array([0, count]))
        column = self.frame.get_column(self.named([id])[0])
        native = column.to_native()
        codes, found = pd.factorize(native if isinstance(native, pd.Series) else np.asarray(column.to_numpy()))
        if (codes < 0).any():
            raise ValueError(
                f"{self.name} must have an id in every row, got none in column {id!r} at data row "
                f"{int((codes < 0).argmax()) + 1}."
            )
        ids = tuple(found.tolist())
        for one in ids:
            if isinstance(one, bool) or not isinstance(one, str | int):
                raise ValueError(
                    f"{self.name} must have ids that are text or whole numbers, got {one!r} in column {id!r}."
                )
        order = np.argsort(codes, kind="stable")
        return _Groups(ids=ids, order=order, bounds=np.searchsorted(codes[order], np.arange(len(ids) + 1)))

    def times(self) -> pd.Index:
        """Dates in one time zone, or whole numbers."""
        assert self.time is not None
        column = self.frame.get_column(self.time)
        label = f"column {self.time!r} of {self.name}"
        if column.dtype.is_integer():
            if column.is_null().any():
                raise ValueError(f"{label} must have a number in every row, got none in some.")
            return pd.Index(column.to_numpy().astype(np.int64))
        if not column.dtype.is_temporal():
            return read_dates(pd.Series(column.to_numpy(), dtype=object), label)
        native = column.to_native()
        if isinstance(native, pd.Series):
            dates = pd.DatetimeIndex(native)
        else:
            zone = getattr(column.dtype, "time_zone", None)
            utc = column.cast(nw.Datetime("us", zone)).dt.timestamp("us").to_numpy()
            dates = pd.DatetimeIndex(pd.to_datetime(utc, unit="us"))
            dates = dates if zone is None else dates.tz_localize("UTC").tz_convert(zone)
        if dates.hasnans:
            raise ValueError(
                f"{label} must have a date in every row, got none at data row {int(dates.isna().argmax()) + 1}."
            )
        return dates

    def columns(self, id: str | None) -> list[Any]:
        """All columns that hold values."""
        found = [column for column in self.frame.columns if column not in (id, self.time)]
        if not found:
            raise ValueError(f"{self.name} must have at least one column of values, got ids and times alone.")
        return found

    def named(self, names: Sequence[str]) -> list[Any]:
        """Columns by name."""
        known = {str(column): column for column in self.frame.columns}
        for wanted in names:
            if wanted not in known:
                raise ValueError(f"{self.name} must have a column {wanted!r}, got {', '.join(map(repr, known))}.")
        return [known[wanted] for wanted in names]

    def numbers(self, columns: Sequence[Any]) -> Float64[np.ndarray, "t c"]:
        """Values (T, C), NaN where one is missing."""
        arrays = [self.frame.get_column(column).to_numpy() for column in columns]
        return _to_numbers(arrays, [str(column) for column in columns], self.name)


def _to_numbers(arrays: Sequence[np.ndarray], names: Sequence[str], name: str) -> Float64[np.ndarray, "t c"]:
    """Columns as one array (T, C); what is not plain numbers goes the slow way, which says what is wrong with it."""
    if arrays and all(array.dtype.kind in "fiu" for array in arrays) and len(arrays[0]):
        values = np.stack(arrays, axis=1, dtype=np.float64)
        if not np.isinf(values).any():
            return values
    return to_numbers(pd.DataFrame(dict(zip(names, arrays, strict=True))), name)


def _open(data: Any, time: str | None, taken: Sequence[str | None], name: str) -> _Table:
    """A frame with its column of times, which is none of those that are taken."""
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        lazy = "; collect it first" if hasattr(data, "collect") else ""
        raise ValueError(
            f"{name} must be a frame of pandas, polars or arrow, an array, or a list of arrays, got "
            f"{type(data).__name__}{lazy}."
        ) from None
    in_index = False
    if isinstance(data, pd.DataFrame):
        if not data.columns.is_unique:
            twice = data.columns[data.columns.duplicated()][0]
            raise ValueError(f"{name} must have each column once, got {twice!r} twice; rename one.")
        if isinstance(data.index, pd.MultiIndex | pd.PeriodIndex):
            raise ValueError(
                f"{name} must have ids and dates in columns, got a {type(data.index).__name__}; call reset_index() "
                "and, for periods, to_timestamp()."
            )
        in_index = isinstance(data.index, pd.DatetimeIndex) and time in (None, data.index.name)
        if in_index:
            time = data.index.name or "time"
            frame = nw.from_native(data.rename_axis(time).reset_index(), eager_only=True)
    if time is None:
        time = _find_time(frame, taken, name)
    table = _Table(frame=frame, time=time, name=name, time_in_index=in_index)
    if time is not None:
        table.named([time])
    return table


def _find_time(frame: Any, taken: Sequence[str | None], name: str) -> Any:
    """The one column of dates, or else of text; a column of values may have text in it, but does not begin with it."""
    free = {column: kind for column, kind in frame.schema.items() if column not in taken}
    found = [column for column, kind in free.items() if kind.is_temporal()]
    if not found and len(frame):
        text = (nw.String, nw.Object, nw.Categorical, nw.Unknown)
        first = {column: frame.get_column(column)[0] for column, kind in free.items() if kind in text}
        found = [column for column, cell in first.items() if isinstance(cell, str) and not _is_number(cell)]
    if len(found) > 1:
        raise ValueError(
            f"{name} must have one column of times, got {', '.join(map(repr, found))}; name it with time, a column of "
            "ids with id, and those to read with values."
        )
    return found[0] if found else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_arrays(data: Any, missing: Missing, name: str) -> Panel:
    several = not isinstance(data, np.ndarray)
    arrays = list(data) if several else [data]
    cut, parts = None, []
    for place, array in enumerate(arrays):
        label = place if several else None
        what = name if label is None else f"series {label!r} of {name}"
        if not isinstance(array, np.ndarray) or array.ndim not in (1, 2):
            raise ValueError(f"{what} must be an array (T,) or (T, C), got {_shape(array)}.")
        array = array.reshape(len(array), -1) if array.size else array.reshape(len(array), 1)
        names = tuple(str(column) for column in range(array.shape[1]))
        numbers = _to_numbers(list(array.T), names, what)
        cut = cut or _Cut(names=names, missing=missing, name=name, freq=None)
        if array.shape[1] != len(cut.names):
            raise ValueError(f"{what} must have {len(cut.names)} columns, as the first has, got {array.shape[1]}.")
        rows = np.arange(len(array))
        parts.append(cut.series(label, numbers, rows, rows, None))
    assert cut is not None
    return Panel(
        ids=tuple(range(len(arrays))) if several else (None,),
        columns=cut.names,
        values=tuple(part.values for part in parts),
        rows=tuple(part.rows for part in parts),
        filled=sum(part.filled for part in parts),
    )


def _shape(thing: object) -> str:
    return f"shape {thing.shape}" if isinstance(thing, np.ndarray) else type(thing).__name__
