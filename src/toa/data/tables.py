"""Read files into panels and arrays: tables, npy, npz, tsf and ts, plain or gzipped. Nothing is ever unpickled.

A .ts file, the format of the UEA archive, holds labelled cases. aeon reads it too, but rejects a case whose channels
differ in length, as in CharacterTrajectories, and returns no cases for a web page that a server sent instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from toa._checks import ArgumentError, check_choice
from toa._files import ending_of
from toa.data.catalogue import DatasetSpec
from toa.data.codes import mark_missing, missing_numbers, warn_of_codes
from toa.data.columns import read_times
from toa.data.contents import describe_columns, read_npy, read_npz, read_table, text_lines
from toa.data.formats import read_frame
from toa.data.panel import FILLS, MissingValuesError, Panel, make_panel, to_numbers

# remedy for dates whose order is not clear
_WRITE_DATES = "write dates as 2015-02-01"
_ARRAY_SUFFIXES = (".npy", ".csv", ".txt")


def read_csv_series(
    path: str | Path,
    *,
    date_column: str | None = "date",
    fill: str | None = None,
    target: str | None = None,
    allow_duplicate_dates: bool = False,
    missing_values: float | Sequence[float] | None = (),
) -> Panel:
    """Read a table as one series: a date column, if any, and numeric columns. The file is read as for `toa.Forecaster`.

    Unlike there, dates need not have one frequency, and no rows are inserted.

    Args:
        path: A file that `toa.data.read_frame` reads.
        date_column: Name of the date column; None for a file without dates.
        fill: How to fill missing values: "ffill" repeats the last value, "interpolate" is linear and uses later values,
            "zero" inserts zeros. None raises an error for missing values.
        target: Column to move to the end, as the field's loader for custom files does.
        missing_values: Numbers that mean a missing value; None warns of those that look like it.
    """
    frame = read_frame(Path(path))
    dates = None
    if date_column is not None:
        if date_column not in frame.columns:
            raise ArgumentError(
                path,
                f"have a column {date_column!r}",
                describe_columns(frame.columns),
                "set date_column to the name of the date column (--set date_column=NAME), or date_column=None if there "
                "is none",
            )
        column = nw.from_native(frame.pop(date_column), series_only=True)
        dates, _ = read_times(column, None, str(path), day_first=None, time_zone=None, freq=None, remedy=_WRITE_DATES)
    if target is not None:
        if target not in frame.columns:
            raise ArgumentError(path, f"have the target column {target!r}", describe_columns(frame.columns))
        frame[target] = frame.pop(target)
    codes = missing_numbers(missing_values)
    times: dict[str, Any] = {"times": dates, "allow_duplicates": allow_duplicate_dates}
    return _series(frame, str(path), fill, codes, **times)


def read_dataset(spec: DatasetSpec, path: str | Path, *, fill: str | None = None) -> Panel:
    """Read the file of a forecasting dataset and check its numbers of rows and channels.

    Args:
        fill: How to fill missing values, see `read_csv_series`; as the entry says if None.
    """
    path = Path(path)
    fill = fill or spec.fill
    if spec.reader == "npz":
        panel = _series(pd.DataFrame(read_npz(path)), str(path), fill)
    elif spec.reader == "npy":
        panel = _series(_marked_missing(_read_columns(path, index_column=False), spec), str(path), fill)
    elif spec.reader == "tsf":
        panel = _series(_tsf_columns(path), str(path), fill)
    elif spec.reader == "txt":
        panel = _series(read_table(path, header=None), str(path), fill)
    else:
        panel = read_csv_series(
            path,
            date_column=None if spec.reader == "csv-undated" else "date",
            fill=fill,
            target=spec.target if spec.reader == "csv" else None,
            allow_duplicate_dates=spec.duplicate_dates,
        )
    rows, channels = panel.values[0].shape
    if (rows, channels) != (spec.rows, spec.channels):
        raise ArgumentError(
            f"dataset {spec.name!r}",
            f"have {spec.rows} rows and {spec.channels} channels",
            f"{rows} and {channels} in {path}",
            f"get the official file from {spec.source}, or load your own file by its path",
        )
    if spec.log:
        panel = replace(panel, values=tuple(np.sign(x) * np.log1p(np.abs(x)) for x in panel.values))
    return panel


def _marked_missing(frame: pd.DataFrame, spec: DatasetSpec) -> pd.DataFrame:
    """The columns with NaN where the file has the number of the entry for missing values."""
    return frame if spec.missing_value is None else frame.where(frame != spec.missing_value)


def _tsf_columns(path: Path) -> pd.DataFrame:
    """The series of a .tsf file as columns; they must begin together and have the same length."""
    # that module imports this one
    from toa.data.collections import read_tsf

    panel = read_tsf(path)
    starts = {times[0] for times in panel.times or ()}
    if len(set(panel.lengths)) != 1 or len(starts) > 1:
        raise ArgumentError(
            path,
            "have series of one length that begin together",
            f"lengths from {min(panel.lengths)} to {max(panel.lengths)} and {len(starts)} first days",
            "load it as a collection",
        )
    return pd.DataFrame(np.concatenate(panel.values, axis=1), columns=list(map(str, panel.ids)))


def read_values(
    path: str | Path, *, fill: str | None = None, index_column: bool = False, label_column: bool = False
) -> Float64[np.ndarray, "t c"]:
    """Read a table of numbers (T, C).

    Args:
        path: An npy array (T, C) or (T,), a csv file with a header, or a comma-separated txt file without one.
        fill: How to fill missing values, see `read_csv_series`; None raises an error for them.
        index_column: Whether to drop the first column of a csv file.
        label_column: Whether to drop the last column.
    """
    frame = _read_columns(Path(path), index_column=index_column)
    return _series(frame.iloc[:, :-1] if label_column else frame, str(path), fill).values[0]


def read_labels(path: str | Path, *, index_column: bool = False, label_column: bool = False) -> Bool[np.ndarray, " t"]:
    """Labels (T,) from a file with one column, or from the last column: 1 or true where a step is anomalous."""
    frame = _read_columns(Path(path), index_column=index_column)
    if label_column:
        frame = frame.iloc[:, -1:]
    if frame.shape[1] != 1:
        raise ArgumentError(path, "have one label column", frame.shape[1], "drop the others", "give index_column")
    column = frame.iloc[:, 0]
    if column.dtype == bool:
        # a copy, because pandas returns a read-only view
        return column.to_numpy(dtype=bool, copy=True)
    values = _series(frame, str(path), None).values[0][:, 0]
    bad = np.flatnonzero((values != 0) & (values != 1))
    if len(bad):
        raise ArgumentError(path, "have only the labels 0 and 1", f"{values[bad[0]]:g} at data row {bad[0] + 1}")
    return values == 1


def read_ts(path: str | Path) -> Panel:
    """Read a .ts or .ts.gz file: a panel with a series (l, C) and a label per case, NaN where a value is missing."""
    path = Path(path)
    lines = text_lines(path)
    equal = _read_ts_header(path, lines)
    cases: list[np.ndarray] = []
    labels = []
    for _, line in lines:
        *channels, label = line.split(":")
        labels.append(label.strip())
        try:
            numbers = [list(map(float, channel.replace("?", "nan").split(","))) for channel in channels]
        except ValueError as error:
            raise ArgumentError(path, "hold numbers", f"an error: {str(error)[:200]} in case {len(labels)}") from error
        if not channels:
            raise ArgumentError(path, "have values and a label in each case", f"no channel in case {len(labels)}")
        # a short channel is missing at its end
        cases.append(np.array(list(zip_longest(*numbers, fillvalue=np.nan))).reshape(-1, len(numbers)))
        if len(channels) != cases[0].shape[1]:
            raise ArgumentError(
                path,
                f"have the same number of channels in each case, {cases[0].shape[1]} in the first",
                f"{len(channels)} in case {len(cases)}",
            )
        if equal and {len(channel) for channel in numbers} != {len(cases[0])}:
            raise ArgumentError(
                path,
                f"have the same number of values in each channel, {len(cases[0])} in the first case",
                f"another number in case {len(cases)}",
                "set @equalLength false if lengths differ",
            )
    if not cases:
        raise ArgumentError(path, "hold cases below @data", "none", "is the file complete?")
    columns = tuple(map(str, range(cases[0].shape[1])))
    return Panel(values=tuple(cases), columns=columns, ids=tuple(range(len(cases))), labels=np.asarray(labels))


def _series(
    frame: pd.DataFrame, name: str, fill: str | None, codes: Sequence[float] | None = (), **times: Any
) -> Panel:
    if fill is not None:
        check_choice("fill", fill, FILLS)
    values = to_numbers(frame, name)
    columns = tuple(map(str, frame.columns))
    if codes is None:
        warn_of_codes(values, columns, name, stacklevel=4)
    elif codes:
        values = mark_missing(values, codes)
    try:
        return make_panel(values, columns, regular=False, missing=fill or "error", name=name, **times)
    except MissingValuesError as error:
        raise error.rename("missing", "fill") from None


def _read_ts_header(path: Path, lines: Iterator[tuple[int, str]]) -> bool:
    """Read the lines up to @data; returns whether all cases have the same length."""
    tags: dict[str, str] = {}
    for number, line in lines:
        if not line.startswith("@"):
            raise ArgumentError(path, "begin with @ lines", f"{line[:40]!r} in line {number}", "is it a .ts file?")
        tag, _, value = line.lower().partition(" ")
        tags[tag] = value.strip()
        if tag == "@data":
            break
    classes, equal = tags.get("@classlabel", "no such line"), tags.get("@equallength", "true")
    stamps = tags.get("@timestamps", "false")
    named = classes.startswith("true ")
    only = "only files for classification can be read."
    for holds, rule, found, remedy in (
        (tags, "hold a header and cases", "an empty file", "is the download complete?"),
        ("@data" in tags, "have a line @data between header and cases", "none", "is the file complete?"),
        (named, "name its classes in a line '@classLabel true A B ...'", repr(classes), only),
        (stamps == "false", "have values without time stamps", f"@timestamps {stamps!r}", "remove the time stamps."),
        (equal in ("true", "false"), "have true or false after @equalLength", repr(equal), "write one of them."),
    ):
        if not holds:
            raise ArgumentError(path, rule, found, remedy)
    return equal != "false"


def _read_columns(path: Path, *, index_column: bool) -> pd.DataFrame:
    kind = ending_of(path)
    if kind not in _ARRAY_SUFFIXES:
        raise ArgumentError(path, f"end in {', '.join(_ARRAY_SUFFIXES)}, or these with .gz", repr(path.name))
    if path.exists() and not path.is_file():
        raise ArgumentError(path, "be a file", "a folder, a device or a pipe", "copy its content to a file")
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {path}.")
    if kind == ".npy":
        return pd.DataFrame(read_npy(path))
    frame = read_table(path, header=0 if kind == ".csv" else None)
    return frame.iloc[:, 1:] if index_column and kind == ".csv" else frame
