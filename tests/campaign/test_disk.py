"""A disk that is full or broken at any step of a write: the error names the file, and the old content stays."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from toa._files import write_atomically
from toa.experiments.records import write_record, write_records
from toa.tasks.checkpoint import save_checkpoint

WRITERS: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: write_atomically(path, b"new"),
    "record": lambda path: write_record(path, {"metrics": {}, "config_hash": "0"}),
    "records": lambda path: write_records(path, [{"metrics": {}, "config_hash": "0"}]),
    "checkpoint": lambda path: save_checkpoint(path, {"a": torch.ones(3)}, {"key": "x"}),
}


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_failed_write_names_the_file_and_keeps_the_old_one(tmp_path, monkeypatch, kind, step, code):
    path = tmp_path / "kept.json"
    path.write_bytes(b"old")
    if step == "open":
        monkeypatch.setattr(Path, "open", failing(code))
    else:
        monkeypatch.setattr(f"toa._files.os.{step}", failing(code))
    with pytest.raises(OSError, match=r"kept\.json"):
        WRITERS[kind](path)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["kept.json"]
