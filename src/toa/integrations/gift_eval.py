"""GIFT-Eval: a predictor with the interface that it evaluates; `toa bench gift-eval` measures it.

    GiftEvalPredictor(horizon=48, season=24).predict(entries)   # entries with "target", as GluonTS test data have

Alphabet: P horizon, T rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from toa._checks import check_choice
from toa.estimators import Forecaster

LEVELS = tuple(round(0.1 * place, 1) for place in range(1, 10))


class GiftEvalPredictor:
    """A predictor with the interface that GIFT-Eval evaluates: `predict` of entries gives one forecast per entry.

    Args:
        season: Steps of a season; None finds it.
        options: Further parameters of `toa.Forecaster`.
    """

    def __init__(self, horizon: int, season: int | None = None, **options: Any) -> None:
        self.prediction_length = horizon
        self.season = season
        self.options = options

    def predict(self, entries: Iterable[Mapping[str, Any]], **_: Any) -> Iterator["QuantileForecast"]:
        """Fit to the targets (T,) of all entries, and forecast after each."""
        kept = list(entries)
        targets = [np.asarray(entry["target"], dtype=np.float64) for entry in kept]
        chosen = {"quantiles": LEVELS, "season": self.season, **self.options}
        forecasts = Forecaster(self.prediction_length, **chosen).fit(targets).predict()
        for entry, forecast in zip(kept, forecasts, strict=True):
            quantiles = {level: forecast["quantiles"][:, place, 0] for place, level in enumerate(LEVELS)}
            yield QuantileForecast(str(entry.get("item_id", "")), forecast["forecast"][:, 0], quantiles)


@dataclass(frozen=True, slots=True)
class QuantileForecast:
    """A forecast of P steps: the median as mean, and its quantiles by level."""

    item_id: str
    mean: Float64[np.ndarray, " p"]
    quantiles: Mapping[float, Float64[np.ndarray, " p"]]

    def quantile(self, level: float | str) -> Float64[np.ndarray, " p"]:
        """The quantile at a level."""
        at = float(level)
        check_choice("level", str(at), [str(one) for one in self.quantiles])
        return self.quantiles[at]
