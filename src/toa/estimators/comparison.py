"""Whether the score of one method is lower than that of another by more than chance.

    first = score_per_series(score, owners)      # (N,), one per series and column
    is_clearly_lower(first, second)

Alphabet: W windows, P horizon, C columns, N one per series and column.
"""

import numpy as np
from jaxtyping import Float64, Int64

# series and columns from which on standard errors decide
_FEW_SERIES = 5
# difference of two scores that is no chance, in standard errors
_STANDARD_ERRORS = 2.0
# the same with fewer series, as a share of the other score
_CLEARLY_LOWER = 0.97


def score_per_series(score: Float64[np.ndarray, "w p c"], owners: Int64[np.ndarray, " w"]) -> Float64[np.ndarray, " n"]:
    """Mean score of each series and column that has actual values."""
    scored = np.isfinite(score)
    sums = np.where(scored, score, 0.0).sum(1)  # (W, C)
    series, places = np.unique(owners, return_inverse=True)
    totals = np.zeros((2, len(series), score.shape[2]))
    np.add.at(totals[0], places, sums)
    np.add.at(totals[1], places, scored.sum(1))
    has_values = totals[1] > 0
    means: np.ndarray = totals[0][has_values] / totals[1][has_values]
    return means


def is_clearly_lower(score: Float64[np.ndarray, " n"], other: Float64[np.ndarray, " n"]) -> bool:
    """Whether a score is below another one by more than chance, or with few series by a clear share."""
    difference = score - other
    if len(difference) < _FEW_SERIES:
        return bool(score.mean() < _CLEARLY_LOWER * other.mean())
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return bool(difference.mean() < -_STANDARD_ERRORS * error)
