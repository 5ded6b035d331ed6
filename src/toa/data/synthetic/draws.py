"""Random numbers on one device, and the registry of kinds of series.

Alphabet: B series, L steps. A row is one series; parameters of series have shape (B, 1).
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from toa._registry import Registry

# lengths of seasons that occur in practice, in steps: hours of a day, days of a week, months of a year, and so on
COMMON_PERIODS = (4, 5, 7, 12, 24, 30, 48, 52, 60, 96, 144, 168, 288, 336, 365, 672, 730)
SHORTEST_PERIOD = 4
LONGEST_PERIOD = 730
# share of periods that are drawn from `COMMON_PERIODS`
COMMON_SHARE = 0.7
DAYS_PER_YEAR = 365.25


@dataclass(frozen=True)
class SamplingRate:
    """Which seasons series of a sampling rate have.

    Attributes:
        season: Steps of the main season; None for series of any season, or of none.
        common: Periods in steps that most seasons have.
        common_share: Share of periods that are common ones; the others are uniform in their logarithm.
        steps_per_day: Sampling rates of calendar patterns.
        sarima: Periods of seasonal terms of SARIMA, integers.
    """

    season: int | None
    common: tuple[float, ...]
    common_share: float
    steps_per_day: tuple[float, ...]
    sarima: tuple[int, ...]


ANY_RATE = SamplingRate(
    season=None,
    common=COMMON_PERIODS,
    common_share=COMMON_SHARE,
    # monthly, weekly, daily, hourly, half-hourly, quarter-hourly
    steps_per_day=(12 / DAYS_PER_YEAR, 1 / 7, 1.0, 24.0, 48.0, 96.0),
    sarima=(4, 7, 12, 24, 48, 52, 96, 168, 365),
)


@dataclass(frozen=True)
class Draws:
    """Random tensors of one generator. No method waits for the device."""

    generator: torch.Generator
    rate: SamplingRate = ANY_RATE

    @classmethod
    def of(cls, *names: object, device: torch.device, rate: SamplingRate = ANY_RATE) -> "Draws":
        """Draws that depend on the names alone, such as a seed, a step and a kind."""
        digest = hashlib.sha256(repr(names).encode()).digest()
        # a seed must be smaller than 2**63
        seed = int.from_bytes(digest[:8], "big") >> 1
        return cls(torch.Generator(device).manual_seed(seed), rate)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.generator.device

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Numbers between `low` and `high`."""
        return low + (high - low) * torch.rand(shape, generator=self.generator, device=self.device)

    def log_uniform(self, *shape: int, low: float, high: float) -> Tensor:
        """Positive numbers whose logarithms are uniform."""
        return self.uniform(*shape, low=math.log(low), high=math.log(high)).exp()

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def heavy_tailed(self, *shape: int) -> Tensor:
        """Symmetric numbers of variance 1 with more extremes than normal ones: normal numbers of random spread."""
        spread = (0.6 * self.normal(*shape)).exp()
        return self.normal(*shape) * spread * math.exp(-(0.6**2))

    def integers(self, *shape: int, high: int) -> Tensor:
        """Integers from 0 to high - 1."""
        return torch.randint(high, shape, generator=self.generator, device=self.device)

    def coin(self, *shape: int, probability: float | Tensor) -> Tensor:
        """True with a probability."""
        return torch.rand(shape, generator=self.generator, device=self.device) < probability

    def poisson(self, rate: Tensor) -> Tensor:
        """Poisson counts."""
        return torch.poisson(rate, generator=self.generator)

    def pick(self, values: Sequence[float], *shape: int) -> Tensor:
        """Entries of a short list."""
        return constant(tuple(values), self.device)[self.integers(*shape, high=len(values))]

    def shuffle(self, rows: Tensor) -> Tensor:
        """The rows in random order."""
        return rows[torch.rand(len(rows), generator=self.generator, device=self.device).argsort()]

    def periods(self, count: int) -> Tensor:
        """Periods (B, 1) of 4 to 730 steps: those of the rate, and others that are uniform in their logarithm."""
        common = self.pick(self.rate.common, count, 1)
        others = self.log_uniform(count, 1, low=SHORTEST_PERIOD, high=LONGEST_PERIOD)
        return torch.where(self.coin(count, 1, probability=self.rate.common_share), common, others)


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A list as a tensor, copied to a device once: a copy cannot be part of a CUDA graph."""
    return torch.tensor(values, dtype=torch.float32, device=device)


# series (B, L) in float32 from draws, B and L
Source = Callable[[Draws, int, int], Tensor]
# the kinds of series, by name
SOURCES: Registry[Source] = Registry("kind of series")
