"""Columns of a table: dates, with the day or the month first and clocks that change, text, and steps of cases.

dates = parse_dates(text, "data")                           # ISO, or any format that has one reading
order = find_order(text, "data", None, is_regular)          # True if 01/02/2015 is 1 February
dates = to_zone(dates, "Europe/Rome", codes, "data")        # local times, also where clocks change
codes = to_codes(column, ("high", "low"), "data")           # categories as their places in a list
numbers, names = to_steps(frame, columns, "error", "X")     # one case per row, one step per column
"""

import datetime
import re
import warnings
import zoneinfo
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
from jaxtyping import Int64

from toa._checks import Argument, ArgumentError, ArgumentWarning, Name, Phrase, as_part, part_of
from toa._limits import list_first, shorten
from toa.data.codes import mark_missing
from toa.data.frequency import Frequency, to_zone_days
from toa.data.panel import Panel, Values, fill_missing, is_number, make_panel, to_numbers

# what to do about dates with the day or the month first
GIVE_ORDER = Phrase("give ", Argument("day_first", True), " or ", Argument("day_first", False))
# names of columns of ids
_IDS = re.compile(r"(.*[\W_])?id|(?:case|sample)(?:[\W_]?(?:id|number|no))?", re.IGNORECASE)
# fewest cases whose increasing whole numbers in the first column are no chance
_SORTED = 4
# fewest rows of a table whose equal steps are no chance
_EQUAL = 10
# an array with this many times more columns than rows, and at least this number of them, seems to be transposed
_WIDE = 5
_LEAST_WIDE = 20
# fewest equal rows at the end of a column that has ended
_LEAST_ENDED = 30
# how many times longer they are than all equal rows before
_ENDED_TIMES = 3
# least share of the rows that they have
_ENDED_SHARE = 0.1
# most columns that a warning lists
_LISTED = 8
# two numbers before the year, day and month in either order
_ORDERED = re.compile(r"^\s*(\d{1,2})[/.-](\d{1,2})[/.-](\d{4}|\d{2})(?!\d)")
# a time without a date
_TIME = re.compile(r"\s*\d{1,2}:\d{2}(:\d{2}([.,]\d*)?)?\s*([ap]m|z|[+-]\d{2}:?\d{2})?\s*", re.IGNORECASE)
# first year that text may mean
_FIRST_YEAR = 1000


def read_times(
    column: Any,
    ids: Any,
    label: Name,
    *,
    day_first: bool | None,
    time_zone: str | None,
    freq: Frequency | None,
    remedy: str | Phrase = GIVE_ORDER,
) -> tuple[pd.Index, bool | None]:
    """Dates in one time zone, or integers, and whether the day came first in text."""
    if column.dtype.is_integer() or column.dtype.is_float():
        return _read_numbers(column, label), None
    order = None
    stored = column.dtype.is_temporal()
    codes = None if ids is None or (stored and time_zone is None) else pd.factorize(ids)[0]
    if stored:
        dates = _stored_dates(column, label)
    else:
        check = partial(is_regular, time_zone=time_zone, codes=codes, freq=freq)
        text = pd.Series(column.to_numpy(), dtype=object)
        order = find_order(text, label, day_first, check, remedy)
        dates = parse_dates(text, label, day_first=bool(order), offsets=True)
    return dates if time_zone is None else to_zone(dates, time_zone, codes, label), order


def _read_numbers(column: Any, label: Name) -> pd.Index:
    """Integers as they are, or as the dates that they spell."""
    values = column.to_numpy()
    if column.is_null().any() or np.isnan(values).any():
        raise ArgumentError(label, "have a number in every row", "none in some")
    steps = values.astype(np.int64)
    odd = steps != values
    if odd.any():
        raise ArgumentError(
            label, "have dates or whole numbers", f"{values[odd][0]:g}", "give dates, or the numbers of the rows"
        )
    if (dates := spelled_dates(steps)) is None:
        return pd.Index(steps)
    shown = f": {steps[0]} and the other numbers are read as dates, {dates[0]:%Y-%m-%d} and so on."
    warnings.warn(ArgumentWarning(label, shown), stacklevel=2)
    return dates


