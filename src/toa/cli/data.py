"""The command `toa data`: what the catalogue holds, where files lie, getting and checking them."""

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
    help="Benchmark data: list, find, fetch and verify.", no_args_is_help=True, pretty_exceptions_enable=False
)

NameArgument = Annotated[str, typer.Argument(help="Name of a data set, as `toa data list` shows it.")]
FolderOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Data folder to look in first, before $TOA_DATA and the user's cache.")
]


@data_app.command("list")
def list_(data_dir: FolderOption = None) -> None:
    """Every data set of the catalogue, a table a task: shape, licence, and whether it is here."""
    with clear_errors():
        from toa.data import ANOMALY_SETS, CLASSIFICATION_SETS, DATASETS
        from toa.data.location import candidates

        rows: list[tuple[str, ...]] = []
        for spec in map(DATASETS.__getitem__, DATASETS):
            here = any(path.is_file() for path in candidates(spec, data_dir))
            shape = f"{spec.rows} x {spec.channels}"
            name = spec.name if spec.subset_of is None else f"{spec.name} (subset)"
            rows.append((name, shape, spec.frequency, spec.split, spec.licence, "yes" if here else "no"))
        _print_table("forecasting", ("name", "shape", "frequency", "split", "licence", "here"), rows)
        rows = []
        for entry in map(ANOMALY_SETS.__getitem__, ANOMALY_SETS):
            shape = f"{entry.train_rows} + {entry.test_rows} x {entry.channels}"
            share = f"{entry.label_ratio:.2%}"
            rows.append((entry.name, shape, share, entry.licence, "yes" if _is_here(entry, data_dir) else "no"))
        _print_table("anomaly detection", ("name", "shape", "anomalous", "licence", "here"), rows)
        rows = []
        for uea in map(CLASSIFICATION_SETS.__getitem__, CLASSIFICATION_SETS):
            longest = f"{'up to ' if uea.variable else ''}{uea.length}"
            shape = f"{uea.train} + {uea.test} x {longest} x {uea.channels}"
            rows.append((uea.name, shape, str(uea.classes), "yes" if _is_here(uea, data_dir) else "no"))
        _print_table("classification (UEA archive)", ("name", "shape", "classes", "here"), rows)


@data_app.command()
def where(name: NameArgument, data_dir: FolderOption = None) -> None:
    """Print the path of each file of a data set, or every place it was looked for."""
    with clear_errors():
        for path in _paths(_spec(name), data_dir):
            typer.echo(path)


@data_app.command("fetch")
def fetch_(name: NameArgument, data_dir: FolderOption = None) -> None:
    """Download a data set that its maker serves; a stopped download goes on where it was."""
    with clear_errors(resumes=True):
        import pooch

        from toa.data import ClassificationSpec, DatasetSpec
        from toa.data.arrays import read_values
        from toa.data.classification import fetch_classification
        from toa.data.download import fetch

        spec = _spec(name)
        # the bar says what pooch would
        pooch.get_logger().setLevel("WARNING")
        if isinstance(spec, DatasetSpec):
            with _bar(name) as progress:
                typer.echo(fetch(spec, data_dir, progress=progress))
            return
        if isinstance(spec, ClassificationSpec):
            for path in fetch_classification(spec, data_dir):
                typer.echo(path)
            return
        for file in spec.served or spec.layouts[0]:
            with _bar(file.path) as progress:
                typer.echo(fetch(file, data_dir, progress=progress, read=read_values))


@data_app.command("verify")
def verify_(
    names: Annotated[list[str] | None, typer.Argument(help="Names; without any, every data set that is here.")] = None,
    data_dir: FolderOption = None,
) -> None:
    """Check that files are here, have the known checksum and the right shape."""
    with clear_errors():
        from toa.data import ANOMALY_SETS, CLASSIFICATION_SETS, DATASETS
        from toa.data.location import DatasetNotFoundError

        wrong = 0
        for spec in [_spec(name) for name in names or [*DATASETS, *ANOMALY_SETS, *CLASSIFICATION_SETS]]:
            try:
                typer.echo(f"{spec.name}: {_checked(spec, data_dir)}")
            except DatasetNotFoundError as error:
                typer.echo(f"{spec.name}: {error if names else 'not here'}", err=bool(names))
                wrong += bool(names)
            except (ValueError, FloatingPointError, OSError) as error:
                typer.echo(f"{spec.name}: {error}", err=True)
                wrong += 1
        if wrong:
            raise ValueError(f"{wrong} of the data sets failed; each is named above with its remedy.")


def _spec(name: str) -> "AnySpec":
    """An entry of any catalogue."""
    from toa._checks import check_choice
    from toa.data import ANOMALY_SETS, CLASSIFICATION_SETS, DATASETS

    check_choice("dataset", name, [*DATASETS, *ANOMALY_SETS, *CLASSIFICATION_SETS])
    if name in CLASSIFICATION_SETS:
        return CLASSIFICATION_SETS[name]
    return DATASETS[name] if name in DATASETS else ANOMALY_SETS[name]


def _paths(spec: "AnySpec", data_dir: Path | None) -> Sequence[Path]:
    """Every file of a data set."""
    from toa.data import ClassificationSpec, DatasetSpec, locate, locate_anomaly, locate_classification

    if isinstance(spec, DatasetSpec):
        return [locate(spec, data_dir)]
    if isinstance(spec, ClassificationSpec):
        return locate_classification(spec, data_dir)
    return locate_anomaly(spec, data_dir)[1]


def _checked(spec: "AnySpec", data_dir: Path | None) -> str:
    from toa.data import ClassificationSpec, DatasetSpec, checksum
    from toa.data.anomaly import locate_anomaly, read_anomaly
    from toa.data.classification import read_classification
    from toa.data.location import locate, verify
    from toa.data.readers import read_dataset

    if isinstance(spec, DatasetSpec):
        path = locate(spec, data_dir)
        sums, known = [verify(path, spec)], [spec.sha256]
        rows, channels = read_dataset(spec, path).values.shape
        shape = f"{rows} x {channels}"
    elif isinstance(spec, ClassificationSpec):
        train, test = read_classification(spec, data_dir)
        path, *_ = _paths(spec, data_dir)
        sums, known = [checksum(file) for file in _paths(spec, data_dir)], [None]
        shape = f"{len(train)} + {len(test)} x {max(train.length, test.length)} x {train.channels}"
    else:
        files, paths = locate_anomaly(spec, data_dir)
        sums = [verify(path, file) for path, file in zip(paths, files, strict=True)]
        known = [file.sha256 for file in files]
        series = read_anomaly(spec, files, paths)
        path = paths[0].parent
        shape = f"{len(series.train)} + {len(series.test)} x {series.train.shape[1]}"
    said = "as known" if None not in known else "none known to compare with"
    return f"{shape}, sha256 {', '.join(found[:16] for found in sums)} ({said}), {path}"


def _is_here(spec: "AnySpec", data_dir: Path | None) -> bool:
    from toa.data.location import DatasetNotFoundError

    try:
        _paths(spec, data_dir)
    except DatasetNotFoundError:
        return False
    return True


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
        # a file that is here, or an error before the first byte, shows no bar
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()
