"""Commands of `toa` on the paper: entry points register them. Each parses, calls and prints."""

from importlib.resources import files

import typer

from toa.cli.terminal import Command, ResumableCommand, add_help
from toa_paper.cli.demo import demix, demo
from toa_paper.cli.report import report
from toa_paper.cli.reproduce import reproduce
from toa_paper.cli.theory import theory

add_help(files("toa_paper.cli") / "help.toml")

paper_app = typer.Typer(add_completion=False)
for _command in (reproduce, report, demo, demix, theory):
    paper_app.command(cls=Command if _command in (report, theory) else ResumableCommand)(_command)