def spelled_dates(numbers: Int64[np.ndarray, " t"]) -> pd.DatetimeIndex | None:
    """The dates that integers such as 20240131 or 202401 spell, from 1900 to 2099; None if one is no date."""
    for form, least, most in (("%Y%m%d", 19_000_101, 20_991_231), ("%Y%m", 190_001, 209_912)):
        if len(numbers) and least <= numbers.min() and numbers.max() <= most:
            found = pd.to_datetime(pd.Series(numbers).astype(str), format=form, errors="coerce")
            return None if found.isna().any() else pd.DatetimeIndex(found)
    return None


def is_regular(
    dates: pd.DatetimeIndex,
    *,
    time_zone: str | None = None,
    codes: Int64[np.ndarray, " t"] | None = None,
    freq: Frequency | None = None,
    missing: str = "error",
) -> bool:
    """Whether the dates of each series have one frequency; `codes` has the series of each row."""
    try:
        dates = dates if time_zone is None else to_zone(dates, time_zone, codes, "dates")
        make_panel(np.zeros((len(dates), 1)), ["0"], ids=codes, times=dates, freq=freq, missing=missing)
    except ValueError:
        return False
    return True


def parse_dates(
    text: "pd.Series[str]", name: Name, *, day_first: bool = False, offsets: bool = False
) -> pd.DatetimeIndex:
    """Dates, one per row; raises ValueError if a cell is not a date.

    Different offsets from UTC, as where clocks change, raise ValueError, or give dates in UTC with `offsets`.
    """
    with warnings.catch_warnings():
        # pandas warns if it cannot guess one format and parses each cell by itself
        warnings.simplefilter("ignore", UserWarning)
        try:
            dates = pd.DatetimeIndex(pd.to_datetime(text, errors="coerce", dayfirst=day_first))
        except ValueError as error:
            if not offsets:
                raise ArgumentError(name, "have dates in one time zone", error, "write them in UTC") from error
            dates = pd.DatetimeIndex(pd.to_datetime(text, errors="coerce", dayfirst=day_first, utc=True))
        if dates.isna().any():
            # exports often omit the time at midnight: ISO dates of different lengths
            mixed = pd.DatetimeIndex(pd.to_datetime(text, errors="coerce", format="ISO8601", utc=dates.tz is not None))
            dates = mixed if mixed.isna().sum() < dates.isna().sum() else dates
    # pandas adds the year 1 to a day and month, and today's date to times of the day (the first row tells)
    wrong = dates.isna() | (dates.year < _FIRST_YEAR)
    if len(text) and isinstance(text.iloc[0], str) and _TIME.fullmatch(text.iloc[0]):
        wrong = np.ones(len(text), dtype=bool)
    bad = np.flatnonzero(wrong)
    if len(bad):
        raise ArgumentError(
            name,
            "have a date in every row",
            f"{shorten(text.iloc[bad[0]])} at data row {bad[0] + 1} ({len(bad)} such rows)",
            "write dates as 2016-07-01 00:00:00",
        )
    return dates


def is_date(cell: object) -> bool:
    """Whether a cell is a date, or text of one."""
    with suppress(ValueError):
        if isinstance(cell, str) and not is_number(cell):
            parse_dates(pd.Series([cell]), "a cell")
            return True
    return isinstance(cell, datetime.date)


def spells_days(column: Any) -> bool:
    """Whether integers are all days such as 20240131."""
    if column.is_null().any() or column.min() < 10_000_000:
        return False
    return spelled_dates(column.to_numpy().astype(np.int64)) is not None


