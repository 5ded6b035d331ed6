"""A pool of worker processes on one machine that share a results folder, as any processes may.

Each worker goes through the whole list and takes what nobody has; what a worker leaves behind when it dies, another
takes over. Jobs go to a worker as JSON lines on its stdin, and events come back as JSON lines on its stdout.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO

import torch

from toa._checks import check_at_least
from toa.experiments.run import Job
from toa.experiments.runner import (
    BrokenDeviceError,
    Event,
    Outcome,
    Place,
    Watcher,
    give_up,
    read_outcome,
    run_jobs,
    terminable,
)
from toa.tasks.device import resolve_device

# a job whose worker dies so often is recorded as failed
MOST_DEATHS = 3
# seconds between two events of progress that a worker sends
_EVERY = 0.5
# exit code of a worker that needs a successor
_BROKEN_DEVICE = 75


def run_pool(
    jobs: Iterable[Job],
    place: Place,
    *,
    workers: int,
    forgive: Mapping[str, float] | None = None,
    watch: Watcher | None = None,
) -> Outcome:
    """Run jobs in so many worker processes; arguments and errors are those of `run_jobs`.

    Args:
        jobs: What to run.
        place: Where; all workers share the device, or all CUDA devices if it is "cuda" or "auto" and there are several.
        workers: How many run at a time.
        forgive: Failures that are tried again.
        watch: Told of everything that happens, in the thread of the caller.
    """
    check_at_least("workers", workers, 1)
    # a wrong device is found here, before a process starts
    resolve_device(place.device)
    unique = {job.key: job for job in jobs}
    pool = _Pool(jobs=unique, place=place, forgive=forgive or {}, watch=watch or (lambda event: None))
    pool.go(min(workers, max(1, len(unique))))
    return read_outcome(unique.values(), place.out)


@dataclass(kw_only=True)
class _Pool:
    """One call of `run_pool`."""

    jobs: dict[str, Job]
    place: Place
    forgive: Mapping[str, float]
    watch: Watcher
    messages: "queue.SimpleQueue[tuple[int, str | None]]" = field(default_factory=queue.SimpleQueue)
    workers: dict[int, "subprocess.Popen[str]"] = field(default_factory=dict)
    # what each worker has under way, and how often a job's worker has died
    running: dict[int, str] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    started: int = 0

    def go(self, count: int) -> None:
        """Start the workers and see them to their end."""
        self.threads = max(1, (os.cpu_count() or 1) // count)
        with terminable():
            try:
                for _ in range(count):
                    self._start()
                while self.workers:
                    number, line = self.messages.get()
                    if line is None:
                        self._ended(number)
                    else:
                        self._happened(number, Event.from_json(line))
            finally:
                self._stop()

    def _start(self) -> None:
        number, self.started = self.started, self.started + 1
        worker = subprocess.Popen(
            [sys.executable, "-m", "toa.experiments.pool"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # ctrl-C in a terminal goes to the whole group: workers hear of it from here
            start_new_session=True,
        )
        self.workers[number] = worker
        assert worker.stdin is not None
        assert worker.stdout is not None
        head = {"forgive": self.forgive, "threads": self.threads, "jobs": len(self.jobs)}
        place = replace(self.place, device=spread(self.place.device, number, torch.cuda.device_count()))
        lines = [json.dumps(head), place.to_json(), *(job.to_json() for job in self.jobs.values())]
        # if it died at its start, the end of its stdout says so
        with suppress(BrokenPipeError):
            worker.stdin.write("".join(f"{line}\n" for line in lines))
            # left open: its end tells the worker that nobody listens any more
            worker.stdin.flush()
        threading.Thread(target=_listen, args=(number, worker.stdout, self.messages), daemon=True).start()

    def _happened(self, number: int, event: Event) -> None:
        if event.kind == "begin":
            self.running[number] = event.key
        elif event.ends:
            self.running.pop(number, None)
            # every worker finds what another has ended
            if event.key in self.settled:
                return
            self.settled.add(event.key)
        self.watch(event)

    def _ended(self, number: int) -> None:
        code = _wait(self.workers.pop(number))
        if code == 0:
            return
        key = self.running.pop(number, "")
        if code != _BROKEN_DEVICE:
            self.deaths[key] = self.deaths.get(key, 0) + 1
        if self.deaths.get(key, 0) >= MOST_DEATHS:
            if not key:
                raise ValueError(f"a worker must find work, got exit code {code} before it did; its errors are above.")
            message = f"its worker died {MOST_DEATHS} times, the last time with exit code {code}"
            give_up(self.jobs[key], self.place.out, message)
        self._start()

    def _stop(self) -> None:
        """Ask the workers to save where they stand, and wait until they have."""
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            _wait(worker)


def _wait(worker: "subprocess.Popen[str]") -> int:
    code = worker.wait()
    assert worker.stdin is not None
    with suppress(BrokenPipeError):
        worker.stdin.close()
    return code


def _listen(number: int, stdout: IO[str], messages: "queue.SimpleQueue[tuple[int, str | None]]") -> None:
    with stdout:
        for line in stdout:
            messages.put((number, line))
    messages.put((number, None))


def spread(device: str, number: int, count: int) -> str:
    """The device of a worker: of several CUDA devices, where none is named, each gets as many workers."""
    if device == "cpu" or ":" in device or count < 2:
        return device
    return f"cuda:{number % count}"


def sparing(tell: Callable[[str], None]) -> Watcher:
    """A watcher that tells of events as lines, and of progress every now and then."""
    told = 0.0

    def watch(event: Event) -> None:
        nonlocal told
        now = time.monotonic()
        if event.kind in ("step", "waiting") and now - told < _EVERY:
            return
        told = now
        tell(event.to_json())

    return watch


def main() -> None:
    """A worker: read jobs from stdin, run them, tell of it on stdout."""
    # nobody else may write where events go
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    head = json.loads(sys.stdin.readline())
    place = Place.from_json(sys.stdin.readline())
    jobs = [Job.from_json(sys.stdin.readline()) for _ in range(head["jobs"])]
    torch.set_num_threads(head["threads"])
    threading.Thread(target=_follow, daemon=True).start()

    def tell(line: str) -> None:
        events.write(f"{line}\n")
        events.flush()

    try:
        run_jobs(jobs, place, forgive=head["forgive"], watch=sparing(tell))
    except (KeyboardInterrupt, BrokenPipeError):
        # the parent asked for it, or is gone
        raise SystemExit(130) from None
    except BrokenDeviceError:
        raise SystemExit(_BROKEN_DEVICE) from None


def _follow() -> None:
    """Stop when the parent is gone: stdin then ends."""
    # not through sys.stdin, whose lock would be missed when the process ends
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
