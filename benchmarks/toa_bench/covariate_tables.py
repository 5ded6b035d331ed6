"""Tables with covariates: errors of the forecaster with and without them, beside LightGBM with the same covariates.

evaluate("simulated load", "toa")     # {"metrics": {"mase": …, "coverage": …, …}, "cells": …, "cpu_seconds": …}

Each set has one to three parts: rows of a fit, and windows of one horizon after them that follow each other. All
methods are fitted once per part. Covariates are known in the forecast steps too, as by a perfect weather forecast, so
errors tell how well a method uses them. With `earlier`, a set has other parts, which end before the first scored row:
settings were chosen on these. Only `lightgbm_direct` and `lightgbm_recursive` need LightGBM.

Alphabet: T rows, P horizon, C columns, N windows, K covariates.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from toa._checks import check_choice
from toa._registry import Registry
from toa.data import DATASETS, load_collection, locate
from toa.data.tables import read_dataset
from toa.estimators import Forecaster
from toa_bench.lagged_trees import TableTrees, load_lightgbm
from toa_bench.user_tables import LEVEL, UserTable, score

METHODS = ("toa", "toa without covariates", "lightgbm direct", "lightgbm recursive", "seasonal naive")
LIMITED = METHODS[:2]
# methods that run only if they are named
RIVALS: tuple[str, ...] = ()
TITLES = {"mase": "MASE", "coverage": "coverage", "width": "width", "interval_score": "interval score"}
SCORES = tuple(TITLES)
HOURS = 24
# seeds of the made sets, of the scored rows and of those by which settings were chosen
_SEED = 47_001
_EARLIER_SEED = 47_002


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CovariateTable:
    """One part of a set: a table with a time column, and the rows at its end that are scored.

    Attributes:
        columns: Columns to forecast; all others but `time` are covariates.
        tested: Rows at the end that are scored, a multiple of the horizon.
        holidays: Country whose holidays are a covariate too.
        calendar: Whether the calendar is a covariate.
    """

    frame: pd.DataFrame
    columns: tuple[str, ...]
    tested: int
    horizon: int
    season: int
    holidays: str | None = None
    calendar: bool = False

    @property
    def covariates(self) -> list[str]:
        """Columns that are known in advance."""
        return [name for name in self.frame.columns if name not in ("time", *self.columns)]


Loader = Callable[[Path | None, bool], list[CovariateTable]]
SETS: Registry[Loader] = Registry("set")
KNOWN = SETS


def evaluate(
    dataset: str,
    method: str,
    *,
    data_dir: str | Path | None = None,
    seed: int = 2024,
    earlier: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Forecast a set by a method, and score the forecasts and their intervals of 80 %.

    Args:
        earlier: Whether to score the parts by which settings were chosen.
        options: Further parameters of `toa.Forecaster`.
    """
    check_choice("dataset", dataset, SETS)
    check_choice("method", method, METHODS)
    tables = SETS[dataset](None if data_dir is None else Path(data_dir), earlier)
    begin = time.process_time()
    results = [_FORECASTS[method](table, seed, options) for table in tables]
    seconds = round(time.process_time() - begin, 1)
    metrics = _scores(tables, results)
    cells = sum(table.tested * len(table.columns) for table in tables)
    rows = [len(table.frame) - table.tested for table in tables]
    facts: dict[str, Any] = {"metrics": metrics, "cells": cells, "fit_rows": rows, "seed": seed}
    if method in LIMITED:
        facts["weights"] = [result.weights for result in results]
    if method.startswith("lightgbm"):
        facts["lightgbm"] = load_lightgbm().__version__
    return {**facts, "cpu_seconds": seconds}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Forecasts:
    """Forecasts (N, P, C) of the windows of a part, and their bounds if there are any."""

    forecast: Float64[np.ndarray, "n p c"]
    lower: Float64[np.ndarray, "n p c"] | None = None
    upper: Float64[np.ndarray, "n p c"] | None = None
    weights: Mapping[str, float] | None = None


def _scores(tables: list[CovariateTable], results: list[_Forecasts]) -> dict[str, float]:
    """Scores of all parts together, as `TITLES` names them; those of intervals only if there are any."""
    histories, actual = [], []
    parts: dict[str, list[np.ndarray]] = {"forecast": [], "lower": [], "upper": []}
    for table, result in zip(tables, results, strict=True):
        values = table.frame[list(table.columns)].to_numpy(dtype=np.float64)
        missing = np.full_like(result.forecast, np.nan)
        for place in range(len(table.columns)):
            histories.append(values[: -table.tested, place])
            actual.append(values[-table.tested :, place])
            for name, kept in parts.items():
                part = getattr(result, name)
                kept.append((missing if part is None else part)[:, :, place].ravel())
    together = UserTable(
        histories=tuple(histories),
        actual=tuple(actual),
        horizon=tables[0].horizon,
        season=tables[0].season,
        freq="",
    )
    scores = score(together, parts["forecast"], parts["lower"], parts["upper"])
    wanted = SCORES if results[0].lower is not None else SCORES[:1]
    return {name: scores[name] for name in wanted}