def warn_of_late_columns(panel: Panel, *, alone: bool) -> None:
    """Warn of columns that begin later than others; `alone`: the network is the only method."""
    late: dict[str, str] = {}
    for index, begins in enumerate(panel.begins or ()):
        for place in np.flatnonzero(begins):
            when = f"row {begins[place] + 1}" if panel.times is None else str(panel.times[index][begins[place]])
            late.setdefault(panel.columns[place], f"{panel.columns[place]!r} at {when}")
    if late:
        shown = list_first(list(late.values()), 8)
        use = "A column with few rows has the weights of the others, and an interval measured on the others."
        if alone:
            use = "The network uses only rows in which every column has begun: if few are left, drop the late columns."
        text = f"some columns begin later than others: {shown}; each is read from there on. {use}"
        warnings.warn(text, stacklevel=4)


def warn_of_wide_array(parts: Sequence[Values], name: Name) -> None:
    """Warn of an array (T, C) with far more columns than rows, which may be (C, T)."""
    rows = max(map(len, parts))
    columns = parts[0].shape[1]
    if columns >= max(_LEAST_WIDE, _WIDE * rows):
        text = f" is read as {rows} rows of {columns} columns, because arrays are (T, C): rows of time, then columns"
        remedy = ". If it is (C, T), pass its transpose, array.T."
        warnings.warn(ArgumentWarning(as_part(name), text, remedy), stacklevel=6)


def warn_of_ended_columns(panel: Panel, columns: Sequence[str]) -> None:
    """Warn of columns that changed once, but have had one value for long at the end of their series.

    These rows are at least 30, a tenth of the series and three times as many as any equal rows before.
    """
    ended = []
    for index, values in enumerate(panel.take(columns)):
        still = np.flatnonzero(np.ptp(values[-_LEAST_ENDED:], axis=0) == 0) if len(values) > _LEAST_ENDED else ()
        for place in still:
            changes = np.flatnonzero(np.diff(values[:, place])) + 1
            if not len(changes):
                continue
            count = len(values) - int(changes[-1])
            earlier = int(np.diff(changes, prepend=0).max())
            if count >= max(_LEAST_ENDED, _ENDED_SHARE * len(values), _ENDED_TIMES * earlier):
                since = f"row {changes[-1] + 1}" if panel.times is None else str(panel.times[index][changes[-1]])
                where = "" if panel.ids[index] is None else f" of series {panel.ids[index]!r}"
                ended.append(f"{columns[place]!r}{where} since {since} ({count} rows)")
    if ended:
        text = (
            f"some columns have only one value in their last rows: {list_first(ended, _LISTED)}. If they have ended, "
            "their forecast means nothing: choose the other columns with "
        )
        warnings.warn(ArgumentWarning(text, Argument("values"), ", or cut the rows off."), stacklevel=4)


def warn_of_single_cases(labels: Sequence[Any], counts: Sequence[int]) -> None:
    """Warn of classes with one case, which no other case can confirm."""
    single = [repr(label) for label, count in zip(labels, counts, strict=True) if count == 1]
    if single:
        warnings.warn(
            f"classes with one case: {list_first(single, _LISTED)}. Their accuracy cannot be measured, because no "
            "other case has the class; add cases, or leave these out.",
            UserWarning,
            stacklevel=4,
        )


