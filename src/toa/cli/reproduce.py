"""The command `toa reproduce`: tables of the paper, or a list of one's own, run by the runner.

Heavy imports wait until the command needs them.
"""

import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._checks import check_at_least
from toa._console import duration, make_console
from toa.cli.run import DeviceOption, config_of, run
from toa.cli.terminal import clear_errors

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from toa.experiments.paper.tables import Cell
    from toa.experiments.run import Job
    from toa.experiments.runner import Event, Outcome, Place, Watcher

# written out, so that --help need not import what describes them
_TABLES = (
    "demixing, forecast-full, forecast-average, pems-full, pems-average, classification, classification-summary, "
    "anomaly, sor-ablation-full, sor-ablation-average or efficiency"
)
# of `toa run`, what is said once for a whole list
_COMMON = ("out", "device", "devices", "num_nodes", "data_dir", "dry_run")
# letters of a run's name beside its bar
_WIDTH = 60
# what a wrong option raises, by whichever name typer has it
_UsageError: Any = typer.BadParameter.__bases__[0]


def reproduce(
    table: Annotated[str | None, typer.Argument(help=f"Table of the paper: {_TABLES}.")] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Account for every published number: what can be run here, what is missing.")
    ] = False,
    runs: Annotated[
        Path | None, typer.Option(help="Instead of a table, a file with the options of one `toa run` a line.")
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Of the table, this dataset alone. Repeatable.")] = None,
    backbone: Annotated[list[str] | None, typer.Option(help="This backbone alone. Repeatable.")] = None,
    attention: Annotated[
        list[str] | None, typer.Option(help="This attention alone, as the table names it. Repeatable.")
    ] = None,
    horizon: Annotated[list[str] | None, typer.Option(help="This horizon alone. Repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many, from 2024 on; the table's own number if not given.")] = (
        None
    ),
    out: Annotated[Path, typer.Option(help="Folder of all results; each task has a folder in it.")] = Path("runs"),
    data_dir: Annotated[Path | None, typer.Option(help="Where data are looked for first.")] = None,
    device: DeviceOption = "auto",
    executor: Annotated[
        str,
        typer.Option(
            help="process: one run after another, here; pool: several at a time on this machine, and on one device; "
            "ray: several at a time on this machine or in a cluster."
        ),
    ] = "process",
    workers: Annotated[
        int | None,
        typer.Option(help="How many runs at a time; 2 in a pool and as many as Ray has devices if not given."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT of a running Ray, or auto; one is started here if not given.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try runs that failed before once more.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs, with an estimate of time.")] = False,
) -> None:
    """Run what the paper's numbers are made of; finished runs are read, stopped ones go on, and others may help."""
    with clear_errors(resumes=True):
        from toa.experiments.executors import at_once, check_executor

        check_executor(executor, workers=workers, address=address)
        wanted = {"dataset": dataset, "backbone": backbone, "variant": attention, "horizon": horizon}
        console = make_console()
        _check_one({"TABLE": table, "--list": list_ or None, "--runs": runs})
        if list_:
            _list(console, data_dir)
            return
        if runs is not None:
            _refuse(wanted | {"seeds": seeds}, "--runs, whose lines say it")
            jobs = read_runs(runs)
        else:
            assert table is not None
            jobs = _table_jobs(console, table, wanted, seeds, data_dir)
        from toa.experiments.runner import Place

        place = Place(out=out, data_dir=data_dir, device=device)
        if dry_run:
            _foretell(console, jobs, place, at_once(executor, workers), retry)
            return
        how = {"workers": workers, "address": address}
        outcome = _carry_out(console, jobs, place, executor, how, retry, show_found=runs is not None)
        if outcome.failures:
            raise typer.Exit(1)


def read_runs(path: Path) -> "list[Job]":
    """Jobs of a file: a line has the options of a `toa run`; empty lines and what follows a # do not count.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is no run; it is named.
    """
    from toa.experiments.run import Job

    if not path.is_file():
        raise FileNotFoundError(
            f"--runs must be a file with the options of a `toa run` a line, got {path}, which is none."
        )
    jobs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
            words = words[2:] if words[:2] == ["toa", "run"] else words
            if words:
                given = _options(words)
                jobs.append(Job(config=_config(given), label=shlex.join(words), command=("toa", "run", *words)))
        except ValueError as error:
            raise ValueError(f"line {number} of {path}: {error}") from None
    if not jobs:
        raise ValueError(f"{path} must have a run on at least one line, got none; see `toa run --help`.")
    return jobs


def _options(words: list[str]) -> dict[str, Any]:
    """What `toa run` would be called with."""
    caught: list[dict[str, Any]] = []

    @wraps(run)
    def catch(**given: Any) -> None:
        caught.append(given)

    app = typer.Typer(add_completion=False)
    app.command()(catch)
    try:
        app(words, standalone_mode=False)
    except _UsageError as error:
        raise ValueError(error.format_message()) from None
    if not caught:
        raise ValueError("must be options of a run, got --help; leave it out.")
    return caught[0]


def _config(given: dict[str, Any]) -> Any:
    defaults = {"device": "auto", "dry_run": False}
    for name in _COMMON:
        if given[name] != defaults.get(name):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} must be left out of a line, got {given[name]}; it holds for the whole list.")
    return config_of(given)


def _check_one(given: dict[str, object]) -> None:
    """Refuse none and more than one."""
    found = [name for name, value in given.items() if value is not None]
    if len(found) != 1:
        raise ValueError(
            f"one of {', '.join(given)} must be given, got {' and '.join(found) or 'none'}; `toa reproduce --list` "
            "shows the tables."
        )


def _refuse(given: dict[str, object], beside: str) -> None:
    names = {"variant": "attention"}
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"--{names.get(name, name)} must be left out beside {beside}, got {value}.")


