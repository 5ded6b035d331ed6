"""Terminal output shared by commands, estimators and benchmarks: console, tables, durations, progress bars."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table
    from rich.text import Text


_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def show_controls(text: str) -> str:
    """Text with control characters written as in Python, so that names cannot control the terminal."""
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def make_console() -> "Console":
    """A console that prints text unchanged, without markup. In distributed training only the first process prints."""
    from rich.console import Console

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(show_controls(text), **{**options, "markup": False, "emoji": False})

    return PlainConsole(quiet=not is_first())


def make_table(rows: Sequence[Sequence[str]], *, left: int = 1, title: str | None = None) -> "Table":
    """Make a terminal table from a header and rows; the first `left` columns are aligned left, the others right."""
    from rich import box
    from rich.table import Table

    header, *body = rows
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, name in enumerate(header):
        # the name of a system is never cut or broken
        table.add_column(name, justify="left" if index < left else "right", no_wrap=index == 0, overflow="fold")
    for row in body:
        table.add_row(*row)
    return table


def duration(seconds: float) -> str:
    """Format a duration as hours and minutes, minutes and seconds, or seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def is_first() -> bool:
    """Whether this is the first process of a distributed run, or the only one. Reads the launcher's variables."""
    ranks = (os.environ.get(name, "0") for name in ("RANK", "NODE_RANK", "LOCAL_RANK"))
    return all(rank == "0" for rank in ranks)


def shows_progress(wanted: bool | None) -> bool:
    """Whether progress is shown; None: in a terminal or a notebook, but in no file, pipe or test."""
    if wanted is not None:
        return wanted
    if "PYTEST_CURRENT_TEST" in os.environ or not is_first():
        return False
    if make_console().is_jupyter:
        # without this package rich would print a warning at every step
        return find_spec("ipywidgets") is not None
    return sys.stdout is not None and sys.stdout.isatty()


class ProgressBars:
    """Progress bars by title. A bar starts with its first step, so that an early error is printed alone."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def update(self, title: str, done: int, total: int, note: str) -> None:
        """Show how much is done, and a note beside it."""
        self._progress.start()
        if title not in self._bars:
            self._bars[title] = self._progress.add_task(show_controls(title), total=None, note="")
        self._progress.update(self._bars[title], completed=done, total=total, note=show_controls(note))


# the bars that are shown, if any: a terminal shows one group at a time
_shown_bars: ContextVar[ProgressBars | None] = ContextVar("shown_bars", default=None)


@contextmanager
def show_bars() -> Iterator[ProgressBars]:
    """Progress bars; within another call, those of that call."""
    outer = _shown_bars.get()
    if outer is not None:
        yield outer
        return

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    progress = Progress(*columns, console=make_console())
    bars = ProgressBars(progress)
    token = _shown_bars.set(bars)
    try:
        yield bars
    finally:
        _shown_bars.reset(token)
        progress.stop()


@contextmanager
def show_steps(title: str, total: int, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """A progress bar of named steps; yields a function that is called with the name of each step as it begins."""
    if not shown:
        yield lambda name: None
        return
    begun = 0
    with show_bars() as bars:

        def begin(name: str) -> None:
            nonlocal begun
            bars.update(title, begun, total, name)
            begun += 1

        yield begin
        bars.update(title, total, total, "")


@contextmanager
def show_epochs(description: str = "") -> Iterator[Callable[..., None]]:
    """Progress bars of training, one per title; yields the observer that `toa.training.train` calls."""
    with show_bars() as bars:

        def observe(done: int, total: int, loss: float, validation: float | None, title: str = description) -> None:
            losses = f"{loss:.4f}" + ("" if validation is None else f", validation {validation:.4f}")
            bars.update(title, done, total, f"loss {losses}")

        yield observe
