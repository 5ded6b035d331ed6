import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.integrations.test_leaderboards import small
from toa.cli import app
from toa.integrations import fev, gift_eval


def call(*words: object):
    result = CliRunner().invoke(app, ["bench", *map(str, words)], env={"COLUMNS": "200", "TERM": "dumb"})
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(gift_eval, "CONFIGS", {"small/H/short": replace(small(), name="small/H/short")})
    monkeypatch.setattr(fev, "CONFIG", replace(small(), name="ETT_1H"))


def test_every_configuration_and_method_has_a_record_and_others_are_kept(tmp_path) -> None:
    out = tmp_path / "runs.jsonl"
    for method in ("drift", "seasonal naive", "drift"):
        code, text = call("gift-eval", "--method", method, "--out", out)
        assert code == 0, text
        assert f"small/H/short {method}" in text
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["method"] for record in records] == ["drift", "seasonal naive"]
    naive = gift_eval.evaluate(small(), "seasonal naive")
    assert records[1]["metrics"]["mase"] == naive["mase"]
    assert records[1]["command"].split()[0] == "toa"
    assert {"commit", "versions", "device", "cpu_s"} <= records[1].keys()


def test_fev_has_a_record_with_weights(tmp_path) -> None:
    code, text = call("fev", "--method", "toa", "--time-limit", 1e-9, "--out", tmp_path / "fev.jsonl")
    assert code == 0, text
    record = json.loads((tmp_path / "fev.jsonl").read_text())
    assert (record["benchmark"], record["config"]) == ("fev", "ETT_1H")
    assert sum(record["weights"].values()) == pytest.approx(1.0)


def test_wrong_names_are_refused() -> None:
    assert "unknown configuration 'm5'; known: small/H/short" in call("gift-eval", "--config", "m5")[1]
    assert "unknown method 'prophet'; known: toa" in call("fev", "--method", "prophet")[1]
