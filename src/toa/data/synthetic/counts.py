"""Counts: many of small size, or rare ones with zeros between."""

import torch
from torch import Tensor

from toa.data.synthetic.draws import SOURCES, Draws
from toa.data.synthetic.seasons import several_seasons
from toa.data.synthetic.sequences import hold, standardise
from toa.data.synthetic.trends import any_trend

# largest logarithm of a mean count
LARGEST_LOG_RATE = 7.0


@SOURCES.register("counts")
def counts(draws: Draws, count: int, length: int) -> Tensor:
    """Poisson counts whose mean has seasons and a trend; a mean of 0.5 to 100 without them."""
    level = draws.log_uniform(count, 1, low=0.5, high=100.0).log()
    season = several_seasons(draws, count, length) * draws.uniform(count, 1, high=0.8)
    trend = standardise(any_trend(draws, count, length)) * draws.uniform(count, 1, high=0.5)
    return draws.poisson((level + season + trend).clamp_max(LARGEST_LOG_RATE).exp())


@SOURCES.register("intermittent")
def intermittent(draws: Draws, count: int, length: int) -> Tensor:
    """Zeros, and now and then a demand of at least 1; how often may have a season or change at random steps."""
    rate = draws.log_uniform(count, 1, low=0.02, high=0.5)
    season = (several_seasons(draws, count, length) * draws.uniform(count, 1, high=0.7)).exp()
    season = torch.where(draws.coin(count, 1, probability=0.5), season, 1.0)
    shifts = hold(
        draws.log_uniform(count, length, low=0.3, high=2.0), draws.coin(count, length, probability=3.0 / length)
    )
    shifts = torch.where(draws.coin(count, 1, probability=0.3), shifts, 1.0)
    occurs = draws.coin(count, length, probability=rate * season * shifts)
    size = 1.0 + draws.poisson(draws.log_uniform(count, 1, low=0.1, high=30.0).expand(count, length))
    return torch.where(occurs, size, 0.0)
