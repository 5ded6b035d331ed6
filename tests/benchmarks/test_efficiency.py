import io
import json
import mmap
import re
import sys
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch

import toa_bench.efficiency
from tests.cli.test_app import call
from tests.support import ROOT, message
from toa._files import unseal
from toa.experiments.records import write_record
from toa.experiments.run import Job, finished, load_run
from toa.experiments.sweep import RunContext, sweep
from toa.training.forecast import FORECASTING, ForecastWindows
from toa_bench.efficiency import EfficiencyRun, StepRun, row_config, row_records, run_efficiency
from toa_bench.peer import peer_arguments
from toa_bench.step_cost import PeakMemory, StepCost
from toa_bench.worker import Worker
from toa_paper.published import ROWS
from toa_paper.report.evidence import read_evidence


@pytest.fixture
def csv(tmp_path):
    t = np.arange(1200)
    frame = pd.DataFrame({"a": np.sin(t / 4), "b": np.cos(t / 3)})
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=1200, freq="h"))
    path = tmp_path / "own.csv"
    frame.to_csv(path, index=False)
    return path


def test_the_table_has_the_papers_ten_rows():
    assert len(ROWS) == 10
    assert ROWS["autoformer"].value == 45.55
    assert ROWS["patchtst/toa-gated"].value == 18.88
    assert ROWS["itransformer/softmax"].value == 6.58


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_a_complete_run_on_etth1(name):
    config = row_config(name, tf32=False)
    assert (config.name, config.dataset, config.horizon, config.tf32) == (name, "ETTh1", 96, False)
    model = FORECASTING.build(config, ForecastWindows(channels=7))
    assert sum(parameter.numel() for parameter in model.parameters()) > 500_000
    assert peer_arguments(config, 7)["d_model"] == config.model["embed_dim"]


def test_rows_of_a_backbone_differ_only_in_their_attention():
    configs = [row_config(name) for name, row in ROWS.items() if row.backbone == "itransformer"]
    assert len({config.attention for config in configs}) == 4
    assert len({json.dumps(dict(config.model)) for config in configs}) == 1
    assert len({config.training for config in configs}) == 1
    gated = next(config.attention for config in configs if config.name.endswith("gated"))
    assert gated is not None
    assert gated.gate_norm != "none"


def test_a_cost_is_a_median_and_counts_parameters():
    memory = PeakMemory(torch.device("cpu"))
    # a tensor could lie in memory that earlier tests freed and the process kept, which is no growth
    size = 2**26
    pages = mmap.mmap(-1, size)
    for start in range(0, size, mmap.PAGESIZE):
        pages[start] = 1
    cost = StepCost.of(torch.nn.Linear(3, 2), [0.004, 0.001, 0.9, 0.002, 0.003], memory)
    assert cost.milliseconds == pytest.approx(3.0)
    assert cost.tenth < 3.0 < cost.ninetieth
    assert cost.parameters == 8
    assert cost.backend is None
    assert cost.peak_memory is None or cost.peak_memory > 0.9 * size
    pages.close()


def test_a_child_measures_the_requested_row(csv, monkeypatch, capsys):
    run = EfficiencyRun(dataset=str(csv), device="cpu", steps=2, warmup=0)
    request = {"run": asdict(run), "row": "itransformer/toa-relu", "peer_channels": None}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request) + "\n"))
    # a child reserves stdout for its answers
    monkeypatch.setattr("sys.stdout", sys.stdout)
    toa_bench.efficiency.main()
    ready, cost = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready == {"ready": True}
    assert 0.0 < cost["tenth"] <= cost["milliseconds"] <= cost["ninetieth"]
    assert cost["backend"] == "folded"
    assert cost["parameters"] > 100_000


def test_the_peer_is_measured_once_per_backbone(csv, peer, tmp_path, monkeypatch):
    asked: list[tuple[str, int | None]] = []

    class FakeWorker:
        def __init__(self, name, command):
            self.name = name

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def answer(self):
            return {"ready": True}

        def ask(self, request):
            asked.append((self.name, request["peer_channels"]))
            return {"milliseconds": 2.0, "peak_memory": None, "parameters": 3}

    monkeypatch.setattr(toa_bench.efficiency, "Worker", FakeWorker)
    rows = ["--rows", "itransformer/softmax", "--rows", "itransformer/toa-relu", "--dataset", str(csv)]
    monkeypatch.setattr(toa_bench.efficiency, "row_records", lambda run, record: [])
    out = tmp_path / "e.json"
    code, text = call("bench", "efficiency", *rows, "--peer", str(peer), "--device", "cpu", "--out", str(out))
    assert code == 0, text
    assert asked == [("iTransformer of the peer", 2), ("itransformer/softmax", None), ("itransformer/toa-relu", None)]
    assert "itransformer/toa-relu 2.00 - 3 12.92 2.00 1.00" in text
    assert json.loads(out.read_text())["peer"]["itransformer"]["parameters"] == 3
    # the folder of the peer is this machine's
    assert json.loads(out.read_text())["settings"]["peer"] == "CHECKOUT"


