"""Rows that arrive one after another, or a few at a time, and are scored as they do."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float64

from toa.estimators.frames import Id, Panel
from toa.estimators.frequency import continue_times

Rows = Float64[np.ndarray, "t c"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Past:
    """The last rows of a series, at most one less than a window, and when the very last was."""

    values: Rows
    time: object


class RowStream:
    """What has been seen of each series, and scores of what is new.

    Args:
        window: Rows L that a score needs: the row itself and those before it.
        score: From an id and rows (t, C), t ≥ L, to a score for each window of L rows, t - L + 1 of them.
    """

    def __init__(self, window: int, score: Callable[[Id, Rows], Float64[np.ndarray, " n"]]) -> None:
        self._window = window
        self._score = score
        self._past: dict[Id, _Past] = {}

    def feed(self, panel: Panel) -> list[Float64[np.ndarray, " t"]]:
        """Scores of new rows, series by series; NaN before a series has a window. A refused panel changes nothing.

        Raises:
            ValueError: If a series does not go on where it was.
        """
        answers, pasts = [], {}
        for place, (one, values) in enumerate(zip(panel.ids, panel.values, strict=True)):
            times = None if panel.times is None else panel.times[place]
            past = self._past.get(one)
            if past is not None and times is not None:
                _check_next(panel, place, past.time, times)
            seen = values if past is None else np.concatenate((past.values, values))
            scores = np.full(len(values), np.nan)
            if len(seen) >= self._window:
                found = self._score(one, seen)
                scores[len(values) - len(found) :] = found
            answers.append(scores)
            kept = seen[max(0, len(seen) - self._window + 1) :].copy()
            pasts[one] = _Past(values=kept, time=None if times is None else times[-1])
        self._past |= pasts
        return answers


def _check_next(panel: Panel, place: int, last: object, times: pd.Index) -> None:
    assert panel.freq is not None
    expected = continue_times(last, panel.freq, 1)[0]
    if times[0] != expected:
        row = int(panel.rows[place][0]) + 1
        raise ValueError(
            f"{panel.label(place, 'rows')} must go on at {expected}, after {last}, got {times[0]} at data row {row}; "
            "pass each row once and in order, or call reset_stream()."
        )
