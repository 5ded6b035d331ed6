"""What an anomaly score is: the interface of a method that scores rows, and means of scores over windows.

    scorer = SCORERS["pca"].fit(normal)    # in toa.estimators.scorers
    scorer.rows(values)                    # (T, C): the part of each channel in each row's score
    scorer.rows(values).sum(1)             # (T,): the score; higher is less usual
    scorer.ends(values, window)            # the same for rows as they arrive, without the rows after each

A score that depends on the rows around a row is also defined at the ends of a series.

Alphabet: T rows, C channels, L window length.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float, Float64
from torch import Tensor

from toa._limits import memory_budget

# parts of the channels in the score of each row
Rows = Float64[np.ndarray, "t c"]
# standardised rows of a series; a detector keeps them in float32
Series = Float[np.ndarray, "t c"]
# one score per row
Score = Float64[np.ndarray, " t"]

# rows or windows that are scored at a time, at most
_BLOCK = 4_000
# arrays that are needed to score them
_ARRAYS = 6
# numbers in a table of which means over windows are taken at once
_LARGE = 4_000_000


class Scorer(Protocol):
    """A fitted method that scores rows."""

    @abstractmethod
    def rows(self, values: Series) -> Rows:
        """Parts of the channels in the score of each row; they sum to the score."""

    @abstractmethod
    def ends(self, values: Series, window: int) -> Rows:
        """The same for the rows from the end of the first window on, without the rows after each."""


class Baseline(Scorer, Protocol):
    """A scorer without a network, which a file holds as arrays."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The arrays to save."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NormalRows:
    """What a baseline is fitted to.

    Attributes:
        series: Standardised series of normal rows.
        largest: Largest standardised value that methods of windows read; None for all values.
    """

    series: Sequence[Series]
    window: int
    seed: int
    largest: float | None = None

    def joined(self) -> Rows:
        """All rows in float64."""
        rows = self.series[0] if len(self.series) == 1 else np.concatenate(self.series)
        return in_float64(rows)


class BaselineFamily(Protocol):
    """How baselines of one kind are fitted, and read from a file."""

    @abstractmethod
    def fit(self, normal: NormalRows) -> Baseline:
        """Fit to normal rows."""

    @abstractmethod
    def load(self, tensors: Mapping[str, Tensor], channels: int, largest: float | None = None) -> Baseline:
        """From the result of `state`; raises ValueError if it belongs to another number of channels."""


def in_float64(values: Series) -> Rows:
    """The values in float64; the same array if they are."""
    return np.asarray(values, dtype=np.float64)


def clip(values: Series, largest: float | None) -> Rows:
    """Standardised rows as a method of windows reads them, clipped to `largest`.

    Otherwise one wrong value would raise the score of every row in its windows.
    """
    wide = in_float64(values)
    return wide if largest is None else wide.clip(-largest, largest)


def blocks_within_memory(rows: np.ndarray, width: int) -> list[np.ndarray]:
    """Parts of which each needs several arrays of `width` numbers per row, and which fit the memory budget."""
    size = max(1, min(_BLOCK, memory_budget() // (_ARRAYS * 8 * width)))
    return np.split(rows, range(size, len(rows), size))


def window_mean(values: Float64[np.ndarray, "t ..."], before: int, after: int) -> Float64[np.ndarray, "t ..."]:
    """Mean over each row and the rows around it, as far as there are rows.

    A window is the end of one block and the beginning of the next, each summed from its own rows: a difference of sums
    over all rows would lose every small value after a very large one.
    """
    if values.ndim > 1 and values.size > _LARGE:
        # several arrays of this size are needed: some channels at a time
        means = np.empty_like(values)
        step = max(1, _LARGE // len(values))
        for first in range(0, values.shape[1], step):
            means[:, first : first + step] = window_mean(values[:, first : first + step], before, after)
        return means
    width = before + after + 1
    rows = np.arange(len(values))
    # rows that the last block lacks
    lacking = -(len(values) + before + after) % width
    padding = [(before, after + lacking)] + [(0, 0)] * (values.ndim - 1)
    blocks = np.pad(values, padding).reshape(-1, width, *values.shape[1:])
    begins = blocks.cumsum(1).reshape(-1, *values.shape[1:])
    ends = blocks[:, ::-1].cumsum(1)[:, ::-1].reshape(-1, *values.shape[1:])
    sums = begins[rows + width - 1]
    sums[rows % width > 0] += ends[rows[rows % width > 0]]
    counts = np.minimum(rows + after + 1, len(values)) - np.maximum(rows - before, 0)
    return sums / counts.reshape(-1, *(1,) * (values.ndim - 1))


def window_max(values: Score, before: int, after: int) -> Score:
    """Largest value of each row and the rows around it."""
    padded = np.pad(values, (before, after), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, before + after + 1).max(1)
