"""Read users' tables into a Panel with narwhals, and write results as frames of the same library.

    panel = read_panel(frame)                            # wide: one series, a date column, all other columns values
    panel = read_panel(frame, id="sensor", time="when")  # long: the rows of an id are a series
    panel = read_panel(array)                            # (T,) or (T, C), or a list of those, without times
    panel = read_cases(array)                            # cases to classify: (n, C, L), or (n, L) for one channel
    panel = read_cases(frame, id="case", label="class")  # long: the rows of an id are a case
    to_native(panel, {"sensor": [...], "score": [...]})  # a pandas, polars or arrow frame, like the source

Alphabet: n cases, C columns or channels, T rows, l steps of a case, S series, P horizon, Q quantile levels.
"""

import datetime
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from toa._checks import Argument, ArgumentError, ArgumentWarning, Name, Phrase, as_part, check_choice, part_of
from toa._limits import list_first, shorten
from toa.data.codes import mark_missing, missing_numbers, warn_of_codes
from toa.data.columns import (
    categories_of,
    is_date,
    read_times,
    remedies_for,
    spells_days,
    to_codes,
    to_steps,
    warn_of_steps,
    warn_of_wide_array,
    without_text,
)
from toa.data.frequency import Frequency, make_times
from toa.data.layouts import Layout, find_layout, to_table
from toa.data.panel import MISSING, Id, Missing, Panel, Values, fill_missing, is_number, make_panel, to_numbers
from toa.data.series_times import group_rows


def read_panel(
    data: Any,
    *,
    id: str | None = None,
    time: str | None = None,
    values: Sequence[str] | None = None,
    freq: Frequency | None = None,
    missing: Missing = "error",
    day_first: bool | None = None,
    time_zone: str | None = None,
    late_columns: bool = False,
    usual_freq: Frequency | None = None,
    categories: Mapping[str, Sequence[str] | None] | None = None,
    missing_values: float | Sequence[float] | None = None,
    beside_target: Sequence[str] | None = None,
    width: int | None = None,
    name: Name = "data",
) -> Panel:
    """Read a pandas, polars or arrow frame, an array (T,) or (T, C), or a list of arrays; a panel is returned.

    Args:
        data: The table. In a frame, the rows of an id need not be adjacent, but must increase in time. Arrays have no
            columns: only `missing`, `missing_values` and `name` apply to them. A Series is a frame with one column.
        id: Column of ids, text or integers; None for one series, or for a table whose columns have the names of
            `toa.data.layouts.LAYOUTS`, or whose index has ids and dates.
        time: Column of dates or integers. None takes the index of a pandas frame if it has dates, else the only
            date column, else the only text column; a table with none of these has no times.
        values: Columns to read; None for all others, without columns of text that are constant in each series.
        freq: Pandas alias, such as "h"; None infers it.
        missing: How to fill missing values and rows, see `toa.data.panel.make_panel`.
        day_first: Whether the day comes first in dates such as 01/02/2015; None finds it, see `toa.data.columns`.
        time_zone: Time zone of the dates, such as "Europe/Rome"; None leaves them as they are.
        late_columns: Whether columns may begin later than others, see `toa.data.panel.make_panel`.
        usual_freq: Frequency of a table that shows none, because no series has two rows.
        categories: Columns that may hold text, which becomes its place in this list; None makes a list of all texts.
        missing_values: Numbers that mean a missing value, such as -9999. None takes none, and warns of numbers that
            look like such codes, see `toa.data.codes`.
        beside_target: In a table with the names of `LAYOUTS`, the columns that are read beside its target; None reads
            all columns.
        width: Number of columns that arrays are known to have; others that look like (C, T) lead to a warning.
    """
    check_choice("missing", missing, MISSING)
    codes = missing_numbers(missing_values)
    if isinstance(data, Panel):
        return data
    if isinstance(data, np.ndarray) or (isinstance(data, list | tuple) and data and isinstance(data[0], np.ndarray)):
        return _read_arrays(data, missing, codes, width, name)
    values = None if values is None else list(values)
    data, id, time = to_table(data, id, time)
    if id is None and (layout := find_layout(_open(data, name).columns)) and time in (None, layout.time):
        id, time = layout.id, layout.time
        if values is None and beside_target is not None:
            values = _choose_target(data, layout, beside_target, name)
    frame, time, in_index = _open_series(data, time, (id, *(values or ())), name)
    ids = None if id is None else frame.get_column(_column(frame, id, name)).to_native()
    ids = ids if ids is None or isinstance(ids, pd.Series) else np.asarray(ids)
    columns = [column for column in frame.columns if column not in (id, time)]
    kinds = dict(categories or {})
    if values is None:
        columns = without_text(frame, columns, kinds, ids, name)
    else:
        columns = [_column(frame, wanted, name) for wanted in values]
    if not columns:
        raise ArgumentError(name, "have at least one column of values", "only ids and times", "add one")
    names = list(map(str, columns))
    times = None
    order = None
    if time is not None:
        dates: Any = {"day_first": day_first, "time_zone": time_zone, "freq": freq}
        times, order = read_times(
            frame.get_column(_column(frame, time, name)), ids, part_of(name, f"column {time!r}"), **dates
        )
    cells = [frame.get_column(column) for column in columns]
    arrays, texts = _encode_texts(cells, kinds, name)
    panel = make_panel(
        _without_codes(_numbers(arrays, names, name), names, codes, name, texts),
        names,
        ids=ids,
        times=times,
        freq=freq,
        missing=missing,
        late_columns=late_columns,
        usual_freq=usual_freq,
        name=name,
        id_column=id,
        time_column=time,
        backend=frame.implementation,
        time_in_index=in_index,
        day_first=order,
        categories=texts,
    )
    if time is None and name == "data":
        # cases have a warning of their own
        warn_of_steps(panel, (*kinds, *(values or ())))
    return panel


