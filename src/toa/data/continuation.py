"""Rows that continue the series of a panel, as they arrive.

    check_continues(panel, index, last)        # raises ArgumentError unless a series begins one step after `last`
    continue_panel(panel, new, most)           # the last rows of each series, with the new ones

Alphabet: T rows, C columns.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from toa._checks import ArgumentError
from toa.data.frequency import make_times
from toa.data.panel import Panel


def check_continues(panel: Panel, index: int, last: object, remedy: str) -> None:
    """Raise ValueError if the times of a series do not begin one step after the time `last`."""
    assert panel.times is not None
    assert panel.freq is not None
    first = panel.times[index][0]
    expected = make_times(last, panel.freq, 2)[1]
    if first != expected:
        raise ArgumentError(
            panel.label(index, "rows"),
            f"continue with {expected}, after {last}",
            f"{first} at data row {panel.rows[index][0] + 1}",
            remedy,
        )


def continue_panel(panel: Panel, new: Panel, most: int) -> Panel:
    """The panel with the new rows at the end of their series, at most `most` rows of each; it has the same columns.

    New rows have no gaps. Series without new rows stay as they are, and those of other ids are added. Rows are counted
    on from those of the panel.

    Raises:
        ValueError: If rows do not continue their series in time, or only one of both tables has times.
    """
    if (panel.times is None) != (new.times is None):
        if panel.times is None:
            raise ArgumentError("rows", "have no times, as the rows before", "times")
        raise ArgumentError("rows", "have times, as the rows before", "none")
    places = {id: place for place, id in enumerate(panel.ids)}
    values: list[np.ndarray] = list(panel.values)
    times: list[Any] = list(panel.times or ())
    rows: list[np.ndarray] = list(panel.rows)
    begins: list[np.ndarray] = list(panel.begins or ())
    filled: list[np.ndarray] = list(panel.filled or ())
    first_row = 1 + max(int(part.max()) for part in panel.rows)
    for index, id in enumerate(new.ids):
        place = places.get(id)
        if place is not None and new.times is not None:
            check_continues(new, index, times[place][-1], "pass each row once and in order")
        # a series of another id has no rows before
        place = len(values) if place is None else place
        shape = new.values[index].shape
        _extend(values, place, new.values[index])
        _extend(rows, place, new.rows[index] + first_row)
        if panel.filled is not None:
            _extend(filled, place, np.zeros(shape, dtype=bool))
        if panel.begins is not None and place == len(begins):
            begins.append(np.zeros(shape[1], dtype=np.int64))
        if new.times is not None:
            _extend_times(times, place, new.times[index])
    longer: Panel = replace(
        panel,
        values=tuple(values),
        ids=(*panel.ids, *(id for id in new.ids if id not in places)),
        times=None if panel.times is None else tuple(times),
        rows=tuple(rows),
        begins=None if panel.begins is None else tuple(begins),
        filled=None if panel.filled is None else tuple(filled),
    )
    return longer.tail(most)


def _extend(parts: list[np.ndarray], place: int, new: np.ndarray) -> None:
    """Append rows to the series at a place, or a new series at the end."""
    if place == len(parts):
        parts.append(new)
    else:
        parts[place] = np.concatenate([parts[place], new])


def _extend_times(parts: list[Any], place: int, new: pd.Index) -> None:
    """The same for times; they keep the unit and the time zone of those before."""
    same = new.astype(parts[0].dtype)
    if place == len(parts):
        parts.append(same)
    else:
        parts[place] = parts[place].append(same)