def find_order(
    text: "pd.Series[str]",
    name: Name,
    day_first: bool | None,
    is_regular: Callable[..., bool],
    remedy: str | Phrase = GIVE_ORDER,
) -> bool | None:
    """Whether the day comes first in dates such as 01/02/2015; None for dates of another form.

    A number above 12 decides, and `day_first` must agree with it. Else the order in which the dates are regular is
    taken, with a warning; if both are, or none is, `day_first` must be given. Years of two digits that come first, or
    seem to, raise ValueError.
    """
    numbers = text.astype("string").str.extract(_ORDERED)
    odd = np.flatnonzero(numbers[0].isna())
    if 0 < 2 * len(odd) < len(numbers):
        raise ArgumentError(
            name,
            "have a date in every row",
            f"{shorten(text.iloc[odd[0]])} at data row {odd[0] + 1} ({len(odd)} such rows) beside dates such as "
            f"{text[numbers[0].notna()].iloc[0]!r}",
            "correct or remove it",
        )
    if numbers.empty or len(odd):
        return None
    first, second, years = (*(numbers[place].astype(int).to_numpy() for place in (0, 1)), numbers[2])
    certain = bool((first > 31).any())
    short = bool((years.str.len() == 2).all())
    if short and (certain or (day_first is None and _begins_with_year(text, name, is_regular))):
        remedies = [] if certain or isinstance(remedy, str) else [Phrase(remedy, " if it does not")]
        raise ArgumentError(
            name,
            "have years of four digits if they come first",
            f"{text.iloc[int(first.argmax())]!r}, which seems to begin with a year",
            "write dates as 2016-07-01",
            *remedies,
        )
    possible = {True: bool((second <= 12).all()), False: bool((first <= 12).all())}
    wrong = {True: int((second > 12).argmax()), False: int((first > 12).argmax())}
    if not any(possible.values()):
        raise ArgumentError(
            name,
            "have the day and the month in one order",
            f"{text.iloc[wrong[True]]!r} at data row {wrong[True] + 1} and {text.iloc[wrong[False]]!r} at data row "
            f"{wrong[False] + 1}",
            "write dates as 2016-07-01",
        )
    if day_first is not None:
        if not possible[day_first]:
            row = wrong[day_first]
            first_part = "day" if day_first else "month"
            raise ArgumentError(
                name,
                Phrase(f"have dates with the {first_part} first, as asked by ", Argument("day_first", day_first)),
                f"{text.iloc[row]!r} at data row {row + 1}",
                Phrase("give ", Argument("day_first", not day_first)),
            )
        return day_first
    if not all(possible.values()):
        return possible[True]
    if (first == second).all():
        return False
    shown = text.iloc[int((first != second).argmax())]
    regular = [order for order in (True, False) if is_regular(parse_dates(text, name, day_first=order, offsets=True))]
    if len(regular) != 1:
        why = "in both orders the rows are regular" if regular else "in neither order the rows are regular"
        raise ArgumentError(name, "show if the day or the month comes first", f"{shown!r}, and {why}", remedy)
    which = "day" if regular[0] else "month"
    why = f": {shown!r} is read with the {which} first, because only then are the rows regular."
    warnings.warn(ArgumentWarning(name, why), stacklevel=4)
    return regular[0]


def _begins_with_year(text: Any, name: Name, is_regular: Callable[..., bool]) -> bool:
    """Whether the dates are regular as yy-mm-dd, and with the year last are irregular or span twice the time."""
    spans = dict.fromkeys((None, True, False), pd.Timedelta.max)
    for order in spans:
        cells = text if order is not None else "20" + text.str.strip().str.replace(r"\D", "-", n=2, regex=True)
        with suppress(ValueError):
            dates = parse_dates(cells, name, day_first=bool(order), offsets=True)
            spans[order] = dates.max() - dates.min() if is_regular(dates, missing="ffill") else spans[order]
    return spans[None] < min(spans[True], spans[False]) / 2


def to_zone(dates: pd.DatetimeIndex, zone: str, series: Int64[np.ndarray, " t"] | None, name: Name) -> pd.DatetimeIndex:
    """Dates in a time zone. Local times without offset are its clock times; a skipped midnight is the next time.

    Its order within each series shows which of two equal hours is the first; `series` has the series of each row.
    """
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ArgumentError("time_zone", "be a name such as 'Europe/Rome' or 'UTC'", shorten(zone)) from None
    if dates.tz is not None:
        return dates.tz_convert(zone)
    if (dates == dates.normalize()).all():
        return to_zone_days(dates, zone)
    stamps = pd.DataFrame({"series": 0 if series is None else series, "time": dates})
    found = dates.tz_localize(zone, ambiguous=~stamps.duplicated().to_numpy(), nonexistent="NaT")
    alone = ~stamps.duplicated(keep=False).to_numpy()
    unknown = np.flatnonzero(
        dates.tz_localize(zone, ambiguous="NaT", nonexistent="NaT").isna() & (alone | found.isna())
    )
    if len(unknown):
        row = int(unknown[0])
        why = "which the clocks skip" if found[row] is pd.NaT else "an hour that the clocks repeat, but only once"
        raise ArgumentError(
            name,
            f"have local times of {zone}",
            f"{dates[row]} at data row {row + 1}, {why}",
            "write dates with their offset, such as 2016-07-01T00:00+02:00",
        )
    return found


