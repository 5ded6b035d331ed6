"""The lock of a run's folder: a claim while a process works on the run.

A claim is a kernel lock (`flock`) on the file `claim.json`, which names the holder: of all processes that share a
results folder, only one at a time works on a run. The kernel releases it when the process ends, even after SIGKILL, so
no claim outlives its holder. Other machines see the lock if the file system forwards locks, as NFS does. The package
`filelock` cannot replace this: it does not report the holder, it leaves its file in the run folder, and without kernel
locks it falls back to a file that stays locked after its process is killed.
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toa._checks import ArgumentError
from toa._files import check_writable, remove_partial
from toa.training.base import Record

# file of the claim in the folder of a run
CLAIM = "claim.json"


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Hold a folder inside the block; yields False if another process holds it.

    Creates the folder if needed, and removes it at the end if it is empty.
    """
    path = folder / CLAIM
    descriptor = _lock(path)
    if descriptor is None:
        yield False
        return
    try:
        # what a process left that died while it held the claim
        for partial in folder.glob("*.partial"):
            remove_partial(partial)
        yield True
    finally:
        # removed before the lock ends: a process that has the file open sees that it is gone, and tries again
        path.unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def claimed_alone(folder: Path) -> Iterator[None]:
    """Hold a folder inside the block, see `claimed`; raises ArgumentError that names a process that holds it."""
    with claimed(folder) as free:
        if not free:
            process = holder(folder) or {}
            raise ArgumentError(
                folder,
                "be free for this run",
                f"one under way in process {process.get('pid', '?')} on {process.get('host', 'another machine')}",
                "wait for it, or choose another --out",
            )
        yield


def holder(folder: Path) -> Record | None:
    """Return pid, host and start time ("since") of the process that holds a folder; None if it is free."""
    try:
        descriptor = os.open(folder / CLAIM, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            content: Record = json.loads(os.read(descriptor, 4096))
        except ValueError:
            # locked, but not written yet
            content = {}
        return content
    finally:
        os.close(descriptor)
    # the file was left by a process that died
    return None


def _lock(path: Path) -> int | None:
    """Return the descriptor of the locked file; None if another process holds the lock."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            # the previous holder removed the folder between the two calls
            continue
        except OSError:
            check_writable(path.parent)
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(descriptor)
            raise ArgumentError(
                path.parent,
                "be on a file system that supports file locks",
                f"an error: {error}",
                "choose another folder",
            ) from None
        # the previous holder removed this file; lock the one that now has its name
        os.close(descriptor)
    os.truncate(descriptor, 0)
    os.write(descriptor, json.dumps({"pid": os.getpid(), "host": platform.node(), "since": time.time()}).encode())
    return descriptor
