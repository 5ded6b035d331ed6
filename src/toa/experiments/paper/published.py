"""Numbers of the paper's tables, from arXiv:2605.11287."""

import csv
import math
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedNumber:
    """One number of a table.

    Attributes:
        horizon: Number of steps, "avg" for a mean over horizons, "" if there is none.
        variant: The attention; "-nosor" means without stochastic operator regularization.
        text: The number as printed.
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
# the last column of the file is the number
_COLUMNS = (*_FIELDS[:-1], "value")


@cache
def published_numbers() -> tuple[PublishedNumber, ...]:
    """Every number, in the file's order."""
    content = (files("toa.experiments.paper") / "published.csv").read_text(encoding="utf-8")
    return parse_published(content, "published.csv")


def parse_published(content: str, where: str) -> tuple[PublishedNumber, ...]:
    """Parse the text of a file.

    Raises:
        ValueError: If columns are wrong, a value is not a finite number, or a number appears twice.
    """
    rows = csv.reader(content.splitlines())
    header = tuple(next(rows, ()))
    if header != _COLUMNS:
        raise ValueError(f"{where} must have the columns {', '.join(_COLUMNS)}, got {', '.join(header)}.")
    numbers: dict[tuple[str, ...], PublishedNumber] = {}
    for line, row in enumerate(rows, 2):
        if len(row) != len(_COLUMNS):
            raise ValueError(f"line {line} of {where} must have {len(_COLUMNS)} fields, got {len(row)}.")
        *key, text = row
        if not _is_finite(text):
            raise ValueError(f"line {line} of {where} must end with a finite number, got {text!r}.")
        if tuple(key) in numbers:
            raise ValueError(f"line {line} of {where} must name a new number, got {', '.join(key)} again.")
        numbers[tuple(key)] = PublishedNumber(**dict(zip(_FIELDS, row, strict=True)))
    return tuple(numbers.values())


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
