import platform
import socket
import sys
import threading
import time

import pytest

from tests.cli.test_app import call
from tests.experiments.runner_cases import make_jobs, write_series
from tests.support import message
from toa.experiments import dispatch as dispatch_module
from toa.experiments import ray_crew
from toa.experiments.claims import claimed
from toa.experiments.dispatch import WorkerDiedError, dispatch, work
from toa.experiments.executors import EXECUTORS, at_once, execute
from toa.experiments.ray_crew import Share, run_ray, share_out
from toa.experiments.runner import BrokenDeviceError, Event, Place


class Inline:
    """A crew that does the work when it is handed out; what it shall do instead is a list."""

    def __init__(self, *instead: Exception | None) -> None:
        self.instead = list(instead)
        self.results: dict[int, str | Exception | None] = {}
        self.lines: list[str] = []
        self.begun = 0
        self.most = 0
        self.stopped: list[int] = []

    def begin(self, orders: str, job: str) -> int:
        self.begun += 1
        error = self.instead.pop(0) if self.instead else None
        self.results[self.begun] = work(orders, job, self.lines.append) if error is None else error
        self.most = max(self.most, len(self.results))
        return self.begun

    def ended(self, timeout_s: float) -> list[int]:
        return list(self.results)

    def result(self, ticket: int) -> str | None:
        found = self.results.pop(ticket)
        if isinstance(found, Exception):
            raise found
        return found

    def news(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def stop(self) -> None:
        self.stopped = list(self.results)


@pytest.fixture
def jobs(tmp_path):
    return make_jobs(write_series(tmp_path), 5, "training.epochs=1")


@pytest.fixture
def place(tmp_path):
    return Place(out=tmp_path / "out", device="cpu", poll_s=0.01)


def hand_out(jobs, place, crew, watch=None, **options):
    return dispatch(jobs, place, crew, at_once=2, threads=1, watch=watch, **options)


def test_a_crew_ends_as_this_process_does(jobs, place, tmp_path):
    broken = make_jobs(tmp_path / "nowhere.csv", 1)[0]
    kinds: list[str] = []
    crew = Inline()
    # left by one that was killed
    place.out.mkdir()
    (place.out / f".{platform.node()}-999999999.shared").touch()
    ended = hand_out([*jobs, broken, jobs[0]], place, crew, lambda event: kinds.append(event.kind))
    alone = execute("process", [*jobs, broken], Place(out=tmp_path / "alone", device="cpu"))
    assert ended.failures == alone.failures
    assert {key: record["metrics"] for key, record in ended.records.items()} == {
        key: record["metrics"] for key, record in alone.records.items()
    }
    assert [kinds.count(kind) for kind in ("begin", "done", "failed")] == [6, 5, 1]
    assert (crew.begun, crew.most) == (6, 2)
    # only the runs are left
    assert [path.name for path in place.out.iterdir()] == ["forecast"]


def test_a_run_that_another_process_has_is_waited_for(jobs, place):
    events: list[tuple[str, str]] = []
    taken, free = jobs[:2]
    release = claimed(taken.folder(place.out))
    assert release.__enter__()

    def watch(event: Event) -> None:
        events.append((event.kind, event.key))
        if events.count(("waiting", taken.key)) == 2:
            release.__exit__(None, None, None)

    ended = hand_out([taken, free], place, Inline(), watch)
    assert set(ended.records) == {taken.key, free.key}
    assert events.index(("done", free.key)) < events.index(("done", taken.key))


def test_a_run_whose_workers_die_is_given_up_and_the_rest_go_on(jobs, place):
    ended = hand_out(jobs, place, Inline(None, WorkerDiedError("SIGKILL, or out of memory")))
    assert len(ended.records) == 4
    assert ended.failures == {jobs[1].key: "its worker died 3 times, the last time with: SIGKILL, or out of memory"}
    # written as any failure is
    assert execute("process", jobs[1:2], place).failures == ended.failures


def test_a_stopped_dispatcher_stops_its_crew(jobs, place):
    crew = Inline()

    def watch(event: Event) -> None:
        raise KeyboardInterrupt("stopped")

    with pytest.raises(KeyboardInterrupt):
        hand_out(jobs, place, crew, watch)
    assert crew.stopped
    assert not list(place.out.glob(".*"))


def test_a_machine_that_cannot_do_what_ours_can_says_so(jobs, place, monkeypatch):
    seen: list[str] = []

    class Elsewhere(Inline):
        def begin(self, orders: str, job: str) -> int:
            seen.append(orders)
            return super().begin(orders, job)

    hand_out(jobs[:1], place, Elsewhere())
    with pytest.raises(ValueError, match=message("out must be a folder that every machine shares", "--out")):
        work(seen[0], jobs[0].to_json(), lambda line: None)
    monkeypatch.setattr("toa.__version__", "0.0.0")
    with pytest.raises(ValueError, match=message("toa must be", "on every machine, got 0.0.0")):
        work(seen[0], jobs[0].to_json(), lambda line: None)


def test_a_worker_with_a_broken_device_leaves(jobs, place, monkeypatch):
    def broken(*_, **__):
        raise BrokenDeviceError("cuda must still work")

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(dispatch_module, "run_jobs", broken)
    monkeypatch.setattr("os._exit", leave)
    with pytest.raises(SystemExit):
        hand_out(jobs[:1], place, Inline())


MACHINE, SERVER = {"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("machines", "device", "workers", "share"),
    [
        ([MACHINE], "auto", None, Share(workers=4, device="cpu", cpus=1, gpus=0.0)),
        ([MACHINE], "cpu", 8, Share(workers=8, device="cpu", cpus=0.5, gpus=0.0)),
        # twelve cores, but no machine has more than eight
        ([MACHINE, SERVER], "cpu", 1, Share(workers=1, device="cpu", cpus=8, gpus=0.0)),
        ([SERVER], "auto", None, Share(workers=2, device="cuda", cpus=4, gpus=1.0)),
        # small runs share a GPU: three on the fuller one
        ([SERVER], "cuda", 5, Share(workers=5, device="cuda", cpus=1, gpus=1 / 3)),
        ([SERVER, SERVER], "cuda", 8, Share(workers=8, device="cuda", cpus=2, gpus=0.5)),
        ([SERVER], "cuda", 1, Share(workers=1, device="cuda", cpus=8, gpus=1.0)),
    ],
)
def test_cores_and_gpus_are_dealt_out(machines, device, workers, share):
    assert share_out(machines, device, workers) == share


def test_a_cluster_without_the_device_is_refused():
    with pytest.raises(ValueError, match=message("device 'cuda' must be in Ray's cluster", "--device cpu")):
        share_out([MACHINE], "cuda", None)


def test_a_numbered_device_is_refused_by_ray(jobs, place):
    with pytest.raises(ValueError, match=message("device must be auto, cpu or cuda with Ray", "got 'cuda:1'")):
        run_ray(jobs, Place(out=place.out, device="cuda:1"))


def test_executors_have_names_and_workers():
    assert EXECUTORS == ("process", "pool", "ray")
    assert [at_once("process", None), at_once("pool", None), at_once("ray", None), at_once("pool", 5)] == [1, 2, 1, 5]


def test_without_ray_the_extra_is_named(jobs, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=message("ray is needed for the executor 'ray'", "install toa[ray]")):
        execute("ray", jobs, place)
    code, text = call("reproduce", "demixing", "--executor", "ray", "--device", "cpu", "--out", str(place.out))
    assert code == 2
    assert "error: ray is needed for the executor 'ray', and is not installed; install toa[ray]." in text
    assert not place.out.exists()


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://host:10001", "host:port", ":6379"])
def test_an_address_that_is_none_is_refused(jobs, place, address):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=message("address must read HOST:PORT, or auto, got", address, "ray start")):
        run_ray(jobs, place, address=address)


def test_an_address_where_nobody_listens_is_named_at_once(jobs, place):
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begin = time.monotonic()
    with pytest.raises(ValueError, match=message("a Ray that answers", f"127.0.0.1:{port}", "refused", "ray start")):
        run_ray(jobs, place, address=f"127.0.0.1:{port}")
    assert time.monotonic() - begin < 10
    assert not place.out.exists()


def test_an_address_that_never_answers_is_given_up(jobs, place, monkeypatch):
    ray = pytest.importorskip("ray")
    hang = threading.Event()
    # it takes the connection and says nothing
    monkeypatch.setattr(ray, "init", lambda **_: hang.wait())
    monkeypatch.setattr(ray_crew, "_ANSWER_S", 0.2)
    parts = ("a Ray that answers", "127.0.0.1", "none within 0 s", "ray start")
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ValueError, match=message(*parts)):
        run_ray(jobs, place, address=f"127.0.0.1:{server.getsockname()[1]}")
    hang.set()
