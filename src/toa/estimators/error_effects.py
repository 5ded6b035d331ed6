"""How large the errors of a forecast are, by what is seen before it: learned at the rolling origins.

    effects = ErrorEffects.fit(features, error, prior)    # coefficients of the features below
    effects.factor(features)                              # (N, P): times the usual error

A forecast has larger errors after a rough season, at steps of the season that vary much, at a high level, and where the
methods of the ensemble disagree. The mean absolute error of a step is

    scale * exp(sum of effects * (features - centre))

whose coefficients minimise the mean of |error| / s + log s, s the scale above: the likelihood of a Laplace
distribution, a convex problem. They are drawn to a prior, because windows may be few, and are at least 0.

Alphabet: N one per window and column, P horizon, K features, M steps of a season.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from toa.estimators.baselines import align_histories
from toa.estimators.lag_methods import local_rows

# what errors depend on, each as a logarithm: "recent" and "level" are measures of the last rows, "phase" is the usual
# change over a season at this step of it, "spread" the mean disagreement of the methods, "step" that of each step
FEATURES = ("recent", "level", "phase", "spread", "step")
# smallest and largest ratio of which a feature is the logarithm: one window must not make an interval vanish or explode
_LEAST_RATIO = 0.05
_LARGEST_RATIO = 20.0
# the same for the level, which is any number of seasonal errors
_LEAST_LEVEL = 1e-3
_LARGEST_LEVEL = 1e4
# seasons by which "phase" is measured, at most and at least
_PHASE_SEASONS = 13
_LEAST_PHASE_SEASONS = 2
# seasons of the usual change that are added to those of each step
_PRIOR_SEASONS = 4.0
# how strongly the coefficients are drawn to the prior
_STRENGTH = 0.1
# cells that the coefficients are fitted to, at most
_MOST_CELLS = 200_000
# seed of their draw
_SEED = 20_262
# steps of Newton's method, and the largest change of a coefficient in one
_ROUNDS = 12
_LARGEST_CHANGE = 2.0
# largest |error| in scales that counts in a step
_LARGEST_ERROR = 1e6
# largest logarithm of a factor
_LARGEST_EFFECT = 4.0

# logarithms (N, P), or (N, 1) where all steps have the same, one array per feature
Features = Sequence[Float64[np.ndarray, "n _"]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ErrorEffects:
    """Coefficients of the features.

    Attributes:
        coefficients: One per feature (K,).
        centre: Mean of each feature at the origins (K,).
    """

    coefficients: Float64[np.ndarray, " k"]
    centre: Float64[np.ndarray, " k"]

    @classmethod
    def fit(
        cls, features: Features, error: Float64[np.ndarray, "n p"], prior: Float64[np.ndarray, " k"]
    ) -> "ErrorEffects":
        """From |errors| in scales; those that are NaN do not count."""
        cells = np.flatnonzero(np.isfinite(error))
        if not len(cells):
            return cls(coefficients=prior, centre=np.zeros(len(prior)))
        if len(cells) > _MOST_CELLS:
            # drawn, because each n-th would miss steps of the horizon
            cells = np.random.default_rng(_SEED).choice(cells, _MOST_CELLS, replace=False)
        inputs = np.stack([np.broadcast_to(part, error.shape).ravel()[cells] for part in features], axis=1)
        centre = inputs.mean(0)
        size = np.abs(error.ravel()[cells])
        return cls(coefficients=_fit_laplace(inputs - centre, size, prior), centre=centre)

    def factor(self, features: Features) -> Float64[np.ndarray, "n p"]:
        """How many times larger the errors of each step are than usual."""
        parts = zip(self.coefficients, features, self.centre, strict=True)
        exponent = sum(effect * (part - middle) for effect, part, middle in parts)
        factors: np.ndarray = np.exp(np.clip(exponent, -_LARGEST_EFFECT, _LARGEST_EFFECT))
        return factors


def _fit_laplace(
    inputs: Float64[np.ndarray, "n k"], size: Float64[np.ndarray, " n"], prior: Float64[np.ndarray, " k"]
) -> Float64[np.ndarray, " k"]:
    """Coefficients b with the least mean of size * exp(-a - b x) + a + b x, near the prior, by Newton's method."""
    table = np.concatenate([np.ones((len(inputs), 1)), inputs], axis=1)
    start = np.append(np.log(size.mean()), prior)
    strength = np.append(0.0, np.full(len(prior), _STRENGTH))
    effects = start
    for _ in range(_ROUNDS):
        ratio = np.minimum(size * np.exp(-table @ effects), _LARGEST_ERROR)
        gradient = table.T @ (1.0 - ratio) / len(table) + strength * (effects - start)
        curvature = (table.T * ratio) @ table / len(table) + np.diag(strength + 1e-9)
        change = np.linalg.solve(curvature, gradient)
        change *= min(1.0, _LARGEST_CHANGE / max(float(np.abs(change).max()), 1e-12))
        effects = effects - change
    # that errors fall with one of them is chance
    fitted: np.ndarray = np.maximum(effects[1:], 0.0)
    return fitted


