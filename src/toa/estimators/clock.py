"""The clock of each row: the hour and the day, by which covariates act differently.

    clock = clock_of(panel, horizon)    # per series (T + P, 3): hour, day of the week, day of the year; 0 for none

Alphabet: T rows, P horizon, S series.
"""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int64

from toa.data.frequency import calendar_of, make_times
from toa.data.panel import Panel

# hours of a day and days of a week
HOURS = 24
DAYS = 7

# columns of a clock
PARTS = 3

Clock = Int64[np.ndarray, "t 3"]


def clock_groups(panel: Panel) -> tuple[int, int]:
    """Number of groups of the day and of the week that rows of this frequency have; 1 for none."""
    if panel.times is None or not isinstance(panel.freq, str) or not isinstance(panel.times[0], pd.DatetimeIndex):
        return 1, 1
    steps = calendar_of(panel.freq)
    if steps == "W":
        return 1, 1
    return (1 if steps == "D" else HOURS), DAYS


def clock_of(panel: Panel, horizon: int) -> list[Clock]:
    """Hour, day of the week and of the year of the rows of each series, and of the steps of a horizon after it."""
    day, week = clock_groups(panel)
    if week == 1:
        return [np.zeros((rows + horizon, PARTS), dtype=np.int64) for rows in panel.lengths]
    assert panel.times is not None
    # most series of a table have the same times
    clocks: dict[tuple[Any, Any, int], Clock] = {}
    parts = []
    for times in panel.times:
        key = (times[0], times[-1], len(times))
        if key not in clocks:
            assert panel.freq is not None
            ahead = make_times(times[-1], panel.freq, horizon + 1)[1:]
            clocks[key] = _clock_of_dates(times.append(ahead), has_hours=day > 1)
        parts.append(clocks[key])
    return parts


def _clock_of_dates(dates: pd.Index, *, has_hours: bool) -> Clock:
    assert isinstance(dates, pd.DatetimeIndex)
    hours = dates.hour if has_hours else np.zeros(len(dates))
    return np.stack(
        [np.asarray(part, dtype=np.int64) for part in (hours, dates.day_of_week, dates.day_of_year)], axis=1
    )
