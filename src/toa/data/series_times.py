"""The rows of each series of a table, and checks of their times: sorted, each once, one at every step.

    rows = group_rows(ids, "sensor", count, "data")
    freq, places = check_times(times, rows, "data", ...)    # raises one ValueError that names all that is wrong

Alphabet: S series, T rows, P = T - 1 pairs of neighbouring rows.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int64

from toa._checks import Argument, ArgumentError, Name, Phrase, part_of
from toa.data.frequency import Frequency, clock_remedies, find_grid

# None is the only series of a table without ids
SeriesId = str | int | None

# the ways to fill missing rows, for a message
_FILLS = (
    Argument("missing", "interpolate"),
    ", ",
    Argument("missing", "ffill"),
    " or ",
    Argument("missing", "zero"),
)


class SeriesRows(NamedTuple):
    """Row numbers sorted by series, the borders of the series in that order, and whether neighbours share a series."""

    ids: tuple[SeriesId, ...]
    order: Int64[np.ndarray, " t"]
    borders: Int64[np.ndarray, " s"]
    inner: Bool[np.ndarray, " p"]

    def name_of(self, place: int, name: Name) -> Name:
        """Name of the series of a row, by its place in the order, in error messages."""
        return series_name(self.ids[int(np.searchsorted(self.borders, place, "right")) - 1], name)


class _Problem(NamedTuple):
    """What is wrong with some times: the rule that they break, the first such row, and what to do.

    Attributes:
        row: The first such row, in the order of the series.
        other: What to do instead.
    """

    row: int
    rule: str
    value: str
    remedy: str
    other: Phrase


def series_name(id: SeriesId, name: Name) -> Name:
    """Name of a series in error messages; a table without ids has one series."""
    return name if id is None else part_of(name, f"series {id!r}")


def group_rows(ids: object, column: str | None, count: int, name: Name) -> SeriesRows:
    """The rows of each id; raises ValueError for an id that is neither text nor an integer."""
    if not count:
        raise ArgumentError(name, "have at least one row", "none")
    if ids is None:
        return SeriesRows((None,), np.arange(count), np.array([0, count]), np.ones(count - 1, dtype=bool))
    codes, unique = pd.factorize(ids)
    if (codes < 0).any():
        row = int((codes < 0).argmax()) + 1
        raise ArgumentError(name, "have an id in every row", f"none in column {column!r} at data row {row}")
    names = tuple(unique.tolist())
    for id in names:
        if isinstance(id, bool) or not isinstance(id, str | int):
            raise ArgumentError(name, "have ids that are text or integers", f"{id!r} in column {column!r}")
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    return SeriesRows(names, order, np.searchsorted(codes, np.arange(len(names) + 1)), np.diff(codes) == 0)


def check_times(
    times: pd.Index,
    rows: SeriesRows,
    name: Name,
    *,
    freq: Frequency | None,
    regular: bool,
    allow_duplicates: bool,
    may_have_gaps: bool,
) -> tuple[Frequency | None, Int64[np.ndarray, " t"] | None]:
    """The frequency, and the position of each row on the grid of its series; None if times need not be `regular`.

    Raises ValueError for times that decrease, that repeat unless they may, and for gaps unless there may be some. One
    error names all of these.
    """
    is_dated = isinstance(times, pd.DatetimeIndex)
    stamps = times.asi8 if is_dated else times.to_numpy()
    kind = "date" if is_dated else "step"
    steps = np.where(rows.inner, np.diff(stamps), 1)
    places = None
    problems: list[_Problem] = []
    if (steps < 0).any() or (not allow_duplicates and (steps == 0).any()):
        series = np.cumsum(np.append(True, ~rows.inner))
        order = np.lexsort((stamps, series))
        repeats = (np.diff(stamps[order]) == 0) & rows.inner
        problems = _order_problems(times, rows, kind, steps, order[1:][repeats & (not allow_duplicates)])
        kept = order[np.append(True, ~repeats)]
        if regular and not may_have_gaps:
            problems += _gap_problems(times, rows, kept, np.diff(series[kept]) == 0, freq, name)
    elif regular:
        freq, places = find_grid(times, rows.inner, rows.order, freq, name)
        if not may_have_gaps:
            problems = _gaps(times, rows, np.arange(len(times)), rows.inner, freq, places)
    if problems:
        raise _error_of(problems, times, rows, name)
    return freq, places


def _order_problems(
    times: pd.Index, rows: SeriesRows, kind: str, steps: np.ndarray, repeated: np.ndarray
) -> list[_Problem]:
    """Times that decrease, and times that repeat at these places."""
    problems = []
    separate = Phrase("give two recordings different ids")
    if rows.ids == (None,):
        separate = Phrase("give ", Argument("id"), ", if it has several series")
    if (steps < 0).any():
        last = int((steps < 0).argmax()) + 1
        value = f"{times[last]} after {times[last - 1]}{_places(rows, last, int((steps < 0).sum()), 'row')}"
        problems.append(_Problem(last, f"be sorted by {kind}", value, "sort it", separate))
    if len(repeated):
        first = int(repeated.min())
        value = f"{times[first]} again{_places(rows, first, len(repeated), 'row')}"
        problems.append(_Problem(first, f"have each {kind} once", value, f"keep one row per {kind}", separate))
    return problems


def _gap_problems(
    times: pd.Index, rows: SeriesRows, kept: np.ndarray, inner: np.ndarray, freq: Frequency | None, name: Name
) -> list[_Problem]:
    """Gaps between the rows at the places `kept`, which are sorted and have each time once."""
    try:
        freq, places = find_grid(times[kept], inner, rows.order[kept], freq, name)
    except ArgumentError:
        # gaps need a common frequency: without one, that is the error of the sorted table
        return []
    return _gaps(times, rows, kept, inner, freq, places)


def _gaps(
    times: pd.Index, rows: SeriesRows, kept: np.ndarray, inner: np.ndarray, freq: Frequency, places: np.ndarray
) -> list[_Problem]:
    gaps = np.flatnonzero((np.diff(places) != 1) & inner)
    if not len(gaps):
        return []
    before = int(kept[gaps[0]])
    after = int(kept[gaps[0] + 1])
    rule = f"have a row at every step of its frequency {freq!r}"
    value = f"{times[after]} after {times[before]}{_places(rows, after, len(gaps), 'gap')}"
    return [_Problem(after, rule, value, "add the missing rows", Phrase("fill them with ", *_FILLS))]


def _places(rows: SeriesRows, place: int, count: int, what: str) -> str:
    """Where a problem occurs first, and how often."""
    return f" at data row {rows.order[place] + 1} ({count} such {what if count == 1 else f'{what}s'})"


def _error_of(problems: list[_Problem], times: pd.Index, rows: SeriesRows, name: Name) -> ArgumentError:
    """One error for all problems, whose remedies are done one after the other."""
    first = problems[0].row
    others = dict.fromkeys(problem.other for problem in reversed(problems))
    return ArgumentError(
        rows.name_of(first, name),
        _join([problem.rule for problem in problems]),
        _join([problem.value for problem in problems]),
        _join([problem.remedy for problem in problems]),
        *others,
        *clock_remedies(times, first),
    )


def _join(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