def make_features(
    recent: Float64[np.ndarray, " n"],
    level: Float64[np.ndarray, " n"],
    phase: Float64[np.ndarray, "n p"],
    spread: Float64[np.ndarray, "n p"],
    reference: Float64[np.ndarray, " n"],
) -> list[Float64[np.ndarray, "n _"]]:
    """The features of forecasts, in the order of `FEATURES`.

    Args:
        recent: How uneven the last rows are, see `measure_rows`; NaN for short histories.
        level: Mean size of the last season.
        phase: See `measure_phases`.
        spread: Mean distance of the methods from the forecast.
        reference: Seasonal error of the series of each forecast, above 0.
    """
    unit = reference[:, None]
    uneven = np.where(np.isfinite(recent) & (recent > 0), recent / reference, 1.0)[:, None]
    # a smaller spread is none: the shares of its steps are rounding
    distance = np.maximum(spread, _LEAST_RATIO * unit)
    mean = distance.mean(1, keepdims=True)
    return [
        _log(uneven),
        np.log(np.clip(level[:, None] / unit, _LEAST_LEVEL, _LARGEST_LEVEL)),
        _log(phase),
        _log(mean / unit),
        _log(distance / mean),
    ]


def _log(ratio: np.ndarray) -> np.ndarray:
    return np.log(np.clip(ratio, _LEAST_RATIO, _LARGEST_RATIO))


def phase_rows(season: int) -> int:
    """Rows by which "phase" is measured, at most."""
    return 0 if season == 1 else min((_PHASE_SEASONS + 1) * season, local_rows(season))


def measure_phases(
    histories: Sequence[Float64[np.ndarray, " _"]], season: int, horizon: int
) -> Float64[np.ndarray, "n p"]:
    """Mean |x[t] - x[t - M]| at the step of the season of each forecast step, in means over all steps of the season.

    Steps of few seasons are drawn to 1; histories that are too short have 1.
    """
    if season == 1:
        return np.ones((len(histories), horizon))
    wanted = phase_rows(season) // season * season
    rows = align_histories(histories, wanted)
    # as many columns for any histories: a forecast does not depend on those beside it
    rows = np.pad(rows, ((0, 0), (wanted - rows.shape[1], 0)), constant_values=np.nan)
    # the first step after a season is the first of the next one
    changes = np.abs(rows[:, season:] - rows[:, :-season]).reshape(len(rows), -1, season)
    counts = np.isfinite(changes).sum(1)  # (N, M)
    sums = np.nansum(changes, axis=1)
    usual = sums.sum(1, keepdims=True) / np.maximum(counts.sum(1, keepdims=True), 1)
    mean = (sums + _PRIOR_SEASONS * usual) / (counts + _PRIOR_SEASONS)
    enough = (counts.min(1, keepdims=True) >= _LEAST_PHASE_SEASONS) & (usual > 0)
    ratio = np.where(enough, mean / np.where(usual > 0, usual, 1.0), 1.0)
    by_step: np.ndarray = ratio[:, np.arange(horizon) % season]
    return by_step
