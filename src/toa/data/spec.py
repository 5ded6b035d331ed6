"""FileSpec and DatasetSpec: what a file and a forecasting data set are, where they come from, how they are read."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from toa._checks import check_at_least, check_choice
from toa.data.splits import SPLIT_RULES

FREQUENCIES = ("5min", "10min", "15min", "h", "D", "W")
# ett-csv keeps the file's order of columns, csv moves the target to the end, csv-undated has a header but no dates
READERS = ("csv", "ett-csv", "csv-undated", "txt", "npz")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSpec:
    """One file of a data set that has several.

    Args:
        name: Of the data set.
        path: Place under a data folder.
        source: Page of the maker of the data.
        url: The file itself, for download; None where nobody official serves it in this layout.
        sha256: Of the unpacked content; None where no copy was at hand to compute it.
    """

    name: str
    path: str
    source: str
    url: str | None = None
    sha256: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        _check_file(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    """One data set of the catalogue.

    Args:
        path: Place under a data folder, in the layout of the Time-Series-Library and iTransformer data packs.
        channels: Columns of values; dates do not count.
        split: Name of a rule in `toa.data.splits`.
        reader: Name of a file format, see `toa.data.readers`.
        source: Page of the maker of the data.
        url: The file itself, for download; None where nobody official serves it in this layout.
        sha256: Of the unpacked content; None where no copy was at hand to compute it.
        target: Column that the "csv" reader moves to the end.
        subset_of: The full data set, if this is a part of one; results on a part are no benchmark results.
        duplicate_dates: Whether the true file repeats a date; otherwise a repeated date is refused.
    """

    name: str
    path: str
    rows: int
    channels: int
    frequency: str
    split: str
    reader: str
    licence: str
    source: str
    url: str | None = None
    sha256: str | None = None
    target: str | None = None
    subset_of: str | None = None
    duplicate_dates: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        check_at_least("rows", self.rows, 1)
        check_at_least("channels", self.channels, 1)
        check_choice("frequency", self.frequency, FREQUENCIES)
        check_choice("split", self.split, SPLIT_RULES)
        check_choice("reader", self.reader, READERS)
        _check_file(self)

    @property
    def dated(self) -> bool:
        """Whether the file has dates, so that time marks can be made."""
        return self.reader in ("csv", "ett-csv")


def _check_file(spec: FileSpec | DatasetSpec) -> None:
    place = PurePosixPath(spec.path)
    if place.is_absolute() or ".." in place.parts or not place.name:
        raise ValueError(f"path must be relative to a data folder and stay inside it, got {spec.path!r}.")
    if spec.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", spec.sha256):
        raise ValueError(f"sha256 must be 64 lowercase hexadecimal digits, got {spec.sha256!r}.")
