"""The runner: a list of jobs in, a record each out.

What is done is known by the files alone: `record.json` in a run's folder is a finished run, `error.json` a failed one,
and a claim (`toa.experiments.claims`) one under way. So the runner may be stopped or killed at any moment and started
again, and several of them may share a results folder: no finished run is lost, none is done twice.
"""

import gc
import json
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

from toa._checks import check_positive
from toa._files import write_atomically
from toa.experiments.claims import claimed
from toa.experiments.records import Record
from toa.experiments.run import Job, read_finished
from toa.tasks.device import resolve_device

RECORD = "record.json"
ERROR = "error.json"

Happening = Literal["found", "begin", "step", "done", "failed", "waiting"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that has happened to a job.

    Attributes:
        kind: "found" finished already, "begin" and "step" of a run, "done", "failed", or "waiting" for another process.
        key: The job's.
        step, total: Steps done and to do, of a "step".
        message: The error, of "failed".
    """

    kind: Happening
    key: str
    step: int = 0
    total: int = 0
    message: str = ""

    @property
    def ends(self) -> bool:
        """Whether nothing more is to be done about the job."""
        return self.kind in ("found", "done", "failed")

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Event":
        """The event of a line."""
        return cls(**json.loads(text))


Watcher = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where jobs are run.

    Args:
        out: Folder of all results; a task has a folder in it, and a run a folder in that.
        data_dir: Where data are looked for first.
        device: "auto", "cpu", "cuda" or "cuda:N".
        poll_s: Seconds between two looks at runs that other processes have.
    """

    out: Path
    data_dir: Path | None = None
    device: str = "auto"
    poll_s: float = 0.5

    def __post_init__(self) -> None:
        check_positive("poll_s", self.poll_s)

    def to_json(self) -> str:
        """One line that `from_json` reads, from wherever another process has its working folder."""
        where = None if self.data_dir is None else str(self.data_dir.absolute())
        return json.dumps({**asdict(self), "out": str(self.out.absolute()), "data_dir": where})

    @classmethod
    def from_json(cls, text: str) -> "Place":
        """The place of a line."""
        values = json.loads(text)
        where = None if values["data_dir"] is None else Path(values["data_dir"])
        return cls(**{**values, "out": Path(values["out"]), "data_dir": where})


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of jobs: records of those that are done and errors of those that failed, by the jobs' keys."""

    records: Mapping[str, Record]
    failures: Mapping[str, str]


class BrokenDeviceError(RuntimeError):
    """The device refuses all further work of this process."""


def run_jobs(
    jobs: Iterable[Job],
    place: Place,
    *,
    forgive: Mapping[str, float] | None = None,
    watch: Watcher | None = None,
    patient: bool = True,
) -> Outcome:
    """Run jobs in this process, one after another; those of other processes are waited for.

    Args:
        jobs: What to run; of those with the same config one.
        place: Where.
        forgive: Failures that are tried again, as `failures_now` gives them; one that came after them is not.
        watch: Told of everything that happens.
        patient: Whether those of other processes are waited for; if not, they are not in the outcome.

    Raises:
        KeyboardInterrupt: After SIGINT or SIGTERM. The run under way has saved where it stands.
        BrokenDeviceError: If a run has left the device unusable.
    """
    resolve_device(place.device)
    runner = _Runner(place=place, forgive=forgive or {}, watch=watch or (lambda event: None))
    with terminable():
        runner.go({job.key: job for job in jobs}, patient)
    return Outcome(records=runner.records, failures=runner.failures)


def finished(job: Job, out: Path) -> Record | None:
    """The record of a job that is done; None if it is not.

    Raises:
        ValueError: If the file is no record, one of another config, or of an older schema.
    """
    path = job.folder(out) / RECORD
    return read_finished(path, job.key) if path.exists() else None


def failure(job: Job, out: Path) -> Record | None:
    """What is written of a job that failed; None if it did not."""
    path = job.folder(out) / ERROR
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {**content, "error": str(content["error"]), "time": float(content["time"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} must be the error of a run, got something else ({error!r}); delete it.") from None


def read_outcome(jobs: Iterable[Job], out: Path) -> Outcome:
    """What a results folder holds of jobs now."""
    records, failures = {}, {}
    for job in jobs:
        try:
            record, error = finished(job, out), failure(job, out)
        except ValueError as wrong:
            failures[job.key] = str(wrong)
            continue
        if record is not None:
            records[job.key] = record
        elif error is not None:
            failures[job.key] = str(error["error"])
    return Outcome(records=records, failures=failures)


def failures_now(jobs: Iterable[Job], out: Path) -> dict[str, float]:
    """When each job that failed did, by the jobs' keys; a file that tells of no failure is left to who runs the job."""
    times = {}
    for job in jobs:
        with suppress(ValueError):
            old = failure(job, out)
            if old is not None:
                times[job.key] = old["time"]
    return times


def write_failure(job: Job, out: Path, error: str, trace: str = "") -> None:
    """Leave a failed job's error beside where its record would be."""
    content = {
        "task": job.task,
        "label": job.label,
        "config": asdict(job.config),
        "config_hash": job.key,
        "command": list(job.command),
        "error": error,
        "traceback": trace,
        "time": time.time(),
    }
    write_atomically(job.folder(out) / ERROR, (json.dumps(content, indent=2) + "\n").encode())


def give_up(job: Job, out: Path, error: str) -> None:
    """Record a job as failed whose worker is no more, unless it ended or another process has it."""
    with claimed(job.folder(out)) as mine:
        if mine and finished(job, out) is None:
            write_failure(job, out, error)


@dataclass(kw_only=True)
class _Runner:
    """One call of `run_jobs`."""

    place: Place
    forgive: Mapping[str, float]
    watch: Watcher
    records: dict[str, Record] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def go(self, pending: dict[str, Job], patient: bool) -> None:
        """Go through the jobs until none is left, here or, if patient, in another process."""
        while pending:
            settled = [key for key, job in pending.items() if self._settle(job)]
            for key in settled:
                del pending[key]
            if pending and not settled:
                if not patient:
                    return
                time.sleep(self.place.poll_s)

    def _settle(self, job: Job) -> bool:
        """See a job to its end; False if another process has it."""
        if self._is_settled(job):
            return True
        with claimed(job.folder(self.place.out)) as mine:
            if not mine:
                self.watch(Event(kind="waiting", key=job.key))
                return False
            # another may have ended it between the look and the claim
            if not self._is_settled(job):
                self._carry_out(job)
            return True

    def _is_settled(self, job: Job) -> bool:
        try:
            record = finished(job, self.place.out)
            if record is not None:
                self.records[job.key] = record
                self.watch(Event(kind="found", key=job.key))
                return True
            old = failure(job, self.place.out)
        except ValueError as error:
            # a file that a person has to look at; it is not written over
            self._fail(job, str(error))
            return True
        if old is None or self.forgive.get(job.key) == old["time"]:
            return False
        self._fail(job, old["error"])
        return True

    def _carry_out(self, job: Job) -> None:
        (job.folder(self.place.out) / ERROR).unlink(missing_ok=True)
        self.watch(Event(kind="begin", key=job.key))

        def observe(done: int, total: int, loss: float, validation: float | None) -> None:
            self.watch(Event(kind="step", key=job.key, step=done, total=total))

        try:
            record = job.run(self.place.out, data_dir=self.place.data_dir, device=self.place.device, observe=observe)
        # whatever it was, the others go on
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            write_failure(job, self.place.out, message, traceback.format_exc())
            self._fail(job, message)
            _check_device(self.place.device, job, error)
        else:
            self.records[job.key] = record
            self.watch(Event(kind="done", key=job.key))
        if resolve_device(self.place.device).type == "cuda":
            # models refer to themselves, and hold the device's memory until they are looked for
            gc.collect()

    def _fail(self, job: Job, message: str) -> None:
        self.failures[job.key] = message
        self.watch(Event(kind="failed", key=job.key, message=message))


def _check_device(device: str, job: Job, error: Exception) -> None:
    """After an error on CUDA, whether the process can still use it."""
    where = resolve_device(device)
    if where.type != "cuda":
        return
    try:
        torch.cuda.synchronize(where)
        torch.cuda.empty_cache()
    except RuntimeError:
        raise BrokenDeviceError(
            f"{where} must still work after {job.label}, got: {error}; the run is recorded as failed, start again for "
            "the others."
        ) from error


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end what is under way as SIGINT does; while a model trains, training itself sees to both."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt("stopped")

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
