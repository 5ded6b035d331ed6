import json
import re

import pytest
from typer.testing import CliRunner

from tests.support import ROOT
from toa.cli import app
from toa.data import CLASSIFICATION_SETS

SMALL = [f"--set=model.{change}" for change in ("num_layers=1", "embed_dim=16", "ff_dim=16", "num_heads=2")]


@pytest.fixture(autouse=True)
def _own_data(monkeypatch):
    monkeypatch.delenv("TOA_DATA", raising=False)


def call(*words: str, columns: int = 200):
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(columns), "TERM": "dumb"})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def test_a_run_needs_only_a_data_set():
    words = ["run", "--task", "classify", "--dataset", "BasicMotions", "--backbone", "patchtst"]
    code, text = call(*words, "--attention", "toa-gated", "--protocol", "strict", "--dry-run")
    assert code == 0
    config = json.loads(text)
    assert (config["evaluation"], config["model"]["patch_len"], config["seed"]) == ("strict", 16, 2024)
    assert call("run", "--task", "classify", "--dataset", "BasicMotions", "--dry-run")[0] == 0


def test_runs_are_compared(tmp_path):
    for attention in ("softmax", "toa-relu"):
        code, text = call(
            *("run", "--task", "classify", "--dataset", "BasicMotions", "--attention", attention),
            *("--protocol", "strict", "--device", "cpu", "--out", str(tmp_path / "runs")),
            *(*SMALL, "--set=training.epochs=1"),
        )
        assert code == 0, text
        assert "test accuracy 0." in text
        assert "record:" in text
    assert len(list((tmp_path / "runs").rglob("confusion.png"))) == 2
    out = tmp_path / "out"
    code, text = call("compare", str(tmp_path / "runs"), "--metric", "accuracy", "--out", str(out))
    assert code == 0, text
    assert "patchtst/toa-relu" in text
    assert "No signed-rank test is made: over 1 data sets" in text
    assert "it needs 3 systems, got 2" in text
    assert [path.name for path in out.iterdir()] == ["comparison.md"]


def test_wrong_input_exits_with_one_line(tmp_path):
    code, text = call("compare", str(tmp_path), "--metric", "accuracy")
    assert code == 2
    assert text.startswith("error: RESULTS must contain records, got none in")
    code, text = call("run", "--task", "classify", "--dataset", "BasicMotions", "--horizon", "3")
    assert code == 2
    assert "--horizon must be left out for task 'classify'" in text


def test_a_share_of_the_cases_to_test_on_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,kind\n1,2,x\n", encoding="utf-8")
    for share in ("0.3", "30%"):
        code, text = call("classify", str(tmp_path / "rows.csv"), "--label", "kind", "--test", share)
        assert code == 2
        assert f"--test must be a file of other cases, got {share}; leave it out and give --save: the accuracy" in text
    code, text = call("classify", str(tmp_path / "rows.csv"), "--label", "kind", "--test", "0.csv")
    assert "No such file: 0.csv" in text


def test_data_commands_list_the_archive(tmp_path):
    code, text = call("data", "list", "--data-dir", str(tmp_path))
    assert code == 0
    assert "JapaneseVowels 270 + 370 x up to 29 x 12 9 yes" in text
    assert "PEMS-SF 267 + 173 x 144 x 963 7 no" in text
    assert all(name in text for name in CLASSIFICATION_SETS)
    code, text = call("data", "where", "BasicMotions")
    assert code == 0
    assert text.count("BasicMotions_T") == 2
    code, text = call("data", "verify", "BasicMotions")
    assert code == 0
    assert "BasicMotions: 40 + 40 x 100 x 6, sha256" in text


def test_compare_never_cuts_a_name_short(tmp_path):
    stored = (ROOT / "results" / "classification" / "toa-paper.jsonl").read_text().splitlines()
    records = tmp_path / "few.jsonl"
    records.write_text("".join(f"{line}\n" for line in stored if '"dataset": "ERing"' in line))
    code, text = call("compare", str(records), "--metric", "accuracy", columns=80)
    assert code == 0
    assert "patchtst/toa-relu-no-sor" in text
    assert "patchtst/toa-gated-no-sor" in text
