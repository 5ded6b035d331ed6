"""The frequency of time stamps: infer it, check it, continue it. Stamps are dates or whole numbers.

The functions take the stamps of all series of a table, one series after the other. `inner` states for each of the T - 1
pairs of neighbours whether both belong to one series; `rows` is the source row of each stamp.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int64
from pandas.tseries.frequencies import to_offset

# a pandas offset alias, or the step of whole numbers
Frequency = str | int

_DAY = 86_400 * 10**9
# steps of varying length, tried if no fixed step fits
_CALENDAR = ("MS", "ME", "BMS", "BME", "QS", "QE", "YS", "YE")
_WEEKDAYS = 5


def check_frequency(freq: object) -> Frequency:
    """The frequency in the spelling of pandas.

    Raises:
        ValueError: If it is not a pandas alias or a positive whole number.
    """
    if isinstance(freq, int) and not isinstance(freq, bool) and freq >= 1:
        return freq
    try:
        if isinstance(freq, str):
            return str(to_offset(freq).freqstr)
    except (ValueError, AttributeError):
        pass
    raise ValueError(
        f"freq must be a pandas frequency, such as 'h', '15min', 'D' or 'MS', or the step of whole numbers, "
        f"got {freq!r}."
    )


def infer_frequency(
    times: pd.Index, inner: Bool[np.ndarray, " s"], rows: Int64[np.ndarray, " t"], name: str
) -> Frequency:
    """The frequency that all series share. Series may have gaps.

    Raises:
        ValueError: If there is none, with the first row that does not fit, or if no series has two rows.
    """
    if not inner.any():
        raise ValueError(
            f"{name} must have a series with two rows to infer the frequency from, got one row each; give freq."
        )
    candidates = list(_candidates(times, inner))
    for freq in candidates:
        places, off = positions(times, inner, freq)
        if off is None and _mixed(places, inner) is None:
            return freq
    # the error names the fixed step that most rows have
    check_regular(times, inner, rows, candidates[-1], name)
    raise AssertionError("check_regular raises for a frequency that does not fit")


def check_regular(
    times: pd.Index, inner: Bool[np.ndarray, " s"], rows: Int64[np.ndarray, " t"], freq: Frequency, name: str
) -> Int64[np.ndarray, " t"]:
    """Number of each stamp on the grid of its series; it increases by more than 1 at a gap.

    Raises:
        ValueError: If a stamp is not on the grid, or a series has another frequency.
    """
    if isinstance(freq, int) != (not isinstance(times, pd.DatetimeIndex)):
        found = "dates" if isinstance(times, pd.DatetimeIndex) else "whole numbers"
        raise ValueError(f"{name} must have stamps of the frequency {freq!r}, got {found}; give another freq.")
    places, off = positions(times, inner, freq)
    if off is not None:
        before = f" after {times[off - 1]}" if off and inner[off - 1] else ""
        raise ValueError(
            f"{name} must have one frequency, {freq!r} by most of its rows, got {times[off]}{before} at data row "
            f"{rows[off] + 1}; resample it, or give another freq."
        )
    mixed = _mixed(places, inner)
    if mixed is not None:
        raise ValueError(
            f"{name} must have one frequency, {freq!r}, got a series of another: mostly {mixed[1]} steps apart, "
            f"such as {times[mixed[0] + 1]} after {times[mixed[0]]} at data row {rows[mixed[0] + 1] + 1}; resample it."
        )
    return places


def positions(
    times: pd.Index, inner: Bool[np.ndarray, " s"], freq: Frequency
) -> tuple[Int64[np.ndarray, " t"], int | None]:
    """Number of each stamp on the grid of its series, and the first stamp that is not on the grid."""
    first = np.flatnonzero(np.concatenate(([True], ~inner)))  # first stamp of each series
    step = _fixed_step(freq)
    if step is not None:
        stamps = _stamps(times, step)
        origin = np.repeat(stamps[first], np.diff(np.append(first, len(stamps))))
        places, rest = np.divmod(stamps - origin, step)
        off = np.flatnonzero(rest)
    else:
        wall = _wall(times)
        places = pd.date_range(wall.min(), wall.max(), freq=freq).get_indexer(wall)
        off = np.flatnonzero(places < 0)
    return places.astype(np.int64), int(off[0]) if len(off) else None


def continue_times(last: object, freq: Frequency, steps: int) -> pd.Index:
    """The `steps` stamps after the last."""
    if isinstance(freq, int):
        assert isinstance(last, int | np.integer)
        return pd.Index(int(last) + freq * np.arange(1, steps + 1))
    return pd.date_range(last, periods=steps + 1, freq=freq)[1:]


def make_times(first: object, freq: Frequency, count: int) -> pd.Index:
    """`count` stamps, beginning with the first."""
    if isinstance(freq, int):
        assert isinstance(first, int | np.integer)
        return pd.Index(int(first) + freq * np.arange(count))
    return pd.date_range(first, periods=count, freq=freq)


def calendar_of(freq: Frequency | None) -> str:
    """The `freq` of `toa.data.time_marks` whose marks distinguish steps of this frequency.

    Raises:
        ValueError: If the stamps are not dates.
    """
    if freq is None or isinstance(freq, int):
        raise ValueError("calendar must be False for data without dates, got True; calendar features need dates.")
    step = _fixed_step(freq)
    if step is None:
        return "D" if freq == "B" else "W"
    if step < _DAY:
        return "h" if step % (3600 * 10**9) == 0 else "5min"
    return "D" if step < 7 * _DAY else "W"


def _candidates(times: pd.Index, inner: Bool[np.ndarray, " s"]) -> Iterator[Frequency]:
    """Frequencies to try, the most likely first, the most common fixed step last."""
    if not isinstance(times, pd.DatetimeIndex):
        yield _most_common(np.diff(times.to_numpy())[inner])
        return
    wall = _wall(times)
    step = _most_common(np.diff(times.as_unit("ns").asi8)[inner])
    # at least a week without a weekend
    if step == _DAY and wall.max() - wall.min() >= pd.Timedelta("7D") and (wall.dayofweek < _WEEKDAYS).all():
        yield "B"
    # months, quarters and years have at least 28 days
    if step >= 28 * _DAY:
        yield from _CALENDAR
    yield _alias(step)
    day_step = _most_common(np.diff(wall.as_unit("ns").asi8)[inner])
    if day_step != step:
        yield _alias(day_step)


def _mixed(places: Int64[np.ndarray, " t"], inner: Bool[np.ndarray, " s"]) -> tuple[int, int] | None:
    """A pair of rows of a series whose rows are mostly more than one step apart, and their distance."""
    steps = np.diff(places)
    if (steps[inner] == 1).all():
        return None
    series = np.cumsum(~inner)  # series of each pair; pairs across two series are ignored
    for one in np.unique(series[inner & (steps != 1)]):
        own = np.flatnonzero(inner & (series == one))
        most = _most_common(steps[own])
        if most != 1:
            return int(own[np.flatnonzero(steps[own] == most)[0]]), most
    return None


def _most_common(steps: Int64[np.ndarray, " s"]) -> int:
    found, counts = np.unique(steps, return_counts=True)
    return int(found[counts.argmax()])


def _alias(step: int) -> str:
    days, rest = divmod(step, _DAY)
    offset = to_offset(pd.Timedelta(step)) if rest else pd.offsets.Day(days)
    return str(offset.freqstr)


def _fixed_step(freq: Frequency) -> int | None:
    """Length of a step in nanoseconds, or as a whole number; None if steps differ in length, as months do."""
    if isinstance(freq, int):
        return freq
    offset = to_offset(freq)
    if isinstance(offset, pd.offsets.Day):
        return int(offset.n) * _DAY
    return int(offset.nanos) if isinstance(offset, pd.offsets.Tick) else None


def _stamps(times: pd.Index, step: int) -> Int64[np.ndarray, " t"]:
    if not isinstance(times, pd.DatetimeIndex):
        return times.to_numpy()
    # days have 23 to 25 hours when clocks change: count days and longer steps on the wall clock
    clock = _wall(times) if step % _DAY == 0 else times
    return clock.as_unit("ns").asi8


def _wall(times: pd.DatetimeIndex) -> pd.DatetimeIndex:
    return times.tz_localize(None) if times.tz is not None else times
