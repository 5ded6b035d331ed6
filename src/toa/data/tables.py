"""Read files into panels and arrays: csv, txt, npy, npz and ts, plain or gzipped. Nothing is ever unpickled.

A .ts file, the format of the UEA archive, holds labelled cases. aeon reads it too, but rejects a case whose channels
differ in length, as in CharacterTrajectories, and returns no cases for a web page that a server sent instead.
"""

import gzip
import io
import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from toa._checks import ArgumentError, check_choice
from toa._files import ending_of
from toa._limits import shorten, unpacked_limit
from toa.data.catalogue import DatasetSpec
from toa.data.columns import find_order, is_regular, parse_dates
from toa.data.panel import FILLS, MissingValuesError, Panel, make_panel, to_numbers

# what numpy raises for damaged or forged arrays
_DAMAGES = (
    *(ValueError, TypeError, KeyError, EOFError, OSError, SyntaxError, OverflowError, RecursionError, MemoryError),
    tokenize.TokenError,
)
_ARRAY_SUFFIXES = (".npy", ".csv", ".txt")


class _BoundedGzip(gzip.GzipFile):
    """Gzip data of at most `unpacked_limit` bytes."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._path = path
        self._limit = unpacked_limit(path.stat().st_size)

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(self._left() if size is None or size < 0 else size)
        self._left()
        return content

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(self._left() if size is None or size < 0 else size)
        self._left()
        return line

    def _left(self) -> int:
        """One byte more than is allowed, so that reading it shows that there is more."""
        left = self._limit + 1 - self.tell()
        if left <= 0:
            raise ArgumentError(self._path, f"unpack to at most {self._limit} bytes", "more", "unpack it first")
        return left


@contextmanager
def open_unpacked(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading and unpack it if its name ends in .gz; raises ValueError for damaged or large data."""
    opened: Any = _BoundedGzip if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ArgumentError(path, "be complete gzip data", f"damaged data ({error})", "get it again") from error


def read_csv_series(
    path: str | Path,
    *,
    date_column: str | None = "date",
    fill: str | None = None,
    target: str | None = None,
    allow_duplicate_dates: bool = False,
) -> Panel:
    """Read a comma-separated file with a header as one series: a date column, if any, and numeric columns.

    Args:
        date_column: Name of the date column; None for a file without dates.
        fill: How to fill missing values: "ffill" repeats the last value, "interpolate" is linear and uses later values,
            "zero" inserts zeros. None raises an error for missing values.
        target: Column to move to the end, as the field's loader for custom files does.
    """
    frame = read_table(Path(path), text=() if date_column is None else (date_column,))
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
        text = frame.pop(date_column)
        order = find_order(text, str(path), None, is_regular, remedy="write dates as 2015-02-01")
        dates = parse_dates(text, str(path), day_first=bool(order))
    if target is not None:
        if target not in frame.columns:
            raise ArgumentError(path, f"have the target column {target!r}", describe_columns(frame.columns))
        frame[target] = frame.pop(target)
    return _series(frame, str(path), fill, times=dates, allow_duplicates=allow_duplicate_dates)


def read_dataset(spec: DatasetSpec, path: str | Path, *, fill: str | None = None) -> Panel:
    """Read the file of a forecasting dataset and check its numbers of rows and channels.

    Args:
        fill: How to fill missing values, see `read_csv_series`; as the entry says if None.
    """
    path = Path(path)
    fill = fill or spec.fill
    if spec.reader == "npz":
        panel = _series(pd.DataFrame(_read_npz(path)), str(path), fill)
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


