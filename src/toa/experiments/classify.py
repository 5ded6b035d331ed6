"""Runs of classification: their settings for a dataset, and their wording."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toa.data import CLASSIFICATION_SETS
from toa.experiments.base import EXPERIMENTS, Experiment
from toa.experiments.settings import SettingTree
from toa.training import TASKS, ClassifyRun
from toa.training.base import Record


class ClassifyExperiment(Experiment):
    """Classification; see `Experiment` for the methods."""

    unit = "case"
    summary_metrics: Mapping[str, str] = {"val_accuracy": "val", "accuracy": "test"}

    def training_windows(self, settings: SettingTree, dataset: str, **names: Any) -> int:
        """Number of training cases; 0 for a user's own files."""
        return CLASSIFICATION_SETS[dataset].train if dataset in CLASSIFICATION_SETS else 0

    def folder_name(self, config: ClassifyRun) -> str:
        dataset = Path(config.dataset).name.split("_TRAIN.ts")[0]
        return f"{dataset}-{config.evaluation}-{config.name.replace('/', '-')}-{config.seed}"

    def title(self, config: ClassifyRun) -> str:
        return f"{super().title(config)}, {config.evaluation}"

    def describe(self, record: Record) -> list[str]:
        lines = super().describe(record)
        if record["config"]["evaluation"] == "tslib-uea":
            lines.append("validation is TEST, as the peers report: the best accuracy of all epochs, not an estimate.")
        return lines

    def describe_metrics(self, metrics: Mapping[str, float]) -> str:
        validation = f"validation accuracy {metrics['val_accuracy']:.4f}"
        if "accuracy" not in metrics:
            return validation
        test = f"test accuracy {metrics['accuracy']:.4f}, balanced {metrics['balanced_accuracy']:.4f}"
        return f"{test}, macro F1 {metrics['macro_f1']:.4f}; {validation}"


EXPERIMENTS.register("classify")(ClassifyExperiment(TASKS["classify"]))
