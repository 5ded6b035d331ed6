"""Results replace files, but no link, device or pipe."""

import os
import subprocess
import sys

import pytest

from tests.support import message
from toa._files import write_atomically
from toa.cli import terminal


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
