"""Options, files and pictures of the commands for users' own tables: forecast, detect and classify."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    import pandas as pd

    from toa.estimators.base import Estimator

T = TypeVar("T", bound="Estimator")

ModelOption = Annotated[Path | None, typer.Option(help="File of a fitted model to use instead of training.")]
SaveOption = Annotated[Path | None, typer.Option(help="File to save the fitted model in.")]
TimeOption = Annotated[str | None, typer.Option(help="Time column; found automatically if not given.")]
ValuesOption = Annotated[list[str] | None, typer.Option(help="Column to read; by default all others. Repeatable.")]
MissingOption = Annotated[str | None, typer.Option(help="Missing values: {missing}; error is the default.")]
EpochsOption = Annotated[int | None, typer.Option(help="Maximum number of epochs; by default chosen by data size.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of weights and batches.")]


def read_frame(path: Path) -> "pd.DataFrame":
    """Read a comma-separated file with a header, plain or gzipped."""
    from toa.data.tables import read_table

    if not path.is_file():
        raise FileNotFoundError(f"No such file: {path}.")
    return read_table(path)


def read_cases_file(path: Path) -> tuple[Any, list[str] | None]:
    """Cases (C, l) and labels of a .ts file, or the frame of any other file and None."""
    if not path.name.endswith((".ts", ".ts.gz")):
        return read_frame(path), None
    from toa.data import read_ts

    if not path.is_file():
        raise FileNotFoundError(f"No such file: {path}.")
    found = read_ts(path)
    assert found.labels is not None
    return [case.T for case in found.values], found.labels.tolist()


def fitted(
    kind: type[T], options: Mapping[str, Any], *, model: Path | None, device: str, data: Any, labels: Any = None
) -> T:
    """Load an estimator from its file, or fit one to data.

    Args:
        kind: Class of the estimator.
        options: Options of the command. Those that are arguments of the constructor are used; unset ones are defaults.
        model: File of a fitted estimator, which has its own options.
        device: Device of the model.
        data: Training data, used without `model`.
        labels: Labels of the training data.

    Raises:
        ValueError: If an option is given together with `model`.
    """
    chosen = {name: options[name] for name in signature(kind).parameters if name in options and name != "device"}
    given = {name: value for name, value in chosen.items() if value is not None and value is not False and value != []}
    if model is not None:
        for name in given:
            raise ValueError(f"--{name.replace('_', '-')} goes with training, got it beside --model; leave it out.")
        return kind.load(model, device=None if device == "auto" else device)
    made = kind(**given, device=device, progress=True)
    return made.fit(data, labels)


def write_table(frame: "pd.DataFrame", path: Path) -> Path:
    """Write a frame to a comma-separated file."""
    from toa._files import write_atomically

    write_atomically(path, frame.to_csv(index=False).encode())
    return path
