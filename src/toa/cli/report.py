"""The commands `toa report` and `toa compare`: compare records with the paper, and systems with each other."""

from pathlib import Path
from typing import Annotated

import typer

from toa._console import make_console, make_table
from toa.cli.terminal import clear_errors


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
        from toa.report.paper import make_report
        from toa.report.paper_page import write_report
        from toa.report.paper_text import left_out, status_table

        if save_operators is not None and save_operators.name != OPERATORS_FILE:
            raise ValueError(f"--save-operators must be a file called {OPERATORS_FILE}, got {save_operators}.")
        console = make_console()
        made = make_report(results, tables=table, data_dir=data_dir)
        # a terminal is too narrow for all columns
        console.print(make_table([(*row[:3], *row[-2:]) for row in status_table(made)]))
        for line in left_out(made, most=2):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
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
        console.print(make_table(system_table(scores, rows, baseline)))
        for note in notes(scores, baseline):
            console.print(note)
        for path in [] if out is None else write_comparison(scores, rows, baseline, out):
            console.print(f"written: {path}", soft_wrap=True)
