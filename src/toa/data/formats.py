"""Read a user's file into a pandas frame: text with any separator, parquet, feather, Excel and JSON lines.

    frame = read_frame(Path("load.csv"))     # also .tsv and .txt; separator and decimal comma are found
    frame = read_frame(Path("load.parquet")) # .feather, .xlsx, .jsonl, .json; text formats may end in .gz

pandas, pyarrow and openpyxl read the formats. Nothing is ever unpickled or executed.
"""

import csv
import io
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from toa._limits import shorten, unpacked_limit
from toa.data.tables import read_content, read_table

_SEPARATORS = (",", ";", "\t", "|")
# lines that must agree on the separator
_LINES = 50
# numbers with a decimal comma and points between thousands, and the other way round
_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?")
_POINT = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?")


def read_frame(path: Path, *, decimal: str | None = None) -> pd.DataFrame:
    """Read the table in a file by its ending; an unknown ending is text.

    Args:
        decimal: Decimal mark of a text file, "." or ","; None finds it, and raises ValueError if both are possible.
    """
    if decimal not in (None, ".", ","):
        raise ValueError(f"decimal must be '.' or ',', got {decimal!r}.")
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    reader = _READERS.get(kind.lower())
    if reader is None:
        return _read_text(path, decimal)
    try:
        return reader(path)
    except ImportError as error:
        package = "openpyxl" if reader is _read_excel else "pyarrow"
        raise ImportError(f"{package} must be installed to read {path.name}; install toa[files].") from error


def _read_text(path: Path, decimal: str | None) -> pd.DataFrame:
    separator = _find_separator(path)
    frame = read_table(path, separator=separator)
    first = frame.columns[0]
    if first == "Unnamed: 0" and len(frame.columns) > 1 and np.array_equal(frame[first], np.arange(len(frame))):
        warnings.warn(f"{path.name}: the first column has no name and counts the rows; it is left out.", stacklevel=4)
        frame = frame.drop(columns=first)
    return _read_decimals(frame, path.name, separator, decimal)


def _find_separator(path: Path) -> str:
    """The separator that splits the first lines into the same number of cells; a comma if none does."""
    content = read_content(path, "a table")
    # bytes that are no text are left to the reader, which names them
    lines = content[: 1 << 20].decode("utf-8-sig", errors="replace").splitlines()
    lines = [line for line in lines if line.strip()][:_LINES]
    counts = {one: {len(row) for row in csv.reader(lines, delimiter=one)} for one in _SEPARATORS}
    even = [one for one, found in counts.items() if len(found) == 1 and min(found) > 1]
    if len(even) < 2:
        return even[0] if even else ","
    # decimal commas may be as many as separators, but not in the header
    header = {one: len(next(csv.reader(lines[:1], delimiter=one))) for one in even}
    most = [one for one in even if header[one] == max(header.values())]
    if len(most) > 1:
        raise ValueError(
            f"{path} must have one separator, got {' and '.join(map(repr, most))} equally often in each line; put "
            "quotes around cells that contain one."
        )
    return most[0]


def _read_decimals(frame: pd.DataFrame, name: str, separator: str, decimal: str | None) -> pd.DataFrame:
    """Numbers that pandas has left as text, because of a decimal comma or marks between thousands."""
    text = {column: cells for column in frame if (cells := _number_cells(frame[column])) is not None}
    if decimal == ",":
        # a point is no decimal mark here: what pandas has read as 1.234 may be 1234
        pointed = [
            column for column in frame if pd.api.types.is_float_dtype(frame[column]) and _has_parts(frame[column])
        ]
        if pointed:
            raise ValueError(f"column {pointed[0]!r} of {name} must have decimal commas, got points; give decimal='.'.")
    commas: list[str] = []
    thousands: list[str] = []
    for column, cells in text.items():
        mark = decimal or _decimal_mark(cells, f"column {column!r} of {name}", separator)
        (commas if mark == "," else thousands).append(column)
        drop, point = (".", ",") if mark == "," else (",", ".")
        plain = cells.str.replace(drop, "", regex=False).str.replace(point, ".", regex=False)
        frame[column] = pd.to_numeric(plain)
    for what, columns in (("a decimal comma", commas), ("commas between thousands", thousands)):
        if columns and decimal is None:
            shown = ", ".join(shorten(str(column)) for column in columns[:4]) + " …" * (len(columns) > 4)
            warnings.warn(f"{name}: numbers are read with {what} in {shown}.", stacklevel=5)
    return frame