def _choose_target(data: Any, layout: Layout, beside: Sequence[str], name: Name) -> list[str] | None:
    """The target of a table with known names and the columns beside it; None if it has no target."""
    columns = list(map(str, _open(data, name).columns))
    if layout.target not in columns:
        return None
    chosen = [layout.target, *(column for column in beside if column != layout.target)]
    others = [column for column in columns if column not in (layout.id, layout.time, *chosen)]
    if others:
        text = (
            f" has the columns {layout.id!r}, {layout.time!r} and {layout.target!r}: {layout.target!r} is forecast, "
            f"and {list_first(list(map(repr, others)), 8)} are not read; name them as covariates, or the columns to "
            "forecast with "
        )
        warnings.warn(ArgumentWarning(as_part(name), text, Argument("values"), "."), stacklevel=6)
    return chosen


def _without_codes(
    values: Values,
    columns: Sequence[str],
    codes: Sequence[float] | None,
    name: Name,
    texts: Collection[str] = (),
) -> Values:
    """The values with NaN in place of the codes; None warns of numbers that look like such codes."""
    if codes is None:
        # the places of texts are no codes
        numbers = np.array([column not in texts for column in columns])
        shown = [column for column in columns if column not in texts]
        warn_of_codes(values if numbers.all() else values[:, numbers], shown, name, stacklevel=6)
        return values
    marked = mark_missing(values, codes)
    for place in (place for place, column in enumerate(columns) if column in texts):
        marked[:, place] = values[:, place]
    return marked


def _encode_texts(cells: Sequence[Any], kinds: Mapping[str, Any], name: Name) -> tuple[list[Any], dict[str, Any]]:
    """Columns as arrays, with places in place of texts, and the texts of each column that has some."""
    categories: dict[str, Any] = {}
    for column in cells:
        label = str(column.name)
        texts = categories_of(column, kinds[label]) if label in kinds else None
        if texts is not None:
            categories[label] = texts
    arrays = []
    for column in cells:
        label = str(column.name)
        arrays.append(to_codes(column, categories[label], name) if label in categories else column.to_numpy())
    return arrays, categories


