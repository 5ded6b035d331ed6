"""Forecasts of series that grow by a rate: simple methods on the logarithms of positive series.

    history = align_histories(arrays)                          # (N, T), each series at the end of its row
    log_line(history, season=12, horizon=18)                   # (N, P)
    grows(history)                                             # (N,)

A series with a value of zero or below has the forecast of the same method without logarithms.

Alphabet: N series, T rows, P horizon.
"""

import numpy as np
from jaxtyping import Bool, Float64

from toa.estimators.baselines import (
    BASELINES,
    Baseline,
    Forecast,
    History,
    without_season,
)

# rows from which on growth is measured
_LEAST_ROWS = 8
# share of the rows at the begin and at the end by which it is measured
_PART = 0.25
# ratio of the means of these rows from which on a series grows, or falls
_GROWTH = 1.5


def grows(history: History) -> Bool[np.ndarray, " n"]:
    """Whether a series is positive, and its last quarter at least 1.5 times its first one in the mean, or reversed."""
    rows = np.isfinite(history).sum(1)
    positive = ~(history <= 0).any(1) & (rows >= _LEAST_ROWS)
    part = np.maximum(1, (rows * _PART).astype(np.int64))[:, None]
    # of each value its place in its series, counted from 1
    place = np.arange(1, history.shape[1] + 1) - (history.shape[1] - rows)[:, None]
    is_first = (place >= 1) & (place <= part)
    is_last = place > rows[:, None] - part
    values = np.where(np.isfinite(history) & positive[:, None], history, 1.0)
    first = (values * is_first).sum(1) / part[:, 0]
    last = (values * is_last).sum(1) / part[:, 0]
    return positive & (np.maximum(first, last) >= _GROWTH * np.minimum(first, last))


def line(history: History, season: int, horizon: int) -> Forecast:
    """Continue the straight line through all values with the least squared error, with the season."""

    def forecast(values: History) -> Forecast:
        rows = np.isfinite(values).sum(1)[:, None]
        # places are counted from the middle of the series, so that their mean is zero
        place = np.arange(values.shape[1]) - (values.shape[1] - (rows + 1) / 2)
        place = np.where(np.isnan(values), 0.0, place)
        mean = np.nansum(values, axis=1, keepdims=True) / rows
        slope = (place * np.nan_to_num(values)).sum(1) / np.maximum((place**2).sum(1), 1e-12)
        ahead = (rows - 1) / 2 + np.arange(1, horizon + 1)
        return mean + slope[:, None] * ahead

    return without_season(history, season, horizon, forecast)


def log_line(history: History, season: int, horizon: int) -> Forecast:
    """The line through the logarithms."""
    return _of_logarithms(line, history, season, horizon)


def log_theta(history: History, season: int, horizon: int) -> Forecast:
    """Theta on the logarithms."""
    return _of_logarithms(BASELINES["theta"], history, season, horizon)


def log_drift(history: History, season: int, horizon: int) -> Forecast:
    """Drift on the logarithms: growth continues at its mean rate."""
    return _of_logarithms(BASELINES["drift"], history, season, horizon)


def log_damped_trend(history: History, season: int, horizon: int) -> Forecast:
    """Exponential smoothing of the logarithms with a damped trend."""
    return _of_logarithms(BASELINES["damped trend"], history, season, horizon)


def _of_logarithms(method: Baseline, history: History, season: int, horizon: int) -> Forecast:
    """A method on the logarithms of positive series, and on the values of the others.

    A forecast leaves the last value by at most the range that the series had so far.
    """
    forecasts = np.empty((len(history), horizon))
    positive = ~(history <= 0).any(1)
    if not positive.all():
        forecasts[~positive] = method(history[~positive], season, horizon)
    if positive.any():
        logs: Float64[np.ndarray, "k t"] = np.log(history[positive])
        highest = np.nanmax(logs, axis=1, keepdims=True)
        reach = highest - np.nanmin(logs, axis=1, keepdims=True)
        last = logs[:, -1:]
        # negative numbers: a season of logarithms is a shift, which is a factor of the values
        below = logs - highest - 1.0
        ahead = method(below, season, horizon) + highest + 1.0
        forecasts[positive] = np.exp(np.clip(ahead, last - reach, last + reach))
    return forecasts
