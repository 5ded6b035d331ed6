"""What a backtest found: forecasts from rolling origins beside what came."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from toa.estimators.answers import ids_of, named_columns
from toa.estimators.frames import Panel
from toa.estimators.horizon import Outcome
from toa.tasks.metrics import pinball_error


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Backtest:
    """Forecasts of N windows of P steps and C columns, in the units of the data.

    Attributes:
        metrics: Over all windows, steps and columns. "mse" and "mae" are of standardised values, as benchmarks have
            them; "coverage" is the share of values within the interval, "pinball" the mean loss of the quantiles,
            standardised, where there are such.
        by_column: Mean absolute error in its own units, and coverage, of each column.
        series: Which series of the data each window is of (N,).
        origins: Row of it that the first forecast is for (N,).
        forecast: (N, P, C).
        actual: (N, P, C).
        lower: Lower end of the interval (N, P, C), if there is one.
        upper: Its upper end.
        quantiles: (N, P, Q, C), if asked for.
        levels: Their levels.
        panel: The data.
    """

    metrics: dict[str, float]
    by_column: dict[str, dict[str, float]]
    series: Int64[np.ndarray, " n"]
    origins: Int64[np.ndarray, " n"]
    forecast: Float64[np.ndarray, "n p c"]
    actual: Float64[np.ndarray, "n p c"]
    lower: Float64[np.ndarray, "n p c"] | None
    upper: Float64[np.ndarray, "n p c"] | None
    quantiles: Float64[np.ndarray, "n p q c"] | None
    levels: tuple[float, ...]
    panel: Panel

    def frame(self) -> Any:
        """All forecasts in one frame of the data's kind, pandas for arrays: a row for each origin and step."""
        count, steps, _ = self.forecast.shape
        rows = (self.origins[:, None] + np.arange(steps)).ravel()
        owners = np.repeat(self.series, steps)
        columns: dict[str, Any] = {}
        if self.panel.id_column is not None:
            columns[self.panel.id_column] = ids_of(self.panel, owners)
        columns["origin"] = self._stamps(owners, np.repeat(self.origins, steps))
        columns[self.panel.time_column or "row"] = self._stamps(owners, rows)
        columns["step"] = np.tile(np.arange(1, steps + 1), count)
        for place, name in enumerate(self.by_column):
            columns[f"{name}_actual"] = self.actual[:, :, place].ravel()
        parts = ("forecast", "quantiles", "lower", "upper")
        found = {name: getattr(self, name) for name in parts if getattr(self, name) is not None}
        columns |= named_columns(found, tuple(self.by_column), self.levels)
        return pd.DataFrame(columns) if self.panel.backend is None else self.panel.give_back(columns)

    def _stamps(self, owners: np.ndarray, rows: np.ndarray) -> Any:
        if self.panel.times is None:
            return rows
        begins = np.cumsum([0, *self.panel.lengths])[:-1]
        first, *others = self.panel.times
        return first.append(others)[begins[owners] + rows]


def measure(
    outcome: Outcome,
    actual: Tensor,
    std: Tensor,
    levels: tuple[float, ...],
    owners: Tensor,
    origins: Tensor,
    panel: Panel,
    columns: tuple[str, ...],
) -> Backtest:
    """Compare forecasts with what came; `std` (N or 1, 1, C) takes errors to standardised ones."""
    error = (outcome.forecast - actual) / std  # (N, P, C)
    metrics = {"mse": float(error.square().mean()), "mae": float(error.abs().mean())}
    by_column = {
        name: {"mae": float((outcome.forecast - actual)[:, :, place].abs().mean())}
        for place, name in enumerate(columns)
    }
    if outcome.lower is not None and outcome.upper is not None:
        within = (actual >= outcome.lower) & (actual <= outcome.upper)
        metrics["coverage"] = float(within.double().mean())
        for place, name in enumerate(columns):
            by_column[name]["coverage"] = float(within[:, :, place].double().mean())
    if outcome.quantiles is not None:
        loss = pinball_error(outcome.quantiles, actual, torch.tensor(levels, dtype=torch.float64))
        metrics["pinball"] = float((loss / std.unsqueeze(1)).mean())
    arrays: Any = {name: None if part is None else part.numpy() for name, part in outcome._asdict().items()}
    return Backtest(
        metrics=metrics,
        by_column=by_column,
        series=owners.numpy(),
        origins=origins.numpy(),
        actual=actual.numpy(),
        levels=levels,
        panel=panel,
        **arrays,
    )


def without_last(frame: pd.DataFrame, test_size: float, id: str | None) -> pd.DataFrame:
    """A frame without the last share of the rows of each series, those that `backtest` of that share is about."""
    if not 0.0 < test_size < 1.0:
        raise ValueError(f"the share of rows to test on must lie in (0, 1), got {test_size}.")
    if id is None:
        return frame[: len(frame) - int(len(frame) * test_size)]
    if id not in frame.columns:
        raise ValueError(f"data must have a column {id!r}, got {', '.join(map(repr, frame.columns))}.")
    groups = frame.groupby(id, sort=False)[id]
    count = groups.transform("size").to_numpy()
    return frame[groups.cumcount().to_numpy() < count - (count * test_size).astype(int)]
