"""Ensemble: baselines and given forecasts, weighted by their errors at rolling origins.

    origins = RollingOrigins.choose(lengths, horizon=24, share=0.125)
    forecasts = validate_methods(series, origins, season=24, seed=0) | {"toa": forecasts_at_the_origins}
    chosen, _ = Ensemble.fit(series, origins, forecasts, season=24)
    chosen.weights                                       # {"linear 336": 0.6, "toa": 0.4}
    chosen.predict(series, others={"toa": forecasts})    # (N, P)

The weights are chosen for all series together: forecasts are added one by one, each time the one that lowers the mean
error most. Errors are divided by the seasonal error of their series, as MASE does.

Alphabet: N series, P horizon, W windows, one per series and origin.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from toa.estimators.base import TimeLimit
from toa.estimators.baselines import BASELINES, LinearModel, align_histories
from toa.tasks.metrics import seasonal_error

Series = Sequence[Float64[np.ndarray, " _"]]

# windows to validate on that are enough to choose weights, and origins per series if there are many series
_ENOUGH_WINDOWS, _FEWEST_ORIGINS = 400, 2
# windows times columns to validate on, and windows that a wide table has nevertheless, for its intervals
_MOST_WINDOWS, _LEAST_WINDOWS = 4_000, 40
# series to validate on, drawn at random from more
_MOST_SERIES = 4_000
# rows that methods of a single series read, at least and at most, and values that one method reads in all
_LOCAL_ROWS, _MOST_ROWS, _LINEAR_VALUES = 512, 4_320, 30_000_000
# longest look-back of a linear model
_LOOKBACK = 720
# forecasts that are averaged
_MEMBERS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RollingOrigins:
    """Windows to validate on: the forecast of `series` begins `back` rows before its end.

    Attributes:
        series: Index of the series of each window (W,).
        back: Rows from the origin to the end of the series (W,).
        held: Rows at the end of each series that lie after its first origin (N,); 0 if it is too short.
    """

    series: Int64[np.ndarray, " w"]
    back: Int64[np.ndarray, " w"]
    held: Int64[np.ndarray, " n"]
    horizon: int

    @classmethod
    def choose(
        cls, lengths: Sequence[int], *, horizon: int, share: float, columns: int = 1, seed: int = 2024
    ) -> "RollingOrigins":
        """Origins in the last `share` of each series, at least two horizons but at most half of its rows.

        A series that has more rows than the horizon has at least one origin; few series with few columns have many.
        """
        rows = np.asarray(lengths, dtype=np.int64)
        wanted = np.maximum(_FEWEST_ORIGINS * horizon, (rows * share).astype(np.int64))
        held = np.where(rows > horizon, np.maximum(horizon, np.minimum(rows // 2, wanted)), 0)
        chosen = np.flatnonzero(held)
        if len(chosen) > _MOST_SERIES:
            chosen = np.sort(np.random.default_rng(seed).choice(chosen, _MOST_SERIES, replace=False))
        windows = min(_ENOUGH_WINDOWS, max(_LEAST_WINDOWS, _MOST_WINDOWS // columns))
        count = max(_FEWEST_ORIGINS, -(-windows // max(1, len(chosen))))
        backs = [np.unique(np.linspace(horizon, held[one], count).astype(np.int64)) for one in chosen]
        series = np.repeat(chosen, [len(own) for own in backs])
        return cls(series=series, back=np.concatenate([series[:0], *backs]), held=held, horizon=horizon)

    def __len__(self) -> int:
        return len(self.series)

    def per_column(self, columns: int) -> "RollingOrigins":
        """The same windows of each of C columns; column c of series s is the series s * C + c."""
        series = (self.series[:, None] * columns + np.arange(columns)).ravel()
        back, held = np.repeat(self.back, columns), np.repeat(self.held, columns)
        return RollingOrigins(series=series, back=back, held=held, horizon=self.horizon)

    def histories(self, series: Series) -> list[np.ndarray]:
        """Values before the origin of each window."""
        return [series[one][: len(series[one]) - back] for one, back in zip(self.series, self.back, strict=True)]

    def actual(self, series: Series) -> Float64[np.ndarray, "w p"]:
        """Values (W, P) after the origins."""
        ends = [len(series[one]) - back for one, back in zip(self.series, self.back, strict=True)]
        found = [series[one][end : end + self.horizon] for one, end in zip(self.series, ends, strict=True)]
        return np.stack(found).astype(np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensemble:
    """A weighted mean of forecasts.

    Attributes:
        weights: Weight per method; they sum to 1.
        errors: Mean scaled error at the origins, of each method and of the "ensemble".
        linear: The linear models with a weight.
    """

    season: int
    horizon: int
    weights: Mapping[str, float]
    errors: Mapping[str, float]
    linear: Mapping[str, LinearModel] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        series: Series,
        origins: RollingOrigins,
        forecasts: Mapping[str, Float64[np.ndarray, "w p"]],
        *,
        season: int,
        seed: int = 2024,
    ) -> tuple["Ensemble", Float64[np.ndarray, "w p"] | None]:
        """Choose weights at the origins, then fit the linear models with a weight to all rows.

        Returns:
            The ensemble, and its forecasts at the origins, from rows before them; None without origins.

        Args:
            origins: Windows to validate on; without any, the ensemble is the seasonal naive forecast.
            forecasts: Forecasts at the origins by methods that have not seen the rows after them.
            seed: Seed of the windows that linear models are fitted to.
        """
        horizon = origins.horizon
        if not len(origins):
            return cls(season=season, horizon=horizon, weights={"seasonal naive": 1.0}, errors={}), None
        scale = series_scale(series, season)[origins.series]
        weights, errors = choose_weights(forecasts, origins.actual(series), scale)
        fit = partial(_fit_linear, _aligned(series, None), season, horizon, seed=seed)
        linear = {name: model for name in weights if name.startswith("linear") and (model := fit(name))}
        mixed = np.sum([weight * forecasts[name] for name, weight in weights.items()], axis=0)
        return cls(season=season, horizon=horizon, weights=weights, errors=errors, linear=linear), mixed

    def predict(
        self, series: Series, others: Mapping[str, Float64[np.ndarray, "n p"]] | None = None
    ) -> Float64[np.ndarray, "n p"]:
        """Forecast after the end of each series; `others` has the forecasts of other models with a weight."""
        members = self.members(series, tuple(self.weights)) | dict(others or {})
        return np.sum([weight * members[name] for name, weight in self.weights.items()], axis=0)

    def members(self, series: Series, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Forecasts (N, P) of some methods, but not of other models."""
        found = {}
        local = _aligned(series, _local_rows(self.season))
        for name in names:
            if name in BASELINES:
                found[name] = BASELINES[name](local, self.season, self.horizon)
            elif name in self.linear:
                model = self.linear[name]
                found[name] = model.predict(_aligned(series, len(model.weights) - 1))
        return found

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        tensors = {f"linear.{name}": torch.from_numpy(model.weights) for name, model in self.linear.items()}
        facts = {name: getattr(self, name) for name in ("season", "horizon")}
        facts |= {"weights": dict(self.weights), "errors": dict(self.errors)}
        return tensors, facts | {"linear": {name: model.state() for name, model in self.linear.items()}}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "Ensemble":
        """From the result of `state`."""
        linear = {
            name: LinearModel.from_state(state, tensors[f"linear.{name}"].double().cpu().numpy())
            for name, state in facts["linear"].items()
        }
        return cls(**{**facts, "linear": linear})


