"""fev: forecasts as its windows expect them; `toa bench fev` measures them.

predictions = predict(histories, horizon=168, season=24)   # {"predictions": …, "0.1": …} per history
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from toa.integrations.gift_eval import GiftEvalPredictor


def predict(histories: Sequence[np.ndarray], *, horizon: int, season: int | None = None, **options: Any) -> Any:
    """Forecasts after histories (T,): per history a mapping with "predictions" and a quantile per level, (P,) each."""
    forecasts = GiftEvalPredictor(horizon, season, **options).predict({"target": history} for history in histories)
    return [
        {"predictions": history.mean} | {str(level): values for level, values in history.quantiles.items()}
        for history in forecasts
    ]
