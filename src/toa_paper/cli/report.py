"""The command `toa report`: records beside the published numbers."""

from pathlib import Path

from toa._checks import ArgumentError
from toa._console import make_console, make_table


def report(
    results: list[Path],
    out: Path = Path("report"),
    table: list[str] | None = None,
    data_dir: Path | None = None,
    save_operators: Path | None = None,
) -> None:
    """Compare your records with the paper: tables, ranks, tests, operators, and the records of each number."""
    from toa.report.operators import OPERATORS_FILE, write_pictures
    from toa_paper.report.page import write_report
    from toa_paper.report.paper import make_report
    from toa_paper.report.paper_text import left_out, status_table

    if save_operators is not None and save_operators.name != OPERATORS_FILE:
        raise ArgumentError("--save-operators", f"be a file called {OPERATORS_FILE}", save_operators)
    console = make_console()
    paper_report = make_report(results, tables=table, data_dir=data_dir)
    # a terminal is too narrow for all columns
    console.print(make_table([(*row[:3], *row[-2:]) for row in status_table(paper_report)]))
    for line in left_out(paper_report, most=2):
        console.print(line, soft_wrap=True, highlight=False)
    written = write_report(paper_report, out)
    if save_operators is not None:
        written.append(write_pictures(paper_report.operators, save_operators))
    for path in written:
        console.print(f"written: {path}", soft_wrap=True)
