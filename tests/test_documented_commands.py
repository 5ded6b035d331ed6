"""Every command line of the README, the pages and the changelog is one of this version."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from tests.support import ROOT
from toa.cli import app
from toa.cli.plugins import subcommands

PAGES = (
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("results/*/README.md")),
)


def leaf_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command, groups included, under the words that call it."""
    yield " ".join(("toa", *path)), command
    for name, child in subcommands(command).items():
        yield from leaf_commands(child, (*path, name))


def command_of(line: str) -> tuple[Any, list[str]]:
    """The command of a line, and the words after its name."""
    _, *words = shlex.split(line)
    command: Any = typer.main.get_command(app)
    while words and words[0] in subcommands(command):
        command = subcommands(command)[words[0]]
        words = words[1:]
    return command, words


def parse(line: str) -> None:
    """Parse a command line without running it; raises what Typer raises."""
    command, words = command_of(line)
    if words not in (["--version"], ["--help"]):
        assert not subcommands(command), f"no command {words}"
        command.make_context(command.name, words)


def check_mention(text: str) -> None:
    """Check the command and the options in a text such as `toa forecast --test`, whose arguments may be missing."""
    command, words = command_of(text)
    group = subcommands(command)
    assert not group or not words or words[0].startswith("-"), f"no command {words}"
    known = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert options <= {*known, "--help", "--version"}, f"no options {sorted(options - known)}"


def lines_of_pages() -> set[str]:
    """Command lines of indented and fenced blocks, comments cut off."""
    lines = set()
    for path in PAGES:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        lines |= {line.split(" #")[0].strip() for line in re.findall(r"^ {0,4}(toa [^\n`]*)$", text, re.MULTILINE)}
    return lines


def mentions_of_pages() -> set[str]:
    """Commands within sentences."""
    return {text for path in PAGES for text in re.findall(r"`(toa [^`\n]*)`", path.read_text(encoding="utf-8"))}


def failures(texts: set[str], check: Any) -> list[str]:
    failed = []
    for text in sorted(texts):
        try:
            check(text)
        except Exception as error:
            failed.append(f"{text}: {error}")
    return failed


def test_command_lines_of_the_pages_parse():
    lines = lines_of_pages()
    assert len(lines) > 20
    assert failures(lines, parse) == []


def test_commands_within_sentences_exist_with_their_options():
    mentions = mentions_of_pages()
    assert len(mentions) > 20
    assert failures(mentions, check_mention) == []


def test_a_line_with_an_unknown_option_does_not_parse():
    with pytest.raises(Exception, match="--horizonn"):
        parse("toa run --dataset ETTh1 --horizonn 96")
    with pytest.raises(Exception, match="runn"):
        parse("toa runn ETTh1")
    with pytest.raises(AssertionError, match="--horizonn"):
        check_mention("toa run --horizonn")
    with pytest.raises(AssertionError, match="runn"):
        check_mention("toa runn")


def call(*words: object) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return re.sub(r"\s+", " ", result.output)


@pytest.mark.slow
def test_documented_lines_run_from_a_table_to_a_forecast(tmp_path, monkeypatch):
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


def test_documented_lines_run_from_an_experiment_to_its_report(tmp_path, monkeypatch):
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
