"""The progress of a reproduction, read from its results folder: records, errors, claims and plans."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from toa._checks import ArgumentError
from toa.experiments.claims import holder
from toa.experiments.records import RECORD, Record, read_record
from toa.experiments.run import ERROR, Estimates, Job, outcome, read_error, read_plans


class RunningRun(NamedTuple):
    """A run in progress: its process, its seconds so far, and the estimated total; None if there is no estimate."""

    label: str
    holder: str
    seconds: float
    estimate: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The state of all runs in a results folder.

    Attributes:
        done: One line per finished run with its label and result; the latest is last.
        failed: Label and error per failed run.
        waiting: Number of planned runs that have not begun; None without a plan.
        seconds_left: Estimated from finished runs; None if that is not possible.
        unreadable: One message per file that cannot be read.
    """

    done: tuple[str, ...]
    running: tuple[RunningRun, ...]
    failed: tuple[tuple[str, str], ...]
    waiting: int | None
    seconds_left: float | None
    unreadable: tuple[str, ...]

    @property
    def total(self) -> int:
        """Number of runs in the folder and in its plans."""
        return len(self.done) + len(self.running) + len(self.failed) + (self.waiting or 0)

    @property
    def over(self) -> bool:
        """Whether no run is in progress or waiting."""
        return not self.running and not self.waiting


def read_progress(out: Path, now: float | None = None) -> Progress:
    """Read the progress of the runs in a results folder."""
    if not out.is_dir():
        raise ArgumentError("results", "be a folder of runs", f"{out}: no such folder", "see `toa reproduce --out`")
    now = time.time() if now is None else now
    planned, unreadable = read_plans(out)
    jobs = {job.folder(out): job for job in planned.values()}
    done: list[tuple[float, Path, Record]] = []
    held: list[tuple[Path, Record]] = []
    failed: list[tuple[str, str]] = []
    waiting: list[Path] = []
    for folder in sorted({*(path for path in out.glob("*/*") if path.is_dir()), *jobs}):
        try:
            # a run with a record is finished, whatever else is in its folder
            if (folder / RECORD).exists():
                done.append(((folder / RECORD).stat().st_mtime, folder, read_record(folder / RECORD)))
            elif (claim := holder(folder)) is not None:
                held.append((folder, claim))
            elif (error := read_error(folder / ERROR)) is not None:
                failed.append((error["label"], error["error"]))
            elif folder in jobs:
                waiting.append(folder)
        except FileNotFoundError:
            # the run ended between two of these checks
            continue
        except ValueError as problem:
            unreadable.append(f"{folder}: {problem}")
    done.sort(key=lambda pair: pair[0])
    estimate = _estimator({folder: record for _, folder, record in done}, jobs)
    running = [
        RunningRun(
            label=_label(folder, jobs),
            # a new claim is empty for a moment
            holder=f"process {claim['pid']} on {claim['host']}" if "pid" in claim else "a process",
            seconds=max(0.0, now - float(claim.get("since", now))),
            estimate=estimate(folder),
        )
        for folder, claim in held
    ]
    left = [None if run.estimate is None else max(0.0, run.estimate - run.seconds) for run in running]
    left += map(estimate, waiting)
    seconds_of_runs = [seconds for seconds in left if seconds is not None]
    return Progress(
        done=tuple(f"{_label(folder, jobs)}  {_result(record)}" for _, folder, record in done),
        running=tuple(running),
        failed=tuple(failed),
        waiting=len(waiting) if jobs else None,
        # assumes that the number of concurrent runs stays the same
        seconds_left=sum(seconds_of_runs) / max(1, len(running)) if len(seconds_of_runs) == len(left) else None,
        unreadable=tuple(unreadable),
    )


def _estimator(done: Mapping[Path, Record], jobs: Mapping[Path, Job]) -> Callable[[Path], float | None]:
    """Estimates the seconds of a run, from finished ones (oldest first) on the device of the latest.

    It is the median of similar runs, else of runs that differ only in the seed, else of all runs.
    """
    timed = {folder: record for folder, record in done.items() if "wall_s" in record and "device" in record}
    on_cpu = any(str(record["device"]).startswith("cpu") for record in list(timed.values())[-1:])
    estimates = Estimates(timed.values(), on_cpu=on_cpu)
    seconds = {folder: float(record["wall_s"]) for folder, record in timed.items()}

    def estimate(folder: Path) -> float | None:
        if folder in jobs and (similar := estimates.seconds(jobs[folder])) is not None:
            return similar
        times = [found for done, found in seconds.items() if _stem(done) == _stem(folder)] or list(seconds.values())
        return statistics.median(times) if times else None

    return estimate


def _stem(folder: Path) -> str:
    """Return task and folder name without the seed and the hash, which are its last two parts."""
    return f"{folder.parent.name}/{folder.name.rsplit('-', 2)[0]}"


def _label(folder: Path, jobs: Mapping[Path, Job]) -> str:
    return jobs[folder].label if folder in jobs else f"{folder.parent.name}/{folder.name}"


def _result(record: Record) -> str:
    try:
        return outcome(record)
    except (KeyError, TypeError):
        # an older record lacks a field
        return ""
