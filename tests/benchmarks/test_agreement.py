"""Our backbones beside their authors' code, here a stand-in checkout with DLinear written for this test."""

import json
import sys

import pytest
from typer.testing import CliRunner

from tests.support import message
from toa.cli import app
from toa_bench.agreement import compare_checkout, run_agreement
from toa_bench.peer import hide_checkouts

DLINEAR = """
from torch import nn


class Model(nn.Module):
    def __init__(self, configs):
        super().__init__()
        self.Linear_Seasonal = nn.Linear(configs.seq_len, configs.pred_len)
        self.Linear_Trend = nn.Linear(configs.seq_len, configs.pred_len)
        self.half = configs.moving_avg // 2

    def forward(self, x, x_mark, start, all_marks):
        series = x.mT
        padded = nn.functional.pad(series, (self.half, self.half), mode="replicate")
        trend = nn.functional.avg_pool1d(padded, 2 * self.half + 1, 1)
        return (self.Linear_Seasonal(series - trend) + FACTOR * self.Linear_Trend(trend)).mT
"""


def checkout(folder, factor: str):
    (folder / "models").mkdir(parents=True)
    (folder / "run.py").touch()
    (folder / "models" / "DLinear.py").write_text(DLINEAR.replace("FACTOR", factor))
    return folder


@pytest.mark.slow
def test_equal_code_agrees_to_rounding_and_the_record_names_no_folder(tmp_path):
    peer = checkout(tmp_path / "peer", "1.0")
    out = tmp_path / "found.jsonl"
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, ["bench", "agreement", "--peer", str(peer), "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    (record,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (record["backbone"], record["dtype"], record["peer_commit"]) == ("dlinear", "float64", None)
    assert list(record["peer_files"]) == ["models/DLinear.py"]
    assert 0.0 <= record["output"] < 1e-14
    assert 0.0 <= record["gradient"] < 1e-13
    assert str(tmp_path) not in json.dumps({**record, "command": ""})


def test_other_code_does_not_agree(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (record,) = compare_checkout(checkout(tmp_path, "1.001"))
    # no other test may find its modules, or those that stand in for missing packages
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "models" or type(module).__name__ == "_StandIn":
            del sys.modules[name]
    assert record["output"] > 1e-5
    assert record["gradient"] > 1e-5


def test_the_program_writes_checkout_for_the_folder():
    words = ["toa", "bench", "agreement", "--peer", "/a b", "--peer=/c", "--out", "x"]
    assert hide_checkouts(words) == ["toa", "bench", "agreement", "--peer", "CHECKOUT", "--peer=CHECKOUT", "--out", "x"]


def test_a_folder_without_known_code_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=message("peer must be a checkout with a known file, got", "known: thuml/Time")
    ):
        run_agreement([tmp_path], ["toa"])
