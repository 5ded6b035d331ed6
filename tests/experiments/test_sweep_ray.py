import socket
import sys
import threading
from dataclasses import asdict

import pytest

import toa
from tests.experiments.sweep_cases import make_jobs, write_series
from tests.support import message
from toa.experiments import sweep_ray
from toa.experiments.run import read_outcome
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
        ({"marker": "nowhere"}, ("out must be a folder that every machine shares", "choose another folder")),
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


# resources of a machine without GPU
MACHINE = {"CPU": 4.0}
# resources of a machine with two GPUs
SERVER = {"CPU": 8.0, "GPU": 2.0}


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
    with pytest.raises(ValueError, match=message("device 'cuda' must be in Ray's cluster", "use device='cpu'")):
        share_out([MACHINE], "cuda", None)


def test_a_numbered_device_raises_with_ray(jobs, context):
    with pytest.raises(ValueError, match=message("device must be auto, cpu or cuda with Ray", "got 'cuda:1'")):
        sweep(jobs, RunContext(out=context.out, device="cuda:1"), executor="ray")


def test_without_ray_the_error_names_the_extra(jobs, context, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=message("ray is needed for the executor 'ray'", "install toa[ray]")):
        sweep(jobs, context, executor="ray")
    assert not context.out.exists()


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://host:10001", "host:port", ":6379"])
def test_a_malformed_address_raises(jobs, context, address):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=message("HOST:PORT of a running Ray, or auto, got", address, "ray start")):
        sweep(jobs, context, executor="ray", address=address)


def test_an_address_without_a_server_raises_before_ray_starts(jobs, context, monkeypatch):
    ray = pytest.importorskip("ray")
    starts: list[object] = []
    monkeypatch.setattr(ray, "init", lambda **options: starts.append(options))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ValueError, match=message("a running Ray", f"127.0.0.1:{port}", "refused", "ray start")):
        sweep(jobs, context, executor="ray", address=f"127.0.0.1:{port}")
    # Ray itself would retry for minutes
    assert starts == []
    assert not context.out.exists()


def test_an_address_that_never_answers_raises(monkeypatch):
    ray = pytest.importorskip("ray")
    hang = threading.Event()
    # it accepts the connection and never answers
    monkeypatch.setattr(ray, "init", lambda **_: hang.wait())
    parts = ("a running Ray", "127.0.0.1", "no answer within 0 s", "ray start")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match=message(*parts)), sweep_ray.connected(address, None, answer_s=0.2):
            raise AssertionError("connected")
    hang.set()
