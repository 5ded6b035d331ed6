"""The commands `toa run`, one model on one dataset, and `toa reproduce`, the tables of the paper or a list of runs.

Heavy imports wait until a command needs them.
"""

import json
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toa._checks import check_at_least, check_choice
from toa._console import duration, is_first, make_console, make_table, show_controls, show_epochs

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from toa.experiments.run import Job
    from toa.experiments.sweep import Event, RunContext

# options of `toa run` that hold for a whole list, with their defaults
_LIST_OPTIONS = dict.fromkeys(("out", "devices", "num_nodes", "data_dir")) | {"device": "auto", "dry_run": False}
# characters of a label beside its progress bar
_LABEL_WIDTH = 60
# typer's base class of wrong options has no public name
_UsageError: Any = typer.BadParameter.__bases__[0]


def run(
    dataset: Annotated[str, typer.Option()],
    task: str = "forecast",
    horizon: int | None = None,
    test_file: Path | None = None,
    label_file: Path | None = None,
    backbone: str = "patchtst",
    attention: str | None = None,
    protocol: str = "toa-paper",
    seed: int | None = None,
    change: Annotated[list[str] | None, typer.Option("--set")] = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
    devices: int | None = None,
    num_nodes: int | None = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
) -> None:
    """Train and measure one model. An interrupted run resumes; a finished one is only loaded."""
    options = dict(locals())
    from toa.experiments.records import RECORD, claimed, holder
    from toa.experiments.run import run_folder, run_task
    from toa.tasks import TASKS
    from toa.tasks.distributed import resolve_devices

    config = config_of(options)
    if dry_run:
        typer.echo(json.dumps(asdict(config), indent=2))
        return
    runs = Path("runs") / task if out is None else out
    number, nodes = resolve_devices(devices, num_nodes)
    folder, kind = run_folder(config, runs), TASKS[task]
    with ExitStack() as held:
        # of a distributed run, the first process holds the folder
        unfinished = is_first() and not (folder / RECORD).exists()
        if unfinished and not held.enter_context(claimed(folder)):
            found = holder(folder) or {}
            raise ValueError(
                f"{folder} must be free for this run, got one under way in process {found.get('pid', '?')} on "
                f"{found.get('host', 'another machine')}; wait for it, or choose another --out."
            )
        with show_epochs(kind.title(config)) as observe:
            record = run_task(
                config,
                runs,
                data_dir=data_dir,
                device=device,
                devices=number,
                num_nodes=nodes,
                command=["toa", *sys.argv[1:]],
                observe=observe,
            )
        _show(record, kind.describe(record), folder)


def config_of(given: Mapping[str, Any]) -> Any:
    """The config of a run from the options of `toa run`, by their names."""
    from toa.experiments.protocols import load_protocol
    from toa.tasks import TASKS

    task = given["task"]
    check_choice("task", task, [name for name in TASKS if TASKS[name].subcommand == "run"])
    options, own = TASKS[task].options, dict[str, Any]()
    for name in ("horizon", "test_file", "label_file"):
        value, example, option = given[name], options.get(name), f"--{name.replace('_', '-')}"
        if value is None and example is not None:
            raise ValueError(f"{option} must be given for task {task!r}, got nothing; for instance {option} {example}.")
        if value is not None and name not in options:
            raise ValueError(f"{option} must be left out for task {task!r}, which has no such option, got {value}.")
        if value is not None:
            own[name] = str(value) if isinstance(value, Path) else value
    own |= {name: given[name] for name in ("dataset", "backbone", "attention", "seed")}
    return TASKS[task].resolve(load_protocol(task, given["protocol"]), changes=given["change"] or (), **own)


