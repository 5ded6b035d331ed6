"""Shared by all commands: errors in one line, and help texts that list the entries of registries."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from typing import Any

import typer
from typer.core import TyperCommand

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


# names that a help text may use in braces, each with the registry or the function that lists the choices
CHOICES = {
    "backbones": "toa.models:backbone_names:forecast",
    "reconstructors": "toa.models:backbone_names:reconstruct",
    "classifiers": "toa.models:backbone_names:classify",
    "attentions": "toa.nn:ATTENTIONS",
    "forecast_protocols": "toa.experiments:protocol_names:forecast",
    "anomaly_protocols": "toa.experiments:protocol_names:anomaly",
    "classify_protocols": "toa.experiments:protocol_names:classify",
    "tables": "toa.experiments.paper.tables:TABLES",
    "missing": "toa.data.panel:Missing.__args__",
    "activations": "toa.ops:ACTIVATIONS",
    "dtypes": "toa_bench.op_cost:DTYPES",
    "efficiency_rows": "toa.experiments.step_run:ROWS",
}


def list_choices(name: str) -> list[str]:
    """The choices of a name in `CHOICES`."""
    module, attribute, *arguments = CHOICES[name].split(":")
    listed = attrgetter(attribute)(import_module(module))
    return list(listed(*arguments) if arguments else listed)


class ChoicesCommand(TyperCommand):
    """A command whose help replaces `{name}` by the choices of that name.

    Registries import torch, so they are read only when the help of the command is shown.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Fill in the choices, then write the help."""
        for param in self.params:
            if text := getattr(param, "help", None):
                param.help = re.sub(r"\{(\w+)\}", lambda match: ", ".join(list_choices(match[1])), text)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
