"""Read and write tables: text with any separator, parquet, feather, Excel and JSON lines.

    frame = read_frame(Path("load.csv"))     # also .tsv and .txt; separator, decimal comma and encoding are found
    frame = read_frame(Path("load.parquet")) # .feather, .xlsx, .jsonl, .json; text formats may end in .gz
    write_frame(frame, Path("next.parquet"))

pandas, pyarrow and openpyxl read and write the formats. Nothing is ever unpickled or executed.
"""

import codecs
import csv
import gzip
import io
import json
import re
import textwrap
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from packaging.version import Version

from toa._checks import Argument, ArgumentError, Phrase
from toa._files import check_ending, ending_of, missing_package, write_atomically
from toa._limits import list_first, memory_budget, shorten, unpacked_limit
from toa.data.columns import is_date
from toa.data.contents import read_content, read_table
from toa.data.panel import is_number

_SEPARATORS = (",", ";", "\t", "|")
# lines that must agree on the separator
_LINES = 50
# numbers with a decimal comma and points between thousands, and the other way round
_COMMA = re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?")
_POINT = re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?([eE][+-]?\d+)?")
_EXCEL_LINE = re.compile(rb"(\xef\xbb\xbf)?sep=.\r?\n", re.IGNORECASE)
# bytes that are decoded at a time
_BLOCK = 1 << 20
# what a text begins with that a spreadsheet executes
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
# characters that a cell of Excel cannot hold, or changes
_NOT_EXCEL = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]")
# most characters that a cell of Excel holds
_EXCEL_LENGTH = 32_767
# from this version of pandas on, dtype=False keeps dates as text too
_DTYPE_KEEPS_DATES = Version("3.1")
# formats other than text, by ending
_KINDS = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".feather", ".arrow"), "feather"),
    **dict.fromkeys((".xlsx", ".xlsm"), "Excel"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "JSON lines"),
}


class _TooLargeError(ValueError):
    """A complete file that unpacks to more than is allowed."""


def read_frame(
    path: Path, *, decimal: str | None = None, sheet: str | None = None, names: Sequence[str] = ()
) -> pd.DataFrame:
    """Read the table in a file by its ending; an unknown ending is text.

    Args:
        names: Columns that name something: "007" and "NA" stay text.
        decimal: Decimal mark of a text file, and of text in an Excel sheet, "." or ","; None finds it, and raises
            ValueError if both are possible.
        sheet: Sheet of an Excel workbook; None reads the only one with rows.
    """
    if decimal not in (None, ".", ","):
        raise ArgumentError("decimal", "be '.' or ','", repr(decimal))
    kind = _KINDS.get(ending_of(path))
    if sheet is not None and kind != "Excel":
        raise ArgumentError("sheet", "be left out for a file that is no Excel workbook", f"{sheet!r} for {path.name}")
    if kind is None:
        return _read_text(path, decimal, names)
    if kind == "Excel":
        return _read_workbook(path, decimal, sheet, names)
    content = read_content(path, "a table") if kind == "JSON lines" else b""
    with _errors_of_parser(path, kind):
        frame = _parse_json(content) if kind == "JSON lines" else _read_columns(path, kind)
    # dates in the index stay there; integers without a name are those of rows that were selected
    numbered = isinstance(frame.index, pd.RangeIndex) or pd.api.types.is_integer_dtype(frame.index)
    return frame.reset_index(drop=numbered and frame.index.name is None).rename(columns=str)


@contextmanager
def _errors_of_parser(path: Path, kind: str) -> Iterator[None]:
    """Name the file in an error of a parser, which may be of any kind if the file is damaged."""
    try:
        yield
    except ImportError as error:
        raise missing_package(path, "read") from error
    except _TooLargeError:
        raise
    except Exception as error:
        line = textwrap.shorten(str(error), 200, placeholder=" …", break_on_hyphens=False).rstrip(".")
        raise ArgumentError(path, f"be a complete {kind} file", f"an error: {line}", "write it again") from error


