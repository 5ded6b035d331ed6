"""Forecasts of a table by the pretrained model, without a fit.

    toa.zero_shot(frame, horizon=24, interval=0.8)           # a frame like that of Forecaster.predict
    model = toa.fine_tune(frame, horizon=24)      # weights trained further on the series of a table
    toa.zero_shot(frame, horizon=24, model=model)

Alphabet: S series, C columns, N one per series and column, L context, P horizon, Q levels.
"""

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toa._checks import ArgumentError, check_at_most, check_count, check_positive, check_seed
from toa.data.frames import check_results, forecast_names, read_panel, write_forecast
from toa.data.frequency import Frequency, season_of
from toa.data.panel import Panel
from toa.estimators.baselines import choose_season
from toa.estimators.origins import SeriesList
from toa.estimators.pretrained_forecasts import (
    InferenceOptions,
    check_horizon,
    forecast_quantiles,
    interpolate_levels,
    short_series,
)
from toa.estimators.units import find_counts
from toa.models.pretrained import DEFAULT_NAME, PretrainedForecaster, find_pretrained, model_to_fill, shipped_names
from toa.training.distributed import resolve_device
from toa.training.pretraining import Pretraining, PretrainingConfig

# differences of levels that are rounding
_ROUNDING = 1e-9
Model = PretrainedForecaster | str | Path | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ZeroShotForecast:
    """A forecast, and what was read.

    Attributes:
        panel: The rows that were read; NaN has no part in them, see `Panel.observed`.
        columns: Columns that are forecast.
        season: Steps of a season.
        table: The forecast, a frame or array like the data.
        model: The model that was used.
    """

    panel: Panel
    columns: tuple[str, ...]
    season: int
    table: Any
    model: PretrainedForecaster


def zero_shot(
    data: Any,
    horizon: int,
    *,
    interval: float | None = 0.8,
    quantiles: Sequence[float] = (),
    model: Model = None,
    id: str | None = None,
    time: str | None = None,
    values: Sequence[str] | None = None,
    freq: Frequency | None = None,
    season: int | None = None,
    missing_values: float | Sequence[float] | None = None,
    day_first: bool | None = None,
    time_zone: str | None = None,
    options: InferenceOptions | None = None,
    device: str = "auto",
) -> Any:
    """Forecast the next steps of each series by the pretrained model, without a fit.

    Each column of each series is forecast by its own past values. Missing values and rows are left out by the model,
    so they need not be filled. A column that holds only 0, 1, 2, … has forecasts of at least 0.

    Args:
        data: A pandas, polars or arrow frame, an array (T,) or (T, C), or a list of arrays.
        horizon: Steps to forecast, at most four times the horizon of the model. Steps beyond that horizon are
            forecast after each of its quantiles.
        interval: Probability of an interval around each forecast, at most 0.8; None for none.
        quantiles: Levels to forecast too, from 0.1 to 0.9.
        model: A model, a folder that `save_pretrained` wrote, or the name of shipped weights; None takes the default.
        id: Id column of a frame with several series.
        time: Time column; None finds it.
        values: Columns to forecast; None for all others.
        freq: Frequency of the times; None infers it.
        season: Steps of a season, such as 24 for hours; None takes it from the frequency, or finds it.
        missing_values: Numbers that mean a missing value, such as -9999.
        day_first: Whether the day comes first in dates such as 01/02/2015; None finds it.
        time_zone: Time zone of the dates, such as "Europe/Rome"; None leaves them unchanged.
        options: How forecasts are computed; None takes what was chosen with the weights.
        device: "auto", "cpu", "cuda" or "cuda:N".

    Returns:
        A frame like data: ids, times, and for each column its median, with "_lower" and "_upper" for the interval and
        "_q0.1" for a quantile. For arrays see `toa.Forecaster.predict`.

    Raises:
        ValueError: If data cannot be read, the horizon or the interval is too large, or there are no weights.
    """
    source: dict[str, Any] = {
        "id": id,
        "time": time,
        "values": values,
        "freq": freq,
        "day_first": day_first,
        "time_zone": time_zone,
        "missing_values": missing_values,
    }
    return forecast_table(
        data,
        horizon,
        interval=interval,
        quantiles=quantiles,
        model=model,
        source=source,
        season=season,
        options=options,
        device=device,
    ).table


def forecast_table(
    data: Any,
    horizon: int,
    *,
    interval: float | None,
    quantiles: Sequence[float],
    model: Model,
    source: dict[str, Any],
    season: int | None = None,
    options: InferenceOptions | None = None,
    device: str = "auto",
) -> ZeroShotForecast:
    """See `zero_shot`; `source` has the arguments of `toa.data.read_panel`."""
    if season is not None:
        check_count("season", season, 1)
    forecaster = load_to_forecast(model, resolve_device(device))
    check_horizon(forecaster, horizon)
    levels = _levels(interval, quantiles)
    _check_levels(forecaster, interval, quantiles)
    panel = read_panel(data, missing="ffill", late_columns=True, **source)
    columns = panel.columns
    names = forecast_names(columns, quantiles, interval is not None)
    check_results(panel, names if panel.time_column else ["step", *names])
    steps = choose_season(season, season_of(panel.freq), panel.histories(columns))
    series = series_of(panel)
    short = short_series(forecaster, series, horizon, steps, options)
    if short:
        _warn_of_short(short, len(series), forecaster.facts["training"]["least_context"])
    trained = forecast_quantiles(forecaster, series, horizon, season=steps, options=options)
    forecasts = interpolate_levels(trained, forecaster.config.quantiles, levels)  # (N, P, levels)
    parts = _parts(forecasts, panel, interval is not None)
    return ZeroShotForecast(
        panel=panel,
        columns=columns,
        season=steps,
        table=write_forecast(panel, parts, horizon, columns, quantiles),
        model=forecaster,
    )


