"""Labelled cases from .ts files, through aeon's reader; gzipped files are read as they are."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from toa.data.location import open_unpacked

Case = Float64[np.ndarray, "l c"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LabelledCases:
    """Cases (l, C) of a file, gaps as NaN, and the name of each one's class."""

    cases: list[Case]
    labels: list[str]

    @property
    def channels(self) -> int:
        """Channels of every case."""
        return int(self.cases[0].shape[1])

    @property
    def length(self) -> int:
        """Steps of the longest case."""
        return max(len(case) for case in self.cases)

    def __len__(self) -> int:
        return len(self.cases)


def read_ts(path: str | Path) -> LabelledCases:
    """Read a .ts or .ts.gz file of cases with classes.

    Raises:
        ValueError: If the file is empty, its header broken or without classes, or a case not like the others.
    """
    path = Path(path)
    _check_header(path)
    from aeon.datasets import load_from_ts_file

    with _unpacked(path) as plain:
        try:
            data, labels = load_from_ts_file(str(plain))
        except (OSError, ValueError, IndexError) as error:
            said = " ".join(str(error).replace(str(plain), path.name).split())
            raise ValueError(f"{path} must hold cases with as many channels and values each, got: {said}.") from error
    if not len(data):
        raise ValueError(f"{path} must hold cases below @data, got none; is the file complete?")
    cases = [np.ascontiguousarray(case.T, dtype=np.float64) for case in data]  # each (l, C)
    return LabelledCases(cases=cases, labels=[str(label).strip() for label in labels])


def _check_header(path: Path) -> None:
    """Refuse what aeon would read as a file without cases."""
    tags: dict[str, str] = {}
    with open_unpacked(path) as file:
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8").strip().lower()
            except UnicodeDecodeError as error:
                raise ValueError(f"{path} must be text in UTF-8, got {error}; save it in UTF-8.") from error
            if not line or line.startswith("#"):
                continue
            if not line.startswith("@"):
                raise ValueError(
                    f"{path} must have a header of lines that start with @ and end with @data, got {line[:40]!r} in "
                    f"line {number} before @data; is it a .ts file?"
                )
            tag, _, value = line.partition(" ")
            tags[tag] = value.strip()
            if tag == "@data":
                break
    if not tags:
        raise ValueError(f"{path} must hold a header and cases, got an empty file; is the download complete?")
    if "@data" not in tags:
        raise ValueError(f"{path} must have a line @data between header and cases, got none; is the file complete?")
    if not tags.get("@classlabel", "").startswith("true "):
        raise ValueError(
            f"{path} must name its classes in a line '@classLabel true A B ...', got "
            f"{tags.get('@classlabel', 'no such line')!r}; only files for classification are read."
        )


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """A plain file with the same content: aeon reads files by name, and none that are gzipped."""
    if path.suffix != ".gz":
        yield path
        return
    with tempfile.TemporaryDirectory() as folder, open_unpacked(path) as file:
        plain = Path(folder) / path.stem
        plain.write_bytes(file.read())
        yield plain
