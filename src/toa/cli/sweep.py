"""Lists of runs, for the commands of packages that sweep over them: read, plan, run with one progress bar per run.

Heavy imports wait until a command needs them.
"""

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from toa._checks import ArgumentError
from toa._console import duration, show_controls
from toa.cli.run import config_of, run

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


def read_runs(path: Path) -> "list[Job]":
    """Read jobs from a file with the options of one `toa run` per line; skips empty lines and text after a #."""
    from toa.data.contents import one_line
    from toa.experiments.run import Job

    if not path.is_file():
        raise FileNotFoundError(
            f"--runs must be a file with the options of one `toa run` per line; no such file: {path}."
        )
    jobs = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ArgumentError(path, "be text in UTF-8", error, "save it in UTF-8") from None
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            words = words[2:] if words[:2] == ["toa", "run"] else words
            if words:
                jobs.append(Job(config=_config(words), label=shlex.join(words), command=("toa", "run", *words)))
        except ValueError as error:
            # a word may be of any length
            raise ValueError(f"line {number} of {path}: {one_line(error)}") from None
    if not jobs:
        raise ArgumentError(path, "have a run on at least one line", "none", "see `toa run --help`")
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
            raise ArgumentError(option, "be left out of a line", given[name], "give it for the whole list")
    return config_of(given)


def run_jobs(
    console: "Console",
    jobs: "list[Job]",
    context: "RunContext",
    *,
    executor: str,
    workers: int | None,
    address: str | None,
    dry_run: bool,
    show_found: bool,
) -> None:
    """Run jobs and print one line per run, or print the plan; exits with 1 if a run failed.

    Args:
        dry_run: Only print what would be run, and for how long.
        show_found: Print a line for runs that were finished before, too.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from toa.experiments.records import checkout_commit
    from toa.experiments.sweep import default_workers, sweep

    if dry_run:
        _print_plan(console, jobs, context, default_workers(executor, workers))
        return
    if (commit := checkout_commit() or "").endswith("-dirty"):
        console.print(f"warning: every record will name {commit}; commit the changes of this checkout first.")
    title = TextColumn("{task.description}", markup=False)
    columns = (title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        board = _Board(progress, jobs, show_found=show_found)
        outcome = sweep(jobs, context, executor=executor, workers=workers, address=address, watch=board.watch)
    remedy = "; --retry retries them" if outcome.failures else ""
    failed = f"{len(outcome.failures)} failed{remedy}"
    console.print(f"{len(outcome.records)} runs done, {failed}; records: {context.out}")
    if outcome.failures:
        raise typer.Exit(1)


def _print_plan(console: "Console", jobs: "list[Job]", context: "RunContext", workers: int) -> None:
    """Print what would be run, and for how long, estimated from earlier records."""
    from toa.experiments.run import Estimates, timed_records
    from toa.experiments.sweep import find_end
    from toa.training.distributed import resolve_device

    estimates = Estimates(timed_records(context.out), on_cpu=resolve_device(context.device).type == "cpu")
    times: list[float | None] = []
    for job in jobs:
        end = find_end(job, context)
        if end is not None:
            state, error = ("done", "") if end.kind == "found" else ("failed", f"  {end.message}")
        else:
            times.append(estimates.seconds(job))
            state = "?" if times[-1] is None else f"{times[-1]:.0f} s"
            error = ""
        print_line(console, f"{state:>8}  {job.label}{error}")
    timed = [seconds for seconds in times if seconds is not None]
    part = f" for {len(timed)} of them" if len(timed) < len(times) else ""
    estimate = f"about {duration(sum(timed) / workers)} of training{part}, by earlier records of similar runs"
    console.print(f"{len(times)} runs to do; {estimate if timed else 'no earlier record to estimate their time from'}.")


class _Board:
    """One progress bar for the sweep and one per run in progress; prints a line when a run ends."""

    def __init__(self, progress: "Progress", jobs: "list[Job]", *, show_found: bool) -> None:
        self._progress = progress
        self._show_found = show_found
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
                print_line(self._progress.console, f"{self._jobs[event.key].label}  {result}")
        done, failed = self._counts["done"], self._counts["failed"]
        text = f"{done} done, {len(self._bars)} running, {failed} failed"
        text += ", waiting for another process" if event.kind == "waiting" and not self._bars else ""
        # unfinished runs count in part, so that the time left is known before the first run ends
        self._progress.update(self._total, description=text, completed=done + failed + sum(self._fractions.values()))


def print_line(console: "Console", line: str) -> None:
    """Print one line, however long."""
    console.print(line, soft_wrap=True, highlight=False)
