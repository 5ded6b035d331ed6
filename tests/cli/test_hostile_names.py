"""Names and destinations that users may give: none breaks a command, and none controls the terminal."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from toa._console import make_console, make_table, show_controls, show_epochs
from toa.cli import app
from toa.report.tables import escape_markdown

# names are drawn, too
pytestmark = pytest.mark.usefixtures("pictures")

# markup of rich, escape sequences, Markdown, HTML, formulas, formats, line ends, other scripts
NAMES = ("[/b]", "[red]x", "\x1b[31mx", "a|b", "<script>", "$\\frac{", "{0}", "%s", "x\ty", "数", ":smile:", "a" * 300)
# it never reads a name
NO_NETWORK = ("--effort", "least")


def call(*words: object):
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200", "TERM": "dumb"})


def write(path: Path, *names: str, rows: int = 80, **more: object) -> Path:
    values = np.random.default_rng(0).normal(size=(rows, len(names)))
    pd.DataFrame(dict(zip(names, values.T, strict=True)) | more).to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_forecast_and_detect_take_any_column_name(tmp_path):
    path = write(tmp_path / "[b].csv", *NAMES)
    result = call("forecast", path, "--horizon", 2, "--lookback", 4, *NO_NETWORK, "--out", tmp_path / "f.csv")
    assert result.exit_code == 0, result.output
    assert "[/b], [red]x, \\x1b[31mx, a|b" in result.output
    assert "\x1b" not in result.output
    assert set(NAMES) <= set(pd.read_csv(tmp_path / "f.csv").columns)
    result = call("detect", path, "--window", 8, *NO_NETWORK, "--out", tmp_path / "d.csv")
    assert result.exit_code == 0, result.output


def test_classes_may_have_any_name(tmp_path):
    path = write(tmp_path / "c.csv", "0", "1", "2", "3", rows=24, kind=[*NAMES] * 2)
    result = call("classify", path, "--label", "kind", *NO_NETWORK, "--test", path, "--out", tmp_path / "c_out.csv")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output


def test_a_progress_bar_shows_escape_sequences_of_a_name(capsys):
    with show_epochs("\x1b[31mred") as observe:
        observe(1, 2, 0.5, None)
    assert r"\x1b[31mred" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("name", NAMES)
def test_the_console_prints_names_as_they_are(name, capsys):
    console = make_console()
    console.width = 400
    console.print(f"column {name}", soft_wrap=True)
    console.print(make_table([("name", "n"), (name, "1")], title=name))
    found = capsys.readouterr().out
    assert "\x1b" not in found
    assert found.startswith(f"column {show_controls(name)}"[:20])
    assert re.sub(r"\s", "", found).count(show_controls(name)) == 3


def test_markdown_shows_names_as_they_are():
    assert escape_markdown("a|b <i>*x*</i>\n[y](z)") == "a\\|b &lt;i&gt;\\*x\\*&lt;/i&gt; \\[y\\](z)"


@pytest.mark.parametrize("option", ["--out", "--picture", "--save"])
def test_destinations_are_checked_before_training(tmp_path, option, monkeypatch):
    monkeypatch.setattr("toa.estimators.Forecaster.fit", lambda *_: pytest.fail("trained"))
    path = write(tmp_path / "a.csv", "x")
    ending = "csv" if option == "--out" else "png"
    for wrong in (tmp_path / f"folder.{ending}", path / f"f.{ending}"):
        (tmp_path / f"folder.{ending}").mkdir(exist_ok=True)
        result = call("forecast", path, "--horizon", 2, option, wrong)
        assert result.exit_code == 2
        assert "must be a f" in result.output


def test_a_failed_table_keeps_the_model(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("toa.data.formats.write_frame", fail)
    path = write(tmp_path / "a.csv", "x")
    model = tmp_path / "m.toa"
    result = call("forecast", path, "--horizon", 2, "--lookback", 4, "--epochs", 1, "--save", model)
    assert result.exit_code == 2
    assert model.is_file()


def test_an_unknown_format_of_a_picture_is_refused_before_training(tmp_path):
    path = write(tmp_path / "a.csv", "x")
    result = call("forecast", path, "--horizon", 2, "--picture", tmp_path / "p.xyz")
    assert "--picture must end in" in result.output