def choose_weights(
    forecasts: Mapping[str, Float64[np.ndarray, "w p"]],
    actual: Float64[np.ndarray, "w p"],
    scale: Float64[np.ndarray, " w"],
) -> tuple[dict[str, float], dict[str, float]]:
    """Weights that lower the mean of |error| / scale, and that mean per forecast and for the "ensemble"."""
    usable = np.isfinite(scale) & (scale > 0)
    if not usable.any():
        usable, scale = np.ones(len(scale), dtype=bool), np.ones(len(scale))
    unit = scale[usable, None]
    target = actual[usable] / unit
    members = {name: forecast[usable] / unit for name, forecast in forecasts.items()}
    errors = {name: float(np.nanmean(np.abs(member - target))) for name, member in members.items()}
    total = np.zeros_like(target)
    counts = dict.fromkeys(members, 0)
    best: tuple[float, dict[str, float]] | None = None
    for count in range(1, _MEMBERS + 1):
        found = {name: float(np.nanmean(np.abs((total + member) / count - target))) for name, member in members.items()}
        name = min(found, key=found.__getitem__)
        total += members[name]
        counts[name] += 1
        if best is None or found[name] < best[0]:
            best = found[name], {one: number / count for one, number in counts.items() if number}
    assert best is not None
    return best[1], errors | {"ensemble": best[0]}


