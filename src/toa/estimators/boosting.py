"""Gradient boosting on lags: trees that forecast one step after another, one model for all series.

    model = BoostedTrees.fit(history, season=24, lookback=96)   # history (N, T), NaN before each series begins
    model.predict(history, horizon=48)                          # (N, P)

Scikit-learn fits the trees; they are kept, saved and evaluated as arrays, see `toa.estimators.trees`.

Alphabet: N series, T rows, P horizon, L lags.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from toa._checks import ArgumentError, check_shape
from toa.estimators.baselines import Forecast, History, last_rows, row_blocks, sample_windows, window_scale
from toa.estimators.trees import Trees, read_boosted_trees

# trees, unless given
USUAL_TREES = 200
# comparisons from a root to a leaf, at most
_DEPTH = 6
# share of the lags that a split may choose from
_FEATURES = 0.3
# series times trees that are evaluated together
_BLOCK = 1_000_000
# numbers of the windows below which the fit has one thread
_ONE_THREAD = 10_000_000
# longest look-back
MOST_LAGS = 720
# a short series has a small first scale, which its own forecasts raise at every step: the largest, in first scales
_MOST_GROWTH = 2.0
# arrays of trees by their names in files
_ARRAYS = {
    "roots": "roots",
    "lag": "feature",
    "threshold": "threshold",
    "missing": "missing",
    "left": "left",
    "right": "right",
    "value": "value",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BoostedTrees:
    """A sum of trees that forecasts the change from the value a season before, in the scale of each window.

    Attributes:
        lags: Lags that the trees see; their features are these, from the oldest.
        start: Forecast without trees.
    """

    season: int
    lags: int
    start: float
    trees: Trees

    @classmethod
    def fit(
        cls,
        history: History,
        *,
        season: int,
        lookback: int,
        seed: int = 2024,
        windows: int | None = None,
        trees: int = USUAL_TREES,
    ) -> "BoostedTrees | None":
        """Fit this number of trees to windows of all series, at most `windows`; None if no series is long enough."""
        sample = sample_windows(history, lookback, 1, np.random.default_rng(seed), windows)
        if sample is None:
            return None
        pasts, nexts = sample
        inputs, before, scale = _scaled(pasts, season)
        target = (nexts[:, 0] - before) / scale
        # as large as the inputs
        del sample, pasts, nexts
        # no window has the oldest lags if all series are short
        lags = max(1, int(np.isfinite(inputs).any(0).sum()))
        start, fitted_trees = grow_trees(inputs[:, -lags:], target, seed=seed, trees=trees, share=_FEATURES)
        return cls(season=season, lags=lags, start=start, trees=fitted_trees)

    def predict(self, history: History, horizon: int) -> Forecast:
        """Forecast the steps after each series."""
        rows = last_rows(history, max(self.lags, self.season))
        steps: list[np.ndarray] = []
        most = np.where(np.isnan(rows).any(1), _MOST_GROWTH * _scaled(rows, self.season)[2], np.inf)
        for _ in range(horizon):
            inputs, before, scale = _scaled(rows, self.season)
            steps.append(self._sum(inputs[:, -self.lags :]) * np.minimum(scale, most) + before)
            rows = np.concatenate([rows[:, 1:], steps[-1][:, None]], 1)
        return np.stack(steps, 1)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        return tree_tensors(self.trees), {"lags": self.lags, "start": self.start}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], season: int) -> "BoostedTrees":
        """From the result of `state`; raises ValueError for trees that lead nowhere."""
        lags = int(facts["lags"])
        if lags > MOST_LAGS:
            raise ArgumentError("trees.lags", f"be at most {MOST_LAGS}", lags, "the file is damaged")
        return cls(season=season, lags=lags, start=float(facts["start"]), trees=trees_from_tensors(tensors, lags))

    def _sum(self, inputs: Float64[np.ndarray, "n l"]) -> Float64[np.ndarray, " n"]:
        """The trees' sum for scaled lags."""
        return sum_of_trees(self.start, self.trees, inputs)


def grow_trees(
    inputs: Float64[np.ndarray, "n f"], target: Float64[np.ndarray, " n"], *, seed: int, trees: int, share: float
) -> tuple[float, Trees]:
    """Fit trees with a low absolute error: the forecast without them, and the trees.

    Args:
        inputs: NaN where not known; an input that is known nowhere is in no split.
        share: Share of the inputs that a split may choose from.
    """
    # imported on use: scikit-learn takes long to import
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    model = HistGradientBoostingRegressor(
        loss="absolute_error",
        max_iter=trees,
        max_depth=_DEPTH,
        max_features=share,
        early_stopping=False,
        # scikit-learn takes 32 bits
        random_state=seed % 2**32,
    )
    # where other work shares the cores, threads wait for each other far longer than such a fit takes
    # scikit-learn refuses a column without a number, and never splits a constant one
    is_empty = np.isnan(inputs).all(0)
    if is_empty.any():
        inputs = np.where(is_empty, 0.0, inputs)
    with threadpool_limits(1 if inputs.size < _ONE_THREAD else None, user_api="openmp"):
        model.fit(inputs, target)
    return read_boosted_trees(model, inputs, _DEPTH)


def sum_of_trees(start: float, trees: Trees, inputs: Float64[np.ndarray, "n f"]) -> Float64[np.ndarray, " n"]:
    """What the trees forecast for inputs."""
    blocks = np.array_split(inputs, -(-len(inputs) * len(trees) // _BLOCK))
    return np.concatenate([start + trees.values_at(block).sum(1) for block in blocks])


def tree_tensors(trees: Trees) -> dict[str, Tensor]:
    """Tensors of trees to save."""
    return {name: torch.from_numpy(getattr(trees, array)) for name, array in _ARRAYS.items()}


def trees_from_tensors(tensors: Mapping[str, Tensor], inputs: int) -> Trees:
    """From the result of `tree_tensors`; raises ValueError for trees that lead nowhere, or read more inputs."""
    nodes = len(tensors["value"])
    limits = {"roots": nodes, "left": nodes, "right": nodes, "lag": inputs}
    arrays: dict[str, np.ndarray] = {}
    for name, array in _ARRAYS.items():
        arrays[array] = tensors[name].cpu().numpy()
        if name != "roots":
            check_shape(f"trees.{name}", tensors[name], "(V,)", (nodes,))
        if name in limits and not ((arrays[array] >= 0) & (arrays[array] < limits[name])).all():
            raise ArgumentError(f"trees.{name}", f"lie in [0, {limits[name]})", "others", "the file is damaged")
    return Trees(**arrays, depth=_DEPTH)


def _scaled(window: History, season: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lags (N, L) from which the values a season before the next step are subtracted, these values and scales (N,)."""
    before = window[:, -season] if season <= window.shape[1] else window[:, -1]
    before = np.where(np.isfinite(before), before, window[:, -1])
    lags = np.empty(window.shape)
    scale = np.empty(len(window))
    # in blocks, because steps on the way are as large as the windows
    for block in row_blocks(window):
        part = window[block]
        level = before[block, None]
        unit = window_scale(part, level, season)
        lags[block] = (part - level) / unit
        scale[block] = unit[:, 0]
    return lags, before, scale
