import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.experiments.sweep_cases import make_jobs, stamps
from tests.support import ROOT
from toa.experiments.run import read_outcome

pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("executor", ["pool", "ray"])


def start(executor: str, folder: Path, *numbers: int) -> "subprocess.Popen[str]":
    """Start a case of `worker_cases` in a separate process."""
    if executor != "pool":
        pytest.importorskip("ray")
    command = [sys.executable, "-m", "tests.experiments.worker_cases", executor, str(folder), *map(str, numbers)]
    environment = {**os.environ, "SWEEP_TEST": str(folder)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def play(executor: str, folder: Path, *numbers: int):
    process = start(executor, folder, *numbers)
    out, err = process.communicate()
    assert process.returncode == 0, err
    # Ray reports dead workers on earlier lines
    return json.loads(out.splitlines()[-1])


def processes_of(folder: Path) -> list[str]:
    """Return the commands of all processes that inherit the environment of `start`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            # a zombie has no environment
            if f"SWEEP_TEST={folder}\0".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text())
        except OSError:
            continue
    return found


def wait_until(true, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_two_workers_of_ray_finish_forty_runs_and_repeat_none(tmp_path):
    assert play("ray", tmp_path, 40, 2, 0) == {
        "records": 40,
        "files": 40,
        "failures": [],
        "done": 40,
        "different": 40,
        "kills": 0,
        "rewritten": 0,
        "held": 0,
    }


# a local worker takes seconds to start again
@pytest.mark.parametrize(("executor", "runs", "kills"), [("pool", 8, 5), ("ray", 30, 20)])
def test_dead_workers_lose_and_repeat_no_finished_run(tmp_path, executor, runs, kills):
    seen = play(executor, tmp_path, runs, 60, kills)
    assert (seen["kills"], seen["rewritten"], seen["failures"], seen["held"]) == (kills, 0, [], 0)
    assert seen["records"] == seen["files"] == runs


def test_a_sweep_survives_the_loss_of_a_machine(tmp_path, monkeypatch):
    # the machines listen on the loopback interface
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    assert play("cluster", tmp_path, 12, 60, 0) == {"records": 12, "failures": [], "lost": 1}


@BOTH
def test_a_killed_sweep_leaves_no_process_and_the_next_resumes(tmp_path, executor):
    chance = random.Random(0)
    known: dict[str, int] = {}

    def kill(process: "subprocess.Popen[str]") -> None:
        # at least one more run is finished
        wait_until(lambda: len(stamps(tmp_path / "out")) > len(known))
        time.sleep(chance.uniform(0.0, 1.0))
        process.kill()
        process.communicate()
        wait_until(lambda: not processes_of(tmp_path))

    for _ in range(3):
        kill(start(executor, tmp_path, 40, 60, 0))
        found = stamps(tmp_path / "out")
        assert known.items() <= found.items()
        known = found
    assert 3 <= len(known) < 40
    seen = play(executor, tmp_path, 40, 60, 0)
    assert seen["records"] == 40
    # a worker may finish one more run before it sees the death
    assert seen["done"] <= 40 - len(known)
    assert known.items() <= stamps(tmp_path / "out").items()


@BOTH
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_saves_its_runs(tmp_path, executor, number):
    process = start(executor, tmp_path, 2, 5000, 0)
    log = tmp_path / "events.log"
    wait_until(lambda: log.exists() and log.read_text().count("step") >= 2)
    assert len(processes_of(tmp_path)) >= 3
    process.send_signal(number)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    jobs = make_jobs(tmp_path / "own.csv", 2, "training.epochs=5000")
    folders = [job.folder(tmp_path / "out") for job in jobs]
    # neither finished nor failed, and not held
    found = {path.name for folder in folders if folder.exists() for path in folder.iterdir()}
    assert found == {"checkpoint.safetensors"}
    assert read_outcome(jobs, tmp_path / "out").failures == {}
    wait_until(lambda: not processes_of(tmp_path))
