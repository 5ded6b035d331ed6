"""The commands `toa report`, `toa compare` and `toa watch`: what records show, and the progress of a reproduction."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toa._checks import check_positive
from toa._console import duration, make_console, make_table, show_controls
from toa.cli.terminal import clear_errors

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from toa.report.progress import Progress

# number of runs listed per state
_SHOWN = 8


def report(
    results: Annotated[
        list[Path], typer.Argument(help="Records: record.json or .jsonl files, or folders that contain them.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for index.html, report.md, summary.md and diagrams.")] = Path(
        "report"
    ),
    table: Annotated[
        list[str] | None,
        typer.Option(help="Only this table, named as in `toa reproduce --list`. Repeatable."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="First folder to search for data, to explain what cannot run here.")
    ] = None,
    save_operators: Annotated[
        Path | None,
        typer.Option(help="Write the shown operators to this file, operators.json, for records without models."),
    ] = None,
) -> None:
    """Compare your records with the paper: tables, ranks, tests, operators, and the records of each number."""
    with clear_errors():
        from toa.report.operators import OPERATORS_FILE, write_pictures
        from toa.report.page import write_report
        from toa.report.paper import make_report
        from toa.report.paper_text import left_out, status_table

        if save_operators is not None and save_operators.name != OPERATORS_FILE:
            raise ValueError(f"--save-operators must be a file called {OPERATORS_FILE}, got {save_operators}.")
        console = make_console()
        made = make_report(results, tables=table, data_dir=data_dir)
        # a terminal is too narrow for all columns
        console.print(make_table([(*row[:3], *row[-2:]) for row in status_table(made)]))
        for line in left_out(made, most=2):
            console.print(line, soft_wrap=True, highlight=False)
        written = write_report(made, out)
        if save_operators is not None:
            written.append(write_pictures(made.operators, save_operators))
        for path in written:
            console.print(f"written: {path}", soft_wrap=True)


def compare(
    results: Annotated[
        list[Path], typer.Argument(help="Records: record.json or .jsonl files, or folders that contain them.")
    ],
    metric: Annotated[str, typer.Option(help="Metric of the records: accuracy, macro_f1, strict/f1, mse, …")],
    baseline: Annotated[str, typer.Option(help="System that the others are tested against.")] = "softmax",
    out: Annotated[Path | None, typer.Option(help="Folder for the tables in Markdown and the diagram.")] = None,
) -> None:
    """Compare systems over data sets: mean, average rank, wins and losses, Wilcoxon tests, critical differences."""
    with clear_errors():
        from toa.report.evidence import read_records
        from toa.report.statistics import collect, notes, system_table, write_comparison
        from toa.report.statistics import compare as compare_systems

        scores = collect(read_records(results), metric)
        rows = compare_systems(scores, baseline)
        console = make_console()
        # a terminal is too narrow for all columns
        table = system_table(scores, rows)
        console.print(make_table([(*row[:5], *row[-2:]) for row in table]))
        console.print(make_table([(row[0], *row[4:7]) for row in table]))
        for note in notes(scores, baseline):
            console.print(note)
        for path in [] if out is None else write_comparison(scores, rows, baseline, out):
            console.print(f"written: {path}", soft_wrap=True)


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


def _text(words: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(show_controls(words), style=style)


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
            table.add_row(_text(run.label), duration(run.seconds), estimate, _text(run.holder))
        parts.append(table)
    parts += [_text(f"FAILED {label}: {error}", style="red") for label, error in progress.failed[-_SHOWN:]]
    parts += [_text(f"done   {line}") for line in progress.done[-_SHOWN:]]
    parts += [_text(line, style="yellow") for line in progress.unreadable]
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
