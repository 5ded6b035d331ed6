"""Gradient boosting on lags, a usual rival: a method of `toa bench`, no part of a forecaster.

    forecast_boosting(past, histories, season=24, horizon=48)    # (N, P), after each of the histories

One model of all series forecasts the change from the season before, on lags scaled per window, one step after another.

Alphabet: N histories, S series, T rows, P horizon, L lags.
"""

import warnings

import numpy as np

from toa.estimators.baselines import Forecast, History, sample_windows
from toa.estimators.ensemble import linear_lookbacks


def forecast_boosting(past: History, histories: History, *, season: int, horizon: int, seed: int = 2024) -> Forecast:
    """Fit to series (S, T), then forecast after other histories (N, T); NaN before each begins."""
    # imported on use: scikit-learn takes long to import
    from sklearn.ensemble import HistGradientBoostingRegressor

    lags = linear_lookbacks(season, horizon)[-1]
    found = sample_windows(past, lags, 1, np.random.default_rng(seed))
    if found is None:
        raise ValueError(f"boosting needs a series of at least 3 rows, got at most {past.shape[1]}; use a baseline.")
    inputs, before, scale = _scaled(found[0], season)
    target = (found[1][:, 0] - before) / scale
    usable = np.isfinite(target)
    model = HistGradientBoostingRegressor(loss="absolute_error", max_iter=300, random_state=seed)
    model.fit(inputs[usable], target[usable])
    rows = np.pad(histories, ((0, 0), (max(0, lags - histories.shape[1]), 0)), constant_values=np.nan)[:, -lags:]
    steps = []
    for _ in range(horizon):
        inputs, before, scale = _scaled(rows, season)
        steps.append(model.predict(inputs) * scale + before)
        rows = np.concatenate([rows[:, 1:], steps[-1][:, None]], 1)
    return np.stack(steps, 1)


def _scaled(window: History, season: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lags (N, L) from which the values a season before the next step are subtracted, these values and scales (N,)."""
    before = np.where(np.isfinite(window[:, -season]), window[:, -season], window[:, -1])
    with warnings.catch_warnings():
        # the mean of nothing is NaN: a window shorter than a season
        warnings.simplefilter("ignore", RuntimeWarning)
        scale = np.nanmean(np.abs(window[:, season:] - window[:, :-season]), 1)
        level = np.nanmean(np.abs(window - before[:, None]), 1)
    scale = np.fmax(scale, 0.01 * level)
    scale = np.where(scale > 0, scale, 1.0)
    return (window - before[:, None]) / scale[:, None], before, scale
