"""Tables and labels from npy, csv and txt files, gzipped or not. Nothing is ever unpickled."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from toa.data.location import open_unpacked
from toa.data.readers import read_table
from toa.data.series import numeric_values

SUFFIXES = (".npy", ".csv", ".txt")


def read_values(
    path: str | Path, *, fill: str | None = None, index_column: bool = False, label_column: bool = False
) -> Float64[np.ndarray, "t c"]:
    """A table of numbers (T, C).

    Args:
        path: An npy array (T, C) or (T,), a csv file with a header, or a txt file, comma-separated without one.
        fill: What to do about missing values: None refuses them; "ffill", "interpolate" or "zero".
        index_column: Whether the first column of a csv file is an index, to be left out.
        label_column: Whether the last column is a label, to be left out.

    Raises:
        ValueError: For whatever cannot be read as it stands; nothing is repaired unasked.
    """
    frame = _read_frame(Path(path), index_column=index_column)
    if label_column:
        frame = frame.iloc[:, :-1]
    return numeric_values(frame, str(path), fill)


def read_labels(path: str | Path, *, index_column: bool = False, label_column: bool = False) -> Bool[np.ndarray, " t"]:
    """Labels (T,) of a file of one column, or of its last with `label_column`: 1 or true where a step is anomalous."""
    frame = _read_frame(Path(path), index_column=index_column)
    if label_column:
        frame = frame.iloc[:, -1:]
    if frame.shape[1] != 1:
        raise ValueError(
            f"{path} must have one column of labels, got {frame.shape[1]}; give index_column=True if the first of two "
            "is an index, or drop the others."
        )
    column = frame.iloc[:, 0]
    if column.dtype == bool:
        # a copy: pandas hands out what cannot be written to
        return column.to_numpy(dtype=bool, copy=True)
    values = numeric_values(frame, str(path), None)[:, 0]
    bad = np.flatnonzero((values != 0) & (values != 1))
    if len(bad):
        raise ValueError(
            f"{path} must have the labels 0 and 1 alone, got {values[bad[0]]:g} at data row {bad[0] + 1} ({len(bad)} "
            "such rows)."
        )
    return values == 1


def _read_frame(path: Path, *, index_column: bool) -> pd.DataFrame:
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind not in SUFFIXES:
        raise ValueError(f"{path} must end in {', '.join(SUFFIXES)} or one of them with .gz, got {path.name!r}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, but there is none.")
    if kind == ".npy":
        return pd.DataFrame(_read_npy(path))
    frame = read_table(path, header=0 if kind == ".csv" else None, text=None)
    return frame.iloc[:, 1:] if index_column and kind == ".csv" else frame


def _read_npy(path: Path) -> np.ndarray:
    with open_unpacked(path) as file:
        content = file.read()
    if not content:
        raise ValueError(f"{path} must hold an array, got an empty file; is the download complete?")
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path} must be an unpickled .npy array, got: {said}.") from error
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{path} must hold numbers (T, C) or (T,), got {found}.")
    return array
