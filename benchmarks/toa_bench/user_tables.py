"""Tables as users have them: errors of forecasts, and how often their intervals hold the actual values.

evaluate("tourism monthly", "toa")     # {"metrics": {"mase": …, "coverage": …, …}, "cells": …, "cpu_seconds": …}

Each set has at least 2,000 scored values, all after the rows of the fit. Errors are divided by the seasonal error of
the history, as MASE does. Widths and interval scores are on that scale too, so that wide intervals alone do not pass.

Alphabet: S series, T rows, P horizon, N windows, C columns.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from toa._checks import check_choice
from toa._registry import Registry
from toa.data import DATASETS, load_collection, locate
from toa.data.panel import Panel
from toa.data.tables import read_dataset
from toa.estimators import Forecaster
from toa.estimators.baselines import BASELINES, Baseline
from toa.estimators.special_baselines import SPECIAL_BASELINES
from toa.training.metrics import seasonal_error
from toa_bench import table_rivals

LEVEL = 0.8
# the default methods; those after the first are names of `toa.estimators.baselines.BASELINES` and the last value
METHODS = ("toa", "seasonal naive", "last value", "drift", "theta", "damped trend")
LIMITED = METHODS[:1]
# further methods, by other packages: run if they are named
RIVALS = tuple(table_rivals.RIVALS)
TITLES = {
    "mase": "MASE",
    "coverage": "coverage",
    "first": "first third",
    "middle": "middle",
    "last": "last third",
    "width": "width",
    "interval_score": "interval score",
    "outside": "outside",
}
# probability of a column to lie outside the band of its coverage by chance
_BAND = 0.01
# seed of the made sets
_SEED = 20_261


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UserTable:
    """Histories of series, and the values after them.

    Attributes:
        histories: Rows of the fit of each series.
        actual: The values after them, a multiple of the horizon: forecasts follow each other at that distance.
        together: Whether the series are columns of one table; else each is a series of its own.
        alone: Whether each series is fitted alone, as a table of one column.
    """

    histories: tuple[Float64[np.ndarray, " _"], ...]
    actual: tuple[Float64[np.ndarray, " _"], ...]
    horizon: int
    season: int
    freq: str
    together: bool = False
    alone: bool = False


Loader = Callable[[Path | None], UserTable]
SETS: Registry[Loader] = Registry("set")
KNOWN = SETS


def evaluate(
    dataset: str, method: str, *, data_dir: str | Path | None = None, seed: int = 2024, **options: Any
) -> dict[str, Any]:
    """Forecast a set by a method, and score the forecasts and their intervals of 80 %.

    Args:
        options: Further parameters of `toa.Forecaster`.
    """
    check_choice("dataset", dataset, SETS)
    check_choice("method", method, (*METHODS, *RIVALS))
    table = SETS[dataset](None if data_dir is None else Path(data_dir))
    begin = time.process_time()
    facts: dict[str, Any] = {}
    if method == "toa":
        forecast, lower, upper, facts = _forecast_by_toa(table, seed, options)
    elif method in RIVALS:
        forecast, lower, upper = table_rivals.forecast_by_rival(table, method, LEVEL)
    else:
        forecast, lower, upper = _forecast_by_baseline(table, method)
    seconds = round(time.process_time() - begin, 1)
    metrics = score(table, forecast, lower, upper)
    cells = sum(map(len, table.actual))
    return {"metrics": metrics, "cells": cells, "series": len(table.actual), "cpu_seconds": seconds, **facts}


def score(
    table: UserTable,
    forecast: list[np.ndarray],
    lower: list[np.ndarray],
    upper: list[np.ndarray],
) -> dict[str, float]:
    """Scores of forecasts after each history, as `TITLES` names them.

    "outside" is the number of series whose coverage lies outside the binomial band of 99 %. Widths and interval scores
    leave out series without bounds, and the coverage counts their values as outside.
    """
    scale = np.array([_scale(history, table.season) for history in table.histories])
    errors, inside, widths, scores = [], [], [], []
    for index, actual in enumerate(table.actual):
        missed = np.abs(actual - forecast[index]) / scale[index]
        below = np.maximum(lower[index] - actual, 0.0)
        above = np.maximum(actual - upper[index], 0.0)
        width = upper[index] - lower[index]
        errors.append(missed)
        inside.append((actual >= lower[index]) & (actual <= upper[index]))
        widths.append(width / scale[index])
        scores.append((width + 2.0 / (1.0 - LEVEL) * (below + above)) / scale[index])
    steps = np.concatenate([np.arange(len(actual)) % table.horizon for actual in table.actual])
    third = np.minimum(3 * steps // table.horizon, 2)
    within = np.concatenate(inside)
    parts = {name: _mean(within[third == place]) for place, name in enumerate(("first", "middle", "last"))}
    return {
        "mase": _mean(np.concatenate(errors)),
        "coverage": _mean(within),
        **parts,
        "width": _mean(np.concatenate(widths)),
        "interval_score": _mean(np.concatenate(scores)),
        "outside": float(sum(_is_outside(part) for part in inside)),
    }


def _mean(values: np.ndarray) -> float:
    """The mean of the values that are not NaN; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _scale(history: np.ndarray, season: int) -> float:
    """Seasonal error of a history; of its steps if it is too short, or repeats its season."""
    if len(history) > season:
        scale = float(seasonal_error(history[None], season)[0])
        if scale > 0:
            return scale
    return max(float(seasonal_error(history[None], 1)[0]), 1e-9)


