"""`benchmarks/training_step.py`: what it compares, and what it refuses to time."""

import argparse
import io
import json
import sys
from dataclasses import asdict, replace

import pytest
import torch

from tests.support import load_script, message
from toa_bench.efficiency import row_config

SIZES = ["--rounds", "3", "--steps", "1", "--warmup", "0", "--device", "cpu"]


@pytest.fixture
def bench(monkeypatch):
    module = load_script("benchmarks/training_step.py")
    small = replace(module.CASES["itransformer-256"], channels=2, batch_size=2)
    monkeypatch.setitem(module.CASES, "itransformer-256", replace(small, model={**small.model, "embed_dim": 128}))
    return module


def request_of(bench, system, peer=""):
    case = asdict(bench.CASES["itransformer-256"])
    return {
        "case": case,
        "device": "cpu",
        "tf32": True,
        "compile": False,
        "seed": 1,
        "peer": str(peer),
        "system": system,
    }


def keep_stdout(monkeypatch):
    """Restore sys.stdout after the test: a worker reserves it for its answers."""
    monkeypatch.setattr("sys.stdout", sys.stdout)


def test_the_cases_are_those_of_the_table(bench):
    with_peer = [name for name, case in bench.CASES.items() if case.backbone in bench.PEER_BACKBONES]
    assert with_peer == ["patchtst-128", "patchtst-16", "patchtst-512", "itransformer-256", "itransformer-512"]
    large = bench.CASES["itransformer-512"]
    assert (large.channels, large.batch_size, large.model["num_layers"]) == (862, 16, 4)
    config = bench.CASES["patchtst-128"].config("toa-gated", tf32=True, compiled=True, seed=1)
    assert config.training.compile
    assert (config.lookback, config.batch_size, config.seed) == (336, 128, 1)
    sizes = {"style": "tslib", "embed_dim": 128, "num_heads": 8, "num_layers": 3, "ff_dim": 256, "dropout": 0.1}
    assert sizes.items() <= dict(config.model).items()
    assert config.attention.gate_norm is not None


@pytest.mark.parametrize(
    ("name", "row"), [("patchtst-512", "patchtst/toa-gated"), ("itransformer-256", "itransformer/toa-gated")]
)
def test_two_cases_have_the_sizes_of_the_papers_rows(name, row):
    case = load_script("benchmarks/training_step.py").CASES[name]
    ours, published = case.config("toa-gated", tf32=True, compiled=False, seed=2024), row_config(row)
    for field in ("lookback", "horizon", "batch_size", "attention", "model"):
        assert getattr(ours, field) == getattr(published, field)


@pytest.mark.slow
def test_a_backbone_that_the_peer_lacks_is_timed_alone(bench, monkeypatch, tmp_path, capsys):
    small = replace(bench.CASES["two-axis-7"], lookback=32, channels=2, batch_size=2)
    monkeypatch.setitem(bench.CASES, "two-axis-7", small)
    options = ["--cases", "two-axis-7", "--attentions", "toa-softmax", "--out", str(tmp_path / "found.json")]
    assert bench.main([*SIZES, *options]) == 0
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert list(row["systems"]) == ["toa-softmax"]
    assert row["systems"]["toa-softmax"]["milliseconds"] > 0
    assert "two-axis-7" in capsys.readouterr().out


def test_channels_and_batches_are_crossed(bench):
    args = bench.parse(["--cases", "patchtst-16", "--channels", "3", "5", "--batch", "8"])
    chosen = bench.chosen_cases(args)
    assert list(chosen) == ["patchtst-16 C=3 B=8", "patchtst-16 C=5 B=8"]
    assert [case.channels for case in chosen.values()] == [3, 5]
    assert {case.batch_size for case in chosen.values()} == {8}


