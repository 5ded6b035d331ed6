"""Weights of a mean of several methods, chosen one by one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

# how often methods are added to the mean
_STEPS = 20


def greedy_weights(
    members: Mapping[str, np.ndarray], loss: Callable[[np.ndarray], float], first: Sequence[str] = (), times: int = 1
) -> tuple[dict[str, float], float]:
    """Weights of a mean with a low loss, and that loss.

    Members are added one by one, each time the one that lowers the loss of the mean most; the mean of those up to the
    lowest loss is kept. It begins with the members `first`, each added `times` times.
    """
    added = times * list(first)
    zeros = np.zeros_like(next(iter(members.values())))
    total = np.sum([zeros, *(members[name] for name in added)], axis=0)
    best: list[str] = []
    least = np.inf
    if added:
        best = added.copy()
        least = loss(total / len(added))
    while len(added) < _STEPS:
        losses = {name: loss((total + part) / (len(added) + 1)) for name, part in members.items()}
        name = min(losses, key=losses.__getitem__)
        total = total + members[name]
        added = [*added, name]
        if not best or losses[name] < least:
            best = added
            least = losses[name]
    return {name: best.count(name) / len(best) for name in members if name in best}, least


@dataclass(frozen=True, slots=True, eq=False)
class MeanForecast:
    """Weighted means of forecasts.

    Attributes:
        mean: The weighted means (N, P).
        spread: Weighted mean distance (N, P) of the methods from them.
    """

    mean: Float64[np.ndarray, "n p"]
    spread: Float64[np.ndarray, "n p"]


def mean_forecast(weights: Mapping[str, float], members: Mapping[str, np.ndarray]) -> MeanForecast:
    """The weighted mean of forecasts, and how far its members are apart."""
    mean = weighted_mean(weights, members)
    distances = {name: np.abs(members[name] - mean) for name in weights}
    return MeanForecast(mean, weighted_mean(weights, distances))


def weighted_mean(weights: Mapping[str, float], members: Mapping[str, np.ndarray]) -> np.ndarray:
    """The weighted sum of those members that have a weight, in the order of names: a file keeps no other."""
    return np.sum([weights[name] * members[name] for name in sorted(weights)], axis=0)
