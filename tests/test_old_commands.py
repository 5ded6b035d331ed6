"""Every command line that worked before still parses, with the same defaults.

`tests/stored/commands.json` lists every command with its parameters. After adding an option, write it again:

    python -m tests.test_old_commands

Removing an option, or changing its default, is not allowed: scripts and stored records depend on it.
"""

import enum
import inspect
import json
import re
import shlex
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from tests.support import ROOT
from toa.cli import app
from toa.cli.plugins import subcommands

STORED = ROOT / "tests" / "stored" / "commands.json"

# documented command lines; commands of stored records and of the pages are added below
DOCUMENTED = """\
toa --version
toa forecast load.csv --horizon 96 --test 0.2 --save load.toa
toa forecast today.csv --model load.toa --out tomorrow.csv
toa forecast load.csv --horizon 24 --interval 0.9 --quantile 0.1 --quantile 0.9 --device cpu
toa forecast load.csv --horizon 24 --zero-shot
toa detect sensors.csv
toa classify Motions_TRAIN.ts --test Motions_TEST.ts
toa explain load.toa
toa doctor
toa data list
toa data fetch ETTh1
toa run --dataset ETTh1 --horizon 96 --backbone patchtst --attention toa-gated --protocol toa-paper
toa run --dataset my.csv --horizon 24 --backbone itransformer --set lookback=48 --set training.epochs=5
toa run --task anomaly --dataset MSL --backbone itransformer --attention toa-gated
toa run --task anomaly --dataset train.npy --test-file test.npy --label-file labels.npy
toa run --task classify --dataset BasicMotions --backbone transformer --protocol strict
toa run --dataset ETTh1 --horizon 96 --devices 4 --dry-run
toa reproduce --list
toa reproduce forecast-full --dataset ETTh1
toa reproduce demixing
toa reproduce anomaly --dataset MSL --seeds 3
toa reproduce classification --executor pool --workers 14
toa reproduce classification --seeds 1 --device cuda --executor pool --workers 14
toa watch runs
toa report runs --out report
toa report runs/demix-demo --save-operators results/operators/operators.json
toa compare runs/demo/classification --metric accuracy
toa theory
toa demo --steps 10
toa demix --preset paper --attention toa-gated --seed 2024
toa bench ops
toa bench efficiency --peer CHECKOUT --out results/performance/efficiency.json
"""


def leaf_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command, groups included, under the words that call it."""
    yield " ".join(("toa", *path)), command
    for name, child in subcommands(command).items():
        yield from leaf_commands(child, (*path, name))


def type_name(annotation: Any) -> str:
    """What a user types: text for paths, choices and strings alike, and the items of a list."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return type_name(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        (kept,) = (part for part in get_args(annotation) if part is not type(None))
        return type_name(kept)
    if origin in (list, tuple):
        return f"list of {type_name(get_args(annotation)[0])}"
    text = origin is Literal or (inspect.isclass(annotation) and issubclass(annotation, (str, Path, enum.Enum)))
    return "text" if text else str(annotation.__name__)


def default_of(parameter: Any) -> Any:
    """The default as JSON. Typer gives an empty list or None for a list without one, by version."""
    default = parameter.default
    if callable(default):
        default = default()
    if isinstance(default, enum.Enum):
        default = default.value
    if isinstance(default, (list, tuple)):
        default = [str(item) if isinstance(item, Path) else item for item in default] or None
    return str(default) if isinstance(default, Path) else default


def describe(command: Any) -> dict[str, Any]:
    """Parameters of a command: options by their first word, arguments by position."""
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
    found: dict[str, Any] = {}
    for parameter in command.params:
        if parameter.name in hints:
            argument = parameter.param_type_name == "argument"
            key = f"argument {sum(key.startswith('arg') for key in found)}" if argument else parameter.opts[0]
            found[key] = {
                "words": [] if argument else [*parameter.opts, *parameter.secondary_opts],
                "default": default_of(parameter),
                "required": parameter.required,
                "type": type_name(hints[parameter.name]),
            }
    return found


def snapshot() -> dict[str, dict[str, Any]]:
    """Every command and its parameters as they are now."""
    return {name: describe(command) for name, command in leaf_commands(typer.main.get_command(app))}


@pytest.fixture(scope="module")
def now() -> dict[str, dict[str, Any]]:
    return snapshot()


@pytest.fixture(scope="module")
def before() -> dict[str, dict[str, Any]]:
    return json.loads(STORED.read_text(encoding="utf-8"))


