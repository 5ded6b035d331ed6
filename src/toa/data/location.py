"""Find the files of a dataset on this machine and compare their checksums."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, cast

import pooch

from toa.data.catalogue import FileSpec

_CHUNK = 1 << 20


class DatasetNotFoundError(FileNotFoundError):
    """No data folder has the file; the message lists the folders and how to get it."""


class ChecksumError(ValueError):
    """The file differs from the one in the catalogue."""


def data_folders(data_dir: str | Path | None = None) -> list[Path]:
    """Folders that are searched, in order: `data_dir`, $TOA_DATA, the user's cache."""
    given = [data_dir, os.environ.get("TOA_DATA"), pooch.os_cache("toa")]
    # an empty variable counts as unset
    return [Path(folder).expanduser() for folder in given if folder not in (None, "")]


def find_file(folder: Path, path: str) -> Path | None:
    """The file at this path below a folder, plain or gzipped, or None."""
    plain = folder / path
    return next((file for file in (plain, plain.with_name(f"{plain.name}.gz")) if file.is_file()), None)


def locate(spec: FileSpec, data_dir: str | Path | None = None) -> Path:
    """Path of the file, plain or gzipped.

    Raises:
        DatasetNotFoundError: If no data folder has it.
    """
    folders = data_folders(data_dir)
    for folder in folders:
        if (path := find_file(folder, spec.path)) is not None:
            return path
    raise DatasetNotFoundError(
        f"dataset {spec.name!r} must lie in a data folder, found none at "
        f"{', '.join(str(folder / spec.path) for folder in folders)} (nor with .gz); {how_to_get(spec)}."
    )


def how_to_get(spec: FileSpec) -> str:
    """How a user can get the file."""
    if spec.url is not None:
        return f"run `toa data fetch {spec.name}`, or name its folder with data_dir or $TOA_DATA"
    note = f" ({spec.note})" if spec.note else ""
    return f"get it from {spec.source}{note} and save it as {spec.path} in a folder that data_dir or $TOA_DATA names"


@contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading and unpack it if its name ends in .gz.

    Raises:
        ValueError: If the gzip data are damaged.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                yield cast("BinaryIO", packed)
        else:
            with path.open("rb") as plain:
                yield plain
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} must be complete gzip data, got damaged data ({error}); delete the file and get it again."
        ) from error


def checksum(path: str | Path) -> str:
    """Sha256 of the unpacked content of a file."""
    digest = hashlib.sha256()
    with open_unpacked(Path(path)) as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def joint_checksum(sums: Sequence[str]) -> str:
    """The checksum of one file, or the sha256 over the checksums of several."""
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def current_checksum(paths: Sequence[Path]) -> str:
    """Joint checksum of files as they are now; an unchanged file is read only once per process."""
    return joint_checksum([_checksum_of(path, _stamp(path)) for path in paths])


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=256)
def _checksum_of(path: Path, stamp: object) -> str:
    return checksum(path)


def verify(path: str | Path, spec: FileSpec) -> str:
    """Return the checksum of a file after comparing it with the catalogue, if that has one.

    Raises:
        ChecksumError: If they differ.
    """
    found = checksum(path)
    if spec.sha256 is not None and found != spec.sha256:
        remedy = f"run `toa data fetch {spec.name}`" if spec.url is not None else f"get it from {spec.source}"
        raise ChecksumError(
            f"dataset {spec.name!r} must have sha256 {spec.sha256}, got {found} in {path}; delete the file and "
            f"{remedy}, or load your own file by its path."
        )
    return found
