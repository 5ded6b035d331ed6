import ast
import io
import subprocess
import sys
import warnings
from typing import Any

import pytest
import typer
from rich.console import Console

from tests.support import ROOT
from toa._checks import Argument, ArgumentError, ArgumentWarning, Phrase, part_of
from toa._console import is_first, make_console, show_epochs
from toa.cli import app
from toa.cli.plugins import subcommands
from toa.cli.terminal import CHOICES, HELP, clear_errors, find_option, list_choices


@pytest.mark.parametrize(
    ("resumes", "stopped", "said"),
    [
        (True, KeyboardInterrupt(), "stopped; repeat the command to resume.\n"),
        (True, KeyboardInterrupt("stopped after 3 of 9 steps"), "stopped after 3 of 9 steps; repeat the command"),
        (False, KeyboardInterrupt(), "stopped.\n"),
    ],
)
def test_a_stopped_command_offers_to_resume_only_if_it_can(capsys, resumes, stopped, said):
    with pytest.raises(typer.Exit) as ended, clear_errors(resumes=resumes):
        raise stopped
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("command", "argument", "option"),
    [
        ("forecast", Argument("missing", "ffill"), "--missing ffill"),
        ("forecast", Argument("data"), "DATA"),
        ("forecast", Argument("values", "my load"), "--value 'my load'"),
        ("forecast", Argument("quantiles[1]"), "--quantile"),
        ("forecast", Argument("day_first", True), "--day-first"),
        ("forecast", Argument("day_first", False), "--month-first"),
        ("forecast", Argument("test_size"), "--test"),
        ("forecast", Argument("validation_share"), None),
        ("classify", Argument("X"), "DATA"),
        ("classify", Argument("freq"), None),
        ("run", Argument("num_nodes", 2), "--num-nodes 2"),
        ("run", Argument("fill", "ffill"), "--set fill=ffill"),
        ("detect", Argument("model", "toa"), "--method toa"),
        ("forecast", Argument("model", "toa"), None),
        ("forecast", Argument("--test"), "--test"),
        ("explain", Argument("data", "own.csv"), "--data own.csv"),
        ("watch", Argument("results", "runs"), None),
    ],
)
def test_an_argument_is_shown_as_the_option_of_the_command(command, argument, option):
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert find_option(commands[command].params, argument) == option


@pytest.mark.filterwarnings("always")
def test_an_error_and_a_warning_are_printed_with_options(capsys):
    params = typer.main.get_command(app).commands["forecast"].params  # type: ignore[attr-defined]
    give = Phrase("give ", Argument("id"))
    with clear_errors(params):
        warnings.warn(ArgumentWarning("a time may be meant; ", give, "."), stacklevel=1)
    assert capsys.readouterr().err == "warning: a time may be meant; give --id.\n"
    with pytest.raises(typer.Exit), clear_errors(params):
        raise ArgumentError(part_of("data", "series 3"), "have rows", "none", give, Phrase("give ", Argument("y")))
    assert capsys.readouterr().err == "error: series 3 of DATA must have rows, got none; give --id.\n"


def test_an_error_is_printed_in_one_line(capsys):
    with pytest.raises(typer.Exit) as ended, clear_errors():
        raise ValueError("x must be 1, got 2.")
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "error: x must be 1, got 2.\n"


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "NODE_RANK"])
def test_only_the_first_process_of_a_distributed_run_prints(monkeypatch, capsys, name):
    for other in ("RANK", "LOCAL_RANK", "NODE_RANK"):
        monkeypatch.delenv(other, raising=False)
    assert is_first()
    monkeypatch.setenv(name, "1")
    assert not is_first()
    assert make_console().quiet
    with pytest.raises(typer.Exit), clear_errors():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", CHOICES)
def test_every_name_in_braces_has_choices(name):
    choices = list_choices(name)
    assert choices
    assert all(isinstance(choice, str) for choice in choices)


def test_every_option_has_a_help_text_and_every_text_an_option():
    used = set()
    # with the commands of other packages, whose help texts are added when they are loaded
    groups: list[Any] = [typer.main.get_command(app)]
    for name, command in (item for group in groups for item in subcommands(group).items()):
        if subcommands(command):
            groups.append(command)
            continue
        for param in command.params:
            assert param.help, f"{name}: {param.name}"
            used.add((name if param.name in HELP.get(name, {}) else "options", param.name))
    assert used == {(name, option) for name, texts in HELP.items() for option in texts}


def test_the_command_line_loads_heavy_packages_only_on_use():
    heavy = {"torch", "pandas", "matplotlib", "sklearn", "scipy", "aeon", "pooch"}
    light = {"scipy", "sklearn", "aeon", "numba"}
    check = "assert not {} & set(sys.modules);"
    code = f"import sys, toa.cli; {check.format(heavy)} import toa.data; {check.format(light)}"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_progress_bar_shows_the_time_left(monkeypatch):
    """Four of ten epochs took eight seconds, so twelve are left."""
    now = 0.0
    shown = io.StringIO()
    console = Console(file=shown, width=200, get_time=lambda: now)
    monkeypatch.setattr("toa._console.make_console", lambda: console)
    with show_epochs("fit") as observe:
        for done in range(5):
            now = 2.0 * done
            observe(done, 10, 0.5, None)
    assert "4/10 loss 0.5000 0:00:12" in shown.getvalue()


@pytest.mark.parametrize("name", ["classify", "detect", "forecast", "run"])
def test_options_hold_every_parameter_of_a_command_under_its_name(name):
    tree = ast.parse((ROOT / "src" / "toa" / "cli" / f"{name}.py").read_text(encoding="utf-8"))
    command = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    options = next(node.value for node in command.body if isinstance(node, ast.AnnAssign | ast.Assign))
    assert isinstance(options, ast.Dict)
    pairs = [
        (ast.literal_eval(key), ast.unparse(value))
        for key, value in zip(options.keys, options.values, strict=True)
        if key
    ]
    assert pairs == [(parameter.arg, parameter.arg) for parameter in command.args.args]