def _warn_of_short(lengths: Sequence[int], count: int, least: int) -> None:
    """Name the series that the model has seen nothing like."""
    which = f"{len(lengths)} of {count} series are" if count > 1 else "the series is"
    rows = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    text = (
        f"{which} shorter than the {least} steps that the pretrained model was trained on (rows before they are "
        f"resampled: {rows}); the forecast may be worse than the last value: compare with toa.Forecaster."
    )
    warnings.warn(text, stacklevel=4)


def _levels(interval: float | None, quantiles: Sequence[float]) -> list[float]:
    """Levels to forecast: the median, the ends of the interval, and the quantiles."""
    for name, level in (("interval", interval), *(("quantiles", level) for level in quantiles)):
        if level is not None and not 0.0 < level < 1.0:
            raise ArgumentError(name, "lie in (0, 1)", level, "give a probability such as 0.8")
    ends = [] if interval is None else [0.5 - interval / 2, 0.5 + interval / 2]
    return [0.5, *ends, *quantiles]


def _check_levels(model: PretrainedForecaster, interval: float | None, quantiles: Sequence[float]) -> None:
    """Raise ValueError for levels beyond those of the model, before the data are read."""
    low, *_, high = model.config.quantiles
    widest = high - low
    if interval is not None and interval > widest + _ROUNDING:
        raise ArgumentError(
            "interval", f"be at most {widest:g}, that of the pretrained model", interval, "use toa.Forecaster"
        )
    for level in quantiles:
        if not low - _ROUNDING <= level <= high + _ROUNDING:
            rule = f"lie between {low:g} and {high:g}, those of the pretrained model"
            raise ArgumentError("quantiles", rule, level, "use toa.Forecaster")


def _parts(forecasts: np.ndarray, panel: Panel, interval: bool) -> dict[str, np.ndarray]:
    """Forecasts (N, P, levels) as arrays (S, P, C) and (S, P, Q, C)."""
    shaped = forecasts.reshape(len(panel), len(panel.columns), *forecasts.shape[1:])  # (S, C, P, levels)
    # forecasts of counts are at least 0
    floor = np.where(find_counts(panel, panel.columns), 0.0, -np.inf)
    shaped = np.maximum(shaped.transpose(0, 2, 3, 1), floor)  # (S, P, levels, C)
    first = 3 if interval else 1
    parts = {"forecast": shaped[:, :, 0]}
    if interval:
        parts |= {"lower": shaped[:, :, 1], "upper": shaped[:, :, 2]}
    if shaped.shape[2] > first:
        parts["quantiles"] = shaped[:, :, first:]
    return parts


def series_of(panel: Panel) -> list[np.ndarray]:
    """Values of each series and column, the columns of a series adjacent; NaN where the table has none."""
    series = []
    for index, values in enumerate(panel.observed(panel.columns)):
        for column in range(values.shape[1]):
            begin = 0 if panel.begins is None else int(panel.begins[index][column])
            series.append(values[begin:, column])
    return series


def load_pretrained(model: Model = None) -> PretrainedForecaster:
    """A model by name or folder, on the CPU, or the default one; a given model is returned.

    Raises:
        ValueError: If there is no such model, or no weights are part of this version.
    """
    if isinstance(model, PretrainedForecaster):
        return model
    folder, shipped = _find_folder(model)
    return _load_once(folder) if shipped else PretrainedForecaster.from_pretrained(folder)


def load_to_forecast(model: Model, device: torch.device) -> PretrainedForecaster:
    """A copy of a model on a device, see `on_device`; shipped ones are copied once."""
    if isinstance(model, PretrainedForecaster):
        return on_device(model, device)
    folder, shipped = _find_folder(model)
    return _copy_once(folder, device) if shipped else on_device(PretrainedForecaster.from_pretrained(folder), device)


def on_device(model: PretrainedForecaster, device: torch.device) -> PretrainedForecaster:
    """A copy on a device; in float64 on a CPU, so that a forecast does not depend on the series computed with it."""
    copy = model_to_fill(model.config, facts=model.facts)
    copy.load_state_dict(model.state_dict())
    return copy.eval().to(device, torch.float64 if device.type == "cpu" else torch.float32)


