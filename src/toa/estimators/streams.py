"""Streams: rows that arrive one after another, scored without the rows after them.

    scores, streams = score_stream(fitted, streams, panel, rule)    # streams before and after the rows of the panel

Streams are the only state of a detector; they lie outside of what is fitted.

Alphabet: T rows, C channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int64

from toa._checks import ArgumentError
from toa.data.frequency import make_times
from toa.data.panel import Id, Panel, Values
from toa.estimators.alarms import AlarmRule
from toa.estimators.fitted_detector import FittedDetector


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """What is remembered of a series.

    Attributes:
        values: The last rows, in the units of the data.
        time: Time of the last one.
        seen: Number of rows so far.
        run: Number of last rows that are above the threshold.
    """

    values: Values
    time: object = None
    seen: int = 0
    run: int = 0

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
            assert panel.freq is not None
            expected = make_times(self.time, panel.freq, 2)[1]
            if times[0] != expected:
                raise ArgumentError(
                    panel.label(index, "rows"),
                    f"continue with {expected}, after {self.time}",
                    f"{times[0]} at data row {panel.rows[index][0] + 1}",
                    "pass each row once and in order, or call reset_stream()",
                )
        run = self.run
        flags = np.zeros(len(above), dtype=np.int64)
        for row, is_above in enumerate(above):
            run = run + 1 if is_above else 0
            flags[row] = run >= min_length
        last = np.concatenate((self.values, values))[len(values) :].copy()
        return flags, Stream(last, None if times is None else times[-1], self.seen + len(values), run)


Streams = Mapping[Id, Stream]


def score_stream(
    fitted: FittedDetector, streams: Streams, panel: Panel, rule: AlarmRule
) -> tuple[list[dict[str, np.ndarray]], dict[Id, Stream]]:
    """Scores and flags of the new rows of each series, and all streams after them; an error changes no stream."""
    parts = []
    after = dict(streams)
    for index, (name, values) in enumerate(zip(panel.ids, panel.values, strict=True)):
        # before its first row, a series is taken to have had the values of that row
        stream = streams.get(name) or Stream(np.repeat(values[:1], fitted.context, 0))
        series = fitted.inputs.scale(name, np.concatenate((stream.values, values)))
        scores = fitted.score.of_rows(series, ends=True)[-len(values) :]
        has_window = stream.seen + np.arange(len(values)) >= fitted.inputs.window
        above = (scores > fitted.thresholds.stream) & has_window
        flags, after[name] = stream.advance(panel, index, above, rule.min_length)
        parts.append({"score": scores, "anomaly": flags})
    return parts, after


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
