"""What the commands on a person's own tables share: files in, estimators by file or fitted, pictures out."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    import pandas as pd

    from toa.estimators.base import Estimator

T = TypeVar("T", bound="Estimator")

ModelOption = Annotated[Path | None, typer.Option(help="File of a fitted model to use; nothing is trained.")]
SaveOption = Annotated[Path | None, typer.Option(help="File to keep the fitted model in.")]
TimeOption = Annotated[str | None, typer.Option(help="Column of times; dates are found by themselves.")]
ValuesOption = Annotated[list[str] | None, typer.Option(help="Column to read; all others if not given. Repeatable.")]
MissingOption = Annotated[
    str | None, typer.Option(help="Missing values: error (the default), ffill, interpolate or zero.")
]
EpochsOption = Annotated[int | None, typer.Option(help="Passes over the data at most; by size if not given.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of weights and batches.")]


def read_frame(path: Path) -> "pd.DataFrame":
    """A comma-separated file with a header, plain or gzipped."""
    from toa.data.readers import read_table

    if not path.is_file():
        raise FileNotFoundError(f"a table must be a file, got {path}, which is none.")
    return read_table(path, header=0, text=None)


def read_cases_file(path: Path) -> tuple[Any, list[str] | None]:
    """Cases (C, l) of a .ts file in a list and their labels, or the frame of any other file and None."""
    if not path.name.endswith((".ts", ".ts.gz")):
        return read_frame(path), None
    from toa.data import read_ts

    if not path.is_file():
        raise FileNotFoundError(f"cases must be a file, got {path}, which is none.")
    found = read_ts(path)
    return [case.T for case in found.cases], found.labels


def fitted(
    kind: type[T], options: Mapping[str, Any], *, model: Path | None, device: str, data: Any, labels: Any = None
) -> T:
    """An estimator from its file, or fitted to data.

    Args:
        kind: Of the estimator.
        options: Arguments of its constructor; None leaves one to its default.
        model: Its file; options are then those that it was fitted with.
        device: Where it runs.
        data: What it is fitted to without a file.
        labels: And their labels.

    Raises:
        ValueError: If there is a file and an option beside it.
    """
    given = {name: value for name, value in options.items() if value not in (None, [])}
    if model is not None:
        for name in given:
            raise ValueError(f"--{name.replace('_', '-')} goes with training, got it beside --model; leave it out.")
        return kind.load(model, device=None if device == "auto" else device)
    made = kind(**given, device=device, progress=True)
    return made.fit(data, labels)


def write_table(frame: "pd.DataFrame", path: Path) -> Path:
    """A frame as a comma-separated file, whole or not at all."""
    from toa._files import write_atomically

    write_atomically(path, frame.to_csv(index=False).encode())
    return path