def _find_folder(model: str | Path | None) -> tuple[Path, bool]:
    """The folder of a model, and whether it is part of this version.

    Raises:
        ValueError: If no model is named, and none is part of this version.
    """
    names = shipped_names()
    if model is None and DEFAULT_NAME not in names:
        raise ArgumentError(
            "model",
            "be given, because no weights are part of this version of toa",
            None,
            "name a folder that save_pretrained wrote, or use toa.Forecaster",
        )
    name = DEFAULT_NAME if model is None else str(model)
    return find_pretrained(name), name in names


@functools.cache
def _load_once(folder: Path) -> PretrainedForecaster:
    return PretrainedForecaster.from_pretrained(folder)


@functools.cache
def _copy_once(folder: Path, device: torch.device) -> PretrainedForecaster:
    return on_device(_load_once(folder), device)


def fine_tune(
    data: Any,
    horizon: int,
    *,
    model: Model = None,
    steps: int = 200,
    batch_size: int = 32,
    learning_rate: float = 1e-4,
    seed: int = 2024,
    device: str = "auto",
    **source: Any,
) -> PretrainedForecaster:
    """Train a pretrained model further on the series of a table; a new model is returned.

    The last `horizon` rows of each series are held out. `facts["fine_tuning"]` of the result has the pinball loss
    there, before and after, divided by the mean distance of these rows from the last value before them.

    Args:
        data: A table as for `zero_shot`; at least one series has more than twice the horizon of rows.
        horizon: Steps that matter, at most that of the model.
        steps: Batches to train.
        learning_rate: Highest rate, small so that what was learned is kept.
        source: Further arguments of `zero_shot` that state how the table is read: id, time, values, freq, day_first,
            time_zone.
    """
    before = load_pretrained(model)
    check_count("horizon", horizon, 1)
    check_at_most("horizon", horizon, "that of the pretrained model", before.config.horizon, "train for fewer steps")
    check_count("steps", steps, 1)
    check_count("batch_size", batch_size, 1)
    check_positive("learning_rate", learning_rate)
    check_seed(seed)
    panel = read_panel(data, missing="ffill", late_columns=True, **source)
    series = series_of(panel)
    training = [values[:-horizon] for values in series if len(values) > 2 * horizon]
    if not training:
        longest = max(map(len, series))
        rule = f"have a series with more than 2 horizon = {2 * horizon} rows to train on"
        raise ArgumentError("data", rule, f"at most {longest}", "use zero_shot")
    tuned = model_to_fill(before.config, facts=before.facts)
    tuned.load_state_dict(before.state_dict())
    tuned = tuned.to(resolve_device(device))
    config = PretrainingConfig(
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        warmup=max(1, steps // 10),
        decay=steps // 2,
        full_share=0.0,
        least_context=min(before.config.patch_len, before.config.context),
        horizon_exponent=0.0,
        precision="float32",
        seed=seed,
    )
    windows = UserWindows(training, before, horizon, batch_size, seed)
    run = Pretraining(tuned, config, windows, graph=False)
    for _ in range(steps):
        run.run_step()
    # finite weights, or an error
    run.log(0.0)
    result = run.result()
    losses = {
        "before": held_out_loss(before, series, horizon),
        "after": held_out_loss(result, series, horizon),
    }
    result.facts = {**before.facts, "fine_tuning": {"steps": steps, "horizon": horizon, **losses}}
    return result


class UserWindows:
    """Random windows of series, from the seed and the step alone; the part beyond a series is missing."""

    def __init__(
        self, series: SeriesList, model: PretrainedForecaster, horizon: int, batch_size: int, seed: int
    ) -> None:
        self._series = series
        self._context = model.config.context
        self._length = model.config.context + model.config.horizon
        self._horizon = horizon
        self._batch_size = batch_size
        self._seed = seed

    def __call__(self, step: int) -> Tensor:
        """Contexts and what follows them (B, L + P); steps after `horizon` are missing."""
        rng = np.random.default_rng((self._seed, step))
        windows = np.full((self._batch_size, self._length), np.nan)
        for row, index in enumerate(rng.integers(len(self._series), size=self._batch_size)):
            values = self._series[index]
            start = int(rng.integers(self._horizon, len(values)))
            past = values[max(0, start - self._context) : start]
            ahead = values[start : start + self._horizon]
            windows[row, self._context - len(past) : self._context] = past
            windows[row, self._context : self._context + len(ahead)] = ahead
        return torch.from_numpy(windows).float()


def held_out_loss(model: PretrainedForecaster, series: SeriesList, horizon: int) -> float:
    """Mean pinball loss of the last `horizon` values, in units of their mean distance from the value before them."""
    long_enough = [values for values in series if len(values) > horizon]
    quantiles = forecast_quantiles(model, [values[:-horizon] for values in long_enough], horizon)
    actual = np.stack([values[-horizon:] for values in long_enough])
    last = np.stack([values[:-horizon][np.isfinite(values[:-horizon])][-1:] for values in long_enough])
    level = np.asarray(model.config.quantiles)
    error = actual[..., None] - quantiles
    loss = 2.0 * np.maximum(level * error, (level - 1.0) * error)
    return float(np.nanmean(loss) / max(float(np.nanmean(np.abs(actual - last))), 1e-30))
