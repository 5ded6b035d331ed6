"""Claims on run folders: of all processes that share a results folder, one at a time runs a config.

A claim is a lock that the kernel holds on an open file. It ends with the process, however that ends, so that nobody has
to guess from a process id or a heartbeat whether a holder still lives. Locks pass between machines where the file
system passes them on, as NFS does.
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toa._files import check_writable
from toa.experiments.records import Record

CLAIM = "claim.json"


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Hold a folder while the block runs; False if another process holds it.

    The folder is made if it is not there, and removed again if nothing was left in it.

    Raises:
        ValueError: If the file system has no locks, or nothing can be written there.
    """
    path = folder / CLAIM
    held = _take(path)
    if held is not None:
        # whoever began to write these has died
        for partial in folder.glob("*.partial"):
            partial.unlink(missing_ok=True)
    try:
        yield held is not None
    finally:
        if held is not None:
            # removed while held: whoever has opened it meanwhile sees that it is gone and opens the next
            path.unlink(missing_ok=True)
            os.close(held)
            with suppress(OSError):
                folder.rmdir()


def holder(folder: Path) -> Record | None:
    """Who runs in a folder now: pid, host and the time since; None if nobody does."""
    path = folder / CLAIM
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            content: Record = json.loads(os.read(descriptor, 4096))
        except ValueError:
            # taken a moment ago
            content = {}
        return content
    finally:
        os.close(descriptor)
    # left behind by a process that died
    return None


def _take(path: Path) -> int | None:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            # removed by whoever held it before
            continue
        except OSError:
            check_writable(path.parent)
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise ValueError(
                f"{path.parent} must lie on a file system that can lock files, got: {error}; choose another folder."
            ) from None
        if _is_at(descriptor, path):
            break
        os.close(descriptor)
    told = {"pid": os.getpid(), "host": platform.node(), "since": time.time()}
    os.truncate(descriptor, 0)
    os.write(descriptor, json.dumps(told).encode())
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still names the open file, and no other that came after it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
