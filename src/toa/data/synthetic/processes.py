"""Stochastic processes: regime-switching Ornstein-Uhlenbeck, SARIMA, random walks."""

import math

import torch
from torch import Tensor

from toa.data.synthetic.draws import SOURCES, Draws
from toa.data.synthetic.sequences import filter_noise, hold, scan, seasonal_sum, standardise, steps_of

# regimes of a switching process
REGIME_COUNT = 3
# largest modulus of the roots of an autoregression; 1 is the border of the stability region
LARGEST_ROOT = 0.98
# largest coefficient of a seasonal term
LARGEST_SEASONAL = 0.9


def switching_process(decay: Tensor, mean: Tensor, spread: Tensor, noise: Tensor) -> Tensor:
    """x[t] = mean[t] + decay[t] (x[t-1] - mean[t]) + spread[t] sqrt(1 - decay[t]²) noise[t], all (B, L).

    `spread` is the standard deviation that the process has after many steps in one regime; it starts there.
    """
    inputs = (1 - decay) * mean + spread * (1 - decay.square()).sqrt() * noise
    start = mean[:, :1] + spread[:, :1] * noise[:, :1]
    return scan(decay, torch.cat((start, inputs[:, 1:]), 1))


@SOURCES.register("regimes")
def regimes(draws: Draws, count: int, length: int) -> Tensor:
    """An Ornstein-Uhlenbeck process that switches between three regimes of mean, spread and decay."""
    rate = draws.log_uniform(count, 1, low=1.0 / length, high=0.02)
    changes = draws.coin(count, length, probability=rate)
    regime = hold(draws.integers(count, length, high=REGIME_COUNT), changes)  # (B, L)
    # steps until a deviation has fallen to 1 / e
    memory = draws.log_uniform(count, REGIME_COUNT, low=1.0, high=200.0)
    decay = (-1.0 / memory).exp().gather(1, regime)
    mean = (2.0 * draws.normal(count, REGIME_COUNT)).gather(1, regime)
    spread = draws.log_uniform(count, REGIME_COUNT, low=0.1, high=2.0).gather(1, regime)
    return standardise(switching_process(decay, mean, spread, draws.normal(count, length)))


def one_root(angle: Tensor, coefficient: Tensor) -> Tensor:
    """The polynomial 1 - c z at z = exp(-i angle), complex."""
    return 1 - coefficient * torch.polar(torch.ones_like(angle), -angle)


def two_roots(angle: Tensor, modulus: Tensor, turn: Tensor) -> Tensor:
    """The polynomial 1 - 2 r cos(turn) z + r² z² at z = exp(-i angle); its roots have the modulus 1 / r."""
    z = torch.polar(torch.ones_like(angle), -angle)
    return 1 - 2 * modulus * torch.cos(turn) * z + modulus.square() * z.square()


def sarma_response(draws: Draws, count: int, length: int, period: Tensor) -> Tensor:
    """Response (B, L + 1) of a stationary seasonal ARMA process at the frequencies of a circle of 2 L steps.

    Orders are up to (3, 2), and (1, 1) for the season. All roots lie outside the unit circle.
    """
    angle = math.pi * steps_of(draws, length + 1) / length
    size = (count, 1)

    def sometimes(values: Tensor) -> Tensor:
        return values * draws.coin(*size, probability=0.6)

    pair = two_roots(angle, sometimes(draws.uniform(*size, high=LARGEST_ROOT)), draws.uniform(*size, high=math.pi))
    single = one_root(angle, sometimes(draws.uniform(*size, low=-0.5, high=LARGEST_ROOT)))
    season = one_root(angle * period, sometimes(draws.uniform(*size, high=LARGEST_SEASONAL)))
    average = two_roots(angle, sometimes(draws.uniform(*size, high=0.9)), draws.uniform(*size, high=math.pi))
    seasonal_average = one_root(angle * period, sometimes(draws.uniform(*size, low=-0.9, high=0.9)))
    return average * seasonal_average / (pair * single * season)


@SOURCES.register("sarima")
def sarima(draws: Draws, count: int, length: int) -> Tensor:
    """A seasonal ARMA process, summed once in 40 % of the series, and over seasons in 30 %."""
    periods = draws.rate.sarima
    period = draws.pick(periods, count, 1)
    response = sarma_response(draws, count, length, period)
    series = standardise(filter_noise(response, draws.normal(count, 2 * length))[:, :length])
    seasonal = seasonal_sum(series, period.long(), max(periods))
    series = torch.where(draws.coin(count, 1, probability=0.3), seasonal, series)
    series = torch.where(draws.coin(count, 1, probability=0.4), series.cumsum(1), series)
    return standardise(series)


@SOURCES.register("random_walk")
def random_walk(draws: Draws, count: int, length: int) -> Tensor:
    """Sums of steps that are normal, heavy-tailed or rare, with a drift and a spread that may change."""
    heavy = draws.heavy_tailed(count, length)
    rare = heavy * draws.coin(count, length, probability=draws.log_uniform(count, 1, low=0.01, high=0.3))
    chosen = draws.integers(count, 1, high=3)
    changes = torch.where(chosen == 1, heavy, torch.where(chosen == 2, rare, draws.normal(count, length)))
    calm = draws.coin(count, length, probability=4.0 / length)
    spread = hold(draws.log_uniform(count, length, low=0.3, high=3.0), calm)
    changes = torch.where(draws.coin(count, 1, probability=0.3), changes * spread, changes)
    drift = draws.normal(count, 1) * draws.coin(count, 1, probability=0.5) / math.sqrt(length)
    return standardise((changes + drift).cumsum(1))
