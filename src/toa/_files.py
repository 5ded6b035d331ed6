"""Files written whole or not at all."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by new content; the old one stays until the new one is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Make a folder and refuse one that cannot be written to, before hours of work end there.

    Raises:
        ValueError: If it is a file, or nothing can be written in it.
    """
    probe = folder / f".{os.getpid()}.probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"{folder} must be a folder that can be written to, got: {error}; choose another.") from None
