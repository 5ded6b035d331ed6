"""Figures of results, in one style: detections, confusion matrices and forecasts."""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import matplotlib.text
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from toa._files import write_atomically
from toa.experiments.records import Record
from toa.training.anomaly import SCORES
from toa.training.checkpoint import load_checkpoint
from toa.training.detection import RULES, Runs

# colours of lines and areas
BLUE = "tab:blue"
RED = "tab:red"
GREEN = "tab:green"
ORANGE = "tab:orange"
# dots per inch of a picture
DPI = 110
# size of small text in points
SMALL = 8

TITLES = {
    "toa": "TOA",
    "toa-gated": "TOA-Gated",
    "toa-relu": "TOA-ReLU",
    "toa-softmax": "TOA-Softmax",
    "softmax": "Softmax attention",
}
# number of panels in one forecast figure
PANELS = 12
_RULE_COLOURS = {"tslib-pa": BLUE, "strict": RED}
# points per line; more would only cost time
_POINTS = 4000
# with more classes the counts would be unreadable
_NUMBERED_CLASSES = 15
# series in a figure of alarms
_SERIES = 4
# channels per series in a figure of alarms
_CHANNELS = 3
# events in a figure of alarms whose channels are named
_NAMED_EVENTS = 8
# lines of baselines
_STYLES: list[dict[str, Any]] = [
    {"color": colour, "linestyle": "--"} for colour in ("0.6", ORANGE, GREEN, "tab:purple")
]
# past steps per forecast step
_PAST = 3
# the first letters of a word that is too long to be drawn
_LONG = r"(\S{30})\S{12,}"


def system_title(name: str) -> str:
    """Printed name of an attention."""
    if name.endswith("-no-sor"):
        return f"{system_title(name.removesuffix('-no-sor'))}, no SOR"
    return TITLES.get(name, name)


def save_figure(figure: Figure, path: Path, *, tight: bool = False) -> Path:
    """Write a figure in the format of its suffix and close it; `tight` cuts empty margins."""
    drawn = io.BytesIO()
    for text in figure.findobj(mpl.text.Text):
        # names of users are no formulas, and may be longer than the figure is wide
        text.set_parse_math(False)
        text.set_text(_shortened(text.get_text()))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=DPI, bbox_inches="tight" if tight else None)
    finally:
        plt.close(figure)
    write_atomically(path, drawn.getvalue())
    return path


def _shortened(text: str) -> str:
    return re.sub(_LONG, r"\1…", text)


def svg_text(figure: Figure) -> str:
    """A figure as SVG, always the same text for the same figure; closes the figure."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "toa", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return text.getvalue()


def _legend_below(figure: Figure, axis: Axes) -> None:
    """Put the legend of one panel below all panels, where it covers no data."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=SMALL, loc="outside lower center", ncols=len(labels), frameon=False)


def draw_matrix(axis: Axes, matrix: np.ndarray, **options: Any) -> float:
    """Heat map of a signed matrix, blue is negative; returns the value of full colour."""
    # a quantile, so that a few large entries do not hide the others
    limit = float(np.quantile(np.abs(matrix), 0.995)) or float(np.abs(matrix).max()) or 1.0
    axis.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest", **options)
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(MaxNLocator(integer=True))
    return limit


def draw_detection(folder: Path) -> Figure:
    """Score and thresholds of a finished run, above the true ranges and those flagged under each set of rules."""
    saved = load_checkpoint(folder / SCORES)
    stored: Any = saved.facts["thresholds"]
    thresholds = {rules.name: stored[rules.name] for rules in RULES if rules.name in stored}
    ranges = {"true": saved.tensors["labels"].numpy()}
    ranges |= {name: saved.tensors[f"flags.{name}"].numpy() for name in thresholds}
    score = saved.tensors["score"].numpy()
    figure = plt.figure(figsize=(12.0, 4.1), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=(4, 1))
    _draw_score(top, np.arange(len(score)), score, thresholds)
    top.set_ylabel("squared error")
    _legend_below(figure, top)
    for row, (name, flags) in enumerate(ranges.items()):
        runs = Runs.of(flags)
        spans = list(zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True))
        bottom.broken_barh(spans, (row - 0.4, 0.8), color=_RULE_COLOURS.get(name, "0.4"))
    bottom.set_yticks(range(len(ranges)), list(ranges))
    bottom.set_ylim(len(ranges) - 0.5, -0.5)
    _shade(top, np.arange(len(score)), Runs.of(ranges["true"]), color="0.85")
    for axis in (top, bottom):
        axis.set_xlim(0, len(score))
    bottom.set_xlabel("time step")
    figure.suptitle(f"{folder.name}: score, thresholds, and true ranges in grey")
    return figure


def write_detection(folder: Path) -> Path:
    """Draw the detection of a finished run beside its record."""
    return save_figure(draw_detection(folder), folder / "detection.png")


