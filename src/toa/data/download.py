"""Download a file with pooch, check its hash, and resume interrupted downloads."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pooch

from toa._checks import check_at_least
from toa.data.catalogue import DatasetSpec, FileSpec
from toa.data.location import ChecksumError, data_folders, how_to_get, verify
from toa.data.tables import read_dataset

# bytes done, and total bytes or None if the server does not send them
Progress = Callable[[int, int | None], None]

_CHUNK = 1 << 16
_TIMEOUT = 30.0


def fetch(
    spec: FileSpec,
    data_dir: str | Path | None = None,
    *,
    progress: Progress | None = None,
    attempts: int = 3,
    read: Callable[[Path], object] | None = None,
) -> Path:
    """Download a file into `data_dir`, else $TOA_DATA, else the user's cache, and return its path.

    A correct file that exists already, plain or gzipped, is kept. An interrupted download leaves `<file>.part`, and the
    next attempt or call resumes it; the file itself appears only when it is complete.

    Args:
        spec: The file.
        data_dir: Data folder.
        progress: Called with the number of bytes.
        attempts: Number of attempts if the connection breaks.
        read: Reads the file and raises ValueError if it is wrong; used if no checksum is known. None reads a
            forecasting dataset.

    Raises:
        ValueError: If the catalogue has no url for the file.
        ConnectionError: If the server refuses, or the connection breaks in every attempt.
        ChecksumError: If the downloaded file is not the one in the catalogue; it is deleted.
    """
    check_at_least("attempts", attempts, 1)
    if read is None and isinstance(spec, DatasetSpec):
        read = partial(read_dataset, spec)
    folder = data_folders(data_dir)[0]
    target = folder / spec.path
    if spec.url is None:
        raise ValueError(f"dataset {spec.name!r} must have a url to be downloaded, got none; {how_to_get(spec)}.")
    for path in (target, target.with_name(f"{target.name}.gz")):
        # a wrong file is downloaded again
        with suppress(ValueError):
            if path.is_file():
                verify(path, spec)
                if spec.sha256 is None and read is not None:
                    read(path)
                return path
    known = None if spec.sha256 is None else f"sha256:{spec.sha256}"
    if known is None:
        # without a hash pooch would keep a wrong file
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
        try:
            read(target)
        except ValueError:
            target.unlink()
            raise
    return target


class _Resuming:
    """A downloader for pooch that keeps received bytes in a .part file and requests only the rest."""

    def __init__(self, spec: FileSpec, part: Path, progress: Progress | None, attempts: int) -> None:
        self.spec, self.part, self.progress, self.attempts = spec, part, progress, attempts

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        """Fill `output_file`; pooch then checks its hash and renames it."""
        import requests

        for attempt in range(1, self.attempts + 1):
            try:
                self._receive(url)
                break
            except requests.HTTPError as error:
                # the server refused: another attempt would not help
                raise self._failed(url, error) from error
            except requests.RequestException as error:
                if attempt == self.attempts:
                    raise self._failed(url, error) from error
        os.replace(self.part, output_file)

    def _receive(self, url: str) -> None:
        import requests

        done = self.part.stat().st_size if self.part.exists() else 0
        # identity: ranges count bytes as sent, which must be the bytes of the file
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            code, received = response.status_code, response.headers.get("Content-Range", "")
            beyond = code == requests.codes.requested_range_not_satisfiable
            elsewhere = code == requests.codes.partial_content and not received.startswith(f"bytes {done}-")
            if done and (beyond or elsewhere):
                # the part cannot be resumed: start again
                self.part.unlink()
                return self._receive(url)
            response.raise_for_status()
            if code != requests.codes.partial_content:
                # the server ignores ranges and sends the file from its beginning
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
        kept = f"; {done} bytes are kept; repeat the command to resume" if done else ""
        return ConnectionError(
            f"dataset {self.spec.name!r} could not be fetched from {url}: {error}{kept}; see {self.spec.source}."
        )
