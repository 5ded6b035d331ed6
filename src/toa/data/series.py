"""Series: the values of a file with their names and dates, and the refusals every reader shares."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64

from toa._checks import check_choice

FILLS = ("ffill", "interpolate", "zero")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Series:
    """A multivariate time series.

    Args:
        values: (T, C) in float64, finite.
        columns: C names.
        dates: T dates, or None where the file has none.
    """

    values: Float64[np.ndarray, "t c"]
    columns: tuple[str, ...]
    dates: pd.DatetimeIndex | None = None

    def __post_init__(self) -> None:
        rows = len(self.values) if self.dates is None else len(self.dates)
        if self.values.shape != (rows, len(self.columns)):
            raise ValueError(
                f"values must have shape (T, C)={(rows, len(self.columns))}, as many as dates and columns, "
                f"got {self.values.shape}."
            )


def numeric_values(frame: pd.DataFrame, name: str, fill: str | None) -> Float64[np.ndarray, "t c"]:
    """The frame as float64 (T, C): numbers alone, no gaps unless `fill` closes them, nothing infinite."""
    if fill is not None:
        check_choice("fill", fill, FILLS)
    return fill_missing(to_numbers(frame, name), tuple(map(str, frame.columns)), name, fill)


def to_numbers(frame: pd.DataFrame, name: str) -> Float64[np.ndarray, "t c"]:
    """The frame as float64 (T, C), NaN where a value is missing: no text, nothing infinite."""
    if not len(frame):
        raise ValueError(f"{name} must have at least one row of values, got none; is the file complete?")
    if not len(frame.columns):
        raise ValueError(f"{name} must have at least one column of values, got dates alone.")
    for column in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[column]) or pd.api.types.is_bool_dtype(frame[column]):
            _refuse_text(frame[column], str(column), name)
    values = frame.to_numpy(dtype=np.float64, na_value=np.nan)  # (T, C)
    infinite = np.isinf(values)
    if infinite.any():
        row, column = (int(place) for place in np.argwhere(infinite)[0])
        raise ValueError(
            f"{name} must be finite, got {int(infinite.sum())} infinite values, the first in column "
            f"{frame.columns[column]!r} at data row {row + 1}; remove them, or leave the cells empty and choose a fill."
        )
    return values


def fill_missing(
    values: Float64[np.ndarray, "t c"], columns: Sequence[str], name: str, fill: str | None, *, option: str = "fill"
) -> Float64[np.ndarray, "t c"]:
    """Values without NaN: closed by `fill`, or refused; errors call the choice `option`."""
    if not np.isnan(values).any():
        return values
    if fill is not None:
        values = _filled(values, fill)
    missing = np.isnan(values).sum(0)
    if missing.any():
        counts = {c: int(n) for c, n in zip(columns, missing, strict=True) if n}
        remedy = (
            f"fill them with {option}='ffill' (the last value, no look ahead) or {option}='interpolate' (linear, "
            "looks ahead)"
            if fill is None
            else f"{option}={fill!r} has no value before them to go on from: cut the first rows or drop the column"
        )
        raise ValueError(f"{name} must have no missing values, got {_listed(counts)}; {remedy}.")
    return values


def parse_dates(text: "pd.Series[str]", name: str, *, allow_duplicates: bool = False) -> pd.DatetimeIndex:
    """Dates in rising order; the first that cannot be read, falls back or repeats is named."""
    dates = read_dates(text, name)
    check_rising(dates, name, allow_duplicates=allow_duplicates)
    return dates


def read_dates(text: "pd.Series[str]", name: str) -> pd.DatetimeIndex:
    """Dates, one in every row; the first that cannot be read is named."""
    dates = _parsed(text, name)
    bad = np.flatnonzero(dates.isna())
    if len(bad):
        raise ValueError(
            f"{name} must have a date in every row, got {text.iloc[bad[0]]!r} at data row {bad[0] + 1} "
            f"({len(bad)} such rows); write dates as 2016-07-01 00:00:00."
        )
    return dates


def check_rising(
    dates: pd.Index,
    name: str,
    *,
    rows: Int64[np.ndarray, " t"] | None = None,
    inner: Bool[np.ndarray, " s"] | None = None,
    allow_duplicates: bool = False,
) -> None:
    """Refuse dates, or numbers of steps, that fall back or repeat.

    Args:
        dates: T of them.
        name: What errors call the table.
        rows: Its rows that they come from, counted from 0; all of them if None.
        inner: Whether a date and the next belong to one series, T - 1 of them; always if None.
        allow_duplicates: Whether a date may stand in two rows that follow each other.
    """
    steps = np.diff(dates.asi8 if isinstance(dates, pd.DatetimeIndex) else dates.to_numpy())  # (T - 1,)
    if inner is not None:
        steps = np.where(inner, steps, 1)

    def where(place: int) -> int:
        return place + 1 if rows is None else int(rows[place]) + 1

    back = np.flatnonzero(steps < 0)
    if len(back):
        last = int(back[0]) + 1
        raise ValueError(
            f"{name} must be sorted by date, got {dates[last]} after {dates[last - 1]} at data row {where(last)}; "
            "sort it."
        )
    same = np.flatnonzero(steps == 0)
    if len(same) and not allow_duplicates:
        last = int(same[0]) + 1
        raise ValueError(
            f"{name} must have each date once, got {dates[last]} again at data row {where(last)} "
            f"({len(same)} such rows); keep one row a date."
        )


def _parsed(text: "pd.Series[str]", name: str) -> pd.DatetimeIndex:
    import warnings

    with warnings.catch_warnings():
        # pandas warns where it cannot guess one format and tries each cell
        warnings.simplefilter("ignore", UserWarning)
        try:
            dates = pd.DatetimeIndex(pd.to_datetime(text, errors="coerce"))
            if dates.isna().any():
                # exports often leave the time out at midnight: ISO dates of differing length
                mixed = pd.DatetimeIndex(pd.to_datetime(text, errors="coerce", format="ISO8601"))
                dates = mixed if mixed.isna().sum() < dates.isna().sum() else dates
        except ValueError as error:
            raise ValueError(f"{name} must have dates in one time zone, got {error}; write them in UTC.") from error
    return dates


def _refuse_text(column: "pd.Series[str]", label: str, name: str) -> None:
    numbers = pd.to_numeric(column, errors="coerce")
    bad = np.flatnonzero((numbers.isna() & column.notna()) | (column.dtype == bool))
    row = int(bad[0]) if len(bad) else 0
    raise ValueError(
        f"{name} must have numeric columns alone, got {str(column.iloc[row])!r} in column {label!r} at data row "
        f"{row + 1}; drop the column or turn it into numbers."
    )


def _filled(values: Float64[np.ndarray, "t c"], fill: str) -> Float64[np.ndarray, "t c"]:
    frame = pd.DataFrame(values)
    if fill == "zero":
        return frame.fillna(0.0).to_numpy(dtype=np.float64)
    done = frame.ffill() if fill == "ffill" else frame.interpolate("linear", limit_direction="forward")
    return done.to_numpy(dtype=np.float64)


def _listed(counts: dict[str, int], most: int = 8) -> str:
    shown: Sequence[str] = [f"{count} in {column!r}" for column, count in counts.items()][:most]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and more in {more} further columns" if more else "")