def draw_alarms(
    frame: pd.DataFrame,
    rows: pd.DataFrame,
    events: pd.DataFrame,
    columns: Sequence[str],
    *,
    thresholds: Callable[[np.ndarray], np.ndarray],
    id: str | None = None,
    time: str | None = None,
    labels: np.ndarray | None = None,
    title: str = "",
) -> tuple[Figure, int]:
    """Draw the channels of the most severe events of up to four series, and the score; returns the number of series.

    Args:
        rows: Scores and events of the rows of `frame`, from `toa.AnomalyDetector.alarms`.
        thresholds: Maps the scores of a series to the threshold of each row.
        labels: Whether each row is known to be an anomaly; these ranges are grey.
    """
    ids = [None] if id is None else list(pd.unique(rows[id]))
    shown = []
    for series_id in ids[:_SERIES]:
        series_events = events if series_id is None else events[events[id] == series_id]
        channels = list(dict.fromkeys([*series_events["channel"], *columns]))[:_CHANNELS]
        shown += [(series_id, series_events, column) for column in (*channels, None)]
    figure = plt.figure(figsize=(12.0, 0.8 + 1.9 * len(shown)), layout="constrained")
    for axis, (series_id, series_events, column) in zip(
        figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True
    ):
        places = np.arange(len(rows)) if series_id is None else np.flatnonzero(rows[id] == series_id)
        when = np.arange(len(places)) if time is None else rows[time].to_numpy()[places]
        if time is not None and pd.api.types.is_datetime64_any_dtype(rows[time]):
            axis.xaxis.set_major_formatter(mdates.ConciseDateFormatter(axis.xaxis.get_major_locator()))
        if labels is not None:
            _shade(axis, when, Runs.of(labels[places]), color="0.85")
        numbers = rows["event"].to_numpy()[places]
        for number, channel, why in series_events[["event", "channel", "why"]].itertuples(index=False):
            _shade(axis, when, Runs.of(numbers == number), color=RED, alpha=0.25)
            if channel == column and number <= _NAMED_EVENTS:
                first = when[int((numbers == number).argmax())]
                axis.annotate(
                    f"{number}: {why}", (first, 1.0), xycoords=("data", "axes fraction"), fontsize=7, va="top"
                )
        if column is None:
            score = rows["score"].to_numpy()[places]
            axis.plot(*_outline(when, thresholds(score)), color=GREEN, linewidth=1.2)
            _draw_score(axis, when, score, {})
        else:
            axis.plot(*_outline(when, frame[column].to_numpy(dtype=float)[places]), color="0.3", linewidth=0.7)
        axis.set_title(
            ": ".join(str(x) for x in (series_id, column or "score, and threshold in green") if x is not None),
            fontsize=9,
            loc="left",
        )
        axis.tick_params(labelsize=SMALL)
        axis.set_xlim(when[0], when[-1])
    figure.suptitle(title, fontsize=11)
    return figure, len(ids)


