"""The command line: parse, call, print. Heavy imports wait until a command needs them; other packages add commands."""

from typing import Annotated

import typer

import toa
from toa._threads import wait_passively
from toa.cli.classify import classify
from toa.cli.data import data_app
from toa.cli.detect import detect
from toa.cli.doctor import doctor
from toa.cli.forecast import forecast
from toa.cli.plugins import PluginGroup
from toa.cli.report import compare, explain, watch
from toa.cli.run import run
from toa.cli.terminal import Command, ResumableCommand

# no import above imports torch
wait_passively()

app = typer.Typer(
    name="toa",
    cls=PluginGroup,
    help="Operator attention on time series.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(data_app, name="data")
for _command in (run, compare, watch, forecast, detect, classify, doctor, explain):
    app.command(cls=ResumableCommand if _command is run else Command)(_command)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Operator attention on time series."""
    if version:
        typer.echo(f"toa {toa.__version__}")
        raise typer.Exit
