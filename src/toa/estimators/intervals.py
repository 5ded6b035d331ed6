"""Forecasts in the units of the data, with their intervals: of the network, and of the weighted methods.

Alphabet: B batch, L look-back, P horizon, C channels, F features, Q levels, S series, W windows.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor, nn

from toa._checks import check_shape, check_shares
from toa.data.panel import Panel
from toa.estimators.base import NETWORK, named, weighted_mean
from toa.estimators.baselines import REGRESSIONS, LinearModel, align_histories, seasonal_naive
from toa.estimators.boosting import BoostedTrees
from toa.estimators.effort import Effort
from toa.estimators.ensemble import TREES, Ensemble, Fitted, RollingOrigins, Series, series_scale

# "forecast" (B, P, C), and if there are any its "quantiles" (B, P, Q, C) and the bounds "lower" and "upper" (B, P, C)
Prediction = dict[str, Tensor]

# smallest spread of a look-back, in standard deviations of the column: keeps intervals of a flat series open
_LEAST_SPREAD = 0.1
# quantiles of fewer windows are taken over all steps and columns
_FEW_WINDOWS = 40
# to measure the errors of short series: windows of other series, and numbers of rows to cut them to
_CUT_WINDOWS, _CUTS = 120, 5
# arrays of a choice in a file
_ARRAYS = ("scale", "width", "offsets", "counts")


def join_batches(parts: Sequence[Prediction]) -> Prediction:
    """Predictions of several batches as one; it lacks what one of them lacks."""
    return {name: torch.cat([one[name] for one in parts]) for name in parts[0] if all(name in one for one in parts)}


class MeanModel(nn.Module):
    """The mean of the forecasts (B, P, Q, C) of networks that were trained with different seeds."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, *inputs: Tensor | None) -> Tensor:
        """Forecast at all levels."""
        return torch.stack([model(*inputs) for model in self.models]).mean(0)


