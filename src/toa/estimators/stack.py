"""Stack: probabilities of several classifiers, weighted by their errors on cases that they were not fitted to.

    head, held_out = RidgeHead.fit(features, codes, classes=3)    # linear model on features, and leave-one-out results
    stack = Stack.choose({"kernels": held_out, "toa": others}, codes)
    stack.weights                                                 # {"kernels": 0.7, "toa": 0.3}
    stack.combine({"kernels": head.predict(new), "toa": …})       # (n, K)

Alphabet: n cases, P features, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from toa._checks import check_choice, check_shape, check_shares
from toa.estimators.base import greedy_weights, weighted_mean
from toa.estimators.kernels import Features, Series

Codes = Int64[np.ndarray, " n"]
Probabilities = Float64[np.ndarray, "n k"]

# ridge penalties per feature that leave-one-out errors choose from
_PENALTIES = np.logspace(-5.0, 0.0, 11)
# probabilities below this count as this
_LEAST = 1e-6
# bounds on the logarithm of the factor of scores, and number of values in a search
_FACTORS, _SEARCHES, _VALUES = (-3.0, 5.0), 3, 17
# folds of the cases that measure the accuracy of the weighted mean
_FOLDS = 5
# cases of which the nearest other case is searched
_NEIGHBOURS = 2_000


def log_loss(probabilities: Probabilities, codes: Codes) -> float:
    """Mean of -log of the probability of the true class."""
    return float(-np.log(np.maximum(probabilities[np.arange(len(codes)), codes], _LEAST)).mean())


def accuracy(probabilities: Probabilities, codes: Codes) -> float:
    """Share of the cases whose largest probability is that of the true class."""
    return float((probabilities.argmax(1) == codes).mean())


def softmax(scores: Float64[np.ndarray, "n k"]) -> Probabilities:
    """Probabilities of scores."""
    return torch.from_numpy(np.ascontiguousarray(scores)).softmax(1).numpy()


def stratified_folds(codes: Codes, number: int, seed: int) -> Int64[np.ndarray, " n"]:
    """A fold of each case, at random; the cases of a class are spread over all folds."""
    random = np.random.default_rng(seed)
    folds, first = np.empty(len(codes), dtype=np.int64), 0
    for code in np.unique(codes):
        own = random.permutation(np.flatnonzero(codes == code))
        folds[own] = (first + np.arange(len(own))) % number
        first += len(own)
    return folds


def choose_factor(scores: Float64[np.ndarray, "n k"], codes: Codes) -> float:
    """Factor of the scores (1 / temperature) whose softmax has the lowest log loss.

    As in Platt's calibration, the target of the true class is a little below 1, so that few cases without an error do
    not lead to certainty.
    """
    count, classes = scores.shape
    doubt = 1.0 / (count + 2)
    targets = torch.full((count, classes), doubt / (classes - 1), dtype=torch.float64)
    targets[torch.arange(count), torch.from_numpy(codes)] = 1.0 - doubt
    values = torch.from_numpy(scores)

    def loss(logarithm: float) -> float:
        return float(cross_entropy(values * float(np.exp(logarithm)), targets))

    low, high = _FACTORS
    best = 0.0
    for _ in range(_SEARCHES):
        tried = np.linspace(low, high, _VALUES)
        best = min(tried, key=loss)
        step = tried[1] - tried[0]
        low, high = best - step, best + step
    return float(np.exp(best))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RidgeHead:
    """A ridge classifier on standardised features, with calibrated probabilities.

    Attributes:
        mean: Mean of each feature (P,).
        scale: Scale of each feature (P,).
        weight: (P, K).
        bias: (K,).
        factor: Factor of the scores before softmax.
    """

    mean: Float32[np.ndarray, " p"]
    scale: Float32[np.ndarray, " p"]
    weight: Float32[np.ndarray, "p k"]
    bias: Float64[np.ndarray, " k"]
    factor: float

    @classmethod
    def fit(cls, features: Features, codes: Codes, *, classes: int) -> tuple["RidgeHead", Probabilities]:
        """Choose the penalty by the log loss of leave-one-out predictions, which are returned too.

        It standardises `features` in place, because a copy may be large.
        """
        mean = features.mean(0)
        # counts of kernels that are mostly zero get little weight
        scale = features.std(0) + (features == 0).mean(0, dtype=np.float32) ** 4 + 1e-6
        features -= mean
        features /= scale
        x = torch.from_numpy(features)
        target = torch.from_numpy(np.where(np.eye(classes)[codes] > 0, 1.0, -1.0))
        bias = target.mean(0)
        solve = _Dual if len(x) <= x.shape[1] else _Primal
        solution = solve(x, target - bias)
        best: tuple[float, Any] | None = None
        for penalty in _PENALTIES * x.shape[1]:
            scores = (target - solution.left_out(penalty)).numpy()
            factor = choose_factor(scores, codes)
            loss = log_loss(softmax(factor * scores), codes)
            if best is None or loss < best[0]:
                best = loss, (penalty, factor, softmax(factor * scores))
        assert best is not None
        penalty, factor, held_out = best[1]
        weight = solution.weight(penalty).float().numpy()
        return cls(mean=mean, scale=scale, weight=weight, bias=bias.numpy(), factor=factor), held_out

    def predict(self, features: Features) -> Probabilities:
        """Probabilities of new cases."""
        return softmax(self.factor * ((features - self.mean) / self.scale @ self.weight + self.bias))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in ("mean", "scale", "weight", "bias")}
        return tensors, {"factor": self.factor}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, classes: int) -> "RidgeHead":
        """From the result of `state`."""
        count = len(tensors["weight"])
        for name in ("mean", "scale"):
            check_shape(name, tensors[name], "(P,)", (count,))
        check_shape("weight", tensors["weight"], "(P, K)", (count, classes))
        check_shape("bias", tensors["bias"], "(K,)", (classes,))
        return cls(
            **{name: tensors[name].numpy() for name in ("mean", "scale", "weight", "bias")}, factor=facts["factor"]
        )


class _Dual:
    """Ridge regression through the products of cases (n, n), for more features than cases."""

    def __init__(self, x: Tensor, target: Tensor) -> None:
        self.x = x
        gram = torch.zeros(len(x), len(x), dtype=torch.float64)
        for part in x.split(4_096, 1):
            gram += (part @ part.T).double()
        # moves the constant, which the bias has fitted, to an eigenvector of its own with the largest eigenvalue
        values, self.vectors = torch.linalg.eigh(gram + (2.0 * gram.diagonal().mean()).clamp(min=1.0))
        self.values, self.rotated = values, self.vectors.T @ target
        self.constant = int(self.vectors.sum(0).abs().argmax())

    def _inverse(self, penalty: float) -> Tensor:
        inverse = 1.0 / (self.values.clamp(min=0.0) + penalty)
        inverse[self.constant] = 0.0
        return inverse

    def left_out(self, penalty: float) -> Tensor:
        """Errors (n, K) of each case by a model without it."""
        inverse = self._inverse(penalty)
        return self.vectors @ (inverse[:, None] * self.rotated) / (self.vectors.square() @ inverse)[:, None]

    def weight(self, penalty: float) -> Tensor:
        """Weights (P, K)."""
        return self.x.T @ (self.vectors @ (self._inverse(penalty)[:, None] * self.rotated)).float()


class _Primal:
    """Ridge regression through the products of features (P, P), for more cases than features."""

    def __init__(self, x: Tensor, target: Tensor) -> None:
        self.target = target
        gram = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
        for part in x.split(4_096):
            gram += part.double().T @ part.double()
        self.values, self.vectors = torch.linalg.eigh(gram)
        self.rotated = torch.cat([part.double() @ self.vectors for part in x.split(4_096)])  # (n, P)

    def _solution(self, penalty: float) -> tuple[Tensor, Tensor]:
        inverse = 1.0 / (self.values.clamp(min=0.0) + penalty)
        return inverse, inverse[:, None] * (self.rotated.T @ self.target)

    def left_out(self, penalty: float) -> Tensor:
        """Errors (n, K) of each case by a model without it."""
        inverse, solution = self._solution(penalty)
        influence = self.rotated.square() @ inverse + 1.0 / len(self.target)
        return (self.target - self.rotated @ solution) / (1.0 - influence).clamp(min=1e-9)[:, None]

    def weight(self, penalty: float) -> Tensor:
        """Weights (P, K)."""
        return self.vectors @ self._solution(penalty)[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """A weighted mean of probabilities.

    Attributes:
        weights: Weight per member; they sum to 1.
        factor: Factor of the logarithm of the mean before softmax, which calibrates it.
        accuracies: Cross-validated accuracy of the "stack", of each member and of the baselines. That of the stack is
            measured on a fifth of the cases with weights that the others choose, in turn for each fifth.
    """

    weights: Mapping[str, float]
    factor: float
    accuracies: Mapping[str, float]

    @classmethod
    def choose(
        cls,
        members: Mapping[str, Probabilities],
        codes: Codes,
        baselines: Mapping[str, float] | None = None,
        *,
        seed: int = 0,
    ) -> "Stack":
        """Weights that lower the log loss of probabilities of cases that the members were not fitted to.

        Members are added one by one, each time the one that lowers the log loss most; the mean of those up to the
        lowest loss is kept. `baselines` has accuracies to compare with, and `seed` spreads the cases over folds.
        """
        weights = _choose_weights(members, codes)
        found = {name: accuracy(part, codes) for name, part in members.items()}
        return cls(
            weights=weights,
            factor=choose_factor(_logarithm(weighted_mean(weights, members)), codes),
            accuracies={"stack": _cross_validate(members, codes, seed), **found, **(baselines or {})},
        )

    def combine(self, members: Mapping[str, Probabilities]) -> Probabilities:
        """Calibrated probabilities of new cases."""
        return softmax(self.factor * _logarithm(weighted_mean(self.weights, members)))

    def state(self) -> dict[str, Any]:
        """JSON values to save."""
        return {"weights": dict(self.weights), "factor": self.factor, "accuracies": dict(self.accuracies)}

    @classmethod
    def from_state(cls, facts: Mapping[str, Any], members: Sequence[str]) -> "Stack":
        """From the result of `state`; the weights must be those of `members`."""
        made = cls(**facts)
        for name in made.weights:
            check_choice("member", name, members)
        check_shares(made.weights)
        return made

    def verdicts(self) -> list[str]:
        """In words: which members and baselines have a lower, an equal or a higher cross-validated accuracy."""
        own, found = self.accuracies["stack"], dict[str, list[str]]()
        for name, other in self.accuracies.items():
            if name != "stack" and self.weights.get(name) != 1.0:
                word = "beats" if own > other else "loses to" if own < other else "equals"
                found.setdefault(word, []).append(name)
        return [f"{word} {', '.join(found[word])}" for word in ("beats", "equals", "loses to") if word in found]


def _choose_weights(members: Mapping[str, Probabilities], codes: Codes) -> dict[str, float]:
    return greedy_weights(members, lambda mean: log_loss(mean, codes))[0]


def _cross_validate(members: Mapping[str, Probabilities], codes: Codes, seed: int) -> float:
    """Accuracy on each fold of the weights that the other folds choose."""
    folds, right = stratified_folds(codes, min(_FOLDS, len(codes)), seed), 0.0
    for fold in range(folds.max() + 1):
        own = folds == fold
        weights = _choose_weights({name: part[~own] for name, part in members.items()}, codes[~own])
        right += own.sum() * accuracy(weighted_mean(weights, members)[own], codes[own])
    return float(right / len(codes))


def _logarithm(probabilities: Probabilities) -> Probabilities:
    return np.log(np.maximum(probabilities, _LEAST))


def baseline_accuracies(series: Series, codes: Codes, *, seed: int) -> dict[str, float]:
    """Accuracy of simple baselines: the most frequent class of all cases, and the class of the nearest other case.

    The first is a constant, so a case is not left out of it: without a case, its own class would be rarer. Of many
    cases, the nearest neighbours of a random part are searched in that part.
    """
    chosen = np.arange(len(codes))
    if len(chosen) > _NEIGHBOURS:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, _NEIGHBOURS, replace=False))
    flat, own = torch.from_numpy(series[chosen]).flatten(1), codes[chosen]
    distances = torch.cdist(flat, flat).fill_diagonal_(torch.inf)
    nearest = own[distances.argmin(1).numpy()]
    return {
        "most frequent class": float(np.bincount(codes).max() / len(codes)),
        "1-NN": float((nearest == own).mean()),
    }