def _number_cells(column: "pd.Series[str]") -> "pd.Series[str] | None":
    """The cells of a text column if all are numbers with commas, else None."""
    if pd.api.types.is_numeric_dtype(column) or not column.notna().any():
        return None
    cells = column.astype("string").str.strip()
    given = cells.dropna()
    if not (given.str.fullmatch(_COMMA.pattern).all() or given.str.fullmatch(_POINT.pattern).all()):
        return None
    return cells


def _decimal_mark(cells: "pd.Series[str]", label: str, separator: str) -> str:
    given = cells.dropna()
    comma, point = (bool(given.str.fullmatch(one.pattern).all()) for one in (_COMMA, _POINT))
    # a file has semicolons because its commas are decimal marks
    if comma and (not point or separator == ";"):
        return ","
    if point and not comma:
        return "."
    raise ValueError(
        f"{label} must show which mark is decimal, got {given[given.str.contains(',')].iloc[0]!r}, which may have a "
        "decimal comma or thousands; give decimal=',' or decimal='.'."
    )


def _has_parts(column: "pd.Series[float]") -> bool:
    values = column.dropna()
    return bool((values != values.round()).any())


def _read_parquet(path: Path) -> pd.DataFrame:
    return _wrapped(path, "parquet", pd.read_parquet)


def _read_feather(path: Path) -> pd.DataFrame:
    return _wrapped(path, "feather", pd.read_feather)


def _wrapped(path: Path, what: str, reader: Callable[[Path], pd.DataFrame]) -> pd.DataFrame:
    try:
        frame = reader(path)
    except (ValueError, OSError) as error:
        line = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} must be a complete {what} file, got: {line}; write it again.") from error
    # dates in the index stay there
    return frame if isinstance(frame.index, pd.RangeIndex) else frame.reset_index()


def _read_json(path: Path) -> pd.DataFrame:
    content = read_content(path, "a table")

    def parse(_: Path) -> pd.DataFrame:
        lines = not content.lstrip().startswith(b"[")
        # dates and ids stay text: they are read like those of other files
        return pd.read_json(
            io.BytesIO(content), orient="records", lines=lines, convert_dates=False, dtype=False, precise_float=True
        )

    return _wrapped(path, "JSON lines", parse)


def _read_excel(path: Path) -> pd.DataFrame:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} must be an Excel workbook (.xlsx), got another file; save it as .xlsx.")
    with zipfile.ZipFile(path) as archive:
        size = sum(one.file_size for one in archive.infolist())
    limit = unpacked_limit(path.stat().st_size)
    if size > limit:
        raise ValueError(f"{path} must unpack to at most {limit} bytes, got {size}; save it as CSV.")
    try:
        sheets = pd.read_excel(path, sheet_name=None, engine="openpyxl")
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        line = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} must be a complete Excel workbook, got: {line}; save it again.") from error
    filled = {name: sheet for name, sheet in sheets.items() if len(sheet)}
    if len(filled) != 1:
        found = ", ".join(map(repr, filled)) or "none"
        raise ValueError(f"{path} must have one sheet with rows, got {found}; save that sheet as its own file.")
    return next(iter(filled.values()))


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    **dict.fromkeys((".parquet", ".pq"), _read_parquet),
    **dict.fromkeys((".feather", ".arrow"), _read_feather),
    **dict.fromkeys((".xlsx", ".xlsm"), _read_excel),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _read_json),
}
