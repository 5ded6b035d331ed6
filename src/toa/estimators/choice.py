"""The choice of a forecaster: baselines and the network, weighted at rolling origins, with intervals and quantiles.

Alphabet: S series, C columns, P horizon, Q levels, W windows.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from toa._checks import check_shape, check_shares
from toa.data.panel import Panel
from toa.estimators.base import NETWORK
from toa.estimators.baselines import seasonal_acf
from toa.estimators.ensemble import Ensemble, RollingOrigins, series_scale
from toa.estimators.intervals import Prediction, conformal_width

# seasons to search for in data without dates, and the autocorrelation that makes one
_SEASONS, _LEAST_CORRELATION = (24, 12, 7, 4, 48, 52, 96), 0.3
# quantiles of fewer windows are taken over all steps and columns
_FEW_WINDOWS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Weights of the methods, and what intervals and quantiles need.

    Attributes:
        scale: Seasonal error of each series and column (S, C), at least a small number.
        width: Half of the interval (P, C), in scales; None for no interval.
        offsets: Quantiles minus forecast (P, Q, C), in scales; None without quantiles.
        counts: Columns that hold counts, 0, 1, 2, …: their forecasts are at least 0.
    """

    ensemble: Ensemble
    scale: Float64[np.ndarray, "s c"]
    width: Float64[np.ndarray, "p c"] | None
    offsets: Float64[np.ndarray, "p q c"] | None
    counts: Bool[np.ndarray, " c"]

    @classmethod
    def fit(
        cls,
        panel: Panel,
        columns: Sequence[str],
        origins: RollingOrigins,
        *,
        season: int,
        forecasts: Mapping[str, Float64[np.ndarray, "rows p"]],
        network: Float64[np.ndarray, "w p c"] | None,
        interval: float | None,
        levels: Sequence[float],
        seed: int,
    ) -> "Choice":
        """Choose weights at the origins of the series, and calibrate the interval there.

        `forecasts` has those of the baselines at the origins, column by column, and `network` those of the network;
        None if there is none.
        """
        series = panel.histories(columns)
        each = origins.per_column(len(columns))
        own = {} if network is None else {NETWORK: _to_rows(network)}
        ensemble, found = Ensemble.fit(series, each, {**forecasts, **own}, season=season, seed=seed)
        scale = np.nan_to_num(series_scale(series, season))
        # a series that never changes has the smallest scale of the others
        least = scale[scale > 0].min() if (scale > 0).any() else 1.0
        scale = np.maximum(scale, least).reshape(-1, len(columns))
        whole = [(part >= 0).all(0) & (part == np.round(part)).all(0) for part in panel.take(columns)]
        counts = np.all(whole, axis=0)
        width = offsets = None
        if found is not None:
            unit = scale[origins.series][:, None]
            error = _to_columns(each.actual(series) - found, len(columns)) / unit  # (W, P, C)
            width = None if interval is None else _width(error, interval)
            offsets = _offsets(error, levels) if len(levels) else None
        elif interval is not None:
            _warn_without_interval(interval, "no series is longer than the horizon")
        return cls(ensemble=ensemble, scale=scale, width=width, offsets=offsets, counts=counts)

    def combine(
        self,
        histories: Sequence[Float64[np.ndarray, " _"]],
        network: Float64[np.ndarray, "w p c"] | None,
        owners: Sequence[int],
    ) -> Prediction:
        """Forecasts after histories, one per window and column; `owners` are the series of the windows."""
        others = {} if network is None else {NETWORK: _to_rows(network)}
        point = _to_columns(self.ensemble.predict(histories, others), len(self.counts))
        scale = self.scale[np.asarray(owners)][:, None]  # (W, 1, C)
        parts: dict[str, np.ndarray] = {"forecast": point}
        if self.offsets is not None:
            parts["quantiles"] = point[:, :, None] + self.offsets * scale[:, :, None]
        if self.width is not None:
            parts |= {"lower": point - self.width * scale, "upper": point + self.width * scale}
        floor = np.where(self.counts, 0.0, -np.inf)
        return Prediction(**{name: torch.from_numpy(np.maximum(part, floor)) for name, part in parts.items()})

    def add_series(self, scale: Float64[np.ndarray, "s c"]) -> "Choice":
        """The choice with further series that have these seasonal errors."""
        scale = np.maximum(np.nan_to_num(scale), self.scale.min())
        return replace(self, scale=np.concatenate([self.scale, scale]))

    def check(self, series: int, columns: int, horizon: int, levels: int, season: int) -> None:
        """Raise ValueError if a loaded choice has other sizes than its forecaster, or weights that are no shares."""
        shapes = {"scale": (series, columns), "counts": (columns,), "width": (horizon, columns)}
        shapes["offsets"] = (horizon, levels, columns)
        for name, shape in shapes.items():
            part = getattr(self, name)
            if part is not None:
                check_shape(f"choice.{name}", part, str(shape), shape)
        check_shares(self.ensemble.weights)
        got = self.ensemble.horizon, self.ensemble.season
        if got != (horizon, season):
            raise ValueError(f"choice must have horizon and season {horizon, season}, got {got}")
        found = self.combine([np.zeros(2)] * columns, np.zeros((1, horizon, columns)), [0]).forecast
        check_shape("forecast", found, "(W, P, C)", (1, horizon, columns))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        tensors, facts = self.ensemble.state()
        for name in ("scale", "width", "offsets", "counts"):
            if (part := getattr(self, name)) is not None:
                tensors[name] = torch.from_numpy(np.ascontiguousarray(part))
        return tensors, facts

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "Choice":
        """From the result of `state`."""
        parts: dict[str, Any] = {
            name: tensors[name].cpu().numpy() if name in tensors else None
            for name in ("scale", "width", "offsets", "counts")
        }
        return cls(ensemble=Ensemble.from_state(tensors, facts), **parts)


def find_season(series: Sequence[Float64[np.ndarray, " _"]]) -> int:
    """Season of most series, by the autocorrelation of their changes; 1 if there is none."""
    found = {season: seasonal_acf(series, season) for season in _SEASONS}
    best = max(found, key=found.__getitem__)
    return best if found[best] >= _LEAST_CORRELATION else 1


def _to_rows(parts: Float64[np.ndarray, "w p c"]) -> Float64[np.ndarray, "rows p"]:
    return np.ascontiguousarray(parts.transpose(0, 2, 1)).reshape(-1, parts.shape[1])


def _to_columns(rows: Float64[np.ndarray, "rows p"], columns: int) -> Float64[np.ndarray, "w p c"]:
    return rows.reshape(-1, columns, rows.shape[1]).transpose(0, 2, 1)


def _width(error: Float64[np.ndarray, "w p c"], level: float) -> np.ndarray | None:
    try:
        return conformal_width(torch.from_numpy(np.abs(error)), level).numpy()
    except ValueError as reason:
        _warn_without_interval(level, str(reason))
        return None


def _warn_without_interval(level: float, reason: str) -> None:
    warnings.warn(f"the forecast has no interval of {level}: {reason}", UserWarning, stacklevel=4)


def _offsets(error: Float64[np.ndarray, "w p c"], levels: Sequence[float]) -> np.ndarray:
    if len(error) < _FEW_WINDOWS:
        pooled = np.quantile(error, levels)[None, :, None]
        return np.broadcast_to(pooled, (error.shape[1], len(levels), error.shape[2]))
    return np.quantile(error, levels, axis=0).transpose(1, 0, 2)  # (P, Q, C)
