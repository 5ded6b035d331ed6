"""The catalogue of benchmark datasets, read from the TOML files in `catalogues/`.

To add a dataset, add a table to the TOML file of its task. The classes below are the fields of an entry.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from toa._checks import ArgumentError, check_choice
from toa._registry import Registry
from toa.data.frequency import FREQUENCIES
from toa.data.panel import FILLS
from toa.data.splits import SPLIT_RULES

# "ett-csv" keeps the order of the columns, "csv" moves the target to the end, "csv-undated" has a header but no dates,
# "npy" is an array (T, C), "tsf" has a channel per series
READERS = ("csv", "ett-csv", "csv-undated", "txt", "npz", "npy", "tsf")
UEA_ARCHIVE = "https://www.timeseriesclassification.com"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSpec:
    """One file of a dataset.

    Args:
        path: Path below a data folder, in the layout of the Time-Series-Library and iTransformer data packs.
        url: Address of the file, or None if no official server has it in this layout.
        sha256: Checksum of the unpacked content.
        git_id: The id that git gives the content, a SHA-1, for a file whose sha256 is not known.
        note: Hint for users who miss the file.
    """

    name: str
    source: str
    path: str
    url: str | None = None
    sha256: str | None = None
    git_id: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise ArgumentError("path", "be relative to a data folder and stay inside it", repr(self.path))
        if self.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ArgumentError("sha256", "be 64 lowercase hexadecimal digits", repr(self.sha256))
        if self.git_id is not None and not re.fullmatch("[0-9a-f]{40}", self.git_id):
            raise ArgumentError("git_id", "be 40 lowercase hexadecimal digits", repr(self.git_id))


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec(FileSpec):
    """A forecasting dataset: one file.

    Args:
        channels: Number of value columns, without dates.
        reader: File format, see `toa.data.read_dataset`.
        target: Column that the "csv" reader moves to the end.
        subset_of: The full dataset, if this is a part of one. Results on a part are not benchmark results.
        duplicate_dates: Whether the official file repeats a date; otherwise a repeated date raises an error.
        missing_value: Number that the file has where a value is missing; it is read as missing.
        fill: How missing values are filled unless a run chooses: a name of `toa.data.panel.FILLS`, or None.
        log: Whether x is read as sign(x) log(1 + |x|), for counts with a heavy tail.
    """

    rows: int
    channels: int
    frequency: str
    split: str
    reader: str
    licence: str
    target: str | None = None
    subset_of: str | None = None
    duplicate_dates: bool = False
    missing_value: float | None = None
    fill: str | None = None
    log: bool = False

    def files(self) -> tuple[str, ...]:
        """Paths below a data folder."""
        return (self.path,)

    def __post_init__(self) -> None:
        FileSpec.__post_init__(self)
        check_choice("frequency", self.frequency, FREQUENCIES)
        check_choice("split", self.split, SPLIT_RULES)
        check_choice("reader", self.reader, READERS)
        if self.fill is not None:
            check_choice("fill", self.fill, FILLS)


# train, test and labels; without labels, they are the last column of both other files
AnomalyFiles = tuple[FileSpec, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnomalySpec:
    """An anomaly-detection dataset: a train series, a test series and a label for each test step.

    Args:
        channels: Number of value columns, without index, dates and labels.
        label_ratio: Share of test steps labelled anomalous, to four digits.
        layouts: Alternative sets of files. The first complete one is read.
        fill: How the field fills missing values, or None if the files have none.
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
        if not self.layouts or any(len(files) not in (2, 3) for files in self.layouts):
            raise ArgumentError("layouts", f"name train, test and labels of {self.name}", self.layouts)

    def files(self) -> tuple[str, ...]:
        """Paths below a data folder, in the first layout."""
        return tuple(file.path for file in self.layouts[0])

    @property
    def served(self) -> AnomalyFiles | None:
        """The layout that can be downloaded, or None."""
        return next((files for files in self.layouts if all(file.url for file in files)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassificationSpec:
    """A dataset of the UEA archive: labelled cases for training and for testing.

    Args:
        length: Steps of the longest case.
        classes: Number of classes in the training cases.
        verified: Whether the sizes were read from the files. Otherwise only channels and classes are checked, because
            releases of the archive differ in cases or length.
        sha256: Checksums of one known copy of both unpacked files. Other copies may differ in bytes.
    """

    name: str
    train: int
    test: int
    length: int
    channels: int
    classes: int
    variable: bool = False
    verified: bool = False
    sha256: tuple[str, ...] = ()

    def files(self) -> tuple[str, str]:
        """Paths of the training and test file below a data folder."""
        return f"{self.name}/{self.name}_TRAIN.ts", f"{self.name}/{self.name}_TEST.ts"


def read_entries(task: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and fields of a catalogue file, with defaults and group fields filled in."""
    content = tomllib.loads((Path(__file__).parent / "catalogues" / f"{task}.toml").read_text(encoding="utf-8"))
    defaults, groups = content.pop("defaults", {}), content.pop("groups", {})
    for name, entry in content.items():
        yield name, {**defaults, **groups.get(entry.pop("group", None), {}), **entry, "name": name}


def _anomaly_spec(entry: Mapping[str, Any]) -> AnomalySpec:
    fields = dict(entry)
    layouts, url, sha256, served = (fields.pop(name, None) for name in ("layouts", "url", "sha256", "served"))
    part = fields["name"].removeprefix(f"{fields.get('subset_of')}-")
    about = {name: fields.get(name, "") for name in ("name", "source", "note")}

    def file_spec(path: str, expected: str | None, base: str | None) -> FileSpec:
        path = path.format(part=part)
        sums: dict[str, Any] = {"git_id" if expected and len(expected) == 40 else "sha256": expected}
        return FileSpec(**about, **sums, path=path, url=None if base is None else f"{base}/{path}")

    layouts_of_files = []
    for number, paths in enumerate(layouts):
        base = url if number == len(layouts) - 1 else None
        sums = (sha256 if number == 0 else served) or [None] * len(paths)
        layouts_of_files.append(
            tuple(file_spec(path, expected, base) for path, expected in zip(paths, sums, strict=True))
        )
    return AnomalySpec(**fields, layouts=tuple(layouts_of_files))


DATASETS: Registry[DatasetSpec] = Registry("dataset")
ANOMALY_SETS: Registry[AnomalySpec] = Registry("anomaly set")
CLASSIFICATION_SETS: Registry[ClassificationSpec] = Registry("classification dataset")

for _name, _entry in read_entries("forecasting"):
    _fields = {key: value.format(name=_name) if key in ("path", "url") else value for key, value in _entry.items()}
    DATASETS.register(_name)(DatasetSpec(**_fields))
for _name, _entry in read_entries("anomaly"):
    ANOMALY_SETS.register(_name)(_anomaly_spec(_entry))
for _name, _entry in read_entries("classification"):
    CLASSIFICATION_SETS.register(_name)(ClassificationSpec(**{**_entry, "sha256": tuple(_entry.get("sha256", ()))}))
