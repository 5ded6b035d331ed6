"""Read labelled cases from .ts files, the format of the UEA archive, plain or gzipped.

Channels of a case may differ in length, as they do in CharacterTrajectories: a short channel is missing at its end.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from toa.data.location import open_unpacked
from toa.data.panel import Panel, Values


def read_ts(path: str | Path) -> Panel:
    """Read a .ts or .ts.gz file: a panel with a series (l, C) and a label per case, NaN where a value is missing.

    Raises:
        ValueError: If the file is empty, its header is damaged or without classes, or cases differ in channels.
    """
    path = Path(path)
    cases: list[Values] = []
    labels: list[str] = []
    with open_unpacked(path) as file:
        lines = _lines(path, file)
        equal = _read_header(path, lines)
        for _, line in lines:
            *channels, label = line.replace("?", "nan").split(":")
            try:
                case = _case(channels)
            except ValueError as error:
                raise ValueError(f"{path} must hold numbers, got: {error} in case {len(cases) + 1}.") from error
            cases.append(case)
            labels.append(label.strip())
            if len(channels) != cases[0].shape[1] or not channels:
                raise ValueError(
                    f"{path} must have the same number of channels in each case, {cases[0].shape[1]} in the first, got "
                    f"{len(channels)} in case {len(cases)}."
                )
            ragged = len({channel.count(",") for channel in channels}) > 1
            if equal and (ragged or len(case) != len(cases[0])):
                raise ValueError(
                    f"{path} must have the same number of values in each channel, {len(cases[0])} in the first case, "
                    f"got another number in case {len(cases)}; set @equalLength false if lengths differ."
                )
    if not cases:
        raise ValueError(f"{path} must hold cases below @data, got none; is the file complete?")
    return Panel(
        values=tuple(cases),
        columns=tuple(map(str, range(cases[0].shape[1]))),
        ids=tuple(range(len(cases))),
        labels=np.asarray(labels),
    )


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Numbers and lower-case text of all lines but empty ones and comments."""
    for number, raw in enumerate(file, 1):
        try:
            line = raw.decode("utf-8").strip().lower()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be text in UTF-8, got {error}; save it in UTF-8.") from error
        if line and not line.startswith("#"):
            yield number, line


def _read_header(path: Path, lines: Iterator[tuple[int, str]]) -> bool:
    """Read the lines up to @data; returns whether all cases have the same length."""
    tags: dict[str, str] = {}
    for number, line in lines:
        if not line.startswith("@"):
            raise ValueError(
                f"{path} must have a header of lines that start with @ and end with @data, got {line[:40]!r} in line "
                f"{number} before @data; is it a .ts file?"
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
            f"{tags.get('@classlabel', 'no such line')!r}; only files for classification can be read."
        )
    if tags.get("@timestamps", "false") != "false":
        raise ValueError(f"{path} must have values without time stamps, got @timestamps {tags['@timestamps']!r}.")
    equal = tags.get("@equallength", "true")
    if equal not in ("true", "false"):
        raise ValueError(f"{path} must have true or false after @equalLength, got {equal!r}.")
    return equal == "true"


def _case(channels: list[str]) -> Values:
    """Text of each channel as one array (l, C)."""
    numbers = [[float(value) for value in channel.split(",")] for channel in channels]
    length = max(map(len, numbers), default=0)
    case = np.full((length, len(numbers)), np.nan)
    for index, channel in enumerate(numbers):
        case[: len(channel), index] = channel
    return case
