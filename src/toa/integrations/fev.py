"""fev: forecasts as its windows expect them; `toa bench fev` measures them.

predictions = predict(histories, horizon=168, season=24)   # {"predictions": …, "0.1": …} per history
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from toa.estimators import Forecaster
from toa.integrations.gift_eval import LEVELS


def predict(histories: Sequence[np.ndarray], *, horizon: int, season: int | None = None, **options: Any) -> Any:
    """Forecasts after histories (T,): per history a mapping with "predictions" and a quantile per level, (P,) each."""
    chosen = {"quantiles": LEVELS, "season": season, **options}
    found = Forecaster(horizon, **chosen).fit([np.asarray(one, dtype=np.float64) for one in histories]).predict()
    return [
        {"predictions": one["forecast"][:, 0]}
        | {str(level): one["quantiles"][:, place, 0] for place, level in enumerate(LEVELS)}
        for one in found
    ]
