"""How far a reproduction is, by the files that it leaves: records, errors, claims and the list of what is to be run."""

import json
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toa.experiments.claims import holder
from toa.experiments.estimates import Estimates
from toa.experiments.plans import read_plans
from toa.experiments.records import Record, read_record
from toa.experiments.run import Job, outcome
from toa.experiments.runner import ERROR, RECORD


@dataclass(frozen=True, kw_only=True, slots=True)
class RunUnderWay:
    """A run that a process is at: who, for how many seconds, and how many such runs took; None if none tells."""

    label: str
    who: str
    seconds: float
    about: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What a results folder shows.

    Attributes:
        done: Labels of finished runs, the latest last, with what came of each.
        running: Runs under way.
        failed: Labels and errors.
        waiting: Runs of the list that nobody has begun; None where there is no list.
        seconds_left: By the times of runs that are done; None if they cannot tell.
        wrong: Files that cannot be read.
    """

    done: tuple[str, ...]
    running: tuple[RunUnderWay, ...]
    failed: tuple[tuple[str, str], ...]
    waiting: int | None
    seconds_left: float | None
    wrong: tuple[str, ...]

    @property
    def total(self) -> int:
        """All runs that are known of."""
        return len(self.done) + len(self.running) + len(self.failed) + (self.waiting or 0)

    @property
    def over(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        return not self.running and not self.waiting


def look(out: Path, now: float | None = None) -> Progress:
    """See how far the runs in a results folder are.

    Args:
        out: Folder of all results, as `toa reproduce --out` has it.
        now: Seconds since the epoch; the clock's if None.

    Raises:
        ValueError: If there is no such folder.
    """
    if not out.is_dir():
        raise ValueError(f"results must be a folder of runs, but {out} is none; see `toa reproduce --out`.")
    jobs, wrong = read_plans(out)
    seen = _Seen(
        jobs={job.folder(out): job for job in jobs.values()}, wrong=wrong, now=time.time() if now is None else now
    )
    for folder in sorted({*(path for path in out.glob("*/*") if path.is_dir()), *seen.jobs}):
        seen.look(folder)
    return seen.progress()


class _Seen:
    """What was found in run folders."""

    def __init__(self, *, jobs: Mapping[Path, Job], wrong: list[str], now: float) -> None:
        self.jobs, self._wrong, self._now = jobs, wrong, now
        self._done: list[tuple[float, Path, Record]] = []
        self._running: list[tuple[Path, Record]] = []
        self._failed: list[tuple[str, str]] = []
        self._waiting: list[Job] = []

    def look(self, folder: Path) -> None:
        """Sort a folder in: a record is the end, whatever else there is."""
        try:
            if (folder / RECORD).exists():
                record = read_record(folder / RECORD)
                self._done.append(((folder / RECORD).stat().st_mtime, folder, record))
            elif (held := holder(folder)) is not None:
                self._running.append((folder, held))
            elif (folder / ERROR).exists():
                content = json.loads((folder / ERROR).read_text(encoding="utf-8"))
                self._failed.append((str(content["label"]), str(content["error"])))
            elif folder in self.jobs:
                self._waiting.append(self.jobs[folder])
        except FileNotFoundError:
            # it ended between two looks
            return
        except (ValueError, KeyError, TypeError) as error:
            self._wrong.append(f"{folder}: {error}")

    def progress(self) -> Progress:
        """All of it."""
        self._done.sort(key=lambda found: found[0])
        records = [record for _, _, record in self._done]
        known = _Times(records, self._done)
        running = [self._under_way(folder, held, known) for folder, held in self._running]
        waiting = [known.seconds(job, None) for job in self._waiting]
        left = [None if run.about is None else max(0.0, run.about - run.seconds) for run in running] + waiting
        told = [seconds for seconds in left if seconds is not None]
        return Progress(
            done=tuple(f"{self._label(folder)}  {_outcome(record)}" for _, folder, record in self._done),
            running=tuple(running),
            failed=tuple(self._failed),
            waiting=len(waiting) if self.jobs else None,
            # as many go on at a time as now
            seconds_left=sum(told) / max(1, len(running)) if len(told) == len(left) else None,
            wrong=tuple(self._wrong),
        )

    def _under_way(self, folder: Path, held: Record, known: "_Times") -> RunUnderWay:
        # one that was taken a moment ago has not said who has it
        since = float(held.get("since", self._now))
        who = f"process {held['pid']} on {held['host']}" if "pid" in held else "a process"
        about = known.seconds(self.jobs.get(folder), folder)
        return RunUnderWay(label=self._label(folder), who=who, seconds=max(0.0, self._now - since), about=about)

    def _label(self, folder: Path) -> str:
        return self.jobs[folder].label if folder in self.jobs else f"{folder.parent.name}/{folder.name}"


class _Times:
    """How long runs take, by those that are done."""

    def __init__(self, records: Iterable[Record], done: Iterable[tuple[float, Path, Record]]) -> None:
        timed = [record for record in records if "wall_s" in record and "device" in record]
        on_cpu = bool(timed) and str(timed[-1]["device"]).startswith("cpu")
        self._estimates = Estimates(timed, on_cpu=on_cpu)
        self._all = [float(record["wall_s"]) for record in timed]
        self._stems: dict[str, list[float]] = {}
        for _, folder, record in done:
            if "wall_s" in record:
                self._stems.setdefault(_stem(folder), []).append(float(record["wall_s"]))

    def seconds(self, job: Job | None, folder: Path | None) -> float | None:
        """Of runs most like a job, else of those whose folders have the name but for seed and hash, else of all."""
        like = self._estimates.seconds(job) if job is not None else None
        if like is None and folder is not None and (same := self._stems.get(_stem(folder))):
            like = statistics.median(same)
        return statistics.median(self._all) if like is None and self._all else like


def _stem(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name.rsplit('-', 2)[0]}"


def _outcome(record: Record) -> str:
    try:
        return outcome(record)
    except (KeyError, TypeError):
        # an older record lacks what would be told
        return ""
