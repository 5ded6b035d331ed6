import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

import toa
from tests.cli.test_app import call
from tests.experiments.sweep_cases import make_jobs, stamps, write_series
from tests.support import ROOT, message
from toa.experiments import sweep_ray
from toa.experiments.outcomes import read_outcome
from toa.experiments.sweep import BrokenDeviceError, RunContext, sweep
from toa.experiments.sweep_ray import Share, run_remote, share_out


@pytest.fixture
def jobs(tmp_path):
    return make_jobs(write_series(tmp_path), 1, "training.epochs=1")


@pytest.fixture
def context(tmp_path):
    return RunContext(out=tmp_path / "out", device="cpu")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    # restored at the end: a worker changes it
    monkeypatch.chdir(tmp_path)
    version = toa.__version__
    return {"threads": 1, "marker": str(tmp_path), "folder": str(tmp_path), "environment": {}, "version": version}


class Mailbox:
    """Has `put.remote`, as the actor of Ray has."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.put = self

    def remote(self, event: object) -> None:
        self.events.append(event)


def test_a_worker_runs_a_job(jobs, context, settings):
    mailbox = Mailbox()
    assert run_remote(settings, asdict(context), jobs[0].to_json(), mailbox).kind == "done"
    assert mailbox.events
    assert set(read_outcome(jobs, context.out).records) == {jobs[0].key}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"marker": "nowhere"}, ("out must be a folder that every machine shares", "--out")),
        ({"version": "0.0.0"}, ("toa must be 0.0.0 on every machine, got", toa.__version__)),
    ],
)
def test_a_machine_without_the_folder_or_the_version_raises(jobs, context, settings, changes, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        run_remote(settings | changes, asdict(context), jobs[0].to_json(), Mailbox())


def test_a_worker_with_a_broken_device_exits(jobs, context, settings, monkeypatch):
    def broken(*_, **__):
        raise BrokenDeviceError("cuda must still work")

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(sweep_ray, "run_job", broken)
    monkeypatch.setattr("os._exit", leave)
    with pytest.raises(SystemExit):
        run_remote(settings, asdict(context), jobs[0].to_json(), Mailbox())


MACHINE, SERVER = {"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("machines", "device", "workers", "share"),
    [
        ([MACHINE], "auto", None, Share(workers=4, device="cpu", cpus=1, gpus=0.0)),
        ([MACHINE], "cpu", 8, Share(workers=8, device="cpu", cpus=0.5, gpus=0.0)),
        # twelve cores, but at most eight per machine
        ([MACHINE, SERVER], "cpu", 1, Share(workers=1, device="cpu", cpus=8, gpus=0.0)),
        ([SERVER], "auto", None, Share(workers=2, device="cuda", cpus=4, gpus=1.0)),
        # runs share a GPU: three on one of them
        ([SERVER], "cuda", 5, Share(workers=5, device="cuda", cpus=1, gpus=1 / 3)),
        ([SERVER, SERVER], "cuda", 8, Share(workers=8, device="cuda", cpus=2, gpus=0.5)),
        ([SERVER], "cuda", 1, Share(workers=1, device="cuda", cpus=8, gpus=1.0)),
    ],
)
def test_cores_and_gpus_are_divided(machines, device, workers, share):
    assert share_out(machines, device, workers) == share


def test_a_cluster_without_the_device_raises():
    with pytest.raises(ValueError, match=message("device 'cuda' must be in Ray's cluster", "--device cpu")):
        share_out([MACHINE], "cuda", None)


def test_a_numbered_device_raises_with_ray(jobs, context):
    with pytest.raises(ValueError, match=message("device must be auto, cpu or cuda with Ray", "got 'cuda:1'")):
        sweep(jobs, RunContext(out=context.out, device="cuda:1"), executor="ray")


def test_without_ray_the_error_names_the_extra(jobs, context, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=message("ray is needed for the executor 'ray'", "install toa[ray]")):
        sweep(jobs, context, executor="ray")
    code, text = call("reproduce", "demixing", "--executor", "ray", "--device", "cpu", "--out", str(context.out))
    assert code == 2
    assert "error: ray is needed for the executor 'ray', and is not installed; install toa[ray]." in text
    assert not context.out.exists()


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://host:10001", "host:port", ":6379"])
def test_a_malformed_address_raises(jobs, context, address):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=message("address must read HOST:PORT, or auto, got", address, "ray start")):
        sweep(jobs, context, executor="ray", address=address)


def test_an_address_without_a_server_raises_at_once(jobs, context):
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begin = time.monotonic()
    with pytest.raises(ValueError, match=message("a running Ray", f"127.0.0.1:{port}", "refused", "ray start")):
        sweep(jobs, context, executor="ray", address=f"127.0.0.1:{port}")
    assert time.monotonic() - begin < 10
    assert not context.out.exists()


def test_an_address_that_never_answers_raises(jobs, context, monkeypatch):
    ray = pytest.importorskip("ray")
    hang = threading.Event()
    # it accepts the connection and never answers
    monkeypatch.setattr(ray, "init", lambda **_: hang.wait())
    monkeypatch.setattr(sweep_ray, "_ANSWER_S", 0.2)
    parts = ("address must be that of a running Ray", "127.0.0.1", "no answer within 0 s", "ray start")
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ValueError, match=message(*parts)):
        sweep(jobs, context, executor="ray", address=f"127.0.0.1:{server.getsockname()[1]}")
    hang.set()


def start(folder: Path, *numbers: int) -> "subprocess.Popen[str]":
    """Start a sweep with a private Ray in a separate process."""
    command = [sys.executable, "-m", "tests.experiments.sweep_ray_cases", str(folder), *map(str, numbers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def play(folder: Path, *numbers: int):
    process = start(folder, *numbers)
    out, err = process.communicate()
    assert process.returncode == 0, err
    # Ray reports dead workers on earlier lines
    return json.loads(out.splitlines()[-1])


def rays_under(pid: int) -> list[int]:
    """Return the processes of the Ray session of a process."""
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_twenty_dead_workers_of_ray_lose_and_repeat_no_finished_run(tmp_path):
    seen = play(tmp_path, 30, 60, 20)
    assert (seen["kills"], seen["rewritten"], seen["failures"], seen["held"]) == (20, 0, [], 0)
    assert seen["records"] == seen["files"] == 30


@pytest.mark.slow
def test_a_sweep_survives_the_loss_of_a_machine(tmp_path, monkeypatch):
    # the machines listen on the loopback interface
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    assert play(tmp_path, 12, 60) == {"records": 12, "failures": [], "lost": 1}


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_ray_process_and_the_next_resumes(tmp_path):
    chance = random.Random(0)
    known: dict[str, int] = {}

    def kill(process: "subprocess.Popen[str]") -> None:
        # at least one more run is finished
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
    # a worker may finish one more run before it sees the death
    assert seen["done"] <= 40 - len(known)
    assert known.items() <= stamps(tmp_path / "out").items()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_on_ray_saves_its_runs(tmp_path, number):
    process = start(tmp_path, 2, 5000, 0)
    log = tmp_path / "events.log"
    wait_until(lambda: log.exists() and log.read_text().count("step") >= 2)
    assert rays_under(process.pid)
    process.send_signal(number)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    jobs = make_jobs(tmp_path / "own.csv", 2, "training.epochs=5000")
    folders = [job.folder(tmp_path / "out") for job in jobs]
    # neither finished nor failed, and not held
    found = {path.name for folder in folders if folder.exists() for path in folder.iterdir()}
    assert found == {"checkpoint.safetensors"}
    assert read_outcome(jobs, tmp_path / "out").failures == {}
    wait_until(lambda: not rays_under(process.pid))