def read_cases(
    data: Any,
    *,
    id: str | None = None,
    time: str | None = None,
    values: Sequence[str] | None = None,
    label: str | None = None,
    wide: bool | None = None,
    missing: Missing = "error",
    day_first: bool | None = None,
    time_zone: str | None = None,
    missing_values: float | Sequence[float] | None = None,
) -> Panel:
    """Read cases to classify as a panel with a series per case; its `backend` is None unless a frame has ids.

    Args:
        data: Cases: (n, C, L), (n, L), a list of (C, l) or (l,), a long frame, or a frame with one case per row.
        id: In a frame, the column that names the case of a row; None if each row is a case without a name.
        time: In a frame, the column of times or steps; None finds dates.
        values: In a frame, the channels, or the steps of a wide frame; None for all other columns.
        label: In a frame, the column of the class, constant within a case; it may be absent.
        wide: Whether each row of a frame with ids is a case; None: if each id has one row, and `time` is not given.
        missing: How to fill missing values within a case, see `toa.data.panel.make_panel`.
        day_first: See `read_panel`.
        time_zone: See `read_panel`.
        missing_values: See `read_panel`.
    """
    check_choice("missing", missing, MISSING)
    codes = missing_numbers(missing_values)
    name = "X"
    if isinstance(data, Panel):
        return data
    if not isinstance(data, list | tuple) and hasattr(data, "__array__") and not hasattr(data, "columns"):
        data = np.asarray(data)
    if isinstance(data, np.ndarray | list | tuple):
        return _read_case_arrays(data, missing, codes, name)
    frame, labels = _split_labels(_open(data, name), label, name)
    if id is not None:
        cells = np.asarray(frame.get_column(_column(frame, id, name)).to_list(), dtype=object)
        counts = _count_rows(cells, id, name, check=wide is None and time is None)
        wide = time is None and len(counts) == len(cells) if wide is None else wide
    if id is None or wide:
        others = [column for column in frame.columns if str(column) != id]
        columns = others if values is None else [_column(frame, wanted, name) for wanted in values]
        numbers, steps = to_steps(frame, columns, missing, codes, name)
        panel = replace(_read_case_arrays(numbers, missing, codes, name), steps=steps)
        if id is not None:
            panel = replace(panel, ids=tuple(cells.tolist()), id_column=id, backend=frame.implementation)
        return panel if labels is None else panel.with_labels(labels, name)
    reading: Any = {
        "missing": missing,
        "day_first": day_first,
        "time_zone": time_zone,
        "missing_values": missing_values,
    }
    panel = read_panel(frame.to_native(), id=id, time=time, values=values, name=name, **reading)
    if labels is None:
        return panel
    return panel.with_labels(_label_by_case(frame.get_column(id).to_list(), labels, label, name), name)


def _split_labels(frame: Any, label: str | None, name: Name) -> tuple[Any, Any]:
    """The frame without its column of labels, and the labels; None if it has no such column."""
    if label is None or label not in frame.columns:
        return frame, None
    column = frame.get_column(label)
    empty = np.flatnonzero(column.is_null().to_numpy()) + 1
    if len(empty):
        raise ArgumentError(
            name, "have a label in every row", f"none in column {label!r} at data row {empty[0]}", "add it"
        )
    return frame.drop(label), column.to_list()


