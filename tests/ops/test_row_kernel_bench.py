import sys

import pytest
import torch
from rich.console import Console

from tests.support import ROOT, load_script


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    yield load_script("benchmarks/row_kernels.py")
    sys.modules.pop("training_step", None)


def test_a_gain_is_the_median_ratio_within_the_rounds(bench, capsys) -> None:
    times = {bench.ALL_ON: [1.0, 2.0, 4.0], "layer_norm": [1.1, 2.2, 8.0], "split": [1.0, 2.0, 4.04]}
    rows = bench.summarise(times)
    assert [row.get("gain") for row in rows] == [None, pytest.approx(0.1), pytest.approx(0.0)]
    bench.show(rows, Console(width=100))
    printed = capsys.readouterr().out
    assert "layer_norm" in printed
    assert "+10.0 %" in printed


def test_a_block_runs_with_its_kernels_switched_off(bench, monkeypatch) -> None:
    seen: list[set[str]] = []

    class System:
        def __init__(self, *arguments: object) -> None:
            from toa.ops import _backend

            seen.append(set(_backend._disabled))

        def time_steps(self, steps: int, warmup: int) -> list[float]:
            return [0.001] * steps

    monkeypatch.setattr(bench, "OwnSystem", System)
    assert bench.time_block(bench.parse(["--steps", "3"]), ("split",)) == pytest.approx(1.0)
    bench.time_block(bench.parse([]), ())
    assert seen == [{"split"}, set()]


def test_a_machine_without_a_gpu_raises(bench, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="CUDA"):
        bench.main([])