def _stored_dates(column: Any, label: Name) -> pd.DatetimeIndex:
    """Dates of a column that holds dates, not text."""
    native = column.to_native()
    if column.dtype in (nw.Duration, nw.Time):
        raise ArgumentError(label, "have dates or whole numbers", column.dtype, "add a start date to them")
    if isinstance(native, pd.Series):
        dates = pd.DatetimeIndex(native)
    else:
        zone = getattr(column.dtype, "time_zone", None)
        utc = column.cast(nw.Datetime("us", zone)).dt.timestamp("us").to_numpy()
        dates = pd.DatetimeIndex(pd.to_datetime(utc, unit="us"))
        dates = dates if zone is None else dates.tz_localize("UTC").tz_convert(zone)
    if dates.hasnans:
        row = int(dates.isna().argmax()) + 1
        raise ArgumentError(label, "have a date in every row", f"none at data row {row}")
    return dates


def categories_of(column: Any, known: Sequence[str] | None) -> tuple[str, ...] | None:
    """The texts of a column, sorted, or those that are known; None for a column of numbers."""
    if column.dtype.is_numeric() or (known is None and column.dtype.is_temporal()):
        return None
    return tuple(sorted({str(cell) for cell in column.drop_nulls().unique().to_list()}) if known is None else known)


def to_codes(column: Any, categories: Sequence[str], name: Name) -> np.ndarray:
    """The place of each cell in the known categories."""
    places = {text: place for place, text in enumerate(categories)}
    codes = [None if cell is None or cell != cell else places.get(str(cell), -1) for cell in column.to_list()]
    if None in codes:
        where = f"at data row {codes.index(None) + 1} ({codes.count(None)} such rows)"
        raise ArgumentError(
            part_of(name, f"column {column.name!r}"),
            "have text in every row",
            f"an empty cell {where}",
            "fill empty cells, for example with 'none'",
        )
    if -1 in codes:
        row = codes.index(-1)
        raise ArgumentError(
            part_of(name, f"column {column.name!r}"),
            f"have a category of fit in every row, {shorten(list(categories))}",
            f"{column[row]!r} at data row {row + 1}",
            "change it, or fit again",
        )
    return np.asarray(codes, dtype=np.float64)


def to_steps(
    frame: Any, columns: Sequence[Any], missing: str, codes: Sequence[float] | None, name: Name
) -> tuple[Values, tuple[str, ...]]:
    """Numbers (n, L) of a table with one case per row and one step per column, and the names of the steps."""
    table = pd.DataFrame({str(column): frame.get_column(column).to_numpy() for column in columns})
    give_id = Phrase("give ", Argument("id"), ", if the column names the cases")
    numbers = to_numbers(table, name, (give_id, "drop it", "convert it to numbers"))
    numbers = mark_missing(numbers, codes or ())
    if missing == "error":
        # before cases are made, whose errors name no row and no column of the table
        fill_missing(numbers, list(table.columns), name, missing)
    return numbers, tuple(table.columns)


def remedies_for(data: object) -> tuple[str | Phrase, ...]:
    """How to make a table of data that are none; nothing if they are of an unknown kind."""
    remedies: dict[str, tuple[str | Phrase, ...]] = {
        "toarray": ("sparse data must be dense: call toarray() on it",),
        "to_frame": ("make it a frame with to_frame()",),
        "collect": ("collect it first",),
        "items": ("make it a frame with pandas.DataFrame()",),
        "append": ("make it an array", Phrase("join frames with pandas.concat() and give ", Argument("id"))),
    }
    return next((parts for method, parts in remedies.items() if hasattr(data, method)), ())


