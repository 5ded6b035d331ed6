"""Anomaly scores of rows without a network: the methods that a detector must beat.

    SCORERS["pca"].fit(NormalRows(series=[values], window=100, seed=0))    # see toa.estimators.scoring

A new baseline is one class and one line that registers it in `SCORERS`. A method that scores each row alone is a
`RowMethod`.

Alphabet: T rows, C channels, L window length, K components, N nodes of a tree, M trees.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from toa._checks import ArgumentError
from toa._registry import Registry
from toa.estimators.scoring import (
    Baseline,
    BaselineFamily,
    NormalRows,
    Rows,
    Series,
    blocks_within_memory,
    clip,
    in_float64,
)
from toa.estimators.trees import from_tables, path_length, read_isolation_trees

# windows that a scorer is fitted to at most
_MOST_WINDOWS = 5_000
# share of the variance that the kept components of PCA explain
_EXPLAINED = 0.9
# smallest share of the largest variance that is no rounding error
_VARYING = 1e-12
# added to the variances of a covariance matrix of standardised channels
_RIDGE = 0.01
# isolation forest: trees
_TREES = 100
# isolation forest: rows per tree
_TREE_ROWS = 256
# isolation forest: splits that a row meets at most
_TREE_DEPTH = 8


class RowMethod(Protocol):
    """A fitted method that scores each row alone; its fields are arrays."""

    @classmethod
    @abstractmethod
    def fit(cls, values: Rows, seed: int) -> Self:
        """Fit to normal rows."""

    @abstractmethod
    def parts(self, values: Rows) -> Rows:
        """Parts of the channels in the score of each row, for as many rows as fit the memory budget."""

    @abstractmethod
    def fits(self, channels: int) -> bool:
        """Whether the arrays belong to this number of channels."""


@dataclass(frozen=True, slots=True, eq=False)
class RowScorer:
    """Scores rows by a method that reads each row alone."""

    method: RowMethod

    def rows(self, values: Series) -> Rows:
        """See `Scorer`."""
        wide = in_float64(values)
        # in the memory order of the values, on which the rounding of sums depends
        parts = np.empty_like(wide)
        first = 0
        for block in blocks_within_memory(wide, max(values.shape[1], _TREES)):
            parts[first : first + len(block)] = self.method.parts(block)
            first += len(block)
        return parts

    def ends(self, values: Series, window: int) -> Rows:
        """See `Scorer`."""
        return self.rows(values)[window - 1 :]

    def state(self) -> dict[str, Tensor]:
        """See `Baseline`."""
        return _to_tensors(self.method)


@dataclass(frozen=True, slots=True)
class RowMethods:
    """The family of a `RowMethod`."""

    kind: type[RowMethod]

    def fit(self, normal: NormalRows) -> RowScorer:
        """See `BaselineFamily`."""
        return RowScorer(self.kind.fit(normal.joined(), normal.seed))

    def load(self, tensors: Mapping[str, Tensor], channels: int, largest: float | None = None) -> RowScorer:
        """See `BaselineFamily`; values are not clipped."""
        method = self.kind(**_to_arrays(self.kind, tensors))
        check_channels(method, channels)
        return RowScorer(method)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ZScore:
    """The square of each standardised value: the distance from the usual level, channel by channel."""

    mean: Float64[np.ndarray, " c"]
    std: Float64[np.ndarray, " c"]

    @classmethod
    def fit(cls, values: Rows, seed: int) -> Self:
        std = values.std(0)
        return cls(mean=values.mean(0), std=np.where(std > 0, std, 1.0))

    def parts(self, values: Rows) -> Rows:
        return ((values - self.mean) / self.std) ** 2

    def fits(self, channels: int) -> bool:
        return len(self.mean) == len(self.std) == channels and bool((self.std > 0).all())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PCA:
    """Squared error of a row that is reconstructed from the components with 90 % of the variance.

    At least one direction that varies is left out.
    """

    mean: Float64[np.ndarray, " c"]
    basis: Float64[np.ndarray, "c k"]

    @classmethod
    def fit(cls, values: Rows, seed: int) -> Self:
        mean = values.mean(0)
        centred = values - mean
        variance, vectors = np.linalg.eigh(centred.T @ centred)
        share = np.cumsum(variance[::-1])
        # fewer directions than vary: otherwise only rounding errors are left as score
        varying = int((variance > _VARYING * variance[-1]).sum())
        count = min(int(np.searchsorted(share, _EXPLAINED * share[-1])) + 1, max(0, varying - 1))
        # contiguous as in a saved file, so that products round in the same way
        return cls(mean=mean, basis=np.ascontiguousarray(vectors[:, ::-1][:, :count]))

    def parts(self, values: Rows) -> Rows:
        centred = values - self.mean
        return (centred - centred @ self.basis @ self.basis.T) ** 2

    def fits(self, channels: int) -> bool:
        return len(self.mean) == len(self.basis) == channels


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Mahalanobis:
    """Squared Mahalanobis distance from the mean: distances along directions of small variance count more."""

    mean: Float64[np.ndarray, " c"]
    precision: Float64[np.ndarray, "c c"]

    @classmethod
    def fit(cls, values: Rows, seed: int) -> Self:
        mean = values.mean(0)
        centred = values - mean
        covariance = centred.T @ centred / len(values)
        return cls(mean=mean, precision=np.linalg.inv(covariance + _RIDGE * np.eye(len(mean))))

    def parts(self, values: Rows) -> Rows:
        centred = values - self.mean
        # a part may be negative; their sum is not
        return centred * (centred @ self.precision)

    def fits(self, channels: int) -> bool:
        return len(self.mean) == len(self.precision) == channels


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class IsolationForest:
    """How few random splits separate a row from the others; scikit-learn's forest, stored as arrays.

    The parts of the channels follow their squared values, because a forest has none.
    """

    feature: Int64[np.ndarray, "m n"]
    threshold: Float64[np.ndarray, "m n"]
    left: Int64[np.ndarray, "m n"]
    right: Int64[np.ndarray, "m n"]
    depth: Float64[np.ndarray, "m n"]

    @classmethod
    def fit(cls, values: Rows, seed: int) -> Self:
        # loaded on use: scikit-learn takes long to import
        from sklearn.ensemble import IsolationForest as Forest

        rows = min(_TREE_ROWS, len(values))
        forest = Forest(n_estimators=_TREES, max_samples=rows, random_state=seed % 2**32)
        tables = read_isolation_trees(forest.fit(values))
        # in units of the usual depth of a row
        depth = tables.pop("value") / max(path_length(np.array([rows]))[0], 1.0)
        return cls(**tables, depth=depth)

    def parts(self, values: Rows) -> Rows:
        trees = from_tables(
            feature=self.feature,
            threshold=self.threshold,
            left=self.left,
            right=self.right,
            value=self.depth,
            depth=_TREE_DEPTH,
        )
        # trees compare numbers in float32
        score = 2.0 ** -trees.values_at(values.astype(np.float32)).mean(1)
        square = values**2 + 1e-12
        return score[:, None] * square / square.sum(1, keepdims=True)

    def fits(self, channels: int) -> bool:
        size = self.depth.shape[1]
        limits = ((self.feature, channels), (self.left, size), (self.right, size))
        fits = all(part.shape == self.depth.shape and ((part >= 0) & (part < limit)).all() for part, limit in limits)
        # `RowScorer.rows` bounds the memory for at most this number of trees
        return len(self.depth) <= _TREES and fits


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SubsequencePCA:
    """Squared error of windows of one channel that are reconstructed from their components, mean over windows.

    Attributes:
        largest: Largest value that it reads; None for all values.
    """

    mean: Float64[np.ndarray, "c l"]
    basis: Float64[np.ndarray, "c l k"]
    largest: float | None = None

    def rows(self, values: Series) -> Rows:
        """See `Scorer`."""
        read = clip(values, self.largest)
        length = self.mean.shape[1]
        starts = np.arange(0, len(read) - length + 1, max(1, length // 10))
        starts = np.unique(np.append(starts, len(read) - length))
        total = np.zeros(read.shape)
        count = np.zeros(len(read))
        for part in blocks_within_memory(starts, self.mean.size):
            error = self._errors(read, part)  # (N, C, L)
            for step in range(length):
                total[part + step] += error[:, :, step]
                count[part + step] += 1
        total /= count[:, None]
        return total

    def ends(self, values: Series, window: int) -> Rows:
        """See `Scorer`."""
        read = clip(values, self.largest)
        starts = np.arange(len(read) - window + 1)
        blocks = blocks_within_memory(starts, self.mean.size)
        return np.concatenate([self._errors(read, part)[:, :, -1] for part in blocks])

    def state(self) -> dict[str, Tensor]:
        """See `Baseline`."""
        return _to_tensors(self, without=("largest",))

    def fits(self, channels: int) -> bool:
        """Whether the arrays belong to this number of channels."""
        return len(self.mean) == len(self.basis) == channels

    def _errors(self, values: Rows, starts: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n c l"]:
        windows = _windows(values, self.mean.shape[1])[starts].transpose(1, 0, 2) - self.mean[:, None]  # (C, N, L)
        return ((windows - windows @ self.basis @ self.basis.transpose(0, 2, 1)) ** 2).transpose(1, 0, 2)


class SubsequencePCAs:
    """The family of `SubsequencePCA`."""

    def fit(self, normal: NormalRows) -> SubsequencePCA:
        """See `BaselineFamily`."""
        window = normal.window
        parts = [clip(part, normal.largest) for part in normal.series if len(part) >= window]
        views = [_windows(part, window) for part in parts]
        counts = [len(view) for view in views]
        chosen = np.arange(sum(counts))
        if len(chosen) > _MOST_WINDOWS:
            generator = np.random.default_rng(normal.seed)
            chosen = np.sort(generator.choice(len(chosen), _MOST_WINDOWS, replace=False))
        # the starts in each series
        places = np.split(chosen, np.searchsorted(chosen, np.cumsum(counts)[:-1]))
        firsts = np.cumsum([0, *counts[:-1]])
        starts = [inside - first for inside, first in zip(places, firsts, strict=True)]
        blocks = []
        for channels in blocks_within_memory(np.arange(normal.series[0].shape[1]), len(chosen) * window):
            block = slice(channels[0], channels[-1] + 1)
            windows = np.concatenate([view[rows, block] for view, rows in zip(views, starts, strict=True)])
            windows = windows.transpose(1, 0, 2)  # (C, N, L)
            mean = windows.mean(1)
            centred = windows - mean[:, None]
            blocks.append((mean, *np.linalg.eigh(centred.transpose(0, 2, 1) @ centred)))
        mean, variance, vectors = map(np.concatenate, zip(*blocks, strict=True))
        total = variance[:, ::-1].sum(0)
        count = int(np.searchsorted(np.cumsum(total), _EXPLAINED * total.sum())) + 1
        basis = np.ascontiguousarray(vectors[:, :, ::-1][:, :, :count])
        return SubsequencePCA(mean=mean, basis=basis, largest=normal.largest)

    def load(self, tensors: Mapping[str, Tensor], channels: int, largest: float | None = None) -> SubsequencePCA:
        """See `BaselineFamily`."""
        scorer = SubsequencePCA(**_to_arrays(SubsequencePCA, tensors, without=("largest",)), largest=largest)
        check_channels(scorer, channels)
        return scorer


SCORERS: Registry[BaselineFamily] = Registry("scorer")
SCORERS.register("z-score")(RowMethods(ZScore))
SCORERS.register("pca")(RowMethods(PCA))
SCORERS.register("mahalanobis")(RowMethods(Mahalanobis))
SCORERS.register("isolation forest")(RowMethods(IsolationForest))
SCORERS.register("sub-sequence pca")(SubsequencePCAs())


def fit_baselines(names: list[str], normal: NormalRows) -> dict[str, Baseline]:
    """Baselines by name, fitted to normal rows."""
    return {name: SCORERS[name].fit(normal) for name in names}


def check_channels(method: Any, channels: int) -> None:
    """Raise ValueError for arrays of a file that belong to another number of channels."""
    if not method.fits(channels):
        raise ArgumentError(type(method).__name__, f"belong to {channels} channels", "others")


def _to_tensors(method: Any, without: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """The arrays of a dataclass, copied."""
    names = [field.name for field in fields(method) if field.name not in without]
    return {name: torch.from_numpy(np.array(getattr(method, name))) for name in names}


def _to_arrays(kind: type, tensors: Mapping[str, Tensor], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The opposite of `_to_tensors`."""
    names = [field.name for field in fields(kind) if field.name not in without]
    return {name: tensors[name].cpu().numpy() for name in names}


def _windows(values: Rows, window: int) -> Float64[np.ndarray, "n c l"]:
    return np.lib.stride_tricks.sliding_window_view(values, window, axis=0)
