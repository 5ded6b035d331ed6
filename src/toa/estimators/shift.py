"""Thresholds that survive a shift: where the level of all scores rises, the threshold rises with it.

    levels = NormalLevels.fit(scores, contamination=0.01, longest=20_000)    # from scores of normal rows
    levels.raise_threshold(threshold, scores)                                # (T,): one threshold per row of a table
    levels.raised(threshold, recent)                                         # of the next row of a stream

A threshold of fit is far too low if the new rows have another level than those of fit: it flags them all. The median of
many scores is nearly the same with and without anomalies, and so is their median deviation from it. The threshold of a
row is therefore at least

    median + DEVIATIONS * z * median |score - median|

of the scores around the row, where z is the standard normal quantile of the share `contamination`. No label is used.
The cost: rows are not flagged if most of the scores around them are as high.

Alphabet: T rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from jaxtyping import Float64

from toa._checks import ArgumentError, Phrase, check_count
from toa.estimators.scoring import Score

# median deviations per standard normal quantile: for normally distributed scores it would be 1.48; chosen on SMD and
# made series, see benchmarks/alarm_thresholds.py
DEVIATIONS = 1.2
# quantiles of the scores of normal rows that are kept
_QUANTILES = 201
# rows around a row whose scores tell the level: half of the longest series of fit, within these bounds
_LEAST_MEMORY = 2_000
_MOST_MEMORY = 10_000
# levels per memory; between them the level of a table changes evenly, and that of a stream is kept
_LEVELS = 40
# a threshold that was raised by a larger share of that of fit is reported
_NOTABLE = 0.05
# a share of flagged rows is far above the expected one if it is this many times as large
FAR_ABOVE = 3.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NormalLevels:
    """Scores of normal rows, and how many new ones show a new level.

    Attributes:
        quantiles: Scores of normal rows at evenly spaced shares.
        memory: Number of scores around a row that tell the level; a table with fewer rows is filled up with scores of
            normal rows, because it may be one long anomaly.
        contamination: Expected share of flagged normal rows.
    """

    quantiles: Float64[np.ndarray, " q"]
    memory: int
    contamination: float

    @classmethod
    def fit(cls, scores: Sequence[Score], *, contamination: float, longest: int) -> Self:
        """From scores of normal rows; `longest` is the number of rows of the longest series."""
        quantiles = np.quantile(np.concatenate(scores), np.linspace(0.0, 1.0, _QUANTILES))
        memory = min(_MOST_MEMORY, max(_LEAST_MEMORY, longest // 2))
        return cls(quantiles=quantiles, memory=memory, contamination=contamination)

    @property
    def step(self) -> int:
        """Rows of a stream between two levels."""
        return self.memory // _LEVELS

    def raise_threshold(self, threshold: float, scores: Score) -> Score:
        """The threshold of each row of a series, by the scores before and after it."""
        rows = len(scores)
        size = self.memory
        if rows <= size:
            return np.full(rows, self.raised(threshold, scores))
        starts = np.unique(np.append(np.arange(0, rows - size, max(1, size // _LEVELS)), rows - size))
        levels = [self.raised(threshold, scores[start : start + size]) for start in starts]
        return np.interp(np.arange(rows), starts + size / 2, levels)

    def raised(self, threshold: float, recent: Score) -> float:
        """The threshold that belongs to these scores, at least the given one, which is that of fit."""
        # scores like those of fit leave the threshold as it was
        excess = max(0.0, self._upper_level(self.quantiles) - threshold)
        return max(threshold, self._upper_level(self._fill(recent)) - excess)

    def _upper_level(self, scores: Score) -> float:
        """A level that few normal rows among these exceed, whatever the scores of the anomalies are."""
        median = float(np.median(scores))
        deviation = float(np.median(np.abs(scores - median)))
        quantile = NormalDist().inv_cdf(1.0 - self.contamination)
        return median + DEVIATIONS * quantile * deviation

    def _fill(self, scores: Score) -> Score:
        """These scores, and as many of normal rows as are missing to those that tell a level."""
        missing = self.memory - len(scores)
        if missing <= 0:
            return scores
        shares = (np.arange(missing) + 0.5) / missing
        return np.concatenate((scores, np.interp(shares, np.linspace(0.0, 1.0, len(self.quantiles)), self.quantiles)))

    def facts(self) -> dict[str, Any]:
        """JSON values to save beside the quantiles."""
        return {"memory": self.memory, "contamination": self.contamination}

    @classmethod
    def from_state(cls, quantiles: Float64[np.ndarray, " q"], facts: Mapping[str, Any]) -> Self:
        """From the quantiles and the result of `facts`; raises ValueError for values that are not possible."""
        memory = facts["memory"]
        contamination = facts["contamination"]
        check_count("memory", memory, _LEAST_MEMORY)
        if memory > _MOST_MEMORY:
            raise ArgumentError(Phrase("memory"), f"be at most {_MOST_MEMORY}", memory)
        if not 0.0 < contamination < 1.0:
            raise ArgumentError(Phrase("contamination"), "lie in (0, 1)", contamination)
        if quantiles.shape != (_QUANTILES,) or not (np.diff(quantiles) >= 0).all():
            raise ArgumentError(Phrase("quantiles of scores"), f"be {_QUANTILES} rising numbers", "others")
        return cls(quantiles=quantiles, memory=memory, contamination=contamination)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareFlagged:
    """How many rows were flagged, and which share of normal rows was expected to be."""

    flagged: int
    rows: int
    expected: float

    @property
    def is_far_above(self) -> bool:
        """Whether it is far above the expected share, and more than a few rows."""
        return self.flagged > FAR_ABOVE * max(1.0, self.expected * self.rows)

    def describe(self) -> str:
        """The share in words."""
        return (
            f"{self.flagged / self.rows:.1%} of the rows are flagged, {self.expected:.2%} was expected of normal rows: "
            "they hold many anomalies, or differ from the rows of fit"
        )


def describe_shift(share: ShareFlagged, thresholds: Score, threshold: float) -> str | None:
    """What a user must know of many flagged rows and of thresholds that were raised; None for nothing.

    Args:
        thresholds: Threshold of each row.
        threshold: That of fit.
    """
    texts = []
    if share.is_far_above:
        texts.append(share.describe())
    raised = thresholds > threshold
    if thresholds.max() > threshold + _NOTABLE * abs(threshold):
        texts.append(
            "the scores have a higher level than in fit, so the threshold was raised from "
            f"{threshold:.4g} to up to {thresholds.max():.4g} for {raised.mean():.1%} of the rows"
        )
    return f"{'; '.join(texts)}. If such rows are normal now, fit again with them." if texts else None
