"""Jobs handed one by one to workers somewhere else, and what comes of them.

How a worker is reached is a crew's business; `toa.experiments.ray_crew` has one.
"""

import json
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

import toa
from toa.experiments.pool import MOST_DEATHS, sparing
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

# settings that workers on other machines have to be told
_ENVIRONMENT = ("TOA_DATA", "TOA_BACKEND")


class WorkerDiedError(RuntimeError):
    """A job's worker has died as often as it may."""


class Crew(Protocol):
    """Workers somewhere else. A job whose worker dies is given to another, `MOST_DEATHS` times in all."""

    def begin(self, orders: str, job: str) -> int:
        """Hand a job to `work`; the number is the job's ticket."""
        ...

    def ended(self, timeout_s: float) -> list[int]:
        """Tickets of jobs that have ended, waited for a while if there are none."""
        ...

    def result(self, ticket: int) -> str | None:
        """What `work` returned.

        Raises:
            WorkerDiedError: If no worker survived the job.
            ValueError: If workers cannot carry out jobs at all.
        """
        ...

    def news(self) -> list[str]:
        """Lines that `work` has told since the last call."""
        ...

    def stop(self) -> None:
        """Interrupt all jobs, so that they save where they stand, and wait until they have."""
        ...


def dispatch(
    jobs: Iterable[Job],
    place: Place,
    crew: Crew,
    *,
    at_once: int,
    threads: int,
    forgive: Mapping[str, float] | None = None,
    watch: Watcher | None = None,
) -> Outcome:
    """Run jobs by a crew; arguments and errors are those of `run_jobs`.

    Args:
        jobs: What to run.
        place: Where; the folder of results must be one that all workers see.
        crew: Who runs them.
        at_once: How many jobs are handed out at a time.
        threads: Of a worker.
        forgive: Failures that are tried again.
        watch: Told of everything that happens, in the thread of the caller.
    """
    unique = {job.key: job for job in jobs}
    dispatcher = _Dispatcher(
        jobs=unique, place=place, crew=crew, threads=threads, forgive=forgive or {}, watch=watch or (lambda event: None)
    )
    marker = _mark(place.out)
    try:
        with terminable():
            dispatcher.go(at_once, marker)
    finally:
        marker.unlink(missing_ok=True)
    return read_outcome(unique.values(), place.out)


def _mark(out: Path) -> Path:
    """A file that tells workers that they see our folder; those that dead processes left here are removed."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f".{platform.node()}-*.shared"):
        try:
            os.kill(int(old.stem.rpartition("-")[2]), 0)
        except ProcessLookupError:
            old.unlink(missing_ok=True)
        except (OSError, ValueError):
            continue
    marker = out / f".{platform.node()}-{os.getpid()}.shared"
    marker.touch()
    return marker


@dataclass(kw_only=True)
class _Dispatcher:
    """One call of `dispatch`."""

    jobs: dict[str, Job]
    place: Place
    crew: Crew
    threads: int
    forgive: Mapping[str, float]
    watch: Watcher
    given: dict[int, str] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)

    def go(self, at_once: int, marker: Path) -> None:
        """Hand out jobs until none is left, here or in another process."""
        waiting = deque(self.jobs)
        try:
            while waiting or self.given:
                while waiting and len(self.given) < at_once:
                    key = waiting.popleft()
                    self.given[self.crew.begin(self._orders(key, marker), self.jobs[key].to_json())] = key
                tickets = self.crew.ended(self.place.poll_s)
                self._tell_news()
                taken = [self.given[ticket] for ticket in tickets if not self._is_settled(ticket)]
                for ticket in tickets:
                    del self.given[ticket]
                waiting.extend(taken)
                if taken and len(taken) == len(tickets):
                    # all that is left is under way in another process
                    time.sleep(self.place.poll_s)
        finally:
            if self.given:
                self.crew.stop()

    def _orders(self, key: str, marker: Path) -> str:
        """All that a worker has to know besides the job."""
        return json.dumps(
            {
                "place": self.place.to_json(),
                "forgive": {key: self.forgive[key]} if key in self.forgive else {},
                "threads": self.threads,
                "marker": str(marker.absolute()),
                "folder": os.getcwd(),
                "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                "version": toa.__version__,
            }
        )

    def _is_settled(self, ticket: int) -> bool:
        """See to the end of a job; False if another process has it."""
        key = self.given[ticket]
        try:
            line = self.crew.result(ticket)
        except WorkerDiedError as error:
            message = f"its worker died {MOST_DEATHS} times, the last time with: {error}"
            give_up(self.jobs[key], self.place.out, message)
            line = Event(kind="failed", key=key, message=message).to_json()
        if line is None:
            self.watch(Event(kind="waiting", key=key))
            return False
        self.settled.add(key)
        self.watch(Event.from_json(line))
        return True

    def _tell_news(self) -> None:
        for event in map(Event.from_json, self.crew.news()):
            # news may be older than the end
            if event.key not in self.settled:
                self.watch(event)


def work(orders: str, job: str, tell: Callable[[str], None]) -> str | None:
    """Carry out a job in a worker.

    Args:
        orders: What the dispatcher says of all jobs.
        job: As `Job.to_json` gives it.
        tell: Told of its progress, a line each.

    Returns:
        How it ended, as an event's line; None if another process has it.

    Raises:
        ValueError: If this machine cannot do what the dispatcher's can.
    """
    known = json.loads(orders)
    _check_machine(known)
    os.environ.update(known["environment"])
    # paths of files of one's own may be relative; a machine that has not got them will say so
    with suppress(OSError):
        os.chdir(known["folder"])
    torch.set_num_threads(known["threads"])
    end: str | None = None
    progress = sparing(tell)

    def watch(event: Event) -> None:
        nonlocal end
        if event.ends:
            end = event.to_json()
        elif event.kind != "waiting":
            progress(event)

    try:
        run_jobs(
            [Job.from_json(job)], Place.from_json(known["place"]), forgive=known["forgive"], watch=watch, patient=False
        )
    except BrokenDeviceError:
        # the failure is recorded; who comes next needs a process that still has its device
        os._exit(1)
    return end


def _check_machine(known: Mapping[str, str]) -> None:
    here = platform.node()
    if known["version"] != toa.__version__:
        raise ValueError(
            f"toa must be {known['version']} on every machine, got {toa.__version__} on {here}; install the same."
        )
    if not os.path.exists(known["marker"]):
        raise ValueError(
            f"{os.path.dirname(known['marker'])} must be a folder that every machine shares, got one that {here} does "
            "not see as it is; choose another --out."
        )
