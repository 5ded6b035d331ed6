"""Other packages on the tables of `toa_bench.user_tables`, with their defaults: AutoETS, MSTL, LightGBM.

    forecast_by_rival(table, "auto ets")    # forecasts and bounds of each series, NaN bounds without an interval

The packages are no requirement of `toa`: each is imported when its method is asked for.

Alphabet: N histories, T rows, P horizon, L lags.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from toa._checks import ArgumentError, check_choice
from toa.estimators.baselines import align_histories

if TYPE_CHECKING:
    from toa_bench.user_tables import UserTable

# longest season of AutoETS, whose states are one per step of it
_ETS_SEASON = 24
# windows that LightGBM is fitted to, at most
_WINDOWS = 60_000
# lags that LightGBM reads beside those of two seasons
_RECENT_LAGS = 12
_LIGHTGBM = {
    "objective": "l1",
    "learning_rate": 0.05,
    "num_leaves": 31,
    "verbosity": -1,
    "deterministic": True,
    "num_threads": 1,
    "seed": 2024,
}
_TREES = 300

# forecast, lower and upper bound of each series
Bounds = tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]


def load_package(name: str) -> ModuleType:
    """A package that only this benchmark needs."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ArgumentError(name, "be installed", "no such package", f"pip install {package}") from None


def forecast_by_rival(table: "UserTable", method: str, level: float) -> Bounds:
    """Forecasts after each history, and after the actual values of each window but the last."""
    check_choice("method", method, RIVALS)
    windows = len(table.actual[0]) // table.horizon
    parts = []
    for window in range(windows):
        ahead = window * table.horizon
        pasts = [
            np.concatenate([history, actual[:ahead]])
            for history, actual in zip(table.histories, table.actual, strict=True)
        ]
        parts.append(RIVALS[method](pasts, table.histories, table.season, table.horizon, level))
    joined = [[np.concatenate(series) for series in zip(*kind, strict=True)] for kind in zip(*parts, strict=True)]
    return joined[0], joined[1], joined[2]


def _by_statsforecast(model: Any, pasts: list[np.ndarray], horizon: int, level: float) -> Bounds:
    """Each series by a model of statsforecast; one that it cannot fit keeps its last value, without bounds."""
    percent = round(100 * level)
    forecasts: Bounds = ([], [], [])
    for past in pasts:
        try:
            found = model.forecast(y=past, h=horizon, level=[percent])
            values = (found["mean"], found[f"lo-{percent}"], found[f"hi-{percent}"])
        except (ValueError, ZeroDivisionError, np.linalg.LinAlgError):
            missing = np.full(horizon, np.nan)
            values = (np.full(horizon, past[-1]), missing, missing)
        for part, value in zip(forecasts, values, strict=True):
            part.append(np.asarray(value, dtype=np.float64))
    return forecasts


def _auto_ets(
    pasts: list[np.ndarray], histories: tuple[np.ndarray, ...], season: int, horizon: int, level: float
) -> Bounds:
    models = load_package("statsforecast.models")
    return _by_statsforecast(
        models.AutoETS(season_length=season if season <= _ETS_SEASON else 1), pasts, horizon, level
    )


def _mstl(
    pasts: list[np.ndarray], histories: tuple[np.ndarray, ...], season: int, horizon: int, level: float
) -> Bounds:
    models = load_package("statsforecast.models")
    if season == 1:
        return _auto_ets(pasts, histories, season, horizon, level)
    return _by_statsforecast(models.MSTL(season_length=season), pasts, horizon, level)


def _lightgbm(
    pasts: list[np.ndarray], histories: tuple[np.ndarray, ...], season: int, horizon: int, level: float
) -> Bounds:
    """One model for all series on their lags, which forecasts one step after another; it has no bounds."""
    package = load_package("lightgbm")
    lags = min(max(_RECENT_LAGS, 2 * season), max(2, min(map(len, histories)) // 2))
    windows = np.concatenate(
        [np.lib.stride_tricks.sliding_window_view(part, lags + 1) for part in histories if len(part) > lags]
    )
    windows = windows[:: -(-len(windows) // _WINDOWS)]
    scale = _scale(windows[:, :-1])
    features = windows[:, :-1] / scale
    target = windows[:, -1] / scale[:, 0]
    # values are differences from the last one, which trees cannot extrapolate otherwise
    last = features[:, -1:]
    data = package.Dataset(features - last, target - last[:, 0], params=_LIGHTGBM)
    model = package.train(_LIGHTGBM, data, num_boost_round=_TREES)
    values = align_histories(pasts, lags)
    scale = _scale(values)
    rows = values / scale
    steps = []
    for _ in range(horizon):
        last = rows[:, -1:]
        step = model.predict(rows - last, num_threads=1)[:, None] + last
        steps.append(step)
        rows = np.concatenate([rows[:, 1:], step], axis=1)
    forecast = np.concatenate(steps, axis=1) * scale
    missing = [np.full(horizon, np.nan) for _ in pasts]
    return list(forecast), missing, missing


def _scale(windows: Float64[np.ndarray, "n l"]) -> Float64[np.ndarray, "n 1"]:
    """Mean size of the values of each window, at least a small number."""
    return np.maximum(np.abs(windows).mean(1, keepdims=True), 1e-9)


RIVALS: Mapping[str, Callable[..., Bounds]] = {"auto ets": _auto_ets, "mstl": _mstl, "lightgbm": _lightgbm}
