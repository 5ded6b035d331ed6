"""Workers by Ray, on this machine or in a cluster; it needs the extra `toa[ray]`.

Without an address a Ray of its own is started and ended, which listens on the loopback interface alone. Jobs travel as
lines of JSON, and results through the shared folder of records.
"""

import math
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from toa._checks import check_at_least
from toa.experiments.dispatch import WorkerDiedError, dispatch, work
from toa.experiments.pool import MOST_DEATHS
from toa.experiments.run import Job
from toa.experiments.runner import Outcome, Place, Watcher

# seconds in which a Ray has to answer, and jobs have to stop
_ANSWER_S = 30.0
_STOP_S = 60.0
# bytes of shared memory for a Ray of our own: lines of JSON need little
_STORE = 100 * 2**20


def run_ray(
    jobs: Iterable[Job],
    place: Place,
    *,
    workers: int | None = None,
    address: str | None = None,
    forgive: Mapping[str, float] | None = None,
    watch: Watcher | None = None,
) -> Outcome:
    """Run jobs as tasks of Ray; arguments and errors are those of `run_jobs`.

    Args:
        jobs: What to run.
        place: Where. Ray chooses the CUDA device; several runs share one if there are more workers than devices.
        workers: How many run at a time; as many as Ray has GPUs, or CPU cores if None.
        address: HOST:PORT of a running Ray, or "auto" for the one of this machine; None starts one.
        forgive: Failures that are tried again.
        watch: Told of everything that happens, in the thread of the caller.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If the address does not answer, or Ray has not got the device.
    """
    if workers is not None:
        check_at_least("workers", workers, 1)
    if place.device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda with Ray, which chooses one, got {place.device!r}.")
    cores = os.cpu_count() or 1
    if address is None and workers is None:
        workers = (torch.cuda.device_count() if place.device != "cpu" else 0) or cores
    with _connected(address, workers) as ray:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        share = share_out(machines, place.device, workers)
        return dispatch(
            jobs,
            replace(place, device=share.device),
            _RayCrew(ray, share),
            at_once=share.workers,
            # a Ray of our own is told of one core a worker
            threads=max(1, int(share.cpus) if address is not None else cores // share.workers),
            forgive=forgive,
            watch=watch,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What each of so many workers gets of a cluster.

    Args:
        workers: How many run at a time.
        device: "cpu" or "cuda".
        cpus: Cores of a worker; less than one where several share one.
        gpus: GPUs of a worker, likewise.
    """

    workers: int
    device: str
    cpus: float
    gpus: float


def share_out(machines: Sequence[Mapping[str, float]], device: str, workers: int | None) -> Share:
    """Deal out the cores and GPUs of a cluster.

    Args:
        machines: What each of its machines has, by Ray's names.
        device: "auto", "cpu" or "cuda".
        workers: How many share; None is one a GPU, or one a core.

    Raises:
        ValueError: If the cluster has not got the device.
    """
    each = [machine.get("CPU", 0.0) for machine in machines]
    cores, cards = sum(each), sum(machine.get("GPU", 0.0) for machine in machines)
    if device == "cuda" and not cards:
        raise ValueError("device 'cuda' must be in Ray's cluster, got one without GPUs; use --device cpu.")
    on_cards = bool(cards) and device != "cpu"
    count = int(max(1.0, cards if on_cards else cores)) if workers is None else workers
    cpus = cores / count
    return Share(
        workers=count,
        device="cuda" if on_cards else "cpu",
        # nobody can have more than a machine has
        cpus=min(max(each), math.floor(cpus)) if cpus >= 1.0 else cpus,
        # as many on each as on the fullest
        gpus=1.0 / math.ceil(count / cards) if on_cards else 0.0,
    )


@contextmanager
def _connected(address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, connected for a while: to a cluster, or to one of our own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        # read when Ray is imported: its servers then bind to the loopback interface
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError("ray is needed for the executor 'ray', and is not installed; install toa[ray].") from error
    if ray.is_initialized():
        # a program that uses Ray itself keeps its own
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            object_store_memory=_STORE,
            **quiet,
        )
    else:
        _reach(address)
        _within(_ANSWER_S, partial(ray.init, address=address, **quiet), address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Refuse an address at which nobody listens; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ValueError(
            f"address must read HOST:PORT, or auto, got {address!r}; use the one that `ray start --head` names, from a "
            "machine of the cluster."
        )
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        raise _no_answer(address, error) from None


def _within(seconds: float, connect: Any, address: str) -> None:
    """Connect, or refuse an address that does not answer in time."""
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            connect()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _no_answer(address, f"none within {seconds:.0f} s")
    if failed:
        raise _no_answer(address, failed[0])


def _no_answer(address: str, why: object) -> ValueError:
    said = " ".join(str(why).split())
    return ValueError(
        f"address must be that of a Ray that answers, got {address!r} ({said}); start one by `ray start --head`, or "
        "leave --address out."
    )


class _Mailbox:
    """Lines on their way from workers to the dispatcher."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def put(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines


def _work(orders: str, job: str, mailbox: Any) -> str | None:
    return work(orders, job, mailbox.put.remote)


class _RayCrew:
    """A crew of Ray's workers."""

    def __init__(self, ray: Any, share: Share) -> None:
        self._ray = ray
        # no resources of its own: it only waits
        self._mailbox = ray.remote(num_cpus=0, max_restarts=-1)(_Mailbox).remote()
        # Ray itself hands a task to another worker when its own dies; workers are kept for the next job
        self._work = ray.remote(
            num_cpus=share.cpus, num_gpus=share.gpus, max_retries=MOST_DEATHS - 1, retry_exceptions=False, max_calls=0
        )(_work)
        self._tasks: dict[int, Any] = {}
        self._tickets = 0

    def begin(self, orders: str, job: str) -> int:
        self._tickets += 1
        self._tasks[self._tickets] = self._work.remote(orders, job, self._mailbox)
        return self._tickets

    def ended(self, timeout_s: float) -> list[int]:
        tasks = list(self._tasks.values())
        ready, _ = self._ray.wait(tasks, num_returns=1, timeout=timeout_s)
        if ready:
            # and all others that have ended by now
            ready, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        found = set(ready)
        return [ticket for ticket, task in self._tasks.items() if task in found]

    def result(self, ticket: int) -> str | None:
        from ray.exceptions import RayError, RayTaskError

        try:
            line: str | None = self._ray.get(self._tasks.pop(ticket))
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise ValueError(f"a worker of Ray must be able to carry out runs, got: {cause}") from None
        except RayError as error:
            raise WorkerDiedError(" ".join(str(error).split())) from None
        return line

    def news(self) -> list[str]:
        from ray.exceptions import RayError

        # a mailbox that died is made anew; progress is lost, no result
        with suppress(RayError):
            lines: list[str] = self._ray.get(self._mailbox.take.remote(), timeout=_ANSWER_S)
            return lines
        return []

    def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            self._ray.cancel(task)
        self._ray.wait(tasks, num_returns=len(tasks), timeout=_STOP_S)
