"""Anomaly detection to look at: a table of both rules, and a picture of score, thresholds and ranges over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toa.experiments.records import Record
from toa.tasks.anomaly import SCORES
from toa.tasks.anomaly_metrics import Runs
from toa.tasks.checkpoint import load_checkpoint
from toa.tasks.detection import RULES

COLUMNS = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "pa_f1": "PA-F1",
    "random_pa_f1": "random PA-F1",
    "pa_k_f1": "PA%K-F1",
    "range_f1": "range F1",
    "vus_pr": "VUS-PR",
    "vus_roc": "VUS-ROC",
}

_COLOURS = {"tslib-pa": "tab:blue", "strict": "tab:red"}
# points of a drawn line: more would only cost time
_POINTS = 4000


def anomaly_table(record: Record) -> list[tuple[str, ...]]:
    """A header and a row for each of the rules; "-" is undefined, and the headline of the rules has a star."""
    rows: list[tuple[str, ...]] = [("rules", *COLUMNS.values())]
    for rules, block in record["detections"].items():
        cells = []
        for name in COLUMNS:
            value = record["metrics"].get(f"{rules}/{name}")
            star = "*" if name == block["headline"] else ""
            cells.append("-" if value is None else f"{value:.3f}{star}")
        rows.append((rules, *cells))
    return rows


def undefined_notes(record: Record) -> list[str]:
    """Why the table has no number, a line for each of the rules and each reason."""
    notes = []
    for rules, block in record["detections"].items():
        missing = {name: why for name, why in block["undefined"].items() if name in COLUMNS}
        for reason in dict.fromkeys(missing.values()):
            names = ", ".join(COLUMNS[name] for name, why in missing.items() if why == reason)
            notes.append(f"{rules}: {names} undefined: {reason}.")
    return notes


def draw_detection(folder: Path) -> Figure:
    """Score over time with both thresholds, above the true ranges and those that each of the rules flags.

    Args:
        folder: Of a finished run.
    """
    saved = load_checkpoint(folder / SCORES)
    score, labels = saved.tensors["score"].numpy(), saved.tensors["labels"].numpy()
    facts: Any = saved.facts["thresholds"]
    # in the order of the table
    thresholds = {rules.name: facts[rules.name] for rules in RULES if rules.name in facts}
    figure = plt.figure(figsize=(12.0, 5.0), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    _draw_score(top, score, thresholds)
    tracks = {"true": labels} | {name: saved.tensors[f"flags.{name}"].numpy() for name in thresholds}
    _draw_ranges(bottom, tracks)
    for start, stop in zip(*_bounds(labels), strict=True):
        top.axvspan(start, stop, color="0.85", linewidth=0, zorder=0)
    top.set_title(f"{folder.name}: score, thresholds, and true ranges in grey")
    bottom.set_xlabel("time step")
    bottom.set_xlim(0, len(score))
    return figure


def write_detection(folder: Path) -> Path:
    """Draw the picture of a finished run beside its record."""
    path = folder / "detection.png"
    figure = draw_detection(folder)
    try:
        figure.savefig(path, dpi=110)
    finally:
        plt.close(figure)
    return path


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScoredSeries:
    """Rows of one series as a detector sees them: score (T,), flags (T,), labels (T,) where they are known."""

    name: str
    score: np.ndarray
    flags: np.ndarray
    labels: np.ndarray | None = None


def draw_scores(series: Sequence[ScoredSeries], threshold: float, title: str) -> Figure:
    """Score and threshold of each series, above the ranges that are flagged and, where known, the true ones."""
    figure = plt.figure(figsize=(12.0, 0.5 + 3.6 * len(series)), layout="constrained")
    grid = figure.subplots(2 * len(series), 1, squeeze=False, height_ratios=(4, 1) * len(series))[:, 0]
    for place, one in enumerate(series):
        top, bottom = grid[2 * place], grid[2 * place + 1]
        _draw_score(top, one.score, {"detector": threshold})
        _draw_ranges(bottom, ({} if one.labels is None else {"true": one.labels}) | {"flagged": one.flags})
        for axis in (top, bottom):
            axis.set_xlim(0, len(one.score))
        top.set_title(one.name, fontsize=10)
    grid[-1].set_xlabel("row")
    figure.suptitle(title)
    return figure


def _draw_score(axis: Axes, score: np.ndarray, thresholds: Mapping[str, float]) -> None:
    # the highest of each stretch: no peak is lost
    size = -(-len(score) // _POINTS)
    peaks = np.maximum.reduceat(score, np.arange(0, len(score), size))
    axis.plot(np.arange(len(peaks)) * size, peaks, color="black", linewidth=0.7)
    for name, threshold in thresholds.items():
        axis.axhline(threshold, color=_COLOURS.get(name, "tab:green"), linewidth=1.2, label=f"threshold, {name}")
    if (score > 0).all():
        axis.set_yscale("log")
    axis.set_ylabel("squared error")
    axis.legend(fontsize=8, loc="upper right")


def _draw_ranges(axis: Axes, tracks: Mapping[str, np.ndarray]) -> None:
    for row, (name, flags) in enumerate(tracks.items()):
        starts, stops = _bounds(flags)
        spans = list(zip(starts.tolist(), (stops - starts).tolist(), strict=True))
        axis.broken_barh(spans, (row - 0.4, 0.8), color=_COLOURS.get(name, "0.4"))
    axis.set_yticks(range(len(tracks)), list(tracks))
    axis.set_ylim(len(tracks) - 0.5, -0.5)


def _bounds(flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    runs = Runs.of(flags)
    return runs.starts, runs.stops
