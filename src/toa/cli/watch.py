"""The command `toa watch`: the progress of a reproduction. Heavy imports wait until it runs."""

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

# number of runs listed per state
_SHOWN = 8


def watch(
    results: Annotated[Path, typer.Argument(help="Folder of all results (`toa reproduce --out`).")] = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Print the progress once and exit.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two updates.")] = 2.0,
) -> None:
    """Show the progress of a reproduction: finished, running and failed runs, and the time left. Ends with the runs."""
    with clear_errors():
        check_positive("every", every)
        from rich.live import Live

        from toa.report.progress import read_progress

        console = make_console()
        progress = read_progress(results)
        if once:
            console.print(_render(progress))
            return
        with Live(_render(progress), console=console, auto_refresh=False) as live:
            while not progress.over:
                time.sleep(every)
                progress = read_progress(results)
                live.update(_render(progress), refresh=True)


def _render(progress: "Progress") -> "Group":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    parts: list[Text | Table] = [Text(_headline(progress))]
    if progress.total:
        # a bar does not end its line, but a table does
        bar = Table.grid()
        ended = len(progress.done) + len(progress.failed)
        bar.add_row(ProgressBar(total=progress.total, completed=ended, width=60))
        parts.append(bar)
    if progress.running:
        table = Table("running", "for", "of about", "by", box=None, pad_edge=False)
        for run in progress.running[:_SHOWN]:
            estimate = "?" if run.estimate is None else duration(run.estimate)
            table.add_row(Text(run.label), duration(run.seconds), estimate, Text(run.holder))
        parts.append(table)
    parts += [Text(f"FAILED {label}: {error}", style="red") for label, error in progress.failed[-_SHOWN:]]
    parts += [Text(f"done   {line}") for line in progress.done[-_SHOWN:]]
    parts += [Text(line, style="yellow") for line in progress.unreadable]
    return Group(*parts)


def _headline(progress: "Progress") -> str:
    text = (
        f"{len(progress.done)} of {progress.total} done, {len(progress.running)} running, {len(progress.failed)} failed"
    )
    text += "" if progress.waiting is None else f", {progress.waiting} to do"
    if progress.over:
        return f"{text}."
    if progress.seconds_left is None:
        return f"{text}; no finished run to estimate the time from."
    scope = " for the running ones; there is no plan of the others" if progress.waiting is None else ""
    return f"{text}; about {duration(progress.seconds_left)} left{scope}."
