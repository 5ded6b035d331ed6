"""The command `toa data`: list, locate, download and verify benchmark datasets. Heavy imports wait until it runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toa.cli.terminal import clear_errors

if TYPE_CHECKING:
    from toa.data import AnomalySpec, ClassificationSpec, DatasetSpec

    AnySpec = DatasetSpec | AnomalySpec | ClassificationSpec

data_app = typer.Typer(
    help="Benchmark data: list, locate, download and verify.", no_args_is_help=True, pretty_exceptions_enable=False
)

NameArgument = Annotated[str, typer.Argument(help="Name of a dataset, as `toa data list` prints it.")]
FolderOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Data folder to search first, before $TOA_DATA and the user's cache.")
]


@data_app.command("list")
def list_(data_dir: FolderOption = None) -> None:
    """List all datasets, one table per task: shape, licence, and whether the files are here."""
    with clear_errors():
        from toa.data import ANOMALY_SETS, CLASSIFICATION_SETS, DATASETS

        rows: list[tuple[str, ...]] = []
        for spec in map(DATASETS.__getitem__, DATASETS):
            name = spec.name if spec.subset_of is None else f"{spec.name} (subset)"
            shape = f"{spec.rows} x {spec.channels}"
            rows.append((name, shape, spec.frequency, spec.split, spec.licence, _here(spec, data_dir)))
        _print_table("forecasting", ("name", "shape", "frequency", "split", "licence", "here"), rows)
        rows = []
        for entry in map(ANOMALY_SETS.__getitem__, ANOMALY_SETS):
            shape = f"{entry.train_rows} + {entry.test_rows} x {entry.channels}"
            rows.append((entry.name, shape, f"{entry.label_ratio:.2%}", entry.licence, _here(entry, data_dir)))
        _print_table("anomaly detection", ("name", "shape", "anomalous", "licence", "here"), rows)
        rows = []
        for uea in map(CLASSIFICATION_SETS.__getitem__, CLASSIFICATION_SETS):
            longest = f"{'up to ' if uea.variable else ''}{uea.length}"
            shape = f"{uea.train} + {uea.test} x {longest} x {uea.channels}"
            rows.append((uea.name, shape, str(uea.classes), _here(uea, data_dir)))
        _print_table("classification (UEA archive)", ("name", "shape", "classes", "here"), rows)


@data_app.command()
def where(name: NameArgument, data_dir: FolderOption = None) -> None:
    """Print the path of each file of a dataset, or the folders that were searched."""
    with clear_errors():
        for path in _paths(_spec(name), data_dir):
            typer.echo(path)


@data_app.command("fetch")
def fetch_(name: NameArgument, data_dir: FolderOption = None) -> None:
    """Download a dataset from its maker. Repeat the command to resume an interrupted download."""
    with clear_errors(resumes=True):
        import pooch

        from toa.data import ClassificationSpec, DatasetSpec, fetch, fetch_classification, read_values

        spec = _spec(name)
        # the progress bar replaces the messages of pooch
        pooch.get_logger().setLevel("WARNING")
        if isinstance(spec, ClassificationSpec):
            for path in fetch_classification(spec, data_dir):
                typer.echo(path)
            return
        single = isinstance(spec, DatasetSpec)
        for file in [spec] if isinstance(spec, DatasetSpec) else spec.served or spec.layouts[0]:
            with _bar(name if single else file.path) as progress:
                typer.echo(fetch(file, data_dir, progress=progress, read=None if single else read_values))


@data_app.command("verify")
def verify_(
    names: Annotated[list[str] | None, typer.Argument(help="Names; by default every dataset that is here.")] = None,
    data_dir: FolderOption = None,
) -> None:
    """Check that files exist, match the recorded checksum and have the right shape."""
    with clear_errors():
        from toa.data import ANOMALY_SETS, CLASSIFICATION_SETS, DATASETS, DatasetNotFoundError

        wrong = 0
        for spec in [_spec(name) for name in names or [*DATASETS, *ANOMALY_SETS, *CLASSIFICATION_SETS]]:
            try:
                typer.echo(f"{spec.name}: {_verified(spec, data_dir)}")
            except DatasetNotFoundError as error:
                typer.echo(f"{spec.name}: {error if names else 'not here'}", err=bool(names))
                wrong += bool(names)
            except (ValueError, FloatingPointError, OSError) as error:
                typer.echo(f"{spec.name}: {error}", err=True)
                wrong += 1
        if wrong:
            raise ValueError(f"{wrong} datasets failed; see the messages above.")


def _spec(name: str) -> "AnySpec":
    """The entry of a dataset in any of the catalogues."""
    from toa._checks import check_choice
    from toa.data import ANOMALY_SETS, CLASSIFICATION_SETS, DATASETS

    check_choice("dataset", name, [*DATASETS, *ANOMALY_SETS, *CLASSIFICATION_SETS])
    if name in CLASSIFICATION_SETS:
        return CLASSIFICATION_SETS[name]
    return DATASETS[name] if name in DATASETS else ANOMALY_SETS[name]


def _paths(spec: "AnySpec", data_dir: Path | None) -> Sequence[Path]:
    """Paths of the files of a dataset."""
    from toa.data import ClassificationSpec, DatasetSpec, locate, locate_anomaly, locate_classification

    if isinstance(spec, DatasetSpec):
        return [locate(spec, data_dir)]
    if isinstance(spec, ClassificationSpec):
        return locate_classification(spec, data_dir)
    return locate_anomaly(spec, data_dir)[1]


def _here(spec: "AnySpec", data_dir: Path | None) -> str:
    from toa.data import DatasetNotFoundError

    try:
        _paths(spec, data_dir)
    except DatasetNotFoundError:
        return "no"
    return "yes"


def _verified(spec: "AnySpec", data_dir: Path | None) -> str:
    """Shape, checksums and path of a dataset, after comparing them with the catalogue."""
    from toa.data import ClassificationSpec, DatasetSpec, checksum, locate_anomaly, verify
    from toa.data.anomaly import read_anomaly
    from toa.data.classification import read_classification
    from toa.data.tables import read_dataset

    status = "none recorded to compare with"
    if isinstance(spec, DatasetSpec):
        path, *_ = paths = _paths(spec, data_dir)
        sums, known = [verify(path, spec)], [spec.sha256]
        rows, channels = read_dataset(spec, path).values[0].shape
        shape = f"{rows} x {channels}"
    elif isinstance(spec, ClassificationSpec):
        paths = _paths(spec, data_dir)
        train, test = read_classification(spec, paths)
        path, sums, known = paths[0], [checksum(file) for file in paths], [*spec.sha256] or [None]
        # copies of the archive differ in bytes, so another checksum is not an error
        status = "differs from the recorded copy" if spec.sha256 else status
        known = known if sums == known else [None]
        shape = f"{len(train)} + {len(test)} x {max(*train.lengths, *test.lengths)} x {len(train.columns)}"
    else:
        files, paths = locate_anomaly(spec, data_dir)
        sums = [verify(path, file) for path, file in zip(paths, files, strict=True)]
        path, known = paths[0].parent, [file.sha256 for file in files]
        series = read_anomaly(spec, files, paths)
        shape = f"{len(series.train)} + {len(series.test)} x {series.train.shape[1]}"
    status = "as recorded" if None not in known else status
    return f"{shape}, sha256 {', '.join(found[:16] for found in sums)} ({status}), {path}"


def _print_table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=True, title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right" if name == "shape" else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int | None], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
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
