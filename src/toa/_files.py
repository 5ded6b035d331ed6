"""Atomic writes, writable folders, and the checksum in every file that toa writes and reads back.

The checksum is a sha256 over the content, in the field "checksum". It shows damage, such as a flipped bit or a careless
edit. It does not show forgery: whoever changes a file on purpose can also compute its new checksum. Files that older
versions wrote have none; they are read, and named in a log message or in the report as "without checksum".
"""

import difflib
import fcntl
import glob
import hashlib
import json
import logging
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from toa._checks import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor


CHECKSUM = "checksum"
# endings of tables that can be written, and those that need a package
_PACKAGES = dict.fromkeys((".parquet", ".pq", ".feather", ".arrow"), "pyarrow") | {".xlsx": "openpyxl"}
_TABLES = (".csv", ".tsv", ".txt", "", ".jsonl", ".ndjson", ".json", *_PACKAGES)
# a file that is being written: the name of its target, or a digest of a long name, and 32 random digits
_PARTIAL = re.compile(r"(.+)\.[0-9a-f]{32}\.partial")
# bytes of a name to which the digits and the ending can be added on every common file system
_LONGEST_NAME = 100
# longer integers are no counts, seeds or sizes, and break conversions to floats
_DIGITS = 40


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file; a crash leaves either the old content or the new, never a part."""
    with replacing(path) as file:
        file.write(content)


def write_together(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Replace several files of a folder at once, for those who read them with `read_together`.

    All are written completely before the first of them is moved to its name, and the folder is locked while they are
    moved. Where the file system has no locks of folders, and after a crash between two moves, a reader may meet files
    of two writers, which a checksum over all of them shows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _opened_folder(folder) as descriptor, ExitStack() as files:
        for name, content in contents.items():
            file = files.enter_context(replacing(folder / name))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _lock_folder(descriptor, fcntl.LOCK_EX)


def read_together(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Files of a folder by name, all of one call of `write_together`."""
    with _opened_folder(folder) as descriptor:
        _lock_folder(descriptor, fcntl.LOCK_SH)
        return {name: read_file(folder / name) for name in names}


@contextmanager
def _opened_folder(folder: Path) -> Iterator[int | None]:
    """The descriptor of a folder, whose lock ends with it; None if it may not be listed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock_folder(descriptor: int | None, kind: int) -> None:
    """Wait for those who hold the folder, which is for as long as a few files are moved or read."""
    if descriptor is not None:
        # some network file systems lock no folders
        with suppress(OSError):
            fcntl.flock(descriptor, kind)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that replaces the one at `path` after the block; an error or a crash leaves the old one.

    A symbolic link stays, and the file that it names is replaced. The new file has the permissions of the old one, and
    its owner where this is permitted.
    """
    check_replaceable(path)
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{partial_name(path.name)}.{uuid.uuid4().hex}.partial")
    try:
        for other in path.parent.glob(f"{glob.escape(partial_name(path.name))}.*.partial"):
            remove_partial(other)
        with _locked(partial) as file:
            _copy_permissions(path, file)
            yield file
            file.flush()
            os.fsync(file.fileno())
            # while it is locked: without the lock, another writer would remove it as a rest of a killed one
            os.replace(partial, path)
    except OSError as error:
        # a full disk or a broken one names no file
        raise OSError(error.errno, f"{error.strerror or error}; the file was not written", str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def _locked(path: Path) -> BinaryIO:
    """A new file, locked so that others see that it is in use; the kernel ends the lock."""
    while True:
        file = path.open("wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        # another process removed it before it was locked
        file.close()


def _copy_permissions(path: Path, file: BinaryIO) -> None:
    """Give an open file the mode of the one at `path`, if there is one, and its owner where this is permitted."""
    try:
        old = path.stat()
    except OSError:
        # no such file, or a loop of links, which is replaced
        return
    new = os.fstat(file.fileno())
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(file.fileno(), old.st_uid, old.st_gid)
        except PermissionError:
            log = logging.getLogger("toa")
            log.warning("%s belongs to another user or group; it will belong to the user who writes it.", path)
    os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))


def partial_name(name: str) -> str:
    """How the name of a file that is being written begins: a digest where the name is long."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= _LONGEST_NAME else hashlib.sha256(encoded).hexdigest()


def target_of(partial: Path) -> str | None:
    """What `partial_name` returned for the file that is being written here; None for a file with another name."""
    match = _PARTIAL.fullmatch(partial.name)
    return match[1] if match else None


def read_file(path: Path) -> bytes:
    """The content of a regular file; raises ValueError for a pipe, which could wait forever, and for a device."""
    # a pipe without a writer opens at once
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ArgumentError(path, "be a file", "a folder, a device or a pipe", "copy its content to a file")
        return file.read()


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8."""
    return read_file(path).decode()


