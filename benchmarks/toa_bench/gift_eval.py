"""GIFT-Eval, M3 and fev's task ETT_1H: the configurations whose data a data folder has, and their scores.

    evaluate(CONFIGS["m4_weekly/W/short"], "toa")["metrics"]   # MASE and other scores, as the leaderboards have them

ETT data of all frequencies are means of the 15-minute file, without an incomplete last step. Windows lie at the end of
the series and do not overlap; a model is fitted once, to the rows before the first of them. The MASE of a window is
scaled by the history before it. ETT_1H has both ETT stations, hourly, each with seven columns: 20 windows of 168 steps.

Alphabet: N series, K windows, P horizon, C columns, T rows, Q levels.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from jaxtyping import Float64

from toa._checks import check_choice
from toa.data import COLLECTIONS, DATASETS, load_collection, locate, read_dataset
from toa.estimators import Forecaster
from toa.estimators.baselines import BASELINES, align_histories
from toa.estimators.families import FAMILIES
from toa.estimators.lag_methods import TREES, fit_trees, history_rows
from toa.estimators.pretrained_forecasts import forecast_quantiles, interpolate_levels
from toa.estimators.zero_shot_tables import load_to_forecast
from toa.integrations.gift_eval import LEVELS
from toa.training.metrics import pinball_error, score_forecasts, seasonal_error

# the default forecaster, and the same without one family of methods
FORECASTERS = ("toa", "toa-without-trees", "toa-without-pretrained")
# the family that is left out
_LEFT_OUT = {"toa-without-trees": "trees", "toa-without-pretrained": "pretrained"}
# the pretrained model alone, without a fit
ZERO_SHOT = "toa-zero-shot"
METHODS = ("toa", "toa-network", TREES, *BASELINES, *_LEFT_OUT, ZERO_SHOT)
# columns of the leaderboard's all_results.csv
SCORES = {"MSE[mean]": "mse", "MSE[0.5]": "mse", "MAE[0.5]": "mae", "MASE[0.5]": "mase", "MAPE[0.5]": "mape"}
SCORES |= {"sMAPE[0.5]": "smape", "MSIS": "msis", "RMSE[mean]": "rmse", "NRMSE[mean]": "nrmse", "ND[0.5]": "wape"}
SCORES |= {"mean_weighted_sum_quantile_loss": "wql"}
# series and columns of fev's task ETT_1H
FEV_ITEMS = 2
FEV_TARGETS = ("HUFL", "HULL", "LUFL", "LULL", "MUFL", "MULL", "OT")
DOMAINS = {"ett1": ("Energy", 7), "hospital": ("Healthcare", 1)}
# probability outside the interval of MSIS
_OUTSIDE = 0.05
SeriesValues = Float64[np.ndarray, "t c"]
# series with the first row of each window
Windows = list[tuple[SeriesValues, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A configuration of a leaderboard.

    Attributes:
        season: Steps of a season of MASE.
        windows: Number of windows K per series.
        load: Reads the series (T, C) from a data folder, None for the usual ones.
        by_window: Whether WAPE and the weighted quantile loss are means over windows and columns, each divided by its
            own mean value, at least 1; or else over all values at once.
    """

    name: str
    horizon: int
    season: int
    windows: int
    load: Callable[[str | Path | None], list[SeriesValues]]
    by_window: bool = False

    def before_test(self, times: int) -> "Config":
        """The same with windows that end before the tested ones: the last `times` tested parts are left out.

        Settings may be chosen by them. Series without as many rows before these windows as in them are left out.
        """
        tested = self.windows * self.horizon

        def load(data_dir: str | Path | None) -> list[SeriesValues]:
            return [values[: -times * tested] for values in self.load(data_dir) if len(values) > (times + 2) * tested]

        return replace(self, name=f"{self.name}, {times} earlier", load=load)


def _ett(rows: int, data_dir: str | Path | None) -> list[SeriesValues]:
    """The first ETT station, each step the mean of `rows` rows of 15 minutes."""
    spec = DATASETS["ETTm1"]
    values = read_dataset(spec, locate(spec, data_dir)).values[0]
    whole = len(values) // rows * rows
    return [values[:whole].reshape(-1, rows, values.shape[1]).mean(1)]


def _hourly(data_dir: str | Path | None) -> list[SeriesValues]:
    specs = [DATASETS[name] for name in ("ETTh1", "ETTh2")]
    return [read_dataset(spec, locate(spec, data_dir)).values[0] for spec in specs]


