"""`benchmarks/training_run.py`: what it compares, and what it refuses; the runs themselves are fake."""

import argparse
import re

import pytest
import torch

from tests.support import load_script, message

PRINTED = "Epoch: 1, Steps: 3 | Train Loss: 1.0\nEpoch: 2, Steps: 3 | Train Loss: 0.9\nmse:0.25, mae:0.5, dtw:none\n"


@pytest.fixture
def script(monkeypatch, tmp_path):
    module = load_script("benchmarks/training_run.py")
    monkeypatch.setattr(module, "locate", lambda spec, folder: tmp_path)
    monkeypatch.setattr(module, "resolve_device", lambda name: torch.device(name))
    return module


class FakeWorker:
    """A process with a given result; all processes must be ready before the first runs."""

    waiting = 0

    def __init__(self, result):
        self.result = result
        FakeWorker.waiting += 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def answer(self):
        FakeWorker.waiting -= 1
        return {"ready": True}

    def ask(self, request):
        assert FakeWorker.waiting == 0
        return dict(self.result)


def compare(script, peer, device="cpu", epochs=2):
    return script.compare(argparse.Namespace(peer=peer, data_dir=None, device=device, epochs=epochs))


def test_epochs_and_error_of_the_peer_are_parsed_from_its_output(script):
    assert script.printed_results(PRINTED) == {"epochs": 2, "mse": 0.25}


def test_a_run_with_other_epochs_is_refused(script, peer, monkeypatch):
    results = {"train_s": 2.0, "run_s": 3.0, "epochs": 2, "mse": 0.25}
    monkeypatch.setattr(script, "start", lambda name, kernels: FakeWorker(results))
    with pytest.raises(ValueError, match=message("peer, softmax must run 10 epochs, got 2")):
        compare(script, peer, epochs=10)


def test_a_folder_that_is_not_a_checkout_is_refused(script, tmp_path):
    with pytest.raises(ValueError, match=message("peer must be a checkout", str(tmp_path), "clone")):
        compare(script, tmp_path)


def test_the_table_shows_every_ratio_to_the_peer(script, capsys):
    run = {"epoch_s": 0.1, "train_s": 1.0, "run_s": 2.0, "epochs": 10, "mse": 0.4, "stood_in": ["sktime"]}
    ratios = {name: {"epoch_s": 0.1, "train_s": 0.1, "run_s": 0.2} for name in script.OURS}
    runs = dict.fromkeys((script.PEER, *script.OURS), run)
    script.show({"runs": runs, "ratios": ratios})
    shown = capsys.readouterr().out
    assert len(re.findall(r"1\.00 +0\.100 +2\.00 +0\.200", shown)) == 2
    assert "stand-ins: sktime" in shown


def test_on_cuda_each_system_runs_twice_with_one_kernel_cache(script, peer, monkeypatch):
    started: list[tuple[str, str]] = []

    def start(name: str, kernels: str) -> FakeWorker:
        started.append((name, kernels))
        return FakeWorker({"train_s": 1.0 + len(started), "run_s": 2.0, "epochs": 2, "mse": 0.4})

    monkeypatch.setattr(script, "start", start)
    record = compare(script, peer, "cuda")
    ours = ["ours, softmax, first run", "ours, softmax", "ours, toa-gated, first run", "ours, toa-gated"]
    assert [name for name, _ in started] == ["peer, softmax", *ours]
    assert len({kernels for _, kernels in started}) == 1
    assert record["ratios"]["ours, softmax"]["train_s"] == 2.0
    assert record["runs"]["peer, softmax"]["epoch_s"] == 1.0
    started.clear()
    compare(script, peer, "cpu")
    assert [name for name, _ in started] == ["peer, softmax", "ours, softmax", "ours, toa-gated"]