def check_replaceable(path: Path) -> None:
    """Raise ValueError for a folder, for a device or a pipe, and for the file that this process prints to."""
    if not path.exists():
        return
    if not path.is_file():
        found = "folder; add a file name" if path.is_dir() else "device or a pipe; name a file"
        raise ArgumentError(path, "be a file to write", f"a {found}")
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                raise ValueError(f"{path} must be another file than the one that this command prints to; name another.")


def remove_partial(partial: Path) -> None:
    """Remove what a killed process has left of a write, but not what another one is writing, nor a file of others."""
    if target_of(partial) is None:
        return
    with suppress(OSError), partial.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.unlink()


def check_writable(folder: Path) -> None:
    """Create a folder; raise ValueError now if it cannot be written to, not after hours of work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # a file without a name: a killed process leaves nothing
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ArgumentError(
            folder, "be a folder that can be written to", f"an error: {error}", "choose another"
        ) from None


def ending_of(path: Path) -> str:
    """The ending of a file in lower case, that before .gz if it is packed."""
    return (path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix).lower()


def check_ending(path: Path) -> None:
    """Raise ValueError for a file whose ending is no format of tables, and ImportError for a missing package."""
    ending = ending_of(path)
    binary = ending in _PACKAGES
    if ending not in _TABLES or (binary and path.suffix == ".gz"):
        endings = ", ".join(suffix for suffix in _TABLES if suffix)
        raise ArgumentError("a table", f"be written to a file that ends in {endings}", repr(path.name))
    if binary and find_spec(_PACKAGES[ending]) is None:
        raise missing_package(path, "write")


def missing_package(path: Path, what: str) -> ImportError:
    """The error for a file that a package of the extra `files` reads or writes."""
    package = "openpyxl" if ending_of(path).startswith(".xls") else "pyarrow"
    return ImportError(f"{package} must be installed to {what} {path.name}; install toa[files].")


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON of unknown origin.

    Raises:
        ValueError: If it is not JSON, nested too deeply, or has an integer with too many digits.
    """
    try:
        return json.loads(text, parse_int=_parse_integer)
    except RecursionError:
        raise ArgumentError(where, "be JSON with few levels", "one nested too deeply", "delete it") from None
    except ValueError as error:
        raise ArgumentError(where, "be valid JSON", f"an error: {error}", "is the file complete?") from None


def seal(content: Mapping[str, Any], tensors: "Mapping[str, Tensor] | None" = None) -> dict[str, Any]:
    """The content as JSON values, with its checksum, which also covers tensors that are stored beside it."""
    # as read from a file: tuples become lists, and keys text
    plain = json.loads(json.dumps({name: value for name, value in content.items() if name != CHECKSUM}))
    return plain | {CHECKSUM: _digest(plain, tensors or {})}


def unseal(
    content: Mapping[str, Any], where: str, tensors: "Mapping[str, Tensor] | None" = None
) -> tuple[dict[str, Any], bool]:
    """The content without its checksum, and whether it has one.

    Raises:
        ValueError: If the checksum does not fit the content.
    """
    plain = {name: value for name, value in content.items() if name != CHECKSUM}
    stated = content.get(CHECKSUM)
    if stated is None:
        # the name of the field itself may be damaged
        sums = [name for name, value in plain.items() if isinstance(value, str) and len(value) == 64]
        similar = difflib.get_close_matches(CHECKSUM, plain, cutoff=0.8)
        rests = ({n: v for n, v in plain.items() if n != name} for name in sums)
        whole = any(_digest(rest, tensors or {}) == plain[name] for name, rest in zip(sums, rests, strict=True))
        if not similar and not whole:
            return plain, False
    if stated != _digest(plain, tensors or {}):
        raise ArgumentError(
            where,
            "have the content that its checksum states",
            "an edited or damaged file",
            "restore or copy it again, or delete it",
        )
    return plain, True


def log_unsealed(where: object) -> None:
    """Tell users that a file has no checksum."""
    logging.getLogger("toa").warning("%s is without checksum: damage to it cannot be noticed.", where)


def _digest(content: Mapping[str, Any], tensors: "Mapping[str, Tensor]") -> str:
    """Sha256 of canonical JSON and of the name, type, shape and bytes of each tensor."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    for name, tensor in sorted(tensors.items()):
        import torch

        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        # uint8 view, because numpy has no bfloat16
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _parse_integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"an integer of {len(text)} digits, more than {_DIGITS}")
    return int(text)
