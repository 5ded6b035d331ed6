"""From scores to alarms: runs of rows above a threshold, and events with their channels.

    runs = alarm_runs(scores > threshold, AlarmRule(min_length=2, cool_down=10))
    events = find_events(parts, threshold, rule)                              # of one series
    event_columns(panel, [(0, event) for event in events], columns)

Alphabet: T rows, C channels, S series.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from toa._checks import ArgumentError
from toa.data.frames import id_column
from toa.data.panel import Panel
from toa.estimators.scoring import Rows
from toa.training.detection import Runs, point_metrics, undefined

# channels that are named for an event
_NAMED = 3
# smallest share of a channel that is named
_LEAST_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class AlarmRule:
    """When rows above the threshold become alarms.

    Attributes:
        min_length: Fewest rows in a row that are above the threshold to be flagged.
        cool_down: Largest number of rows between two alarms of one event.
    """

    min_length: int = 1
    cool_down: int = 0


# each row above the threshold is an alarm, and rows side by side are one event
EVERY_ROW = AlarmRule()


class Event(NamedTuple):
    """Rows [start, stop) of a series, the row of the highest score, that score in thresholds, and channel shares."""

    start: int
    stop: int
    peak: int
    severity: float
    shares: Float64[np.ndarray, " c"]


def alarm_runs(flags: Bool[np.ndarray, " t"], rule: AlarmRule) -> Runs:
    """Runs of at least `min_length` rows; runs with at most `cool_down` rows between them become one."""
    runs = Runs.of(flags)
    kept = runs.lengths >= rule.min_length
    starts = runs.starts[kept]
    stops = runs.stops[kept]
    apart = starts[1:] - stops[:-1] > rule.cool_down
    return Runs(starts[np.append(True, apart)[: len(starts)]], stops[np.append(apart, True)[: len(stops)]])


def flag_rows(above: Bool[np.ndarray, " t"], rule: AlarmRule) -> Int64[np.ndarray, " t"]:
    """1 for rows above the threshold that have enough such rows beside them, else 0."""
    flags = np.zeros(len(above), dtype=np.int64)
    runs = alarm_runs(above, AlarmRule(min_length=rule.min_length))
    for start, stop in zip(runs.starts, runs.stops, strict=True):
        flags[start:stop] = 1
    return flags


def find_events(parts: Rows, threshold: float, rule: AlarmRule) -> list[Event]:
    """Events of a series from the parts of the channels in the score of each row, in the order of time."""
    score = parts.sum(1)
    runs = alarm_runs(score > threshold, rule)
    events = []
    for start, stop in zip(runs.starts.tolist(), runs.stops.tolist(), strict=True):
        peak = start + int(score[start:stop].argmax())
        # rows between two alarms of the event are not its cause
        high = np.flatnonzero(score[start:stop] > threshold) + start
        share = np.maximum(parts[high], 0.0).sum(0)
        severity = float(score[peak]) / threshold if threshold > 0 else float("inf")
        events.append(Event(start, stop, peak, severity, share / max(float(share.sum()), 1e-300)))
    return events


def describe_channels(shares: Float64[np.ndarray, " c"], columns: Sequence[str]) -> str:
    """The channels with the largest shares: "temperature 71 %, load 20 %"."""
    order = np.argsort(-shares, kind="stable")[:_NAMED]
    named = [index for index in order if shares[index] >= _LEAST_SHARE]
    return ", ".join(f"{columns[index]} {100.0 * shares[index]:.0f} %" for index in named)


def event_columns(panel: Panel, ranked: Sequence[tuple[int, Event]], columns: Sequence[str]) -> dict[str, Any]:
    """Columns of the table of events, numbered from 1; `ranked` has the index of the series of each."""
    owners = np.array([index for index, _ in ranked], dtype=np.int64)
    table: dict[str, Any] = {"event": np.arange(1, len(ranked) + 1), **id_column(panel, owners)}
    if panel.backend is None and len(panel) > 1:
        table["series"] = owners
    places = {
        "start": [event.start for _, event in ranked],
        "end": [event.stop - 1 for _, event in ranked],
        "peak": [event.peak for _, event in ranked],
    }
    for name, rows in places.items():
        if panel.times is None:
            table[name] = np.array(rows, dtype=np.int64)
        else:
            times = [panel.times[index][row] for index, row in zip(owners, rows, strict=True)]
            table[name] = type(panel.times[0])(times, dtype=panel.times[0].dtype)
    table["rows"] = np.array([event.stop - event.start for _, event in ranked], dtype=np.int64)
    table["severity"] = np.array([event.severity for _, event in ranked], dtype=np.float64)
    table["channel"] = np.array([columns[int(event.shares.argmax())] for _, event in ranked], dtype=object)
    table["why"] = np.array([describe_channels(event.shares, columns) for _, event in ranked], dtype=object)
    return table


def flags_f1(labels: np.ndarray, flags: Bool[np.ndarray, " t"]) -> float:
    """F1 of flagged rows; raises ValueError for labels with which it is undefined."""
    if labels.shape != flags.shape:
        raise ArgumentError("y", f"have a label for each of the {len(flags)} rows", f"shape {labels.shape}")
    wrong = np.flatnonzero(~np.isin(labels, (0, 1)))
    if len(wrong):
        raise ArgumentError("y", "be 0 or 1, 1 for an anomaly", f"{labels[wrong[0]]!r} at data row {wrong[0] + 1}")
    reason = undefined(labels.astype(bool))
    if reason is not None:
        raise ValueError(f"y must have anomalies and normal rows for a score, but {reason}.")
    return point_metrics(labels.astype(bool), flags)["f1"] or 0.0
