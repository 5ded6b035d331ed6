"""Series to train on: the settings of a mixture, and its draws.

Alphabet: B series, L steps.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from toa._checks import ArgumentError, check_at_least, check_choice, check_count, check_seed
from toa.data.synthetic.changes import CHANGES
from toa.data.synthetic.draws import ANY_RATE, DAYS_PER_YEAR, SOURCES, Draws, SamplingRate
from toa.data.synthetic.sequences import standardise

# the kind that combines the others
MIXTURE = "mixture"
# shortest series: kernels and periods need some steps
SHORTEST = 16
# series of a mixture consist of two or three others
MOST_PARTS = 3
# share of the mixtures whose parts are multiplied
PRODUCT_SHARE = 0.25


def equal_weights() -> dict[str, float]:
    """The same weight for every kind."""
    return dict.fromkeys((*SOURCES, MIXTURE), 1.0)


def default_rates() -> dict[str, float]:
    """Probability of each change."""
    return {"level_shifts": 0.1, "outliers": 0.1, "clipping": 0.05, "quantisation": 0.1, "missing": 0.15}


# sampling rates of practice; "any" has series of any season, or of none
RATES: Mapping[str, SamplingRate] = {
    "any": ANY_RATE,
    "quarterly": SamplingRate(4, (4.0,), 0.85, (4 / DAYS_PER_YEAR,), (4,)),
    "daily": SamplingRate(7, (7.0, 7.0, 7.0, 30.4, DAYS_PER_YEAR), 0.85, (1.0,), (7,)),
    "monthly": SamplingRate(12, (12.0,), 0.85, (12 / DAYS_PER_YEAR,), (12,)),
    "hourly": SamplingRate(24, (24.0, 24.0, 24.0, 168.0), 0.85, (24.0,), (24, 168)),
}


def default_sampling() -> dict[str, float]:
    """Weight of each sampling rate."""
    return {"any": 0.3, "quarterly": 0.1, "daily": 0.15, "monthly": 0.2, "hourly": 0.25}


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticSettings:
    """Which series are drawn.

    Args:
        weights: Relative weight of each kind, by names of `SOURCES` and "mixture"; kinds without one are left out.
        changes: Probability of each change of a series, by names of `CHANGES`; changes without one are left out.
        smallest_unit, largest_unit: Series are multiplied by a number between them, uniform in its logarithm.
        largest_offset: Half of the series are shifted by up to this number of spreads.
        season_steps: Resample each series so that its main season has this number of steps, as
            `toa.estimators.pretrained_forecasts.InferenceOptions` does; None for no resampling.
        rates: Relative weight of each sampling rate, by names of `RATES`; only with `season_steps`.
    """

    weights: Mapping[str, float] = field(default_factory=equal_weights)
    changes: Mapping[str, float] = field(default_factory=default_rates)
    smallest_unit: float = 1e-3
    largest_unit: float = 1e4
    largest_offset: float = 10.0
    season_steps: int | None = None
    rates: Mapping[str, float] = field(default_factory=default_sampling)

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            check_choice("kind of series", name, (*SOURCES, MIXTURE))
            check_at_least(f"weights[{name!r}]", weight, 0.0)
        if not any(self.weights.values()):
            raise ArgumentError("weights", "have a positive one", dict(self.weights), "weight at least one kind")
        if self.weights.get(MIXTURE) and not any(self._parts().values()):
            raise ValueError("weights must have another kind than 'mixture', which combines the others; add one.")
        for name, rate in self.changes.items():
            check_choice("change of series", name, CHANGES)
            if not 0.0 <= rate <= 1.0:
                raise ArgumentError(f"changes[{name!r}]", "lie in [0, 1]", rate)
        check_at_least("smallest_unit", self.smallest_unit, 1e-9)
        check_at_least("largest_unit", self.largest_unit, self.smallest_unit)
        check_at_least("largest_offset", self.largest_offset, 0.0)
        for name, weight in self.rates.items():
            check_choice("sampling rate", name, RATES)
            check_at_least(f"rates[{name!r}]", weight, 0.0)
        if not any(self.rates.values()):
            raise ArgumentError("rates", "have a positive weight", dict(self.rates), "weight at least one rate")
        if self.season_steps is not None:
            # more steps are interpolated; fewer would have to be means
            longest = max(RATES[name].season or 2 for name, weight in self.rates.items() if weight)
            check_count("season_steps", self.season_steps, longest)

    def _parts(self) -> dict[str, float]:
        return {name: weight for name, weight in self.weights.items() if name != MIXTURE}


def draw_series(
    count: int,
    length: int,
    *,
    seed: int,
    step: int,
    device: torch.device | str = "cpu",
    settings: SyntheticSettings | None = None,
) -> Tensor:
    """Draw series (B, L) in float32 with NaN for missing values.

    They depend on the arguments alone: a training that resumes at a step draws the same series again. The CPU and a
    GPU draw different ones. At least a quarter of each series is observed, and observed values are finite. Nothing
    waits for the device.

    Args:
        count: Number of series.
        length: Steps of each, at least 16.
        seed: Seed of a training.
        step: Number of the batch.
        device: Where the series are drawn.
        settings: Kinds and changes; unless given, all kinds with equal weights.
    """
    check_count("count", count, 1)
    check_count("length", length, SHORTEST)
    check_seed(seed)
    check_count("step", step, 0)
    settings = SyntheticSettings() if settings is None else settings
    where = torch.device(device)
    key = (seed, step)
    if settings.season_steps is None:
        return _draw_rate(settings, count, length, key, where, ANY_RATE)
    blocks = []
    for name, number in share_out(settings.rates, count, (*key, "rates")).items():
        rate = RATES[name]
        if number == 0:
            continue
        if rate.season is None:
            blocks.append(_draw_rate(settings, number, length, (*key, name), where, rate))
            continue
        factor = settings.season_steps / rate.season
        drawn = max(SHORTEST, math.ceil((length - 1) / factor) + 1)
        series = _draw_rate(settings, number, drawn, (*key, name), where, rate)
        blocks.append(resample_ends(series, length, factor))
    return Draws.of(*key, "order of rates", device=where).shuffle(torch.cat(blocks))


def _draw_rate(
    settings: SyntheticSettings,
    count: int,
    length: int,
    key: tuple[object, ...],
    device: torch.device,
    rate: SamplingRate,
) -> Tensor:
    """Series of one sampling rate, with changes, in units of their own."""
    series = _draw_kinds(settings.weights, count, length, key, device, rate)
    draws = Draws.of(*key, "changes", device=device)
    spread = series.std(1, keepdim=True)
    for name, change in CHANGES.items():
        probability = settings.changes.get(name, 0.0)
        if probability:
            happens = draws.coin(count, 1, probability=probability)
            series = torch.where(happens, change(draws, series, spread), series)
    shift = draws.uniform(count, 1, low=-settings.largest_offset, high=settings.largest_offset)
    shift = shift * spread * draws.coin(count, 1, probability=0.5)
    unit = draws.log_uniform(count, 1, low=settings.smallest_unit, high=settings.largest_unit)
    return (series + shift) * unit


def resample_ends(series: Tensor, length: int, factor: float) -> Tensor:
    """The last `length` steps of series (B, L) that get `factor` times as many steps, by interpolation.

    The last step stays the last one. A step whose nearest value is missing stays missing.
    """
    count = series.shape[1]
    place = count - 1 - torch.arange(length - 1, -1, -1, device=series.device) / factor
    place = place.clamp_min(0.0)
    low = place.floor().long()
    high = (low + 1).clamp_max(count - 1)
    share = place - low
    before, after = series[:, low], series[:, high]
    missing = torch.where(share < 0.5, before, after).isnan()
    # beside a gap, the value at its border
    before, after = torch.where(before.isnan(), after, before), torch.where(after.isnan(), before, after)
    return torch.where(missing, torch.nan, torch.lerp(before, after, share))


def _draw_kinds(
    weights: Mapping[str, float],
    count: int,
    length: int,
    key: tuple[object, ...],
    device: torch.device,
    rate: SamplingRate,
) -> Tensor:
    """Series of all kinds in random order; the number of each kind is its share of `count`, rounded."""
    parts = {name: weight for name, weight in weights.items() if name != MIXTURE}
    blocks = []
    for name, number in share_out(weights, count, key).items():
        if number == 0:
            continue
        if name == MIXTURE:
            blocks.append(_draw_mixtures(parts, number, length, key, device, rate))
        else:
            blocks.append(SOURCES[name](Draws.of(*key, name, device=device, rate=rate), number, length))
    return Draws.of(*key, "order", device=device).shuffle(torch.cat(blocks))


def _draw_mixtures(
    parts: Mapping[str, float],
    count: int,
    length: int,
    key: tuple[object, ...],
    device: torch.device,
    rate: SamplingRate,
) -> Tensor:
    """Weighted sums, and products, of two or three series of the other kinds."""
    draws = Draws.of(*key, MIXTURE, device=device)
    number = draws.integers(count, 1, high=MOST_PARTS - 1) + 2
    is_product = draws.coin(count, 1, probability=PRODUCT_SHARE)
    # in one call, because the time of a call hardly depends on the number of series
    series = standardise(_draw_kinds(parts, MOST_PARTS * count, length, (*key, MIXTURE), device, rate))
    first, *others = series.unflatten(0, (MOST_PARTS, count)).unbind(0)
    total = first
    for place, part in enumerate(others, start=1):
        weight = draws.uniform(count, 1, low=0.2, high=1.0)
        # a factor near 1, so that a product keeps the form of its first part
        combined = torch.where(is_product, total * (1 + 0.5 * weight * part), total + weight * part)
        total = torch.where(number > place, combined, total)
    return total


def share_out(weights: Mapping[str, float], count: int, key: tuple[object, ...]) -> dict[str, int]:
    """Number of series per kind: the shares of `count`, rounded up or down at random, without bias."""
    names = list(weights)
    ends = np.cumsum([weights[name] for name in names])
    start = Draws.of(*key, "shares", device=torch.device("cpu")).uniform(1).item()
    # evenly spaced points from a random start; a kind has the points in its part of the line
    points = (np.arange(count) + start) / count * ends[-1]
    counts = np.bincount(np.searchsorted(ends, points, side="right").clip(max=len(names) - 1), minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))
