import json
import re

from typer.testing import CliRunner

from tests.cli.test_app import call
from toa.cli import app


def test_theory_prints_every_case():
    code, text = call("theory")
    assert code == 0
    for case in ("A", "B", "C", "D", "E", "patch", "inverted"):
        assert f" {case} " in text
    assert "lemmas that fail: none" in text


def test_theory_fits_a_terminal_of_eighty_columns():
    _, text = call("theory", columns=80)
    assert len(re.findall(r"\de-0\d", text)) == 7
    assert "…" not in text


def test_theory_prints_json():
    result = CliRunner().invoke(app, ["theory", "--json"])
    rows = json.loads(result.output)
    assert [row["name"] for row in rows] == ["A", "B", "C", "D", "E", "patch", "inverted"]
    assert all(row["simplex_distance"] > 0 and row["gated_error"] < 1e-6 for row in rows)