def _table_jobs(
    console: "Console", table: str, wanted: dict[str, list[str] | None], seeds: int | None, data_dir: Path | None
) -> "list[Job]":
    """Runs of the cells wanted that can be run here; the others are named."""
    from toa.experiments.paper.tables import TABLES, missing_data, select, table_cells

    cells = select(table_cells(table), **wanted)
    count = TABLES[table].seeds if seeds is None else seeds
    check_at_least("seeds", count, 1)
    here: list[Cell] = []
    waiting: Counter[str] = Counter()
    for cell in cells:
        lack = [missing.dataset for missing in missing_data(cell, data_dir)] or [cell.reason] * bool(cell.reason)
        waiting.update(lack)
        if not lack:
            here.append(cell)
    jobs = {job.key: job for cell in here for job in cell.seeded(count)}
    console.print(f"{table}: {len(here)} of {len(cells)} numbers can be run here, by {len(jobs)} runs.")
    rest = ", ".join(f"{name} ({numbers} numbers)" for name, numbers in waiting.items())
    if not jobs:
        raise ValueError(
            f"{table} must have a run whose data are here, got none; it lacks {rest}: toa reproduce --list."
        )
    if rest:
        console.print(f"The others lack {rest}; toa reproduce --list says where to get it.")
    return list(jobs.values())


def _list(console: "Console", data_dir: Path | None) -> None:
    """What can be run here of each table, and what the rest is waiting for."""
    from rich import box
    from rich.table import Table

    from toa.experiments.paper.tables import TABLES, missing_data, table_cells

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    shown.add_column("table", no_wrap=True)
    for title in ("numbers", "here", "no data", "no settings", "runs"):
        shown.add_column(title, justify="right", no_wrap=True)
    total: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for name in TABLES:
        cells = table_cells(name)
        lacks = [missing_data(cell, data_dir) for cell in cells]
        here = [cell for cell, lack in zip(cells, lacks, strict=True) if not lack and not cell.reason]
        data = sum(bool(lack) for lack in lacks)
        counts = {"numbers": len(cells), "here": len(here), "data": data, "rest": len(cells) - len(here) - data}
        total.update(counts)
        shown.add_row(name, *map(str, counts.values()), str(len({job.key for cell in here for job in cell.jobs})))
        for cell, lack in zip(cells, lacks, strict=True):
            waiting.update(f"{one.dataset} ({', '.join(one.files)}): {one.remedy}" for one in lack)
            waiting.update([cell.reason] if cell.reason and not lack else [])
    shown.add_section()
    shown.add_row("all", *(str(total[name]) for name in ("numbers", "here", "data", "rest")), "")
    console.print(shown)
    console.print("here, no data, no settings: numbers that can be run, or why not; runs: for one seed.")
    for reason, numbers in waiting.items():
        console.print(f"{numbers} numbers wait for {reason}", soft_wrap=True, highlight=False, markup=False)


