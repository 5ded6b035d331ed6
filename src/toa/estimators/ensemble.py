"""Ensemble: baselines and given forecasts, weighted by their errors at rolling origins.

    origins = RollingOrigins.choose(lengths, horizon=24, share=0.125)
    forecasts = validate_methods(series, origins, season=24, seed=0) | {"toa": forecasts_at_the_origins}
    chosen, _ = Ensemble.fit(series, origins, forecasts, season=24)
    chosen.weights                                       # {"linear 336": 0.6, "toa": 0.4}
    chosen.predict(series, others={"toa": forecasts})    # (N, P)

The weights are chosen for all series together, by errors that are divided by the seasonal error of their series, as
MASE does. With little data the best baseline gets a part of the weight. `Choice` adds the intervals and quantiles of a
forecaster.

Alphabet: N series of one column, S series of C columns, P horizon, Q levels, W windows, one per series and origin.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from toa._checks import check_shape, check_shares
from toa.data.panel import Panel
from toa.estimators.base import NETWORK, TimeLimit, greedy_weights, named, weighted_mean
from toa.estimators.baselines import BASELINES, REGRESSIONS, LinearModel, align_histories
from toa.estimators.boosting import MOST_LAGS, BoostedTrees
from toa.estimators.intervals import Prediction, conformal_width
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
# how the second kind of linear models is named, and the boosted trees
_BY_LEVEL, TREES = " by level", "boosting"
# longest horizon that trees forecast, one step after another
_TREE_STEPS = 60
# windows that the best baseline counts as in the weights, and windows from which on it does not
_PRIOR_WINDOWS, _MANY_WINDOWS = 6.0, 200.0
# how often the last origin counts
_LAST_ORIGIN = 2.0
# baselines that are members from the start, how often each, and their error at most, in least errors
_FIRST, _SEATS, _CLOSE = 3, 2, 1.15
# a seasonal error below this share of the largest value is rounding
_ROUNDING = 1e-12
# quantiles of fewer windows are taken over all steps and columns
_FEW_WINDOWS = 40
# arrays of a choice in a file
_ARRAYS = ("scale", "width", "offsets", "counts")


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

    @property
    def independent(self) -> float:
        """Number of windows that do not overlap and would fill the validated rows."""
        return float(self.held[np.unique(self.series)].sum() / self.horizon)

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
        errors: Mean error at the origins, of each method and of the "ensemble".
        measure: "MASE", or "MAE" in the units of the data if MASE is undefined, because the seasonal naive forecast has
            no error in any series.
        linear: The linear models with a weight.
        trees: The boosted trees if they have a weight.
    """

    season: int
    horizon: int
    weights: Mapping[str, float]
    errors: Mapping[str, float]
    linear: Mapping[str, LinearModel] = field(default_factory=dict)
    trees: BoostedTrees | None = None
    measure: str = "MASE"

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
        # the last origin is most like the forecasts to come
        counts = np.where(origins.back == origins.back.min(), _LAST_ORIGIN, 1.0)
        weights, errors = choose_weights(forecasts, origins.actual(series), scale, origins.independent, counts)
        rows, sizes = _aligned(series), {"season": season, "horizon": horizon}
        fitted = {name: _fit_linear(rows, name, seed=seed, **sizes) for name in weights if name.startswith("linear")}
        linear = {name: model for name, model in fitted.items() if model is not None}
        trees = fit_trees(rows, season, horizon, seed=seed) if TREES in weights else None
        mixed, measure = weighted_mean(weights, forecasts), "MASE" if (scale > 0).any() else "MAE"
        return cls(weights=weights, errors=errors, linear=linear, trees=trees, measure=measure, **sizes), mixed

    def predict(
        self, series: Series, others: Mapping[str, Float64[np.ndarray, "n p"]] | None = None
    ) -> Float64[np.ndarray, "n p"]:
        """Forecast after the end of each series; `others` has the forecasts of other models with a weight."""
        return weighted_mean(self.weights, self.members(series, tuple(self.weights)) | dict(others or {}))

    def members(self, series: Series, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Forecasts (N, P) of some methods, but not of other models."""
        found = {}
        local = align_histories(series, _local_rows(self.season))
        for name in names:
            if name in BASELINES:
                found[name] = BASELINES[name](local, self.season, self.horizon)
            elif name in self.linear:
                model = self.linear[name]
                found[name] = model.predict(align_histories(series, len(model.weights) - 1))
            elif name == TREES and self.trees is not None:
                found[name] = self.trees.predict(align_histories(series, MOST_LAGS), self.horizon)
        return found


def choose_weights(
    forecasts: Mapping[str, Float64[np.ndarray, "w p"]],
    actual: Float64[np.ndarray, "w p"],
    scale: Float64[np.ndarray, " w"],
    independent: float = np.inf,
    counts: Float64[np.ndarray, " w"] | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Weights that lower the mean of |error| / scale, and that mean per forecast and for the "ensemble".

    The mean begins with the best baselines, if their errors are close to the least: the errors of models that learn
    from all series depend more on the time in which they are measured. The best baseline has the more weight, the fewer
    independent windows there are and the closer its error is. Windows count as `counts` has it; those whose scale is 0
    or NaN are left out. If all are, errors count in the units of the data.
    """
    usable = np.isfinite(scale) & (scale > 0)
    if not usable.any():
        usable, scale = np.ones(len(scale), dtype=bool), np.ones(len(scale))
    unit = scale[usable, None]
    target = actual[usable] / unit
    each = np.ones((len(target), 1)) if counts is None else counts[usable, None] / counts[usable].mean()
    members = {name: forecast[usable] / unit for name, forecast in forecasts.items()}

    def loss(mean: np.ndarray) -> float:
        return float(np.nanmean(np.abs(mean - target) * each))

    errors = {name: loss(member) for name, member in members.items()}
    local = sorted((name for name in members if name in BASELINES), key=errors.__getitem__)
    first = [name for name in local[:_FIRST] if errors[name] <= _CLOSE * min(errors.values())]
    weights, best = greedy_weights(members, loss, _SEATS * first)
    if local and independent < _MANY_WINDOWS and best > 0:
        name = local[0]
        share = _PRIOR_WINDOWS / (_PRIOR_WINDOWS + independent) * (best / errors[name]) ** 2
        weights = {one: (1.0 - share) * weight for one, weight in weights.items()}
        weights[name] = weights.get(name, 0.0) + share
    return weights, errors | {"ensemble": loss(weighted_mean(weights, members))}


def series_scale(series: Series, season: int) -> Float64[np.ndarray, " n"]:
    """Seasonal error of each series; of its steps, if it has less than two seasons; 0 if it is only rounding."""
    history = _aligned(series)
    if history.shape[1] < 2:
        return np.full(len(series), np.nan)
    found = seasonal_error(history, season) if season < history.shape[1] else np.full(len(series), np.nan)
    found = np.where(np.isnan(found), seasonal_error(history, 1), found)
    return np.where(found <= _ROUNDING * np.nanmax(np.abs(history), axis=1), 0.0, found)


def linear_lookbacks(season: int, horizon: int) -> tuple[int, ...]:
    """Look-backs of the linear models: two, three and many seasons, at least the horizon, at most 720 rows."""
    many = 4 * season if season in (4, 12) else min(max(14 * season, 104), 720)
    wanted = max(2 * season, horizon, 4), max(3 * season, 2 * horizon), max(many, horizon)
    return tuple(sorted({min(rows, MOST_LAGS) for rows in wanted}))


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
    histories, horizon = origins.histories(series), origins.horizon
    past = _aligned([values[: len(values) - held] for values, held in zip(series, origins.held, strict=True) if held])
    linear = [f"linear {rows}{end}" for rows in linear_lookbacks(season, horizon) for end in ("", _BY_LEVEL)]
    found: dict[str, np.ndarray] = {}
    for name in (*BASELINES, *linear):
        if found and limit is not None and limit.left <= 0:
            return found
        if name in BASELINES:
            method = partial(BASELINES[name], season=season, horizon=horizon)
            found[name] = _in_blocks(method, histories, _local_rows(season))
        elif model := _fit_linear(past, name, season=season, horizon=horizon, seed=seed):
            found[name] = _in_blocks(model.predict, histories, len(model.weights) - 1)
    # trees take long: they begin in the first half of the time
    if horizon <= _TREE_STEPS and (limit is None or limit.left > limit.passed):
        trees = fit_trees(past, season, horizon, seed=seed)
        if trees is not None:
            found[TREES] = _in_blocks(partial(trees.predict, horizon=horizon), histories, MOST_LAGS)
    return found


def _in_blocks(
    method: Callable[[np.ndarray], np.ndarray], histories: Series, rows: int, values: int = _LINEAR_VALUES
) -> np.ndarray:
    """Forecasts after the last rows of histories, in blocks of at most this number of values."""
    size = max(1, values // rows)
    parts = [histories[start : start + size] for start in range(0, len(histories), size)]
    return np.concatenate([method(align_histories(part, rows)) for part in parts])


def _fit_linear(history: np.ndarray, name: str, **options: int) -> LinearModel | None:
    """Fit a linear model by its name, "linear 336" or "linear 336 by level"."""
    return LinearModel.fit(history, lookback=int(name.split()[1]), by_season=not name.endswith(_BY_LEVEL), **options)


def fit_trees(history: np.ndarray, season: int, horizon: int, *, seed: int = 2024) -> BoostedTrees | None:
    """Trees on the longest look-back of the linear models; None if no series is long enough."""
    return BoostedTrees.fit(history, season=season, lookback=linear_lookbacks(season, horizon)[-1], seed=seed)


def _aligned(series: Series) -> np.ndarray:
    return align_histories(series, max(_LOCAL_ROWS, _LINEAR_VALUES // len(series)))


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
        others: Mapping[str, Float64[np.ndarray, "w p c"]],
        interval: float | None,
        levels: Sequence[float],
        seed: int,
    ) -> "Choice":
        """Choose weights at the origins of the series, and calibrate the interval there.

        `forecasts` has those of the baselines at the origins, column by column, and `others` those of other models.
        """
        series = panel.histories(columns)
        each = origins.per_column(len(columns))
        rows = {name: _to_rows(part) for name, part in others.items()}
        ensemble, found = Ensemble.fit(series, each, {**forecasts, **rows}, season=season, seed=seed)
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
            offsets = _offsets(error, levels) if len(levels) else None
        if interval is not None:
            try:
                if found is None:
                    raise ValueError("no series is longer than the horizon")
                width = conformal_width(torch.from_numpy(np.abs(error)), interval).numpy()
            except ValueError as reason:
                warnings.warn(f"the forecast has no interval of {interval}: {reason}", UserWarning, stacklevel=3)
        return cls(ensemble=ensemble, scale=scale, width=width, offsets=offsets, counts=counts)

    def combine(
        self,
        histories: Sequence[Float64[np.ndarray, " _"]],
        others: Mapping[str, Float64[np.ndarray, "w p c"]],
        owners: Tensor,
    ) -> Prediction:
        """Forecasts after histories, one per window and column; `owners` are the series of the windows."""
        found = self.ensemble.predict(histories, {name: _to_rows(part) for name, part in others.items()})
        # a column that never changed keeps its value
        flat = [index for index, history in enumerate(histories) if len(history) > 1 and np.ptp(history) == 0]
        found[flat] = np.array([histories[index][-1] for index in flat])[:, None]
        point = _to_columns(found, len(self.counts))
        scale = self.scale[owners.numpy()][:, None]  # (W, 1, C)
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
        others = dict.fromkeys((NETWORK, *REGRESSIONS), np.zeros((1, horizon, columns)))
        found = self.combine([np.zeros(2)] * columns, others, torch.tensor([0])).forecast
        check_shape("forecast", found, "(W, P, C)", (1, horizon, columns))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        own = self.ensemble
        tensors = {f"linear.{name}": torch.from_numpy(model.weights) for name, model in own.linear.items()}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        tensors |= {n: torch.from_numpy(np.ascontiguousarray(part)) for n, part in arrays.items() if part is not None}
        linear = {n: {"season": model.season, "by_season": model.by_season} for n, model in own.linear.items()}
        facts = {"season": own.season, "horizon": own.horizon, "weights": dict(own.weights), "errors": dict(own.errors)}
        facts["measure"] = own.measure
        if own.trees is not None:
            parts, facts["trees"] = own.trees.state()
            tensors |= {f"trees.{name}": part for name, part in parts.items()}
        return tensors, facts | {"linear": linear}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "Choice":
        """From the result of `state`."""
        linear = {
            name: LinearModel(weights=tensors[f"linear.{name}"].double().cpu().numpy(), **state)
            for name, state in facts["linear"].items()
        }
        parts: dict[str, Any] = {n: tensors[n].cpu().numpy() if n in tensors else None for n in _ARRAYS}
        trees = None
        if "trees" in facts:
            trees = BoostedTrees.from_state(named(tensors, "trees."), facts["trees"], facts["season"])
        return cls(ensemble=Ensemble(**{**facts, "linear": linear, "trees": trees}), **parts)


def _to_rows(parts: Float64[np.ndarray, "w p c"]) -> Float64[np.ndarray, "rows p"]:
    return np.ascontiguousarray(parts.transpose(0, 2, 1)).reshape(-1, parts.shape[1])


def _to_columns(rows: Float64[np.ndarray, "rows p"], columns: int) -> Float64[np.ndarray, "w p c"]:
    return rows.reshape(-1, columns, rows.shape[1]).transpose(0, 2, 1)


def _offsets(error: Float64[np.ndarray, "w p c"], levels: Sequence[float]) -> np.ndarray:
    if len(error) < _FEW_WINDOWS:
        pooled = np.quantile(error, levels)[None, :, None]
        return np.broadcast_to(pooled, (error.shape[1], len(levels), error.shape[2]))
    return np.quantile(error, levels, axis=0).transpose(1, 0, 2)  # (P, Q, C)
