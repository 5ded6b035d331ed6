"""Run one config of any task: load a finished record, or train, evaluate and write a record and its files.

An interrupted run resumes from the checkpoint in its folder. A failed job leaves `error.json` there. A plan, the list
of the jobs of a sweep, is stored in the results folder.
"""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from toa._checks import ArgumentError
from toa._files import parse_json, read_text, seal, unseal, write_atomically
from toa._limits import shorten
from toa.experiments.base import experiment_of
from toa.experiments.records import RECORD, Record, config_hash, make_record, read_record, write_record
from toa.training import TASKS, RunOptions, Task
from toa.training.checkpoint import check_weights, load_checkpoint, model_with, save_checkpoint

ERROR = "error.json"
_PLANS = "plans"
_SUFFIX = ".plan"
# config fields in which two runs agree, from the most to the least similar runs
_SIMILARITY = (
    ("dataset", "horizon", "backbone", "attention"),
    ("dataset", "horizon", "backbone"),
    ("dataset", "backbone"),
    ("backbone",),
)
# fields of every record
_FIELDS = ("task", "name", "config", "wall_s", "device", "command")


def run_folder(config: Any, out: Path) -> Path:
    """Folder of a run, named after its config and the config's hash, in the folder of all runs of its task."""
    return out / f"{experiment_of(config.task).folder_name(config)}-{config_hash(config)[:8]}"


def run_task(config: Any, out: Path, **options: Any) -> Record:
    """Run a config and return its record; a finished run is only loaded.

    Args:
        config: A config of any task in `toa.training.TASKS`.
        out: Folder of all runs of the task.
        options: Fields of `toa.training.RunOptions`, from `data_dir` on.
    """
    task = TASKS[config.task]
    key = config_hash(config)
    folder = run_folder(config, out)
    how = RunOptions(folder=folder, key=key, **options)
    if (folder / RECORD).exists():
        return read_finished(folder / RECORD, key, task.record_fields, data=task.current_checksum(config, how.data_dir))
    result = task.measure(config, how)
    record = make_record(config, result, how.command)
    if result.writes:
        for name, file in result.artifacts.items():
            save_checkpoint(folder / name, file.tensors, file.facts)
        write_record(folder / RECORD, record)
    return record


def read_finished(path: Path, key: str, also: Sequence[str] = (), *, data: str | None = None) -> Record:
    """Read the record of a finished run.

    Args:
        also: Required fields beside those of every record.
        data: Checksum of the data as they are now; None if they are not here.
    """
    record = read_record(path)
    if record["config_hash"] != key:
        raise ArgumentError(
            path,
            f"be a record of the config {key}",
            f"one of {record['config_hash']}",
            "delete it, or choose another output folder",
        )
    lacking = [name for name in (*_FIELDS, *also) if name not in record]
    if lacking:
        raise ArgumentError(
            path,
            "be a record of this version of toa",
            f"an older one without {', '.join(lacking)}",
            "move it away to repeat the run",
        )
    # a measurement without data has no checksum
    if data is not None and str(record.get("data_checksum")) not in (data, "None"):
        raise ArgumentError(
            path,
            f"be a record of the data as they are now, sha256 {data}",
            f"one of other data, {record['data_checksum']}: the data have changed since that run",
            "restore them, or move the folder of the run away to run it on the new data",
        )
    return record


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadedRun:
    """A finished run."""

    task: Task
    config: Any
    record: Record
    model: nn.Module


def load_run(folder: Path) -> LoadedRun:
    """Load the model and the record of a finished run."""
    if not (folder / RECORD).is_file():
        raise ArgumentError(folder, f"be the folder of a finished run, with {RECORD} in it", "none", "finish it")
    record = read_record(folder / RECORD)
    task = TASKS[str(record.get("task"))]
    if not task.model_file:
        raise ArgumentError(
            folder, "be the run of a task with a model", f"one of task {record['task']!r}", "name another folder"
        )
    file = folder / task.model_file
    if not file.is_file():
        raise ArgumentError(folder, f"hold {file.name} beside its record", "none", "run it again elsewhere")
    saved = load_checkpoint(file)
    check_weights(saved.tensors, file)
    config = task.config_from(record["config"])
    settings = getattr(config, "model", None)
    sizes = settings if isinstance(settings, Mapping) else asdict(config)
    model = model_with(lambda: task.rebuild(config, saved), saved.tensors, sizes, file)
    return LoadedRun(task=task, config=config, record=record, model=model)


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A run to be executed."""

    config: Any
    label: str
    command: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Hash of the config; jobs with the same key are the same run."""
        return config_hash(self.config)

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.config.task)

    def folder(self, out: Path) -> Path:
        """Its folder in the folder of all results."""
        return run_folder(self.config, out / self.task)

    def seeded(self, seed: int) -> "Job":
        """The same run with another seed, or this one if its config has no seed."""
        if "seed" not in {field.name for field in fields(self.config)}:
            return self
        command = (*self.command, "--seed", str(seed))
        return Job(config=replace(self.config, seed=seed), label=f"{self.label}, seed {seed}", command=command)

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads."""
        content = {"task": self.task, "config": asdict(self.config), "label": self.label, "command": self.command}
        return json.dumps(seal(content))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """Read a job from a line of JSON."""
        content, _ = unseal(parse_json(text, "a job"), "a job")
        config = TASKS[content["task"]].config_from(content["config"])
        return cls(config=config, label=content["label"], command=tuple(content["command"]))


def outcome(record: Record) -> str:
    """One line about a record: errors, best epoch, seconds."""
    shown = experiment_of(record["task"]).summary_metrics if record["task"] in TASKS else {}
    words = [f"{name} {record['metrics'][key]:.4f}" for key, name in shown.items() if key in record["metrics"]]
    if record.get("history"):
        words.append(f"best {record['best_epoch']}/{len(record['history'])}")
    return "  ".join([*words, f"{record['wall_s']:.1f} s"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Records of finished jobs and error messages of failed ones, by job key."""

    records: Mapping[str, Record]
    failures: Mapping[str, str]


