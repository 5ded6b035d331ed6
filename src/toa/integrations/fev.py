"""fev: its task ETT_1H, and forecasts as its windows expect them.

    evaluate(CONFIG, "toa")["metrics"]            # the scores of `toa.integrations.gift_eval.evaluate`
    predictions = predict(histories, horizon=168, season=24)   # {"predictions": …, "0.1": …} per history

The task has both ETT stations, hourly, each with seven columns: 20 windows of 168 steps that do not overlap.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toa.data import DATASETS, locate, read_dataset
from toa.estimators import Forecaster
from toa.integrations.gift_eval import LEVELS, Config, Table


def _load(data_dir: str | Path | None) -> list[Table]:
    specs = [DATASETS[name] for name in ("ETTh1", "ETTh2")]
    return [read_dataset(spec, locate(spec, data_dir)).values[0] for spec in specs]


CONFIG = Config(name="ETT_1H", horizon=168, season=24, windows=20, load=_load, by_window=True)


def predict(histories: Sequence[np.ndarray], *, horizon: int, season: int | None = None, **options: Any) -> Any:
    """Forecasts after histories (T,): per history a mapping with "predictions" and a quantile per level, (P,) each."""
    chosen = {"quantiles": LEVELS, "season": season, **options}
    found = Forecaster(horizon, **chosen).fit([np.asarray(one, dtype=np.float64) for one in histories]).predict()
    return [
        {"predictions": one["forecast"][:, 0]}
        | {str(level): one["quantiles"][:, place, 0] for place, level in enumerate(LEVELS)}
        for one in found
    ]


def submission_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of `toa bench fev` as a row of the leaderboard; cells that only the package fev knows are empty."""
    metrics, shift = record["metrics"], CONFIG.windows * CONFIG.horizon
    return {
        "model_name": record["method"],
        "dataset_path": "fev_datasets",
        "dataset_config": CONFIG.name,
        "horizon": CONFIG.horizon,
        "num_windows": CONFIG.windows,
        "initial_cutoff": -shift,
        "window_step_size": CONFIG.horizon,
        "min_context_length": 1,
        "max_context_length": "",
        "seasonality": CONFIG.season,
        "eval_metric": "SQL",
        "extra_metrics": "['MASE', {'name': 'WAPE', 'epsilon': 1.0}, {'name': 'WQL', 'epsilon': 1.0}]",
        "quantile_levels": str(list(LEVELS)),
        "id_column": "id",
        "timestamp_column": "timestamp",
        "target": "['HUFL', 'HULL', 'LUFL', 'LULL', 'MUFL', 'MULL', 'OT']",
        "generate_univariate_targets_from": "",
        "known_dynamic_columns": "[]",
        "past_dynamic_columns": "[]",
        "static_columns": "[]",
        "task_name": CONFIG.name,
        "test_error": metrics["sql"],
        "training_time_s": record["fit_s"],
        "inference_time_s": record["predict_s"],
        "dataset_fingerprint": "",
        "trained_on_this_dataset": False,
        "fev_version": "",
        **{column: metrics[column.lower()] for column in ("SQL", "MASE", "WAPE", "WQL")},
    }
