"""Atomic writes and writable folders."""

import os
import threading
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file; a crash leaves either the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        # a full disk or a broken one names no file
        raise OSError(error.errno, f"{error.strerror}; the file was not written", str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Create a folder; raise ValueError now if it cannot be written to, not after hours of work."""
    probe = folder / f".{os.getpid()}.probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"{folder} must be a folder that can be written to, got: {error}; choose another.") from None