def read_table(
    path: Path, *, header: int | None = 0, text: Sequence[str] = (), separator: str = ",", content: bytes | None = None
) -> pd.DataFrame:
    """Read a text file, or its `content`, into a frame; the columns `text` stay text."""
    content = read_content(path, "a table") if content is None else content
    if b"\0" in content:
        raise ArgumentError(path, "be comma-separated text", "binary data", "is it packed or another format?")
    try:
        with warnings.catch_warnings():
            # otherwise pandas cuts rows that are longer than the header
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                io.BytesIO(content),
                sep=separator,
                header=header,
                dtype=dict.fromkeys(text, str),
                index_col=False,
                encoding="utf-8-sig",
                low_memory=False,
            )
    except UnicodeDecodeError as error:
        raise ArgumentError(path, "be text in UTF-8", error, "save it in UTF-8") from error
    except OverflowError as error:
        raise ArgumentError(path, "have numbers below 1e308", "an integer of more digits", "remove it") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, pd.errors.ParserWarning) as error:
        raise ArgumentError(path, "have the same number of values in each row", f"an error: {_line(error)}") from error


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


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbers and text of all lines but empty ones and comments."""
    with open_unpacked(path) as file:
        for number, raw in enumerate(file, 1):
            # comments need not be UTF-8
            if raw.strip() and not raw.lstrip().startswith(b"#"):
                try:
                    yield number, raw.decode("utf-8").strip()
                except UnicodeDecodeError as error:
                    raise ArgumentError(path, "be text in UTF-8", error, "save it in UTF-8") from error


def _series(frame: pd.DataFrame, name: str, fill: str | None, **times: Any) -> Panel:
    if fill is not None:
        check_choice("fill", fill, FILLS)
    values = to_numbers(frame, name)
    columns = tuple(map(str, frame.columns))
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
        content = read_content(path, "an array")
        try:
            array = _parse_npy(content)
        except _DAMAGES as error:
            raise ArgumentError(path, "be an unpickled .npy array", f"an error: {_line(error)}") from error
        if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
            raise ArgumentError(path, "hold numbers (T, C) or (T,)", f"{array.dtype} of shape {array.shape}")
        return pd.DataFrame(array)
    frame = read_table(path, header=0 if kind == ".csv" else None)
    return frame.iloc[:, 1:] if index_column and kind == ".csv" else frame


def _read_npz(path: Path) -> np.ndarray:
    """Feature 0 (T, C) of the array `data` (T, C, F) in an npz file."""
    with open_unpacked(path) as file:
        content = file.read()
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise ArgumentError(path, "be an npz archive", f"a file that begins with {content[:8]!r}", "is it complete?")
    rule = "hold an unpickled array 'data' of numbers (T, C, features)"
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            sizes = {one.filename: (one.file_size, one.compress_size) for one in archive.infolist()}
            if "data.npy" not in sizes:
                names = ", ".join(name.removesuffix(".npy") for name in sizes) or "nothing"
                raise ValueError(f"no array 'data' but {names[:80]}")
            large, packed = sizes["data.npy"]
            if large > unpacked_limit(packed):
                raise ValueError(f"an array of {large} bytes packed into {packed}; unpack it if it is right")
            data = _parse_npy(archive.read("data.npy"))
    except (*_DAMAGES, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ArgumentError(path, rule, f"an error: {_line(error)}") from error
    if data.ndim != 3 or not np.issubdtype(data.dtype, np.number) or not data.shape[2]:
        raise ArgumentError(path, rule, f"{data.dtype} of shape {data.shape}")
    return data[:, :, 0]


def _parse_npy(content: bytes) -> np.ndarray:
    """An array in the format npy; the size that its header states is compared before memory is allocated."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"a negative size in the shape {shape}")
    need = math.prod(shape) * dtype.itemsize
    left = len(content) - stream.tell()
    if need > left and not dtype.hasobject:
        raise ValueError(f"a header that states {need} bytes, but only {left} follow it")
    array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def read_content(path: Path, what: str) -> bytes:
    """The unpacked bytes of a file; raises ValueError if there are none."""
    with open_unpacked(path) as file:
        content = file.read()
    if not content.strip():
        raise ArgumentError(path, f"hold {what}", "an empty file", "is the download complete?")
    return content


def _line(error: Exception) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())


def describe_columns(columns: Any, most: int = 12) -> str:
    """Column names for an error message."""
    names = [shorten(str(column)) for column in columns]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