def _is_outside(inside: np.ndarray) -> bool:
    """Whether a share of values is too low or too high for chance, if values were independent."""
    # imported on use: scipy takes long to import
    from scipy.stats import binom

    low, high = binom.ppf((_BAND / 2, 1 - _BAND / 2), len(inside), LEVEL)
    return not low <= inside.sum() <= high


def _forecast_by_toa(
    table: UserTable, seed: int, options: Mapping[str, Any]
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray], dict[str, Any]]:
    """Forecasts and bounds of each series, and the weights of the methods."""
    if table.alone:
        alone = [_forecast_panel(_alone(table, index), seed, options) for index in range(len(table.histories))]
        forecast, lower, upper, _ = zip(*alone, strict=True)
        return [part[0] for part in forecast], [part[0] for part in lower], [part[0] for part in upper], {}
    return _forecast_panel(table, seed, options)


def _alone(table: UserTable, index: int) -> UserTable:
    return replace(
        table, histories=(table.histories[index],), actual=(table.actual[index],), together=True, alone=False
    )


def _forecast_panel(
    table: UserTable, seed: int, options: Mapping[str, Any]
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray], dict[str, Any]]:
    model = Forecaster(
        horizon=table.horizon,
        interval=LEVEL,
        seed=seed,
        season=table.season,
        id=None if table.together else "series",
        **options,
    )
    with warnings.catch_warnings():
        # a series that is too short for an interval: its coverage shows it
        warnings.simplefilter("ignore", UserWarning)
        model.fit(_frame(table, 0))
        windows = len(table.actual[0]) // table.horizon
        predictions = [model.predict(None if place == 0 else _frame(table, place)) for place in range(windows)]
    count = len(table.histories)
    names = [f"s{index:04d}" for index in range(count)]
    parts: list[list[np.ndarray]] = []
    for suffix in ("", "_lower", "_upper"):
        rows = [_columns(prediction, names, suffix, table) for prediction in predictions]
        parts.append([np.concatenate([window[index] for window in rows]) for index in range(count)])
    assert model.choice_ is not None
    weights = {name: round(weight, 4) for name, weight in model.choice_.ensemble.weights.items()}
    return parts[0], parts[1], parts[2], {"weights": weights}


