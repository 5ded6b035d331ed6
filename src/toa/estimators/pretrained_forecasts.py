"""Forecasts of many series by the pretrained model, with named options of inference.

    quantiles = forecast_quantiles(model, series, horizon=24)    # (N, P, Q), in the units of each series
    forecast_quantiles(model, series, 24, season=12, options=InferenceOptions(flip=True, season_steps=24))

A horizon beyond that of the model is forecast in several passes. Each of the quantiles so far is a possible future: the
model reads the context followed by it, and the quantiles of the next steps are those of all the forecasts together. One
path of medians would make the later intervals too narrow.

Alphabet: N series, L context, P horizon, Q quantiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from toa._checks import ArgumentError, Name, check_at_least, check_at_most, check_count, check_finite
from toa._limits import shorten
from toa.estimators.baselines import History, align_histories
from toa.estimators.origins import SeriesList
from toa.models.pretrained import PretrainedForecaster

Quantiles = Float64[np.ndarray, "n p q"]

# series that are forecast together on a processor and on a GPU
_BATCH = {"cpu": 64, "cuda": 2048}
# resampling by a larger factor, up or down, would change the series too much
_LARGEST_FACTOR = 8.0
# passes at most: later ones read almost nothing but earlier forecasts
_MOST_PASSES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceOptions:
    """How forecasts are computed. Options that are set multiply the time by the number of forecasts averaged.

    Attributes:
        flip: Average with the forecast of the series times minus one, whose quantiles change places.
        contexts: Average over contexts of these lengths; empty for the longest alone.
        season_steps: Resample a series whose season is known, so that the season has this number of steps; None for
            no resampling. A series is left unchanged if that would make a horizon that the model has too long for it.
        stretch: Replace every step of a series without a season by this number of steps, or by fewer if
            otherwise the context or the horizon of the model would be too short; 1 for no resampling.
    """

    flip: bool = False
    contexts: tuple[int, ...] = ()
    season_steps: int | None = None
    stretch: int = 1

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {
            "flip": self.flip,
            "contexts": list(self.contexts),
            "season_steps": self.season_steps,
            "stretch": self.stretch,
        }

    @classmethod
    def from_json(cls, values: Any, where: Name) -> "InferenceOptions":
        """From the result of `to_json`; raises ValueError for anything else."""
        # older weights have no stretch
        if not isinstance(values, dict) or {"stretch", *values} != {"flip", "contexts", "season_steps", "stretch"}:
            raise ArgumentError(where, "be options of inference of this version", shorten(values), "restore the file")
        flip, contexts = values["flip"], values["contexts"]
        if not isinstance(flip, bool) or not isinstance(contexts, list):
            raise ArgumentError(where, "have a flag and a list", shorten(values), "restore the file")
        return cls(
            flip=flip,
            contexts=tuple(contexts),
            season_steps=values["season_steps"],
            stretch=values.get("stretch", 1),
        )

    def __post_init__(self) -> None:
        for length in self.contexts:
            check_count("contexts", length, 1)
        if self.season_steps is not None:
            check_count("season_steps", self.season_steps, 2)
        check_count("stretch", self.stretch, 1)


PLAIN = InferenceOptions()


def stored_options(model: PretrainedForecaster) -> InferenceOptions:
    """The options that were chosen with the weights of a model, by validation; none of them unless stored."""
    stored = model.facts.get("inference")
    return PLAIN if stored is None else InferenceOptions.from_json(stored, "inference of the model")


def forecast_quantiles(
    model: PretrainedForecaster,
    series: SeriesList,
    horizon: int,
    *,
    season: int = 1,
    options: InferenceOptions | None = None,
    batch: int | None = None,
    median_alone: bool = False,
) -> Quantiles:
    """Quantiles (N, P, Q) of the next steps of each series; the levels are those of the model's config.

    Args:
        series: Values of each series, NaN where missing; only the newest of a long one are read.
        season: Steps of the season, for `season_steps`; 1 for none.
        options: How forecasts are computed; None takes those that were chosen with the weights.
        batch: Series that are forecast together; None chooses by the device.
        median_alone: Whether only the medians are wanted. Beyond the horizon of the model, forecasts then follow the
            path of medians, which takes a ninth of the work; other quantiles are too close to it there.
    """
    check_horizon(model, horizon)
    options = stored_options(model) if options is None else options
    for length in options.contexts:
        check_at_most("contexts", length, "that of the pretrained model", model.config.context, "leave it out")
    device = model.future.device
    size = _BATCH.get(device.type, _BATCH["cpu"]) if batch is None else batch
    check_at_least("batch", size, 1)
    factors = np.array([_resampling(model, horizon, season, options, len(values)) for values in series])
    quantiles = np.empty((len(series), horizon, len(model.config.quantiles)))
    for factor in np.unique(factors).tolist():
        places = np.flatnonzero(factors == factor)
        for start in range(0, len(places), size):
            block = places[start : start + size]
            chosen = [series[place] for place in block]
            quantiles[block] = _forecast_block(model, chosen, horizon, factor, options, median_alone)
    return quantiles


def longest_horizon(model: PretrainedForecaster) -> int:
    """Steps that are forecast at most, in several passes."""
    return _MOST_PASSES * model.config.horizon


def check_horizon(model: PretrainedForecaster, horizon: int) -> None:
    """Raise ValueError for a horizon that the model cannot forecast."""
    check_count("horizon", horizon, 1)
    rule = f"{_MOST_PASSES} times that of the pretrained model"
    check_at_most("horizon", horizon, rule, longest_horizon(model), "use toa.Forecaster")


def short_series(
    model: PretrainedForecaster,
    series: SeriesList,
    horizon: int,
    season: int,
    options: InferenceOptions | None = None,
) -> list[int]:
    """Lengths of the series that are shorter than all that the model was trained on, after resampling."""
    training = model.facts.get("training")
    if not isinstance(training, dict):
        return []
    least = int(training.get("least_context", 0))
    options = stored_options(model) if options is None else options
    lengths = [len(values) for values in series]
    return [rows for rows in lengths if rows * _resampling(model, horizon, season, options, rows) < least]


def _forecast_block(
    model: PretrainedForecaster,
    series: SeriesList,
    horizon: int,
    factor: float,
    options: InferenceOptions,
    median_alone: bool,
) -> Quantiles:
    """Forecasts of series that are computed together, resampled to `factor` times as many steps."""
    steps = horizon
    if factor != 1.0:
        series = [resample(values, factor) for values in series]
        steps = int(np.ceil(horizon * factor))
    context = align_histories(series, model.config.context)
    forecasts = [
        _forecast_context(model, context[:, -length:], steps, options.flip, median_alone)
        for length in (options.contexts or (model.config.context,))
    ]
    quantiles = np.mean(forecasts, axis=0)
    return quantiles if factor == 1.0 else _resample_back(quantiles, horizon, factor)


def _forecast_context(
    model: PretrainedForecaster, context: History, steps: int, flip: bool, median_alone: bool
) -> Quantiles:
    """Forecasts (N, P, Q) after contexts (N, L), which are brought to a range that float32 resolves."""
    observed = np.isfinite(context)
    values = np.where(observed, context, 0.0)
    count = np.maximum(observed.sum(1, keepdims=True), 1)
    middle = values.sum(1, keepdims=True) / count
    unit = np.abs(np.where(observed, values - middle, 0.0)).max(1, keepdims=True)
    unit = np.where(unit > 0.0, unit, 1.0)
    inputs = torch.from_numpy(np.where(observed, (values - middle) / unit, np.nan)).to(model.future)
    with torch.inference_mode():
        quantiles = forecast_in_passes(model, inputs, steps, median_alone=median_alone)
        if flip:
            flipped = forecast_in_passes(model, -inputs, steps, median_alone=median_alone)
            quantiles = 0.5 * (quantiles - flipped.flip(-1))
    forecast = quantiles.double()
    check_finite("forecasts of the pretrained model", forecast)
    return forecast.cpu().numpy() * unit[:, :, None] + middle[:, :, None]


def forecast_in_passes(
    model: PretrainedForecaster, context: Tensor, steps: int, *, median_alone: bool = False
) -> Tensor:
    """Quantiles (N, P, Q) of any number of steps after contexts (N, L); see `forecast_quantiles`."""
    return _follow_median(model, context, steps) if median_alone else _follow_quantiles(model, context, steps)


def _follow_median(model: PretrainedForecaster, context: Tensor, steps: int) -> Tensor:
    """Later steps are forecast after the medians so far."""
    longest = model.config.horizon
    middle = model.config.quantiles.index(0.5)
    quantiles: Tensor = model(context, min(steps, longest))
    while quantiles.shape[1] < steps:
        path = torch.cat((context, quantiles[..., middle]), 1)
        more = model(path, min(steps - quantiles.shape[1], longest))
        quantiles = torch.cat((quantiles, more), 1)
    return quantiles


def _follow_quantiles(model: PretrainedForecaster, context: Tensor, steps: int) -> Tensor:
    """Later steps are forecast after each of the quantiles so far; their quantiles are those of all together."""
    longest = model.config.horizon
    quantiles: Tensor = model(context, min(steps, longest))
    count = quantiles.shape[2]
    # places of the levels among Q * Q values in increasing order
    places = quantiles.new_tensor(model.config.quantiles) * (count**2 - 1)
    low = places.floor().long()
    while quantiles.shape[1] < steps:
        # the context followed by each of the quantiles so far, (N * Q, L + P)
        paths = torch.cat((context.unsqueeze(1).expand(-1, count, -1), quantiles.transpose(1, 2)), 2).flatten(0, 1)
        more = model(paths, min(steps - quantiles.shape[1], longest))
        together = more.unflatten(0, (-1, count)).transpose(1, 2).flatten(2)  # (N, P, Q * Q)
        ordered = together.sort(-1).values
        pooled = torch.lerp(ordered[..., low], ordered[..., low + 1], places - low)
        quantiles = torch.cat((quantiles, pooled), 1)
    return quantiles


def _resampling(model: PretrainedForecaster, horizon: int, season: int, options: InferenceOptions, rows: int) -> float:
    """Steps after resampling per step of a series with this number of rows; 1 for no resampling."""
    if season < 2:
        most = min(model.config.context // max(1, rows), model.config.horizon // horizon)
        return float(max(1, min(options.stretch, most)))
    if options.season_steps is None:
        return 1.0
    factor = options.season_steps / season
    fits = np.ceil(horizon * factor) <= max(horizon, model.config.horizon)
    return factor if fits and 1.0 / _LARGEST_FACTOR <= factor <= _LARGEST_FACTOR else 1.0


def resample(values: np.ndarray, factor: float) -> np.ndarray:
    """A series with `factor` times as many steps, which ends at the same step.

    More steps are interpolated; fewer steps are means of those that they replace. A step without a value stays so.
    """
    count = max(1, int(len(values) * factor))
    observed = np.isfinite(values)
    # end of each new step, in old steps counted from the end of the series
    ends = len(values) - np.arange(count - 1, -1, -1) / factor
    if factor > 1.0:
        place = np.clip(ends - 1.0, 0, len(values) - 1)
        nearest = np.round(place).astype(int)
        with_value = np.flatnonzero(observed)
        if not len(with_value):
            return np.full(count, np.nan)
        return np.where(observed[nearest], np.interp(place, with_value, values[with_value]), np.nan)
    sums = np.concatenate(([0.0], np.cumsum(np.where(observed, values, 0.0))))
    counts = np.concatenate(([0.0], np.cumsum(observed)))
    grid = np.arange(len(values) + 1)
    starts = np.maximum(ends - 1.0 / factor, 0.0)
    total = np.interp(ends, grid, sums) - np.interp(starts, grid, sums)
    weight = np.interp(ends, grid, counts) - np.interp(starts, grid, counts)
    known_enough = weight > 1e-9
    return np.where(known_enough, total / np.where(known_enough, weight, 1.0), np.nan)


def _resample_back(quantiles: Quantiles, horizon: int, factor: float) -> Quantiles:
    """Forecasts of resampled steps at the original ones, by interpolation."""
    steps = np.arange(1, quantiles.shape[1] + 1)
    # middle of each original step; a mean of several steps lies at their middle
    wanted = np.arange(1, horizon + 1) * factor
    if factor < 1.0:
        wanted = wanted - 0.5 * factor + 0.5
    low = np.clip(np.floor(wanted).astype(int), 1, len(steps))
    high = np.clip(low + 1, 1, len(steps))
    share = np.clip(wanted - low, 0.0, 1.0)[None, :, None]
    return quantiles[:, low - 1] * (1.0 - share) + quantiles[:, high - 1] * share


def interpolate_levels(quantiles: Quantiles, levels: Sequence[float], wanted: Sequence[float]) -> Quantiles:
    """Quantiles at other levels (N, P, W), interpolated between those that the model has.

    Raises:
        ValueError: If a level lies outside of them.
    """
    for level in wanted:
        if not levels[0] - 1e-9 <= level <= levels[-1] + 1e-9:
            raise ArgumentError(
                "levels",
                f"lie between {levels[0]:g} and {levels[-1]:g}, which the pretrained model has",
                f"{level:g}",
                f"ask for an interval of at most {levels[-1] - levels[0]:g}",
            )
    place = np.interp(wanted, levels, np.arange(len(levels)))
    low = np.floor(place + 1e-9).astype(int)
    high = np.minimum(low + 1, len(levels) - 1)
    share = np.clip(place - low, 0.0, 1.0)
    return quantiles[..., low] * (1.0 - share) + quantiles[..., high] * share
