"""Forecasts of demand that is zero in most rows, for many series at once.

    history = align_histories(arrays)                          # (N, T), each series at the end of its row
    croston(history, season=1, horizon=14)                     # (N, P), one value per series
    is_intermittent(history)                                   # (N,)

Croston's method smooths the sizes of the demands and the rows from one to the next, and forecasts their ratio; SBA
(Syntetos and Boylan) corrects its bias by the factor 1 - a / 2. TSB (Teunter, Syntetos and Babai) smooths the sizes and
the probability of a demand, which falls in every row without one. Each series has the smoothing factors of a small grid
with the least squared error of one step ahead in its own rows.

These forecast the mean. Where most rows are zero, the median has a smaller absolute error, and is among the methods.

Alphabet: N series, T rows, P horizon, G entries of a grid.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float64

from toa.estimators.baselines import Forecast, History

# mean number of rows from one demand to the next, from which on a series is intermittent (Syntetos and Boylan)
_LEAST_INTERVAL = 1.32
# smoothing factors of sizes, intervals and probabilities
_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3)
# the same for TSB: every pair
_SIZE_CHANCE = [(size, chance) for size in _FACTORS for chance in _FACTORS]

Grid = Float64[np.ndarray, " g"]
# sizes and intervals or chances (N, G) before a row, and the expected value
Expect = Callable[[np.ndarray, np.ndarray], np.ndarray]


def is_intermittent(history: History) -> Bool[np.ndarray, " n"]:
    """Whether a series has no negative value, and demands that lie 1.32 rows apart or more in the mean."""
    rows = np.isfinite(history).sum(1)
    demands = (history > 0).sum(1)
    return (demands > 0) & ~(history < 0).any(1) & (rows >= _LEAST_INTERVAL * demands)


def croston(history: History, season: int, horizon: int) -> Forecast:
    """Smoothed size of a demand, divided by the smoothed interval."""
    factors = np.array(_FACTORS)
    return _repeat(_smooth_intervals(history, factors, lambda size, interval: size / interval), horizon)


def sba(history: History, season: int, horizon: int) -> Forecast:
    """Croston's method without its bias."""
    factors = np.array(_FACTORS)
    return _repeat(
        _smooth_intervals(history, factors, lambda size, interval: (1.0 - factors / 2.0) * size / interval), horizon
    )


def tsb(history: History, season: int, horizon: int) -> Forecast:
    """Smoothed size of a demand, times the smoothed probability."""
    sizes, chances = (np.array(part) for part in zip(*_SIZE_CHANCE, strict=True))
    return _repeat(_smooth_chances(history, sizes, chances), horizon)


def median(history: History, season: int, horizon: int) -> Forecast:
    """The median of all rows."""
    return _repeat(np.nanmedian(history, axis=1), horizon)


def _repeat(values: Float64[np.ndarray, " n"], horizon: int) -> Forecast:
    return np.repeat(values[:, None], horizon, axis=1)


def _smooth_intervals(history: History, factors: Grid, expect: Expect) -> Float64[np.ndarray, " n"]:
    """The expected next value by smoothed sizes and intervals, of the entry of the grid with the least error."""
    shape = (len(history), len(factors))
    size = np.zeros(shape)
    interval = np.ones(shape)
    error = np.zeros(shape)
    waited = np.zeros((len(history), 1))
    started = np.zeros((len(history), 1), dtype=bool)
    for now in np.split(history, history.shape[1], axis=1):
        has_value = np.isfinite(now)
        is_demand = now > 0
        waited += has_value
        error += np.where(started & has_value, (now - expect(size, interval)) ** 2, 0.0)
        # the first demand sets both; later ones move them
        size = np.where(is_demand, np.where(started, size + factors * (now - size), now), size)
        moved = np.where(started, interval + factors * (waited - interval), waited)
        interval = np.where(is_demand, moved, interval)
        waited[is_demand] = 0.0
        started |= is_demand
    return _best(expect(size, interval), error)


def _smooth_chances(history: History, sizes: Grid, chances: Grid) -> Float64[np.ndarray, " n"]:
    """The expected next value by smoothed sizes and probabilities, of the entry of the grid with the least error."""
    shape = (len(history), len(sizes))
    size = np.zeros(shape)
    chance = np.zeros(shape)
    error = np.zeros(shape)
    waited = np.zeros((len(history), 1))
    started = np.zeros((len(history), 1), dtype=bool)
    for now in np.split(history, history.shape[1], axis=1):
        has_value = np.isfinite(now)
        is_demand = now > 0
        waited += has_value
        error += np.where(started & has_value, (now - size * chance) ** 2, 0.0)
        moved = chance + chances * (is_demand - chance)
        chance = np.where(started & has_value, moved, np.where(is_demand, 1.0 / np.maximum(waited, 1.0), chance))
        size = np.where(is_demand, np.where(started, size + sizes * (now - size), now), size)
        started |= is_demand
    return _best(size * chance, error)


def _best(expected: Float64[np.ndarray, "n g"], error: Float64[np.ndarray, "n g"]) -> Float64[np.ndarray, " n"]:
    chosen: np.ndarray = np.take_along_axis(expected, error.argmin(1)[:, None], 1)[:, 0]
    return chosen
