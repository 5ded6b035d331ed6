"""The command `toa report`: the records of any runs beside the paper's numbers. Heavy imports wait until it runs."""

from pathlib import Path
from typing import Annotated

import typer

from toa._console import make_console
from toa.cli.terminal import clear_errors


def report(
    results: Annotated[
        list[Path], typer.Argument(help="Records: files record.json or .jsonl, or folders that hold them.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for index.html, report.md, summary.md and diagrams.")] = Path(
        "report"
    ),
    table: Annotated[
        list[str] | None,
        typer.Option(help="This table alone, as `toa reproduce --list` names it. Repeatable."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data are looked for first, to say what cannot be run here.")
    ] = None,
    save_operators: Annotated[
        Path | None,
        typer.Option(help="Keep the operators shown as this file, operators.json, beside records without models."),
    ] = None,
) -> None:
    """Set what was measured beside what was published: tables, ranks, tests, operators, and each number's records."""
    with clear_errors():
        from rich import box
        from rich.table import Table

        from toa.report.operators import OPERATORS_FILE, write_pictures
        from toa.report.paper import make_report
        from toa.report.paper_page import write_report
        from toa.report.paper_text import left_out, status_table

        if save_operators is not None and save_operators.name != OPERATORS_FILE:
            raise ValueError(f"--save-operators must be a file called {OPERATORS_FILE}, got {save_operators}.")
        console = make_console()
        made = make_report(results, tables=table, data_dir=data_dir)
        # a terminal has room for the ends: which table, how far, how near
        header, *rows = [(*row[:3], *row[-2:]) for row in status_table([line for line in made.lines if line.own])]
        shown = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
        for words in left_out(made, most=2):
            console.print(words, soft_wrap=True, highlight=False, markup=False)
        for path in write_report(made, out):
            console.print(f"written: {path}", soft_wrap=True)
        if save_operators is not None:
            console.print(f"written: {write_pictures(made.operators, save_operators)}", soft_wrap=True)
