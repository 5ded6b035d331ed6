"""fev: its task ETT_1H, and forecasts as its windows expect them.

    evaluate(CONFIG, "toa")                       # the scores of `toa.integrations.gift_eval.evaluate`
    predictions = predict(histories, horizon=168, season=24)   # {"predictions": …, "0.1": …} per history

The task has both ETT stations, hourly, each with seven columns: 20 windows of 168 steps that do not overlap.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toa.data import DATASETS, locate, read_dataset
from toa.estimators import Forecaster
from toa.integrations.gift_eval import LEVELS, Config, Table


def _load(data_dir: str | Path | None) -> list[Table]:
    specs = [DATASETS[name] for name in ("ETTh1", "ETTh2")]
    return [read_dataset(spec, locate(spec, data_dir)).values[0] for spec in specs]


CONFIG = Config(name="ETT_1H", horizon=168, season=24, windows=20, load=_load)


def predict(histories: Sequence[np.ndarray], *, horizon: int, season: int | None = None, **options: Any) -> Any:
    """Forecasts after histories (T,): per history a mapping with "predictions" and a quantile per level, (P,) each."""
    chosen = {"quantiles": LEVELS, "season": season, **options}
    found = Forecaster(horizon, **chosen).fit([np.asarray(one, dtype=np.float64) for one in histories]).predict()
    return [
        {"predictions": one["forecast"][:, 0]}
        | {str(level): one["quantiles"][:, place, 0] for place, level in enumerate(LEVELS)}
        for one in found
    ]
