"""From scores to alarms: runs of rows above a threshold, and events with their channels.

    runs = alarm_runs(scores > threshold, AlarmRule(min_length=2, cool_down=10))
    events = find_events(parts, thresholds, rule, evidence)                   # of one series
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
from toa.estimators.scoring import Rows, Score
from toa.training.detection import Runs, point_metrics, undefined

# channels that are named for an event
_NAMED = 3
# smallest share of a channel that is named
_LEAST_SHARE = 0.005
# a row stands out in an event if it is at least this share as unusual as the most unusual row
_OUTSTANDING = 0.5


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
    """An alarm of a series.

    Attributes:
        first: First row that stands out.
        last: Last row that stands out.
        start: First row of the reach: all rows above the threshold, also those whose window has the unusual rows.
        stop: Row after the reach.
        peak: Row of the highest score.
        severity: That score in thresholds.
        shares: Share of each channel in the score.
    """

    first: int
    last: int
    start: int
    stop: int
    peak: int
    severity: float
    shares: Float64[np.ndarray, " c"]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """How unusual each row of a series is by itself.

    Attributes:
        score: Higher for less usual rows.
        level: A row with this score stands out in any event.
    """

    score: Score
    level: float = float("inf")

    def standing_out(self, start: int, stop: int) -> tuple[int, int]:
        """First and last row of an event that stand out."""
        part = self.score[start:stop]
        rows = np.flatnonzero(part >= min(self.level, _OUTSTANDING * float(part.max())))
        return start + int(rows[0]), start + int(rows[-1])


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


def find_events(parts: Rows, thresholds: Score, rule: AlarmRule, evidence: Evidence | None = None) -> list[Event]:
    """Events of a series from the parts of the channels in the score of each row, in the order of time.

    Args:
        thresholds: Threshold of each row.
        evidence: What tells the rows that stand out; None if all rows above the threshold do.
    """
    score = parts.sum(1)
    runs = alarm_runs(score > thresholds, rule)
    events = []
    for start, stop in zip(runs.starts.tolist(), runs.stops.tolist(), strict=True):
        peak = start + int(score[start:stop].argmax())
        # rows between two alarms of the event are not its cause
        high = np.flatnonzero(score[start:stop] > thresholds[start:stop]) + start
        share = np.maximum(parts[high], 0.0).sum(0)
        threshold = float(thresholds[peak])
        first, last = (start, stop - 1) if evidence is None else evidence.standing_out(start, stop)
        events.append(
            Event(
                first=first,
                last=last,
                start=start,
                stop=stop,
                peak=peak,
                severity=float(score[peak]) / threshold if threshold > 0 else float("inf"),
                shares=share / max(float(share.sum()), 1e-300),
            )
        )
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

    def place(rows: Sequence[int]) -> Any:
        """Times of rows, or the rows themselves."""
        if panel.times is None:
            return np.array(rows, dtype=np.int64)
        times = [panel.times[index][row] for index, row in zip(owners, rows, strict=True)]
        return type(panel.times[0])(times, dtype=panel.times[0].dtype)

    table["start"] = place([event.first for _, event in ranked])
    table["end"] = place([event.last for _, event in ranked])
    table["peak"] = place([event.peak for _, event in ranked])
    table["rows"] = np.array([event.last - event.first + 1 for _, event in ranked], dtype=np.int64)
    table["reach_start"] = place([event.start for _, event in ranked])
    table["reach_end"] = place([event.stop - 1 for _, event in ranked])
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
