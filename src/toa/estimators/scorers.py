"""Anomaly scores of rows without a network: the methods that a detector must beat.

    scorer = SCORERS["pca"].fit(series, window=100, seed=0)    # standardised arrays (T, C) of normal rows
    scorer.rows(values)                                        # (T, C): the part of each channel in each row's score
    scorer.rows(values).sum(1)                                 # (T,): the score; higher is less usual

A score that depends on the rows around a row is also defined at the ends of a series.

Alphabet: T rows, C channels, L window length, K components, N nodes of a tree, M trees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from toa._limits import memory_budget
from toa._registry import Registry

Rows = Float64[np.ndarray, "t c"]

SCORERS: "Registry[type[Scorer]]" = Registry("scorer")

# windows that a scorer is fitted to at most
_MOST_WINDOWS = 5_000
# share of the variance that the kept components of PCA explain
_EXPLAINED = 0.9
# smallest share of the largest variance that is no rounding error
_VARYING = 1e-12
# added to the variances of a covariance matrix of standardised channels
_RIDGE = 0.01
# isolation forest: trees, and rows per tree
_TREES, _TREE_ROWS = 100, 256
# rows or windows that are scored at a time, at most, and arrays that are needed for it: bounds the memory
_BLOCK, _ARRAYS = 4_000, 6
# numbers in a table of which means over windows are taken at once
_LARGE = 4_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """A fitted method; its fields are arrays, so that it can be saved.

    A method that scores each row alone defines `_fit`, from all rows, and `_parts`, for some rows at a time.
    """

    @classmethod
    def fit(cls, series: Sequence[Rows], *, window: int, seed: int) -> Self:
        """Fit to standardised series of normal rows."""
        return cls._fit(series[0] if len(series) == 1 else np.concatenate(series), seed)

    def rows(self, values: Rows) -> Rows:
        """Parts of the channels in the score of each row; they sum to the score."""
        found, first = np.empty_like(values), 0
        for block in _blocks(values, max(values.shape[1], _TREES)):
            found[first : first + len(block)] = self._parts(block)
            first += len(block)
        return found

    def ends(self, values: Rows, window: int) -> Rows:
        """The same for the rows from the end of the first window on, without the rows after each."""
        return self.rows(values)[window - 1 :]

    def state(self) -> dict[str, Tensor]:
        """The arrays to save."""
        return {field.name: torch.from_numpy(np.array(getattr(self, field.name))) for field in fields(self)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], channels: int) -> Self:
        """From the result of `state`; raises ValueError if it belongs to another number of channels."""
        made = cls(**{field.name: tensors[field.name].cpu().numpy() for field in fields(cls)})
        if not made._fits(channels):
            raise ValueError(f"{cls.__name__} must belong to {channels} channels, got one of others")
        return made

    @classmethod
    def _fit(cls, values: Rows, seed: int) -> Self:
        raise NotImplementedError

    def _parts(self, values: Rows) -> Rows:
        raise NotImplementedError

    def _fits(self, channels: int) -> bool:
        return all(len(getattr(self, field.name)) == channels for field in fields(self))


@SCORERS.register("z-score")
@dataclass(frozen=True, kw_only=True, slots=True)
class ZScore(Scorer):
    """The square of each standardised value: the distance from the usual level, channel by channel."""

    mean: Float64[np.ndarray, " c"]
    std: Float64[np.ndarray, " c"]

    @classmethod
    def _fit(cls, values: Rows, seed: int) -> Self:
        std = values.std(0)
        return cls(mean=values.mean(0), std=np.where(std > 0, std, 1.0))

    def _parts(self, values: Rows) -> Rows:
        return ((values - self.mean) / self.std) ** 2


@SCORERS.register("pca")
@dataclass(frozen=True, kw_only=True, slots=True)
class PCA(Scorer):
    """Squared error of a row that is reconstructed from the components with 90 % of the variance.

    At least one direction that varies is left out.
    """

    mean: Float64[np.ndarray, " c"]
    basis: Float64[np.ndarray, "c k"]

    @classmethod
    def _fit(cls, values: Rows, seed: int) -> Self:
        mean = values.mean(0)
        centred = values - mean
        variance, vectors = np.linalg.eigh(centred.T @ centred)
        share = np.cumsum(variance[::-1])
        # fewer directions than vary: otherwise only rounding errors are left as score
        varying = int((variance > _VARYING * variance[-1]).sum())
        count = min(int(np.searchsorted(share, _EXPLAINED * share[-1])) + 1, max(0, varying - 1))
        # contiguous as in a saved file, so that products round in the same way
        return cls(mean=mean, basis=np.ascontiguousarray(vectors[:, ::-1][:, :count]))

    def _parts(self, values: Rows) -> Rows:
        centred = values - self.mean
        return (centred - centred @ self.basis @ self.basis.T) ** 2


@SCORERS.register("mahalanobis")
@dataclass(frozen=True, kw_only=True, slots=True)
class Mahalanobis(Scorer):
    """Squared Mahalanobis distance from the mean: distances along directions of small variance count more."""

    mean: Float64[np.ndarray, " c"]
    precision: Float64[np.ndarray, "c c"]

    @classmethod
    def _fit(cls, values: Rows, seed: int) -> Self:
        mean = values.mean(0)
        centred = values - mean
        covariance = centred.T @ centred / len(values)
        return cls(mean=mean, precision=np.linalg.inv(covariance + _RIDGE * np.eye(len(mean))))

    def _parts(self, values: Rows) -> Rows:
        centred = values - self.mean
        # a part may be negative; their sum is not
        return centred * (centred @ self.precision)


@SCORERS.register("isolation forest")
@dataclass(frozen=True, kw_only=True, slots=True)
class IsolationForest(Scorer):
    """How few random splits separate a row from the others; scikit-learn's forest, stored as arrays.

    The parts of the channels follow their squared values, because a forest has none.
    """

    feature: Int64[np.ndarray, "m n"]
    threshold: Float64[np.ndarray, "m n"]
    left: Int64[np.ndarray, "m n"]
    right: Int64[np.ndarray, "m n"]
    depth: Float64[np.ndarray, "m n"]

    @classmethod
    def _fit(cls, values: Rows, seed: int) -> Self:
        from sklearn.ensemble import IsolationForest as Forest
        from sklearn.ensemble._iforest import _average_path_length

        rows = min(_TREE_ROWS, len(values))
        forest = Forest(n_estimators=_TREES, max_samples=rows, random_state=seed % 2**32)
        trees = [tree.tree_ for tree in forest.fit(values).estimators_]
        size = max(tree.node_count for tree in trees)
        feature, left, right = (np.zeros((_TREES, size), dtype=np.int64) for _ in range(3))
        threshold, depth = np.zeros((_TREES, size)), np.zeros((_TREES, size))
        for index, tree in enumerate(trees):
            nodes = np.arange(tree.node_count)
            inner = tree.children_left >= 0
            # a leaf leads to itself
            left[index, nodes] = np.where(inner, tree.children_left, nodes)
            right[index, nodes] = np.where(inner, tree.children_right, nodes)
            feature[index, nodes] = np.where(inner, tree.feature, 0)
            threshold[index, nodes] = tree.threshold
            # rows that share a leaf would be separated by further splits
            depth[index, nodes] = tree.compute_node_depths() - 1 + _average_path_length(tree.n_node_samples)
        # in units of the usual depth of a row
        depth /= max(_average_path_length([rows])[0], 1.0)
        return cls(feature=feature, threshold=threshold, left=left, right=right, depth=depth)

    def _fits(self, channels: int) -> bool:
        size = self.depth.shape[1]
        sizes = (self.feature, channels), (self.left, size), (self.right, size)
        fits = (part.shape == self.depth.shape and ((part >= 0) & (part < most)).all() for part, most in sizes)
        # `rows` bounds the memory for at most this number of trees
        return len(self.depth) <= _TREES and all(fits)

    def _parts(self, values: Rows) -> Rows:
        # trees compare numbers in float32
        at, place = values.astype(np.float32), np.arange(len(values))[:, None]
        tree = np.arange(len(self.feature))
        node = np.zeros((len(values), len(tree)), dtype=np.int64)
        for _ in range(int(np.ceil(np.log2(_TREE_ROWS)))):
            below = at[place, self.feature[tree, node]] <= self.threshold[tree, node]
            node = np.where(below, self.left[tree, node], self.right[tree, node])
        score = 2.0 ** -self.depth[tree, node].mean(1)
        square = values**2 + 1e-12
        return score[:, None] * square / square.sum(1, keepdims=True)


@SCORERS.register("sub-sequence pca")
@dataclass(frozen=True, kw_only=True, slots=True)
class SubsequencePCA(Scorer):
    """Squared error of windows of one channel that are reconstructed from their components, mean over windows."""

    mean: Float64[np.ndarray, "c l"]
    basis: Float64[np.ndarray, "c l k"]

    @classmethod
    def fit(cls, series: Sequence[Rows], *, window: int, seed: int) -> Self:
        views = [_windows(part, window) for part in series if len(part) >= window]
        counts = [len(view) for view in views]
        chosen = np.arange(sum(counts))
        if len(chosen) > _MOST_WINDOWS:
            chosen = np.sort(np.random.default_rng(seed).choice(len(chosen), _MOST_WINDOWS, replace=False))
        # the starts in each series
        places = np.split(chosen, np.searchsorted(chosen, np.cumsum(counts)[:-1]))
        starts = [own - first for own, first in zip(places, np.cumsum([0, *counts[:-1]]), strict=True)]
        found = []
        for part in _blocks(np.arange(series[0].shape[1]), len(chosen) * window):
            own = slice(part[0], part[-1] + 1)
            windows = np.concatenate([view[rows, own] for view, rows in zip(views, starts, strict=True)])
            windows = windows.transpose(1, 0, 2)  # (C, N, L)
            mean = windows.mean(1)
            centred = windows - mean[:, None]
            found.append((mean, *np.linalg.eigh(centred.transpose(0, 2, 1) @ centred)))
        mean, variance, vectors = map(np.concatenate, zip(*found, strict=True))
        total = variance[:, ::-1].sum(0)
        count = int(np.searchsorted(np.cumsum(total), _EXPLAINED * total.sum())) + 1
        return cls(mean=mean, basis=np.ascontiguousarray(vectors[:, :, ::-1][:, :, :count]))

    def rows(self, values: Rows) -> Rows:
        length = self.mean.shape[1]
        starts = np.arange(0, len(values) - length + 1, max(1, length // 10))
        starts = np.unique(np.append(starts, len(values) - length))
        total, count = np.zeros(values.shape), np.zeros(len(values))
        for part in _blocks(starts, self.mean.size):
            error = self._errors(values, part)  # (N, C, L)
            for step in range(length):
                total[part + step] += error[:, :, step]
                count[part + step] += 1
        total /= count[:, None]
        return total

    def ends(self, values: Rows, window: int) -> Rows:
        starts = np.arange(len(values) - window + 1)
        return np.concatenate([self._errors(values, part)[:, :, -1] for part in _blocks(starts, self.mean.size)])

    def _errors(self, values: Rows, starts: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n c l"]:
        windows = _windows(values, self.mean.shape[1])[starts].transpose(1, 0, 2) - self.mean[:, None]  # (C, N, L)
        return ((windows - windows @ self.basis @ self.basis.transpose(0, 2, 1)) ** 2).transpose(1, 0, 2)


def window_mean(values: Float64[np.ndarray, "t ..."], before: int, after: int) -> Float64[np.ndarray, "t ..."]:
    """Mean over each row and the rows around it, as far as there are rows.

    A window is the end of one block and the beginning of the next, each summed from its own rows: a difference of sums
    over all rows would lose every small value after a very large one.
    """
    if values.ndim > 1 and values.size > _LARGE:
        # several arrays of this size are needed: some channels at a time
        means, step = np.empty_like(values), max(1, _LARGE // len(values))
        for first in range(0, values.shape[1], step):
            means[:, first : first + step] = window_mean(values[:, first : first + step], before, after)
        return means
    width, rows = before + after + 1, np.arange(len(values))
    padding = ((before, after + -(len(values) + before + after) % width), *((0, 0),) * (values.ndim - 1))
    blocks = np.pad(values, padding).reshape(-1, width, *values.shape[1:])
    begins = blocks.cumsum(1).reshape(-1, *values.shape[1:])
    ends = blocks[:, ::-1].cumsum(1)[:, ::-1].reshape(-1, *values.shape[1:])
    sums = begins[rows + width - 1]
    sums[rows % width > 0] += ends[rows[rows % width > 0]]
    counts = np.minimum(rows + after + 1, len(values)) - np.maximum(rows - before, 0)
    return sums / counts.reshape(-1, *(1,) * (values.ndim - 1))


def window_max(values: Float64[np.ndarray, " t"], before: int, after: int) -> Float64[np.ndarray, " t"]:
    """Largest value of each row and the rows around it."""
    padded = np.pad(values, (before, after), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, before + after + 1).max(1)


def _windows(values: Rows, window: int) -> Float64[np.ndarray, "n c l"]:
    return np.lib.stride_tricks.sliding_window_view(values, window, axis=0)


def _blocks(rows: np.ndarray, width: int) -> list[np.ndarray]:
    """Parts of which each needs several arrays of `width` numbers per row, and which fit the memory budget."""
    size = max(1, min(_BLOCK, memory_budget() // (_ARRAYS * 8 * width)))
    return np.split(rows, range(size, len(rows), size))