def test_every_command_and_option_keeps_its_words_default_and_type(before, now):
    gone = [name for name in before if name not in now]
    changed = []
    for name in before.keys() & now.keys():
        for key, parameter in before[name].items():
            found = now[name].get(key)
            if found is None or found != parameter:
                changed.append(f"{name} {key}: {parameter}, now {found}")
    assert gone + sorted(changed) == []


def test_new_options_are_stored_too(before, now):
    """Otherwise they could be removed again unnoticed."""
    assert {name: set(found) for name, found in now.items()} == {name: set(found) for name, found in before.items()}


def parse(line: str) -> None:
    """Parse a command line without running it; raises what Typer raises."""
    _, *words = shlex.split(line)
    command: Any = typer.main.get_command(app)
    while words and words[0] in subcommands(command):
        command = subcommands(command)[words[0]]
        words = words[1:]
    if words not in (["--version"], ["--help"]):
        assert not subcommands(command), f"no command {words}"
        command.make_context(command.name, words)


def lines_of_pages() -> set[str]:
    """Command lines of indented and fenced blocks on the pages, comments cut off."""
    found = set()
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*/README.md")):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        found |= {line.split(" #")[0].strip() for line in re.findall(r"^ {0,4}(toa [^\n`]*)$", text, re.MULTILINE)}
    return found


def lines_of_records() -> set[str]:
    """One command line per set of options among the stored records."""
    found: dict[tuple[str, ...], str] = {}
    for path in [*ROOT.glob("results/**/*.jsonl"), *ROOT.glob("results/**/*.json")]:
        text = path.read_text(encoding="utf-8")
        for word in re.findall(r'"command": ?("toa (?:[^"\\]|\\.)*")', text):
            line = json.loads(word)
            options = tuple(sorted(part for part in line.split() if part.startswith("--")))
            found.setdefault((*line.split()[:2], *options), line)
    return set(found.values())


def test_documented_and_recorded_command_lines_still_parse():
    lines = {*DOCUMENTED.splitlines(), *lines_of_pages(), *lines_of_records()}
    assert len(lines) > 40
    failed = []
    for line in sorted(lines):
        try:
            parse(line)
        except Exception as error:
            failed.append(f"{line}: {error}")
    assert failed == []


def test_a_line_with_an_unknown_option_does_not_parse():
    with pytest.raises(Exception, match="--horizonn"):
        parse("toa run --dataset ETTh1 --horizonn 96")
    with pytest.raises(Exception, match="runn"):
        parse("toa runn ETTh1")


def call(*words: object) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return re.sub(r"\s+", " ", result.output)


@pytest.mark.slow
def test_old_lines_run_from_a_table_to_a_forecast(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hours = pd.date_range("2026-01-01", periods=240, freq="h")
    load = np.sin(2 * np.pi * np.arange(240) / 24)
    pd.DataFrame({"time": hours, "load": load}).to_csv("load.csv", index=False)
    quick = ("--backbone", "itransformer", "--lookback", 24, "--epochs", 1, "--device", "cpu")
    call("forecast", "load.csv", "--horizon", 6, "--test", 0.2, "--save", "load.toa", *quick)
    call("forecast", "load.csv", "--model", "load.toa", "--out", "tomorrow.csv")
    assert list(pd.read_csv("tomorrow.csv").columns) == ["time", "load", "load_lower", "load_upper"]
    call("explain", "load.toa", "--out", "explained")
    assert list(Path("explained").rglob("*.png"))
    call("detect", "load.csv", "--epochs", 1, "--device", "cpu")


def test_old_lines_run_from_an_experiment_to_its_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    hours = pd.date_range("2026-01-01", periods=200, freq="h")
    pd.DataFrame({"date": hours, "a": rng.standard_normal(200)}).to_csv("own.csv", index=False)
    words = ["run", "--dataset", "own.csv", "--horizon", 4, "--backbone", "dlinear", "--protocol", "tslib-96"]
    tiny = ["--device", "cpu", "--set", "lookback=32", "--set", "training.epochs=1", "--set", "batch_size=16"]
    assert "lookback" in call(*words, *tiny, "--dry-run")
    assert "test MSE" in call(*words, *tiny)
    assert "test MSE" in call(*words, *tiny)
    assert "dlinear" in call("compare", "runs", "--metric", "mse", "--baseline", "dlinear")
    call("watch", "runs", "--once")
    call("report", "runs", "--out", "report")
    assert Path("report", "index.html").exists()


if __name__ == "__main__":
    lines = []
    for name, found in sorted(snapshot().items()):
        parameters = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(found.items()))
        lines.append(f" {json.dumps(name)}: {{{chr(10) + parameters + chr(10) + ' ' if found else ''}}}")
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
