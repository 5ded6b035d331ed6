"""The command `toa data`: list, locate, download and verify benchmark datasets. Heavy imports wait until it runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._checks import check_choice
from toa._console import make_console, make_table
from toa.cli.terminal import Command, ResumableCommand

if TYPE_CHECKING:
    from toa.training import Task

data_app = typer.Typer(
    help="Benchmark data: list, locate, download and verify.", no_args_is_help=True, pretty_exceptions_enable=False
)


@data_app.command("list", cls=Command)
def list_(data_dir: Path | None = None) -> None:
    """List all datasets, one table per task: shape, licence, and whether the files are here."""
    from toa.data import ANOMALY_SETS, CLASSIFICATION_SETS, DATASETS

    here = {name: "yes" if found else "no" for name, found in find_datasets(data_dir).items()}
    forecasting = [("name", "shape", "frequency", "split", "licence", "here")]
    for spec in DATASETS.values():
        name = spec.name if spec.subset_of is None else f"{spec.name} (subset)"
        shape = f"{spec.rows} x {spec.channels}"
        forecasting.append((name, shape, spec.frequency, spec.split, spec.licence, here[spec.name]))
    anomaly = [("name", "shape", "anomalous", "licence", "here")]
    for entry in ANOMALY_SETS.values():
        shape = f"{entry.train_rows} + {entry.test_rows} x {entry.channels}"
        anomaly.append((entry.name, shape, f"{entry.label_ratio:.2%}", entry.licence, here[entry.name]))
    classification = [("name", "shape", "classes", "here")]
    for uea in CLASSIFICATION_SETS.values():
        longest = f"{'up to ' if uea.variable else ''}{uea.length}"
        shape = f"{uea.train} + {uea.test} x {longest} x {uea.channels}"
        classification.append((uea.name, shape, str(uea.classes), here[uea.name]))
    console = make_console()
    console.print(make_table(forecasting, left=6, title="forecasting"))
    console.print(make_table(anomaly, left=5, title="anomaly detection"))
    console.print(make_table(classification, left=4, title="classification (UEA archive)"))


@data_app.command(cls=Command)
def where(name: str, data_dir: Path | None = None) -> None:
    """Print the path of each file of a dataset, or the folders that were searched."""
    for path in _entry(name)[0].locate(name, data_dir):
        typer.echo(path)


@data_app.command("fetch", cls=ResumableCommand)
def fetch_(name: str, data_dir: Path | None = None) -> None:
    """Download a dataset from its maker. Repeat the command to resume an interrupted download."""
    from toa.data import ClassificationSpec, DatasetSpec, fetch, fetch_classification, read_values

    _, spec = _entry(name)
    if isinstance(spec, ClassificationSpec):
        for path in fetch_classification(spec, data_dir):
            typer.echo(path)
        return
    single = isinstance(spec, DatasetSpec)
    for file in [spec] if isinstance(spec, DatasetSpec) else spec.served or spec.layouts[0]:
        with _bar(name if single else file.path) as progress:
            typer.echo(fetch(file, data_dir, progress=progress, read=None if single else read_values))


@data_app.command("verify", cls=Command)
def verify_(names: Annotated[list[str] | None, typer.Argument()] = None, data_dir: Path | None = None) -> None:
    """Check that files exist, match the recorded checksum and have the right shape."""
    from toa.data import DatasetNotFoundError

    wrong = 0
    for name, (task, spec) in {name: _entry(name) for name in names or tasks_by_dataset()}.items():
        try:
            typer.echo(f"{name}: {_verified(spec, task.locate(name, data_dir), data_dir)}")
        except DatasetNotFoundError as error:
            typer.echo(f"{name}: {error if names else 'not here'}", err=bool(names))
            wrong += bool(names)
        except (ValueError, FloatingPointError, OSError) as error:
            typer.echo(f"{name}: {error}", err=True)
            wrong += 1
    if wrong:
        raise ValueError(f"{wrong} datasets failed; see the messages above.")


def tasks_by_dataset() -> "dict[str, Task]":
    """Every dataset of the catalogues, with its task."""
    from toa.training import TASKS

    tasks = (TASKS[name] for name in ("forecast", "anomaly", "classify"))
    return {dataset: task for task in tasks for dataset in task.catalogue or ()}


def find_datasets(data_dir: Path | None) -> dict[str, Sequence[Path]]:
    """Files of every dataset; none for a dataset that is not on this machine."""
    from toa.data import DatasetNotFoundError

    found: dict[str, Sequence[Path]] = dict.fromkeys(tasks_by_dataset(), ())
    for name, task in tasks_by_dataset().items():
        with suppress(DatasetNotFoundError):
            found[name] = task.locate(name, data_dir)
    return found


def _entry(dataset: str) -> "tuple[Task, Any]":
    """The task of a dataset, and its entry in the catalogue."""
    tasks = tasks_by_dataset()
    check_choice("dataset", dataset, tasks)
    catalogue: Any = tasks[dataset].catalogue
    return tasks[dataset], catalogue[dataset]


def _verified(spec: Any, paths: Sequence[Path], data_dir: Path | None) -> str:
    """Shape, checksums and path of a dataset, after comparing them with the catalogue."""
    from toa.data import ClassificationSpec, DatasetSpec, checksum, locate_anomaly, verify
    from toa.data.anomaly import read_anomaly
    from toa.data.classification import read_classification
    from toa.data.tables import read_dataset

    status = "none recorded to compare with"
    if isinstance(spec, DatasetSpec):
        (path,) = paths
        sums = [verify(path, spec)]
        known = [spec.sha256]
        rows, channels = read_dataset(spec, path).values[0].shape
        shape = f"{rows} x {channels}"
    elif isinstance(spec, ClassificationSpec):
        train, test = read_classification(spec, paths)
        path = paths[0]
        sums = [checksum(file) for file in paths]
        known = [*spec.sha256] or [None]
        # copies of the archive differ in bytes, so another checksum is not an error
        status = "differs from the recorded copy" if spec.sha256 else status
        known = known if sums == known else [None]
        shape = f"{len(train)} + {len(test)} x {max(*train.lengths, *test.lengths)} x {len(train.columns)}"
    else:
        files, paths = locate_anomaly(spec, data_dir)
        sums = [verify(path, file) for path, file in zip(paths, files, strict=True)]
        path = paths[0].parent
        known = [file.sha256 or file.git_id for file in files]
        series = read_anomaly(spec, files, paths)
        shape = f"{len(series.train)} + {len(series.test)} x {series.train.shape[1]}"
    status = "as recorded" if None not in known else status
    return f"{shape}, sha256 {', '.join(found[:16] for found in sums)} ({status}), {path}"


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int | None], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(name, total=None)

    def show(done: int, total: int | None) -> None:
        # the bar starts with the first byte, so that an existing file or an early error shows none
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()