def _foretell(console: "Console", jobs: "list[Job]", place: "Place", workers: int, retry: bool) -> None:
    """Print what would be run, and for how long, if earlier records say."""
    from toa.experiments.estimates import Estimates, earlier_records
    from toa.experiments.runner import failures_now, read_outcome
    from toa.tasks.device import resolve_device

    known = Estimates(earlier_records(place.out), on_cpu=resolve_device(place.device).type == "cpu")
    found = read_outcome(jobs, place.out)
    again = failures_now(jobs, place.out) if retry else {}
    times: list[float | None] = []
    for job in jobs:
        why = ""
        if job.key in found.records:
            said = "done"
        elif job.key in found.failures and job.key not in again:
            said, why = "failed", f"  {found.failures[job.key]}"
        else:
            times.append(known.seconds(job))
            said = "?" if times[-1] is None else f"{times[-1]:.0f} s"
        console.print(f"{said:>8}  {job.label}{why}", soft_wrap=True, highlight=False, markup=False)
    told = [seconds for seconds in times if seconds is not None]
    known_part = f" for {len(told)} of them" if len(told) < len(times) else ""
    about = f"about {duration(sum(told) / workers)} of training{known_part}, by earlier records of such runs"
    console.print(f"{len(times)} runs to do; {about if told else 'no earlier record says how long they take'}.")


def _carry_out(
    console: "Console",
    jobs: "list[Job]",
    place: "Place",
    executor: str,
    how: dict[str, Any],
    retry: bool,
    *,
    show_found: bool,
) -> "Outcome":
    from toa.experiments.executors import execute
    from toa.experiments.plans import write_plan
    from toa.experiments.runner import BrokenDeviceError, failures_now

    forgive = failures_now(jobs, place.out) if retry else None
    # what `toa watch` counts down; not before something happens, so that a refusal leaves no folder
    plan = cache(partial(write_plan, jobs, place.out))
    with _board(console, jobs, place.out, show_found=show_found) as tell:

        def watch(event: "Event") -> None:
            plan()
            tell(event)

        try:
            ended = execute(executor, jobs, place, **how, forgive=forgive, watch=watch)
        except BrokenDeviceError as error:
            raise ValueError(str(error)) from None
    again = "; --retry tries failed ones again" if ended.failures else ""
    console.print(f"{len(ended.records)} runs done, {len(ended.failures)} failed{again}; records: {place.out}")
    return ended


@contextmanager
def _board(console: "Console", jobs: "list[Job]", out: Path, *, show_found: bool) -> "Iterator[Watcher]":
    """A bar for all runs and one for each under way, and a line for each that ends."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Board(progress, {job.key: job for job in jobs}, out, show_found=show_found).watch


class _Board:
    def __init__(self, progress: "Progress", jobs: "dict[str, Job]", out: Path, *, show_found: bool) -> None:
        self._progress, self._jobs, self._out, self._show_found = progress, jobs, out, show_found
        self._counts: Counter[str] = Counter()
        self._bars: dict[str, Any] = {}
        self._parts: dict[str, float] = {}
        self._all = progress.add_task("runs", total=len(jobs))

    def watch(self, event: "Event") -> None:
        """Show what has happened."""
        if event.kind == "begin":
            self._bars[event.key] = self._progress.add_task(f"  {self._jobs[event.key].label[:_WIDTH]}", total=None)
        elif event.kind == "step" and event.key in self._bars:
            self._progress.update(self._bars[event.key], completed=event.step, total=event.total)
            self._parts[event.key] = event.step / event.total
        elif event.kind in ("done", "failed", "found"):
            self._end(event)
        self._counts["waiting"] = 1 if event.kind == "waiting" else 0
        said = [f"{self._counts['done']} done", f"{len(self._bars)} running", f"{self._counts['failed']} failed"]
        said += ["waiting for another process"] if self._counts["waiting"] and not self._bars else []
        # what runs have done in part counts, so that the time left is told before the first ends
        ended = self._counts["done"] + self._counts["failed"]
        self._progress.update(self._all, description=", ".join(said), completed=ended + sum(self._parts.values()))

    def _end(self, event: "Event") -> None:
        from toa.experiments.run import outcome
        from toa.experiments.runner import finished

        if event.key in self._bars:
            self._progress.remove_task(self._bars.pop(event.key))
            self._parts.pop(event.key, None)
        self._counts["failed" if event.kind == "failed" else "done"] += 1
        label = self._jobs[event.key].label
        if event.kind == "failed":
            self._print(f"{label}  FAILED {event.message}")
        elif event.kind == "done" or self._show_found:
            record = finished(self._jobs[event.key], self._out)
            self._print(f"{label}  {'' if record is None else outcome(record)}")

    def _print(self, line: str) -> None:
        self._progress.console.print(line, soft_wrap=True, highlight=False, markup=False)
