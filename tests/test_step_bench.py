"""What `benchmarks/training_step.py` compares, and what it refuses to."""

import argparse
import io
import json
from dataclasses import asdict, replace

import pytest
import torch

from tests.experiments.test_efficiency import MODEL
from tests.support import load_script, message

SIZES = ["--rounds", "3", "--steps", "1", "--warmup", "0", "--device", "cpu"]


@pytest.fixture
def bench(monkeypatch):
    module = load_script("benchmarks/training_step.py")
    small = replace(module.CASES["itransformer-256"], channels=2, batch_size=2)
    monkeypatch.setitem(module.CASES, "itransformer-256", replace(small, model={**small.model, "embed_dim": 128}))
    return module


@pytest.fixture
def peer(tmp_path):
    folder = tmp_path / "peer"
    (folder / "models").mkdir(parents=True)
    (folder / "run.py").touch()
    for name in ("PatchTST", "iTransformer"):
        (folder / "models" / f"{name}.py").write_text(MODEL)
    return folder


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


def test_the_cases_are_those_of_the_table(bench):
    assert list(bench.CASES) == ["patchtst-128", "patchtst-16", "itransformer-256", "itransformer-512"]
    large = bench.CASES["itransformer-512"]
    assert (large.channels, large.batch_size, large.model["num_layers"]) == (862, 16, 4)
    config = bench.CASES["patchtst-128"].config("toa-gated", tf32=True, compiled=True, seed=1)
    assert config.training.compile
    assert (config.lookback, config.batch_size, config.seed) == (336, 128, 1)
    sizes = {"style": "tslib", "embed_dim": 128, "num_heads": 8, "num_layers": 3, "ff_dim": 256, "dropout": 0.1}
    assert sizes.items() <= dict(config.model).items()
    assert config.attention.gate_norm is not None


def test_channels_and_batches_are_crossed(bench):
    args = bench.parse(["--cases", "patchtst-16", "--channels", "3", "5", "--batch", "8"])
    chosen = bench.chosen_cases(args)
    assert list(chosen) == ["patchtst-16 C=3 B=8", "patchtst-16 C=5 B=8"]
    assert [case.channels for case in chosen.values()] == [3, 5]
    assert {case.batch_size for case in chosen.values()} == {8}


def test_systems_take_turns_and_are_compared_turn_by_turn(bench, peer, tmp_path, monkeypatch, capsys):
    told: list[str] = []

    class FakeWorker:
        """Peer steps of 10 s, 20 s and 30 s; ours take half, a third and twice that."""

        def __init__(self, request):
            self.name = request["system"]
            self.turns = iter((10.0, 20.0, 30.0) if self.name == "peer" else (5.0, 20.0 / 3.0, 60.0))

        def answer(self):
            return {"ready": True} if self.name != "toa-relu" else {"refused": "refused, not accurate"}

        def time_block(self, steps, warmup):
            told.append(self.name)
            return [next(self.turns)] * steps

        def finish(self):
            cost = {"milliseconds": 1.0, "peak_memory": 50 if self.name == "peer" else 20, "backend": None}
            return cost | {"parameters": 3}

        def close(self):
            told.append(f"end {self.name}")

    monkeypatch.setattr(bench, "Worker", FakeWorker)
    out = tmp_path / "step.json"
    words = ["--cases", "patchtst-16", "--attentions", "softmax", "toa-relu", "--peer", str(peer), "--out", str(out)]
    # a system is refused: the exit code says so
    assert bench.main([*words, *SIZES]) == 1
    assert told[:4] == ["peer", "softmax", "peer", "softmax"]
    assert told[6:] == ["end peer", "end softmax", "end toa-relu"]
    (row,) = json.loads(out.read_text())["rows"]
    assert row["systems"]["softmax"]["time_over_peer"] == pytest.approx(0.5)
    assert row["systems"]["softmax"]["memory_over_peer"] == pytest.approx(0.4)
    assert "patchtst-16, toa-relu: refused, not accurate" in capsys.readouterr().out


def test_a_worker_times_the_blocks_it_is_asked_for(bench, monkeypatch):
    lines = [json.dumps({"steps": steps, "warmup": 1}) for steps in (2, 1)]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    answers = io.StringIO()
    bench.work(request_of(bench, "toa-gated"), answers)
    ready, first, second, cost = map(json.loads, answers.getvalue().splitlines())
    assert ready == {"ready": True}
    assert (len(first["seconds"]), len(second["seconds"])) == (2, 1)
    assert cost["backend"] == "folded"
    assert cost["milliseconds"] == pytest.approx(1e3 * sorted(first["seconds"] + second["seconds"])[1])


def test_the_peer_runs_in_a_process_of_its_own_and_says_what_it_dies_of(bench, peer):
    worker = bench.Worker(request_of(bench, "peer", peer))
    assert worker.answer() == {"ready": True}
    assert len(worker.time_block(2, 0)) == 2
    assert worker.finish()["parameters"] == 3
    worker.close()
    (peer / "models" / "iTransformer.py").write_text("raise RuntimeError('no such layer')")
    worker = bench.Worker(request_of(bench, "peer", peer))
    with pytest.raises(ValueError, match=message("peer must run to its end, got exit code 1", "no such layer")):
        worker.answer()
    worker.close()


def test_an_attention_less_accurate_than_the_reference_is_refused(bench, monkeypatch):
    asked = []

    def check(case, device):
        asked.append(case)
        return "output: error 1.0"

    monkeypatch.setattr(bench, "check_accuracy", check)
    answers = io.StringIO()
    bench.work(request_of(bench, "toa-gated"), answers)
    refused = "refused, its attention is not as accurate as the reference: output: error 1.0"
    assert json.loads(answers.getvalue()) == {"refused": refused}
    (checked,) = asked
    # two channels, and four marks of time
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
def test_wrong_words_get_one_clear_line(bench, peer, words, parts):
    with pytest.raises(SystemExit, match=message("error:", *parts)):
        bench.main(["--peer", str(peer), "--device", "cpu", *words])


def test_a_peer_must_be_given(bench, tmp_path):
    with pytest.raises(SystemExit, match=message("error: --peer must name a checkout")):
        bench.main(["--device", "cpu"])
    with pytest.raises(SystemExit, match=message("error: peer must be a checkout of Time-Series-Library")):
        bench.main(["--device", "cpu", "--peer", str(tmp_path)])


def test_few_steps_on_cuda_are_refused(bench, peer, monkeypatch):
    monkeypatch.setattr(bench, "resolve_device", lambda name: torch.device("cuda"))
    args = argparse.Namespace(**vars(bench.parse(["--peer", str(peer), "--steps", "10"])))
    with pytest.raises(ValueError, match=message("steps of all rounds on CUDA must be at least 50, got 10")):
        bench.settle(args)
