import csv
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.benchmarks.test_leaderboards import small
from toa.cli import app
from toa_bench import gift_eval, tsb_ad
from toa_bench.leaderboards import add_record


def call(*words: object):
    result = CliRunner().invoke(app, ["bench", *map(str, words)], env={"COLUMNS": "200", "TERM": "dumb"})
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(gift_eval, "CONFIGS", {"small/H/short": replace(small(), name="small/H/short")})
    monkeypatch.setattr(gift_eval, "ETT_1H", replace(small(), name="ETT_1H"))


def test_every_configuration_and_method_has_a_record_and_others_are_kept(tmp_path) -> None:
    out = tmp_path / "runs.jsonl"
    for method in ("drift", "seasonal naive", "drift"):
        code, text = call("gift-eval", "--method", method, "--out", out)
        assert code == 0, text
        assert f"small/H/short {method}" in text
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["method"] for record in records] == ["drift", "seasonal naive"]
    assert records[1]["metrics"] == gift_eval.evaluate(small(), "seasonal naive")["metrics"]
    assert records[1]["command"].split()[0] == "toa"
    assert {"commit", "versions", "device", "cpu_s"} <= records[1].keys()


def test_earlier_windows_have_records_of_their_own_and_no_submission(tmp_path) -> None:
    out = tmp_path / "runs.jsonl"
    for more in ((), ("--earlier", 1)):
        assert call("gift-eval", "--method", "drift", "--out", out, *more)[0] == 0
    found = {one["config"]: one["metrics"]["mase"] for one in map(json.loads, out.read_text().splitlines())}
    assert list(found) == ["small/H/short", "small/H/short, 1 earlier"]
    assert found["small/H/short, 1 earlier"] == gift_eval.evaluate(small().before_test(1), "drift")["metrics"]["mase"]
    code, text = call("gift-eval", "--out", out, "--earlier", 1, "--submission", tmp_path / "a.csv")
    assert code == 2
    assert "--submission needs the windows of the leaderboard, got --earlier" in text


def test_the_command_in_a_record_names_the_file_but_no_folder_of_the_machine(tmp_path, monkeypatch) -> None:
    out = tmp_path / "runs.jsonl"
    for given, recorded in (([f"--out={out}"], "--out=runs.jsonl"), (["--out", str(out)], "--out runs.jsonl")):
        words = ["gift-eval", "--method", "drift", *given]
        monkeypatch.setattr("sys.argv", ["toa", "bench", *words])
        assert call(*words)[0] == 0
        assert json.loads(out.read_text())["command"] == f"toa bench gift-eval --method drift {recorded}"


def test_fev_has_a_record_with_weights(tmp_path) -> None:
    code, text = call("fev", "--method", "toa", "--effort", "least", "--out", tmp_path / "fev.jsonl")
    assert code == 0, text
    record = json.loads((tmp_path / "fev.jsonl").read_text())
    assert (record["benchmark"], record["config"]) == ("fev", "ETT_1H")
    assert sum(record["weights"].values()) == pytest.approx(1.0)


def test_records_are_written_in_the_format_of_the_leaderboard(tmp_path) -> None:
    out, table = tmp_path / "runs.jsonl", tmp_path / "all_results.csv"
    assert call("gift-eval", "--method", "drift", "--out", out)[0] == 0
    assert call("gift-eval", "--method", "seasonal naive", "--out", out, "--earlier", 1)[0] == 0
    code, text = call("gift-eval", "--method", "seasonal naive", "--out", out, "--submission", table)
    assert code == 0, text
    (row,) = csv.DictReader(table.read_text().splitlines())
    # as the repository of the leaderboard describes the file: 4 columns and 11 scores
    assert len(row) == 15
    assert list(row)[:3] == ["dataset", "model", "eval_metrics/MSE[mean]"]
    assert (row["dataset"], row["model"], row["domain"]) == ("small/H/short", "seasonal naive", "Econ/Fin")
    record = json.loads(out.read_text().splitlines()[2])
    assert float(row["eval_metrics/MASE[0.5]"]) == record["metrics"]["mase"]
    assert call("fev", "--method", "drift", "--out", tmp_path / "fev.jsonl", "--submission", table)[0] == 0
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert (row["task_name"], row["initial_cutoff"], row["test_error"]) == ("ETT_1H", "-18", row["SQL"])
    # a record of an older version lacks scores
    record["config"] = "other/H/short"
    record["metrics"] = {"mase": 1.0}
    del record["checksum"]
    out.write_text(json.dumps(record) + "\n")
    code, text = call("gift-eval", "--method", "seasonal naive", "--out", out, "--submission", table)
    assert code == 2
    assert "other/H/short and seasonal naive" in text


