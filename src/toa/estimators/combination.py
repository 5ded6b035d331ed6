"""The combination of a detector: scores of the network and of baselines, made comparable by held-out normal rows.

    tail = Tail.fit(held)                # scores of normal rows that the method has not seen
    tail(score)                          # -log of the share of normal rows with such a score or a higher one
    Combination.fit(held, injected, …)   # which scores are averaged, and how well each finds injected anomalies

Each method counts twice: its score of a row, and the mean of that score over a window around the row, which finds
anomalies that last. The means count at most as much as the highest score of a row in a tenth of a window around, so
that an alarm does not last much longer than the unusual rows. Z-score, PCA, Mahalanobis distance and the network are
always in the combination; the other methods join it if they find anomalies that were injected into the held-out rows
more precisely. No label is used.

Alphabet: T rows, C channels, S series.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from toa.estimators.architecture import NETWORK
from toa.estimators.scoring import Rows, Score, window_max, window_mean

# scores that are always averaged
_ALWAYS = ("z-score", "pca", "mahalanobis", NETWORK)
# scores that may join
_OPTIONAL = ("isolation forest", "sub-sequence pca")
# methods that read each row alone
_ROW_BY_ROW = ("z-score", "pca", "mahalanobis", "isolation forest")

# quantiles of the held-out scores that are stored; above the last one, the tail is exponential
_LEVELS = np.linspace(0.0, 0.98, 99)
# smallest scale of a tail, as a share of the mean score
_LEAST_SCALE = 0.01
# scales above the last quantile from where on a tail grows as a logarithm
_LARGE = 10.0

# injected anomalies
_KINDS = ("spike", "shift", "noise", "freeze", "swap", "drift")
# their size in standard deviations
_SIZES = (1.0, 4.0)
# their length in windows
_LENGTHS = (0.1, 1.0)
# the normal rows between two of them, in windows
_DISTANCES = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """How unusual a score is among the scores of normal rows: -log of the share that has at least this score.

    Far above all normal rows, where no share is known, it grows more slowly, so that no method dominates the others.

    Attributes:
        quantiles: Scores at fixed levels.
        scale: Mean excess over the last of them: the tail is exponential.
    """

    quantiles: Float64[np.ndarray, " q"]
    scale: float

    @classmethod
    def fit(cls, scores: Score) -> Self:
        """From scores of normal rows."""
        quantiles = np.quantile(scores, _LEVELS)
        above = scores[scores > quantiles[-1]] - quantiles[-1]
        least = max(_LEAST_SCALE * float(np.abs(scores).mean()), 1e-9)
        return cls(quantiles=quantiles, scale=max(float(above.mean()) if len(above) else 0.0, least))

    def __call__(self, scores: Score) -> Score:
        """At least 0; about log(100) for the highest of 100 normal rows."""
        inside = np.interp(scores, self.quantiles, -np.log(1.0 - _LEVELS))
        excess = np.maximum(scores - self.quantiles[-1], 0.0) / self.scale
        return inside + np.minimum(excess, _LARGE * (1.0 + np.log(np.maximum(excess, _LARGE) / _LARGE)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """The mean of comparable scores.

    Attributes:
        tails: Per method with a weight, how unusual its score and its mean over a window are.
        precision: Average precision on injected anomalies, of each method and of the "combination"; empty if the
            held-out rows were too few for an injection.
    """

    tails: Mapping[str, tuple[Tail, Tail]]
    precision: Mapping[str, float]

    @classmethod
    def fit(
        cls,
        held: Mapping[str, Sequence[Score]],
        injected: Mapping[str, Sequence[Score]],
        labels: Sequence[Bool[np.ndarray, " t"]],
        window: int,
    ) -> Self:
        """Choose the methods by their scores of held-out normal series, and of the same series with injected anomalies.

        `labels` states which rows are injected.
        """
        tails = {name: _fit_tails(scores, window) for name, scores in held.items()}
        chosen = [name for name in _ALWAYS if name in tails]
        truth = np.concatenate(labels)
        if not truth.any() or truth.all():
            return cls(tails={name: tails[name] for name in chosen}, precision={})
        # loaded on use: scikit-learn's metrics take half a second
        from sklearn.metrics import average_precision_score

        def precision(*names: str) -> float:
            combination = cls(tails={name: tails[name] for name in names}, precision={})
            series = [{name: injected[name][index][:, None] for name in names} for index in range(len(labels))]
            scores = [combination.parts(members.__getitem__, window).sum(1) for members in series]
            return float(average_precision_score(truth, np.concatenate(scores)))

        best = precision(*chosen)
        for name in _OPTIONAL:
            if name in tails and (better := precision(*chosen, name)) > best:
                chosen.append(name)
                best = better
        precisions = {name: precision(name) for name in tails} | {"combination": best}
        return cls(tails={name: tails[name] for name in chosen}, precision=precisions)

    def halves(self, held: Mapping[str, Sequence[Score]], window: int) -> tuple[Self, Self]:
        """The same methods for the first and for the second half of held-out series, each with tails of the other."""
        earlier = {name: _fit_tails(held[name], window, lambda score: score[: len(score) // 2]) for name in self.tails}
        later = {name: _fit_tails(held[name], window, lambda score: score[len(score) // 2 :]) for name in self.tails}
        return replace(self, tails=later), replace(self, tails=earlier)

    @property
    def weights(self) -> dict[str, float]:
        """Weight per method."""
        return dict.fromkeys(self.tails, 1.0 / len(self.tails))

    def parts(self, member: Callable[[str], Rows], window: int, *, later: bool = True) -> Rows:
        """Parts of the channels in the combined score (T, C).

        Args:
            member: Those in the score of a method, by its name; called once per method, so that one is kept at a time.
            later: Whether the score of a row may depend on later rows.
        """
        half = window // 2
        near = max(1, window // 10)

        def comparable(name: str) -> tuple[Rows, Rows]:
            tail, mean_tail = self.tails[name]
            part = member(name)
            rows = _divide(tail(part.sum(1)), part)
            # in place of the parts, which are needed no more: several arrays of this size would take much memory
            part = window_mean(part, half, half if later else 0)
            return rows, _divide(mean_tail(part.sum(1)), part)

        first, *others = self.tails
        # (T, C): parts of the channels in the sum over methods, of scores of rows and of means over windows
        row_parts, mean_parts = comparable(first)
        for name in others:
            for total, part in zip((row_parts, mean_parts), comparable(name), strict=True):
                total += part
        # (T,): the means count at most as much as the highest score of a row nearby
        mean_score = mean_parts.sum(1)
        limit = window_max(row_parts.sum(1), near, near if later else 0)
        mean_parts *= (np.minimum(mean_score, limit) / np.where(mean_score > 0, mean_score, 1.0))[:, None]
        row_parts += mean_parts
        row_parts /= 2 * len(self.tails)
        return row_parts

    def of_rows_alone(self, member: Callable[[str], Rows]) -> Score:
        """Mean of the comparable scores of the methods that read each row alone (T,); others spread over windows."""
        names = [name for name in self.tails if name in _ROW_BY_ROW]
        return np.mean([self.tails[name][0](member(name).sum(1)) for name in names], axis=0)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        tensors = {
            f"{name}.{kind}": torch.from_numpy(np.append(tail.quantiles, tail.scale))
            for name, tails in self.tails.items()
            for kind, tail in zip(("score", "mean"), tails, strict=True)
        }
        return tensors, {"members": list(self.tails), "precision": dict(self.precision)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """From the result of `state`."""
        tails = {}
        for name in facts["members"]:
            values = [tensors[f"{name}.{kind}"].double().cpu().numpy() for kind in ("score", "mean")]
            if not all(map(_is_tail, values)):
                raise ValueError(f"quantiles of {name!r} must be {len(_LEVELS)} rising numbers and a positive scale")
            row_tail, mean_tail = (Tail(quantiles=numbers[:-1], scale=float(numbers[-1])) for numbers in values)
            tails[str(name)] = row_tail, mean_tail
        return cls(tails=tails, precision=dict(facts["precision"]))


def _is_tail(numbers: np.ndarray) -> bool:
    """Whether an array of a file is the quantiles of a tail with its scale."""
    return numbers.shape == (len(_LEVELS) + 1,) and np.diff(numbers[:-1]).min() >= 0 and bool(numbers[-1] > 0)


def _fit_tails(
    scores: Sequence[Score], window: int, used: Callable[[Score], Score] = lambda score: score
) -> tuple[Tail, Tail]:
    """Tails of the scores of series and of their means over windows; `used` selects the rows to fit to."""
    means = [window_mean(score, window // 2, window // 2) for score in scores]
    score_tail, mean_tail = (Tail.fit(np.concatenate(list(map(used, series)))) for series in (scores, means))
    return score_tail, mean_tail


def inject_anomalies(values: Rows, window: int, seed: int | np.random.Generator) -> tuple[Rows, Bool[np.ndarray, " t"]]:
    """Standardised rows with spikes, shifts, noise, frozen or swapped values and drifts in some channels, and which."""
    rng = np.random.default_rng(seed)
    changed = values.copy()
    labels = np.zeros(len(values), dtype=bool)
    deviation = np.maximum(values.std(0), 0.1)
    channels = np.flatnonzero(np.ptp(values, axis=0) > 0)
    channels = channels if len(channels) else np.arange(values.shape[1])
    start = int(rng.integers(window // 2, window))
    count = 0
    while start < len(values) - window:
        kind = _KINDS[count % len(_KINDS)]
        rows = int(rng.integers(1, 4)) if kind == "spike" else max(2, int(window * rng.uniform(*_LENGTHS)))
        places = rng.choice(channels, int(rng.integers(1, max(1, len(channels) // 4) + 1)), replace=False)
        size = rng.choice([-1.0, 1.0], len(places)) * rng.uniform(*_SIZES, len(places)) * deviation[places]
        part = changed[start : start + rows, places]
        other = int(rng.integers(0, len(values) - rows))
        changed[start : start + rows, places] = {
            "spike": part + size,
            "shift": part + size,
            "noise": part + size * rng.standard_normal(part.shape),
            "freeze": np.broadcast_to(part[:1], part.shape),
            "swap": values[other : other + rows, places],
            "drift": part + size * np.linspace(0.0, 1.0, rows)[:, None],
        }[kind]
        labels[start : start + rows] = True
        start += rows + int(window * rng.uniform(*_DISTANCES))
        count += 1
    return changed, labels


def _divide(scores: Score, parts: Rows) -> Rows:
    """Scores of rows, divided among the channels like these parts; equally if no channel has a part."""
    shares = np.maximum(parts, 0.0)
    total = shares.sum(1)
    shares /= np.where(total > 0, total, 1.0)[:, None]
    shares[total <= 0] = 1.0 / parts.shape[1]
    shares *= scores[:, None]
    return shares
