import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

from tests.cli.test_app import call
from tests.support import ROOT, message
from toa.experiments.efficiency import ROWS, EfficiencyRun, measure_row, row_config, run_efficiency
from toa.experiments.peer import peer_arguments
from toa.experiments.step_cost import PeakMemory, StepCost
from toa.experiments.step_run import row_records
from toa.report.evidence import read_evidence
from toa.tasks.forecast import build_model

# what a checkout of the peer looks like from outside, small: one weight, and what a batch must be
MODEL = """
import reformer_pytorch
import torch


class Model(torch.nn.Module):
    def __init__(self, configs):
        super().__init__()
        assert configs.d_model == 128 and configs.task_name == "long_term_forecast"
        self.configs = configs
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, x_mark, start, all_marks):
        told = (x.shape[0], self.configs.label_len + self.configs.pred_len)
        assert x.dtype == start.dtype == torch.float32
        assert x.shape[1:] == (self.configs.seq_len, 2) and x_mark.shape[2] == 4
        assert start.shape == (*told, 2) and not start[:, -self.configs.pred_len :].any()
        assert all_marks.shape == (*told, 4)
        return start * self.weight.sum()
"""


@pytest.fixture
def csv(tmp_path):
    t = np.arange(1200)
    frame = pd.DataFrame({"a": np.sin(t / 4), "b": np.cos(t / 3)})
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=1200, freq="h"))
    path = tmp_path / "own.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def peer(tmp_path):
    folder = tmp_path / "peer"
    (folder / "models").mkdir(parents=True)
    (folder / "run.py").touch()
    for name in ("PatchTST", "iTransformer"):
        (folder / "models" / f"{name}.py").write_text(MODEL)
    return folder


def test_the_table_has_the_papers_ten_rows():
    assert len(ROWS) == 10
    assert ROWS["autoformer"].published_ms == 45.55
    assert ROWS["patchtst/toa-gated"].published_ms == 18.88
    assert ROWS["itransformer/softmax"].published_ms == 6.58


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_a_complete_run_on_etth1(name):
    run = EfficiencyRun(tf32=False)
    config = row_config(run, ROWS[name])
    assert (config.name, config.dataset, config.horizon, config.tf32) == (name, "ETTh1", 96, False)
    model = build_model(config, 7)
    assert sum(parameter.numel() for parameter in model.parameters()) > 500_000
    # its sizes have a name in the peer
    assert peer_arguments(config, 7)["d_model"] == config.model["embed_dim"]


def test_rows_of_a_backbone_differ_in_their_attention_alone():
    configs = [row_config(EfficiencyRun(), row) for row in ROWS.values() if row.backbone == "itransformer"]
    assert len({config.attention for config in configs}) == 4
    assert len({json.dumps(dict(config.model)) for config in configs}) == 1
    assert len({config.training for config in configs}) == 1
    gated = next(config.attention for config in configs if config.name.endswith("gated"))
    # the formula as printed is not what is trained
    assert gated is not None
    assert gated.gate_norm != "none"


def test_a_cost_is_a_median_and_counts_parameters():
    memory = PeakMemory(torch.device("cpu"))
    held = torch.ones(2**24)
    cost = StepCost.of(torch.nn.Linear(3, 2), [0.004, 0.001, 0.9, 0.002, 0.003], memory)
    assert cost.milliseconds == pytest.approx(3.0)
    assert cost.tenth < 3.0 < cost.ninetieth
    assert cost.parameters == 8
    assert cost.backend is None
    assert cost.peak_memory is None or cost.peak_memory > 0.9 * held.numel() * 4


def test_a_row_is_measured(csv):
    run = EfficiencyRun(dataset=str(csv), device="cpu", steps=2, warmup=0)
    cost = measure_row(run, ROWS["itransformer/toa-relu"])
    assert 0.0 < cost.tenth <= cost.milliseconds <= cost.ninetieth
    assert cost.backend == "folded"
    assert cost.parameters > 100_000


def test_the_command_prints_ours_beside_the_peer_and_leaves_a_record(csv, peer, tmp_path):
    words = ["bench", "efficiency", "--rows", "itransformer/softmax", "--dataset", str(csv), "--peer", str(peer)]
    out = tmp_path / "out" / "e.json"
    code, text = call(*words, "--steps", "1", "--warmup", "0", "--device", "cpu", "--out", str(out), columns=80)
    assert code == 0, text
    assert "…" not in text
    for part in ("itransformer/softmax", "6.58", "ms / peer", "were stood in for"):
        assert part in text
    # each as soon as it is known
    assert re.search(r"iTransformer of the peer: \d+\.\d\d ms itransformer/softmax: \d+\.\d\d ms", text)
    record = json.loads(out.read_text())
    assert [row["name"] for row in record["rows"]] == ["itransformer/softmax"]
    assert record["rows"][0]["config"]["protocol"] == "itransformer-96"
    assert record["settings"]["steps"] == 1
    assert record["peer"]["itransformer"]["parameters"] == 3
    assert record["rows"][0]["parameters"] > 100_000
    # a report takes its rows for runs
    (row,) = read_evidence([out.with_name("e-rows.jsonl")]).runs
    assert row.record["metrics"]["train_step_ms"] == record["rows"][0]["milliseconds"]
    assert (row.record["config"]["row"], row.record["config"]["steps"]) == ("itransformer/softmax", 1)
    assert "peer" not in row.record


def test_stored_rows_are_those_of_the_stored_table():
    folder = ROOT / "results" / "performance"
    lines = (folder / "efficiency-rows.jsonl").read_text().splitlines()
    stored = json.loads((folder / "efficiency.json").read_text())
    assert [json.loads(line) for line in lines] == row_records(EfficiencyRun(), stored)
    assert len(lines) == len(ROWS)


def test_a_row_that_fails_is_named(csv, peer, tmp_path):
    (peer / "models" / "iTransformer.py").write_text("raise RuntimeError('no such layer')")
    run = EfficiencyRun(rows=("itransformer/softmax",), dataset=str(csv), device="cpu", steps=1, peer=str(peer))
    with pytest.raises(ValueError, match=message("iTransformer of the peer must run", "exit code 1", "no such layer")):
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
def test_wrong_words_get_one_clear_line(words, parts, tmp_path):
    code, text = call("bench", "efficiency", *words, "--out", str(tmp_path / "e.json"))
    assert code == 2
    for part in parts:
        assert part in text
    assert "Traceback" not in text