def _by_toa(table: CovariateTable, seed: int, options: Mapping[str, Any], *, with_covariates: bool) -> _Forecasts:
    chosen: dict[str, Any] = {}
    frame = table.frame
    if with_covariates:
        chosen = {"covariates": table.covariates, "holidays": table.holidays, "calendar": table.calendar}
    else:
        frame = frame[["time", *table.columns]]
    model = Forecaster(
        horizon=table.horizon,
        interval=LEVEL,
        seed=seed,
        season=table.season,
        time="time",
        **chosen,
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.fit(frame[: -table.tested])
        tested = model.backtest(frame, test_size=table.tested, stride=table.horizon)
    weights = {name: round(weight, 4) for name, weight in model.weights_.items()}
    return _Forecasts(forecast=tested.forecast, lower=tested.lower, upper=tested.upper, weights=weights)


def _with_covariates(table: CovariateTable, seed: int, options: Mapping[str, Any]) -> _Forecasts:
    return _by_toa(table, seed, options, with_covariates=True)


def _without_covariates(table: CovariateTable, seed: int, options: Mapping[str, Any]) -> _Forecasts:
    return _by_toa(table, seed, options, with_covariates=False)


def _by_trees(table: CovariateTable, seed: int, *, recursive: bool) -> _Forecasts:
    """LightGBM, a model per column."""
    frame = table.frame
    values = frame[list(table.columns)].to_numpy(dtype=np.float64)
    covariates = [frame[name].to_numpy(dtype=np.float64) for name in table.covariates]
    if table.holidays is not None:
        covariates.append(_holidays(frame["time"], table.holidays))
    trees = TableTrees(
        covariates=np.stack(covariates, 1) if covariates else np.zeros((len(frame), 0)),
        times=pd.DatetimeIndex(frame["time"]),
        border=len(frame) - table.tested,
        horizon=table.horizon,
        season=table.season,
        seed=seed,
    )
    columns = [
        trees.recursive(values[:, place]) if recursive else trees.direct(values[:, place])
        for place in range(len(table.columns))
    ]
    return _Forecasts(forecast=np.stack(columns, 2))


def _by_direct_trees(table: CovariateTable, seed: int, options: Mapping[str, Any]) -> _Forecasts:
    return _by_trees(table, seed, recursive=False)


def _by_recursive_trees(table: CovariateTable, seed: int, options: Mapping[str, Any]) -> _Forecasts:
    return _by_trees(table, seed, recursive=True)


def _by_last_season(table: CovariateTable, seed: int, options: Mapping[str, Any]) -> _Forecasts:
    """The last season again, with the interval of normal errors, as in `toa bench tables`."""
    from toa_bench.user_tables import _forecast_by_baseline

    values = table.frame[list(table.columns)].to_numpy(dtype=np.float64)
    plain = UserTable(
        histories=tuple(values[: -table.tested].T),
        actual=tuple(values[-table.tested :].T),
        horizon=table.horizon,
        season=table.season,
        freq="",
    )
    parts = [
        np.stack([column.reshape(-1, table.horizon) for column in part], 2)
        for part in _forecast_by_baseline(plain, "seasonal naive")
    ]
    return _Forecasts(forecast=parts[0], lower=parts[1], upper=parts[2])


_FORECASTS: dict[str, Callable[[CovariateTable, int, Mapping[str, Any]], _Forecasts]] = {
    "toa": _with_covariates,
    "toa without covariates": _without_covariates,
    "lightgbm direct": _by_direct_trees,
    "lightgbm recursive": _by_recursive_trees,
    "seasonal naive": _by_last_season,
}


def _holidays(times: "pd.Series[Any]", country: str) -> np.ndarray:
    """1 on holidays, as the forecaster marks them."""
    from toa.estimators.covariates import Covariates

    return Covariates(holidays=country).features(pd.DatetimeIndex(times), np.zeros((len(times), 0)))[:, 0]


# Weather: solar radiation by hour

# covariates of the radiation: neither it nor what is computed from it (PAR), nor the second forms of these
_WEATHER = {"p (mbar)": "p", "T (degC)": "T", "rh (%)": "rh", "wv (m/s)": "wv", "rain (mm)": "rain"}
_RADIATION = "SWDR"
# where the parts end, as shares of the year
_WEATHER_ENDS = (0.70, 0.85, 1.0)
_WEATHER_EARLIER_ENDS = (0.45, 0.60)
# days that are scored of each part
_WEATHER_DAYS = 28


@SETS.register("Weather, radiation")
def weather(data_dir: Path | None, earlier: bool) -> list[CovariateTable]:
    """Hourly means of the radiation at Jena in 2020, with air pressure, temperature, humidity, wind and rain."""
    frame = _weather_hours(data_dir)
    ends = _WEATHER_EARLIER_ENDS if earlier else _WEATHER_ENDS
    return [_weather_part(frame, share) for share in ends]


def _weather_hours(data_dir: Path | None) -> pd.DataFrame:
    spec = DATASETS["Weather"]
    panel = read_dataset(spec, locate(spec, data_dir))
    # the encoding of the unit differs between copies
    radiation = next(name for name in panel.columns if name.startswith(_RADIATION))
    frame = pd.DataFrame(panel.values[0], columns=list(panel.columns))[[radiation, *_WEATHER]]
    frame = frame.rename(columns={radiation: "radiation", **_WEATHER})
    # -9999 means a missing value
    frame = frame.where(frame > -9_000.0).ffill()
    hours = len(frame) // 6
    frame = frame[: 6 * hours].groupby(np.arange(6 * hours) // 6).mean()
    frame.insert(0, "time", pd.date_range("2020-01-01", periods=hours, freq="h"))
    return frame


def _weather_part(frame: pd.DataFrame, end: float) -> CovariateTable:
    rows = int(len(frame) * end) // HOURS * HOURS
    tested = HOURS * _WEATHER_DAYS
    return CovariateTable(frame=frame[:rows], columns=("radiation",), tested=tested, horizon=HOURS, season=HOURS)


# a simulated load

_AREAS = 4
_FIT_DAYS = 365
_TEST_DAYS = 42
# share of the days that are holidays, beside weekends
_HOLIDAYS = 0.06
# degrees at which neither heating nor cooling is needed
_COMFORT = 16.0
# load per squared degree below and above, in percent of the mean
_HEATING = 0.06
_COOLING = 0.12
# change of the load on holidays at these hours, in percent: no work in the morning, cooking at noon
_HOLIDAY_BY_HOUR = {6: -8.0, 7: -15.0, 8: -20.0, 9: -18.0, 10: -10.0, 11: 4.0, 12: 8.0, 13: 6.0, 16: -6.0, 17: -10.0}
# deviation of the errors of an hour, in percent, and how much of an error is left in the next hour
_ERROR = 1.0
_MEMORY = 0.7


@SETS.register("simulated load")
def simulated_load(data_dir: Path | None, earlier: bool) -> list[CovariateTable]:
    """Hourly load of four areas: shape of the day, less on weekends, temperature in the form of a U, holidays by hour.

    Heating adds 0.06 % per squared degree below 16, cooling 0.12 % per squared degree above. Holidays change the load
    by -20 to +8 %, by the hour. Errors are an autoregression with deviation 1 % per step.
    """
    random = np.random.default_rng(_EARLIER_SEED if earlier else _SEED)
    days = _FIT_DAYS + _TEST_DAYS
    hours = np.arange(days * HOURS)
    hour = hours % HOURS
    day = hours // HOURS
    temperature = _temperature(random, hours)
    holiday = (random.random(days) < _HOLIDAYS).astype(float)[day]
    columns: dict[str, np.ndarray] = {}
    for area in range(_AREAS):
        shape = 12.0 * np.sin(2 * np.pi * (hour - 8 - area) / HOURS) + 6.0 * np.sin(4 * np.pi * (hour - 6) / HOURS)
        weekend = np.where(day % 7 >= 5, -8.0 - area, 0.0)
        below = np.maximum(_COMFORT - temperature, 0.0)
        above = np.maximum(temperature - _COMFORT, 0.0)
        weather_effect = (1.0 + 0.25 * area) * (_HEATING * below**2 + _COOLING * above**2)
        by_hour = np.array([_HOLIDAY_BY_HOUR.get(step, 0.0) for step in range(HOURS)])
        errors = _autoregression(random, len(hours), _MEMORY, _ERROR)
        drift = 2.0 * np.sin(2 * np.pi * day / 90.0 + area)
        percent = 100.0 + shape + weekend + weather_effect + holiday * by_hour[hour] + drift + errors
        columns[f"area{area + 1}"] = (50.0 + 10.0 * area) * percent / 100.0
    frame = pd.DataFrame({"time": pd.date_range("2023-01-02", periods=len(hours), freq="h"), **columns})
    frame["temperature"] = temperature
    frame["holiday"] = holiday
    return [
        CovariateTable(
            frame=frame, columns=tuple(columns), tested=_TEST_DAYS * HOURS, horizon=HOURS, season=HOURS, calendar=True
        )
    ]


def _temperature(random: np.random.Generator, hours: np.ndarray) -> np.ndarray:
    """Degrees by hour: the year, the day, and weather that changes over some days."""
    year = -11.0 * np.cos(2 * np.pi * hours / (365.25 * HOURS))
    day = 4.0 * np.sin(2 * np.pi * (hours % HOURS - 9) / HOURS)
    return np.asarray(14.0 + year + day + _autoregression(random, len(hours), 0.98, 0.9))


def _autoregression(random: np.random.Generator, count: int, memory: float, deviation: float) -> np.ndarray:
    shocks = random.normal(0.0, deviation, count)
    values = np.empty(count)
    last = 0.0
    for step in range(count):
        last = memory * last + shocks[step]
        values[step] = last
    return values


# EIA930: demand of ten balancing authorities, with the calendar

_EIA_COLUMNS = 10
_EIA_ROWS = 10_000
_EIA_DAYS = 28
# the first hour of the file at about the time of the middle of the USA: its weekends and holidays agree with this
_EIA_BEGIN = "2015-07-01 18:00"


@SETS.register("EIA930, calendar")
def eia930(data_dir: Path | None, earlier: bool) -> list[CovariateTable]:
    """Hourly demand of ten balancing authorities; covariates are the calendar and the holidays of the USA."""
    frame, columns = _eia_hours(data_dir)
    end = len(frame) - (_EIA_DAYS * HOURS if earlier else 0)
    part = frame[end - _EIA_ROWS : end].reset_index(drop=True)
    return [
        CovariateTable(
            frame=part,
            columns=columns,
            tested=_EIA_DAYS * HOURS,
            horizon=HOURS,
            season=HOURS,
            holidays="US",
            calendar=True,
        )
    ]


def _eia_hours(data_dir: Path | None) -> tuple[pd.DataFrame, tuple[str, ...]]:
    spec = DATASETS["EIA930"]
    values = read_dataset(spec, locate(spec, data_dir)).values[0][:, :_EIA_COLUMNS]
    columns = tuple(f"authority{place + 1}" for place in range(_EIA_COLUMNS))
    frame = pd.DataFrame(values.astype(np.float64), columns=list(columns))
    frame.insert(0, "time", pd.date_range(_EIA_BEGIN, periods=len(frame), freq="h"))
    return frame, columns


# covariates that are noise


def _noise(random: np.random.Generator, frame: pd.DataFrame) -> pd.DataFrame:
    """Three covariates that have nothing to do with the columns: a walk, days with a mark, and white noise."""
    rows = len(frame)
    marked = random.random(rows // 12 + 1) < 0.1
    return frame.assign(
        walk=random.normal(size=rows).cumsum(),
        mark=np.repeat(marked, 12)[:rows].astype(float),
        noise=random.normal(size=rows),
    )


@SETS.register("noise, EIA930")
def noise_demand(data_dir: Path | None, earlier: bool) -> list[CovariateTable]:
    """Five columns of EIA930 with covariates that are noise."""
    frame, columns = _eia_hours(data_dir)
    end = len(frame) - (_EIA_DAYS * HOURS if earlier else 0)
    part = frame[end - 4_000 : end].reset_index(drop=True)[["time", *columns[:5]]]
    part = _noise(np.random.default_rng(_EARLIER_SEED if earlier else _SEED), part)
    return [CovariateTable(frame=part, columns=columns[:5], tested=20 * HOURS, horizon=HOURS, season=HOURS)]


@SETS.register("noise, NN5")
def noise_cash(data_dir: Path | None, earlier: bool) -> list[CovariateTable]:
    """Daily withdrawals of twenty cash machines with covariates that are noise."""
    collection = load_collection("NN5-Daily", data_dir).joined()
    rows = [pd.Series(collection.values[index][:, 0]).ffill().bfill().to_numpy() for index in range(20)]
    least = min(map(len, rows)) - (112 if earlier else 0)
    columns = {f"machine{index + 1}": part[:least] for index, part in enumerate(rows)}
    frame = pd.DataFrame({"time": pd.date_range("1996-03-18", periods=least, freq="D"), **columns})
    frame = _noise(np.random.default_rng((_EARLIER_SEED if earlier else _SEED) + 10), frame)
    return [CovariateTable(frame=frame, columns=tuple(columns), tested=112, horizon=14, season=7)]


@SETS.register("noise, random walks")
def noise_walks(data_dir: Path | None, earlier: bool) -> list[CovariateTable]:
    """Ten daily random walks with covariates that are noise."""
    random = np.random.default_rng((_EARLIER_SEED if earlier else _SEED) + 20)
    columns = {f"walk{index + 1}": 100.0 + random.normal(size=1_000).cumsum() for index in range(10)}
    frame = _noise(random, pd.DataFrame({"time": pd.date_range("2020-01-01", periods=1_000, freq="D"), **columns}))
    return [CovariateTable(frame=frame, columns=tuple(columns), tested=210, horizon=14, season=7)]
