"""The numbers of the paper's tables as data, from arXiv:2605.11287."""

import csv
import math
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedNumber:
    """One number of a table.

    Attributes:
        horizon: Steps, "avg" for a mean over horizons, "" where there are none.
        variant: The attention; "-nosor" is without stochastic operator regularization.
        text: The number as printed, with its digits.
    """

    table: str
    dataset: str
    horizon: str
    backbone: str
    variant: str
    metric: str
    text: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)


_FIELDS = tuple(field.name for field in fields(PublishedNumber))
# the file's last column is the number itself
_COLUMNS = (*_FIELDS[:-1], "value")


@cache
def published_numbers() -> tuple[PublishedNumber, ...]:
    """Every number, in the file's order."""
    content = (files("toa.experiments") / "published.csv").read_text(encoding="utf-8")
    return parse_published(content, "published.csv")


def parse_published(content: str, where: str) -> tuple[PublishedNumber, ...]:
    """Numbers from the text of a file.

    Raises:
        ValueError: If columns are wrong, a value is no finite number, or a number stands twice.
    """
    rows = csv.reader(content.splitlines())
    header = tuple(next(rows, ()))
    if header != _COLUMNS:
        raise ValueError(f"{where} must have the columns {', '.join(_COLUMNS)}, got {', '.join(header)}.")
    numbers: dict[tuple[str, ...], PublishedNumber] = {}
    for place, row in enumerate(rows, 2):
        if len(row) != len(_COLUMNS):
            raise ValueError(f"line {place} of {where} must have {len(_COLUMNS)} fields, got {len(row)}.")
        *key, text = row
        if not _is_finite(text):
            raise ValueError(f"line {place} of {where} must end with a finite number, got {text!r}.")
        if tuple(key) in numbers:
            raise ValueError(f"line {place} of {where} must name a number of its own, got {', '.join(key)} again.")
        numbers[tuple(key)] = PublishedNumber(**dict(zip(_FIELDS, row, strict=True)))
    return tuple(numbers.values())


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
