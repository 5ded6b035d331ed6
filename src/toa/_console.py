"""Terminal output shared by commands, estimators and benchmarks: console, tables, durations, progress bars."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
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


@contextmanager
def show_epochs(description: str = "") -> Iterator[Callable[..., None]]:
    """Show progress bars of training, one per title; yields the observer that `toa.training.train` calls."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[losses]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    progress = Progress(*columns, console=make_console())
    bars: dict[str, TaskID] = {}

    def observe(done: int, total: int, loss: float, validation: float | None, title: str = description) -> None:
        # a bar starts with the first step, so that an early error is printed alone
        progress.start()
        if title not in bars:
            bars[title] = progress.add_task(show_controls(title), total=None, losses="-")
        losses = f"{loss:.4f}" + ("" if validation is None else f", validation {validation:.4f}")
        progress.update(bars[title], completed=done, total=total, losses=losses)

    try:
        yield observe
    finally:
        progress.stop()