def test_systems_take_turns_and_are_compared_turn_by_turn(bench, peer, tmp_path, monkeypatch, capsys):
    calls: list[str] = []

    class FakeWorker:
        """Steps of the peer take 10 s, 20 s and 30 s, compiled 4 s each; ours take a half, a third and the double."""

        def __init__(self, request):
            self.name = request["system"]
            self.turns = iter(
                {"peer": (10.0, 20.0, 30.0), "peer-compiled": (4.0, 4.0, 4.0)}.get(self.name, (5.0, 20.0 / 3.0, 60.0))
            )

        def __enter__(self):
            return self

        def __exit__(self, *error):
            calls.append(f"end {self.name}")

        def answer(self):
            return {"ready": True} if self.name != "toa-relu" else {"refused": "refused, not accurate"}

        def ask(self, request):
            calls.append(self.name)
            return {"seconds": [next(self.turns)] * request["steps"]}

        def finish(self):
            cost = {"milliseconds": 1.0, "peak_memory": 50 if self.name == "peer" else 20, "backend": None}
            return cost | {"parameters": 3}

    monkeypatch.setattr(bench, "start", FakeWorker)
    out = tmp_path / "step.json"
    words = ["--cases", "patchtst-16", "--attentions", "softmax", "toa-relu", "--peer", str(peer), "--out", str(out)]
    # one system is refused, so the exit code is 1
    assert bench.main([*words, *SIZES]) == 1
    assert calls[:6] == 2 * ["peer", "peer-compiled", "softmax"]
    assert calls[9:] == ["end toa-relu", "end softmax", "end peer-compiled", "end peer"]
    (row,) = json.loads(out.read_text())["rows"]
    assert row["systems"]["softmax"]["time_over_peer"] == pytest.approx(0.5)
    assert row["systems"]["softmax"]["time_over_compiled"] == pytest.approx(5 / 3)
    assert row["systems"]["softmax"]["memory_over_peer"] == pytest.approx(0.4)
    assert "patchtst-16, toa-relu: refused, not accurate" in capsys.readouterr().out


def test_a_worker_times_the_requested_blocks(bench, monkeypatch, capsys):
    keep_stdout(monkeypatch)
    lines = [json.dumps({"steps": steps, "warmup": 1}) for steps in (2, 1)]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    bench.work(request_of(bench, "toa-gated"))
    ready, first, second, cost = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready == {"ready": True}
    assert (len(first["seconds"]), len(second["seconds"])) == (2, 1)
    assert cost["backend"] == "folded"
    assert cost["milliseconds"] == pytest.approx(1e3 * sorted(first["seconds"] + second["seconds"])[1])


@pytest.mark.slow
@pytest.mark.parametrize("system", ["peer", "peer-compiled"])
def test_the_peer_runs_in_a_process_of_its_own(bench, peer, system):
    with bench.start(request_of(bench, system, peer)) as worker:
        assert worker.answer() == {"ready": True}
        assert len(worker.ask({"steps": 2, "warmup": 0})["seconds"]) == 2
        assert worker.finish()["parameters"] == 3


def test_an_attention_less_accurate_than_the_reference_is_refused(bench, monkeypatch, capsys):
    asked = []

    def check(case, device):
        asked.append(case)
        return "output: error 1.0"

    monkeypatch.setattr(bench, "check_accuracy", check)
    keep_stdout(monkeypatch)
    bench.work(request_of(bench, "toa-gated"))
    refused = "refused, its attention is not as accurate as the reference: output: error 1.0"
    assert json.loads(capsys.readouterr().out) == {"refused": refused}
    (checked,) = asked
    # two channels and four time marks
    assert (checked.activation, checked.tokens, checked.heads, checked.width) == ("gated", 6, 8, 16)
    assert checked.gate_norm != "none"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--cases", "patchtst"], ("unknown case 'patchtst'; known: patchtst-128",)),
        (["--rounds", "0"], ("rounds must be at least 1, got 0",)),
        (["--warmup", "-1"], ("warmup must be at least 0, got -1",)),
        (["--channels", "0"], ("channels must be at least 1, got 0",)),
        (["--device", "gpu"], ("device must be auto, cpu, cuda or cuda:N, got 'gpu'",)),
    ],
)
def test_wrong_options_exit_with_one_line(bench, peer, words, parts):
    with pytest.raises(SystemExit, match=message("error:", *parts)):
        bench.main(["--peer", str(peer), "--device", "cpu", *words])


def test_a_peer_must_be_given(bench, tmp_path):
    with pytest.raises(SystemExit, match=message("error: --peer must name a checkout")):
        bench.main(["--device", "cpu"])
    with pytest.raises(SystemExit, match=message("error: peer must be a checkout of Time-Series-Library")):
        bench.main(["--device", "cpu", "--peer", str(tmp_path)])


def test_few_steps_on_cuda_are_refused(bench, peer, monkeypatch):
    monkeypatch.setattr(bench, "resolve_device", lambda name: torch.device("cuda"))
    args = argparse.Namespace(**vars(bench.parse(["--peer", str(peer), "--steps", "9"])))
    with pytest.raises(ValueError, match=message("steps of all rounds on CUDA must be at least 50, got 45")):
        bench.resolve_arguments(args)
