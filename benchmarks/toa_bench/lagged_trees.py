"""LightGBM on lags, covariates and the calendar, as users build it by hand: one model per column.

    trees = TableTrees(covariates=covariates, times=times, border=border, horizon=24, season=24, seed=2024)
    trees.direct(column)       # (N, P): one model for all steps, which reads values before the origin alone
    trees.recursive(column)    # (N, P): one step after another, each from the forecasts before it

Only this file and `wide_boosting` need LightGBM.

Alphabet: T rows, P horizon, N windows, K covariates, F features.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from toa._checks import ArgumentError

# rows that a model is fitted to
_MOST_ROWS = 60_000
_PARAMETERS = {
    "objective": "l1",
    "learning_rate": 0.05,
    "num_leaves": 31,
    "min_data_in_leaf": 20,
    "verbosity": -1,
    "deterministic": True,
    "num_threads": 1,
}
_TREES = 400
# last values that are read, and the numbers of seasons before a step
_RECENT = 6
_SEASONS = (1, 2, 3, 7)
# steps around a row whose covariates are read
_AROUND = (-2, -1, 0, 1)


def load_lightgbm() -> ModuleType:
    """The package."""
    try:
        import lightgbm
    except ImportError:
        raise ArgumentError("lightgbm", "be installed", "no such package", "pip install lightgbm") from None
    package: ModuleType = lightgbm
    return package


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TableTrees:
    """Models of the columns of a table, fitted to the rows before `border`.

    Attributes:
        covariates: Values that are known in all rows.
    """

    covariates: Float64[np.ndarray, "t k"]
    times: pd.DatetimeIndex
    border: int
    horizon: int
    season: int
    seed: int

    @property
    def origins(self) -> Int64[np.ndarray, " n"]:
        """First rows of the windows after the border."""
        return np.arange(self.border, len(self.times) - self.horizon + 1, self.horizon)

    @property
    def _first(self) -> int:
        """First origin with all lags."""
        return (max(_SEASONS) + 1) * self.season + self.horizon

    def direct(self, column: Float64[np.ndarray, " t"]) -> Float64[np.ndarray, "n p"]:
        """Forecasts by one model whose feature is the step ahead too."""
        random = np.random.default_rng(self.seed)
        origins = np.arange(self._first, self.border - self.horizon + 1)
        count = min(_MOST_ROWS, len(origins) * self.horizon)
        chosen = random.choice(len(origins) * self.horizon, count, replace=False)
        first, step = origins[chosen // self.horizon], chosen % self.horizon
        model = self._fit(self._direct_features(column, first, step), column[first + step])
        first = np.repeat(self.origins, self.horizon)
        step = np.tile(np.arange(self.horizon), len(self.origins))
        forecast = np.asarray(model.predict(self._direct_features(column, first, step), num_threads=1))
        return forecast.reshape(-1, self.horizon)

    def recursive(self, column: Float64[np.ndarray, " t"]) -> Float64[np.ndarray, "n p"]:
        """Forecasts by a model of one step."""
        rows = np.arange(self._first, self.border)
        # the covariates of the next step are known, but for the last step of a window
        known = np.minimum(rows + 1, self.border - 1)
        model = self._fit(self._lags(column, rows, known), column[rows])
        origins = self.origins
        # each window continues its own past
        pasts = np.tile(column, (len(origins), 1))
        forecasts = np.empty((len(origins), self.horizon))
        for step in range(self.horizon):
            now = origins + step
            forecasts[:, step] = model.predict(self._lags(pasts, now, origins + self.horizon - 1), num_threads=1)
            pasts[np.arange(len(origins)), now] = forecasts[:, step]
        return forecasts

    def _fit(self, features: np.ndarray, target: np.ndarray) -> Any:
        lightgbm = load_lightgbm()
        data = lightgbm.Dataset(features, target, params=_PARAMETERS)
        return lightgbm.train(_PARAMETERS | {"seed": self.seed}, data, num_boost_round=_TREES)

    def _direct_features(self, column: np.ndarray, first: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Features of steps after origins: values before the origin, and what is known of the step."""
        rows = first + step
        ahead = (step // self.season + 1) * self.season
        columns = [step.astype(np.float64)]
        columns += [column[first - back] for back in range(1, _RECENT + 1)]
        columns += [column[rows - ahead - (seasons - 1) * self.season] for seasons in _SEASONS]
        columns += [column[first[:, None] - np.arange(1, self.season + 1)].mean(1)]
        return np.column_stack([*columns, *self._known(rows, first + self.horizon - 1)])

    def _lags(self, values: np.ndarray, rows: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Features of rows from the values before them; `values` are one column, or one per row."""

        def before(back: np.ndarray) -> np.ndarray:
            if values.ndim == 1:
                return np.asarray(values[rows[:, None] - back])
            return np.asarray(values[np.arange(len(rows))[:, None], rows[:, None] - back])

        lags = np.concatenate([np.arange(1, _RECENT + 1), self.season * np.array(_SEASONS)])
        season = before(np.arange(1, self.season + 1)).mean(1)
        return np.column_stack([before(lags), season, *self._known(rows, last)])

    def _known(self, rows: np.ndarray, last: np.ndarray) -> list[np.ndarray]:
        """Covariates around rows, up to the last row that is known, and the calendar."""
        columns = [self.covariates[np.minimum(rows + moved, last)] for moved in _AROUND]
        times = self.times[rows]
        calendar = [times.hour, times.day_of_week, times.day_of_year]
        return [*columns, *(np.asarray(part, dtype=np.float64) for part in calendar)]
