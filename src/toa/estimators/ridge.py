"""A ridge classifier on features, with a penalty and a calibration that leave-one-out predictions choose.

    head, held_out = RidgeHead.fit(features, codes, folds, classes=3)
    head.predict(new_features)                                           # (n, K)

Alphabet: n cases, P features, K classes, F folds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor

from toa._checks import check_shape
from toa.estimators.kernels import Features
from toa.estimators.probabilities import (
    ClassScores,
    Codes,
    Folds,
    HeldOut,
    Probabilities,
    choose_factor,
    log_loss,
    softmax,
)

# ridge penalties per feature that leave-one-out errors choose from
_PENALTIES = np.logspace(-5.0, 0.0, 11)
# most cases for which heads are fitted again per fold; with more, choices hardly depend on single cases
_MOST_NESTED = 1_000
# features whose products are summed together
_BLOCK = 4_096
# arrays of a ridge head in a file
_AXES = {"mean": "(P,)", "scale": "(P,)", "weight": "(P, K)", "bias": "(K,)"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RidgeHead:
    """A ridge classifier on features with a mean and a scale; `factor` multiplies its scores before softmax."""

    mean: Float32[np.ndarray, " p"]
    scale: Float32[np.ndarray, " p"]
    weight: Float32[np.ndarray, "p k"]
    bias: Float64[np.ndarray, " k"]
    factor: float

    @classmethod
    def fit(cls, features: Features, codes: Codes, folds: Folds, *, classes: int) -> tuple["RidgeHead", HeldOut]:
        """Choose the penalty by the log loss of leave-one-out predictions; returns held-out probabilities too.

        It standardises `features` in place, because a copy may be large.
        """
        mean = features.mean(0)
        # counts of kernels that are mostly zero get little weight
        scale = features.std(0) + (features == 0).mean(0, dtype=np.float32) ** 4 + 1e-6
        features -= mean
        features /= scale
        x = torch.from_numpy(features)
        target = torch.from_numpy(np.where(np.eye(classes)[codes] > 0, 1.0, -1.0))
        rotated = rotate(x)
        everything = np.ones(len(codes), dtype=bool)
        best = choose_ridge(rotated, target, codes, everything, x.shape[1])
        held_out = np.repeat(softmax(best.factor * best.scores)[None], folds.max() + 2, axis=0)
        if len(codes) <= _MOST_NESTED:
            for fold in range(folds.max() + 1):
                without = choose_ridge(rotated, target, codes, folds != fold, x.shape[1])
                held_out[fold] = softmax(without.factor * without.scores)
        # the weights are x.T @ errors / penalty, by the errors of a ridge regression
        bias = target.mean(0)
        values, vectors = torch.linalg.eigh(rotated.T @ rotated)
        inverse = (vectors.T @ (rotated.T @ (target - bias))) / (values.clamp(min=0.0) + best.penalty)[:, None]
        weight = (x.T @ (target - bias - rotated @ (vectors @ inverse)).float()) / best.penalty
        head = cls(mean=mean, scale=scale, weight=weight.numpy(), bias=bias.numpy(), factor=best.factor)
        return head, held_out

    def predict(self, features: Features) -> Probabilities:
        """Probabilities of new cases."""
        return softmax(self.factor * ((features - self.mean) / self.scale @ self.weight + self.bias))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        return {name: torch.from_numpy(getattr(self, name)) for name in _AXES}, {"factor": self.factor}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, classes: int) -> "RidgeHead":
        """From the result of `state`."""
        count = len(tensors["weight"])
        shapes = {"(P,)": (count,), "(P, K)": (count, classes), "(K,)": (classes,)}
        for name, axes in _AXES.items():
            check_shape(name, tensors[name], axes, shapes[axes])
        return cls(**{name: tensors[name].numpy() for name in _AXES}, factor=facts["factor"])


class RidgeChoice(NamedTuple):
    """A penalty, a factor of the scores, and the scores of all cases."""

    penalty: float
    factor: float
    scores: ClassScores


def rotate(x: Float32[Tensor, "n p"]) -> Float64[Tensor, "n r"]:
    """Features (n, P) as at most n numbers per case with the same products, in float64."""
    if len(x) > x.shape[1]:
        return x.double()
    gram = torch.zeros(len(x), len(x), dtype=torch.float64)
    for part in x.split(_BLOCK, 1):
        gram += (part @ part.T).double()
    values, vectors = torch.linalg.eigh(gram)
    return vectors * values.clamp(min=0.0).sqrt()


def choose_ridge(
    x: Float64[Tensor, "n r"],
    target: Float64[Tensor, "n k"],
    codes: Codes,
    kept: Bool[np.ndarray, " n"],
    features: int,
) -> RidgeChoice:
    """Penalty, factor and scores of all cases by ridge regressions that are fitted to the cases `kept`.

    The scores of these are leave-one-out ones, which also choose the penalty and the factor.
    """
    used = torch.from_numpy(kept)
    bias = target[used].mean(0)
    middle = x[used].mean(0)
    values, vectors = torch.linalg.eigh((x[used] - middle).T @ (x[used] - middle))
    rotated = (x - middle) @ vectors  # (n, r)
    products = rotated[used].T @ (target[used] - bias)
    best: RidgeChoice | None = None
    least = np.inf
    for penalty in _PENALTIES * features:
        inverse = 1.0 / (values.clamp(min=0.0) + penalty)
        scores = rotated @ (inverse[:, None] * products) + bias
        influence = rotated[used].square() @ inverse + 1.0 / int(kept.sum())
        missed = (target[used] - scores[used]) / (1.0 - influence).clamp(min=1e-9)[:, None]
        scores[used] = target[used] - missed
        left_out = scores[used].numpy()
        factor = choose_factor(left_out, codes[kept])
        loss = log_loss(softmax(factor * left_out), codes[kept])
        if best is None or loss < least:
            least = loss
            best = RidgeChoice(penalty, factor, scores.numpy())
    assert best is not None
    return best