def finished(job: Job, out: Path, data_dir: Path | None = None) -> Record | None:
    """Return the record of a finished job, else None."""
    path = job.folder(out) / RECORD
    if not path.exists():
        return None
    return read_finished(path, job.key, data=TASKS[job.task].current_checksum(job.config, data_dir))


def read_error(path: Path) -> Record | None:
    """Read the label, error message and time of a failed run; None if there is no such file."""
    try:
        content, _ = unseal(parse_json(read_text(path), str(path)), str(path))
        return {"label": str(content["label"]), "error": str(content["error"]), "time": float(content["time"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ArgumentError(path, "be the error of a run", f"something else ({shorten(error)})", "delete it") from None


def read_state(job: Job, out: Path, data_dir: Path | None = None) -> tuple[Record | None, Record | None]:
    """Return the record of a finished job, and the error of a failed one.

    A file that cannot be read is an error at time NaN, which is never retried: it is kept for the user to check.
    """
    try:
        record = finished(job, out, data_dir)
        return record, read_error(job.folder(out) / ERROR) if record is None else None
    except ValueError as unreadable:
        return None, {"error": str(unreadable), "time": math.nan}


def read_outcome(jobs: Iterable[Job], out: Path, data_dir: Path | None = None) -> Outcome:
    """Read what a results folder holds now. A file that cannot be read counts as a failure of its job."""
    states = {job.key: read_state(job, out, data_dir) for job in jobs}
    return Outcome(
        records={key: record for key, (record, _) in states.items() if record is not None},
        failures={key: error["error"] for key, (_, error) in states.items() if error is not None},
    )


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
    write_atomically(job.folder(out) / ERROR, (json.dumps(seal(content), indent=2) + "\n").encode())


def write_plan(jobs: Iterable[Job], out: Path) -> Path:
    """Store a list of jobs in a results folder. The same list, in any order, is the same file."""
    unique = {job.key: job for job in jobs}
    path = out / _PLANS / f"{_plan_name(unique)}{_SUFFIX}"
    write_atomically(path, "".join(f"{job.to_json()}\n" for job in unique.values()).encode())
    return path


def _plan_name(keys: Iterable[str]) -> str:
    """A name that states which runs a plan holds, so that a lost line is noticed."""
    return hashlib.sha256("".join(sorted(keys)).encode()).hexdigest()[:16]


def read_plans(out: Path) -> tuple[dict[str, Job], list[str]]:
    """Return the jobs of all plans in a results folder, by key, and one message per plan that cannot be read."""
    jobs: dict[str, Job] = {}
    unreadable: list[str] = []
    for path in sorted((out / _PLANS).glob(f"*{_SUFFIX}")):
        try:
            planned = [Job.from_json(line) for line in read_text(path).splitlines()]
            if _plan_name(job.key for job in planned) != path.stem:
                raise ValueError("other runs than those of its name")
            jobs |= {job.key: job for job in planned}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = shorten(error)
            unreadable.append(f"{path} must be a plan of this version, got something else ({reason}); delete it.")
    return jobs, unreadable


class Estimates:
    """Training times of jobs, estimated from finished runs.

    Args:
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
    """What similar runs have in common, from the most to the least similar."""
    values = {name: config.get(name) for name in _SIMILARITY[0]}
    if isinstance(values["attention"], dict):
        values["attention"] = values["attention"]["name"]
    return [(task, *((name, values[name]) for name in names)) for names in _SIMILARITY]
