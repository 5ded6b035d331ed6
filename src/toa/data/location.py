"""Where a data set lies on this machine, and whether it is the true file."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import pooch

from toa.data.spec import DatasetSpec, FileSpec

_CHUNK = 1 << 20


class DatasetNotFoundError(FileNotFoundError):
    """No data folder holds the file; the message names every place looked at and how to get it."""


class ChecksumError(ValueError):
    """The file is not the one the catalogue knows."""


def data_folders(data_dir: str | Path | None = None) -> list[Path]:
    """Folders to look in, first to last: `data_dir`, $TOA_DATA, the user's cache."""
    given = [data_dir, os.environ.get("TOA_DATA"), pooch.os_cache("toa")]
    # an empty variable is an unset one
    return [Path(folder).expanduser() for folder in given if folder not in (None, "")]


def candidates(spec: DatasetSpec | FileSpec, data_dir: str | Path | None = None) -> list[Path]:
    """Every path that the file of `spec` may have, plain and gzipped, in the order of search."""
    places = [folder / spec.path for folder in data_folders(data_dir)]
    return [path for place in places for path in (place, place.with_name(f"{place.name}.gz"))]


def locate(spec: DatasetSpec | FileSpec, data_dir: str | Path | None = None) -> Path:
    """The file of `spec`, plain or gzipped.

    Raises:
        DatasetNotFoundError: If it is in none of the data folders.
    """
    places = candidates(spec, data_dir)
    for path in places:
        if path.is_file():
            return path
    looked = ", ".join(str(path) for path in places[::2])
    raise DatasetNotFoundError(
        f"dataset {spec.name!r} must lie in a data folder, but it is in none of {looked} (nor there with .gz); "
        f"{how_to_get(spec)}."
    )


def how_to_get(spec: DatasetSpec | FileSpec) -> str:
    """What a user can do to have the file."""
    if spec.url is not None:
        return f"run `toa data fetch {spec.name}`, or name the folder that has it by data_dir or $TOA_DATA"
    note = f" ({spec.note})" if spec.note else ""
    return f"get it from {spec.source}{note} and put it at {spec.path} in a folder that data_dir or $TOA_DATA names"


@contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, unpacking it if its name ends in .gz; broken gzip data raise ValueError."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                yield cast("BinaryIO", packed)
        else:
            with path.open("rb") as plain:
                yield plain
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} must be complete gzip data, got broken data ({error}); delete the file and get it again."
        ) from error


def checksum(path: str | Path) -> str:
    """Sha256 of a file's unpacked content, read in pieces."""
    digest = hashlib.sha256()
    with open_unpacked(Path(path)) as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def verify(path: str | Path, spec: DatasetSpec | FileSpec) -> str:
    """Compare a file's checksum with the catalogue's, where that is known, and return it.

    Raises:
        ChecksumError: If they differ.
    """
    found = checksum(path)
    if spec.sha256 is not None and found != spec.sha256:
        remedy = f"run `toa data fetch {spec.name}`" if spec.url is not None else f"get it from {spec.source}"
        raise ChecksumError(
            f"dataset {spec.name!r} must have sha256 {spec.sha256}, got {found} in {path}; delete the file and "
            f"{remedy}, or load a file of your own by its path."
        )
    return found
