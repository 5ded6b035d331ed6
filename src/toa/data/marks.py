"""Time marks: calendar features of each date, scaled to [-0.5, 0.5] (the field's "timeF", after GluonTS)."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from jaxtyping import Float64

from toa._checks import check_choice

# frequencies of benchmark data
FREQUENCIES = ("5min", "10min", "15min", "h", "D", "W")

Feature = Callable[[pd.DatetimeIndex], "pd.Index[int]"]

# each counts from 0 to its largest value
_FEATURES: dict[str, tuple[Feature, int]] = {
    "minute-of-hour": (lambda dates: dates.minute, 59),
    "hour-of-day": (lambda dates: dates.hour, 23),
    "day-of-week": (lambda dates: dates.day_of_week, 6),
    "day-of-month": (lambda dates: dates.day - 1, 30),
    "day-of-year": (lambda dates: dates.day_of_year - 1, 365),
    "week-of-year": (lambda dates: dates.isocalendar().week - 1, 52),
}
_DAY = ("day-of-week", "day-of-month", "day-of-year")


def mark_names(freq: str = "h") -> tuple[str, ...]:
    """Names of the marks of a frequency, in order."""
    check_choice("freq", freq, FREQUENCIES)
    if freq == "W":
        return ("day-of-month", "week-of-year")
    if freq == "D":
        return _DAY
    hourly = ("hour-of-day", *_DAY)
    return hourly if freq == "h" else ("minute-of-hour", *hourly)


def time_marks(dates: pd.DatetimeIndex, freq: str = "h") -> Float64[np.ndarray, "t f"]:
    """Marks (T, F) of T dates.

    The scripts of the field use freq="h" (four marks) for data of any frequency.
    """
    marks = [(name, *_FEATURES[name]) for name in mark_names(freq)]
    columns = [np.asarray(feature(dates), dtype=np.float64) / most - 0.5 for _, feature, most in marks]
    return np.stack(columns, axis=1)  # (T, F)
