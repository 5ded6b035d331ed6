import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.experiments.runner_cases import make_jobs, stamps
from tests.support import ROOT
from toa.experiments.runner import read_outcome

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


def start(folder: Path, *numbers: int) -> "subprocess.Popen[str]":
    """A runner with a Ray of its own, in a process of its own."""
    command = [sys.executable, "-m", "tests.experiments.ray_cases", str(folder), *map(str, numbers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def play(folder: Path, *numbers: int):
    process = start(folder, *numbers)
    out, err = process.communicate()
    assert process.returncode == 0, err
    # Ray tells of dead workers on the lines before
    return json.loads(out.splitlines()[-1])


def rays_under(pid: int) -> list[int]:
    """Processes of Ray that were started with a session of this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "ray" in text and f"_{pid}/" in text:
            found.append(int(path.parent.name))
    return found


def wait_until(true, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_two_workers_of_ray_finish_forty_runs_and_repeat_none(tmp_path):
    assert play(tmp_path, 40, 2, 0) == {
        "records": 40,
        "files": 40,
        "failures": [],
        "done": 40,
        "different": 40,
        "kills": 0,
        "rewritten": 0,
        "held": 0,
    }


def test_twenty_dead_workers_of_ray_lose_and_repeat_no_finished_run(tmp_path):
    seen = play(tmp_path, 30, 60, 20)
    assert (seen["kills"], seen["rewritten"], seen["failures"], seen["held"]) == (20, 0, [], 0)
    assert seen["records"] == seen["files"] == 30


def test_a_cluster_goes_on_without_a_machine_that_is_lost(tmp_path, monkeypatch):
    # machines of the cluster listen on the loopback interface
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    assert play(tmp_path, 12, 60) == {"records": 12, "failures": [], "lost": 1}


def test_a_killed_runner_on_ray_leaves_nothing_running_and_the_next_goes_on(tmp_path):
    chance = random.Random(0)
    known: dict[str, int] = {}

    def kill(process: "subprocess.Popen[str]") -> None:
        # something is finished each time
        wait_until(lambda: len(stamps(tmp_path / "out")) > len(known))
        time.sleep(chance.uniform(0.0, 1.0))
        process.kill()
        process.communicate()
        wait_until(lambda: not rays_under(process.pid))

    for _ in range(3):
        kill(start(tmp_path, 40, 60, 0))
        found = stamps(tmp_path / "out")
        assert known.items() <= found.items()
        known = found
    assert 3 <= len(known) < 40
    seen = play(tmp_path, 40, 60, 0)
    assert seen["records"] == 40
    # a worker may have ended one more before it heard of the death
    assert seen["done"] <= 40 - len(known)
    assert known.items() <= stamps(tmp_path / "out").items()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_runner_on_ray_saves_its_runs(tmp_path, number):
    process = start(tmp_path, 2, 5000, 0)
    log = tmp_path / "events.log"
    wait_until(lambda: log.exists() and log.read_text().count("step") >= 2)
    assert rays_under(process.pid)
    process.send_signal(number)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    jobs = make_jobs(tmp_path / "own.csv", 2, "training.epochs=5000")
    folders = [job.folder(tmp_path / "out") for job in jobs]
    # neither finished nor failed, and free for the next
    found = {path.name for folder in folders if folder.exists() for path in folder.iterdir()}
    assert found == {"checkpoint.safetensors"}
    assert read_outcome(jobs, tmp_path / "out").failures == {}
    wait_until(lambda: not rays_under(process.pid))
