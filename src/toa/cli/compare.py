"""The command `toa compare`: systems over many data sets, with ranks and tests. Heavy imports wait until it runs."""

from pathlib import Path
from typing import Annotated

import typer

from toa._console import make_console
from toa.cli.terminal import clear_errors


def compare(
    results: Annotated[
        list[Path], typer.Argument(help="Records: files record.json or .jsonl, or folders that hold them.")
    ],
    metric: Annotated[str, typer.Option(help="accuracy, balanced_accuracy, macro_f1, strict/f1, mse, …")],
    baseline: Annotated[str, typer.Option(help="System that the others are tested against.")] = "softmax",
    out: Annotated[Path | None, typer.Option(help="Folder for the tables in Markdown and the diagram.")] = None,
) -> None:
    """Compare systems over data sets: mean, average rank, wins and losses, Wilcoxon tests, critical differences."""
    with clear_errors():
        from rich import box
        from rich.table import Table

        from toa.report.comparison import notes, system_table, write_comparison
        from toa.report.statistics import collect, read_results
        from toa.report.statistics import compare as compare_systems

        scores = collect(read_results(results), metric)
        rows = compare_systems(scores, baseline)
        header, *body = system_table(scores, rows, baseline)
        table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
        # half a name tells no systems apart
        table.columns[0].no_wrap, table.columns[0].overflow = True, "fold"
        for column in table.columns[1:]:
            column.justify = "right"
        for row in body:
            table.add_row(*row)
        console = make_console()
        console.print(table)
        for note in notes(scores, baseline):
            console.print(note)
        if out is not None:
            for path in write_comparison(scores, rows, baseline, out):
                console.print(f"written: {path}", soft_wrap=True)
