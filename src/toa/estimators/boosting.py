"""Gradient boosting on lags: trees that forecast one step after another, one model for all series.

    model = BoostedTrees.fit(history, season=24, lookback=96)   # history (N, T), NaN before each series begins
    model.predict(history, horizon=48)                          # (N, P)

The trees are scikit-learn's; they are kept and saved as arrays, and evaluated without it.

Alphabet: N series, T rows, P horizon, L lags, K trees, V nodes of all trees.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from toa._checks import check_shape
from toa.estimators.baselines import Forecast, History, last_rows, row_blocks, sample_windows, window_scale

# trees, their depth, and the share of the lags that a split may choose from
_TREES, _DEPTH, _FEATURES = 200, 6, 0.3
# series times trees that are evaluated together
_BLOCK = 1_000_000
# numbers of the windows below which the fit has one thread
_ONE_THREAD = 10_000_000
# longest look-back
MOST_LAGS = 720
# a short series has a small first scale, which its own forecasts raise at every step: the largest, in first scales
_MOST_GROWTH = 2.0
_ARRAYS = ("roots", "lag", "threshold", "missing", "left", "right", "value")


@dataclass(frozen=True, kw_only=True, slots=True)
class BoostedTrees:
    """A sum of trees that forecasts the change from the value a season before, in the scale of each window.

    Attributes:
        start: Forecast without trees.
        roots: First node of each tree.
        lag: Lag that a node compares, from the oldest; a leaf repeats itself for ever.
        missing: Whether a window without this lag goes to the left.
        value: What a leaf adds.
    """

    season: int
    lags: int
    start: float
    roots: Int64[np.ndarray, " k"]
    lag: Int64[np.ndarray, " v"]
    threshold: Float64[np.ndarray, " v"]
    missing: Bool[np.ndarray, " v"]
    left: Int64[np.ndarray, " v"]
    right: Int64[np.ndarray, " v"]
    value: Float64[np.ndarray, " v"]

    @classmethod
    def fit(
        cls, history: History, *, season: int, lookback: int, seed: int = 2024, windows: int | None = None
    ) -> "BoostedTrees | None":
        """Fit to windows of all series, at most `windows`; None if no series is long enough."""
        # imported on use: scikit-learn takes long to import
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        found = sample_windows(history, lookback, 1, np.random.default_rng(seed), windows)
        if found is None:
            return None
        inputs, before, scale = _scaled(found[0], season)
        target = (found[1][:, 0] - before) / scale
        # as large as the inputs
        del found
        # no window has the oldest lags if all series are short
        lags = max(1, int(np.isfinite(inputs).any(0).sum()))
        model = HistGradientBoostingRegressor(
            loss="absolute_error",
            max_iter=_TREES,
            max_depth=_DEPTH,
            max_features=_FEATURES,
            early_stopping=False,
            # scikit-learn takes 32 bits
            random_state=seed % 2**32,
        )
        # where other work shares the cores, threads wait for each other far longer than such a fit takes
        with threadpool_limits(1 if inputs.size < _ONE_THREAD else None, user_api="openmp"):
            model.fit(inputs[:, -lags:], target)
        return cls(season=season, lags=lags, start=float(model._baseline_prediction.item()), **_arrays(model))

    def predict(self, history: History, horizon: int) -> Forecast:
        """Forecast the steps after each series."""
        rows, steps = last_rows(history, max(self.lags, self.season)), []
        most = np.where(np.isnan(rows).any(1), _MOST_GROWTH * _scaled(rows, self.season)[2], np.inf)
        for _ in range(horizon):
            inputs, before, scale = _scaled(rows, self.season)
            steps.append(self._sum(inputs[:, -self.lags :]) * np.minimum(scale, most) + before)
            rows = np.concatenate([rows[:, 1:], steps[-1][:, None]], 1)
        return np.stack(steps, 1)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}
        return tensors, {"lags": self.lags, "start": self.start}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], season: int) -> "BoostedTrees":
        """From the result of `state`; raises ValueError for trees that lead nowhere."""
        arrays = {name: tensors[name].cpu().numpy() for name in _ARRAYS}
        lags, nodes = int(facts["lags"]), len(arrays["value"])
        limits = {"roots": nodes, "left": nodes, "right": nodes, "lag": lags}
        for name in _ARRAYS:
            if name != "roots":
                check_shape(f"trees.{name}", tensors[name], "(V,)", (nodes,))
            if name in limits and not ((arrays[name] >= 0) & (arrays[name] < limits[name])).all():
                raise ValueError(f"trees.{name} must lie in [0, {limits[name]}), got others; the file is damaged.")
        if lags > MOST_LAGS:
            raise ValueError(f"trees.lags must be at most {MOST_LAGS}, got {lags}; the file is damaged.")
        return cls(season=season, lags=lags, start=float(facts["start"]), **arrays)

    def _sum(self, inputs: Float64[np.ndarray, "n l"]) -> Float64[np.ndarray, " n"]:
        """The trees' sum for scaled lags."""
        parts = []
        for block in np.array_split(inputs, -(-len(inputs) * len(self.roots) // _BLOCK)):
            at = np.broadcast_to(self.roots, (len(block), len(self.roots)))
            for _ in range(_DEPTH):
                lag = np.take_along_axis(block, self.lag[at], 1)
                goes_left = np.where(np.isnan(lag), self.missing[at], lag <= self.threshold[at])
                at = np.where(goes_left, self.left[at], self.right[at])
            parts.append(self.start + self.value[at].sum(1))
        return np.concatenate(parts)


def _arrays(model: Any) -> dict[str, np.ndarray]:
    """The trees of a fitted regressor, their nodes one after another."""
    trees = [one.nodes for (one,) in model._predictors]
    roots = np.cumsum([0, *(len(nodes) for nodes in trees[:-1])])
    offset = np.repeat(roots, [len(nodes) for nodes in trees])
    nodes = np.concatenate(trees)
    leaf, own = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
    return {
        "roots": roots,
        "lag": np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64),
        # a node that only asks whether a lag is missing has an infinite one, which no file may hold
        "threshold": np.nan_to_num(np.where(leaf, 0.0, nodes["num_threshold"])),
        "missing": nodes["missing_go_to_left"].astype(bool),
        "left": np.where(leaf, own, nodes["left"] + offset),
        "right": np.where(leaf, own, nodes["right"] + offset),
        "value": np.where(leaf, nodes["value"], 0.0),
    }


def _scaled(window: History, season: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lags (N, L) from which the values a season before the next step are subtracted, these values and scales (N,)."""
    before = window[:, -season] if season <= window.shape[1] else window[:, -1]
    before = np.where(np.isfinite(before), before, window[:, -1])
    lags, scale = np.empty(window.shape), np.empty(len(window))
    # in blocks, because steps on the way are as large as the windows
    for block in row_blocks(window):
        part, level = window[block], before[block, None]
        found = window_scale(part, level, season)
        lags[block], scale[block] = (part - level) / found, found[:, 0]
    return lags, before, scale
