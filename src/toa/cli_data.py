"""The command `toa data`: what the catalogue holds, where files lie, getting and checking them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toa._terminal import clear_errors

if TYPE_CHECKING:
    from toa.data.spec import DatasetSpec

data_app = typer.Typer(
    help="Benchmark data: list, find, fetch and verify.", no_args_is_help=True, pretty_exceptions_enable=False
)

NameArgument = Annotated[str, typer.Argument(help="Name of a data set, as `toa data list` shows it.")]
FolderOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Data folder to look in first, before $TOA_DATA and the user's cache.")
]


@data_app.command("list")
def list_(data_dir: FolderOption = None) -> None:
    """Every data set of the catalogue: shape, frequency, split, licence, and whether it is here."""
    with clear_errors():
        from rich import box
        from rich.console import Console
        from rich.table import Table

        from toa.data.catalog import DATASETS
        from toa.data.location import candidates

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=True)
        for title in ("name", "shape", "frequency", "split", "licence", "here"):
            table.add_column(title, justify="right" if title == "shape" else "left", no_wrap=True)
        for spec in map(DATASETS.__getitem__, DATASETS):
            here = any(path.is_file() for path in candidates(spec, data_dir))
            name = spec.name if spec.subset_of is None else f"{spec.name} (subset)"
            shape = f"{spec.rows} x {spec.channels}"
            table.add_row(name, shape, spec.frequency, spec.split, spec.licence, "yes" if here else "no")
        Console().print(table)


@data_app.command()
def where(name: NameArgument, data_dir: FolderOption = None) -> None:
    """Print the path of a data set, or every place it was looked for."""
    with clear_errors():
        from toa.data.catalog import DATASETS
        from toa.data.location import locate

        typer.echo(locate(DATASETS[name], data_dir))


@data_app.command("fetch")
def fetch_(name: NameArgument, data_dir: FolderOption = None) -> None:
    """Download a data set that its maker serves; a stopped download goes on where it was."""
    with clear_errors():
        import pooch

        from toa.data.catalog import DATASETS
        from toa.data.download import fetch

        spec = DATASETS[name]
        # the bar says what pooch would
        pooch.get_logger().setLevel("WARNING")
        with _bar(name) as progress:
            path = fetch(spec, data_dir, progress=progress)
        typer.echo(path)


@data_app.command("verify")
def verify_(
    names: Annotated[list[str] | None, typer.Argument(help="Names; without any, every data set that is here.")] = None,
    data_dir: FolderOption = None,
) -> None:
    """Check that files are here, have the known checksum and the right shape."""
    with clear_errors():
        from toa.data.catalog import DATASETS
        from toa.data.location import DatasetNotFoundError

        wrong = 0
        for spec in [DATASETS[name] for name in names or DATASETS]:
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


def _checked(spec: "DatasetSpec", data_dir: Path | None) -> str:
    from toa.data.location import locate, verify
    from toa.data.readers import read_dataset

    path = locate(spec, data_dir)
    found = verify(path, spec)
    rows, channels = read_dataset(spec, path).values.shape
    known = "as known" if spec.sha256 is not None else "none known to compare with"
    return f"{rows} x {channels}, sha256 {found[:16]} ({known}), {path}"


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
