"""Contents of files: text, tables of text and arrays, plain or gzipped. Nothing is ever unpickled.

with open_unpacked(path) as file: ...    # bytes, at most as many as the memory allows
frame = read_table(path)                 # a table of text; `toa.data.formats` also finds its separator
array = read_npy(path)                   # numbers (T, C) or (T,)
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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toa._checks import ArgumentError
from toa._limits import shorten, unpacked_limit

# characters of the reason why a file cannot be read
_LONGEST_REASON = 600
# what numpy raises for damaged or forged arrays
_DAMAGES = (
    *(ValueError, TypeError, KeyError, EOFError, OSError, SyntaxError, OverflowError, RecursionError, MemoryError),
    tokenize.TokenError,
)


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


def read_content(path: Path, what: str) -> bytes:
    """The unpacked bytes of a file; raises ValueError if there are none."""
    with open_unpacked(path) as file:
        content = file.read()
    if not content.strip():
        raise ArgumentError(path, f"hold {what}", "an empty file", "is the download complete?")
    return content


def one_line(error: Exception) -> str:
    """The message of an error in one line, of which a damaged file may be a part."""
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def describe_columns(columns: Any, most: int = 12) -> str:
    """Column names for an error message."""
    names = [shorten(str(column)) for column in columns]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


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
        raise ArgumentError(
            path, "have the same number of values in each row", f"an error: {one_line(error)}"
        ) from error


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


def read_npz(path: Path) -> np.ndarray:
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
        raise ArgumentError(path, rule, f"an error: {one_line(error)}") from error
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


def read_npy(path: Path) -> np.ndarray:
    """Numbers (T, C) or (T,) of an npy file."""
    content = read_content(path, "an array")
    try:
        array = _parse_npy(content)
    except _DAMAGES as error:
        raise ArgumentError(path, "be an unpickled .npy array", f"an error: {one_line(error)}") from error
    if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        raise ArgumentError(path, "hold numbers (T, C) or (T,)", f"{array.dtype} of shape {array.shape}")
    return array
