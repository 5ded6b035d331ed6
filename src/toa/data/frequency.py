"""The frequency of time stamps, dates or integers: infer it, check it, continue it. Time marks: features of each date.

Marks are scaled to [-0.5, 0.5] (the field's "timeF", after GluonTS).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64
from pandas.tseries.frequencies import to_offset

from toa._checks import Argument, ArgumentError, Name, Phrase, check_choice

# a pandas offset alias, or the step of integers
Frequency = str | int

_DAY = 86_400 * 10**9
# steps of varying length, tried for steps of at least 28 days
_CALENDAR = ("MS", "ME", "BMS", "BME", "QS", "QE", "YS", "YE")
_WEEKDAYS = 5

# frequencies of benchmark data
FREQUENCIES = ("min", "5min", "10min", "15min", "h", "D", "W")
# each counts from 0 to its largest value
_FEATURES: dict[str, tuple[Callable[[pd.DatetimeIndex], "pd.Index[int]"], int]] = {
    "minute-of-hour": (lambda dates: dates.minute, 59),
    "hour-of-day": (lambda dates: dates.hour, 23),
    "day-of-week": (lambda dates: dates.day_of_week, 6),
    "day-of-month": (lambda dates: dates.day - 1, 30),
    "day-of-year": (lambda dates: dates.day_of_year - 1, 365),
    "week-of-year": (lambda dates: dates.isocalendar().week - 1, 52),
}
_DAY_MARKS = ("day-of-week", "day-of-month", "day-of-year")
_MARKS = {"W": ("day-of-month", "week-of-year"), "D": _DAY_MARKS, "h": ("hour-of-day", *_DAY_MARKS)}


def find_grid(
    times: pd.Index, inner: Bool[np.ndarray, " p"], rows: Int64[np.ndarray, " t"], freq: Frequency | None, name: Name
) -> tuple[Frequency, Int64[np.ndarray, " t"]]:
    """The frequency that all series share, and the position of each stamp on the grid of its series.

    Args:
        times: T stamps of all series, one series after the other, increasing within each. At a gap the
            positions increase by more than 1.
        inner: For each of the T - 1 pairs of neighbours, whether both belong to one series.
        rows: Source row of each stamp, counted from 0.
    """
    if freq is None and not inner.any():
        remedy = Phrase("give ", Argument("freq"))
        raise ArgumentError(name, "have two rows in a series to infer freq", "one each", "add rows", remedy)
    for candidate in _candidates(times, inner) if freq is None else [_check_frequency(freq)]:
        dated = isinstance(times, pd.DatetimeIndex)
        if isinstance(candidate, int) == dated:
            found = "dates" if dated else "integers"
            remedy = Phrase("give another ", Argument("freq"))
            raise ArgumentError(name, f"have stamps of the frequency {candidate!r}", found, remedy)
        places, off = _positions(times, inner, candidate)
        mixed = _find_longer_step(places, inner) if off is None else None
        if off is None and mixed is None:
            return candidate, places
    # the last candidate is the most frequent step
    if off is not None:
        before = f" after {times[off - 1]}" if off and inner[off - 1] else ""
        source = ", its most frequent step" if freq is None else ""
        remedies = [] if freq is None else [Phrase("give another ", Argument("freq"))]
        if isinstance(times, pd.DatetimeIndex) and times.tz is not None:
            midnight = ", such as 'Europe/Rome', if days begin at a local midnight"
            remedies.append(Phrase("give ", Argument("time_zone"), midnight))
        raise ArgumentError(
            name,
            f"have one frequency, {candidate!r}{source}",
            f"{times[off]}{before} at data row {rows[off] + 1}",
            "resample it",
            *remedies,
        )
    assert mixed is not None
    pair, steps = mixed
    raise ArgumentError(
        name,
        f"have one frequency, {candidate!r}",
        f"a series of another: mostly {steps} steps apart, such as {times[pair + 1]} after {times[pair]} at data row "
        f"{rows[pair + 1] + 1}",
        "resample it",
    )


def make_times(first: object, freq: Frequency, count: int) -> pd.Index:
    """`count` stamps, beginning with the first; steps of days and longer ones are those of the wall clock."""
    if isinstance(freq, int):
        assert isinstance(first, int | np.integer)
        return pd.Index(int(first) + freq * np.arange(count))
    if getattr(first, "tzinfo", None) is None or (_fixed_step(freq) or 0) % _DAY:
        return pd.date_range(first, periods=count, freq=freq)
    dates = pd.DatetimeIndex([first])
    wall = _to_wall(dates)
    return to_zone_days(pd.date_range(wall[0], periods=count, freq=freq), dates.tz)


def to_zone_days(wall: pd.DatetimeIndex, zone: Any) -> pd.DatetimeIndex:
    """Local days with their zone. A time that clocks skip becomes the next one; of two equal ones the first counts."""
    return wall.tz_localize(zone, ambiguous=np.ones(len(wall), dtype=bool), nonexistent="shift_forward")


def _to_wall(dates: pd.DatetimeIndex, inner: Bool[np.ndarray, " p"] | None = None) -> pd.DatetimeIndex:
    """Local days without zone, at the earliest time of their series (or midnight) also where clocks skip it."""
    wall = dates.tz_localize(None)
    if dates.tz is None:
        return wall
    expected = wall.normalize()
    if inner is not None:
        clock = pd.Series(wall - expected)
        expected += pd.TimedeltaIndex(clock.groupby(np.cumsum(np.append(True, ~inner))).transform("min"))
    return wall.where(to_zone_days(expected, dates.tz) != dates, expected)


def clock_remedies(times: pd.Index, row: int) -> tuple[Phrase, ...]:
    """A remedy if the clocks may have been changed before this row: an hour is skipped or repeated; else none."""
    if not isinstance(times, pd.DatetimeIndex) or times.tz is not None or row < 2 or not times[row].hour:
        return ()
    step = times[row] - times[row - 1]
    usual = times[row - 1] - times[row - 2]
    changed = step == pd.Timedelta(0) or abs(step - usual) == pd.Timedelta("1h")
    return (Phrase("give ", Argument("time_zone"), ", if the clocks were changed in that hour"),) if changed else ()


def calendar_of(freq: Frequency | None) -> str:
    """The `freq` of `toa.data.time_marks` whose marks distinguish steps of this frequency."""
    if freq is None or isinstance(freq, int):
        raise ArgumentError("calendar", "be False for data without dates", "True", "calendar features need dates")
    step = _fixed_step(freq)
    if step is None:
        return "D" if freq == "B" else "W"
    if step < _DAY:
        return "h" if step % (3600 * 10**9) == 0 else "5min"
    return "D" if step < 7 * _DAY else "W"


def mark_names(freq: str = "h") -> tuple[str, ...]:
    """Names of the marks of a frequency, in order."""
    check_choice("freq", freq, FREQUENCIES)
    return _MARKS.get(freq, ("minute-of-hour", *_MARKS["h"]))


def time_marks(dates: pd.DatetimeIndex, freq: str = "h") -> Float64[np.ndarray, "t f"]:
    """Marks (T, F) of T dates; the scripts of the field use freq="h" (four marks) for data of any frequency."""
    marks = [_FEATURES[name] for name in mark_names(freq)]
    columns = [np.asarray(feature(dates), dtype=np.float64) / most - 0.5 for feature, most in marks]
    return np.stack(columns, axis=1)  # (T, F)


def describe_steps(freq: Frequency, steps: int) -> str:
    """The time of some steps in words: "36 hours"; "3 steps of MS" if steps differ in length."""
    step = None if isinstance(freq, int) else _fixed_step(freq)
    if step is None:
        return f"{steps} {'steps' if steps > 1 else 'step'} of {freq}"
    sizes = {"day": 86_400, "hour": 3_600, "minute": 60}
    seconds = steps * step / 10**9
    name = next((name for name, size in sizes.items() if seconds % size == 0), "second")
    count = seconds / sizes.get(name, 1)
    return f"{count:g} {name}" if count == 1 else f"{count:g} {name}s"


def season_of(freq: Frequency | None) -> int | None:
    """Steps of the usual season: a day of hours or minutes, a week of days, a year of months or quarters.

    1 if there is none, None if the stamps are not dates.
    """
    if freq is None or isinstance(freq, int):
        return None
    step = _fixed_step(freq)
    if step is None:
        offset = to_offset(freq)
        if isinstance(offset, pd.offsets.BusinessDay):
            return _WEEKDAYS
        months = {"M": 12, "Q": 4}.get(freq.lstrip("0123456789B")[:1], 1)
        return months // offset.n if months % offset.n == 0 else 1
    # a day, an hour or a minute, of at most as many steps as a day has minutes; a week of days
    units = (_DAY, _DAY // 24, _DAY // 1440) if step < _DAY else (7 * _DAY,)
    unit = next((unit for unit in units if unit // step <= 1440), 1)
    return unit // step if unit % step == 0 else 1


def _check_frequency(freq: object) -> Frequency:
    """The frequency in the spelling of pandas."""
    if isinstance(freq, str) and freq.isdecimal():
        freq = int(freq)  # from the command line
    if isinstance(freq, int) and not isinstance(freq, bool) and freq >= 1:
        return freq
    try:
        if isinstance(freq, str):
            return str(to_offset(freq).freqstr)
    except (ValueError, AttributeError):
        pass
    raise ArgumentError(
        "freq", "be a pandas frequency, such as 'h', '15min', 'D' or 'MS', or a step of integers", repr(freq)
    )


def _candidates(times: pd.Index, inner: Bool[np.ndarray, " p"]) -> Iterator[Frequency]:
    """Frequencies to try, the most likely first, the most common fixed step last."""
    if not isinstance(times, pd.DatetimeIndex):
        yield _most_common(np.diff(times.to_numpy())[inner])
        return
    wall = times.tz_localize(None)
    step = _most_common(np.diff(times.as_unit("ns").asi8)[inner])
    # at least a week without a weekend
    if step == _DAY and wall.max() - wall.min() >= pd.Timedelta("7D") and (wall.day_of_week < _WEEKDAYS).all():
        yield "B"
    if step >= 28 * _DAY:
        yield from _CALENDAR
    # on the wall clock, a day is as long as any other when clocks change
    for one in dict.fromkeys((step, _most_common(np.diff(wall.as_unit("ns").asi8)[inner]))):
        days, rest = divmod(one, _DAY)
        yield str((to_offset(pd.Timedelta(one)) if rest else pd.offsets.Day(days)).freqstr)


def _positions(
    times: pd.Index, inner: Bool[np.ndarray, " p"], freq: Frequency
) -> tuple[Int64[np.ndarray, " t"], int | None]:
    """Position of each stamp on the grid of its series, and the index of the first stamp that is not on it."""
    step = _fixed_step(freq)
    if step is None:
        wall = _to_wall(times, inner)
        places = pd.date_range(wall.min(), wall.max(), freq=freq).get_indexer(wall)
        off = np.flatnonzero(places < 0)
    else:
        stamps = times.to_numpy()
        if isinstance(times, pd.DatetimeIndex):
            # days have 23 to 25 hours when clocks change: count days and longer steps on the wall clock
            wall = _to_wall(times, inner) if step % _DAY == 0 else times
            unit = pd.Timedelta(1, wall.unit) // pd.Timedelta(1, "ns")
            # converting many stamps takes long
            stamps, step = (wall.asi8, step // unit) if step % unit == 0 else (wall.as_unit("ns").asi8, step)
        first = np.flatnonzero(np.concatenate(([True], ~inner)))  # first stamp of each series
        origin = np.repeat(stamps[first], np.diff(np.append(first, len(stamps))))
        places, rest = np.divmod(stamps - origin, step)
        off = np.flatnonzero(rest)
    return places.astype(np.int64), int(off[0]) if len(off) else None


def _find_longer_step(places: Int64[np.ndarray, " t"], inner: Bool[np.ndarray, " p"]) -> tuple[int, int] | None:
    """A pair of rows of a series whose rows are mostly more than one step apart, and their distance."""
    steps = np.diff(places)
    if (steps[inner] == 1).all():
        return None
    series = np.cumsum(~inner)  # series of each pair; pairs across two series are ignored
    for number in np.unique(series[inner & (steps != 1)]):
        rows = np.flatnonzero(inner & (series == number))
        most = _most_common(steps[rows])
        if most != 1:
            return int(rows[np.flatnonzero(steps[rows] == most)[0]]), most
    return None


def _most_common(steps: Int64[np.ndarray, " p"]) -> int:
    found, counts = np.unique(steps, return_counts=True)
    return int(found[counts.argmax()])


def _fixed_step(freq: Frequency) -> int | None:
    """Length of a step in nanoseconds, or the step of integers; None if steps differ in length, as months do."""
    if isinstance(freq, int):
        return freq
    offset = to_offset(freq)
    if isinstance(offset, pd.offsets.Day):
        return int(offset.n) * _DAY
    return int(offset.nanos) if isinstance(offset, pd.offsets.Tick) else None
