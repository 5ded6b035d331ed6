"""Collections of many series, such as M4 and M3, and .tsf files, the format of the Monash archive, as panels.

    found = load_collection("M4-Hourly")   # found.train and found.test are panels; found.spec has horizon and season
    panel = read_tsf("tourism.tsf.gz")     # any .tsf file

A value that the file leaves out is NaN in the panel: series are never repaired.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toa._checks import ArgumentError, check_choice
from toa._limits import shorten
from toa._registry import Registry
from toa.data.catalogue import FileSpec, read_entries
from toa.data.contents import read_table, text_lines
from toa.data.files import locate, verify
from toa.data.frequency import make_times
from toa.data.panel import Id, Panel, Values

READERS = ("m4", "m3", "hospital", "wide", "tsf")
# .tsf names of frequencies
_TSF_FREQUENCIES = {
    "yearly": "YS",
    "quarterly": "QS",
    "monthly": "MS",
    "weekly": "7D",
    "daily": "D",
    "hourly": "h",
    "half_hourly": "30min",
    "10_minutes": "10min",
    "4_seconds": "4s",
    "minutely": "min",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectionSpec:
    """A collection of series.

    Args:
        files: Paths below a data folder: history and last values, or one file with both.
        horizon: Steps at the end of each series that are forecast.
        season: Steps per season of the seasonal naive forecast and of MASE; 1 without season.
        part: Which series of the file belong to the collection; None for all.
    """

    name: str
    source: str
    licence: str
    files: tuple[str, ...]
    sha256: tuple[str, ...]
    reader: str
    series: int
    horizon: int
    season: int
    freq: str
    part: str | None = None

    def __post_init__(self) -> None:
        check_choice("reader", self.reader, READERS)
        if len(self.files) != len(self.sha256):
            raise ArgumentError("sha256", f"have one checksum per file of {self.name}", len(self.sha256))

    def file_specs(self) -> tuple[FileSpec, ...]:
        """The files as entries that `locate` and `verify` take."""
        pairs = zip(self.files, self.sha256, strict=True)
        return tuple(FileSpec(name=self.name, source=self.source, path=path, sha256=known) for path, known in pairs)


COLLECTIONS: Registry[CollectionSpec] = Registry("collection")
for _name, _entry in read_entries("collections"):
    _fields = {**_entry, "files": tuple(_entry["files"]), "sha256": tuple(_entry["sha256"])}
    COLLECTIONS.register(_name)(CollectionSpec(**_fields))


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """Histories and the values that follow them.

    Attributes:
        train: Panel of the histories, one column "value".
        test: Panel of the last `spec.horizon` values of the same series.
    """

    spec: CollectionSpec
    train: Panel
    test: Panel

    def joined(self) -> Panel:
        """Whole series, history and last values."""
        whole = tuple(map(np.concatenate, zip(self.train.values, self.test.values, strict=True)))
        return replace(self.train, values=whole, times=None)


def load_collection(name: str, data_dir: str | Path | None = None) -> Collection:
    """Read a collection of the catalogue; raises ValueError if a file differs from it."""
    spec = COLLECTIONS[name]
    paths = [locate(file, data_dir) for file in spec.file_specs()]
    for path, file in zip(paths, spec.file_specs(), strict=True):
        verify(path, file)
    whole, *last = _read(spec, paths)
    if len(whole) != spec.series or any(len(panel) != len(whole) for panel in last):
        found = ", ".join(str(len(panel)) for panel in (whole, *last))
        raise ArgumentError(f"collection {name!r}", f"have {spec.series} series", f"{found} in {paths[0]}")
    if last:
        train = whole
        test = last[0]
    else:
        train = whole.before([spec.horizon] * len(whole))
        test = whole.tail(spec.horizon)
    for index, rows in enumerate(test.lengths):
        if rows != spec.horizon:
            raise ArgumentError(test.label(index, name), f"have {spec.horizon} last values", rows)
    return Collection(spec=spec, train=train, test=test)


def read_tsf(path: str | Path) -> Panel:
    """Read a .tsf or .tsf.gz file: one series per line below @data, with dates if it states start and frequency."""
    path = Path(path)
    names: list[Id] = []
    starts: list[pd.Timestamp] = []
    values: list[Values] = []
    lines = text_lines(path)
    attributes, freq = _read_tsf_header(lines)
    for number, line in lines:
        *fields, series = line.split(":")
        if len(fields) != len(attributes):
            raise ArgumentError(path, f"have {len(attributes)} attributes", f"{len(fields)} in line {number}")
        by_attribute = dict(zip(attributes, fields, strict=True))
        names.append(by_attribute.get("series_name", str(len(values))))
        if "start_timestamp" in by_attribute:
            starts.append(_read_tsf_start(by_attribute["start_timestamp"], path, number))
        values.append(_numbers(series.replace("?", "nan").split(","), path, number))
    if not values:
        raise ArgumentError(path, "hold series below @data", "none", "is the file complete?")
    times = None
    if freq is not None and len(starts) == len(values):
        # a month may start on any day in such files: the first day is the grid
        floors = [start.to_period(freq[0]).start_time if freq in ("MS", "QS", "YS") else start for start in starts]
        times = tuple(make_times(start, freq, len(series)) for start, series in zip(floors, values, strict=True))
    return _panel(names, values, freq, times)


def _read_tsf_header(lines: Iterator[tuple[int, str]]) -> tuple[list[str], str | None]:
    """The attributes of a .tsf file and its frequency; takes the lines up to @data."""
    attributes: list[str] = []
    freq: str | None = None
    for _, line in lines:
        word, *rest = line.split()
        if word == "@data":
            break
        if word == "@attribute":
            attributes.append(rest[0].lower() if rest else "")
        elif word == "@frequency" and rest:
            freq = _TSF_FREQUENCIES.get(rest[0].lower())
    return attributes, freq


def _read_tsf_start(text: str, path: Path, number: int) -> pd.Timestamp:
    try:
        return pd.to_datetime(text, format="%Y-%m-%d %H-%M-%S")
    except ValueError:
        raise ArgumentError(path, "have times as 2020-01-31 00-00-00", f"{shorten(text)} in line {number}") from None


def _read(spec: CollectionSpec, paths: Sequence[Path]) -> list[Panel]:
    """The whole panel, or histories and last values."""
    if spec.reader == "tsf":
        return [read_tsf(paths[0])]
    if spec.reader == "wide":
        frame = read_table(paths[0])
        columns = [frame[name].to_numpy(dtype=np.float64)[:, None] for name in frame.columns]
        return [_panel(list(frame.columns), columns, spec.freq)]
    if spec.reader == "m3":
        rows = [(number, line.split(",")) for number, line in text_lines(paths[0])]
        kept = [(number, row[0], row[-1].split()) for number, row in rows[1:] if row[1] == spec.part]
        values = [_numbers(series, paths[0], number) for number, _, series in kept]
        return [_panel([name for _, name, _ in kept], values, spec.freq)]
    # the rows of a collection in two files: an id, unless the rows are only numbered, and values
    separators = {"m4": (",", ","), "hospital": (",", ";")}[spec.reader]
    panels = []
    for path, separator in zip(paths, separators, strict=True):
        rows = [(number, line.replace('"', "").split(separator)) for number, line in text_lines(path)]
        if spec.reader == "m4":
            ids: list[Id] = [row[0] for _, row in rows[1:]]
            values = [_numbers(row[1:], path, number) for number, row in rows[1:]]
        else:
            first = int(separator == ";")
            ids = [f"T{place}" for place in range(1, len(rows) + 1)]
            values = [_numbers(row[first:], path, number) for number, row in rows]
        panels.append(_panel(ids, values, spec.freq))
    if panels[0].ids != panels[1].ids:
        raise ArgumentError(paths[1], f"have the series of {paths[0]} in the same order", "others")
    return panels


def _panel(ids: Sequence[Id], values: Sequence[Values], freq: str | None, times: Any = None) -> Panel:
    return Panel(values=tuple(values), columns=("value",), ids=tuple(ids), times=times, freq=freq)


def _numbers(cells: Sequence[str], path: Path, number: int) -> Values:
    try:
        return np.array(cells, dtype=np.float64)[:, None]
    except ValueError as error:
        raise ArgumentError(path, "hold numbers", f"an error: {str(error)[:200]} in line {number}") from error
