"""The method that reads all columns of a table: own lags and components of all columns, see `component_ridge`.

    fitted = AllColumnsMethod().fit(training)       # None with few columns or rows
    fitted.forecast(histories)                      # (N, P)

Each column of each series is standardised by its rows of fit; a series that fit has not seen, by its rows before the
forecast.

Alphabet: N one per window and column, W windows, C columns, S series, T rows, P horizon.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from toa._checks import ArgumentError, check_shape
from toa.data.panel import Id, Panel
from toa.estimators.component_ridge import (
    FEWEST_COLUMNS,
    MOST_COLUMNS,
    ComponentRidge,
    TrainingRows,
    fit_component_ridge,
)
from toa.estimators.effort import Ceiling
from toa.estimators.methods import Family, ForecastRows, Histories, Method, Training, to_rows
from toa.estimators.settings import ForecastSettings

# how the method is named among the weights
ALL_COLUMNS = "all columns"
# values of windows that are forecast together
_BLOCK_VALUES = 8_000_000
# share of the rows before the end of each series on which strengths are compared
_COMPARED_SHARE = 0.2
# a standard deviation below this share of the mean size is that of a constant column
_CONSTANT = 1e-9
# largest distance from the last row that a file may hold: it is the number of rows that are read
_MOST_BACK = 100_000
# arrays of a map in a file
_ARRAYS = ("back", "row_components", "components", "own", "shared", "constant")


@dataclass(frozen=True, slots=True)
class AllColumnsMethod:
    """Ridge regression of each column on its own lags and on components of all columns."""

    def fit(self, training: Training) -> "FittedAllColumns | None":
        """See `Method`."""
        panel = training.panel
        columns = training.columns
        if panel is None or not FEWEST_COLUMNS <= len(columns) <= MOST_COLUMNS:
            return None
        means, deviations = _column_scales(panel, columns)
        parts = []
        for index, values in enumerate(panel.take(columns)):
            begins = _begins(panel, columns, index)
            rows = _standardise(values, means[index], deviations[index], begins)
            border = len(values) - max(training.horizon, int(len(values) * _COMPARED_SHARE))
            parts.append(TrainingRows(values=rows, begins=begins, border=border))
        ridge = fit_component_ridge(parts, horizon=training.horizon, season=training.season, seed=training.seed)
        return None if ridge is None else FittedAllColumns(ridge, panel.ids, means, deviations)

    def seconds(self, ceiling: Ceiling) -> float:
        """The time so far: all methods are fitted again, to all rows."""
        return ceiling.passed


@dataclass(frozen=True, slots=True, eq=False)
class FittedAllColumns:
    """A fitted map, and the mean and standard deviation (S, C) of each column of the series of fit."""

    ridge: ComponentRidge
    ids: tuple[Id, ...]
    means: Float64[np.ndarray, "s c"]
    deviations: Float64[np.ndarray, "s c"]
    reads_panel: bool = True

    @property
    def rows_read(self) -> int:
        """Those of the map."""
        return self.ridge.rows_read

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        panel = histories.panel
        assert panel is not None
        columns = histories.columns
        read = self.rows_read
        size = max(1, _BLOCK_VALUES // (read * len(columns)))
        owners = {name: place for place, name in enumerate(self.ids)}
        forecasts = []
        for start in range(0, len(histories.places), size):
            places = histories.places[start : start + size]
            windows = []
            means = []
            deviations = []
            for (index, stop), rows in zip(places, panel.past(columns, places, read), strict=True):
                mean, deviation = self._scales(owners.get(panel.ids[index]), panel, columns, (index, stop))
                begins = _begins(panel, columns, index) - (stop - read)
                windows.append(_standardise(rows, mean, deviation, begins))
                means.append(mean)
                deviations.append(deviation)
            forecast = self.ridge.predict(np.stack(windows))  # (W, P, C)
            forecasts.append(forecast * np.stack(deviations)[:, None] + np.stack(means)[:, None])
        return to_rows(np.concatenate(forecasts))

    def _scales(
        self, owner: int | None, panel: Panel, columns: tuple[str, ...], window: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation (C,) of a series of fit; of a new one those of its rows before the window ends."""
        if owner is None:
            return _scale_of_histories(panel.histories(columns, [window]))
        return self.means[owner], self.deviations[owner]

    def refit(self, training: Training) -> "FittedAllColumns | None":
        """Fitted to these rows."""
        return AllColumnsMethod().fit(training)


