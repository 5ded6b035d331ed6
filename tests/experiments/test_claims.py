import os
import subprocess
import sys

import pytest

from tests.support import message
from toa.experiments.claims import CLAIM, claimed, holder


def test_a_claim_has_one_holder_and_ends_with_its_block(tmp_path):
    with claimed(tmp_path / "run") as mine:
        assert mine
        found = holder(tmp_path / "run")
        assert found is not None
        assert found["pid"] == os.getpid()
        with claimed(tmp_path / "run") as also:
            assert not also
    assert holder(tmp_path / "run") is None
    assert not (tmp_path / "run").exists()


def test_a_claim_keeps_written_files_and_removes_partial_ones(tmp_path):
    (tmp_path / "record.json").touch()
    (tmp_path / "record.json.0123456789abcdef0123456789abcdef.partial").touch()
    with claimed(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_claim_below_a_file_raises(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ValueError, match=message(str(tmp_path / "file" / "run"), "folder")),
        claimed(tmp_path / "file" / "run"),
    ):
        pass


def test_the_claim_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / CLAIM
    code = "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(fd, fcntl.LOCK_EX)"
    code += "; os.write(fd, b'{\"pid\": 7}'); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with claimed(tmp_path) as mine:
            assert not mine
        assert holder(tmp_path) == {"pid": 7}
        other.kill()
        other.wait()
    assert path.exists()
    assert holder(tmp_path) is None
    with claimed(tmp_path) as mine:
        assert mine
