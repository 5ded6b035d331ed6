"""A run of any task as one thing: its config, where it keeps what it makes, and how it is carried out."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from toa._checks import check_choice
from toa.data import HarmonicDemixing
from toa.experiments.anomaly import anomaly_folder, run_anomaly
from toa.experiments.anomaly_config import AnomalyRun
from toa.experiments.classification import classify_folder, run_classify
from toa.experiments.classification_config import ClassifyRun
from toa.experiments.config import ForecastRun, build
from toa.experiments.demixing import demixing_folder, run_demixing_config
from toa.experiments.forecasting import run_folder, run_forecast
from toa.experiments.records import Record, config_hash
from toa.experiments.step_run import StepRun, run_step, step_folder
from toa.nn import AttentionSpec
from toa.tasks.demixing import DemixingConfig
from toa.tasks.optimization import TrainingConfig
from toa.tasks.training import Observer


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A task as jobs see it.

    Attributes:
        config: Class of its configs.
        folder: Where a run keeps what it makes, under the folder of all runs of the task.
        run: From a config and that folder to the record.
        shown: Metrics of a record to show, each with a short name; the first is the validation's, where there is one.
    """

    config: type[Any]
    folder: Callable[[Any, Path], Path]
    run: Callable[..., Record]
    shown: Mapping[str, str]


KINDS = {
    "forecast": Kind(
        config=ForecastRun,
        folder=run_folder,
        run=run_forecast,
        shown={"val_mse": "val", "mse": "test", "mae": "mae"},
    ),
    "anomaly": Kind(
        config=AnomalyRun,
        folder=anomaly_folder,
        run=run_anomaly,
        shown={"val_mse": "val", "tslib-pa/pa_f1": "PA-F1", "strict/f1": "strict F1"},
    ),
    "classify": Kind(
        config=ClassifyRun,
        folder=classify_folder,
        run=run_classify,
        shown={"val_accuracy": "val", "accuracy": "test"},
    ),
    "demixing": Kind(config=DemixingConfig, folder=demixing_folder, run=run_demixing_config, shown={"mse": "test"}),
    "efficiency": Kind(config=StepRun, folder=step_folder, run=run_step, shown={"train_step_ms": "ms a step"}),
}

_PARTS = {"attention": AttentionSpec, "training": TrainingConfig, "signals": HarmonicDemixing}


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A run that is to be done.

    Args:
        config: A config of one of `KINDS`.
        label: What people know it by.
        command: The command line that its record shall name.
    """

    config: Any
    label: str
    command: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """The config's hash: jobs with the same are the same run."""
        return config_hash(self.config)

    @cached_property
    def task(self) -> str:
        """A name of `KINDS`."""
        return next(name for name, kind in KINDS.items() if isinstance(self.config, kind.config))

    def folder(self, out: Path) -> Path:
        """Its folder under that of all results."""
        return KINDS[self.task].folder(self.config, out / self.task)

    def run(self, out: Path, *, data_dir: Path | None, device: str, observe: Observer | None = None) -> Record:
        """Carry it out, or go on where it was stopped."""
        kind = KINDS[self.task]
        return kind.run(
            self.config, out / self.task, data_dir=data_dir, device=device, command=self.command, observe=observe
        )

    def seeded(self, seed: int) -> "Job":
        """The same with another seed; itself if there is nothing random in it."""
        if "seed" not in {field.name for field in fields(self.config)}:
            return self
        command = (*self.command, "--seed", str(seed))
        return Job(config=replace(self.config, seed=seed), label=f"{self.label}, seed {seed}", command=command)

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps(
            {"task": self.task, "config": asdict(self.config), "label": self.label, "command": self.command}
        )

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """The job of a line."""
        content = json.loads(text)
        config = config_from(content["task"], content["config"])
        return cls(config=config, label=content["label"], command=tuple(content["command"]))


def config_from(task: str, values: Mapping[str, Any]) -> Any:
    """A config from plain values, as records hold it.

    Raises:
        ValueError: If the task or a key is unknown.
    """
    check_choice("task", task, KINDS)
    settled = dict(values)
    for name, part in _PARTS.items():
        if settled.get(name) is not None:
            settled[name] = build(part, settled[name], f"{name} of a {task} config")
    return build(KINDS[task].config, settled, f"a {task} config")


def outcome(record: Record) -> str:
    """What a run has come to, in a few words: errors, best epoch, seconds."""
    shown = KINDS[record["task"]].shown if record["task"] in KINDS else {}
    words = [f"{name} {record['metrics'][key]:.4f}" for key, name in shown.items() if key in record["metrics"]]
    if record.get("history"):
        words.append(f"best {record['best_epoch']}/{len(record['history'])}")
    return "  ".join([*words, f"{record['wall_s']:.1f} s"])