def _columns(prediction: pd.DataFrame, names: list[str], suffix: str, table: UserTable) -> list[np.ndarray]:
    """The forecasts of each series, or their bounds; NaN without bounds."""
    if table.together:
        missing = np.full(table.horizon, np.nan)
        return [prediction[name + suffix].to_numpy() if name + suffix in prediction else missing for name in names]
    column = "value" + suffix
    if column not in prediction:
        return [np.full(table.horizon, np.nan) for _ in names]
    by_series = prediction.groupby("series", sort=False)[column]
    return [by_series.get_group(name).to_numpy() for name in names]


def _frame(table: UserTable, windows: int) -> pd.DataFrame:
    """The histories with the actual values of the first windows, as a user's table."""
    ahead = windows * table.horizon
    series = [
        np.concatenate([history, actual[:ahead]]) for history, actual in zip(table.histories, table.actual, strict=True)
    ]
    names = [f"s{index:04d}" for index in range(len(series))]
    if table.together:
        frame = pd.DataFrame(dict(zip(names, series, strict=True)))
        frame.insert(0, "time", pd.date_range("2015-01-01", periods=len(frame), freq=table.freq))
        return frame
    longest = max(map(len, series))
    times = pd.date_range("1750-01-01", periods=longest, freq=table.freq)
    parts = [
        pd.DataFrame({"series": name, "time": times[longest - len(values) :], "value": values})
        for name, values in zip(names, series, strict=True)
    ]
    return pd.concat(parts, ignore_index=True)


