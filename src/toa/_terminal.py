"""What every command of the terminal shares: errors in one line, and one voice."""

import os
from collections.abc import Iterator
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
    except (ValueError, FloatingPointError, OSError) as error:
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


def is_first() -> bool:
    """Whether this process is the first, or the only one, of those that train together; known before they have met."""
    ranks = (os.environ.get(name, "0") for name in ("RANK", "NODE_RANK", "LOCAL_RANK"))
    return all(rank == "0" for rank in ranks)
