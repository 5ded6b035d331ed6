"""Run one config of any task: load a finished record, or train, evaluate and write a record and its files.

An interrupted run resumes from the checkpoint in its folder.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# registers the task "efficiency"
import toa.experiments.step_run  # noqa: F401
from toa._checks import check_choice
from toa.experiments.records import RECORD, Record, config_hash, make_record, read_record, write_record
from toa.tasks import TASKS, RunOptions, Task
from toa.tasks.checkpoint import load_checkpoint, save_checkpoint
from toa.tasks.device import resolve_device
from toa.tasks.training import Observer

# fields of every record
_FIELDS = ("task", "name", "config", "wall_s", "device", "command")


def run_folder(config: Any, out: Path) -> Path:
    """Folder of a run, named after its config and the config's hash, in the folder of all runs of its task."""
    return out / f"{TASKS[config.task].folder_name(config)}-{config_hash(config)[:8]}"


def run_task(
    config: Any,
    out: Path,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    command: Sequence[str] = (),
    observe: Observer | None = None,
) -> Record:
    """Run a config and return its record; a finished run is only loaded.

    Args:
        config: A config of any task in `toa.tasks.TASKS`.
        out: Folder of all runs of the task.
        data_dir: Folder that is searched first for datasets.
        device: "auto", "cpu", "cuda" or "cuda:N".
        devices: Number of devices per node that train together.
        num_nodes: Number of nodes.
        command: Command line to store in the record.
        observe: Called with the progress of training.
    """
    task, key, folder = TASKS[config.task], config_hash(config), run_folder(config, out)
    # an unknown device raises an error even if the run is finished
    resolve_device(device)
    if (folder / RECORD).exists():
        return read_finished(folder / RECORD, key, task.record_fields)
    options = RunOptions(
        folder=folder,
        key=key,
        data_dir=data_dir,
        device=device,
        devices=devices,
        num_nodes=num_nodes,
        command=command,
        observe=observe,
    )
    result = task.measure(config, options)
    record = make_record(task, config, result, command)
    if result.writes:
        for name, file in result.evaluation.artifacts.items():
            save_checkpoint(folder / name, file.tensors, file.facts)
        write_record(folder / RECORD, record)
    return record


def read_finished(path: Path, key: str, also: Sequence[str] = ()) -> Record:
    """Read the record of a finished run.

    Args:
        path: File of the record.
        key: Hash of the config.
        also: Required fields beside those of every record.

    Raises:
        ValueError: If it is not a record, or one of another config or an older version.
    """
    record = read_record(path)
    if record["config_hash"] != key:
        raise ValueError(
            f"{path} must be a record of the config {key}, got one of {record['config_hash']}; delete it, or choose "
            "another output folder."
        )
    lacking = [name for name in (*_FIELDS, *also) if name not in record]
    if lacking:
        raise ValueError(
            f"{path} must be a record of this version of toa, got an older one without {', '.join(lacking)}; move it "
            "away to repeat the run."
        )
    return record


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadedRun:
    """A finished run.

    Attributes:
        task: Its task.
        config: Its config.
        record: Its record.
        model: The trained model, on the CPU, in evaluation mode.
    """

    task: Task
    config: Any
    record: Record
    model: nn.Module

    def sample(self, index: int = 0, data_dir: Path | None = None) -> tuple[Tensor | None, ...]:
        """The model's inputs for one window or case of the test data; see `Task.sample`."""
        return self.task.sample(self.config, index, data_dir)


def load_run(folder: Path) -> LoadedRun:
    """Load the model and the record of a finished run.

    Raises:
        ValueError: If the folder does not hold a finished run, or its files do not belong together.
    """
    if not (folder / RECORD).is_file():
        raise ValueError(f"{folder} must be the folder of a finished run, with {RECORD} in it, got none; finish it.")
    record = read_record(folder / RECORD)
    with_model = [name for name in TASKS if TASKS[name].model_file]
    check_choice("task of a run with a model", record.get("task"), with_model)
    task = TASKS[str(record["task"])]
    file = folder / task.model_file
    if not file.is_file():
        raise ValueError(f"{folder} must hold {file.name} beside its record, got none; run it again elsewhere.")
    saved = load_checkpoint(file)
    config = task.config_from(record["config"])
    prefix = "model."
    weights = {name.removeprefix(prefix): value for name, value in saved.tensors.items() if name.startswith(prefix)}
    # the random initial weights are replaced, so the global generator must not advance
    with torch.random.fork_rng(devices=[]):
        model = task.rebuild(config, saved)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"{file} must hold the weights of {record['name']}, got other weights ({' '.join(str(error).split())}); "
            "restore the file that belongs to this run."
        ) from None
    return LoadedRun(task=task, config=config, record=record, model=model.eval())


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A run to be executed.

    Args:
        config: A config of any task in `toa.tasks.TASKS`.
        label: Readable name.
        command: Command line to store in its record.
    """

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

    def run(self, out: Path, *, data_dir: Path | None, device: str, observe: Observer | None = None) -> Record:
        """Run it into the folder of all results; an interrupted run resumes."""
        return run_task(
            self.config, out / self.task, data_dir=data_dir, device=device, command=self.command, observe=observe
        )

    def seeded(self, seed: int) -> "Job":
        """The same run with another seed, or this one if its config has no seed."""
        if "seed" not in {field.name for field in fields(self.config)}:
            return self
        command = (*self.command, "--seed", str(seed))
        return Job(config=replace(self.config, seed=seed), label=f"{self.label}, seed {seed}", command=command)

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads."""
        return json.dumps(
            {"task": self.task, "config": asdict(self.config), "label": self.label, "command": self.command}
        )

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """Read a job from a line of JSON."""
        content = json.loads(text)
        config = config_from(content["task"], content["config"])
        return cls(config=config, label=content["label"], command=tuple(content["command"]))


def config_from(task: str, values: Mapping[str, Any]) -> Any:
    """Build a config from the plain values that a record holds.

    Raises:
        ValueError: If the task or a key is unknown.
    """
    return TASKS[task].config_from(values)


def outcome(record: Record) -> str:
    """One line about a record: errors, best epoch, seconds."""
    shown = TASKS[record["task"]].summary_metrics if record["task"] in TASKS else {}
    words = [f"{name} {record['metrics'][key]:.4f}" for key, name in shown.items() if key in record["metrics"]]
    if record.get("history"):
        words.append(f"best {record['best_epoch']}/{len(record['history'])}")
    return "  ".join([*words, f"{record['wall_s']:.1f} s"])
