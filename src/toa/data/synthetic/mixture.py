"""Series to train on: the settings of a mixture, and its draws.

Alphabet: B series, L steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from toa._checks import ArgumentError, check_at_least, check_choice, check_count, check_seed
from toa.data.synthetic.changes import CHANGES
from toa.data.synthetic.draws import SOURCES, Draws
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticSettings:
    """Which series are drawn.

    Args:
        weights: Relative weight of each kind, by names of `SOURCES` and "mixture"; kinds without one are left out.
        changes: Probability of each change of a series, by names of `CHANGES`; changes without one are left out.
        smallest_unit, largest_unit: Series are multiplied by a number between them, uniform in its logarithm.
        largest_offset: Half of the series are shifted by up to this number of spreads.
    """

    weights: Mapping[str, float] = field(default_factory=equal_weights)
    changes: Mapping[str, float] = field(default_factory=default_rates)
    smallest_unit: float = 1e-3
    largest_unit: float = 1e4
    largest_offset: float = 10.0

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
    series = _draw_kinds(settings.weights, count, length, (seed, step), where)
    draws = Draws.of(seed, step, "changes", device=where)
    spread = series.std(1, keepdim=True)
    for name, change in CHANGES.items():
        rate = settings.changes.get(name, 0.0)
        if rate:
            happens = draws.coin(count, 1, probability=rate)
            series = torch.where(happens, change(draws, series, spread), series)
    shift = draws.uniform(count, 1, low=-settings.largest_offset, high=settings.largest_offset)
    shift = shift * spread * draws.coin(count, 1, probability=0.5)
    unit = draws.log_uniform(count, 1, low=settings.smallest_unit, high=settings.largest_unit)
    return (series + shift) * unit


def _draw_kinds(
    weights: Mapping[str, float], count: int, length: int, key: tuple[object, ...], device: torch.device
) -> Tensor:
    """Series of all kinds in random order; the number of each kind is its share of `count`, rounded."""
    parts = {name: weight for name, weight in weights.items() if name != MIXTURE}
    blocks = []
    for name, number in share_out(weights, count, key).items():
        if number == 0:
            continue
        if name == MIXTURE:
            blocks.append(_draw_mixtures(parts, number, length, key, device))
        else:
            blocks.append(SOURCES[name](Draws.of(*key, name, device=device), number, length))
    return Draws.of(*key, "order", device=device).shuffle(torch.cat(blocks))


def _draw_mixtures(
    parts: Mapping[str, float], count: int, length: int, key: tuple[object, ...], device: torch.device
) -> Tensor:
    """Weighted sums, and products, of two or three series of the other kinds."""
    draws = Draws.of(*key, MIXTURE, device=device)
    number = draws.integers(count, 1, high=MOST_PARTS - 1) + 2
    is_product = draws.coin(count, 1, probability=PRODUCT_SHARE)
    # in one call, because the time of a call hardly depends on the number of series
    series = standardise(_draw_kinds(parts, MOST_PARTS * count, length, (*key, MIXTURE), device))
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
