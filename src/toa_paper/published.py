"""The published numbers of the paper (arXiv:2605.11287); `tables` has the runs that reproduce them."""

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
    content = (files("toa_paper") / "published.csv").read_text(encoding="utf-8")
    return tuple(PublishedNumber(text=row.pop("value"), **row) for row in csv.DictReader(content.splitlines()))


# these backbones have an attention of their own
_WITHOUT_CHOICE = ("autoformer", "informer")
# the rows of the efficiency table by name; the name is that of the model in a forecasting run
ROWS = {
    row.backbone if row.backbone in _WITHOUT_CHOICE else f"{row.backbone}/{row.variant}": row
    for row in published_numbers()
    if row.table == "efficiency"
}