@pytest.mark.slow
def test_the_command_prints_our_cost_and_the_peers_and_writes_a_record(csv, peer, tmp_path):
    words = ["bench", "efficiency", "--rows", "itransformer/softmax", "--dataset", str(csv), "--peer", str(peer)]
    out = tmp_path / "out" / "e.json"
    code, text = call(*words, "--steps", "1", "--warmup", "0", "--device", "cpu", "--out", str(out), columns=80)
    assert code == 0, text
    assert "…" not in text
    for part in ("itransformer/softmax", "6.58", "ms / peer", "stand-ins: "):
        assert part in text
    # each cost is printed when it is measured
    assert re.search(r"iTransformer of the peer: \d+\.\d\d ms itransformer/softmax: \d+\.\d\d ms", text)
    record = json.loads(out.read_text())
    assert [row["name"] for row in record["rows"]] == ["itransformer/softmax"]
    assert record["rows"][0]["config"]["protocol"] == "itransformer-96"
    assert record["settings"]["steps"] == 1
    assert record["peer"]["itransformer"]["parameters"] == 3
    assert record["rows"][0]["parameters"] > 100_000
    # `toa report` reads each row as a run
    (row,) = read_evidence([out.with_name("e-rows.jsonl")]).runs
    assert row.record["metrics"]["train_step_ms"] == record["rows"][0]["milliseconds"]
    assert (row.record["config"]["row"], row.record["config"]["steps"]) == ("itransformer/softmax", 1)
    assert "peer" not in row.record


def test_stored_rows_are_those_of_the_stored_table():
    folder = ROOT / "results" / "performance"
    lines = (folder / "efficiency-rows.jsonl").read_text().splitlines()
    stored = [json.loads(text) for text in ((folder / "efficiency.json").read_text(), *lines)]
    table, *rows = (unseal(record, "a stored record")[0] for record in stored)
    assert rows == row_records(EfficiencyRun(), table)
    assert len(rows) == len(ROWS)


def test_no_record_is_written_if_a_row_fails(csv, tmp_path, monkeypatch):
    failing = lambda name, command: Worker(name, [sys.executable, "-c", "raise RuntimeError('no such layer')"])  # noqa: E731
    monkeypatch.setattr(toa_bench.efficiency, "Worker", failing)
    run = EfficiencyRun(rows=("itransformer/softmax",), dataset=str(csv), device="cpu", steps=1)
    with pytest.raises(ValueError, match=message("itransformer/softmax must run", "exit code 1", "no such layer")):
        run_efficiency(run, tmp_path / "e.json")
    assert not (tmp_path / "e.json").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--rows", "patchtst"), ("unknown row 'patchtst'", "patchtst/softmax")),
        (("--steps", "0", "--device", "cpu"), ("steps must be at least 1, got 0",)),
        (("--warmup", "-1", "--device", "cpu"), ("warmup must be at least 0, got -1",)),
        (("--peer", "nowhere"), ("peer must be a checkout of Time-Series-Library", "nowhere", "clone")),
        (("--dataset", "x.csv"), ("dataset must be a file", "x.csv")),
    ],
)
def test_wrong_options_exit_with_one_line(words, parts, tmp_path):
    code, text = call("bench", "efficiency", *words, "--out", str(tmp_path / "e.json"))
    assert code == 2
    for part in parts:
        assert part in text
    assert "Traceback" not in text


def test_a_row_of_the_efficiency_table_is_run_as_a_job(tmp_path, monkeypatch):
    def measured(run, out, *, command):
        cost = {"milliseconds": 3.0, "tenth": 2.0, "ninetieth": 4.0, "peak_memory": 1, "parameters": 2, "backend": None}
        return {"task": "efficiency", "rows": [{"name": run.rows[0], **cost}], "device": "cpu", "command": "toa"}

    monkeypatch.setattr("toa_bench.efficiency.run_efficiency", measured)
    job = Job(config=StepRun(row="patchtst/toa-relu"), label="step")
    ended = sweep([job], RunContext(out=tmp_path, device="cpu"))
    record = ended.records[job.key]
    assert record["metrics"] == {"train_step_ms": 3.0, "tenth_ms": 2.0, "ninetieth_ms": 4.0}
    assert finished(job, tmp_path) == record
    assert job.folder(tmp_path).name.startswith("patchtst-toa-relu-")


def test_a_job_of_a_row_survives_json():
    job = Job(config=StepRun(row="informer"), label="a, b", command=("toa", "bench"))
    again = Job.from_json(job.to_json())
    assert (again.config, again.key, again.task) == (job.config, job.key, "efficiency")


def test_a_row_has_no_model_to_load(tmp_path):
    record = {"task": "efficiency", "name": "informer", "config": {}, "config_hash": "0", "metrics": {}}
    write_record(tmp_path / "record.json", record)
    with pytest.raises(ValueError, match="must be the run of a task with a model, got one of task 'efficiency'"):
        load_run(tmp_path)
