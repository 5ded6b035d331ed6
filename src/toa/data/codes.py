"""Numbers that a file has where a value is missing, such as -9999: find them, name them, read them as missing.

    codes = find_codes(values, columns)         # what looks like such a number, with column and count
    values = mark_missing(values, [-9999.0])    # NaN where a value is one of these numbers

A number looks like a code for a missing value if all of this holds:

- it is written as codes are: only nines (-99, 999, -999.9, 9999.99), four or more sevens or eights, the end of a type
  of integers (32766, 32767, -32768, 65535, 2147483647, …), or 1e20 and more;
- it repeats: the table has it at least twice;
- it lies far outside: the other values of its column have no value beyond it, and its distance to the nearest of them
  is larger than their range. For a positive number of nines, such as a price of 999, it is ten times their range. A
  negative number of three or more nines is also outside if no other value of the column is negative.

Alphabet: T rows, C columns.
"""

import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from toa._checks import Argument, ArgumentError, ArgumentWarning, Name, as_part
from toa._limits import list_first, shorten

# fewest cells of a table with the same number
_FEWEST = 2
# numbers from this size on are codes in any form, such as 1e30 or the fill values of netCDF
_HUGE = 1e20
# ends of the integers of 16, 32 and 64 bits, and the numbers beside them that files use
_TYPE_ENDS = frozenset(
    sign * float(end)
    for end in (32766, 32767, 32768, 65534, 65535, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
    for sign in (1, -1)
)
_NINES = re.compile(r"-9{2,}(\.9+)?|9{3,}(\.9+)?|99\.9+")
_SEVENS_OR_EIGHTS = re.compile(r"-?(7{4,}|8{4,})")
# digits by which a number is read, so that -999.9 in single precision is -999.9
_DIGITS = 7
# largest number that is exact as an integer
_EXACT = 2.0**53
# distance of a positive number of nines to the other values, in ranges of these
_FAR_NINES = 10.0
# smallest negative number of nines that is a code among values without any negative one
_LEAST_NEGATIVE = 900.0


@dataclass(frozen=True, slots=True)
class Code:
    """A number in a column that looks like a code for a missing value."""

    column: str
    value: float
    count: int


def find_codes(values: Float64[np.ndarray, "t c"], columns: Sequence[str]) -> list[Code]:
    """What looks like a code for a missing value; see the rule above."""
    finite = np.isfinite(values)
    # a mask takes several times as long
    mask: Any = {} if finite.all() else {"where": finite}
    least = np.min(values, axis=0, initial=np.inf, **mask)
    most = np.max(values, axis=0, initial=-np.inf, **mask)
    codes: list[Code] = []
    for place, column in enumerate(columns):
        if _looks_like_code(least[place]) or _looks_like_code(most[place]):
            codes += _column_codes(values[finite[:, place], place], column)
    counts: dict[float, int] = {}
    for code in codes:
        counts[code.value] = counts.get(code.value, 0) + code.count
    return [code for code in codes if counts[code.value] >= _FEWEST]


def _column_codes(values: Float64[np.ndarray, " t"], column: str) -> list[Code]:
    """Numbers of a column that are written as codes and lie far outside of its other values."""
    rest = values
    candidates: dict[float, int] = {}
    while len(rest):
        ends = [end for end in (float(rest.min()), float(rest.max())) if _looks_like_code(end)]
        if not ends:
            break
        equal = rest == ends[0]
        candidates[ends[0]] = int(equal.sum())
        rest = rest[~equal]
    if not len(rest):
        return []
    return [Code(column, value, count) for value, count in candidates.items() if _is_far(value, rest)]


def _is_far(value: float, rest: Float64[np.ndarray, " t"]) -> bool:
    """Whether a number lies far outside of the other values."""
    least = float(rest.min())
    most = float(rest.max())
    if value < 0 <= least and -value >= _LEAST_NEGATIVE:
        return True
    distance = max(least - value, value - most)
    times = _FAR_NINES if value > 0 and _NINES.fullmatch(_text_of(value)) else 1.0
    # without a range nothing shows what far is
    return most > least and distance > times * (most - least)


def _looks_like_code(value: float) -> bool:
    """Whether a number is written as codes for missing values are."""
    if not np.isfinite(value):
        return False
    if abs(value) >= _HUGE or value in _TYPE_ENDS:
        return True
    text = _text_of(value)
    return bool(_NINES.fullmatch(text) or _SEVENS_OR_EIGHTS.fullmatch(text))


def _text_of(value: float) -> str:
    """A number without an exponent, in single precision if it has decimals."""
    return f"{value:.0f}" if value == np.rint(value) and abs(value) < _EXACT else f"{value:.{_DIGITS}g}"


def mark_missing(values: Float64[np.ndarray, "t c"], missing_values: Collection[float]) -> np.ndarray:
    """The values with NaN in place of these numbers; one in single precision is equal to its short form."""
    marked = np.zeros(values.shape, dtype=bool)
    for number in missing_values:
        marked |= _equals(values, float(number))
    return np.where(marked, np.nan, values) if marked.any() else values


def _equals(values: np.ndarray, number: float) -> Bool[np.ndarray, "t c"]:
    single = np.float64(np.float32(number)) if abs(number) < np.finfo(np.float32).max else number
    equal: np.ndarray = (values == number) | (values == single)
    return equal


def warn_of_codes(values: Float64[np.ndarray, "t c"], columns: Sequence[str], name: Name, stacklevel: int) -> None:
    """Warn of numbers that look like codes for missing values, with their columns and counts."""
    codes = find_codes(values, columns)
    if codes:
        listed = list_first(
            [f"{_text_of(code.value)} in column {code.column!r} ({code.count} times)" for code in codes], 8
        )
        first = codes[0].value
        given = Argument("missing_values", int(first) if first == np.rint(first) and abs(first) < _EXACT else first)
        text = f" has numbers that look like codes for missing values: {listed}. They are read as values; give "
        nothing = Argument("missing_values", float("nan"))
        warning = ArgumentWarning(as_part(name), text, given, " if they mean missing values, or ", nothing, " if not.")
        warnings.warn(warning, stacklevel=stacklevel + 1)


def missing_numbers(missing_values: object) -> tuple[float, ...] | None:
    """The numbers that mean a missing value; None if nothing is known. NaN means one in any case."""
    if missing_values is None:
        return None
    numbers: list[float] = []
    for number in missing_values if isinstance(missing_values, list | tuple | np.ndarray) else [missing_values]:
        if isinstance(number, bool) or not isinstance(number, int | float | np.integer | np.floating):
            raise ArgumentError("missing_values", "be numbers, such as [-9999]", shorten(missing_values))
        numbers.append(float(number))
    return tuple(numbers)
