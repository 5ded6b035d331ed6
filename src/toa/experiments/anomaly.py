"""Runs of anomaly detection: their settings for a dataset, and their wording."""

from collections.abc import Mapping
from typing import Any

from toa._checks import check_choice
from toa.experiments.base import EXPERIMENTS, Experiment
from toa.experiments.settings import Protocol, SettingTree, merge
from toa.training import TASKS


class AnomalyExperiment(Experiment):
    """Anomaly detection; see `Experiment` for the methods."""

    options: Mapping[str, str | None] = {"test_file": None, "label_file": None}
    summary_metrics: Mapping[str, str] = {"val_mse": "val", "tslib-pa/pa_f1": "PA-F1", "strict/f1": "strict F1"}

    def dataset_settings(self, protocol: Protocol, table: SettingTree, dataset: str, **names: Any) -> SettingTree:
        if not self.check_dataset(dataset):
            return merge({}, table["default"])
        # the 28 machines share one table
        shared = "SMD-machine" if dataset.startswith("SMD-machine-") else dataset
        check_choice(f"dataset of protocol {protocol.name!r}", shared, [name for name in table if name != "default"])
        return merge(table["default"], table[shared])

    def describe_metrics(self, metrics: Mapping[str, float]) -> str:
        return f"validation MSE {metrics['val_mse']:.4f}"


EXPERIMENTS.register("anomaly")(AnomalyExperiment(TASKS["anomaly"]))
