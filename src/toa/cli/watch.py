"""The command `toa watch`: how far a reproduction is. Heavy imports wait until it runs."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toa._checks import check_positive
from toa._console import duration, make_console
from toa.cli.terminal import clear_errors

if TYPE_CHECKING:
    from rich.console import Group

    from toa.report.progress import Progress

# runs of a kind that are named
_MOST = 8


def watch(
    results: Annotated[Path, typer.Argument(help="Folder of all results, as `toa reproduce --out` has it.")] = Path(
        "runs"
    ),
    once: Annotated[bool, typer.Option("--once", help="Print how far it is, and leave.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show how far a reproduction is: runs done, under way, failed, and the time left; it ends when they have."""
    with clear_errors():
        check_positive("every", every)
        from rich.live import Live

        from toa.report.progress import look

        console = make_console()
        progress = look(results)
        if once:
            console.print(_board(progress))
            return
        with Live(_board(progress), console=console, auto_refresh=False) as live:
            while not progress.over:
                time.sleep(every)
                progress = look(results)
                live.update(_board(progress), refresh=True)


def _board(progress: "Progress") -> "Group":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    parts: list[Text | Table] = [Text(_headline(progress))]
    if progress.total:
        ended = len(progress.done) + len(progress.failed)
        # a bar does not end its line, a table does
        bar = Table.grid()
        bar.add_row(ProgressBar(total=progress.total, completed=ended, width=60))
        parts.append(bar)
    if progress.running:
        table = Table("running", "for", "of about", "by", box=None, pad_edge=False)
        for run in progress.running[:_MOST]:
            about = "?" if run.about is None else duration(run.about)
            table.add_row(Text(run.label), duration(run.seconds), about, Text(run.who))
        parts.append(table)
    parts += [Text(f"FAILED {label}: {error}", style="red") for label, error in progress.failed[-_MOST:]]
    parts += [Text(f"done   {words}") for words in progress.done[-_MOST:]]
    parts += [Text(words, style="yellow") for words in progress.wrong]
    return Group(*parts)


def _headline(progress: "Progress") -> str:
    counts = [f"{len(progress.done)} of {progress.total} done", f"{len(progress.running)} running"]
    counts += [f"{len(progress.failed)} failed"]
    counts += [] if progress.waiting is None else [f"{progress.waiting} to do"]
    words = ", ".join(counts)
    if progress.over:
        return f"{words}."
    if progress.seconds_left is None:
        return f"{words}; no run is done yet that tells how long they take."
    told = f"about {duration(progress.seconds_left)} left"
    return (
        f"{words}; {told}{'' if progress.waiting is not None else ' for those that run; no list says what is to come'}."
    )
