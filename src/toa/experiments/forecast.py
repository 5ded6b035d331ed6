"""Runs of forecasting: their settings for a dataset and a horizon, and their wording."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toa._checks import ArgumentError, check_choice
from toa.data import DATASETS, split_rows
from toa.experiments.base import EXPERIMENTS, Experiment
from toa.experiments.settings import Protocol, SettingTree, merge
from toa.training import TASKS, ForecastRun


class ForecastExperiment(Experiment):
    """Forecasting; see `Experiment` for the methods."""

    names = ("dataset", "backbone", "attention", "horizon")
    options: Mapping[str, str | None] = {"horizon": "96"}
    summary_metrics: Mapping[str, str] = {"val_mse": "val", "mse": "test", "mae": "mae"}

    def dataset_settings(self, protocol: Protocol, table: SettingTree, dataset: str, **names: Any) -> SettingTree:
        """Settings for one dataset and horizon: `horizons` lists those covered, `horizon.N` overrides for one."""
        settings = merge({}, table["default"])
        horizons = settings.pop("horizons")
        if not self.check_dataset(dataset):
            return settings
        full = DATASETS[dataset].subset_of or dataset
        horizon = names["horizon"]
        check_choice(f"dataset of protocol {protocol.name!r}", full, [name for name in table if name in DATASETS])
        of_dataset = merge({}, table[full])
        horizons = of_dataset.pop("horizons", horizons)
        if horizon not in horizons:
            raise ArgumentError(
                f"horizon of {dataset} in protocol {protocol.name!r}",
                f"be one of {', '.join(map(str, horizons))}",
                horizon,
                "for another, give the file's path instead of the dataset's name",
            )
        by_horizon = of_dataset.pop("horizon", {})
        return merge(merge(settings, of_dataset), by_horizon.get(str(horizon), {}))

    def training_windows(self, settings: SettingTree, dataset: str, **names: Any) -> int:
        """Windows of the train split; of a user's CSV file, from the number of its lines."""
        rule: Any = "ratio"
        if dataset in DATASETS:
            rows = DATASETS[dataset].rows
            rule = settings.get("split") or DATASETS[dataset].split
        elif Path(dataset).suffix == ".csv" and Path(dataset).is_file():
            rows = max(0, Path(dataset).read_bytes().count(b"\n") - 1)
        else:
            return 0
        try:
            split = split_rows(rule, rows, lookback=settings["lookback"], horizon=names["horizon"])
        except ValueError:
            # too short: loading reports it
            return 0
        return split.train.windows(settings["lookback"], names["horizon"])

    def folder_name(self, config: ForecastRun) -> str:
        return f"{Path(config.dataset).stem}-{config.horizon}-{config.name.replace('/', '-')}-{config.seed}"

    def title(self, config: ForecastRun) -> str:
        return f"{config.name} on {Path(config.dataset).stem}, horizon {config.horizon}"

    def describe_metrics(self, metrics: Mapping[str, float]) -> str:
        errors = f"test MSE {metrics['mse']:.4f}, MAE {metrics['mae']:.4f}; " if "mse" in metrics else ""
        return f"{errors}validation MSE {metrics['val_mse']:.4f}"


EXPERIMENTS.register("forecast")(ForecastExperiment(TASKS["forecast"]))
