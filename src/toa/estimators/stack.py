"""Stack: probabilities of several classifiers, weighted by their errors on cases that they were not fitted to.

    folds = stratified_folds(codes, 5, seed)
    head, held_out = RidgeHead.fit(features, codes, folds, classes=3)    # linear model on features
    stack = Stack.choose({"kernels": held_out, "toa": others}, codes, folds)
    stack.weights                                                        # {"kernels": 0.7, "toa": 0.3}
    stack.combine({"kernels": head.predict(new), "toa": …})              # (n, K)

Held-out probabilities have an entry per fold, and a last one. That of a fold is made without the cases of the fold:
the other cases are left out one by one, to choose penalties, calibration and weights; those of the fold measure what
was chosen. The last entry leaves out each case, to choose what new cases get.

Alphabet: n cases, P features, K classes, F folds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from toa._checks import check_choice, check_shape, check_shares
from toa.estimators.base import greedy_weights, weighted_mean
from toa.estimators.kernels import Features, Series

Codes = Int64[np.ndarray, " n"]
Probabilities = Float64[np.ndarray, "n k"]
HeldOut = Float64[np.ndarray, "entries n k"]

# ridge penalties per feature that leave-one-out errors choose from
_PENALTIES = np.logspace(-5.0, 0.0, 11)
# probabilities below this count as this
_LEAST = 1e-6
# bounds on the logarithm of the factor of scores, and its tolerance
_FACTORS, _TOLERANCE = (-3.0, 5.0), 0.02
# most cases for which heads are fitted again per fold; with more, choices hardly depend on single cases
_MOST_NESTED = 1_000
# cases of which the nearest other case is searched
_NEIGHBOURS = 2_000
# arrays of a ridge head in a file
_AXES = {"mean": "(P,)", "scale": "(P,)", "weight": "(P, K)", "bias": "(K,)"}
# the member that gives each class its share of the cases
SHARES = "class shares"


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
    values = torch.from_numpy(np.ascontiguousarray(scores))
    # loaded on use: it takes long to import
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda logarithm: float(cross_entropy(values * float(np.exp(logarithm)), targets)),
        bounds=_FACTORS,
        method="bounded",
        options={"xatol": _TOLERANCE},
    )
    return float(np.exp(found.x))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RidgeHead:
    """A ridge classifier on features with a mean and a scale; `factor` multiplies its scores before softmax."""

    mean: Float32[np.ndarray, " p"]
    scale: Float32[np.ndarray, " p"]
    weight: Float32[np.ndarray, "p k"]
    bias: Float64[np.ndarray, " k"]
    factor: float

    @classmethod
    def fit(
        cls, features: Features, codes: Codes, folds: Int64[np.ndarray, " n"], *, classes: int
    ) -> tuple["RidgeHead", HeldOut]:
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
        rotated = _rotate(x)
        everything = np.ones(len(codes), dtype=bool)
        penalty, factor, scores = _solve(rotated, target, codes, everything, x.shape[1])
        held_out = np.repeat(softmax(factor * scores)[None], folds.max() + 2, axis=0)
        if len(codes) <= _MOST_NESTED:
            for fold in range(folds.max() + 1):
                _, own_factor, own_scores = _solve(rotated, target, codes, folds != fold, x.shape[1])
                held_out[fold] = softmax(own_factor * own_scores)
        # the weights are x.T @ errors / penalty, by the errors of a ridge regression
        bias = target.mean(0)
        values, vectors = torch.linalg.eigh(rotated.T @ rotated)
        inverse = (vectors.T @ (rotated.T @ (target - bias))) / (values.clamp(min=0.0) + penalty)[:, None]
        weight = (x.T @ (target - bias - rotated @ (vectors @ inverse)).float()) / penalty
        return cls(mean=mean, scale=scale, weight=weight.numpy(), bias=bias.numpy(), factor=factor), held_out

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


def _rotate(x: Tensor) -> Tensor:
    """Features (n, P) as at most n numbers per case with the same products, in float64."""
    if len(x) > x.shape[1]:
        return x.double()
    gram = torch.zeros(len(x), len(x), dtype=torch.float64)
    for part in x.split(4_096, 1):
        gram += (part @ part.T).double()
    values, vectors = torch.linalg.eigh(gram)
    return vectors * values.clamp(min=0.0).sqrt()


def _solve(
    x: Tensor, target: Tensor, codes: Codes, kept: Bool[np.ndarray, " n"], features: int
) -> tuple[float, float, Float64[np.ndarray, "n k"]]:
    """Penalty, factor and scores of all cases by ridge regressions that are fitted to the cases `kept`.

    The scores of these are leave-one-out ones, which also choose the penalty and the factor.
    """
    used = torch.from_numpy(kept)
    bias, middle = target[used].mean(0), x[used].mean(0)
    values, vectors = torch.linalg.eigh((x[used] - middle).T @ (x[used] - middle))
    rotated = (x - middle) @ vectors  # (n, P)
    products = rotated[used].T @ (target[used] - bias)
    best: tuple[float, Any] | None = None
    for penalty in _PENALTIES * features:
        inverse = 1.0 / (values.clamp(min=0.0) + penalty)
        scores = rotated @ (inverse[:, None] * products) + bias
        influence = rotated[used].square() @ inverse + 1.0 / int(kept.sum())
        missed = (target[used] - scores[used]) / (1.0 - influence).clamp(min=1e-9)[:, None]
        scores[used] = target[used] - missed
        own = scores[used].numpy()
        factor = choose_factor(own, codes[kept])
        loss = log_loss(softmax(factor * own), codes[kept])
        if best is None or loss < best[0]:
            best = loss, (penalty, factor, scores.numpy())
    assert best is not None
    return best[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """A weighted mean of probabilities.

    Attributes:
        weights: Weight per member; they sum to 1. The member "class shares" needs no case.
        factor: Factor of the logarithm of the mean before softmax, which calibrates it.
        accuracies: Cross-validated accuracy of the "stack", of each member and of the baselines: each fold is measured
            with what the other cases choose.
        shares: Probabilities of the member "class shares"; older files have none.
        recalls: Cross-validated share of each class that the stack recognises; older files have none.
    """

    weights: Mapping[str, float]
    factor: float
    accuracies: Mapping[str, float]
    shares: Sequence[float] = ()
    recalls: Sequence[float] = ()

    @classmethod
    def choose(
        cls,
        members: Mapping[str, HeldOut],
        codes: Codes,
        folds: Int64[np.ndarray, " n"],
        baselines: Mapping[str, float] | None = None,
    ) -> "Stack":
        """Weights that lower the log loss of held-out probabilities; `baselines` has accuracies to compare with."""
        cases, classes = next(iter(members.values())).shape[1:]
        found = {name: np.empty((cases, classes)) for name in ("stack", *members)}
        for fold in range(folds.max() + 1):
            own = folds == fold
            entry = {name: part[fold] for name, part in members.items()}
            fitted = cls._fit(entry, codes, ~own)
            mean = weighted_mean(fitted.weights, fitted._with_shares(entry, cases))
            for name, part in {"stack": mean, **entry}.items():
                found[name][own] = part[own]
        accuracies = {name: accuracy(part, codes) for name, part in found.items()}
        recalls = [accuracy(found["stack"][codes == one], codes[codes == one]) for one in range(classes)]
        made = cls._fit({name: part[-1] for name, part in members.items()}, codes, np.ones(cases, dtype=bool))
        # the weights suit the cases that chose them too well to calibrate by these
        factor = choose_factor(_logarithm(found["stack"]), codes)
        return replace(made, factor=factor, accuracies={**accuracies, **(baselines or {})}, recalls=recalls)

    @classmethod
    def _fit(cls, members: Mapping[str, Probabilities], codes: Codes, kept: Bool[np.ndarray, " n"]) -> "Stack":
        # a class without a case is possible
        counts = np.bincount(codes[kept], minlength=next(iter(members.values())).shape[1]) + 1.0
        made = cls(weights={}, factor=1.0, accuracies={}, shares=(counts / counts.sum()).tolist())
        parts = {name: part[kept] for name, part in made._with_shares(members, len(kept)).items()}
        return replace(made, weights=greedy_weights(parts, lambda mean: log_loss(mean, codes[kept]))[0])

    def _with_shares(self, members: Mapping[str, Probabilities], cases: int) -> dict[str, Probabilities]:
        return {**members, SHARES: np.tile(np.asarray(self.shares, dtype=np.float64), (cases, 1))}

    def combine(self, members: Mapping[str, Probabilities], cases: int) -> Probabilities:
        """Calibrated probabilities of this number of new cases."""
        return softmax(self.factor * _logarithm(weighted_mean(self.weights, self._with_shares(members, cases))))

    @classmethod
    def from_state(cls, facts: Mapping[str, Any], members: Sequence[str]) -> "Stack":
        """From the fields; the weights must be those of `members`."""
        made = cls(**facts)
        for name in made.weights:
            check_choice("member", name, members)
        check_shares(made.weights)
        return made

    def verdicts(self) -> list[str]:
        """In words: which members and baselines have a lower, an equal or a higher cross-validated accuracy."""
        own, found = self.accuracies["stack"], dict[str, list[str]]()
        for name, other in self.accuracies.items():
            # the stack of one member is that member
            if name != "stack" and (self.weights.get(name) != 1.0 or own < other):
                word = "beats" if own > other else "loses to" if own < other else "equals"
                found.setdefault(word, []).append(name)
        return [f"{word} {', '.join(found[word])}" for word in ("beats", "equals", "loses to") if word in found]


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
    most_frequent = np.bincount(codes).max() / len(codes)
    return {"most frequent class": float(most_frequent), "1-NN": float((nearest == own).mean())}


def labels_by_row(y: Any, cases: Any) -> Any:
    """A pandas series with the index of the frame `cases` as the labels of its rows; any other y unchanged."""
    same = isinstance(y, pd.Series) and isinstance(cases, pd.DataFrame) and y.index.equals(cases.index)
    return y.to_numpy() if same else y


def class_codes(labels: Any, classes: np.ndarray, count: int) -> np.ndarray:
    """Places of the labels of `count` cases among the classes, compared as text if one of the two is; -1 for others."""
    if labels is None:
        return np.full(count, -1)
    is_text = any(isinstance(one, str) for names in (labels, classes) for one in np.asarray(names).tolist())
    places = {str(name) if is_text else name: place for place, name in enumerate(classes.tolist())}
    return np.array([places.get(str(label) if is_text else label, -1) for label in np.asarray(labels).tolist()])


def unknown_labels(labels: Sequence[Any], count: int) -> str:
    """A sentence that names labels which are not classes of the model, of a number of cases."""
    found = [f"{label!r} ({number})" for label, number in Counter(map(str, labels)).most_common()]
    listed = f"{', '.join(found[:8])}{' …' * (len(found) > 8)}"
    return f"{len(labels)} of {count} cases are not evaluated: their labels are not classes of the model: {listed}."
