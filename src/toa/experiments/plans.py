"""What is to be run in a results folder, kept there as a list, so that others can tell how far it is."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from toa._files import write_atomically
from toa.experiments.run import Job

_FOLDER = "plans"
_SUFFIX = ".plan"


def write_plan(jobs: Iterable[Job], out: Path) -> Path:
    """Leave a list of jobs in a results folder; the same list is the same file."""
    listed = {job.key: job for job in jobs}
    name = hashlib.sha256("".join(sorted(listed)).encode()).hexdigest()[:16]
    path = out / _FOLDER / f"{name}{_SUFFIX}"
    write_atomically(path, "".join(f"{job.to_json()}\n" for job in listed.values()).encode())
    return path


def read_plans(out: Path) -> tuple[dict[str, Job], list[str]]:
    """Jobs of all lists in a results folder, by their keys, and what is wrong with lists that cannot be read."""
    jobs: dict[str, Job] = {}
    wrong: list[str] = []
    for path in sorted((out / _FOLDER).glob(f"*{_SUFFIX}")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            found = [Job.from_json(line) for line in lines]
            jobs |= {job.key: job for job in found}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wrong.append(f"{path} must be a list of runs of this version, got something else ({error!r}); delete it.")
    return jobs, wrong