def _show(record: dict[str, Any], lines: list[str], folder: Path) -> None:
    """Print the results of a run, and draw the pictures that its record and files allow."""
    console = make_console()
    if "detections" in record:
        from toa.report.tables import anomaly_table, undefined_notes

        console.print(make_table(anomaly_table(record)))
        lines = [*undefined_notes(record), *lines]
    for line in lines:
        console.print(line)
    if not console.quiet and ("detections" in record or "confusion" in record):
        from toa.report.figures import write_confusion, write_detection

        found = "detections" in record
        picture = write_detection(folder) if found else write_confusion(record, folder / "confusion.png")
        console.print(f"picture: {picture}", soft_wrap=True)
    console.print(f"record: {folder / 'record.json'}", soft_wrap=True)


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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from toa.experiments.records import checkout_commit
    from toa.experiments.run import failure_times
    from toa.experiments.sweep import RunContext, check_executor, default_workers, sweep

    check_executor(executor, workers=workers, address=address)
    console = make_console()
    sources = {"TABLE": table, "--list": list_ or None, "--runs": runs}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"exactly one of {', '.join(sources)} must be given, got {' and '.join(given) or 'none'}; "
            "`toa reproduce --list` prints the tables."
        )
    selection = {"dataset": dataset, "backbone": backbone, "attention": attention, "horizon": horizon}
    if runs is not None:
        for name, value in {**selection, "seeds": seeds}.items():
            if value is not None:
                raise ValueError(f"--{name} must be left out with --runs, got {value}; put it on the lines.")
        jobs = read_runs(runs)
    elif table is not None:
        selection["variant"] = selection.pop("attention")
        jobs = _table_jobs(console, table, selection, seeds, data_dir)
    else:
        _list_numbers(console, data_dir)
        return
    retry_failed = failure_times(jobs, out) if retry else {}
    context = RunContext(out=out, data_dir=data_dir, device=device, retry_failed=retry_failed)
    if dry_run:
        _print_plan(console, jobs, context, default_workers(executor, workers))
        return
    if (commit := checkout_commit() or "").endswith("-dirty"):
        console.print(f"warning: every record will name {commit}; commit the changes of this checkout first.")
    title = TextColumn("{task.description}", markup=False)
    columns = (title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        board = _Board(progress, jobs, show_found=runs is not None)
        outcome = sweep(jobs, context, executor=executor, workers=workers, address=address, watch=board.watch)
    failed = f"{len(outcome.failures)} failed{'; --retry retries them' * bool(outcome.failures)}"
    console.print(f"{len(outcome.records)} runs done, {failed}; records: {out}")
    if outcome.failures:
        raise typer.Exit(1)


def read_runs(path: Path) -> "list[Job]":
    """Read jobs from a file with the options of one `toa run` per line; skips empty lines and text after a #."""
    from toa.experiments.run import Job

    if not path.is_file():
        raise FileNotFoundError(
            f"--runs must be a file with the options of one `toa run` per line; no such file: {path}."
        )
    jobs = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, got {error}; save it in UTF-8.") from None
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            words = words[2:] if words[:2] == ["toa", "run"] else words
            if words:
                jobs.append(Job(config=_config(words), label=shlex.join(words), command=("toa", "run", *words)))
        except ValueError as error:
            raise ValueError(f"line {number} of {path}: {error}") from None
    if not jobs:
        raise ValueError(f"{path} must have a run on at least one line, got none; see `toa run --help`.")
    return jobs


def _config(words: list[str]) -> Any:
    """Return the config that `toa run` would use."""
    app = typer.Typer(add_completion=False)
    app.command()(run)
    try:
        given = typer.main.get_command(app).make_context("run", [*words]).params
    except _UsageError as error:
        raise ValueError(error.format_message()) from None
    except typer.Exit:
        raise ValueError("must be options of a run, got --help; leave it out.") from None
    for name, default in _LIST_OPTIONS.items():
        if given[name] != default:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} must be left out of a line, got {given[name]}; give it for the whole list.")
    return config_of(given)


