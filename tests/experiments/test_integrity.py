"""A run belongs to one config and one content of its data; its files state what they hold."""

import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support import message
from toa.experiments import resolve, run_folder, run_task
from toa.experiments.run import Job
from toa.experiments.sweep import RunContext, sweep
from toa.tasks import TrainingStopped
from toa.tasks.checkpoint import load_checkpoint, save_checkpoint

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
    config, out = config_of(csv), tmp_path / "runs" / "forecast"
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
