import json

import torch

import synthetic_series
from toa.data.synthetic import SOURCES


def test_operations_and_bytes_are_counted_without_views():
    with synthetic_series.Counter() as counter:
        x = torch.ones(10)
        _ = x[None].expand(4, 10) + 1.0
    # the tensor of ones, and a sum of 160 bytes
    assert counter.operations == 2
    assert counter.bytes >= 40 + 160 + 160


def test_the_script_writes_the_cost_of_each_kind(tmp_path, capsys):
    out = tmp_path / "rate.json"
    synthetic_series.main(["--device", "cpu", "--count", "4", "--length", "32", "--batches", "1", "--out", str(out)])
    costs = json.loads(out.read_text())["costs"]
    assert set(costs) == {*SOURCES, "all, with changes"}
    assert all(cost["series_per_s"] > 0 and cost["operations"] > 5 for cost in costs.values())
    assert "series per s" in capsys.readouterr().out