def _outline(when: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most a bounded number of points of a line: the lowest and the highest of each interval."""
    size = -(-2 * len(values) // _POINTS)
    if size <= 2:
        return when, values
    starts = np.arange(0, len(values), size)
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return np.repeat(when[starts], 2), np.stack((low, high), 1).ravel()


def _shade(axis: Axes, when: np.ndarray, runs: Runs, **style: Any) -> None:
    # a row is shaded from the middle of the step before it to the middle of the step after it
    edges = np.concatenate([when[:1], when[:-1] + np.diff(when) / 2, when[-1:]])
    for start, stop in zip(runs.starts, runs.stops, strict=True):
        axis.axvspan(edges[start], edges[stop], linewidth=0, zorder=0, **style)


def _draw_score(axis: Axes, when: np.ndarray, score: np.ndarray, thresholds: Mapping[str, float]) -> None:
    # the maximum of each interval, so that no peak is lost
    size = -(-len(score) // _POINTS)
    starts = np.arange(0, len(score), size)
    axis.plot(when[starts], np.maximum.reduceat(score, starts), color="black", linewidth=0.7)
    for name, threshold in thresholds.items():
        axis.axhline(threshold, color=_RULE_COLOURS.get(name, GREEN), linewidth=1.2, label=f"threshold, {name}")
    if (score > 0).all():
        axis.set_yscale("log")
        # formulas are not drawn
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")


def write_confusion(record: Record, path: Path) -> Path:
    """Draw the confusion matrix of a record of classification."""
    metrics, config = record["metrics"], record["config"]
    title = (
        f"{record['name']} on {Path(str(config['dataset'])).name.split('_TRAIN.ts')[0]}, {config['evaluation']}\n"
        f"accuracy {metrics['accuracy']:.3f}, balanced {metrics['balanced_accuracy']:.3f}, "
        f"macro F1 {metrics['macro_f1']:.3f}"
    )
    counts = np.array(record["confusion"])
    return save_figure(draw_confusion(counts, [str(name) for name in record["classes"]], title), path)


def draw_confusion(counts: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Confusion matrix (K, K) of counts, true classes in rows, coloured by the share of the true class."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = max(4.0, 1.6 + 0.36 * len(names))
    figure, axis = _draw_classes(share, names, title, "share of the true class", size=(size + 1.0, size))
    axis.set_yticks(range(len(names)), list(map(_shortened, names)))
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    if len(names) <= _NUMBERED_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                shade = "white" if share[row, column] > 0.5 else "black"
                axis.text(column, row, str(count), ha="center", va="center", color=shade, fontsize=9)
    return figure


def draw_probabilities(proba: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Class probabilities, one row per case."""
    size = (max(4.0, 2.0 + 0.4 * len(names)), 6.0)
    figure, axis = _draw_classes(proba, names, title, "probability", size=size, aspect="auto")
    axis.set_xlabel("class")
    axis.set_ylabel("case")
    return figure


def _draw_classes(
    values: np.ndarray, names: Sequence[str], title: str, unit: str, *, size: tuple[float, float], **options: Any
) -> tuple[Figure, Axes]:
    figure = plt.figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(values, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest", **options)
    axis.set_xticks(range(len(names)), list(map(_shortened, names)), rotation=90)
    axis.set_title(title, fontsize=10)
    plt.colorbar(image, ax=axis, shrink=0.8, label=unit)
    return figure, axis


def draw_forecast(
    past: pd.DataFrame,
    forecast: pd.DataFrame,
    columns: Sequence[str],
    *,
    id: str | None = None,
    time: str | None = None,
    title: str = "",
    baselines: Mapping[str, pd.DataFrame] | None = None,
    actual: pd.DataFrame | None = None,
    interval: float | None = None,
) -> tuple[Figure, int]:
    """Draw the first twelve combinations of series and column; returns the figure and the number of combinations.

    Args:
        forecast: Result of `toa.Forecaster.predict`; its intervals and quantiles are drawn as well.
        baselines: Forecasts of baselines by name, frames like `forecast`.
        actual: The values that were forecast, a frame like `past`, if they are known.
        interval: Probability of the interval, for the legend.
    """
    ids = [None] if id is None else list(pd.unique(forecast[id]))
    band = "interval" if interval is None else f"{interval:.0%} interval"
    panels = [(series_id, column) for series_id in ids for column in columns]
    shown = panels[:PANELS]
    across = 1 if len(shown) < 3 else 2
    down = -(-len(shown) // across)
    figure = plt.figure(figsize=(11.0, 1.2 + 2.1 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis, (series_id, column) in zip(axes, shown, strict=False):
        before, ahead = (
            (past, forecast) if id is None else (past[past[id] == series_id], forecast[forecast[id] == series_id])
        )
        before = before[-max(24, _PAST * len(ahead)) :]
        when = np.arange(-len(before), 0)
        after = np.arange(len(ahead))
        if time is not None:
            when, after = before[time].to_numpy(), ahead[time].to_numpy()
            if pd.api.types.is_datetime64_any_dtype(ahead[time]):
                when = pd.to_datetime(before[time]).to_numpy()
                axis.xaxis.set_major_formatter(mdates.ConciseDateFormatter(axis.xaxis.get_major_locator()))
        axis.plot(when, before[column].to_numpy(), color="0.3", linewidth=0.9, label="past")
        axis.plot(after, ahead[column].to_numpy(), color=BLUE, linewidth=1.3, label="forecast")
        bounds = [ahead[name].to_numpy() for name in (f"{column}_lower", f"{column}_upper") if name in ahead]
        if len(bounds) == 2:
            axis.fill_between(after, *bounds, color=BLUE, alpha=0.2, linewidth=0, label=band)
        level = re.compile(re.escape(column) + r"_q\d[\d.e-]*")
        levels = [name for name in ahead.columns if level.fullmatch(str(name)) and name not in columns]
        for place, name in enumerate(levels):
            label = "quantiles" if place == 0 else None
            axis.plot(after, ahead[name].to_numpy(), color=ORANGE, linewidth=0.8, linestyle=":", label=label)
        axis.tick_params(labelsize=SMALL)
        axis.margins(x=0.01)
        lines = [(name, line, style) for (name, line), style in zip((baselines or {}).items(), _STYLES, strict=False)]
        lines += [] if actual is None else [("actual", actual, {"color": "black"})]
        for name, line, style in lines:
            line = line if id is None else line[line[id] == series_id]
            when = np.arange(len(line)) if time is None else line[time].to_numpy()
            axis.plot(when, line[column].to_numpy(), linewidth=1.0, label=name, **style)
        axis.set_title(column if series_id is None else f"{series_id}: {column}", fontsize=9, loc="left")
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    _legend_below(figure, axes[0])
    figure.suptitle(title, fontsize=11)
    return figure, len(panels)
