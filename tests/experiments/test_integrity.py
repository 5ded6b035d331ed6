"""A run belongs to one config and one content of its data; its files state what they hold."""

import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.support import message
from toa.experiments import records, resolve, run_folder, run_task
from toa.experiments.run import Job, load_run, read_plans, write_plan
from toa.experiments.sweep import RunContext, sweep
from toa.training import TrainingStopped
from toa.training.checkpoint import load_checkpoint, save_checkpoint

SIZES = ["lookback=24", "batch_size=16", "training.epochs=3", "model.num_layers=1", "model.embed_dim=8"]


def write_series(path: Path, seed: int = 0) -> Path:
    values = np.random.default_rng(seed).normal(size=(300, 2))
    frame = pd.DataFrame(values, columns=["a", "b"])
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=300, freq="h"))
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def csv(tmp_path):
    return write_series(tmp_path / "own.csv")


def config_of(path: Path):
    changes = [*SIZES, "model.num_heads=2", "model.ff_dim=8"]
    return resolve("forecast", "toa-paper", dataset=str(path), horizon=12, backbone="itransformer", changes=changes)


def stopped_run(config, out: Path) -> Path:
    """The checkpoint of a run that was interrupted."""

    def stop(done: int, total: int, loss: float, validation: float | None) -> None:
        if done >= 20:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingStopped):
        run_task(config, out, device="cpu", observe=stop)
    return run_folder(config, out) / "checkpoint.safetensors"


def test_a_stopped_run_does_not_resume_on_other_data(csv, tmp_path):
    stopped_run(config_of(csv), tmp_path / "runs")
    write_series(csv, seed=1)
    rule = message("checkpoint.safetensors must be a checkpoint of the data of this run", "restore them")
    with pytest.raises(ValueError, match=rule):
        run_task(config_of(csv), tmp_path / "runs", device="cpu")


def test_a_finished_run_is_not_read_as_one_of_other_data(csv, tmp_path):
    config = config_of(csv)
    out = tmp_path / "runs" / "forecast"
    record = run_task(config, out, device="cpu")
    content = csv.read_bytes()
    write_series(csv, seed=1)
    with pytest.raises(ValueError, match="must be a record of the data as they are now"):
        run_task(config, out, device="cpu")
    job = Job(config=config, label="own")
    found = sweep([job], RunContext(out=tmp_path / "runs", device="cpu"))
    assert "the data have changed since that run" in found.failures[job.key]
    csv.write_bytes(content)
    assert run_task(config, out, device="cpu") == record
    # the results may be on another machine than the data
    csv.unlink()
    assert run_task(config, out, device="cpu") == record


def test_a_checkpoint_of_an_older_version_names_no_data_and_is_resumed(csv, tmp_path):
    config = config_of(csv)
    whole = run_task(config, tmp_path / "whole", device="cpu")
    path = stopped_run(config, tmp_path / "runs")
    saved = load_checkpoint(path)
    save_checkpoint(path, saved.tensors, {name: saved.facts[name] for name in ("key", "state")})
    assert run_task(config, tmp_path / "runs", device="cpu")["metrics"] == whole["metrics"]


def flip(path: Path, place: float) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(bytes(content))


def test_a_flipped_bit_in_a_file_of_a_run_is_noticed(csv, tmp_path):
    config = config_of(csv)
    out = tmp_path / "runs"
    checkpoint = stopped_run(config, out)
    content = checkpoint.read_bytes()
    for place in (0.3, 0.6, 0.9, 0.99):
        flip(checkpoint, place)
        with pytest.raises(ValueError, match=message("checkpoint.safetensors must")):
            run_task(config, out, device="cpu")
        checkpoint.write_bytes(content)
    run_task(config, out, device="cpu")
    model = run_folder(config, out) / "model.safetensors"
    assert load_run(model.parent).record["name"] == "itransformer/toa-gated"
    flip(model, 0.7)
    with pytest.raises(ValueError, match=message("model.safetensors must have the content that its checksum states")):
        load_run(model.parent)


