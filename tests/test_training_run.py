"""What `benchmarks/training_run.py` compares, and what it refuses to; the runs themselves are made up."""

import argparse
import io
import json

import pytest
import torch

from tests.support import load_script, message

PEER_SAYS = "Epoch: 1, Steps: 3 | Train Loss: 1.0\nEpoch: 2, Steps: 3 | Train Loss: 0.9\nmse:0.25, mae:0.5, dtw:none\n"


@pytest.fixture
def harness():
    return load_script("benchmarks/training_run.py")


class Child:
    """A process that says something when it is its turn."""

    def __init__(self, out: str, code: int = 0, errors: str = "") -> None:
        self.stdout = io.StringIO("a library's word\nready\n")
        self.returncode = code
        self._says = out, errors

    def communicate(self, request: str) -> tuple[str, str]:
        assert request == "\n"
        # all are ready before the first is asked
        assert self.stdout.read() == ""
        return self._says


def find(harness, name: str, child: Child, epochs: int):
    child.stdout.read()
    return harness.find(name, child, argparse.Namespace(epochs=epochs))


def test_epochs_and_error_of_the_peer_are_what_it_prints(harness):
    child = Child(PEER_SAYS + json.dumps({"train_s": 2.0, "run_s": 3.0}))
    found = find(harness, harness.PEER, child, epochs=2)
    assert (found["epochs"], found["mse"], found["train_s"], found["epoch_s"]) == (2, 0.25, 2.0, 1.0)


def test_a_run_of_other_epochs_is_not_compared(harness):
    child = Child(PEER_SAYS + json.dumps({"train_s": 2.0}))
    with pytest.raises(SystemExit, match=message("peer, softmax did 2 epochs instead of 10: nothing is compared")):
        find(harness, harness.PEER, child, epochs=10)
    child = Child(json.dumps({"train_s": 2.0, "epochs": 3}))
    with pytest.raises(SystemExit, match=message("ours, softmax did 3 epochs instead of 10")):
        find(harness, "ours, softmax", child, epochs=10)


def test_a_run_that_fails_is_not_compared(harness):
    child = Child("", code=1, errors="ModuleNotFoundError: No module named 'sklearn'")
    with pytest.raises(SystemExit, match=message("peer, softmax failed, nothing is compared")) as stop:
        find(harness, harness.PEER, child, epochs=1)
    assert "No module named 'sklearn'" in str(stop.value)


def test_a_folder_that_is_no_checkout_is_refused(harness, tmp_path):
    with pytest.raises(SystemExit, match=message("error: peer must be a checkout", str(tmp_path), "clone")):
        harness.compare(argparse.Namespace(peer=tmp_path, data_dir=None, device="cpu", epochs=1))


def test_the_table_shows_every_time_over_the_peers(harness, capsys):
    run = {"epoch_s": 0.1, "train_s": 1.0, "run_s": 2.0, "epochs": 10, "mse": 0.4, "stood_in": ["sktime"]}
    ratios = {name: {"epoch_s": 0.1, "train_s": 0.1, "run_s": 0.2} for name in harness.OURS}
    runs = dict.fromkeys((harness.PEER, *harness.OURS), run)
    harness.show({"runs": runs, "ratios": ratios, "device": "cpu"})
    shown = capsys.readouterr().out
    assert shown.count("1.00 (0.100)") == shown.count("2.00 (0.200)") == 2
    assert "stood in for: sktime" in shown


def test_kernels_are_compiled_in_the_first_of_two_runs_on_cuda(harness, monkeypatch, tmp_path):
    asked: list[tuple[str, str]] = []

    def start_child(name: str, kernels: str) -> Child:
        asked.append((name, kernels))
        seconds = 1.0 + len(asked)
        if name == harness.PEER:
            return Child(PEER_SAYS + json.dumps({"train_s": seconds, "run_s": 2.0}))
        return Child(json.dumps({"train_s": seconds, "run_s": 2.0, "epochs": 2, "mse": 0.4}))

    monkeypatch.setattr(harness, "start_child", start_child)
    monkeypatch.setattr(harness, "check_peer", lambda path: None)
    monkeypatch.setattr(harness, "locate", lambda spec, folder: tmp_path)
    monkeypatch.setattr(harness, "provenance", lambda device, command: {})
    monkeypatch.setattr(harness, "resolve_device", lambda name: torch.device(name))
    args = argparse.Namespace(peer=tmp_path, data_dir=None, device="cuda", epochs=2)
    record = harness.compare(args)
    names = [
        "peer, softmax",
        "ours, softmax, first run",
        "ours, softmax",
        "ours, toa-gated, first run",
        "ours, toa-gated",
    ]
    assert [name for name, _ in asked] == names
    assert len({kernels for _, kernels in asked}) == 1
    assert record["ratios"]["ours, softmax"]["train_s"] == 2.0
    asked.clear()
    harness.compare(argparse.Namespace(**{**vars(args), "device": "cpu"}))
    assert [name for name, _ in asked] == [names[0], names[2], names[4]]