def _collection(name: str, data_dir: str | Path | None) -> list[SeriesValues]:
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
    sets = {f"m4_{name.lower()}/{name[0]}": f"M4-{name}" for name in ("Hourly", "Weekly", "Monthly", "Quarterly")}
    for name, collection in (sets | {"m4_yearly/A": "M4-Yearly", "hospital/M": "Hospital"}).items():
        yield _collection_config(f"{name}/short", collection)


def _collection_config(name: str, collection: str) -> Config:
    spec = COLLECTIONS[collection]
    load = partial(_collection, collection)
    return Config(name=name, horizon=spec.horizon, season=spec.season, windows=1, load=load)


CONFIGS: Mapping[str, Config] = {config.name: config for config in _configs()}
# the M3 competition is no part of GIFT-Eval, and is measured by the same rules
M3 = tuple(_collection_config(name, name) for name in ("M3-Monthly", "M3-Quarterly", "M3-Yearly"))
ETT_1H = Config(name="ETT_1H", horizon=168, season=24, windows=20, load=_hourly, by_window=True)


def evaluate(config: Config, method: str, *, data_dir: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Forecast all windows of a configuration, and score them.

    Args:
        method: "toa", the default forecaster; "toa-without-trees", "toa-without-pretrained"; "toa-network" or
            "boosting", its network or trees alone; "toa-zero-shot", the shipped pretrained model; or a baseline.

    Returns:
        "metrics", "cpu_seconds" and wall time "fit_seconds" and "predict_seconds"; for forecasters also "weights".
        Boosting and baselines have no quantiles, so their "wql" is that of the point forecast at every level.
    """
    check_choice("method", method, METHODS)
    series = config.load(data_dir)
    tested = config.windows * config.horizon
    windows = [
        (values, origin) for values in series for origin in range(len(values) - tested, len(values), config.horizon)
    ]
    cpu = time.process_time()
    begin = time.monotonic()
    fitted = begin
    weights: dict[str, float] = {}
    quantiles: Any = None
    if method == ZERO_SHOT:
        point, quantiles = _zero_shot(config, windows)
    elif method in BASELINES or method == TREES:
        histories = [column for values, origin in windows for column in values[:origin].T]
        rows = align_histories(histories, history_rows(config.season, config.horizon))
        if method == TREES:
            past = align_histories([column for values in series for column in values[:-tested].T])
            trees = fit_trees(past, config.season, config.horizon)
            if trees is None:
                raise ValueError(f"boosting needs a series of at least 3 rows before the windows of {config.name}.")
            point = trees.predict(rows, config.horizon)
        else:
            point = BASELINES[method](rows, config.season, config.horizon)
        point = point.reshape(len(windows), -1, config.horizon).transpose(0, 2, 1)  # (N * K, P, C)
    else:
        kind = "auto" if method in FORECASTERS else "toa"
        fixed = {"model": kind, "season": config.season, "quantiles": LEVELS}
        with mock.patch.dict(FAMILIES):
            FAMILIES.pop(_LEFT_OUT.get(method, ""), None)
            model = Forecaster(config.horizon, **{**fixed, **options}).fit([values[:-tested] for values in series])
        fitted = time.monotonic()
        found = model.backtest(list(series), test_size=tested, stride=config.horizon)
        point, quantiles, weights = found.forecast, found.quantiles, model.weights_
    times = {"cpu_seconds": time.process_time() - cpu, "fit_seconds": fitted - begin}
    times["predict_seconds"] = time.monotonic() - fitted
    if quantiles is None:
        quantiles = np.repeat(point[:, :, None], len(LEVELS), axis=2)
    actual = np.stack([values[origin : origin + config.horizon] for values, origin in windows])  # (N * K, P, C)
    scale = np.stack([seasonal_error(values[:origin].T, config.season) for values, origin in windows])
    metrics = _scores(config, point, quantiles, actual, scale)
    shown = {name: round(value, 1) for name, value in times.items()}
    return {"metrics": metrics, **shown} | ({"weights": weights} if weights else {})


def _zero_shot(config: Config, windows: Windows) -> tuple[np.ndarray, np.ndarray]:
    """Medians (N * K, P, C) and quantiles (N * K, P, Q, C) of the shipped pretrained model, each column by itself."""
    model = load_to_forecast(None, torch.device("cpu"))
    histories = [column for values, origin in windows for column in values[:origin].T]
    levels = model.config.quantiles
    forecasts = interpolate_levels(
        forecast_quantiles(model, histories, config.horizon, season=config.season), levels, LEVELS
    )
    quantiles = forecasts.reshape(len(windows), -1, *forecasts.shape[1:]).transpose(0, 2, 3, 1)
    return quantiles[:, :, list(LEVELS).index(0.5)], quantiles


def gift_eval_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of `toa bench gift-eval` as a row of the leaderboard's all_results.csv."""
    metrics = record["metrics"]
    domain, variates = DOMAINS.get(record["config"].split("/")[0], ("Econ/Fin", 1))
    scores = {f"eval_metrics/{column}": metrics[name] for column, name in SCORES.items()}
    return {
        "dataset": record["config"],
        "model": record["method"],
        **scores,
        "domain": domain,
        "num_variates": variates,
    }


def _scores(
    config: Config, point: np.ndarray, quantiles: np.ndarray, actual: np.ndarray, scale: np.ndarray
) -> dict[str, float]:
    """Scores of forecasts (N * K, P, C) and quantiles (N * K, P, Q, C), as the leaderboards define them."""
    columns = tuple(map(str, range(actual.shape[2])))
    found = score_forecasts(point, actual, columns=columns, scale=scale, quantiles=quantiles, levels=LEVELS).overall
    scores = {name: found[name] for name in ("mase", "wql", "mae", "rmse", "wape", "smape")}
    error = np.abs(point - actual)
    size = np.abs(actual)
    unit = np.broadcast_to(np.where(scale > 0, scale, np.nan)[:, None], actual.shape)
    low = quantiles[:, :, :2]
    high = quantiles[:, :, -2:]
    # the bounds lie outside of the levels: the tails continue exponentially through the last two levels
    beyond = np.log(_OUTSIDE / 2 / LEVELS[0]) / np.log(LEVELS[1] / LEVELS[0])
    lower = low[:, :, 0] + beyond * (low[:, :, 1] - low[:, :, 0])
    upper = high[:, :, 1] - beyond * (high[:, :, 1] - high[:, :, 0])
    missed = np.maximum(lower - actual, 0) + np.maximum(actual - upper, 0)
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    loss = 2 * pinball_error(torch.from_numpy(quantiles), torch.from_numpy(actual), levels).mean(2).numpy()
    scores |= {"mse": scores["rmse"] ** 2, "nrmse": scores["rmse"] / float(size.mean())}
    scores["mape"] = float(np.nanmean(error / np.where(size > 0, size, np.nan)))
    scores["msis"] = float(np.nanmean((upper - lower + 2 / _OUTSIDE * missed) / unit))
    scores["sql"] = float(np.nanmean(loss / unit))
    if config.by_window:
        mean = partial(_mean_by_window, config.windows)
        least = np.maximum(mean(size), 1.0)
        scores |= {"wape": float((mean(error) / least).mean()), "wql": float((mean(loss) / least).mean())}
    return scores


def _mean_by_window(windows: int, values: Float64[np.ndarray, "nk p c"]) -> Float64[np.ndarray, "k c"]:
    return values.reshape(-1, windows, *values.shape[1:]).mean((0, 2))


def fev_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of `toa bench fev` as a row of the leaderboard; cells that only the package fev knows are empty."""
    metrics = record["metrics"]
    shift = ETT_1H.windows * ETT_1H.horizon
    return {
        "model_name": record["method"],
        "dataset_path": "autogluon/fev_datasets",
        "dataset_config": ETT_1H.name,
        "horizon": ETT_1H.horizon,
        "num_windows": ETT_1H.windows,
        "initial_cutoff": -shift,
        "window_step_size": ETT_1H.horizon,
        "min_context_length": 1,
        "max_context_length": "",
        "seasonality": ETT_1H.season,
        "eval_metric": "SQL",
        "extra_metrics": "['MASE', {'name': 'WAPE', 'epsilon': 1.0}, {'name': 'WQL', 'epsilon': 1.0}]",
        "quantile_levels": str(list(LEVELS)),
        "id_column": "id",
        "timestamp_column": "timestamp",
        "target": str(list(FEV_TARGETS)),
        "generate_univariate_targets_from": "",
        "known_dynamic_columns": "[]",
        "past_dynamic_columns": "[]",
        "static_columns": "[]",
        "task_name": ETT_1H.name,
        "test_error": metrics["sql"],
        "training_time_s": record["fit_s"],
        "inference_time_s": record["predict_s"],
        "num_forecasts": ETT_1H.windows * FEV_ITEMS * len(FEV_TARGETS),
        "dataset_fingerprint": "",
        "trained_on_this_dataset": False,
        "fev_version": "",
        **{column: metrics[column.lower()] for column in ("SQL", "MASE", "WAPE", "WQL")},
    }