def _read_text(path: Path, decimal: str | None, names: Sequence[str]) -> pd.DataFrame:
    """The table of a text file."""
    content = _without_excel_line(_as_utf8(read_content(path, "a table"), path))
    separator = _find_separator(content, path)
    frame = read_table(path, separator=separator, content=content)
    _check_names(frame, path)
    first = frame.columns[0]
    counts = pd.api.types.is_integer_dtype(frame[first]) and frame[first].is_monotonic_increasing
    if first == "Unnamed: 0" and len(frame.columns) > 1 and counts and frame[first].is_unique:
        shown = f"{path.name}: the first column has no name and counts the rows; it is left out."
        warnings.warn(shown, stacklevel=4)
        frame = frame.drop(columns=first)
    for name in set(names).intersection(frame.columns):
        options: Any = {"encoding": "utf-8-sig", "index_col": False, "dtype": str, "keep_default_na": False}
        cells = pd.read_csv(io.BytesIO(content), sep=separator, usecols=[name], **options)[name].str.strip()
        if (cells.str.match(r"0\d") | (frame[name].isna() & (cells != ""))).any():
            frame[name] = cells.where(cells != "")
    return _read_decimals(frame, content, path, separator, decimal)


def _read_workbook(path: Path, decimal: str | None, sheet: str | None, names: Sequence[str]) -> pd.DataFrame:
    """The table in a sheet of an Excel workbook."""
    if path.is_file() and not zipfile.is_zipfile(path):
        raise ArgumentError(path, "be an Excel workbook (.xlsx)", "another file or a part", "save it as .xlsx")
    with _errors_of_parser(path, "Excel"):
        sheets = _read_sheets(path)
    if sheet not in sheets and (sheet is not None or len(sheets) != 1):
        wanted = "one sheet with rows" if sheet is None else f"rows in sheet {sheet!r}"
        listed = ", ".join(map(repr, sheets)) or "none"
        remedy = Phrase("name one of its sheets with ", Argument("sheet"))
        raise ArgumentError(path, f"have {wanted}", listed, remedy)
    # a number may be a name
    frame = sheets[sheet or next(iter(sheets))].rename(columns=str)
    ids = [name for name in set(names).intersection(frame) if frame[name].astype("string").str.match(r"0\d").any()]
    return _read_decimals(frame.copy(), b"", path, ",", decimal).assign(**frame[ids])


def _parse_json(content: bytes) -> pd.DataFrame:
    """The table in JSON lines, or in one list of records."""
    lines = not content.lstrip().startswith(b"[")
    # dates and ids stay text: they are read like those of other files
    as_text: dict[str, Any] = {"convert_axes": False, "dtype": False}
    if Version(pd.__version__) < _DTYPE_KEEPS_DATES:
        as_text["convert_dates"] = False
    return pd.read_json(io.BytesIO(content), orient="records", lines=lines, precise_float=True, **as_text)


def _read_columns(path: Path, kind: str) -> pd.DataFrame:
    """The table in a parquet or feather file."""
    import pyarrow

    _check_rows(path, kind)
    frame = pd.read_parquet(path) if kind == "parquet" else pd.read_feather(path)
    for name in frame:
        if isinstance(frame[name].dtype, pd.StringDtype):
            # otherwise bytes that are no text are noticed only on use
            pyarrow.array(frame[name]).validate(full=True)
    return frame


def _check_names(frame: pd.DataFrame, path: Path) -> None:
    """Raise ValueError if the names of columns are values: a date and a number."""
    if any(name[:1].isdigit() and is_date(name) for name in frame) and any(
        is_number(name.replace(",", ".")) for name in frame
    ):
        shown = ", ".join(map(repr, frame.columns[:3]))
        raise ArgumentError(path, "begin with the names of its columns", shown, "add a first line of names")


def _check_rows(path: Path, kind: str) -> None:
    """Raise ValueError for a file that states far more rows than its size allows: equal ones take almost no space."""
    import pyarrow.dataset as datasets

    data = datasets.dataset(path, format=kind)
    size = 8 * data.count_rows() * len(data.schema)
    limit = max(memory_budget(), unpacked_limit(path.stat().st_size))
    if size > limit:
        raise _TooLargeError(
            f"{path} must unpack to at most {limit} bytes, got {size} or more; if this is right, set the environment "
            f"variable TOA_MEMORY to {(size >> 30) + 1} (GiB)."
        )


