"""Find the files of a dataset on this machine, compare checksums, and download; downloads can be resumed."""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path

import pooch

from toa._checks import Argument, ArgumentError, MissingFileError, Phrase, check_at_least
from toa._limits import DownloadLimits
from toa.data.catalogue import DatasetSpec, FileSpec
from toa.data.contents import open_unpacked
from toa.data.tables import read_dataset

# bytes done, and total bytes or None if the server does not send them
Progress = Callable[[int, int | None], None]

_TIMEOUT = 30.0
_LIMITS = DownloadLimits()


class DatasetNotFoundError(MissingFileError):
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
    """Path of the file, plain or gzipped; raises DatasetNotFoundError if no data folder has it."""
    folders = data_folders(data_dir)
    for folder in folders:
        if (path := find_file(folder, spec.path)) is not None:
            return path
    raise DatasetNotFoundError(
        f"dataset {spec.name!r} must lie in a data folder, found none at "
        f"{', '.join(str(folder / spec.path) for folder in folders)} (nor with .gz); ",
        how_to_get(spec),
        ".",
    )


def how_to_get(spec: FileSpec) -> Phrase:
    """How a user can get the file."""
    if spec.url is not None:
        command = f"run `toa data fetch {spec.name}`, or name its folder with "
        return Phrase(command, Argument("data_dir"), " or $TOA_DATA")
    note = f" ({spec.note})" if spec.note else ""
    copy = f"get it from {spec.source}{note} and save it as {spec.path} in a folder that "
    return Phrase(copy, Argument("data_dir"), " or $TOA_DATA names")


