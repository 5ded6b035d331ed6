"""How every command reports errors: one line, without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from toa._console import is_first


@contextmanager
def clear_errors(*, resumes: bool = False) -> Iterator[None]:
    """Print an error in one line and exit with 2; exit with 130 after Ctrl-C.

    Args:
        resumes: Whether repeating the command resumes its work.
    """
    try:
        yield
    except (ValueError, FloatingPointError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stopped:
        if is_first():
            typer.echo(f"{str(stopped) or 'stopped'}{'; repeat the command to resume' * resumes}.", err=True)
        raise typer.Exit(130) from None