def _forecast_by_baseline(table: UserTable, method: str) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """A baseline, with the interval of normal errors whose variance grows by one seasonal step after another.

    The variance is that of the seasonal differences of the history, as textbooks have it for the seasonal naive
    forecast (Hyndman and Athanasopoulos, Forecasting: principles and practice, section 5.5).
    """
    quantile = NormalDist().inv_cdf((1 + LEVEL) / 2)
    forecasts, lower, upper = [], [], []
    steps = np.arange(table.horizon)
    for history, actual in zip(table.histories, table.actual, strict=True):
        parts: list[np.ndarray] = []
        halves: list[np.ndarray] = []
        for first in range(0, len(actual), table.horizon):
            past = np.concatenate([history, actual[:first]])
            parts.append(_baseline(method)(past[None], season=table.season, horizon=table.horizon)[0])
            season = table.season if len(past) > 2 * table.season else 1
            deviation = float(np.sqrt(np.mean((past[season:] - past[:-season]) ** 2)))
            halves.append(quantile * deviation * np.sqrt(steps // season + 1))
        forecast = np.concatenate(parts)
        half = np.concatenate(halves)
        forecasts.append(forecast)
        lower.append(forecast - half)
        upper.append(forecast + half)
    return forecasts, lower, upper


def _baseline(name: str) -> Baseline:
    return BASELINES[name] if name in BASELINES else SPECIAL_BASELINES[name].forecast


# real sets


def _collection(name: str, series: int, parts: int = 1) -> Loader:
    """Some series of a collection, spread evenly over it, with the last values of the collection."""

    def load(data_dir: Path | None) -> UserTable:
        collection = load_collection(name, data_dir)
        chosen = np.unique(np.linspace(0, len(collection.train) - 1, series).astype(int))
        whole = collection.joined()
        horizon = collection.spec.horizon
        cut = horizon * parts
        values = [_without_gaps(whole.values[index][:, 0]) for index in chosen]
        return UserTable(
            histories=tuple(row[:-cut] for row in values),
            actual=tuple(row[-cut:] for row in values),
            horizon=horizon,
            season=collection.spec.season,
            freq=collection.spec.freq,
        )

    return load


def _without_gaps(values: np.ndarray) -> np.ndarray:
    """Each missing value is the last one before it."""
    return pd.Series(values).ffill().bfill().to_numpy()


def _columns_of(values: np.ndarray, *, horizon: int, season: int, freq: str, windows: int) -> UserTable:
    """The columns of an array (T, C), with windows at its end."""
    cut = horizon * windows
    columns = np.ascontiguousarray(values.T.astype(np.float64))
    return UserTable(
        histories=tuple(columns[:, :-cut]),
        actual=tuple(columns[:, -cut:]),
        horizon=horizon,
        season=season,
        freq=freq,
        together=True,
    )


def _dataset(name: str, *, rows: int, step: int, columns: int, **parts: Any) -> Loader:
    """The last rows of a set of the catalogue, each `step`-th, and its first columns."""

    def load(data_dir: Path | None) -> UserTable:
        spec = DATASETS[name]
        panel: Panel = read_dataset(spec, locate(spec, data_dir))
        return _columns_of(panel.values[0][::step][-rows:, :columns], **parts)

    return load


SETS.register("tourism monthly")(_collection("Tourism-Monthly", 100))
SETS.register("hospital")(_collection("Hospital", 200))
SETS.register("M3 monthly")(_collection("M3-Monthly", 150))
SETS.register("M4 weekly")(_collection("M4-Weekly", 160))
SETS.register("M4 hourly")(_collection("M4-Hourly", 50))
SETS.register("NN5")(_collection("NN5-Daily", 50))
SETS.register("EIA930, 10 columns")(
    _dataset("EIA930", rows=4_000, step=1, columns=10, horizon=24, season=24, freq="h", windows=12)
)
SETS.register("weather, hourly")(
    _dataset("Weather", rows=4_000, step=6, columns=10, horizon=24, season=24, freq="h", windows=12)
)
SETS.register("ETTh1")(_dataset("ETTh1", rows=4_000, step=1, columns=7, horizon=24, season=24, freq="h", windows=12))
SETS.register("exchange rates")(
    _dataset("Exchange", rows=3_000, step=1, columns=8, horizon=30, season=1, freq="D", windows=12)
)
SETS.register("Favorita, 40 columns")(
    _dataset("Favorita", rows=1_600, step=1, columns=40, horizon=14, season=7, freq="D", windows=5)
)


# made sets


@SETS.register("growth")
def growth(data_dir: Path | None) -> UserTable:
    """Monthly series that grow by 0.5 to 4 % per month, with a season and errors of 5 % of the level."""
    random = np.random.default_rng(_SEED)
    rows = 96 + 12
    steps = np.arange(rows)
    series = []
    for _ in range(180):
        rate = random.uniform(0.005, 0.04)
        season = random.normal(0.0, 0.1, 12)[steps % 12]
        series.append(100.0 * np.exp(rate * steps + season + random.normal(0.0, 0.05, rows)))
    return _made(series, horizon=12, season=12, freq="MS")


@SETS.register("random walk")
def random_walk(data_dir: Path | None) -> UserTable:
    """Daily random walks."""
    random = np.random.default_rng(_SEED + 1)
    series = [100.0 + random.normal(0.0, 1.0, 314).cumsum() for _ in range(150)]
    return _made(series, horizon=14, season=7, freq="D")


@SETS.register("intermittent counts")
def intermittent(data_dir: Path | None) -> UserTable:
    """Daily demand that is zero on most days: 5 to 40 % of the days have a sale of some pieces."""
    random = np.random.default_rng(_SEED + 2)
    series = []
    for _ in range(150):
        days = random.random(314) < random.uniform(0.05, 0.4)
        series.append(np.where(days, 1.0 + random.poisson(random.uniform(0.5, 4.0), 314), 0.0))
    return _made(series, horizon=14, season=7, freq="D")


@SETS.register("12 rows")
def twelve_rows(data_dir: Path | None) -> UserTable:
    """The last 12 years of yearly series of M3, each a table of its own: nine to fit, three to forecast."""
    collection = load_collection("M3-Yearly", data_dir).joined()
    chosen = np.unique(np.linspace(0, len(collection) - 1, 60).astype(int))
    series = [collection.values[index][-12:, 0] for index in chosen]
    return replace(_made(series, horizon=3, season=1, freq="YS"), alone=True)


def _made(series: list[np.ndarray], *, horizon: int, season: int, freq: str) -> UserTable:
    return UserTable(
        histories=tuple(row[:-horizon] for row in series),
        actual=tuple(row[-horizon:] for row in series),
        horizon=horizon,
        season=season,
        freq=freq,
    )
