"""The plan of a sweep: the list of its jobs, stored in the results folder, and how long they will take."""

import hashlib
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toa._files import write_atomically
from toa.experiments.records import RECORD, Record, read_record
from toa.experiments.run import Job

_FOLDER = "plans"
_SUFFIX = ".plan"
# config fields in which two runs agree, from the most to the least similar runs
_SIMILARITY = (
    ("dataset", "horizon", "backbone", "attention"),
    ("dataset", "horizon", "backbone"),
    ("dataset", "backbone"),
    ("backbone",),
)


def write_plan(jobs: Iterable[Job], out: Path) -> Path:
    """Store a list of jobs in a results folder. The same list, in any order, is the same file."""
    unique = {job.key: job for job in jobs}
    name = hashlib.sha256("".join(sorted(unique)).encode()).hexdigest()[:16]
    path = out / _FOLDER / f"{name}{_SUFFIX}"
    write_atomically(path, "".join(f"{job.to_json()}\n" for job in unique.values()).encode())
    return path


def read_plans(out: Path) -> tuple[dict[str, Job], list[str]]:
    """Return the jobs of all plans in a results folder, by key, and one message per plan that cannot be read."""
    jobs: dict[str, Job] = {}
    unreadable: list[str] = []
    for path in sorted((out / _FOLDER).glob(f"*{_SUFFIX}")):
        try:
            planned = [Job.from_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
            jobs |= {job.key: job for job in planned}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            unreadable.append(f"{path} must be a plan of this version, got something else ({error!r}); delete it.")
    return jobs, unreadable


class Estimates:
    """Training times of jobs, estimated from finished runs.

    Args:
        records: The finished runs.
        on_cpu: Use the runs on a CPU if true, else those on other devices.
    """

    def __init__(self, records: Iterable[Record], *, on_cpu: bool) -> None:
        self._seconds: dict[tuple[object, ...], list[float]] = {}
        for record in records:
            if str(record["device"]).startswith("cpu") == on_cpu:
                for group in _groups(record["task"], record["config"]):
                    self._seconds.setdefault(group, []).append(float(record["wall_s"]))

    def seconds(self, job: Job) -> float | None:
        """Return the median time of the most similar runs, or None if there are none."""
        times = (self._seconds.get(group) for group in _groups(job.task, asdict(job.config)))
        return next((statistics.median(found) for found in times if found), None)


def timed_records(out: Path) -> list[Record]:
    """Return all readable records under a results folder that have a training time."""
    records = []
    for path in sorted(out.glob(f"*/*/{RECORD}")):
        try:
            record = read_record(path)
            records.append({**record, "wall_s": float(record["wall_s"])})
        except (ValueError, KeyError, TypeError):
            # the sweep itself reports unreadable records
            continue
    return records


def _groups(task: str, config: dict[str, Any]) -> list[tuple[object, ...]]:
    values = {name: config.get(name) for name in _SIMILARITY[0]}
    if isinstance(values["attention"], dict):
        values["attention"] = values["attention"]["name"]
    return [(task, *((name, values[name]) for name in names)) for names in _SIMILARITY]
