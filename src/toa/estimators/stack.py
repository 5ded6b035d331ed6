"""Stack: probabilities of several classifiers, weighted by their errors on cases that they were not fitted to.

    folds = stratified_folds(codes, 5, seed)
    stack = Stack.choose({"kernels": held_out, "toa": others}, codes, folds)
    stack.weights                                                        # {"kernels": 0.7, "toa": 0.3}
    stack.combine({"kernels": head.predict(new), "toa": …}, len(new))    # (n, K)

Held-out probabilities have an entry per fold, and a last one. That of a fold is made without the cases of the fold:
the other cases are left out one by one, to choose penalties, calibration and weights; those of the fold measure what
was chosen. The last entry leaves out each case, to choose what new cases get.

Alphabet: n cases, K classes, F folds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from toa._checks import check_choice, check_shares
from toa.estimators.kernels import CaseArray
from toa.estimators.probabilities import (
    Codes,
    Folds,
    HeldOut,
    Probabilities,
    accuracy,
    choose_factor,
    log_loss,
    logarithm,
    softmax,
)
from toa.estimators.weights import greedy_weights, weighted_mean

# cases of which the nearest other case is searched
_NEIGHBOURS = 2_000
# the member that gives each class its share of the cases
SHARES = "class shares"
# what `accuracies` calls the weighted mean
STACK = "stack"


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
        folds: Folds,
        baselines: Mapping[str, float] | None = None,
    ) -> "Stack":
        """Weights that lower the log loss of held-out probabilities; `baselines` has accuracies to compare with."""
        cases, classes = next(iter(members.values())).shape[1:]
        validated = {name: np.empty((cases, classes)) for name in (STACK, *members)}
        for fold in range(folds.max() + 1):
            held = folds == fold
            entry = {name: part[fold] for name, part in members.items()}
            weighed = cls._weigh(entry, codes, ~held)
            mean = weighted_mean(weighed.weights, weighed._with_shares(entry, cases))
            for name, part in {STACK: mean, **entry}.items():
                validated[name][held] = part[held]
        accuracies = {name: accuracy(part, codes) for name, part in validated.items()}
        mean = validated[STACK]
        recalls = [accuracy(mean[codes == code], codes[codes == code]) for code in range(classes)]
        last = {name: part[-1] for name, part in members.items()}
        stack = cls._weigh(last, codes, np.ones(cases, dtype=bool))
        # the weights suit the cases that chose them too well to calibrate by these
        factor = choose_factor(logarithm(mean), codes)
        return replace(stack, factor=factor, accuracies={**accuracies, **(baselines or {})}, recalls=recalls)

    @classmethod
    def _weigh(cls, members: Mapping[str, Probabilities], codes: Codes, kept: Bool[np.ndarray, " n"]) -> "Stack":
        """Weights by the cases `kept`, not calibrated."""
        # a class without a case is possible
        counts = np.bincount(codes[kept], minlength=next(iter(members.values())).shape[1]) + 1.0
        stack = cls(weights={}, factor=1.0, accuracies={}, shares=(counts / counts.sum()).tolist())
        parts = {name: part[kept] for name, part in stack._with_shares(members, len(kept)).items()}
        return replace(stack, weights=greedy_weights(parts, lambda mean: log_loss(mean, codes[kept]))[0])

    def _with_shares(self, members: Mapping[str, Probabilities], cases: int) -> dict[str, Probabilities]:
        return {**members, SHARES: np.tile(np.asarray(self.shares, dtype=np.float64), (cases, 1))}

    def combine(self, members: Mapping[str, Probabilities], cases: int) -> Probabilities:
        """Calibrated probabilities of this number of new cases."""
        return softmax(self.factor * logarithm(weighted_mean(self.weights, self._with_shares(members, cases))))

    @classmethod
    def from_state(cls, facts: Mapping[str, Any], members: Sequence[str]) -> "Stack":
        """From the fields; the weights must be those of `members`."""
        stack = cls(**facts)
        for name in stack.weights:
            check_choice("member", name, members)
        check_shares(stack.weights)
        return stack

    def verdicts(self) -> list[str]:
        """In words: which members and baselines have a lower, an equal or a higher cross-validated accuracy."""
        stack = self.accuracies[STACK]
        names: dict[str, list[str]] = {"beats": [], "equals": [], "loses to": []}
        for name, other in self.accuracies.items():
            # the stack of one member is that member
            if name == STACK or (self.weights.get(name) == 1.0 and stack >= other):
                continue
            if stack > other:
                names["beats"].append(name)
            elif stack < other:
                names["loses to"].append(name)
            else:
                names["equals"].append(name)
        return [f"{word} {', '.join(listed)}" for word, listed in names.items() if listed]


def baseline_accuracies(series: CaseArray, codes: Codes, *, seed: int) -> dict[str, float]:
    """Accuracy of simple baselines: the most frequent class of all cases, and the class of the nearest other case.

    The first is a constant, so a case is not left out of it: without a case, its own class would be rarer. Of many
    cases, the nearest neighbours of a random part are searched in that part.
    """
    chosen = np.arange(len(codes))
    if len(chosen) > _NEIGHBOURS:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, _NEIGHBOURS, replace=False))
    flat = torch.from_numpy(series[chosen]).flatten(1)
    distances = torch.cdist(flat, flat).fill_diagonal_(torch.inf)
    nearest = codes[chosen][distances.argmin(1).numpy()]
    most_frequent = np.bincount(codes).max() / len(codes)
    return {"most frequent class": float(most_frequent), "1-NN": float((nearest == codes[chosen]).mean())}
