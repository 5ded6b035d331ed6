"""The decision of a comparison over data sets, by a rule that is fixed before the runs (docs/many_channels.md).

A data set is one unit, however many horizons, seeds or parts it has. Validation chooses one variant for all data sets;
its test errors are compared with those of one other system. Alphabet: n data sets.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from jaxtyping import Float64

from toa._checks import ArgumentError
from toa.report import gains

# errors of a system by data set: one per part, horizon and seed, in the same order for all systems
Errors = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Decision:
    """How a system compares with another over data sets; a difference below zero is a lower error.

    Attributes:
        differences: log(error of ours) - log(error of the other) by data set, the mean over its runs.
        interval: 95 % t interval of the mean difference.
        bootstrap: 95 % percentile interval of the mean, data sets resampled.
        p: Two-sided t test of the mean difference against zero.
        sign_p: Two-sided exact sign test; differences of zero do not count.
        wins: Number of data sets with a lower error.
    """

    ours: str
    other: str
    differences: Mapping[str, float]
    mean: float
    interval: tuple[float, float] | None
    bootstrap: tuple[float, float] | None
    p: float
    sign_p: float
    wins: int

    @property
    def percent(self) -> float:
        """Mean difference as a change of the error in percent, by the geometric mean."""
        return 100.0 * math.expm1(self.mean)


def capped_error(error: float | None, worst: float) -> float:
    """The error of a run that counts: at most that of the forecast of the training mean, also if the run diverged.

    Args:
        error: Error of the run; None for a run that diverged and has none.
        worst: Error of the forecast that is the mean of the train rows, on the same windows.
    """
    if not worst > 0.0:
        raise ArgumentError("worst", "be positive", worst, "it is the error of the forecast of the training mean")
    return worst if error is None or not math.isfinite(error) else min(error, worst)


def choose_variant(validation: Errors, variants: Iterable[str]) -> str:
    """The variant with the lowest mean over data sets of its mean log validation error; the first of equal ones."""
    scores = {name: fmean(_log_means(validation[name]).values()) for name in variants}
    return min(scores, key=scores.__getitem__)


def decide(errors: Errors, ours: str, other: str) -> Decision:
    """Compare two systems over the data sets of both.

    Raises:
        ValueError: If their data sets or numbers of runs differ, or if there are fewer than three data sets.
    """
    from scipy.stats import binomtest, ttest_1samp

    _check_same(errors, ours, other)
    first, second = _log_means(errors[ours]), _log_means(errors[other])
    differences = {name: first[name] - second[name] for name in first}
    values: Float64[np.ndarray, " n"] = np.array(list(differences.values()))
    wins = int((values < 0).sum())
    losses = int((values > 0).sum())
    # equal differences have no variance, and no t test
    p = float(ttest_1samp(values, 0.0).pvalue) if np.ptp(values) > 0 else math.nan
    return Decision(
        ours=ours,
        other=other,
        differences=differences,
        mean=float(values.mean()),
        interval=gains.t_interval(values),
        bootstrap=gains.gain_interval(values),
        p=p,
        sign_p=float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0,
        wins=wins,
    )


def _log_means(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean log error by data set."""
    return {name: fmean(map(math.log, values)) for name, values in errors.items()}


def _check_same(errors: Errors, ours: str, other: str) -> None:
    counts = [{name: len(values) for name, values in errors[system].items()} for system in (ours, other)]
    if counts[0] != counts[1]:
        different = sorted(name for name in {*counts[0], *counts[1]} if counts[0].get(name) != counts[1].get(name))
        raise ArgumentError(
            f"{ours} and {other}",
            "have the same runs",
            f"different numbers of runs on {', '.join(different)}",
            "run the missing ones, or leave the data set out for both",
        )
    if len(counts[0]) < 3:
        raise ValueError(f"a decision needs at least 3 data sets, got {len(counts[0])}.")
