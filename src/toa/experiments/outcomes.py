"""How jobs ended, read from their folders: `record.json` of a finished run, `error.json` of a failed one."""

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from toa._files import write_atomically
from toa.experiments.records import RECORD, Record
from toa.experiments.run import Job, read_finished

ERROR = "error.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Records of finished jobs and error messages of failed ones, by job key."""

    records: Mapping[str, Record]
    failures: Mapping[str, str]


def finished(job: Job, out: Path) -> Record | None:
    """Return the record of a finished job, else None.

    Raises:
        ValueError: If the file is not a record, or belongs to another config or an older version.
    """
    path = job.folder(out) / RECORD
    return read_finished(path, job.key) if path.exists() else None


def read_error(path: Path) -> Record | None:
    """Read the label, error message and time of a failed run; None if there is no such file.

    Raises:
        ValueError: If the file does not describe a failed run.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {"label": str(content["label"]), "error": str(content["error"]), "time": float(content["time"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} must be the error of a run, got something else ({error!r}); delete it.") from None


def read_outcome(jobs: Iterable[Job], out: Path) -> Outcome:
    """Read what a results folder holds now. A file that cannot be read counts as a failure of its job."""
    records, failures = {}, {}
    for job in jobs:
        try:
            record, error = finished(job, out), read_error(job.folder(out) / ERROR)
        except ValueError as unreadable:
            failures[job.key] = str(unreadable)
            continue
        if record is not None:
            records[job.key] = record
        elif error is not None:
            failures[job.key] = error["error"]
    return Outcome(records=records, failures=failures)


def failure_times(jobs: Iterable[Job], out: Path) -> dict[str, float]:
    """Return when each failed job failed, by job key. Skips files that cannot be read."""
    times = {}
    for job in jobs:
        with suppress(ValueError):
            if (error := read_error(job.folder(out) / ERROR)) is not None:
                times[job.key] = error["time"]
    return times


def write_failure(job: Job, out: Path, error: str, trace: str = "") -> None:
    """Record a job as failed."""
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
