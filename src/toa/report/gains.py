"""Gains over a baseline: their mean over horizons, intervals over data sets, and what a test can find."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

ALPHA = 0.05
# probability with which a detectable gain is found
POWER = 0.8
# fewest data sets of a t test: with two, one degree of freedom is left
FEWEST_SETS = 3
_RESAMPLES = 9_999
# last word of the metrics that are errors, ranks or times
_LOWER_IS_BETTER = ("mse", "mae", "rank", "ms")


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric is better."""
    return re.split("[/_]", metric)[-1] in _LOWER_IS_BETTER


def gain_unit(metric: str) -> str:
    """Unit of a gain: percent of an error, else points."""
    return "%" if lower_is_better(metric) else "points"


def mean_over_horizons(rows: Any, metric: str) -> Float64[np.ndarray, " k"]:
    """Mean over the first axis: of errors the geometric mean, so that each horizon counts by its relative change."""
    from scipy.stats import gmean

    found: Float64[np.ndarray, " k"] = (gmean if lower_is_better(metric) else np.mean)(rows, axis=0)
    return found


def percent_gain(ours: Any, plain: Any, metric: str) -> Any:
    """Gain over a baseline, positive is better: in percent of an error, else in points."""
    return 100.0 * ((plain - ours) / np.where(plain > 0, plain, 1.0) if lower_is_better(metric) else ours - plain)


def least_p(count: int) -> float:
    """The smallest two-sided p of a signed-rank test over `count` data sets: 2^(1 - n)."""
    return 2.0 ** (1 - count)


def fewest_for_ranks(tested: int) -> int:
    """The fewest data sets over which a signed-rank test can be below 0.05 after a correction for `tested` systems.

    A t test has no such limit: it needs `FEWEST_SETS`.
    """
    return 1 + math.ceil(math.log2(tested / ALPHA))


def excludes_zero(interval: tuple[float, float] | None) -> int:
    """1 for an interval above zero, -1 for one below, else 0."""
    return 0 if interval is None else int(interval[0] > 0) - int(interval[1] < 0)


def gain_interval(gains: Float64[np.ndarray, " n"]) -> tuple[float, float] | None:
    """95 % percentile bootstrap interval of the mean, the same at each call; None for fewer than three values."""
    from scipy.stats import bootstrap

    if len(gains) < FEWEST_SETS:
        return None
    options = {"n_resamples": _RESAMPLES, "confidence_level": 1 - ALPHA, "method": "percentile"}
    found = bootstrap((gains,), np.mean, rng=np.random.default_rng(0), **options).confidence_interval
    return float(found.low), float(found.high)


def t_interval(gains: Float64[np.ndarray, " n"], tested: int = 1) -> tuple[float, float] | None:
    """Student's interval of the mean at level 1 - 0.05 / tested; None for fewer than three values."""
    from scipy.stats import t

    count = len(gains)
    if count < FEWEST_SETS:
        return None
    half = t.ppf(1 - ALPHA / tested / 2, count - 1) * np.std(gains, ddof=1) / np.sqrt(count)
    return float(gains.mean() - half), float(gains.mean() + half)


def detectable_gain(gains: Float64[np.ndarray, " n"], tested: int = 1) -> float:
    """The mean gain that a two-sided t test at level a = 0.05 / tested finds with probability 0.8.

    The power is that of the noncentral t distribution with this gain over s / sqrt(n).
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    count = len(gains)
    limit = t.ppf(1 - ALPHA / tested / 2, count - 1)
    shift = brentq(lambda size: nct.sf(limit, count - 1, size) - POWER, 0.0, 10.0 * limit)
    return float(shift * np.std(gains, ddof=1) / np.sqrt(count))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction: the i-th smallest of m values times m - i + 1, not decreasing, at most 1."""
    order = np.argsort(values)
    products = np.asarray(values)[order] * np.arange(len(values), 0, -1)
    found: list[float] = np.minimum(np.maximum.accumulate(products), 1.0)[np.argsort(order)].tolist()
    return found
