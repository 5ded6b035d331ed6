"""Changes that happen to series of all kinds: level shifts, outliers, limits, rounding, missing stretches.

Each takes and returns series (B, L); `spread` (B, 1) is the spread of each series before all changes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from toa._registry import Registry
from toa.data.synthetic.draws import Draws
from toa.data.synthetic.sequences import hold

# series with changes from draws, series and their spread
Change = Callable[[Draws, Tensor, Tensor], Tensor]
# in the order in which they happen: what is missing has no outliers
CHANGES: Registry[Change] = Registry("change of series")

# largest share of the steps of a series that a stretch of missing values takes
LONGEST_GAP = 0.25
# most stretches of missing values
MOST_GAPS = 2


@CHANGES.register("level_shifts")
def level_shifts(draws: Draws, series: Tensor, spread: Tensor) -> Tensor:
    """Add a level that changes once or a few times per series."""
    count, length = series.shape
    changes = draws.coin(count, length, probability=draws.uniform(count, 1, low=1.0, high=3.0) / length)
    levels = draws.normal(count, length) * draws.uniform(count, 1, low=0.5, high=3.0)
    return series + spread * hold(levels, changes)


@CHANGES.register("outliers")
def outliers(draws: Draws, series: Tensor, spread: Tensor) -> Tensor:
    """Add 3 to 20 spreads to 0.1 to 2 % of the steps, in one direction or in both."""
    count, length = series.shape
    where = draws.coin(count, length, probability=draws.log_uniform(count, 1, low=0.001, high=0.02))
    size = draws.log_uniform(count, length, low=3.0, high=20.0)
    up = draws.pick((0.0, 0.5, 1.0), count, 1)
    sign = torch.where(draws.coin(count, length, probability=up), 1.0, -1.0)
    return series + where * sign * size * spread


@CHANGES.register("clipping")
def clipping(draws: Draws, series: Tensor, spread: Tensor) -> Tensor:
    """Cut values below a limit, above a limit, or both: at 0.5 to 2.5 spreads from the mean."""
    middle = series.mean(1, keepdim=True)
    unlimited = torch.inf
    side = draws.integers(len(series), 1, high=3)
    low = middle - spread * draws.uniform(len(series), 1, low=0.5, high=2.5)
    high = middle + spread * draws.uniform(len(series), 1, low=0.5, high=2.5)
    low = torch.where(side == 0, -unlimited, low)
    high = torch.where(side == 1, unlimited, high)
    return series.maximum(low).minimum(high)


@CHANGES.register("quantisation")
def quantisation(draws: Draws, series: Tensor, spread: Tensor) -> Tensor:
    """Round to multiples of 0.02 to 1 spread."""
    step = (spread * draws.log_uniform(len(series), 1, low=0.02, high=1.0)).clamp_min(torch.finfo(series.dtype).tiny)
    return (series / step).round() * step


@CHANGES.register("missing")
def missing(draws: Draws, series: Tensor, spread: Tensor) -> Tensor:
    """Remove up to two stretches of at most a quarter of the steps; in half of the series, up to 10 % of all steps."""
    count, length = series.shape
    steps = torch.arange(length, device=series.device)
    removed = draws.coin(count, length, probability=draws.uniform(count, 1, low=-0.1, high=0.1))
    for _ in range(MOST_GAPS):
        size = draws.log_uniform(count, 1, low=1.0, high=LONGEST_GAP * length)
        start = draws.uniform(count, 1, low=-LONGEST_GAP / 2) * length
        removed = removed | ((steps >= start) & (steps < start + size))
    return torch.where(removed, torch.nan, series)