def checksum(path: str | Path) -> str:
    """Sha256 of the unpacked content of a file."""
    with open_unpacked(Path(path)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def joint_checksum(sums: Sequence[str]) -> str:
    """The checksum of one file, or the sha256 over the checksums of several."""
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def current_checksum(paths: Sequence[Path]) -> str:
    """Joint checksum of files as they are now; an unchanged file is read only once per process."""
    stamps = (
        (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in (path.stat() for path in paths)
    )
    return joint_checksum([_checksum_of(path, stamp) for path, stamp in zip(paths, stamps, strict=True)])


@lru_cache(maxsize=256)
def _checksum_of(path: Path, stamp: object) -> str:
    return checksum(path)


def verify(path: str | Path, spec: FileSpec) -> str:
    """The sha256 of a file; raises ChecksumError if the catalogue has another checksum for it."""
    sha256 = checksum(path)
    kind = "sha256"
    expected = spec.sha256
    actual = sha256
    if expected is None and spec.git_id is not None:
        with open_unpacked(Path(path)) as file:
            content = file.read()
        kind = "git id"
        expected = spec.git_id
        actual = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    if expected not in (None, actual):
        remedy = f"run `toa data fetch {spec.name}`" if spec.url is not None else f"get it from {spec.source}"
        raise ChecksumError(
            f"dataset {spec.name!r} must have {kind} {expected}, got {actual} in {path}; delete the file and {remedy}, "
            "or load your own file by its path."
        )
    return sha256


def fetch(
    spec: FileSpec,
    data_dir: str | Path | None = None,
    *,
    progress: Progress | None = None,
    attempts: int = 3,
    read: Callable[[Path], object] | None = None,
    limits: DownloadLimits = _LIMITS,
) -> Path:
    """Download a file into `data_dir`, else $TOA_DATA, else the user's cache, and return its path.

    A correct file that exists already, plain or gzipped, is kept. An interrupted download leaves `<file>.part`, and the
    next attempt or call resumes it; the file itself appears only when it is complete.

    Args:
        read: Reads a file without known checksum, and raises ValueError if it is wrong; by default as a forecasting
            dataset.
        limits: What the download may take.

    Raises:
        ConnectionError: If the server refuses, the connection breaks in every attempt, or a limit is reached.
        ChecksumError: If the downloaded file is not the one in the catalogue; it is deleted.
    """
    check_at_least("attempts", attempts, 1)
    if read is None and isinstance(spec, DatasetSpec):
        read = partial(read_dataset, spec)
    folder = data_folders(data_dir)[0]
    target = folder / spec.path
    if spec.url is None:
        raise ArgumentError(f"dataset {spec.name!r}", "have a url to be downloaded", "none", how_to_get(spec))
    part = target.with_name(f"{target.name}.part")
    while (found := _correct_file(spec, target, read)) is None:
        with _held(part) as mine:
            # otherwise another process or thread has downloaded it, or failed, while this one waited
            if mine:
                # one that ended between the look and the lock leaves no part, but the file
                download = partial(_download, spec, target, part, progress, attempts, read, limits)
                return _correct_file(spec, target, read) or download()
    return found


def _correct_file(spec: FileSpec, target: Path, read: Callable[[Path], object] | None) -> Path | None:
    """The downloaded file, plain or gzipped, if it is there and correct."""
    for path in (target, target.with_name(f"{target.name}.gz")):
        # a wrong file is downloaded again
        with suppress(ValueError):
            if path.is_file():
                verify(path, spec)
                if spec.sha256 is None and read is not None:
                    read(path)
                return path
    return None


def _download(
    spec: FileSpec,
    target: Path,
    part: Path,
    progress: Progress | None,
    attempts: int,
    read: Callable[[Path], object] | None,
    limits: DownloadLimits,
) -> Path:
    """Fill the part file in several attempts, verify it, and rename it to the target."""
    import requests

    end = time.monotonic() + limits.seconds
    for attempt in range(1, attempts + 1):
        try:
            _receive(str(spec.url), part, progress, end, limits)
            break
        except (requests.RequestException, ValueError, TimeoutError) as error:
            # if the server refused, or a limit is reached, another attempt would not help
            final = isinstance(error, requests.HTTPError) or not isinstance(error, requests.RequestException)
            if final or attempt == attempts:
                done = part.stat().st_size if part.exists() else 0
                kept = f"; {done} bytes are kept; repeat the command to resume" if done else ""
                raise ConnectionError(
                    f"dataset {spec.name!r} could not be fetched from {spec.url}: {error}{kept}; see {spec.source}."
                ) from error
    try:
        verify(part, spec)
    except ChecksumError as error:
        os.truncate(part, 0)
        problem = str(error).split(f" in {part}")[0]
        raise ChecksumError(f"{problem} from {spec.url}; try again later, or see {spec.source}.") from None
    os.replace(part, target)
    if spec.sha256 is None and read is not None:
        try:
            read(target)
        except ValueError:
            target.unlink()
            raise
    return target


@contextmanager
def _held(part: Path) -> Iterator[bool]:
    """Hold a part file against other processes and threads; yields False if one of them has moved it meanwhile.

    The kernel ends the lock with the process, so a killed download blocks no other one.
    """
    part.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        mine = False
        with suppress(FileNotFoundError):
            mine = os.path.samestat(os.fstat(descriptor), part.stat())
        yield mine
    finally:
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), part.stat()) and not part.stat().st_size:
                part.unlink()
        os.close(descriptor)


def _receive(url: str, part: Path, progress: Progress | None, end: float, limits: DownloadLimits) -> None:
    """Request the bytes that a part file lacks, and append them, until this time."""
    import requests

    done = part.stat().st_size if part.exists() else 0
    # identity: ranges count bytes as sent, which must be the bytes of the file
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        code = response.status_code
        received = response.headers.get("Content-Range", "")
        beyond = code == requests.codes.requested_range_not_satisfiable
        elsewhere = code == requests.codes.partial_content and not received.startswith(f"bytes {done}-")
        if done and (beyond or elsewhere):
            # the part cannot be resumed: start again
            os.truncate(part, 0)
            return _receive(url, part, progress, end, limits)
        response.raise_for_status()
        if code != requests.codes.partial_content:
            # the server ignores ranges and sends the file from its beginning
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        with part.open("r+b") as file:
            file.seek(done)
            file.truncate()
            for piece in response.iter_content(limits.piece_bytes):
                done += len(piece)
                if (size := max(done, total or 0)) > limits.total_bytes:
                    file.truncate(0)
                    raise ArgumentError("it", f"have at most {limits.total_bytes} bytes", f"at least {size}")
                if time.monotonic() > end:
                    raise TimeoutError(f"it must take at most {limits.seconds:.0f} s")
                file.write(piece)
                if progress is not None:
                    progress(done, total)
    if total is not None and done != total:
        raise requests.ConnectionError(f"the connection ended after {done} of {total} bytes")
    return None
