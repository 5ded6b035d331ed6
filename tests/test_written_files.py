"""Results replace files, but no link, device or pipe."""

import errno
import fcntl
import logging
import os
import stat
import subprocess
import sys

import pytest
import torch

from tests.support import message
from toa import _files
from toa._files import read_file, read_together, remove_partial, replacing, write_atomically, write_together
from toa.cli import terminal
from toa.experiments.claims import claimed
from toa.experiments.records import read_records
from toa.training.checkpoint import load_checkpoint, save_checkpoint

# the name of a file that another process is writing
DIGITS = "0123456789abcdef" * 2


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / "real.csv"
    link = tmp_path / "link.csv"
    file.write_text("old", encoding="utf-8")
    link.symlink_to(file)
    terminal.check_destinations(link)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert file.read_text(encoding="utf-8") == "new"
    assert sorted(path.name for path in file.parent.iterdir()) == ["real.csv"]


def test_a_loop_of_links_is_replaced(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.symlink_to(second)
    second.symlink_to(first)
    terminal.check_destinations(first)
    write_atomically(first, b"new")
    assert first.read_text(encoding="utf-8") == "new"


def test_the_file_that_a_command_prints_to_is_refused(tmp_path):
    code = (
        "from pathlib import Path; from toa._files import write_atomically; write_atomically(Path('/dev/stdout'), b'')"
    )
    with (tmp_path / "printed.txt").open("wb") as out:
        done = subprocess.run([sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE, text=True)
    assert "/dev/stdout must be another file than the one that this command prints to" in done.stderr


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_refused_before_training_and_stays(tmp_path, kind):
    path = tmp_path / "out.csv"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    remedy = {"pipe": "got a device or a pipe; name a file.", "folder": "got a folder; add a file name."}[kind]
    for write in (terminal.check_destinations, lambda path: write_atomically(path, b"new")):
        with pytest.raises(ValueError, match=message("out.csv must be a file to write", remedy)):
            write(path)
    assert path.is_fifo() or path.is_dir()


def test_the_clean_up_of_another_writer_leaves_a_finished_part(tmp_path, monkeypatch):
    replace = os.replace

    def replace_after_clean_up(source, target):
        for partial in tmp_path.glob("*.partial"):
            remove_partial(partial)
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_after_clean_up)
    write_atomically(tmp_path / "a.json", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def is_locked(folder, kind):
    """Whether a lock of this kind would have to wait."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_files_of_a_folder_are_moved_while_readers_wait(tmp_path, monkeypatch):
    replace = os.replace
    locked = []

    def watch(source, target):
        locked.append(is_locked(tmp_path, fcntl.LOCK_SH))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    write_together(tmp_path, {"a": b"1", "b": b"2"})
    assert locked == [True, True]
    assert not is_locked(tmp_path, fcntl.LOCK_EX)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_files_of_a_folder_are_read_while_writers_wait(tmp_path, monkeypatch):
    write_together(tmp_path, {"a": b"1", "b": b"2"})
    locked = []
    read = _files.read_file

    def watch(path):
        locked.append(is_locked(tmp_path, fcntl.LOCK_EX))
        return read(path)

    monkeypatch.setattr(_files, "read_file", watch)
    assert read_together(tmp_path, ("a", "b")) == {"a": b"1", "b": b"2"}
    assert locked == [True, True]


def test_a_folder_that_cannot_be_locked_is_written_and_read(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_files, "_lock_folder", lambda *arguments: None)
    write_together(tmp_path, {"a": b"1"})
    monkeypatch.undo()
    monkeypatch.setattr(fcntl, "flock", fail)
    assert read_together(tmp_path, ("a",)) == {"a": b"1"}


def test_loading_reads_one_version_of_a_file_that_is_replaced_meanwhile(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    save_checkpoint(tmp_path / "later", {"x": torch.ones(3)}, {"version": 2})
    save_checkpoint(path, {"x": torch.zeros(3)}, {"version": 1})
    parse = _files.parse_json

    def parse_while_replaced(text, where):
        if (tmp_path / "later").exists():
            os.replace(tmp_path / "later", path)
        return parse(text, where)

    monkeypatch.setattr("toa.training.checkpoint.parse_json", parse_while_replaced)
    saved = load_checkpoint(path)
    assert saved.facts == {"version": 1}
    assert torch.equal(saved.tensors["x"], torch.zeros(3))
    assert load_checkpoint(path).facts == {"version": 2}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_replaced_file_keeps_its_mode(mode, tmp_path):
    path = tmp_path / "m.toa"
    path.write_bytes(b"old")
    path.chmod(mode)
    with replacing(path) as file:
        file.write(b"new")
        # nobody else can read what is being written
        (partial,) = tmp_path.glob("*.partial")
        assert stat.S_IMODE(partial.stat().st_mode) == mode
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_file_of_another_owner_stays_theirs_or_a_warning_names_it(tmp_path, monkeypatch, caplog):
    path = tmp_path / "m.toa"
    path.write_bytes(b"old")
    old = path.stat()
    owners = []
    fstat = os.fstat

    def of_another(descriptor):
        fields = list(fstat(descriptor))
        fields[stat.ST_UID] += 1
        return os.stat_result(fields)

    def refuse(*arguments):
        raise PermissionError

    monkeypatch.setattr(os, "fstat", of_another)
    monkeypatch.setattr(os, "fchown", lambda descriptor, user, group: owners.append((user, group)))
    with (tmp_path / "new").open("wb") as file:
        _files._copy_permissions(path, file)
        assert owners == [(old.st_uid, old.st_gid)]
        monkeypatch.setattr(os, "fchown", refuse)
        # other tests may have silenced it
        monkeypatch.setattr(logging.getLogger("toa"), "propagate", True)
        with caplog.at_level(logging.WARNING, logger="toa"):
            _files._copy_permissions(path, file)
    assert "m.toa belongs to another user or group" in caplog.text


@pytest.mark.parametrize("name", ["p.toa.backup.partial", "p.toa.0123.partial", f"p.toa.{DIGITS.upper()}.partial"])
def test_writing_leaves_files_of_others(name, tmp_path):
    (tmp_path / name).write_bytes(b"mine")
    write_atomically(tmp_path / "p.toa", b"new")
    with claimed(tmp_path):
        pass
    assert (tmp_path / name).read_bytes() == b"mine"


def test_writing_removes_what_a_killed_writer_left(tmp_path):
    (tmp_path / f"p.toa.{DIGITS}.partial").write_bytes(b"half")
    write_atomically(tmp_path / "p.toa", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["p.toa"]


@pytest.mark.parametrize("name", ["x" * 251 + ".csv", "é" * 127, "x" * 100])
def test_a_long_name_is_written_and_its_rest_removed(name, tmp_path):
    (tmp_path / f"{_files.partial_name(name)}.{DIGITS}.partial").write_bytes(b"half")
    write_atomically(tmp_path / name, b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"new")]


@pytest.mark.parametrize("read", [read_file, load_checkpoint, lambda path: read_records([path.parent])])
def test_a_pipe_is_refused_at_once(read, tmp_path):
    path = tmp_path / "record.json"
    os.mkfifo(path)
    with pytest.raises(ValueError, match=message("record.json must be", "got a folder, a device or a pipe")):
        read(path)
