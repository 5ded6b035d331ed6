"""A disk that is full or broken at any step of a write: the error names the file, and the old content stays."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.campaign.disk import COMMANDS, fail_disk
from toa._files import check_writable, write_atomically
from toa.experiments.records import write_record, write_records
from toa.training.checkpoint import save_checkpoint


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_names_the_path_when_the_disk_fails(name, tmp_path):
    assert fail_disk(name, tmp_path, seed=0, numbers=range(20)).failures == []


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


def test_a_write_removes_the_parts_that_killed_processes_left(tmp_path):
    path = tmp_path / "kept.json"
    names = (f"kept.json.{'1' * 32}", f"kept.json.{'2' * 32}", f"other.json.{'1' * 32}")
    stale, held, other = (tmp_path / f"{name}.partial" for name in names)
    stale.touch()
    other.touch()
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomically(path, b"new")
    assert sorted(tmp_path.iterdir()) == sorted([path, held, other])


def test_a_folder_that_is_checked_stays_empty(tmp_path, monkeypatch):
    def removed(*_: object) -> None:
        raise AssertionError("a name that a killed process would leave")

    monkeypatch.setattr(Path, "unlink", removed)
    check_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