class AllColumns(Family):
    """One method for tables with several columns."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """The method; it is not fitted to a table with few columns."""
        return {ALL_COLUMNS: AllColumnsMethod()}

    def save(self, fitted: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Arrays of the map, scales, the ids of the series, and the strengths that were chosen."""
        method = fitted.get(ALL_COLUMNS)
        if method is None:
            return {}, None
        arrays = {name: np.ascontiguousarray(getattr(method.ridge, name)) for name in _ARRAYS}
        arrays |= {"means": method.means, "deviations": method.deviations}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return tensors, {"ids": list(method.ids), "strengths": dict(method.ridge.strengths)}

    def load(
        self, tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int
    ) -> Mapping[str, FittedAllColumns]:
        """From the result of `save`; raises ValueError for arrays that do not fit one another."""
        ids = tuple(facts["ids"])
        columns, width = tensors["row_components"].shape
        count, components = tensors["components"].shape
        distances = len(tensors["back"])
        sizes = {
            "back": (distances,),
            "components": (max(1, count // width) * width, components),
            "own": (columns, distances, horizon),
            "shared": (components, columns, horizon),
            "constant": (columns, horizon),
            "means": (len(ids), columns),
            "deviations": (len(ids), columns),
        }
        for name, shape in sizes.items():
            check_shape(f"{ALL_COLUMNS}: {name}", tensors[name], str(shape), shape)
        arrays = {name: tensors[name].cpu().numpy() for name in (*_ARRAYS, "means", "deviations")}
        back = arrays["back"]
        if back.dtype != np.int64 or not distances or back.min() < 0 or back.max() > _MOST_BACK:
            raise ArgumentError(
                f"{ALL_COLUMNS}: back", f"have distances from 0 to {_MOST_BACK}", f"{back.dtype} {back[:4]}"
            )
        strengths = {str(name): float(value) for name, value in facts["strengths"].items()}
        ridge = ComponentRidge(**{name: arrays[name] for name in _ARRAYS}, strengths=strengths)
        return {ALL_COLUMNS: FittedAllColumns(ridge, ids, arrays["means"], arrays["deviations"])}


def _begins(panel: Panel, columns: tuple[str, ...], index: int) -> np.ndarray:
    """First row (C,) of each column of a series."""
    if panel.begins is None:
        return np.zeros(len(columns), dtype=np.int64)
    return panel.begins[index][[panel.columns.index(name) for name in columns]]


def _column_scales(panel: Panel, columns: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (S, C) of each column of each series, from its first value on."""
    scales = [
        _scale_of_histories(panel.histories(columns, [(index, rows)])) for index, rows in enumerate(panel.lengths)
    ]
    return np.stack([mean for mean, _ in scales]), np.stack([deviation for _, deviation in scales])


def _scale_of_histories(histories: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (C,) of columns; 1 for a constant column."""
    means = np.array([part.mean() for part in histories])
    deviations = np.array([part.std() for part in histories])
    return means, np.where(deviations > _CONSTANT * np.abs(means), deviations, 1.0)


def _standardise(
    values: np.ndarray, means: np.ndarray, deviations: np.ndarray, begins: np.ndarray
) -> Float64[np.ndarray, "t c"]:
    """Standardised values (T, C); 0, the mean, before a column begins."""
    scaled = (values - means) / deviations
    before = np.arange(len(values))[:, None] < begins
    return np.where(before, 0.0, scaled) if begins.max(initial=0) > 0 else scaled
