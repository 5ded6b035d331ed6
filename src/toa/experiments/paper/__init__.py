"""The tables of the paper (arXiv:2605.11287): published numbers here, and in `tables` the runs that reproduce them."""

import csv
from dataclasses import dataclass
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


@cache
def published_numbers() -> tuple[PublishedNumber, ...]:
    """Every number, in the order of the file."""
    content = (files("toa.experiments.paper") / "published.csv").read_text(encoding="utf-8")
    return tuple(PublishedNumber(text=row.pop("value"), **row) for row in csv.DictReader(content.splitlines()))