def _count_rows(ids: np.ndarray, id: str, name: Name, *, check: bool) -> np.ndarray:
    """Rows of each id; with `check`, raises ValueError if it is not clear whether a row is a case or a step."""
    groups = group_rows(ids, id, len(ids), name)
    counts = np.diff(groups.borders)
    if check and 0 < (counts > 1).sum() < (counts == 1).sum():
        raise ArgumentError(
            part_of(name, f"column {id!r}"),
            "have each id once, for one case per row, or in several rows, for one step per row",
            f"{groups.ids[int((counts > 1).argmax())]!r} more than once beside {int((counts == 1).sum())} ids that "
            "occur once",
            "correct it",
            Phrase("name the column of steps with ", Argument("time")),
        )
    return counts


def _label_by_case(ids: Sequence[Id], labels: Sequence[Any], label: str | None, name: Name) -> dict[Id, Any]:
    """The label of each case of a long frame, whose rows must agree on it."""
    by_case: dict[Id, Any] = {}
    for row, (id, kind) in enumerate(zip(ids, labels, strict=True), 1):
        if by_case.setdefault(id, kind) != kind:
            raise ArgumentError(
                part_of(name, f"column {label!r}"),
                "have one label per case",
                f"{kind!r} after {by_case[id]!r} for case {id!r} at data row {row}",
            )
    return by_case


def match_panel(panel: Panel, columns: Sequence[str], ids: Collection[Id] | None) -> Panel:
    """The panel with the columns of fit, in their order; raises ValueError for other columns or other ids."""
    panel = panel.select(columns)
    for id in panel.ids:
        if ids is not None and id not in ids:
            fitted = list_first(list(map(shorten, ids)), 8)
            where = "" if panel.id_column is None else f" in column {panel.id_column!r}"
            raise ArgumentError(
                "data", f"have ids that were fitted, {fitted}", f"{shorten(id)}{where}", "fit on its rows too"
            )
    return panel


def check_frequency(panel: Panel, freq: Frequency | None, name: Name = "data") -> None:
    """Raise ValueError if the times of a panel do not have the frequency of fit; few may also have another one."""
    if panel.freq is None or freq is None or panel.freq == freq or panel.times is None:
        return
    if not all(times.equals(make_times(times[0], freq, len(times))) for times in panel.times):
        raise ArgumentError(name, f"have the frequency of fit, {freq!r}", repr(panel.freq), "resample it")


def to_native(panel: Panel, columns: Mapping[str, Any]) -> Any:
    """A frame of the library that the panel was read from; dates are given as pandas indices."""
    assert panel.backend is not None, "only a panel that was read from a frame has a library"
    if panel.backend is nw.Implementation.PANDAS:
        frame = pd.DataFrame(dict(columns), copy=False)
        return frame.set_index(panel.time_column) if panel.time_in_index else frame
    plain = {}
    zones = {}
    for name, values in columns.items():
        if isinstance(values, pd.DatetimeIndex) and values.tz is not None:
            zones[name] = str(values.tz)
            values = values.tz_convert("UTC").tz_localize(None)
        plain[name] = np.asarray(values)
        if not len(plain[name]) and plain[name].dtype == object:
            # texts of no row are texts
            plain[name] = plain[name].astype(str)
    table = nw.from_dict(plain, backend=panel.backend)
    for name, zone in zones.items():
        table = table.with_columns(nw.col(name).dt.replace_time_zone("UTC").dt.convert_time_zone(zone))
    return table.to_native()