def _read_sheets(path: Path) -> dict[str, pd.DataFrame]:
    """The sheets of an Excel workbook that have rows."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        limit = unpacked_limit(path.stat().st_size)
    if size > limit:
        raise _TooLargeError(f"{path} must unpack to at most {limit} bytes, got {size}; save it as CSV.")
    # text stays text: pandas would read '1.327' as a number, which may be 1327
    sheets = pd.read_excel(path, sheet_name=None, engine="openpyxl", dtype=object)
    return {name: rows.infer_objects() for name, rows in sheets.items() if len(rows)}


def write_frame(frame: pd.DataFrame, path: Path, *, keep_formulas: bool = False) -> Path:
    """Write a table in the format of the file's ending, see `toa._files.check_ending`.

    Args:
        keep_formulas: Whether text that a spreadsheet would execute is written to a text file unchanged. Otherwise an
            apostrophe is put before it, as spreadsheets themselves mark text.
    """
    check_ending(path)
    frame = frame.set_axis([str(name) for name in frame], axis=1)
    ending = ending_of(path)
    content = io.BytesIO()
    if ending in (".parquet", ".pq"):
        frame.to_parquet(content, index=False)
    elif ending in (".feather", ".arrow"):
        frame.to_feather(content)
    elif ending == ".xlsx":
        _check_excel(frame)
        # Excel has no time zones
        zoned = {name: frame[name].astype(str) for name in frame if isinstance(frame[name].dtype, pd.DatetimeTZDtype)}
        with pd.ExcelWriter(content, engine="openpyxl") as book:
            frame.assign(**zoned).to_excel(book, index=False)
            for cell in (cell for row in book.book.active.iter_rows() for cell in row if cell.data_type in "fe"):
                # text such as =1+1 or #REF! is no formula and no error, also after an edit
                cell.data_type = "s"
                cell.quotePrefix = True
    elif ending in (".jsonl", ".ndjson", ".json"):
        content.write(_json_of(frame, lines=ending != ".json").encode())
    else:
        options: dict[str, Any] = {"index": False, "sep": "\t" if ending == ".tsv" else ","}
        frame = frame if keep_formulas else _without_formulas(frame)
        text = frame.to_csv(**options)
        # a carriage return ends a row unless it is quoted
        text = frame.to_csv(**options, quoting=csv.QUOTE_NONNUMERIC) if "\r" in text else text
        content.write(text.encode())
    packed = gzip.compress(content.getvalue(), mtime=0) if path.suffix == ".gz" else content.getvalue()
    write_atomically(path, packed)
    return path


def _without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with an apostrophe before each text that a spreadsheet would execute; numbers stay as they are."""
    names = frame.select_dtypes(exclude=["number", "bool", "datetime", "datetimetz", "timedelta"]).columns
    plain = {name: frame[name].astype(object).map(_as_text, na_action="ignore") for name in names}
    return frame.assign(**plain).set_axis([_as_text(name) for name in frame], axis=1)


def _as_text(cell: object) -> object:
    is_formula = isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) and not is_number(cell)
    return f"'{cell}" if is_formula else cell


def _check_excel(frame: pd.DataFrame) -> None:
    """Raise ValueError for text that Excel cannot hold, or would change or cut."""
    texts = (cell for name in frame.select_dtypes(exclude="number") for cell in frame[name] if isinstance(cell, str))
    for text in (*frame, *texts):
        if len(text) > _EXCEL_LENGTH or _NOT_EXCEL.search(text):
            raise ArgumentError(
                "a table in Excel",
                f"have text of at most {_EXCEL_LENGTH} characters without control characters",
                shorten(text),
                "choose a file that ends in .csv or .parquet",
            )


def _json_of(frame: pd.DataFrame, *, lines: bool) -> str:
    """Records; pandas would round numbers to 15 decimals."""
    # without names, which pandas cuts at a zero byte
    rows = json.loads(frame.to_json(orient="values", date_format="iso", date_unit=_time_unit(frame)))
    records = [dict(zip(frame, row, strict=True)) for row in rows]
    for name in frame.select_dtypes("floating"):
        for record, value in zip(records, frame[name], strict=True):
            record[name] = float(value) if pd.notna(value) and np.isfinite(value) else None
    return "".join(f"{json.dumps(record)}\n" for record in records) if lines else json.dumps(records)


