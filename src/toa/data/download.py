"""Download a data set: through pooch, checked by its hash, going on where a broken download stopped."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pooch

from toa._checks import check_at_least
from toa.data.location import ChecksumError, data_folders, how_to_get, verify
from toa.data.readers import read_dataset
from toa.data.spec import DatasetSpec, FileSpec

# bytes done, and bytes in all where the server says
Progress = Callable[[int, int | None], None]

_CHUNK = 1 << 16
_TIMEOUT = 30.0


def fetch(
    spec: DatasetSpec | FileSpec,
    data_dir: str | Path | None = None,
    *,
    progress: Progress | None = None,
    attempts: int = 3,
    read: Callable[[Path], object] | None = None,
) -> Path:
    """Download the file of `spec` into `data_dir`, else $TOA_DATA, else the user's cache, and return its path.

    A true file that is there already, plain or gzipped, is kept. A broken download leaves `<file>.part`, from which
    the next attempt or call goes on; the file itself appears whole or not at all.

    Args:
        spec: The file.
        data_dir: Where it shall lie.
        progress: Told of bytes.
        attempts: How often a broken connection is taken up again.
        read: Reads the file, or refuses it, where no checksum is known; that of a forecasting set if None.

    Raises:
        ValueError: If nobody official serves the file; it names the source and where to put it.
        ConnectionError: If the server refuses or the connection breaks `attempts` times.
        ChecksumError: If what came is not the file the catalogue knows; it is deleted.
    """
    check_at_least("attempts", attempts, 1)
    if read is None and isinstance(spec, DatasetSpec):
        read = partial(read_dataset, spec)
    folder = data_folders(data_dir)[0]
    target = folder / spec.path
    if spec.url is None:
        raise ValueError(f"dataset {spec.name!r} must have a url to be fetched, and has none; {how_to_get(spec)}.")
    if (kept := _kept(spec, target, read)) is not None:
        return kept
    known = None if spec.sha256 is None else f"sha256:{spec.sha256}"
    if known is None:
        # without a hash pooch would take the wrong file for the true one
        target.unlink(missing_ok=True)
    part = target.with_name(f"{target.name}.part")
    downloader = _Resuming(spec, part, progress, attempts)
    try:
        pooch.retrieve(spec.url, known, fname=target.name, path=target.parent, downloader=downloader)
    except ValueError as error:
        raise ChecksumError(
            f"dataset {spec.name!r} must have sha256 {spec.sha256}, got other bytes from {spec.url} ({error}); "
            f"try again later, or see {spec.source}."
        ) from error
    if spec.sha256 is None and read is not None:
        _check_content(read, target)
    return target


def _check_content(read: Callable[[Path], object], path: Path) -> None:
    """Without a known hash, reading the file is the only check there is."""
    try:
        read(path)
    except ValueError:
        path.unlink()
        raise


def _kept(spec: DatasetSpec | FileSpec, target: Path, read: Callable[[Path], object] | None) -> Path | None:
    for path in (target, target.with_name(f"{target.name}.gz")):
        if path.is_file():
            try:
                verify(path, spec)
                if spec.sha256 is None and read is not None:
                    read(path)
            except ValueError:
                # not the true file: fetched again over it, or beside it
                continue
            return path
    return None


class _Resuming:
    """A downloader for pooch that keeps what it has in a .part file and asks for the rest alone."""

    def __init__(self, spec: DatasetSpec | FileSpec, part: Path, progress: Progress | None, attempts: int) -> None:
        self.spec, self.part, self.progress, self.attempts = spec, part, progress, attempts

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        """Fill `output_file`; pooch then compares its hash and renames it."""
        import requests

        for attempt in range(1, self.attempts + 1):
            try:
                self._receive(url)
                break
            except requests.HTTPError as error:
                # the server's refusal will not change by asking again
                raise self._failed(url, error) from error
            except requests.RequestException as error:
                if attempt == self.attempts:
                    raise self._failed(url, error) from error
        os.replace(self.part, output_file)

    def _receive(self, url: str) -> None:
        import requests

        done = self.part.stat().st_size if self.part.exists() else 0
        # identity: a range counts the bytes as sent, so they must be those of the file
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            code, place = response.status_code, response.headers.get("Content-Range", "")
            beyond = code == requests.codes.requested_range_not_satisfiable
            elsewhere = code == requests.codes.partial_content and not place.startswith(f"bytes {done}-")
            if done and (beyond or elsewhere):
                # the part cannot be continued: start again
                self.part.unlink()
                return self._receive(url)
            response.raise_for_status()
            if code != requests.codes.partial_content:
                # the server ignores ranges and sends from the beginning
                done = 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length is not None else None
            with self.part.open("ab" if done else "wb") as file:
                for piece in response.iter_content(_CHUNK):
                    file.write(piece)
                    done += len(piece)
                    if self.progress is not None:
                        self.progress(done, total)
        if total is not None and done != total:
            raise requests.ConnectionError(f"the connection ended after {done} of {total} bytes")
        return None

    def _failed(self, url: str, error: Exception) -> ConnectionError:
        done = self.part.stat().st_size if self.part.exists() else 0
        kept = f"; {done} bytes are kept and the same command goes on from there" if done else ""
        return ConnectionError(
            f"dataset {self.spec.name!r} could not be fetched from {url}: {error}{kept}; see {self.spec.source}."
        )
