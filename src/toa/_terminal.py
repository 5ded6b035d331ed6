"""What every command of the terminal shares: errors in one line, and one voice."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def clear_errors() -> Iterator[None]:
    """Say what is wrong in one line, without a traceback; 130 is what a stopped program returns."""
    try:
        yield
    except (ValueError, FloatingPointError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stopped:
        typer.echo(f"{stopped or 'stopped'}; the same command goes on from here.", err=True)
        raise typer.Exit(130) from None


def make_console() -> "Console":
    """A console; of several processes that train together, one speaks."""
    from rich.console import Console

    return Console(quiet=os.environ.get("LOCAL_RANK", "0") != "0")
