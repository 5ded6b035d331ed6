import json
import os
import subprocess
import sys

import pytest

from tests.cli.test_app import call
from tests.experiments.sweep_cases import TINY, make_jobs, write_series
from tests.support import ROOT
from toa.experiments.claims import claimed


def words(path, out) -> list[str]:
    """The `toa run` command of the first job of `make_jobs`."""
    given = ["run", "--dataset", str(path), "--horizon", "4", "--backbone", "dlinear", "--protocol", "tslib-96"]
    given += ["--seed", "0", "--device", "cpu", "--out", str(out)]
    return given + [word for change in TINY for word in ("--set", change)]


def test_a_run_in_progress_is_not_started_again(tmp_path):
    path = write_series(tmp_path)
    folder = make_jobs(path, 1)[0].folder(tmp_path)
    with claimed(folder):
        code, text = call(*words(path, tmp_path / "forecast"))
    assert code == 2
    assert f"must be free for this run, got one under way in process {os.getpid()} on " in text
    assert not folder.exists()
    assert call(*words(path, tmp_path / "forecast"))[0] == 0
    # one that is done is read, whoever holds it
    with claimed(folder):
        code, text = call(*words(path, tmp_path / "forecast"))
    assert code == 0
    assert "test MSE" in text


def test_a_run_without_data_leaves_nothing_behind(tmp_path):
    code, text = call(*words(tmp_path / "gone.csv", tmp_path / "forecast"))
    assert code == 2
    assert "dataset must be a file" in text
    assert list(tmp_path.glob("forecast/*")) == []


def test_impossible_devices_raise_an_error(tmp_path, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    code, text = call(*words(write_series(tmp_path), tmp_path), "--num-nodes", "2")
    assert code == 2
    assert "MASTER_ADDR and NODE_RANK must be set on each of --num-nodes 2 machines" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [[], ["torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", "-m"]]
)
def test_two_processes_end_as_one_does(tmp_path, launcher):
    path = write_series(tmp_path)
    # an odd batch, which cannot be halved
    given = [*words(path, tmp_path / "two"), "--set", "batch_size=15"]
    command = [sys.executable, "-m", *launcher, "toa", *given, *([] if launcher else ["--devices", "2"])]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # the first speaks alone
    assert done.stdout.count("test MSE") == 1
    assert call(*words(path, tmp_path / "one"), "--set", "batch_size=15")[0] == 0
    one, two = (json.loads(next(tmp_path.glob(f"{name}/*/record.json")).read_text()) for name in ("one", "two"))
    assert (one["devices"], two["devices"]) == (1, 2)
    assert two["metrics"] == pytest.approx(one["metrics"], abs=1e-5)
    for a, b in zip(one["history"], two["history"], strict=True):
        assert b == pytest.approx(a, abs=1e-5)
    assert {path.name for path in (tmp_path / "two").glob("*/*")} == {
        "checkpoint.safetensors",
        "model.safetensors",
        "record.json",
    }
