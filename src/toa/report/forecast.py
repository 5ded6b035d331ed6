"""Forecasts to look at: the end of what was seen, what comes next, and its interval."""

from collections.abc import Sequence

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# panels of one picture
PANELS = 12
# steps of the past for each step of the forecast
_PAST = 3
_BLUE, _ORANGE = "tab:blue", "tab:orange"


def draw_forecast(
    past: pd.DataFrame,
    forecast: pd.DataFrame,
    columns: Sequence[str],
    *,
    id: str | None = None,
    time: str | None = None,
    title: str = "",
) -> tuple[Figure, int]:
    """A panel for each series and column, and how many there are in all; one picture shows the first twelve.

    Args:
        past: Rows that the forecast goes on from.
        forecast: What `toa.Forecaster.predict` gave, with "_lower" and "_upper" beside a column if it has an interval.
        columns: What is forecast.
        id: Column of ids, if there are several series.
        time: Column of times, if there is one.
        title: Above all panels.
    """
    ids = [None] if id is None else list(pd.unique(forecast[id]))
    panels = [(one, column) for one in ids for column in columns]
    shown = panels[:PANELS]
    across = 1 if len(shown) < 3 else 2
    down = -(-len(shown) // across)
    figure = plt.figure(figsize=(11.0, 1.2 + 2.1 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis, (one, column) in zip(axes, shown, strict=False):
        own, ahead = (past, forecast) if id is None else (past[past[id] == one], forecast[forecast[id] == one])
        _draw_panel(axis, own, ahead, column, time)
        axis.set_title(column if one is None else f"{one}: {column}", fontsize=9, loc="left")
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=8, loc="upper left")
    figure.suptitle(title, fontsize=11)
    return figure, len(panels)


def _draw_panel(axis: Axes, past: pd.DataFrame, forecast: pd.DataFrame, column: str, time: str | None) -> None:
    steps = len(forecast)
    past = past[-max(24, _PAST * steps) :]
    if time is None:
        when, ahead = np.arange(-len(past), 0), np.arange(steps)
    else:
        ahead = forecast[time].to_numpy()
        dated = pd.api.types.is_datetime64_any_dtype(forecast[time])
        when = pd.to_datetime(past[time]).to_numpy() if dated else past[time].to_numpy()
    axis.plot(when, past[column].to_numpy(), color="0.3", linewidth=0.9, label="seen")
    axis.plot(ahead, forecast[column].to_numpy(), color=_BLUE, linewidth=1.3, label="forecast")
    lower, upper = f"{column}_lower", f"{column}_upper"
    if lower in forecast and upper in forecast:
        axis.fill_between(
            ahead,
            forecast[lower].to_numpy(),
            forecast[upper].to_numpy(),
            color=_BLUE,
            alpha=0.2,
            linewidth=0,
            label="interval",
        )
    for place, name in enumerate(quantile_columns(forecast, column)):
        label = "quantiles" if place == 0 else None
        axis.plot(ahead, forecast[name].to_numpy(), color=_ORANGE, linewidth=0.8, linestyle=":", label=label)
    if time is not None and pd.api.types.is_datetime64_any_dtype(forecast[time]):
        axis.xaxis.set_major_formatter(mdates.ConciseDateFormatter(axis.xaxis.get_major_locator()))
    axis.tick_params(labelsize=8)
    axis.margins(x=0.01)


def quantile_columns(forecast: pd.DataFrame, column: str) -> list[str]:
    """Columns of a forecast that hold the quantiles of another."""
    return [name for name in forecast.columns if str(name).startswith(f"{column}_q")]
