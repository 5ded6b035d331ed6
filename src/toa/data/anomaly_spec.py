"""AnomalySpec: a train series, a test series and the labels of its steps, in one or more layouts of files."""

from collections.abc import Iterator
from dataclasses import dataclass

from toa._checks import check_at_least, check_choice
from toa.data.series import FILLS
from toa.data.spec import FileSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class AnomalyFiles:
    """The files of a set in one layout; without `labels`, they are the last column of both other files."""

    train: FileSpec
    test: FileSpec
    labels: FileSpec | None

    def __iter__(self) -> Iterator[FileSpec]:
        yield from (file for file in (self.train, self.test, self.labels) if file is not None)

    @property
    def served(self) -> bool:
        """Whether every file can be downloaded."""
        return all(file.url is not None for file in self)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnomalySpec:
    """One set of the catalogue for anomaly detection.

    Args:
        channels: Columns of values; an index, dates and labels do not count.
        label_ratio: Share of test steps that are labelled anomalous, to four digits.
        layouts: Where the files may lie; the first whole one is read.
        index_column: Whether the first column of each csv file is an index, to be left out.
        fill: What the field does about missing values; None where the files have none.
        subset_of: The full set, if this is a part of one.
    """

    name: str
    train_rows: int
    test_rows: int
    channels: int
    label_ratio: float
    licence: str
    source: str
    layouts: tuple[AnomalyFiles, ...]
    index_column: bool = False
    fill: str | None = None
    subset_of: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("train_rows", "test_rows", "channels"):
            check_at_least(name, getattr(self, name), 1)
        if not 0.0 < self.label_ratio < 1.0:
            raise ValueError(f"label_ratio must lie in (0, 1), got {self.label_ratio}.")
        if self.fill is not None:
            check_choice("fill", self.fill, FILLS)
        if not self.layouts:
            raise ValueError(f"layouts must name the files of {self.name} at least once, got none.")

    @property
    def served(self) -> AnomalyFiles | None:
        """The layout that can be downloaded, if there is one."""
        return next((files for files in self.layouts if files.served), None)
