import json
import sys
from dataclasses import replace

import pytest
import torch

from tests.support import ROOT, load_script, message
from toa.ops import _backend
from toa_bench import script
from toa_bench.step_cost import StepCost

COST = StepCost(milliseconds=1.0, tenth=1.0, ninetieth=1.0, peak_memory=2**20, parameters=1)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    yield load_script("benchmarks/row_kernels.py")
    sys.modules.pop("training_step", None)


def test_each_kernel_is_switched_off_alone_then_the_groups(bench) -> None:
    kernels = list(_backend.SWITCHABLE_KERNELS)
    settings = bench.settings_of(kernels)
    assert list(settings) == ["nothing", *kernels, "row kernels", "all kernels"]
    assert settings["bias_gradient"] == ("bias_gradient",)
    assert set(settings["row kernels"]) == set(kernels) - {"bias_gradient"}
    assert settings["all kernels"] == tuple(kernels)
    assert list(bench.settings_of(["bias_gradient"])) == ["nothing", "bias_gradient"]


def test_a_gain_is_the_median_ratio_within_the_rounds(bench) -> None:
    times = {
        "nothing": [9.0, 1.0, 2.0, 4.0],
        "layer_norm": [9.0, 1.1, 2.2, 8.0],
        "bias_gradient": [9.0, 1.0, 2.0, 4.04],
    }
    costs = {name: [replace(COST, milliseconds=time) for time in found] for name, found in times.items()}
    costs["bias_gradient"][0] = replace(COST, peak_memory=2**21)
    rows = bench.summarise(costs, ["layer_norm", "bias_gradient"])
    assert [row.get("gain") for row in rows] == [None, pytest.approx(0.1), pytest.approx(0.0)]
    assert [row["milliseconds"] for row in rows] == [2.0, 2.2, 2.0]
    assert [row.get("memory_ratio") for row in rows] == [None, 1.0, 2.0]


def test_a_block_is_a_training_step_with_its_kernels_switched_off(bench, monkeypatch) -> None:
    seen: list[set[str]] = []
    made = bench.OwnSystem

    def system(*arguments):
        seen.append(set(_backend._disabled))
        return made(*arguments)

    monkeypatch.setattr(bench, "OwnSystem", system)
    case = replace(
        bench.CHOICES["itransformer-256"], batch_size=2, model={"embed_dim": 8, "num_layers": 1, "ff_dim": 8}
    )
    args = bench.parse(["--device", "cpu", "--steps", "2", "--warmup", "0"])
    cost = bench.time_block(case, ("bias_gradient",), args)
    assert cost.milliseconds > 0.0
    assert seen == [{"bias_gradient"}]
    assert _backend._disabled == set()


def test_a_run_writes_a_record_with_command_and_versions(bench, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(bench, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(script, "resolve_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(
        bench, "time_block", lambda case, disabled, args: replace(COST, milliseconds=1.0 + len(disabled))
    )
    out = tmp_path / "record.json"
    cases = ["patchtst-128", "itransformer-862"]
    assert (
        bench.main(["--cases", *cases, "--kernels", "bias_gradient", "layer_norm", "--rounds=2", f"--out={out}"]) == 0
    )
    record = json.loads(out.read_text())
    assert record["task"] == "row_kernels"
    assert {"command", "commit", "versions", "device"} <= record.keys()
    assert [(row["case"], row["switched_off"]) for row in record["rows"]] == [
        (case, name) for case in cases for name in ("nothing", "bias_gradient", "layer_norm", "all kernels")
    ]
    assert record["rows"][-1]["gain"] == 2.0
    assert record["rows"][-1]["sizes"]["channels"] == 862
    assert "+200.0 %" in capsys.readouterr().out


def test_a_machine_without_a_gpu_raises(bench) -> None:
    with pytest.raises(SystemExit, match=message("device must be a CUDA device, got 'cpu'")):
        bench.main(["--device", "cpu"])
