"""What every command of the terminal shares: errors in one line, and one voice."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def clear_errors(*, resumes: bool = False) -> Iterator[None]:
    """Say what is wrong in one line, without a traceback; 130 is what a stopped program returns.

    Args:
        resumes: Whether a command that was stopped goes on where it was when it is given again.
    """
    try:
        yield
    except (ValueError, FloatingPointError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stopped:
        if is_first():
            typer.echo(f"{str(stopped) or 'stopped'}{'; the same command goes on from here' * resumes}.", err=True)
        raise typer.Exit(130) from None


def make_console() -> "Console":
    """A console; of several processes that train together, one speaks."""
    from rich.console import Console

    return Console(quiet=not is_first())


def duration(seconds: float) -> str:
    """Hours and minutes, minutes and seconds, or seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def is_first() -> bool:
    """Whether this process is the first, or the only one, of those that train together; known before they have met."""
    ranks = (os.environ.get(name, "0") for name in ("RANK", "NODE_RANK", "LOCAL_RANK"))
    return all(rank == "0" for rank in ranks)


@contextmanager
def show_epochs(description: str) -> Iterator[Callable[[int, int, float, float | None], None]]:
    """A progress bar of training: told of steps done, all steps, loss and validation loss, as `train` tells them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}, validation {task.fields[validation]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    progress = Progress(*columns, console=make_console())
    bar = progress.add_task(description, total=None, loss="-", validation="-")

    def observe(done: int, total: int, loss: float, validation: float | None) -> None:
        # nothing is drawn before there is something to see: an error comes first
        progress.start()
        shown = "-" if validation is None else f"{validation:.4f}"
        progress.update(bar, completed=done, total=total, loss=f"{loss:.4f}", validation=shown)

    try:
        yield observe
    finally:
        progress.stop()