def series_scale(series: Series, season: int) -> Float64[np.ndarray, " n"]:
    """Seasonal error of each series; of its steps, if it has less than two seasons."""
    history = _aligned(series, None)
    if history.shape[1] < 2:
        return np.full(len(series), np.nan)
    found = seasonal_error(history, season) if season < history.shape[1] else np.full(len(series), np.nan)
    return np.where(np.isnan(found), seasonal_error(history, 1), found)


def linear_lookbacks(season: int, horizon: int) -> tuple[int, ...]:
    """Look-backs of the linear models: two, three and many seasons, at least the horizon, at most 720 rows."""
    many = 4 * season if season in (4, 12) else min(max(14 * season, 104), 720)
    wanted = max(2 * season, horizon, 4), max(3 * season, 2 * horizon), max(many, horizon)
    return tuple(sorted({min(rows, _LOOKBACK) for rows in wanted}))


def history_rows(season: int, horizon: int) -> int:
    """Rows that the methods read at most."""
    return max((_local_rows(season), *linear_lookbacks(season, horizon)))


def _local_rows(season: int) -> int:
    return max(_LOCAL_ROWS, min(8 * season, _MOST_ROWS))


def validate_methods(
    series: Series, origins: RollingOrigins, season: int, seed: int, limit: TimeLimit | None = None
) -> dict[str, np.ndarray]:
    """Forecasts (W, P) of the methods at the origins; linear models are fitted to the rows before all origins.

    After the time limit, no further method begins; there is at least one.
    """
    if not len(origins):
        return {}
    histories = origins.histories(series)
    found: dict[str, np.ndarray] = {}
    for name in BASELINES:
        if not found or limit is None or limit.left > 0:
            found[name] = _in_blocks(partial(_local, name, season, origins.horizon), histories, _local_rows(season))
    earlier = [values[: len(values) - held] for values, held in zip(series, origins.held, strict=True) if held]
    past = _aligned(earlier, None)
    for lookback in linear_lookbacks(season, origins.horizon):
        for name in (f"linear {lookback}", f"linear {lookback} by level"):
            if limit is None or limit.left > 0:
                model = _fit_linear(past, season, origins.horizon, name, seed=seed)
                if model is not None:
                    found[name] = _in_blocks(model.predict, histories, lookback)
    return found


def _local(name: str, season: int, horizon: int, history: np.ndarray) -> np.ndarray:
    return BASELINES[name](history, season, horizon)


def _in_blocks(
    method: Callable[[np.ndarray], np.ndarray], histories: Series, rows: int, values: int = _LINEAR_VALUES
) -> np.ndarray:
    """Forecasts after the last rows of histories, in blocks of at most this number of values."""
    size = max(1, values // rows)
    parts = [histories[start : start + size] for start in range(0, len(histories), size)]
    return np.concatenate([method(_aligned(part, rows)) for part in parts])


def _fit_linear(history: np.ndarray, season: int, horizon: int, name: str, *, seed: int) -> LinearModel | None:
    """Fit a linear model by its name, "linear 336" or "linear 336 by level"."""
    return LinearModel.fit(
        history,
        season=season,
        horizon=horizon,
        lookback=int(name.split()[1]),
        by_season=not name.endswith("by level"),
        seed=seed,
    )


def _aligned(series: Series, most: int | None) -> np.ndarray:
    return align_histories(series, max(_LOCAL_ROWS, _LINEAR_VALUES // len(series)) if most is None else most)