def _time_unit(frame: pd.DataFrame) -> Any:
    """The coarsest unit that holds all times of a table."""
    times = [frame[name].dropna().dt for name in frame.select_dtypes(["datetime", "datetimetz"])]
    if any(column.nanosecond.any() for column in times):
        return "ns"
    return "us" if any((column.microsecond % 1000).any() for column in times) else "ms"


def _as_utf8(content: bytes, path: Path) -> bytes:
    """The content of a text file in UTF-8; bytes that are not text stay, and the reader names them."""
    if content.isascii():
        return content
    with suppress(UnicodeDecodeError):
        # block by block, because the text of a large file takes several times its memory
        blocks = (content[start : start + _BLOCK] for start in range(0, len(content), _BLOCK))
        sum(map(len, codecs.iterdecode(blocks, "utf-8")))
        return content
    text = None
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = _decode(content, "utf-16")
    # Windows-1252 has a character for nearly every byte, also of binary data and of damaged UTF-8
    elif not re.search(rb"[\0-\x08\x0e-\x1f]", content) and content.decode(errors="ignore").isascii():
        text = _decode(content, "cp1252")
        if example := re.search(r"\w*[^\0-\x7f]\w*", text or ""):
            warnings.warn(
                f"{path.name}: text that is not in UTF-8 is read as Windows-1252, such as {shorten(example[0])}; "
                "if that is wrong, save the file in UTF-8.",
                stacklevel=5,
            )
    return content if text is None else text.encode()


def _without_excel_line(content: bytes) -> bytes:
    """The content without a first line such as sep=; that tells Excel the separator."""
    line = _EXCEL_LINE.match(content)
    return content[line.end() :] if line else content


def _decode(content: bytes, encoding: str) -> str | None:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return None


def _find_separator(content: bytes, path: Path) -> str:
    """The separator that splits the first lines into the same number of cells; a comma if none does."""
    # bytes that are no text are left to the reader, which names them
    lines = content[: 1 << 20].decode("utf-8-sig", errors="replace").splitlines()
    lines = [line for line in lines if line.strip()][:_LINES]
    cells = {separator: {len(row) for row in csv.reader(lines, delimiter=separator)} for separator in _SEPARATORS}
    even = [separator for separator, counts in cells.items() if len(counts) == 1 and min(counts) > 1]
    if len(even) < 2:
        return even[0] if even else ","
    # decimal commas may be as many as separators, but not in the header
    header = {separator: len(next(csv.reader(lines[:1], delimiter=separator))) for separator in even}
    most = [separator for separator in even if header[separator] == max(header.values())]
    if len(most) > 1:
        raise ArgumentError(
            path,
            "have one separator",
            f"{' and '.join(map(repr, most))} equally often in each line",
            "put quotes around cells that contain one",
        )
    return most[0]


def _read_decimals(
    frame: pd.DataFrame, content: bytes, path: Path, separator: str, decimal: str | None
) -> pd.DataFrame:
    """Numbers with a decimal comma or marks between thousands, which pandas leaves as text or reads as 1.234.

    An Excel sheet, without `content`, has them only as text.
    """
    text, marks = _find_marks(frame, bool(content), path.name, separator, decimal)
    commas = [column for column, mark in marks.items() if mark == ","]
    if decimal == "," or (decimal is None and (commas or separator == ";")):
        # pandas has read 1.234 as a number, which may be 1234
        read = [name for name in frame if content and pd.api.types.is_float_dtype(frame[name])]
        raw = read_table(path, separator=separator, text=read, content=content) if read else frame
        text |= {column: raw[column].str.strip() for column in read}
        for column in [*commas, *read] if decimal is None else ():
            first_comma = commas[0] if commas else None
            beside = column if column in commas else first_comma
            _check_points(text[column], column, path.name, beside)
        marks |= dict.fromkeys(read, ",") if decimal else {}
    for column, mark in marks.items():
        frame[column] = _to_numbers(text[column], mark, column, path.name)
    thousands = [column for column, mark in marks.items() if mark == "."]
    for what, columns in (("a decimal comma", commas), ("commas between thousands", thousands)):
        if columns and decimal is None:
            shown = list_first([shorten(str(column)) for column in columns], 4)
            warnings.warn(f"{path.name}: numbers are read with {what} in {shown}.", stacklevel=5)
    return frame