def _table_jobs(
    console: "Console", table: str, selection: dict[str, list[str] | None], seeds: int | None, data_dir: Path | None
) -> "list[Job]":
    """Return the runs of the selected numbers whose data are here; print what the others lack."""
    from toa.experiments.paper.tables import TABLES, missing_data, select, table_cells

    cells = select(table_cells(table), **selection)
    count = TABLES[table].seeds if seeds is None else seeds
    check_at_least("seeds", count, 1)
    available = []
    missing: Counter[str] = Counter()
    for cell in cells:
        lacks = [data.dataset for data in missing_data(cell, data_dir)] or [cell.reason] * bool(cell.reason)
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
    from toa.experiments.paper.tables import TABLES, missing_data, table_cells

    shown: list[tuple[str, ...]] = [("table", "numbers", "here", "no data", "no settings", "runs")]
    total: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for name in TABLES:
        counts = Counter(numbers=0, here=0, data=0, settings=0)
        runs = set()
        for cell in table_cells(name):
            data = missing_data(cell, data_dir)
            missing.update(f"{one.dataset} ({', '.join(one.files)}): {one.remedy}" for one in data)
            missing.update([cell.reason] if cell.reason and not data else [])
            counts.update(["numbers", "data" if data else "settings" if cell.reason else "here"])
            runs |= set() if data or cell.reason else {job.key for job in cell.jobs}
        total.update(counts)
        shown.append((name, *map(str, counts.values()), str(len(runs))))
    console.print(make_table([*shown, ("all", *map(str, total.values()), "")]))
    console.print("here, no data, no settings: numbers that can be run, or why not; runs: for one seed.")
    for reason, numbers in missing.items():
        _print_line(console, f"{numbers} numbers wait for {reason}")


def _print_plan(console: "Console", jobs: "list[Job]", context: "RunContext", workers: int) -> None:
    """Print what would be run, and for how long, estimated from earlier records."""
    from toa.experiments.run import Estimates, timed_records
    from toa.experiments.sweep import find_end
    from toa.tasks.distributed import resolve_device

    estimates = Estimates(timed_records(context.out), on_cpu=resolve_device(context.device).type == "cpu")
    times: list[float | None] = []
    for job in jobs:
        end = find_end(job, context)
        if end is not None:
            state, error = ("done", "") if end.kind == "found" else ("failed", f"  {end.message}")
        else:
            times.append(estimates.seconds(job))
            state, error = "?" if times[-1] is None else f"{times[-1]:.0f} s", ""
        _print_line(console, f"{state:>8}  {job.label}{error}")
    timed = [seconds for seconds in times if seconds is not None]
    part = f" for {len(timed)} of them" if len(timed) < len(times) else ""
    estimate = f"about {duration(sum(timed) / workers)} of training{part}, by earlier records of similar runs"
    console.print(f"{len(times)} runs to do; {estimate if timed else 'no earlier record to estimate their time from'}.")


class _Board:
    """One progress bar for the sweep and one per run in progress; prints a line when a run ends."""

    def __init__(self, progress: "Progress", jobs: "list[Job]", *, show_found: bool) -> None:
        self._progress, self._show_found = progress, show_found
        self._jobs = {job.key: job for job in jobs}
        self._counts: Counter[str] = Counter()
        self._bars: dict[str, Any] = {}
        # finished fraction of each run in progress
        self._fractions: dict[str, float] = {}
        self._total = progress.add_task("runs", total=len(self._jobs))

    def watch(self, event: "Event") -> None:
        """Show an event."""
        if event.kind == "begin" and event.key not in self._bars:
            label = self._jobs[event.key].label[:_LABEL_WIDTH]
            self._bars[event.key] = self._progress.add_task(show_controls(f"  {label}"), total=None)
        elif event.kind == "step" and event.key in self._bars:
            self._progress.update(self._bars[event.key], completed=event.step, total=event.total)
            self._fractions[event.key] = event.step / event.total
        elif event.kind in ("found", "done", "failed"):
            if event.key in self._bars:
                self._progress.remove_task(self._bars.pop(event.key))
                self._fractions.pop(event.key, None)
            self._counts["failed" if event.kind == "failed" else "done"] += 1
            if event.kind != "found" or self._show_found:
                result = f"{'FAILED ' if event.kind == 'failed' else ''}{event.message}"
                _print_line(self._progress.console, f"{self._jobs[event.key].label}  {result}")
        done, failed = self._counts["done"], self._counts["failed"]
        text = f"{done} done, {len(self._bars)} running, {failed} failed"
        text += ", waiting for another process" if event.kind == "waiting" and not self._bars else ""
        # unfinished runs count in part, so that the time left is known before the first run ends
        self._progress.update(self._total, description=text, completed=done + failed + sum(self._fractions.values()))


def _print_line(console: "Console", line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False)
