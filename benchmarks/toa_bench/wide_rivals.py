"""Rivals without a network for the protocol toa-wide: the same splits, scales and windows, settings by validation.

    data = load_data(plan, "PEMS08-Last40", horizon=12)
    RIVALS["all-channels"](data)             # errors of the test and the validation windows, and what was chosen

Alphabet: B windows of a batch, L look-back, P horizon, C channels, T rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toa._checks import ArgumentError
from toa._registry import Registry
from toa.data import ForecastData, Windows
from toa.data.tables import read_dataset
from toa.estimators.component_ridge import TrainingRows, fit_component_ridge
from toa.training import TASKS
from toa.training.forecast import evaluation_batches
from toa_bench.wide import Setting, WidePlan, make_job

# windows of validation at which seasons are compared, at most
_SEASON_WINDOWS = 500
# values of windows that are forecast together
_BLOCK_VALUES = 8_000_000

Forecast = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class RivalData:
    """Windows that all systems of the plan have, and the standardised rows (T, C) that they are cut from.

    Attributes:
        border: First row of validation.
        stop: First row of the test.
    """

    windows: ForecastData
    rows: np.ndarray
    border: int
    stop: int


def load_data(plan: WidePlan, dataset: str, horizon: int, data_dir: Path | None = None) -> RivalData:
    """The data of a run of the plan."""
    setting = Setting(rate=plan.rates[0], instance_norm=plan.norms[0])
    system = next(iter(plan.systems))
    job = make_job(plan, dataset, system, setting, horizon=horizon, seed=plan.seeds[0], test=True)
    config = job.config
    windows: ForecastData = TASKS["forecast"].load(config, torch.device("cpu"), data_dir)
    assert windows.spec is not None
    rows = windows.scaler.transform(read_dataset(windows.spec, windows.path).values[0])
    if config.clip is not None:
        rows = rows.clip(-config.clip, config.clip)
    return RivalData(windows=windows, rows=rows, border=windows.segments.train.stop, stop=windows.segments.val.stop)


Rival = Callable[[RivalData], dict[str, Any]]
RIVALS: Registry[Rival] = Registry("rival")


def measure(forecast: Forecast, windows: Windows, *, stride: int = 1) -> dict[str, float]:
    """Errors of all windows, or of every second, third, … one."""
    squares = 0.0
    sizes = 0.0
    count = 0
    for x, y in _batches(windows, stride):
        missed = forecast(x) - y
        squares += float(np.square(missed).sum())
        sizes += float(np.abs(missed).sum())
        count += missed.size
    return {"mse": squares / count, "mae": sizes / count}


def _batches(windows: Windows, stride: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    size = max(1, _BLOCK_VALUES // ((windows.lookback + windows.horizon) * windows.channels))
    if stride == 1:
        batches = ((x, y) for x, y, *_ in evaluation_batches(windows, size))
    else:
        index = torch.arange(0, len(windows), stride)
        batches = ((batch.x, batch.y) for batch in map(windows.batch, index.split(size)))
    for x, y in batches:
        yield x.double().numpy(), y.double().numpy()


def _errors(forecast: Forecast, data: ForecastData) -> dict[str, float]:
    """Errors of test and validation."""
    validation = {f"val_{name}": value for name, value in measure(forecast, data.val).items()}
    return measure(forecast, data.test) | validation


@RIVALS.register("seasonal-naive")
def seasonal_naive(data: RivalData) -> dict[str, Any]:
    """Repeat the last season of the look-back; validation chooses the steps of a season, 1 for the last value."""
    validation = data.windows.val
    stride = -(-len(validation) // _SEASON_WINDOWS)

    def repeat(season: int) -> Forecast:
        ahead = np.arange(validation.horizon) % season - season
        return lambda x: x[:, ahead]

    seasons = range(1, validation.lookback + 1)
    errors = {season: measure(repeat(season), validation, stride=stride)["mse"] for season in seasons}
    best = min(errors, key=errors.__getitem__)
    return {"metrics": _errors(repeat(best), data.windows), "chosen": {"season": best}}


@RIVALS.register("own-lags")
def own_lags(data: RivalData) -> dict[str, Any]:
    """A ridge regression of each channel on its own look-back, drawn to the map that fits all channels."""
    return _ridge(data, with_components=False)


@RIVALS.register("all-channels")
def all_channels(data: RivalData) -> dict[str, Any]:
    """The same with principal components of the last 12 rows of all channels, if validation prefers them."""
    return _ridge(data, with_components=True)


def _ridge(data: RivalData, *, with_components: bool) -> dict[str, Any]:
    windows = data.windows
    begins = np.zeros(windows.channels, dtype=np.int64)
    part = TrainingRows(values=data.rows[: data.stop], begins=begins, border=data.border)
    # trained on the training rows alone, like the networks
    ridge = fit_component_ridge(
        [part],
        horizon=windows.test.horizon,
        season=1,
        lags=windows.test.lookback,
        with_components=with_components,
        refit=False,
    )
    if ridge is None:
        raise ArgumentError(windows.name, "have windows to fit to", f"{len(windows.train)} in training")
    chosen = {"lags": len(ridge.back), "components": len(ridge.shared), **ridge.strengths}
    return {"metrics": _errors(ridge.predict, windows), "chosen": chosen}