def test_an_edited_record_is_refused(csv, tmp_path):
    config = config_of(csv)
    out = tmp_path / "runs"
    record = run_task(config, out, device="cpu")
    path = run_folder(config, out) / "record.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"metrics": content["metrics"] | {"mse": 0.0001}}))
    with pytest.raises(ValueError, match=message("record.json must have the content that its checksum states")):
        run_task(config, out, device="cpu")
    # one letter of the field's own name
    path.write_text(json.dumps(content).replace('"checksum"', '"bhecksum"'))
    with pytest.raises(ValueError, match="its checksum states"):
        run_task(config, out, device="cpu")
    # a record of an older version
    path.write_text(json.dumps(record))
    assert run_task(config, out, device="cpu") == record


def test_a_plan_that_was_edited_is_named(csv, tmp_path):
    path = write_plan([Job(config=config_of(csv), label="own")], tmp_path)
    path.write_text(path.read_text().replace('"own"', '"another"'))
    jobs, unreadable = read_plans(tmp_path)
    assert (jobs, len(unreadable)) == ({}, 1)
    assert "its checksum states" in unreadable[0]


def test_the_record_names_the_threads_of_the_run(csv, tmp_path):
    """A deterministic run uses one, whatever the process uses before and after it."""
    config = config_of(csv)
    config = replace(config, deterministic=True, training=replace(config.training, epochs=1))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        record = run_task(config, tmp_path / "runs", device="cpu")
    finally:
        torch.set_num_threads(before)
    assert record["device"].endswith(", 1 threads)")


def test_the_commit_of_another_project_is_not_recorded(tmp_path, monkeypatch):
    """The package installed inside a checkout of another project, as in a virtual environment."""
    installed = tmp_path / "site" / "toa" / "experiments" / "records.py"
    installed.parent.mkdir(parents=True)
    shutil.copy(records.__file__, installed)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "other"], check=True)
    monkeypatch.setattr(records, "__file__", str(installed))
    assert subprocess.run([*git, "describe", "--always"], check=True, capture_output=True).stdout
    assert records.checkout_commit() is None


@pytest.mark.parametrize(
    "state",
    [
        {"step": "7"},
        {"step": -1},
        {"step": 10**6},
        {"best": "low"},
        {"best_epoch": 99},
        {"seconds": None},
        {"history": [{"train": "x"}]},
        {"history": 3},
        {"more": 1},
        7,
        None,
    ],
)
def test_a_checkpoint_with_another_state_is_refused(csv, tmp_path, state):
    config = config_of(csv)
    path = stopped_run(config, tmp_path / "runs")
    saved = load_checkpoint(path)
    facts: Any = saved.facts
    changed = {**facts["state"], **state} if isinstance(state, dict) else state
    save_checkpoint(path, saved.tensors, facts | {"state": changed})
    with pytest.raises(ValueError, match=message("checkpoint.safetensors must hold", "delete it to start again")):
        run_task(config, tmp_path / "runs", device="cpu")


def test_a_checkpoint_with_other_tensors_is_refused(csv, tmp_path):
    config = config_of(csv)
    path = stopped_run(config, tmp_path / "runs")
    saved = load_checkpoint(path)
    for prefix in ("optimizer.0.exp_avg", "optimizer", "random", "loss_sum", "best", "model"):
        for change in (lambda tensor: None, lambda tensor: tensor[None].repeat(2, *[1] * tensor.dim())):
            changed = {n: change(t) if n.startswith(prefix) else t for n, t in saved.tensors.items()}
            kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
            if kept.keys() == saved.tensors.keys() or prefix in ("loss_sum", "model"):
                save_checkpoint(path, kept, saved.facts)
                with pytest.raises(ValueError, match=message("checkpoint.safetensors must")):
                    run_task(config, tmp_path / "runs", device="cpu")
