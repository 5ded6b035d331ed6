"""Workers of a sweep on this machine: processes that take jobs from a pipe and send events back."""

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from toa.experiments.run import Job
from toa.experiments.sweep import BrokenDeviceError, Event, RunContext, Watcher, interruptible, run_job


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: "connection.Connection[Any, Any]"
    ready: bool = False


class LocalWorkers:
    """Worker processes on this machine, each with a pipe that takes jobs and returns events.

    The process pools of the standard library and of joblib stop all workers when one dies, and do not report which job
    was the cause.
    """

    def __init__(self, context: RunContext, count: int) -> None:
        self.count, self._context = count, context
        self._idle: list[_Worker] = []
        self._busy: dict[str, _Worker] = {}
        self._started = 0

    def start(self, job: Job) -> None:
        """Give a job to an idle worker, or to a new one."""
        worker = self._idle.pop() if self._idle else self._start_worker()
        self._busy[job.key] = worker
        # if the worker is dead, `poll` sees its end
        with suppress(OSError):
            worker.pipe.send(job)

    def poll(self, watch: Watcher, timeout_s: float) -> None:
        """Pass on the events of busy workers."""
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
        process.start()
        signal.signal(signal.SIGINT, previous)
        theirs.close()
        return _Worker(process, ours)

    def _bury(self, worker: _Worker, key: str) -> Event:
        worker.process.join()
        worker.pipe.close()
        code = worker.process.exitcode or 0
        if not worker.ready and code > 0:
            # not killed: the next one would fail in the same way
            raise ValueError(f"a worker process must start, got exit code {code}; see its error above.")
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
