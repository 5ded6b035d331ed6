"""Trends: linear, exponential, logistic and piecewise linear ones, with noise.

Each shape rises or falls by about 1 over the series.
"""

import math

import torch
from torch import Tensor

from toa.data.synthetic.draws import SOURCES, Draws
from toa.data.synthetic.sequences import hold, standardise, steps_of

# changes of slope per series of a piecewise trend, on average
MEAN_CHANGES = 4.0
# largest factor of an exponential trend, as a logarithm
FASTEST_GROWTH = 4.0


def linear(draws: Draws, count: int, length: int) -> Tensor:
    """A straight line."""
    return draws.normal(count, 1) * steps_of(draws, length) / length


def exponential(draws: Draws, count: int, length: int) -> Tensor:
    """Growth or decay at a constant rate."""
    rate = draws.uniform(count, 1, low=-FASTEST_GROWTH, high=FASTEST_GROWTH)
    growth = (rate * steps_of(draws, length) / length).exp()
    # so that the largest value is 1
    return growth * (-rate.clamp_min(0.0)).exp()


def logistic(draws: Draws, count: int, length: int) -> Tensor:
    """Growth that saturates."""
    middle = draws.uniform(count, 1) * length
    width = draws.log_uniform(count, 1, low=0.02, high=0.3) * length
    direction = draws.normal(count, 1)
    return direction * torch.sigmoid((steps_of(draws, length) - middle) / width)


def piecewise(draws: Draws, count: int, length: int) -> Tensor:
    """Straight lines whose slope changes at random steps, a few times per series."""
    rate = draws.log_uniform(count, 1, low=0.5, high=2.0) * MEAN_CHANGES / length
    slopes = hold(draws.normal(count, length), draws.coin(count, length, probability=rate))
    return slopes.cumsum(1) * math.sqrt(MEAN_CHANGES) / length


SHAPES = (linear, exponential, logistic, piecewise)


def any_trend(draws: Draws, count: int, length: int) -> Tensor:
    """One of the shapes per series."""
    trend = SHAPES[0](draws, count, length)
    chosen = draws.integers(count, 1, high=len(SHAPES))
    for number, shape in enumerate(SHAPES[1:], start=1):
        trend = torch.where(chosen == number, shape(draws, count, length), trend)
    return trend


def some_noise(draws: Draws, count: int, length: int) -> Tensor:
    """Noise of 1 to 50 % of a series with spread 1."""
    return draws.log_uniform(count, 1, low=0.01, high=0.5) * draws.normal(count, length)


@SOURCES.register("trend")
def trend(draws: Draws, count: int, length: int) -> Tensor:
    """A trend with noise of 1 to 50 % of its spread."""
    return standardise(any_trend(draws, count, length)) + some_noise(draws, count, length)
