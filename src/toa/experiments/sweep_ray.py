"""Workers of a sweep on Ray, on this machine or in a cluster; needs the extra `toa[ray]`.

Without an address, a private Ray is started that listens on the loopback interface only. Results come back through the
results folder, which all machines must share.
"""

import math
import os
import platform
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

import toa
from toa._checks import Argument, ArgumentError, Phrase
from toa._files import check_writable
from toa.experiments.run import Job
from toa.experiments.sweep import BrokenDeviceError, Event, RunContext, Watcher, interruptible, run_job

# seconds until Ray must answer, and until stopped runs must have saved a checkpoint
_ANSWER_S = 30.0
_STOP_S = 60.0
# bytes of shared memory of a private Ray, which passes only short messages
_STORE = 100 * 2**20
# settings that workers on other machines need
_ENVIRONMENT = ("TOA_DATA", "TOA_BACKEND")


@contextmanager
def ray_workers(context: RunContext, workers: int | None, address: str | None) -> Iterator["_RayWorkers"]:
    """Open the workers of Ray; arguments are those of `sweep`. Runs share a GPU if there are more workers than GPUs."""
    if context.device not in ("auto", "cpu", "cuda"):
        raise ArgumentError("device", "be auto, cpu or cuda with Ray, which selects one", repr(context.device))
    cores = os.cpu_count() or 1
    if address is None and workers is None:
        workers = (torch.cuda.device_count() if context.device != "cpu" else 0) or cores
    with connected(address, workers) as ray:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        share = share_out(machines, context.device, workers)
        # a private Ray is started with one core per worker
        threads = max(1, int(share.cpus) if address is not None else cores // share.workers)
        check_writable(context.out)
        # workers check that they see this file
        with tempfile.NamedTemporaryFile(dir=context.out, prefix=".", suffix=".shared") as marker:
            settings = {
                "threads": threads,
                "marker": str(Path(marker.name).absolute()),
                "folder": os.getcwd(),
                "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                "version": toa.__version__,
            }
            data_dir = None if context.data_dir is None else context.data_dir.absolute()
            shared = replace(context, out=context.out.absolute(), data_dir=data_dir, device=share.device)
            with closing(_RayWorkers(ray, share, shared, settings)) as workers_of_ray:
                yield workers_of_ray


class Share(NamedTuple):
    """Number of workers, their device ("cpu" or "cuda"), and the cores and GPUs per worker; fractions are shared."""

    workers: int
    device: str
    cpus: float
    gpus: float


def share_out(machines: Sequence[Mapping[str, float]], device: str, workers: int | None) -> Share:
    """Divide the cores and GPUs of a cluster among workers.

    Args:
        machines: Resources of each machine, as Ray reports them.
        workers: Number of workers; defaults to one per GPU, or one per core without GPUs.
    """
    cores = [machine.get("CPU", 0.0) for machine in machines]
    gpus = sum(machine.get("GPU", 0.0) for machine in machines)
    if device == "cuda" and not gpus:
        remedy = Phrase("use ", Argument("device", "cpu"))
        raise ArgumentError("device 'cuda'", "be in Ray's cluster", "one without GPUs", remedy)
    on_gpus = bool(gpus) and device != "cpu"
    count = int(max(1.0, gpus if on_gpus else sum(cores))) if workers is None else workers
    cpus = sum(cores) / count
    return Share(
        workers=count,
        device="cuda" if on_gpus else "cpu",
        # a worker cannot use more cores than one machine has
        cpus=min(max(cores), math.floor(cpus)) if cpus >= 1.0 else cpus,
        # the GPU with the most workers sets the share
        gpus=1.0 / math.ceil(count / gpus) if on_gpus else 0.0,
    )


@contextmanager
def connected(address: str | None, workers: int | None, *, answer_s: float = _ANSWER_S) -> Iterator[Any]:
    """Connect to a cluster that answers within `answer_s`, or start a private Ray; yields the module `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        # read at import: Ray's servers then bind to the loopback interface
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError("ray is needed for the executor 'ray', and is not installed; install toa[ray].") from error
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": _STORE}
        ray.init(address="local", num_cpus=workers, **options)
    else:
        _connect(ray, address, options, answer_s)
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str, options: Mapping[str, Any], answer_s: float) -> None:
    """Connect to a running Ray within `answer_s`; `ray.init` alone would retry for minutes."""
    problems: list[object] = [f"no answer within {answer_s:.0f} s"]

    def attempt() -> None:
        try:
            if address != "auto":
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), timeout=answer_s).close()
            ray.init(address=address, **options)
            problems.clear()
        except BaseException as error:
            problems[:] = [error]

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(answer_s)
    if problems:
        reason = " ".join(str(problems[0]).split())
        raise ArgumentError(
            "address",
            "be HOST:PORT of a running Ray, or auto",
            f"{address!r} ({reason})",
            "start one with `ray start --head`",
            Phrase("leave ", Argument("address"), " out"),
        )


class _Mailbox:
    """Collects the events of all workers for the sweep."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def put(self, event: Event) -> None:
        self._events.append(event)

    def take(self) -> list[Event]:
        events = self._events
        self._events = []
        return events


class _RayWorkers:
    """One Ray task per job."""

    def __init__(self, ray: Any, share: Share, context: RunContext, settings: Mapping[str, Any]) -> None:
        self.count = share.workers
        self._ray = ray
        self._context = context
        self._settings = settings
        # it only waits, and so takes no share of the cores
        self._mailbox = ray.remote(num_cpus=0, max_restarts=-1)(_Mailbox).remote()
        # the sweep itself repeats a task whose worker died; max_calls=0 keeps a worker for the next job
        self._run = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, max_retries=0, max_calls=0)(run_remote)
        self._tasks: dict[str, Any] = {}

    def start(self, job: Job) -> None:
        retry = {key: when for key, when in self._context.retry_failed.items() if key == job.key}
        context = asdict(replace(self._context, retry_failed=retry))
        self._tasks[job.key] = self._run.remote(self._settings, context, job.to_json(), self._mailbox)

    def poll(self, watch: Watcher, timeout_s: float) -> None:
        from ray.exceptions import RayError

        tasks = list(self._tasks.values())
        self._ray.wait(tasks, num_returns=1, timeout=timeout_s)
        ready, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        # Ray restarts a mailbox that died; progress is lost then, but no result
        with suppress(RayError):
            for event in self._ray.get(self._mailbox.take.remote(), timeout=_ANSWER_S):
                watch(event)
        for key in [key for key, task in self._tasks.items() if task in ready]:
            watch(self._result(key))

    def close(self) -> None:
        """Stop all tasks; wait until runs in progress have saved a checkpoint."""
        tasks = list(self._tasks.values())
        for task in tasks:
            self._ray.cancel(task)
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=_STOP_S)

    def _result(self, key: str) -> Event:
        from ray.exceptions import RayError, RayTaskError

        try:
            event: Event = self._ray.get(self._tasks.pop(key))
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise ArgumentError("a worker of Ray", "be able to run jobs", f"an error: {cause}") from None
        except RayError as error:
            return Event(kind="died", key=key, message=" ".join(str(error).split()))
        return event


def run_remote(settings: Mapping[str, Any], context: Mapping[str, Any], job: str, mailbox: Any) -> Event:
    """Run a job in a worker of Ray.

    Arguments are plain values, so that the versions are compared before anything else is read.
    """
    here = platform.node()
    if settings["version"] != toa.__version__:
        raise ArgumentError(
            "toa", f"be {settings['version']} on every machine", f"{toa.__version__} on {here}", "install the same"
        )
    if not os.path.exists(settings["marker"]):
        raise ArgumentError(
            Path(context["out"]),
            "be a folder that every machine shares",
            f"a different one on {here}",
            "choose another folder",
        )
    os.environ.update(settings["environment"])
    # paths of data files may be relative; a machine without the folder reports the missing files
    with suppress(OSError):
        os.chdir(settings["folder"])
    torch.set_num_threads(settings["threads"])
    try:
        with interruptible():
            return run_job(Job.from_json(job), RunContext(**context), mailbox.put.remote)
    except BrokenDeviceError:
        # the failure is recorded; the next job needs a new process
        os._exit(1)