class UnitsModel(nn.Module):
    """Forecast in the units of the data: scaling and intervals around a network, in float64.

    Quantiles that cross are sorted. The interval is forecast ± width * spread, where spread is the standard deviation
    of the look-back.

    Args:
        model: A `toa.training.forecast.HorizonModel`, or the mean of several.
        mean: Mean of each series and channel (S, C).
        point: Index of the level that is the forecast itself.
        shown: Indices of the levels to return as quantiles.
        width: Width of the interval (P, C), in spreads; None for no interval.
        counts: Mask (C,) of channels whose forecasts are at least 0, see `find_counts`; None for none.
    """

    def __init__(
        self,
        model: nn.Module,
        mean: Tensor,
        std: Tensor,
        *,
        point: int,
        shown: tuple[int, ...] = (),
        width: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.point = point
        self.shown = shown
        self.mean: Tensor
        self.std: Tensor
        self.width: Tensor | None
        self.floor: Tensor | None
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.register_buffer("width", width)
        floor = None if counts is None or not counts.any() else mean.new_zeros(1).where(counts.bool(), -math.inf)
        self.register_buffer("floor", floor)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what a call returns, as in a `Prediction`."""
        quantiles = ("quantiles",) if self.shown else ()
        return ("forecast", *quantiles, *(() if self.width is None else ("lower", "upper")))

    def forward(
        self,
        series: Tensor,
        which: Tensor | None = None,
        marks: Tensor | None = None,
        future_marks: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """The fields that `outputs` names.

        Args:
            series: Look-backs (B, L, C) in float64, or in float32, as the results then are.
            which: Index of the series (B,) of each look-back; None for one series.
            marks: Features of the look-back (B, L, F) in float32.
            future_marks: Features of the forecast steps (B, P, F).
        """
        indices = slice(0, 1) if which is None else which
        mean, std = self.mean[indices].unsqueeze(1), self.std[indices].unsqueeze(1)  # (B, 1, C)
        exact = (series - mean) / std
        scaled = exact.float()
        levels = self.model(scaled, marks, future_marks).double()  # (B, P, Q, C)
        if levels.shape[2] > 1:
            levels = levels.sort(2).values
        if series.shape[1] > 1:
            # a column that never changed in fit, whose std is 1, keeps the value of a flat look-back
            flat = (std == 1.0) & ((series - series[:, :1]).abs().amax(1, keepdim=True) == 0.0)  # (B, 1, C)
            levels = torch.where(flat.unsqueeze(1), exact[:, -1:].unsqueeze(1), levels)
        forecast = levels[:, :, self.point]  # (B, P, C)
        found: tuple[Tensor, ...] = (forecast * std + mean,)
        if self.shown:
            found += (levels[:, :, list(self.shown)] * std.unsqueeze(1) + mean.unsqueeze(1),)
        if self.width is not None:
            half = self.width * spread(scaled).double()  # (B, P, C)
            found += ((forecast - half) * std + mean, (forecast + half) * std + mean)
        if self.floor is not None:
            found = tuple(part.maximum(self.floor) for part in found)
        return tuple(part.to(series.dtype) for part in found)

    @torch.no_grad()
    def predict(self, *inputs: Tensor | None) -> Prediction:
        """Apply the model to the arguments of `forward`; results are on the CPU."""
        found = self(*(None if x is None else x.to(self.mean.device) for x in inputs))
        return {name: part.cpu() for name, part in zip(self.outputs, found, strict=True)}


def _usual_share(scale: np.ndarray, level: np.ndarray) -> float:
    """The usual scale of a series, as a share of its level."""
    usable = (scale > 0) & (level > 0)
    return float(np.median(scale[usable] / level[usable])) if usable.any() else 0.0


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
        interval: float | None,
        levels: Sequence[float],
        effort: Effort,
        seed: int,
    ) -> "Choice":
        """Choose weights at the origins of all columns, and calibrate the interval there.

        `forecasts` has those of all methods at the origins, column by column.
        """
        series = panel.histories(columns)
        ensemble, found = Ensemble.fit(series, origins, forecasts, season=season, effort=effort, seed=seed)
        scale = series_scale(series, season)
        # one that is too short has the usual scale of its level; one that never changes the smallest of the others
        level = np.array([np.abs(part).mean() for part in series])
        scale = np.where(np.isnan(scale), level * _usual_share(scale, level), scale)
        least = scale[scale > 0].min() if (scale > 0).any() else 1.0
        scale = np.maximum(scale, least).reshape(-1, len(columns))
        width = offsets = None
        if found is not None:
            missed = (origins.actual(series) - found) / scale.ravel()[origins.series][:, None]
            usual = _usual_share(scale.ravel(), level), float(np.nanmean(np.abs(missed)))
            scale *= _short_growth(ensemble, series, origins, *usual).reshape(scale.shape)
            error = _fill(missed.reshape(-1, len(columns), origins.horizon)).swapaxes(1, 2)  # (W, P, C)
            if len(levels):
                offsets = np.quantile(error, levels, axis=0)  # (Q, P, C)
                if len(error) < _FEW_WINDOWS:
                    # those of the errors of all columns and steps, in mean errors of a column
                    mean = np.abs(error).mean((0, 1))
                    missed = error[..., mean > 0] / mean[mean > 0]
                    shape = np.quantile(missed if missed.size else error, levels)[:, None, None]
                    offsets = shape * np.broadcast_to(mean, offsets.shape)
                offsets = offsets.swapaxes(0, 1)  # (P, Q, C)
        if interval is not None:
            try:
                if found is None:
                    raise ValueError("no series has more rows than the horizon; add rows, or shorten the horizon.")
                width = conformal_width(torch.from_numpy(np.abs(error)), interval).numpy()
            except ValueError as reason:
                warnings.warn(f"the forecast has no interval of {interval}: {reason}", UserWarning, stacklevel=3)
        return cls(ensemble=ensemble, scale=scale, width=width, offsets=offsets, counts=find_counts(panel, columns))

    def combine(
        self,
        histories: Sequence[Float64[np.ndarray, " _"]],
        others: Mapping[str, Float64[np.ndarray, "w p c"]],
        owners: Tensor,
    ) -> Prediction:
        """Forecasts after histories, one per window and column; `owners` are the series of the windows."""
        found = self.ensemble.predict(histories, {name: to_rows(part) for name, part in others.items()})
        point = found.reshape(len(owners), len(self.counts), -1).swapaxes(1, 2)
        scale = self.scale[owners.numpy()][:, None]  # (W, 1, C)
        parts: dict[str, np.ndarray] = {"forecast": point}
        if self.offsets is not None:
            parts["quantiles"] = point[:, :, None] + self.offsets * scale[:, :, None]
        if self.width is not None:
            parts |= {"lower": point - self.width * scale, "upper": point + self.width * scale}
        floor = np.where(self.counts, 0.0, -np.inf)
        return {name: torch.from_numpy(np.maximum(part, floor)) for name, part in parts.items()}

    def add_series(self, scale: Float64[np.ndarray, "s c"], level: Float64[np.ndarray, "all c"]) -> "Choice":
        """The choice with further series, of these seasonal errors; `level` is the size of the mean of all series."""
        known, new = np.split(level, [len(self.scale)])
        scale = np.where(np.isnan(scale), new * _usual_share(self.scale, known), scale)
        return replace(self, scale=np.concatenate([self.scale, np.maximum(scale, self.scale.min())]))

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
        found = self.combine([np.zeros(2)] * columns, others, torch.tensor([0]))["forecast"]
        check_shape("forecast", found, "(W, P, C)", (1, horizon, columns))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        own = self.ensemble
        facts = {name: getattr(own, name) for name in ("season", "horizon", "measure", "seasonal")}
        facts |= {"weights": dict(own.weights), "errors": dict(own.errors), "linear": {}}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        tensors = {n: torch.from_numpy(np.ascontiguousarray(part)) for n, part in arrays.items() if part is not None}
        for name, model in own.fitted.items():
            if isinstance(model, BoostedTrees):
                parts, facts["trees"] = model.state()
                tensors |= {f"trees.{part}": value for part, value in parts.items()}
            else:
                facts["linear"][name] = {"season": model.season, "by_season": model.by_season}
                tensors[f"linear.{name}"] = torch.from_numpy(model.weights)
        return tensors, facts

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "Choice":
        """From the result of `state`."""
        parts: dict[str, Any] = {n: tensors[n].cpu().numpy() if n in tensors else None for n in _ARRAYS}
        rest = {name: value for name, value in facts.items() if name not in ("linear", "trees")}
        fitted: dict[str, Fitted] = {
            name: LinearModel(weights=tensors[f"linear.{name}"].double().cpu().numpy(), **state)
            for name, state in facts["linear"].items()
        }
        if "trees" in facts:
            fitted[TREES] = BoostedTrees.from_state(named(tensors, "trees."), facts["trees"], facts["season"])
        return cls(ensemble=Ensemble(**rest, fitted=fitted), **parts)


def _short_growth(
    ensemble: Ensemble, series: Series, origins: RollingOrigins, share: float, usual: float
) -> Float64[np.ndarray, " n"]:
    """How many times larger the error in scales is for a series without windows than the `usual` error; 1 for others.

    Measured on other series at some of their origins, cut to as few rows. An unknown scale is the `share` of the level.
    Networks and other models that the ensemble does not hold are left out. Its own were fitted on these rows too.
    """
    found = np.ones(len(series))
    short, windows = np.flatnonzero(origins.held == 0), np.flatnonzero(origins.held[origins.series])
    if not len(short) or not len(windows) or usual <= 0:
        return found
    windows = windows[np.unique(np.linspace(0, len(windows) - 1, _CUT_WINDOWS).astype(int))]
    rows = np.array([len(series[one]) for one in short])
    counts = np.unique(np.quantile(rows, np.linspace(0, 1, _CUTS)).astype(int))
    growth = []
    past, actual = origins.histories(series), origins.actual(series)[windows]
    for count in counts:
        cut = [past[one][-max(1, count) :] for one in windows]
        own = ensemble.members(cut, [name for name, weight in ensemble.weights.items() if weight > 0])
        own = own or {"naive": seasonal_naive(align_histories(cut, ensemble.season), ensemble.season, origins.horizon)}
        shares = {name: ensemble.weights.get(name) or 1.0 for name in own}
        scale, level = series_scale(cut, ensemble.season), np.array([np.abs(part).mean() for part in cut])
        scale = np.where(np.isnan(scale), share * level, scale)
        error = np.abs(actual - weighted_mean(shares, own) / sum(shares.values())).mean(1)
        usable = scale > 0
        # not the mean of ratios: some short cuts hardly change
        growth.append(max(1.0, float(error[usable].mean() / scale[usable].mean() / usual)) if usable.any() else 1.0)
    found[short] = np.interp(rows, counts, growth)
    return found


def find_counts(panel: Panel, columns: Sequence[str]) -> Bool[np.ndarray, " c"]:
    """Which columns hold only counts, 0, 1, 2, …: their forecasts are at least 0."""
    whole = [(part >= 0).all(0) & (part == np.round(part)).all(0) for part in panel.take(columns)]
    return np.asarray(np.all(whole, axis=0))


def _fill(error: Float64[np.ndarray, "w c p"]) -> Float64[np.ndarray, "w c p"]:
    """Errors in which a column that does not count in a window has those of another column; the columns take turns."""
    windows, columns = np.arange(len(error)), np.arange(error.shape[1])
    turns = (windows[:, None] + columns) % len(columns)
    first = np.take_along_axis(np.isfinite(error[:, :, 0]), turns, 1).argmax(1)
    return np.where(np.isfinite(error), error, error[windows, turns[windows, first]][:, None])


def to_rows(parts: Float64[np.ndarray, "w p c"]) -> Float64[np.ndarray, "rows p"]:
    """A row per window and column."""
    return np.ascontiguousarray(parts.transpose(0, 2, 1)).reshape(-1, parts.shape[1])


def spread(series: Tensor) -> Tensor:
    """Standard deviation of a standardised look-back (B, L, C), at least about 0.1: (B, 1, C)."""
    return (series.var(1, correction=0, keepdim=True) + _LEAST_SPREAD**2).sqrt()


def conformal_width(scores: Tensor, level: float) -> Tensor:
    """Split-conformal width (P, C) from calibration scores |error| / spread (N, P, C).

    This is the ceil((N + 1) level)-th smallest score of each step and channel. A new score that is exchangeable with
    these is at most the width with probability `level` or more.
    """
    count = len(scores)
    rank = math.ceil((count + 1) * level)
    if rank > count:
        least = math.ceil(round(level / (1.0 - level), 6))
        raise ValueError(
            f"interval={level} must have at least {least} windows to calibrate on, got {count}; raise "
            "validation_share, or use a longer series or a smaller interval."
        )
    return scores.kthvalue(rank, 0).values


def check_forecast(found: Prediction, columns: Sequence[str]) -> None:
    """Raise ValueError for a forecast that is not finite."""
    for name, part in found.items():
        wrong = ~part.isfinite()
        if wrong.any():
            window, step, *_, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"the {name} of column {columns[column]!r} must be finite, got another number at step {step + 1} of "
                f"window {window + 1}; check the units of its rows, or fit again."
            )