def test_detectors_have_records_and_finished_ones_are_not_run_again(tmp_path, monkeypatch) -> None:
    asked = []

    def evaluate(dataset, method, *, data_dir, **options):
        asked.append((dataset, method, options))
        return {"vus_pr": 0.5, "vus_roc": None, "cpu_seconds": 1.0}

    monkeypatch.setattr(tsb_ad, "evaluate", evaluate)
    words = ["anomaly", "--dataset", "MSL", "--method", "pca", "--method", "toa", "--out", tmp_path / "d.jsonl"]
    assert "MSL pca 0.500 1.0 MSL toa 0.500 1.0" in call(*words, "--time-limit", 9)[1]
    assert call(*words, "--time-limit", 9)[0] == 0
    assert asked == [("MSL", "pca", {}), ("MSL", "toa", {"effort": "quick", "time_limit": 9.0})]
    code, text = call(*words)
    assert code == 2
    assert "9" in text
    assert "unknown method 'lof'; known: toa, toa-network, z-score" in call("anomaly", "--method", "lof")[1]
    assert "unknown dataset 'X'" in call("anomaly", "--dataset", "X")[1]


def test_wrong_names_are_refused() -> None:
    assert "unknown configuration 'm5'; known: small/H/short" in call("gift-eval", "--config", "m5")[1]
    assert "unknown method 'prophet'; known: toa" in call("fev", "--method", "prophet")[1]


def test_sets_of_the_archive_are_run_once_and_resumed(tmp_path, monkeypatch) -> None:
    seen: list[tuple[str, str]] = []

    def evaluate(dataset: str, method: str, **options: object) -> dict[str, object]:
        seen.append((dataset, method))
        return {"accuracy": 0.5, "cpu_seconds": 1.0, **({"validation": 0.75} if method == "toa" else {})}

    monkeypatch.setattr("toa_bench.uea.evaluate", evaluate)
    out = tmp_path / "uea.jsonl"
    for _ in range(2):
        code, text = call("uea", "--dataset", "ERing", "--method", "toa", "--method", "multirocket-hydra", "--out", out)
        assert code == 0, text
        assert "ERing toa 0.500 0.750 1.0" in text
    assert seen == [("ERing", "toa"), ("ERing", "multirocket-hydra")]
    code, text = call("uea", "--dataset", "ERing", "--method", "toa", "--effort", "thorough", "--out", out)
    assert code == 2
    assert "--effort must be quick as in the records of" in text
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record.get("effort") for record in records] == ["quick", None]
    assert {"commit", "versions", "device", "command"} <= records[0].keys()
    for words, complaint in ((("--dataset", "Nosuch"), "unknown dataset 'Nosuch'"), (("--method", "x"), "unknown met")):
        code, text = call("uea", *words, "--out", out)
        assert code == 2
        assert complaint in text


@pytest.mark.slow
def test_a_generated_panel_is_forecast_and_its_speed_and_memory_recorded(tmp_path) -> None:
    out = tmp_path / "scale.jsonl"
    for count in (30, 40):
        code, text = call("scale", "--series", count, "--effort", "least", "--out", out)
        assert code == 0, text
        assert "series s series / s MiB per process" in text
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(record["series"], record["rows"]) for record in records] == [(30, 3_000), (40, 4_000)]
    assert {"peak_bytes", "seconds", "commit", "weights", "executor"} <= records[0].keys()
    assert "series must be at least 1" in call("scale", "--series", 0)[1]


def test_edited_records_are_refused_and_those_of_other_calls_kept(tmp_path) -> None:
    out = tmp_path / "runs.jsonl"
    # added by a call that began before the first one ended
    add_record(out, {"benchmark": "gift-eval", "config": "other", "method": "drift"}, "config", "method")
    assert call("gift-eval", "--method", "drift", "--out", out)[0] == 0
    assert [json.loads(line)["config"] for line in out.read_text().splitlines()] == ["other", "small/H/short"]
    for wrong in (out.read_text().replace('"mase":', '"mase":0.'), "[" * 100_000, "{}", "{"):
        out.write_text(wrong)
        code, text = call("gift-eval", "--method", "drift", "--out", out)
        assert (code, "runs.jsonl must" in text) == (2, True), text
        assert out.read_text() == wrong


def test_records_of_calls_at_the_same_time_are_all_kept(tmp_path) -> None:
    out = tmp_path / "runs.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add_record(out, {"benchmark": "x", "config": n}, "config"), range(40)))
    assert sorted(json.loads(line)["config"] for line in out.read_text().splitlines()) == list(range(40))