def warn_of_misread(panel: Panel) -> None:
    """Warn of a step that looks like an id, and of a channel that looks like the time of each case.

    A step of whole numbers looks like an id if it has the name of one and equal numbers follow each other, or if it is
    the first step, differs in each case, and increases or is the only step of whole numbers. A time increases by the
    same step in each case, if its rows are sorted.
    """
    cells = np.stack([case[:, 0] for case in panel.values]) if panel.steps else np.empty((0, 0))  # (n, l)
    whole = (cells == np.rint(cells)).all(0)
    for place, step in enumerate(panel.steps):
        values = cells[:, place]
        first = not place and len(values) >= _SORTED and (whole.sum() == 1 or (np.diff(values) > 0).all())
        distinct = len(set(values))
        named = _IDS.fullmatch(step) and 1 < distinct == 1 + np.count_nonzero(np.diff(values))
        if whole[place] and (named or (first and distinct == len(values))):
            text = f"column {step!r} is read as step {place + 1} of each case, but looks like an id; give "
            warnings.warn(ArgumentWarning(text, Argument("id", step), " if it names the cases."), stacklevel=3)
    is_long = panel.id_column is not None and panel.times is None and not panel.steps
    for place, column in enumerate(panel.columns) if is_long and len(panel.columns) > 1 else ():
        gaps = [np.diff(np.sort(case[:, place])) for case in panel.values]
        every = np.concatenate(gaps)
        if len(every) > len(gaps) and every[0] > 0 and np.allclose(every, every[0]):
            text = f"column {column!r} is read as a channel, but looks like a time; give "
            remedy = Phrase(Argument("time", column), " if it is one, or choose the channels with ", Argument("values"))
            warnings.warn(ArgumentWarning(text, remedy, "."), stacklevel=3)


def warn_of_steps(panel: Panel, chosen: Collection[str]) -> None:
    """Warn of a column that rises by one step in all rows of a table without times; the user chose some columns."""
    for place, column in enumerate(panel.columns) if len(panel.columns) > 1 else ():
        gaps = np.concatenate([np.diff(rows[:, place]) for rows in panel.values])
        equal = len(gaps) >= _EQUAL and gaps[0] > 0 and np.allclose(gaps, gaps[0], atol=0.0)
        if equal and column not in chosen:
            whole = all((rows[:, place] % 1 == 0).all() for rows in panel.values)
            remedy = Phrase("choose the other columns with ", Argument("values"))
            if whole:
                remedy = Phrase("give ", Argument("time", column))
            text = f"column {column!r} is read as values, but looks like a time; "
            warnings.warn(ArgumentWarning(text, remedy, " if it is one."), stacklevel=3)


def without_text(frame: Any, columns: Sequence[Any], kept_text: Collection[str], ids: Any, name: Name) -> list[Any]:
    """The columns but those of text that are constant in each series; a warning names these."""
    left: list[Any] = []
    for column in columns:
        cells = frame.get_column(column)
        is_text = cells.dtype in (nw.String, nw.Object, nw.Categorical) and len(cells) and isinstance(cells[0], str)
        # text that begins like a number, such as '12 MW', should have been one
        if is_text and str(column) not in kept_text and cells[0].strip()[:1] not in "+-.0123456789":
            found = pd.DataFrame({"id": 0 if ids is None else ids, "cell": cells.to_numpy()})
            if len(found.drop_duplicates()) == found["id"].nunique():
                left.append(column)
    if left:
        shown = ", ".join(map(repr, left))
        text = f" with the same text in all rows of a series are left out: {shown}."
        warnings.warn(ArgumentWarning(part_of(name, "columns"), text), stacklevel=4)
    return [column for column in columns if column not in left]
