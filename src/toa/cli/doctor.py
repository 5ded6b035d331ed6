"""The command `toa doctor`: what this machine can do. Heavy imports wait until it runs."""

import json
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder to look in first.")] = None,
) -> None:
    """Say what this machine can do: versions, devices, backends with a self-test, data. Bug reports ask for it.

    The exit status is 0 unless a self-test fails.
    """
    from toa.cli.environment import as_text, examine, failures

    report = examine(data_dir)
    typer.echo(json.dumps(report, indent=2) if as_json else as_text(report))
    if failures(report):
        raise typer.Exit(1)
