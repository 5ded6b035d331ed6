"""The command `toa reproduce`: the tables of the paper, or a list of runs.

Heavy imports wait until the command runs.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toa._checks import ArgumentError, check_at_least
from toa._console import make_console, make_table
from toa.cli.sweep import print_line, read_runs, run_jobs

if TYPE_CHECKING:
    from rich.console import Console

    from toa.experiments.run import Job


def reproduce(
    table: Annotated[str | None, typer.Argument()] = None,
    list_: Annotated[bool, typer.Option("--list")] = False,
    runs: Path | None = None,
    dataset: list[str] | None = None,
    backbone: list[str] | None = None,
    attention: list[str] | None = None,
    horizon: list[str] | None = None,
    seeds: int | None = None,
    out: Path = Path("runs"),
    data_dir: Path | None = None,
    device: str = "auto",
    executor: str = "process",
    workers: int | None = None,
    address: str | None = None,
    retry: Annotated[bool, typer.Option("--retry")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
) -> None:
    """Run the experiments of the paper. Loads finished runs and resumes interrupted ones; processes can share them."""
    from toa.experiments.run import failure_times
    from toa.experiments.sweep import RunContext, check_executor

    check_executor(executor, workers=workers, address=address)
    console = make_console()
    sources = {"TABLE": table, "--list": list_ or None, "--runs": runs}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise ArgumentError(
            f"exactly one of {', '.join(sources)}",
            "be given",
            " and ".join(given) or "none",
            "`toa reproduce --list` prints the tables",
        )
    selection = {"dataset": dataset, "backbone": backbone, "attention": attention, "horizon": horizon}
    if runs is not None:
        for name, value in {**selection, "seeds": seeds}.items():
            if value is not None:
                raise ArgumentError(f"--{name}", "be left out with --runs", value, "put it on the lines")
        jobs = read_runs(runs)
    elif table is not None:
        selection["variant"] = selection.pop("attention")
        jobs = _table_jobs(console, table, selection, seeds, data_dir)
    else:
        _list_numbers(console, data_dir)
        return
    retry_failed = failure_times(jobs, out) if retry else {}
    context = RunContext(out=out, data_dir=data_dir, device=device, retry_failed=retry_failed)
    run_jobs(
        console,
        jobs,
        context,
        executor=executor,
        workers=workers,
        address=address,
        dry_run=dry_run,
        show_found=runs is not None,
    )


def _table_jobs(
    console: "Console", table: str, selection: dict[str, list[str] | None], seeds: int | None, data_dir: Path | None
) -> "list[Job]":
    """Return the runs of the selected numbers whose data are here; print what the others lack."""
    from toa_paper.tables import TABLES, missing_data, select, table_cells

    cells = select(table_cells(table), **selection)
    count = TABLES[table].seeds if seeds is None else seeds
    check_at_least("seeds", count, 1)
    available = []
    missing: Counter[str] = Counter()
    for cell in cells:
        lacks = [data.dataset for data in missing_data(cell, data_dir)] or ([cell.reason] if cell.reason else [])
        missing.update(lacks)
        if not lacks:
            available.append(cell)
    jobs = {job.key: job for cell in available for job in cell.seeded(count)}
    console.print(f"{table}: {len(available)} of {len(cells)} numbers can be run here, with {len(jobs)} runs.")
    rest = ", ".join(f"{name} ({numbers} numbers)" for name, numbers in missing.items())
    if not jobs:
        raise ValueError(f"{table} must have a run whose data are here; it lacks {rest}: see `toa reproduce --list`.")
    if rest:
        console.print(f"The others lack {rest}; `toa reproduce --list` prints where to get it.")
    return list(jobs.values())


def _list_numbers(console: "Console", data_dir: Path | None) -> None:
    """Print per table how many numbers can be run here, and what the others lack."""
    from toa_paper.tables import TABLES, missing_data, table_cells

    shown: list[tuple[str, ...]] = [("table", "numbers", "here", "no data", "no settings", "runs")]
    total: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for name in TABLES:
        counts = Counter(numbers=0, here=0, data=0, settings=0)
        runs = set()
        for cell in table_cells(name):
            data = missing_data(cell, data_dir)
            missing.update(f"{gap.dataset} ({', '.join(gap.files)}): {gap.remedy}" for gap in data)
            missing.update([cell.reason] if cell.reason and not data else [])
            lacking = "settings" if cell.reason else "here"
            counts.update(["numbers", "data" if data else lacking])
            runs |= set() if data or cell.reason else {job.key for job in cell.jobs}
        total.update(counts)
        shown.append((name, *map(str, counts.values()), str(len(runs))))
    console.print(make_table([*shown, ("all", *map(str, total.values()), "")]))
    console.print("here, no data, no settings: numbers that can be run, or why not; runs: for one seed.")
    for reason, numbers in missing.items():
        print_line(console, f"{numbers} numbers wait for {reason}")