def columns_by_row(panel: Panel, parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Ids, times and results per row, in the row order of the source table and without inserted rows.

    `parts` has the result columns of each series.
    """
    real = [rows >= 0 for rows in panel.rows]
    order = np.argsort(np.concatenate([rows[kept] for rows, kept in zip(panel.rows, real, strict=True)]))
    indices = np.repeat(np.arange(len(panel)), [int(kept.sum()) for kept in real])
    columns = id_column(panel, indices[order])
    if panel.times is not None:
        assert panel.time_column is not None
        first, *others = (times[kept] for times, kept in zip(panel.times, real, strict=True))
        columns[panel.time_column] = first.append(others).take(order)
    for name in parts[0]:
        joined = np.concatenate([part[name][kept] for part, kept in zip(parts, real, strict=True)])
        columns[name] = joined[order]
    return columns


def times_by_row(panel: Panel) -> pd.Index:
    """The time of each row of the source table, which has times, in its order."""
    return columns_by_row(panel, [{}] * len(panel))[str(panel.time_column)]


def forecast_names(columns: Sequence[str], levels: Sequence[float], interval: bool) -> list[str]:
    """Result columns of forecast columns: "a", "a_q0.1", "a_lower", "a_upper"."""
    ends = ["", *(f"_q{level:g}" for level in levels), *(("_lower", "_upper") if interval else ())]
    return [f"{name}{end}" for name in columns for end in ends]


def forecast_columns(
    arrays: Mapping[str, np.ndarray], columns: Sequence[str], levels: Sequence[float]
) -> dict[str, np.ndarray]:
    """Arrays (N, P, C) and (N, P, Q, C) as columns of a table, see `forecast_names`; quantiles may be missing."""
    levels = levels if "quantiles" in arrays else ()
    parts = [arrays["forecast"], *(arrays["quantiles"][:, :, number] for number in range(len(levels)))]
    parts += [arrays[end] for end in ("lower", "upper") if end in arrays]
    values = [part[:, :, index].ravel() for index in range(len(columns)) for part in parts]
    return dict(zip(forecast_names(columns, levels, "lower" in arrays), values, strict=True))


def write_forecast(
    panel: Panel, parts: Mapping[str, np.ndarray], steps: int, columns: Sequence[str], levels: Sequence[float]
) -> Any:
    """Forecasts (S, P, ·) of all series as a frame, or as arrays if the data were arrays."""
    if panel.backend is None:
        arrays = [{name: part[index] for name, part in parts.items()} for index in range(len(panel))]
        results = [forecast if len(forecast) > 1 else forecast["forecast"] for forecast in arrays]
        return results[0] if panel.ids == (None,) else results
    table = id_column(panel, np.repeat(np.arange(len(panel)), steps))
    if panel.time_column is not None:
        first, *others = (times for times in panel.next_times(steps) if times is not None)
        table[panel.time_column] = first.append(others)
    else:
        table["step"] = np.tile(np.arange(1, steps + 1), len(panel))
    return to_native(panel, table | forecast_columns(parts, columns, levels))


def check_results(panel: Panel, names: Sequence[str]) -> None:
    """Raise ValueError if two columns of a result would have one name; results of arrays have no names."""
    taken = {name for name in (panel.id_column, panel.time_column) if panel.backend is not None and name is not None}
    for name in names if panel.backend is not None else ():
        if name in taken:
            is_step = name == "step" and panel.time_column is None
            remedies = [Phrase("give ", Argument("time", "step"), " if it holds the times")] if is_step else []
            raise ArgumentError(
                "data",
                "have columns whose results have different names",
                f"two results named {name!r}",
                *remedies,
                "rename the columns (results have the endings _lower, _upper, _q0.1 and _actual, and the names step, "
                "score, anomaly and prediction)",
            )
        taken.add(name)


def id_column(panel: Panel, indices: np.ndarray) -> dict[str, Any]:
    """The id column of results, from the index of the series of each row; empty for a table without ids."""
    if panel.id_column is None:
        return {}
    return {panel.id_column: pd.Series(np.asarray(panel.ids, dtype=object)[indices]).infer_objects().to_numpy()}


def _numbers(arrays: Sequence[np.ndarray], names: Sequence[str], name: Name) -> Values:
    """Columns as one array (T, C)."""
    if arrays and all(array.dtype.kind in "fiub" for array in arrays) and len(arrays[0]):
        values = np.stack(arrays, axis=1, dtype=np.float64)
        if not np.isinf(values).any():
            return values
    # slower, for nullable columns and for errors that name the cell
    give_id = Phrase("give ", Argument("id"), ", if the column names the series")
    remedies = (give_id, "convert it to numbers", Phrase("choose columns with ", Argument("values")))
    return np.ascontiguousarray(to_numbers(pd.DataFrame(dict(zip(names, arrays, strict=True))), name, remedies))


def _open(data: Any, name: Name) -> Any:
    """A narwhals frame."""
    rule = "have each column once"
    try:
        frame = nw.from_native(data, eager_only=True)
    except nw.exceptions.DuplicateError as error:
        # its text has the name in quotes
        column = str(error).split("'")[1]
        raise ArgumentError(name, rule, f"{column!r} twice", "rename one") from None
    except TypeError:
        raise ArgumentError(
            name,
            "be a pandas, polars or arrow frame, an array, or a list of arrays",
            type(data).__name__,
            *remedies_for(data),
        ) from None
    # as text: 0 and "0" would be one column of a result
    names = pd.Index(list(map(str, frame.columns)), dtype=object)
    if not names.is_unique:
        raise ArgumentError(name, rule, f"{names[names.duplicated()][0]!r} twice", "rename one")
    return frame


def _open_series(data: Any, time: str | None, taken: Sequence[str | None], name: Name) -> tuple[Any, str | None, bool]:
    """A narwhals frame, the name of its time column, and whether that was the index; `taken` are other columns."""
    frame = _open(data, name)
    if isinstance(data, pd.DataFrame):
        if isinstance(data.index, pd.MultiIndex | pd.PeriodIndex):
            raise ArgumentError(
                name,
                "have ids and dates in columns",
                f"a {type(data.index).__name__}",
                "call reset_index() and, for periods, to_timestamp()",
            )
        named = time is not None and time == data.index.name and time not in data.columns
        if named or (isinstance(data.index, pd.DatetimeIndex) and time in (None, data.index.name)):
            return _open_index(data, name)
    if time is not None:
        return frame, time, False
    dated = _columns_of_dates(frame, taken)
    if not dated and len(frame) and isinstance(data, pd.DataFrame):
        if isinstance(data.index, pd.TimedeltaIndex):
            raise ArgumentError(name, "have dates as times", "durations", "add a start date")
        if is_date(data.index[0]):
            return _open_index(data, name)
    if len(dated) > 1:
        raise ArgumentError(
            name,
            "have one time column",
            ", ".join(map(repr, dated)),
            Phrase(
                "name it with ",
                Argument("time"),
                ", an id column with ",
                Argument("id"),
                ", and the columns to read with ",
                Argument("values"),
            ),
        )
    return frame, dated[0] if dated else None, False


def _columns_of_dates(frame: Any, taken: Sequence[str | None]) -> list[Any]:
    """Columns of dates, or else those whose first cell is text and not a number, or else whole numbers that spell days.

    `taken` are columns of another use.
    """
    free = {column: kind for column, kind in frame.schema.items() if column not in taken}
    temporal = [column for column, kind in free.items() if kind.is_temporal()]
    if temporal or not len(frame):
        return temporal
    text = (nw.String, nw.Object, nw.Categorical, nw.Unknown)
    first = {column: frame.get_column(column)[0] for column, kind in free.items() if kind in text}
    days = [column for column, cell in first.items() if isinstance(cell, datetime.date)]
    if days:
        return days
    texts = [column for column, cell in first.items() if isinstance(cell, str) and not is_number(cell)]
    spelled = [column for column in texts if is_date(first[column])]
    if texts:
        return spelled if len(spelled) == 1 else texts
    # numbers such as 20240131, in order
    whole = {column: frame.get_column(column) for column, kind in free.items() if kind.is_integer()}
    return [column for column, cells in whole.items() if spells_days(cells)]


def _open_index(data: pd.DataFrame, name: Name) -> tuple[Any, str, bool]:
    """The result of `_open_series` for a frame whose index has the times."""
    time = str(data.index.name or "time")
    if time in data.columns:
        raise ArgumentError(name, "have one time", f"the index beside a column {time!r}", "rename the column")
    return nw.from_native(data.rename_axis(time).reset_index(), eager_only=True), time, True


def _column(frame: Any, wanted: str, name: Name) -> Any:
    """The column with this name, which may be a number in pandas."""
    columns = {str(column): column for column in frame.columns}
    if wanted not in columns:
        raise ArgumentError(name, f"have a column {shorten(wanted)}", ", ".join(map(shorten, columns)))
    return columns[wanted]


def _read_arrays(data: Any, missing: Missing, codes: Sequence[float] | None, width: int | None, name: Name) -> Panel:
    several = not isinstance(data, np.ndarray)
    parts: list[Values] = []
    for index, array in enumerate(data if several else [data]):
        what = part_of(name, f"series {index!r}") if several else name
        if not isinstance(array, np.ndarray) or array.ndim not in (1, 2):
            kind = f"shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ArgumentError(what, "be an array (T,) or (T, C)", kind)
        array = array.reshape(len(array), -1) if array.size else array.reshape(len(array), 1)
        parts.append(_numbers(list(array.T), _names(array.shape[1]), what))
        if array.shape[1] != parts[0].shape[1]:
            raise ArgumentError(what, f"have {parts[0].shape[1]} columns, as the first has", array.shape[1])
    ids = np.repeat(np.arange(len(parts)), [len(part) for part in parts]) if several else None
    values = np.concatenate(parts) if several else parts[0]
    columns = _names(values.shape[1])
    if len(columns) != width:
        warn_of_wide_array(parts, name)
    return make_panel(_without_codes(values, columns, codes, name), columns, ids=ids, missing=missing, name=name)


def _read_case_arrays(data: Any, missing: Missing, codes: Sequence[float] | None, name: Name) -> Panel:
    if isinstance(data, np.ndarray) and data.dtype != object:
        if data.ndim == 2:
            data = data[:, None]  # (n, 1, L)
        if data.ndim != 3:
            raise ArgumentError(
                name,
                "be an array (n, C, L) of n cases with C channels, or (n, L)",
                f"shape {data.shape}. Reshape your data: one case is array[None]",
            )
    if not len(data):
        raise ArgumentError(name, "have at least one case", "0 sample(s)")
    cases: list[Values] = []
    for number, entry in enumerate(data, 1):
        what = part_of(name, f"case {number}")
        values = _read_case(entry, missing, codes, what)
        cases.append(values)
        if values.shape[1] != cases[0].shape[1]:
            raise ArgumentError(what, f"have {cases[0].shape[1]} channels, as the first", values.shape[1])
    columns = _names(cases[0].shape[1])
    if codes is None:
        warn_of_codes(np.concatenate(cases), [f"channel {column}" for column in columns], name, stacklevel=5)
    return Panel(values=tuple(cases), columns=columns, ids=tuple(range(len(cases))))


def _read_case(entry: Any, missing: Missing, codes: Sequence[float] | None, what: Name) -> Values:
    """The values (l, C) of one case (C, l) or (l,)."""
    case = np.atleast_2d(np.asarray(entry))
    if case.ndim != 2 or not case.size:
        raise ArgumentError(what, "be an array (C, l) or (l,) with at least one step", f"shape {case.shape}")
    if np.iscomplexobj(case):
        raise ArgumentError(what, "hold real numbers", f"{case.dtype}. Complex data not supported")
    try:
        values = np.ascontiguousarray(case.T, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise ArgumentError(what, "hold only numbers", error, "convert it first") from None
    values = mark_missing(values, codes or ())
    if np.isfinite(values).all():
        return values
    frame = pd.DataFrame(values).add_prefix("channel ")
    return fill_missing(to_numbers(frame, what), list(frame.columns), what, missing, "step")


def _names(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
