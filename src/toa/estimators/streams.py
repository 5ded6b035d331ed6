"""Rows that arrive one after another: what is kept of each series, and scores and flags of the new rows.

Alphabet: T rows, C channels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float64
from torch import Tensor

from toa.data.frequency import continue_times
from toa.data.panel import Id, Panel, Values

# rows whose scores on arrival set the threshold of streams, and contexts of rows per piece of a series
_ROWS, _PIECE = 10_000, 10


class _Stream(NamedTuple):
    """The last rows of a series, the time of the last one, and the number of last rows above the threshold."""

    values: Values
    time: object
    run: int


class Streams:
    """The series of a stream, by id."""

    def __init__(self) -> None:
        self.rows = 0
        self._series: dict[Id, _Stream] = {}

    def advance(
        self,
        panel: Panel,
        score: Callable[[Id, Values], Float64[np.ndarray, " t"]],
        *,
        context: int,
        threshold: float,
        min_length: int,
    ) -> list[dict[str, np.ndarray]]:
        """Columns "score" and "anomaly" of new rows, per series. An error changes no series.

        Args:
            panel: The new rows.
            score: Scores of a series from its last rows: at least one for each new row.
            context: Rows before a row that its score depends on; before the first row, they are copies of it.
            threshold: Scores above it are unusual.
            min_length: Rows above the threshold, one after another, of which the last is flagged.

        Raises:
            ValueError: If a series does not continue its stream.
        """
        results, changed = [], {}
        for index, (one, values) in enumerate(zip(panel.ids, panel.values, strict=True)):
            times = None if panel.times is None else panel.times[index]
            past = self._series.get(one)
            if past is not None and times is not None:
                assert panel.freq is not None
                expected = continue_times(past.time, panel.freq, 1)[0]
                if times[0] != expected:
                    raise ValueError(
                        f"{panel.label(index, 'rows')} must continue with {expected}, after {past.time}, got "
                        f"{times[0]} at data row {panel.rows[index][0] + 1}; pass each row once and in order, or call "
                        "reset_stream()."
                    )
            seen = np.concatenate((np.repeat(values[:1], context, 0) if past is None else past.values, values))
            scores = score(one, seen)[-len(values) :]
            run = 0 if past is None else past.run
            flags = np.zeros(len(scores), dtype=np.int64)
            for row, high in enumerate(scores > threshold):
                run = run + 1 if high else 0
                flags[row] = run >= min_length
            results.append({"score": scores, "anomaly": flags})
            changed[one] = _Stream(seen[len(seen) - context :].copy(), None if times is None else times[-1], run)
        self._series |= changed
        self.rows += sum(panel.lengths)
        return results


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
            raise ValueError(f"rows must be lists of {channels} numbers, got lists of different lengths.")
        rows = np.asarray(rows)
    return rows[None] if isinstance(rows, np.ndarray) and rows.ndim == 1 and len(rows) == channels > 1 else rows


def held_parts(
    series: Sequence[Tensor], train: Sequence[Tensor], context: int, number: int, of: int
) -> tuple[list[Tensor], list[int]]:
    """Part `number` of `of` equal ones of the rows after those of `train`, with `context` rows before, and its rows."""
    parts, counts = [], []
    for one, border in zip(series, map(len, train), strict=True):
        start, stop = (border + (len(one) - border) * k // of for k in (number, number + 1))
        if start < stop:
            parts.append(one[max(0, start - context) : stop])
            counts.append(stop - start)
    return parts, counts


def spread_pieces(series: Sequence[Tensor], context: int) -> list[Tensor]:
    """Parts of the series, spread over them, with about as many rows as the threshold of streams needs."""
    share = max(1.0, sum(map(len, series)) / _ROWS)
    pieces = []
    for one in series:
        count = -(-len(one) // (_PIECE * context))
        rows = max(context + 1, min(len(one), int(len(one) / count / share) + context))
        starts = np.unique(np.linspace(0, max(0, len(one) - rows), count).astype(int))
        pieces += [one[start : start + rows] for start in starts]
    return pieces
