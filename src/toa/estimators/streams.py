"""Streams: rows that arrive one after another, scored without the rows after them.

    scored = score_stream(fitted, streams, panel, rule, expected)    # scores, flags, and the streams after the rows

Streams are the only state of a detector; they lie outside of what is fitted.

Alphabet: T rows, C channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int64

from toa._checks import ArgumentError
from toa.data.continuation import check_continues
from toa.data.panel import Id, Panel, Values
from toa.estimators.alarms import AlarmRule
from toa.estimators.fitted_detector import FittedDetector
from toa.estimators.scoring import Score
from toa.estimators.shift import ShareFlagged
from toa.estimators.thresholds import Thresholds

# last rows whose flags are counted if the threshold is fixed
_MEMORY = 2_000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecentRows:
    """Scores and flags of the last rows of a stream, which tell its level.

    Attributes:
        threshold: That of the next row; None before the first row.
        is_reported: Whether it was reported that far too many of these rows are flagged.
    """

    scores: Score
    flags: Int64[np.ndarray, " t"]
    threshold: float | None = None
    is_reported: bool = False


NO_ROWS = RecentRows(scores=np.empty(0), flags=np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """What is remembered of a series.

    Attributes:
        values: The last rows, in the units of the data.
        time: Time of the last one.
        seen: Number of rows so far.
        run: Number of last rows that are above the threshold.
        recent: Scores and flags of the last rows.
    """

    values: Values
    time: object = None
    seen: int = 0
    run: int = 0
    recent: RecentRows = NO_ROWS

    def advance(
        self, panel: Panel, index: int, above: Bool[np.ndarray, " t"], min_length: int
    ) -> tuple[Int64[np.ndarray, " t"], "Stream"]:
        """Flags of the new rows, those of a series of a panel, and the stream after them.

        `above` states which rows are above the threshold; the last of `min_length` such rows is flagged. Rows that do
        not continue the stream raise ValueError.
        """
        values = panel.values[index]
        times = None if panel.times is None else panel.times[index]
        if times is not None and self.seen:
            check_continues(panel, index, self.time, "pass each row once and in order, or call reset_stream()")
        run = self.run
        flags = np.zeros(len(above), dtype=np.int64)
        for row, is_above in enumerate(above):
            run = run + 1 if is_above else 0
            flags[row] = run >= min_length
        last = np.concatenate((self.values, values))[len(values) :].copy()
        time = None if times is None else times[-1]
        return flags, Stream(last, time, self.seen + len(values), run, self.recent)


Streams = Mapping[Id, Stream]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScoredStream:
    """New rows of streams.

    Attributes:
        columns: Scores and flags of the new rows of each series.
        streams: All streams after them.
        reports: What a user must know, such as that far too many rows are flagged.
    """

    columns: Sequence[dict[str, np.ndarray]]
    streams: dict[Id, Stream]
    reports: Sequence[str]


def score_stream(
    fitted: FittedDetector, streams: Streams, panel: Panel, rule: AlarmRule, expected: float | None
) -> ScoredStream:
    """Score and flag the new rows of each series; an error changes no stream.

    `expected` is the expected share of flagged normal rows; None if the rule of the threshold has none.
    """
    columns = []
    reports = []
    after = dict(streams)
    for index, (name, values) in enumerate(zip(panel.ids, panel.values, strict=True)):
        # before its first row, a series is taken to have had the values of that row
        stream = streams.get(name) or Stream(np.repeat(values[:1], fitted.context, 0))
        series = fitted.inputs.scale(name, np.concatenate((stream.values, values)))
        scores = fitted.score.of_rows(series, ends=True)[-len(values) :]
        thresholds, recent = _follow(fitted.thresholds, stream, scores)
        has_window = stream.seen + np.arange(len(values)) >= fitted.inputs.window
        flags, stream = stream.advance(panel, index, (scores > thresholds) & has_window, rule.min_length)
        recent = replace(recent, flags=np.concatenate((recent.flags, flags))[-len(recent.scores) :])
        report = None if expected is None else _report(recent, expected)
        if report is not None and not recent.is_reported:
            reports.append(f"{panel.label(index, 'the stream')}: {report}")
        after[name] = replace(stream, recent=replace(recent, is_reported=report is not None))
        columns.append({"score": scores, "anomaly": flags})
    return ScoredStream(columns=columns, streams=after, reports=reports)


def _follow(thresholds: Thresholds, stream: Stream, scores: Score) -> tuple[Score, RecentRows]:
    """The threshold of each new row, by the scores before it, and the last scores after all of them.

    It changes after fixed numbers of rows of the stream, so that it does not depend on the size of calls.
    """
    levels = thresholds.stream_levels
    recent = stream.recent
    if levels is None:
        last = np.concatenate((recent.scores, scores))[-_MEMORY:]
        return np.full(len(scores), thresholds.stream), replace(recent, scores=last)
    last = recent.scores
    current = recent.threshold
    of_rows = np.empty(len(scores))
    row = 0
    while row < len(scores):
        place = (stream.seen + row) % levels.step
        if place == 0 or current is None:
            current = levels.raised(thresholds.stream, last)
        stop = min(len(scores), row + levels.step - place)
        of_rows[row:stop] = current
        last = np.concatenate((last, scores[row:stop]))[-levels.memory :]
        row = stop
    return of_rows, replace(recent, scores=last, threshold=current)


def _report(recent: RecentRows, expected: float) -> str | None:
    """The share of flagged rows, if it is far above the expected one."""
    share = ShareFlagged(flagged=int(recent.flags.sum()), rows=len(recent.flags), expected=expected)
    return share.describe() if share.is_far_above else None


def rows_seen(streams: Streams) -> int:
    """Number of rows of all streams so far."""
    return sum(stream.seen for stream in streams.values())


def as_rows(rows: Any, channels: int) -> Any:
    """Dicts as a frame, and lists or one row of numbers as an array (t, C); anything else unchanged.

    Raises:
        ValueError: If lists have different lengths.
    """
    rows = [rows] if isinstance(rows, Mapping) else rows
    if isinstance(rows, list | tuple) and rows and all(isinstance(row, Mapping) for row in rows):
        return pd.DataFrame(list(rows))
    if isinstance(rows, list | tuple) and not any(isinstance(row, np.ndarray) for row in rows):
        sizes = {len(row) if isinstance(row, list | tuple) else 0 for row in rows}
        if len(sizes) > 1:
            raise ArgumentError("rows", f"be lists of {channels} numbers", "lists of different lengths")
        rows = np.asarray(rows)
    return rows[None] if isinstance(rows, np.ndarray) and rows.ndim == 1 and len(rows) == channels > 1 else rows
