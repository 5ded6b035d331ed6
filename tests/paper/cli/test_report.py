import pytest
from typer.testing import CliRunner

from tests.paper.report.cases import etth1_records
from tests.report.cases import hide_data, write_lines
from toa.cli import app
from toa.report.operators import read_pictures

runner = CliRunner(env={"COLUMNS": "200"})


@pytest.mark.usefixtures("pictures")
def test_report_writes_page_and_texts_and_prints_skipped_records(tmp_path, monkeypatch):
    hide_data(monkeypatch, tmp_path)
    path = write_lines(tmp_path / "runs" / "a.jsonl", etth1_records(1, ("ETTh1", "ETTh2", "ETTm1")))
    with path.open("a") as file:
        file.write('{"task": "fore')
    out = tmp_path / "out"
    kept = tmp_path / "operators.json"
    result = runner.invoke(
        app,
        ["report", str(path.parent), "--out", str(out), "--table", "forecast-full", "--save-operators", str(kept)],
    )
    assert result.exit_code == 0, result.output
    assert sorted(file.name for file in out.iterdir()) == [
        "critical-difference-forecast-full-itransformer-toa-paper-mse.svg",
        "index.html",
        "report.md",
        "summary.md",
    ]
    assert f"line 49 of {path}: it is not valid JSON" in result.output
    words = next(line for line in result.output.splitlines() if "forecast-full" in line).split()
    assert words[:3] == ["forecast-full", "864", "96"]
    assert read_pictures(kept) == []


def test_the_help_says_what_report_needs_data_for():
    assert "for data, to explain what cannot run here." in runner.invoke(app, ["report", "--help"]).output


def test_wrong_input_exits_with_one_line(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", etth1_records(1))
    cases = {
        (str(tmp_path / "nowhere"),): "error: RESULTS must be files or folders, got ",
        (str(path), "--table", "table-9"): "error: unknown table 'table-9'; known: demixing, ",
        (str(path), "--save-operators", "x.json"): "error: --save-operators must be a file called operators.json, got",
    }
    for words, said in cases.items():
        result = runner.invoke(app, ["report", *words, "--out", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert result.output.startswith(said), result.output
        assert not (tmp_path / "out").exists()
