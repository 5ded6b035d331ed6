"""Files to Series: csv with and without dates, text without a header, npz. Gzipped files are read as they are."""

import io
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from toa.data.location import open_unpacked
from toa.data.series import Series, numeric_values, parse_dates
from toa.data.spec import DatasetSpec


def read_csv_series(
    path: str | Path,
    *,
    date_column: str | None = "date",
    fill: str | None = None,
    target: str | None = None,
    allow_duplicate_dates: bool = False,
) -> Series:
    """Read a comma-separated file with a header: one column of dates, if any, the others numbers.

    Args:
        path: Plain, or gzipped with a name in .gz.
        date_column: Name of the column of dates; None for a file without dates.
        fill: None refuses missing values; "ffill" repeats the last value; "interpolate" draws a line between the
            neighbours, which looks ahead; "zero" puts zeros.
        target: Column to move to the end, as the field's loader for custom files does.
        allow_duplicate_dates: Whether a date may stand in two rows that follow each other.

    Raises:
        ValueError: For whatever cannot be read as it stands; nothing is repaired unasked.
    """
    path = Path(path)
    frame = read_table(path, header=0, text=date_column)
    dates = None
    if date_column is not None:
        if date_column not in frame.columns:
            raise ValueError(
                f"{path} must have a column {date_column!r}, got {_names(frame)}; name the column of dates with "
                "date_column, or give date_column=None if there is none."
            )
        dates = parse_dates(frame.pop(date_column), str(path), allow_duplicates=allow_duplicate_dates)
    if target is not None:
        if target not in frame.columns:
            raise ValueError(f"{path} must have the target column {target!r}, got {_names(frame)}.")
        frame[target] = frame.pop(target)
    values = numeric_values(frame, str(path), fill)
    return Series(values=values, columns=tuple(map(str, frame.columns)), dates=dates)


def read_dataset(spec: DatasetSpec, path: str | Path, *, fill: str | None = None) -> Series:
    """Read a file of the catalogue and check its rows and channels."""
    path = Path(path)
    if spec.reader == "npz":
        series = _read_npz(path, fill)
    elif spec.reader == "txt":
        frame = read_table(path, header=None, text=None)
        series = Series(values=numeric_values(frame, str(path), fill), columns=tuple(map(str, frame.columns)))
    else:
        series = read_csv_series(
            path,
            date_column="date" if spec.dated else None,
            fill=fill,
            target=spec.target if spec.reader == "csv" else None,
            allow_duplicate_dates=spec.duplicate_dates,
        )
    if series.values.shape != (spec.rows, spec.channels):
        raise ValueError(
            f"dataset {spec.name!r} must have {spec.rows} rows and {spec.channels} channels, got "
            f"{series.values.shape[0]} and {series.values.shape[1]} in {path}; get the true file from {spec.source}, "
            "or load a file of your own by its path."
        )
    return series


def read_table(path: Path, *, header: int | None, text: str | None) -> pd.DataFrame:
    """A comma-separated file as a frame, the column `text` left as text."""
    with open_unpacked(path) as file:
        content = file.read()
    if not content.strip():
        raise ValueError(f"{path} must hold a table, got an empty file; is the download complete?")
    if b"\0" in content:
        raise ValueError(f"{path} must be comma-separated text, got binary data; is it packed or another format?")
    try:
        with warnings.catch_warnings():
            # rows longer than the header would lose their ends
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                io.BytesIO(content),
                header=header,
                dtype=None if text is None else {text: str},
                index_col=False,
                encoding="utf-8-sig",
                low_memory=False,
            )
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, got {error}; save it in UTF-8.") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, pd.errors.ParserWarning) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path} must have as many values in every row as the first has, got: {said}.") from error


def _read_npz(path: Path, fill: str | None) -> Series:
    """Array `data` (T, C, F) of an npz file, feature 0; nothing is ever unpickled."""
    with open_unpacked(path) as file:
        content = file.read()
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise ValueError(f"{path} must be an npz archive, got {content[:8]!r}... at its start; is it complete?")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            if "data" not in archive:
                raise ValueError(f"it has no array 'data' but {', '.join(archive) or 'nothing'}")
            data = archive["data"]
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path} must hold an unpickled array 'data' (T, C, features): {said}.") from error
    if not isinstance(data, np.ndarray):
        raise ValueError(f"{path} must hold an unpickled array 'data' (T, C, features), got {type(data).__name__}.")
    if data.ndim != 3 or not np.issubdtype(data.dtype, np.number) or not data.shape[2]:
        raise ValueError(
            f"{path} must hold numbers (T, C, features) in 'data', got {data.dtype} of shape {data.shape}."
        )
    flow = pd.DataFrame(data[:, :, 0])  # (T, C)
    return Series(values=numeric_values(flow, str(path), fill), columns=tuple(map(str, flow.columns)))


def _names(frame: pd.DataFrame, most: int = 12) -> str:
    names = [repr(str(name)) for name in frame.columns]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