def _find_marks(
    frame: pd.DataFrame, is_text: bool, name: str, separator: str, decimal: str | None
) -> tuple[dict[str, "pd.Series[str]"], dict[str, str]]:
    """The cells and the decimal mark of each column of numbers that pandas has left as text.

    Columns of an Excel sheet, which is no text file, become numbers in `frame` if each cell is one as it stands.
    """
    text: dict[str, pd.Series[str]] = {}
    marks: dict[str, str] = {}
    for column in frame:
        if pd.api.types.is_numeric_dtype(frame[column]) or not frame[column].notna().any():
            continue
        cells = frame[column].astype("string").str.strip()
        if not is_text and not pd.api.types.is_string_dtype(frame[column].dropna()):
            # dates, or text beside numbers
            continue
        if not is_text and not decimal and cells.dropna().map(is_number).all():
            _check_points(cells, column, name, None, "stored as text")
            frame[column] = pd.to_numeric(frame[column].str.strip())
            continue
        mark = _decimal_mark(cells.dropna(), column, name, separator, decimal)
        if mark is not None:
            text[column] = cells
            marks[column] = mark
    return text, marks


def _decimal_mark(cells: "pd.Series[str]", column: str, name: str, separator: str, decimal: str | None) -> str | None:
    """The decimal mark of a column of text; None if not all cells are numbers, or none has a comma or a point."""
    comma = bool(cells.str.fullmatch(_COMMA.pattern).all())
    point = bool(cells.str.fullmatch(_POINT.pattern).all())
    # integers with too many digits have neither
    if not (comma or point) or not cells.str.contains("[.,]").any():
        return None
    # a file has semicolons because its commas are decimal marks
    if decimal is not None or (comma and (not point or separator == ";")):
        return decimal or ","
    commas = cells[cells.str.contains(",")]
    if not comma or not len(commas):
        return "."
    raise ArgumentError(
        Phrase(f"column {column!r} of {name}"),
        "show which mark is decimal",
        f"{commas.iloc[0]!r}, which may have a decimal comma or thousands",
        Phrase("give ", Argument("decimal", ","), " or ", Argument("decimal", ".")),
    )


def _check_points(
    cells: "pd.Series[str]", column: str, name: str, beside: str | None, where: str = "in a file with semicolons"
) -> None:
    """Raise ValueError if 1.234 may be 1234: `where` points are so, or `beside` a column with decimal commas, if any.

    A cell such as 1.234,5 or 1.234.567 shows that points separate thousands, and one such as 0.5 that they do not.
    """
    numbers = cells.dropna()
    pointed = numbers[numbers.str.contains(".", regex=False)]
    if not len(pointed) or not pointed.str.fullmatch(r"[+-]?[1-9]\d{0,2}\.\d{3}").all():
        return
    first = pointed.iloc[0]
    why = where if beside is None else f"beside the decimal commas in column {beside!r}"
    other: Argument | str = "write all numbers with one decimal mark"
    if beside is None:
        other = Argument("decimal", ".")
    raise ArgumentError(
        Phrase(f"column {column!r} of {name}"),
        "show what a point is",
        f"{first!r} at data row {pointed.index[0] + 1}, {why}",
        Phrase("give ", Argument("decimal", ","), f" if it is {first.replace('.', '')}, else ", other),
    )


def _to_numbers(cells: "pd.Series[str]", mark: str, column: str, name: str) -> "pd.Series[float]":
    wrong = ~cells.fillna("0").str.fullmatch((_COMMA if mark == "," else _POINT).pattern)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        other = "." if mark == "," else ","
        raise ArgumentError(
            Phrase(f"column {column!r} of {name}"),
            f"have numbers with the decimal mark {mark!r}",
            f"{cells.iloc[row]!r} at data row {row + 1}",
            Phrase("give ", Argument("decimal", other)),
            "write all numbers with one mark",
        )
    drop, point = (".", ",") if mark == "," else (",", ".")
    plain = cells.str.replace(drop, "", regex=False).str.replace(point, ".", regex=False)
    return pd.to_numeric(plain)
