"""GIFT-Eval: its configurations whose data a data folder has, its scores, and a predictor with its interface.

    config = CONFIGS["m4_weekly/W/short"]
    result = evaluate(config, "toa")                  # MASE and weighted quantile loss, as the leaderboard has them
    GiftEvalPredictor(horizon=48, season=24).predict(entries)   # entries with "target", as GluonTS test data have

ETT data of all frequencies are means of the 15-minute file, without an incomplete last step. Windows lie at the end of
the series and do not overlap; a model is fitted once, to the rows before the first of them. The MASE of a window is
scaled by the history before it.

Alphabet: N series, K windows, P horizon, C columns, T rows, Q levels.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from toa._checks import check_choice
from toa.data import DATASETS, load_collection, locate, read_dataset
from toa.estimators import Forecaster
from toa.estimators.baselines import BASELINES, align_histories
from toa.estimators.ensemble import history_rows
from toa.tasks.metrics import score_forecasts, seasonal_error

LEVELS = tuple(round(0.1 * place, 1) for place in range(1, 10))
METHODS = ("toa", "toa-network", *BASELINES)
Table = Float64[np.ndarray, "t c"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A configuration of a leaderboard.

    Attributes:
        season: Steps of a season of MASE.
        windows: Number of windows K per series.
        load: Reads the series (T, C) from a data folder, None for the usual ones.
    """

    name: str
    horizon: int
    season: int
    windows: int
    load: Callable[[str | Path | None], list[Table]]


def _ett(rows: int, data_dir: str | Path | None) -> list[Table]:
    """The first ETT station, each step the mean of `rows` rows of 15 minutes."""
    spec = DATASETS["ETTm1"]
    values = read_dataset(spec, locate(spec, data_dir)).values[0]
    whole = len(values) // rows * rows
    return [values[:whole].reshape(-1, rows, values.shape[1]).mean(1)]


def _collection(name: str, data_dir: str | Path | None) -> list[Table]:
    return list(load_collection(name, data_dir).joined().values)


def _configs() -> Iterator[Config]:
    spans = {"15T": (1, 96, {"short": (48, 20), "medium": (480, 15), "long": (720, 10)})}
    spans["H"] = (4, 24, {"short": (48, 20), "medium": (480, 4), "long": (720, 3)})
    spans["D"] = (96, 1, {"short": (30, 3)})
    spans["W"] = (672, 1, {"short": (8, 2)})
    for freq, (rows, season, terms) in spans.items():
        for term, (horizon, windows) in terms.items():
            name = f"ett1/{freq}/{term}"
            yield Config(name=name, horizon=horizon, season=season, windows=windows, load=partial(_ett, rows))
    sets = {"m4_hourly/H": ("M4-Hourly", 48, 24), "m4_weekly/W": ("M4-Weekly", 13, 1)}
    sets |= {"m4_monthly/M": ("M4-Monthly", 18, 12), "m4_quarterly/Q": ("M4-Quarterly", 8, 4)}
    sets |= {"m4_yearly/A": ("M4-Yearly", 6, 1), "hospital/M": ("Hospital", 12, 12)}
    for name, (collection, horizon, season) in sets.items():
        load = partial(_collection, collection)
        yield Config(name=f"{name}/short", horizon=horizon, season=season, windows=1, load=load)


CONFIGS: Mapping[str, Config] = {config.name: config for config in _configs()}


def evaluate(config: Config, method: str, *, data_dir: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Forecast all windows of a configuration, and score them.

    Args:
        method: "toa", the default forecaster; "toa-network", its network alone; or a baseline.

    Returns:
        "mase", "wql", "mae", "rmse", "wape", "smape", "cpu_seconds" and, for "toa", "weights". A baseline has no
        quantiles, so its "wql" is that of its point forecast at every level.
    """
    check_choice("method", method, METHODS)
    series = config.load(data_dir)
    windows = [(values, origin) for values in series for origin in _origins(config, len(values))]
    begin = time.process_time()
    weights: dict[str, float] = {}
    quantiles: Any = None
    if method in BASELINES:
        histories = [column for values, origin in windows for column in values[:origin].T]
        rows = align_histories(histories, history_rows(config.season, config.horizon))
        point = BASELINES[method](rows, config.season, config.horizon)
        point = point.reshape(len(windows), -1, config.horizon).transpose(0, 2, 1)  # (N * K, P, C)
    else:
        tested = config.windows * config.horizon
        fixed = {"model": "auto" if method == "toa" else "toa", "season": config.season, "quantiles": LEVELS}
        model = Forecaster(config.horizon, **{**fixed, **options}).fit([values[:-tested] for values in series])
        found = model.backtest(list(series), test_size=tested, stride=config.horizon)
        point, quantiles, weights = found.forecast, found.quantiles, model.weights_
    seconds = time.process_time() - begin
    if quantiles is None:
        quantiles = np.repeat(point[:, :, None], len(LEVELS), axis=2)
    actual = np.stack([values[origin : origin + config.horizon] for values, origin in windows])  # (N * K, P, C)
    scale = np.stack([seasonal_error(values[:origin].T, config.season) for values, origin in windows])
    columns = tuple(map(str, range(actual.shape[2])))
    scores = score_forecasts(point, actual, columns=columns, scale=scale, quantiles=quantiles, levels=LEVELS).overall
    kept = {name: scores[name] for name in ("mase", "wql", "mae", "rmse", "wape", "smape")}
    return kept | {"cpu_seconds": round(seconds, 1)} | ({"weights": weights} if weights else {})


class GiftEvalPredictor:
    """A predictor with the interface that GIFT-Eval evaluates: `predict` of entries gives one forecast per entry.

    Args:
        season: Steps of a season; None finds it.
        options: Further parameters of `toa.Forecaster`.
    """

    def __init__(self, horizon: int, season: int | None = None, **options: Any) -> None:
        self.prediction_length = horizon
        self.season = season
        self.options = options

    def predict(self, entries: Iterable[Mapping[str, Any]], **_: Any) -> Iterator["QuantileForecast"]:
        """Fit to the targets (T,) of all entries, and forecast after each."""
        kept = list(entries)
        targets = [np.asarray(entry["target"], dtype=np.float64) for entry in kept]
        chosen = {"quantiles": LEVELS, "season": self.season, **self.options}
        found = Forecaster(self.prediction_length, **chosen).fit(targets).predict()
        for entry, one in zip(kept, found, strict=True):
            quantiles = {level: one["quantiles"][:, place, 0] for place, level in enumerate(LEVELS)}
            yield QuantileForecast(str(entry.get("item_id", "")), one["forecast"][:, 0], quantiles)


@dataclass(frozen=True, slots=True)
class QuantileForecast:
    """A forecast of P steps: the median as mean, and its quantiles by level."""

    item_id: str
    mean: Float64[np.ndarray, " p"]
    quantiles: Mapping[float, Float64[np.ndarray, " p"]]

    def quantile(self, level: float | str) -> Float64[np.ndarray, " p"]:
        """The quantile at a level."""
        at = round(float(level), 1)
        check_choice("level", str(at), [str(one) for one in self.quantiles])
        return self.quantiles[at]


def _origins(config: Config, rows: int) -> range:
    return range(rows - config.windows * config.horizon, rows, config.horizon)
