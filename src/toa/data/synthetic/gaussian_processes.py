"""Gaussian processes whose kernels are random sums and products.

A stationary kernel is a function of the lag, so sums and products are taken on the L + 1 lags of a series. The series
is drawn on a circle of 2 L steps: the Fourier transform of the covariances is the variance per frequency, and white
noise is multiplied by its root. Where a kernel has not decayed after L lags, some of these variances are negative; they
are set to zero, which changes the covariances a little.
"""

import math

import torch
from torch import Tensor

from toa.data.synthetic.draws import SOURCES, Draws
from toa.data.synthetic.sequences import filter_noise, standardise, steps_of
from toa.data.synthetic.trends import linear

# most kernels of a process
MOST_KERNELS = 4
# exponents that stand for a correlation of zero
UNCORRELATED = 50.0


def smooth_exponent(lag: Tensor, width: Tensor) -> Tensor:
    """The squared exponential kernel is exp(-exponent)."""
    return 0.5 * (lag / width).square()


def rough_exponent(lag: Tensor, width: Tensor) -> Tensor:
    """The exponential kernel, of an Ornstein-Uhlenbeck process."""
    return lag / width


def rational_exponent(lag: Tensor, width: Tensor) -> Tensor:
    """The rational quadratic kernel with the power 1: a mixture of widths."""
    return torch.log1p(0.5 * (lag / width).square())


def periodic_exponent(lag: Tensor, period: Tensor, sharpness: Tensor) -> Tensor:
    """The periodic kernel."""
    return 2.0 * sharpness * torch.sin(math.pi * lag / period).square()


def white_exponent(lag: Tensor) -> Tensor:
    """The kernel of white noise."""
    return UNCORRELATED * (lag > 0)


def random_exponent(draws: Draws, count: int, lag: Tensor) -> Tensor:
    """One kernel per series (B, L + 1): -log of the correlation at each lag."""
    longest = lag.shape[1] - 1
    width = draws.log_uniform(count, 1, low=2.0, high=longest / 2)
    chosen = draws.integers(count, 1, high=6)
    exponent = smooth_exponent(lag, width)
    exponent = torch.where(chosen == 1, rough_exponent(lag, width), exponent)
    exponent = torch.where(chosen == 2, rational_exponent(lag, width), exponent)
    exponent = torch.where(chosen == 3, white_exponent(lag), exponent)
    sharpness = draws.log_uniform(count, 1, low=0.1, high=5.0)
    # two of six, because seasons are what there is to learn
    return torch.where(chosen >= 4, periodic_exponent(lag, draws.periods(count), sharpness), exponent)


def random_kernel(draws: Draws, count: int, length: int) -> Tensor:
    """Covariances (B, L + 1) at the lags 0 to L of sums and products of up to four kernels; 1 at lag 0."""
    lag = steps_of(draws, length + 1)
    number = draws.integers(count, 1, high=MOST_KERNELS) + 1
    covariance = (-random_exponent(draws, count, lag)).exp()
    for place in range(1, MOST_KERNELS):
        weight = draws.log_uniform(count, 1, low=0.1, high=2.0)
        kernel = (-random_exponent(draws, count, lag)).exp()
        is_product = draws.coin(count, 1, probability=0.5)
        combined = torch.where(is_product, covariance * kernel, covariance + weight * kernel)
        covariance = torch.where(place < number, combined, covariance)
    return covariance / covariance[:, :1]


def sample_process(draws: Draws, covariance: Tensor) -> Tensor:
    """Series (B, L) of a stationary Gaussian process with covariances (B, L + 1) at the lags 0 to L."""
    count, lags = covariance.shape
    # a circle of 2 L steps: the lags 0 to L and back
    circle = torch.cat((covariance, covariance[:, 1:-1].flip(1)), 1)
    variance = torch.fft.rfft(circle).real.clamp_min(0.0)
    return filter_noise(variance.sqrt(), draws.normal(count, circle.shape[1]))[:, : lags - 1]


@SOURCES.register("gaussian_process")
def gaussian_process(draws: Draws, count: int, length: int) -> Tensor:
    """A Gaussian process with a random kernel, in a third of the series on a straight line."""
    process = sample_process(draws, random_kernel(draws, count, length))
    slope = standardise(linear(draws, count, length)) * draws.uniform(count, 1, high=2.0)
    return process + slope * draws.coin(count, 1, probability=0.33)
