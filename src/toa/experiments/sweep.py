"""A sweep runs a list of jobs: in this process, in worker processes, or on Ray (`sweep_ray`).

All state is in files: `record.json` of a finished run, `error.json` of a failed one, and a claim on each run in
progress. So a sweep can be stopped or killed at any moment and repeated, and several sweeps can share a results folder:
no finished run is lost, and none is repeated.
"""

import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from toa._checks import ArgumentError, check_at_least, check_choice
from toa._files import check_writable
from toa.experiments.claims import claimed
from toa.experiments.run import (
    ERROR,
    Job,
    Outcome,
    outcome,
    read_outcome,
    read_state,
    run_task,
    write_failure,
    write_plan,
)
from toa.training.distributed import resolve_device

EXECUTORS = ("process", "pool", "ray")
# a job whose worker has died this often is recorded as failed
MAX_DEATHS = 3
_POOL_WORKERS = 2
# seconds between two "step" events of a run, at least
_STEP_EVENT_S = 0.5

EventKind = Literal["found", "begin", "step", "done", "failed", "waiting", "died"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A change in the state of a job.

    Attributes:
        kind: "begin" and "step" of a run; "found" if it was finished before, "done", "failed"; "waiting" if another
            process runs the job; "died" if the worker died, which only the sweep itself sees.
        step, total: Finished steps and all steps, of a "step".
        message: The result, of "found" and "done"; the error, of "failed" and "died".
    """

    kind: EventKind
    key: str
    step: int = 0
    total: int = 0
    message: str = ""


Watcher = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """How the jobs of a sweep are run.

    Args:
        out: Folder of all results. Each task has a folder in it, and each run a folder in that.
        poll_s: Seconds between two checks of runs that other processes hold.
        retry_failed: Failures to retry: the time of each, by job key (`failure_times`). A later failure is kept.
    """

    out: Path
    data_dir: Path | None = None
    device: str = "auto"
    poll_s: float = 0.5
    retry_failed: Mapping[str, float] = field(default_factory=dict)


class BrokenDeviceError(OSError):
    """The device can no longer be used by this process."""


class Workers(Protocol):
    """Run up to `count` jobs at a time."""

    count: int

    def start(self, job: Job) -> None:
        """Begin a job."""

    def poll(self, watch: Watcher, timeout_s: float) -> None:
        """Pass on the events of started jobs; wait up to `timeout_s` for the first."""


def sweep(
    jobs: Iterable[Job],
    context: RunContext,
    *,
    executor: str = "process",
    workers: int | None = None,
    address: str | None = None,
    watch: Watcher | None = None,
) -> Outcome:
    """Run all jobs that have not ended, and wait for those that other processes run.

    Args:
        jobs: Jobs with the same key count once.
        executor: "process" runs one after another in this process, "pool" in worker processes on this machine, "ray"
            in workers of Ray, here or in a cluster.
        workers: Number of workers of a pool or of Ray; defaults to two, or one per device that Ray has.
        address: HOST:PORT of a running Ray, or "auto" for the one on this machine; None starts one.
        watch: Called with each event, in the thread of the caller.

    Raises:
        KeyboardInterrupt: After SIGINT or SIGTERM, when all runs in progress have saved a checkpoint.
        BrokenDeviceError: If a run in this process has left the device unusable.
    """
    check_executor(executor, workers=workers, address=address)
    unique = {job.key: job for job in jobs}
    # interruptible last: Ray sets its own signal handlers when it starts
    with _open_workers(executor, context, workers, address, len(unique)) as opened, interruptible():
        check_writable(context.out)
        # read by `toa watch`
        write_plan(unique.values(), context.out)
        _Sweep(unique, context, opened, watch or (lambda event: None)).run()
    return read_outcome(unique.values(), context.out, context.data_dir)


def default_workers(executor: str, workers: int | None) -> int:
    """Return the number of concurrent runs, as known before Ray starts."""
    return workers or (_POOL_WORKERS if executor == "pool" else 1)


def check_executor(executor: str, *, workers: int | None, address: str | None) -> None:
    """Raise ValueError for an unknown executor, or an option that the executor does not have."""
    check_choice("executor", executor, EXECUTORS)
    if workers is not None:
        check_at_least("workers", workers, 1)
    for name, value, allowed in (("workers", workers, ("pool", "ray")), ("address", address, ("ray",))):
        if value is not None and executor not in allowed:
            raise ArgumentError(name, f"be left out with the executor {executor!r}", value)


def _open_workers(
    executor: str, context: RunContext, workers: int | None, address: str | None, jobs: int
) -> AbstractContextManager[Workers]:
    if executor == "ray":
        from toa.experiments.sweep_ray import ray_workers

        return ray_workers(context, workers, address)
    # raises before a process starts
    resolve_device(context.device)
    if executor == "pool":
        return closing(_LocalWorkers(context, min(default_workers(executor, workers), max(1, jobs))))
    return nullcontext(_ThisProcess(context))


class _Sweep:
    """Jobs that wait, those in progress, and those that other processes run."""

    def __init__(self, jobs: Mapping[str, Job], context: RunContext, workers: Workers, watch: Watcher) -> None:
        self._jobs = jobs
        self._context = context
        self._workers = workers
        self._watch = watch
        self._queue = deque(jobs.values())
        self._running: set[str] = set()
        self._held: list[Job] = []
        self._deaths: Counter[str] = Counter()

    def run(self) -> None:
        """Run all jobs, until none is left."""
        while self._queue or self._running or self._held:
            self._start_jobs()
            if self._running:
                self._workers.poll(self._handle, self._context.poll_s)
            if self._held and not self._queue:
                time.sleep(self._context.poll_s)
                self._queue.extend(self._held)
                self._held.clear()

    def _start_jobs(self) -> None:
        """Start jobs until all workers are busy; one that has ended is only reported."""
        while self._queue and len(self._running) < self._workers.count:
            job = self._queue.popleft()
            if (event := find_end(job, self._context)) is not None:
                self._watch(event)
            else:
                self._running.add(job.key)
                self._workers.start(job)

    def _handle(self, event: Event) -> None:
        # progress can arrive after the end
        if event.key not in self._running:
            return
        if event.kind not in ("begin", "step"):
            self._running.remove(event.key)
        if event.kind == "waiting":
            self._held.append(self._jobs[event.key])
        if event.kind == "died":
            self._retry(event)
        else:
            self._watch(event)

    def _retry(self, event: Event) -> None:
        """Queue a job again whose worker died; after several deaths it is recorded as failed."""
        job = self._jobs[event.key]
        self._queue.append(job)
        self._deaths[event.key] += 1
        if self._deaths[event.key] >= MAX_DEATHS:
            with claimed(job.folder(self._context.out)) as mine:
                if mine and find_end(job, self._context) is None:
                    message = f"its worker died {MAX_DEATHS} times, the last time with: {event.message}"
                    write_failure(job, self._context.out, message)


def run_job(job: Job, context: RunContext, watch: Watcher) -> Event:
    """Run a job, unless it has ended or another process runs it.

    Returns:
        How it ended: "found", "done", "failed" or "waiting".

    Raises:
        BrokenDeviceError: If the run failed and left the device unusable.
    """
    with claimed(job.folder(context.out)) as mine:
        if not mine:
            return Event(kind="waiting", key=job.key)
        # another process may have finished it before the claim
        return find_end(job, context) or _execute(job, context, watch)


def find_end(job: Job, context: RunContext) -> Event | None:
    """Return the end of a job that needs no run; None if it is to be run."""
    record, error = read_state(job, context.out, context.data_dir)
    if record is not None:
        return Event(kind="found", key=job.key, message=outcome(record))
    if error is None or context.retry_failed.get(job.key) == error["time"]:
        return None
    return Event(kind="failed", key=job.key, message=error["error"])


def _execute(job: Job, context: RunContext, watch: Watcher) -> Event:
    (job.folder(context.out) / ERROR).unlink(missing_ok=True)
    watch(Event(kind="begin", key=job.key))
    device = resolve_device(context.device)
    last = 0.0

    def observe(done: int, total: int, loss: float, validation: float | None) -> None:
        nonlocal last
        # steps can be short, and events go to other processes
        if time.monotonic() - last >= _STEP_EVENT_S:
            last = time.monotonic()
            watch(Event(kind="step", key=job.key, step=done, total=total))

    try:
        record = run_task(
            job.config,
            context.out / job.task,
            data_dir=context.data_dir,
            device=context.device,
            command=job.command,
            observe=observe,
        )
        event = Event(kind="done", key=job.key, message=outcome(record))
    # any error of one run must not stop the others
    except Exception as error:
        event = Event(kind="failed", key=job.key, message=f"{type(error).__name__}: {error}")
        write_failure(job, context.out, event.message, traceback.format_exc())
        if device.type == "cuda":
            try:
                torch.cuda.synchronize(device)
                torch.cuda.empty_cache()
            except RuntimeError:
                raise BrokenDeviceError(
                    f"{device} must still work after {job.label}, got: {error}; the run is recorded as failed; repeat "
                    "the command for the other runs."
                ) from error
    if device.type == "cuda":
        # models are part of reference cycles, and hold device memory until these are collected
        gc.collect()
    return event


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM too. Training handles both signals itself, to save a checkpoint."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class _ThisProcess:
    """Runs each job in this process."""

    count = 1

    def __init__(self, context: RunContext) -> None:
        self._context = context

    def start(self, job: Job) -> None:
        self._job = job

    def poll(self, watch: Watcher, timeout_s: float) -> None:
        watch(run_job(self._job, self._context, watch))


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: "connection.Connection[Any, Any]"
    ready: bool = False


class _LocalWorkers:
    """Worker processes on this machine, each with a pipe that takes jobs and returns events.

    The process pools of the standard library and of joblib stop all workers when one dies, and do not report which job
    was the cause.
    """

    def __init__(self, context: RunContext, count: int) -> None:
        self.count = count
        self._context = context
        self._idle: list[_Worker] = []
        self._busy: dict[str, _Worker] = {}
        self._started = 0

    def start(self, job: Job) -> None:
        worker = self._idle.pop() if self._idle else self._start_worker()
        self._busy[job.key] = worker
        # if the worker is dead, `poll` sees its end
        with suppress(OSError):
            worker.pipe.send(job)

    def poll(self, watch: Watcher, timeout_s: float) -> None:
        pipes = {worker.pipe: (key, worker) for key, worker in self._busy.items()}
        for pipe in connection.wait(pipes, timeout_s):
            key, worker = pipes[pipe]  # type: ignore[index]
            try:
                event = worker.pipe.recv()
            except (EOFError, OSError):
                event = self._bury(worker, key)
            if event is None:
                worker.ready = True
                continue
            if event.kind not in ("begin", "step"):
                del self._busy[key]
                if event.kind != "died":
                    self._idle.append(worker)
            watch(event)

    def close(self) -> None:
        """Stop all workers; wait until runs in progress have saved a checkpoint."""
        for worker in self._busy.values():
            worker.process.terminate()
        for worker in self._idle:
            worker.pipe.close()
        for worker in (*self._idle, *self._busy.values()):
            worker.process.join()
            worker.pipe.close()

    def _start_worker(self) -> _Worker:
        device = spread(self._context.device, self._started, torch.cuda.device_count())
        threads = max(1, (os.cpu_count() or 1) // self.count)
        self._started += 1
        # a forked process could not use CUDA
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(theirs, replace(self._context, device=device), threads))
        # Ctrl-C must reach only the parent, which then stops its workers
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, previous)
        theirs.close()
        return _Worker(process, ours)

    def _bury(self, worker: _Worker, key: str) -> Event:
        worker.process.join()
        worker.pipe.close()
        code = worker.process.exitcode or 0
        if not worker.ready and code > 0:
            # not killed: the next one would fail in the same way
            raise ArgumentError("a worker process", "start", f"exit code {code}", "see its error above")
        return Event(kind="died", key=key, message=f"exit code {code}")


def spread(device: str, number: int, count: int) -> str:
    """Return the device of a worker: workers take turns on `count` CUDA devices unless one is named."""
    if device == "cpu" or ":" in device or count < 2:
        return device
    return f"cuda:{number % count}"


def _serve(pipe: "connection.Connection[Any, Any]", context: RunContext, threads: int) -> None:
    """Run jobs from a pipe in a worker process until the pipe is closed."""
    # training handles SIGINT again, so leave the session in which Ctrl-C sends it
    os.setsid()
    torch.set_num_threads(threads)
    try:
        with interruptible():
            pipe.send(None)
            while True:
                pipe.send(run_job(pipe.recv(), context, partial(_send, pipe)))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt, BrokenDeviceError):
        # after BrokenDeviceError a new process takes over
        sys.exit(1)


def _send(pipe: "connection.Connection[Any, Any]", event: Event) -> None:
    try:
        pipe.send(event)
    except OSError:
        # the parent is dead: stop as on its request, so that training saves a checkpoint
        signal.raise_signal(signal.SIGTERM)
