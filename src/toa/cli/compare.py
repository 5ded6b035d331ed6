"""The command `toa compare`: compare systems over many data sets, with ranks and significance tests."""

from pathlib import Path
from typing import Annotated

import typer

from toa._console import make_console, make_table
from toa.cli.terminal import clear_errors


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
        from toa.report.comparison import notes, system_table, write_comparison
        from toa.report.evidence import read_records
        from toa.report.statistics import collect
        from toa.report.statistics import compare as compare_systems

        scores = collect(read_records(results), metric)
        rows = compare_systems(scores, baseline)
        console = make_console()
        console.print(make_table(system_table(scores, rows, baseline)))
        for note in notes(scores, baseline):
            console.print(note)
        for path in [] if out is None else write_comparison(scores, rows, baseline, out):
            console.print(f"written: {path}", soft_wrap=True)
