import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from tests.support import ROOT, message
from toa.data import StandardScaler
from toa.experiments import read_record, resolve, run_folder, run_forecast
from toa.tasks import TrainingStopped
from toa.tasks.checkpoint import load_checkpoint

SMALL = [
    "lookback=24",
    "batch_size=16",
    "training.epochs=3",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.embed_dim=8",
    "model.ff_dim=8",
]


@pytest.fixture
def csv(tmp_path):
    t = np.arange(400)
    noise = np.random.default_rng(0).normal(size=(400, 3))
    values = np.sin(2 * np.pi * t[:, None] / np.array([12, 24, 8])) + 0.1 * noise
    frame = pd.DataFrame(values, columns=["a", "b", "c"])
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=400, freq="h"))
    path = tmp_path / "own.csv"
    frame.to_csv(path, index=False)
    return path


def config_of(path, backbone="patchtst", attention="toa-gated", changes=()):
    return resolve(
        "toa-paper",
        dataset=str(path),
        horizon=12,
        backbone=backbone,
        attention=attention,
        changes=[*SMALL, *changes],
    )


@pytest.mark.parametrize("backbone", ["patchtst", "itransformer"])
def test_a_run_leaves_a_model_and_a_record_that_says_all(csv, tmp_path, backbone):
    config = config_of(csv, backbone)
    record = run_forecast(config, tmp_path / "runs", device="cpu", command=["toa", "run"])
    folder = run_folder(config, tmp_path / "runs")
    assert read_record(folder / "record.json") == record
    assert record["windows"] == {"train": 280 - 24 - 12 + 1, "val": 40 - 12 + 1, "test": 80 - 12 + 1}
    assert record["subset_of"] is None
    assert len(record["history"]) == 3
    assert record["metrics"]["val_mse"] == pytest.approx(record["history"][record["best_epoch"] - 1]["validation"])
    assert {"config_hash", "seed", "data_checksum", "versions", "device", "backend", "wall_s"} <= record.keys()
    saved = load_checkpoint(folder / "model.safetensors")
    scaler = StandardScaler.from_state({n: saved.tensors[f"scaler.{n}"] for n in ("mean", "std")})
    train = pd.read_csv(csv).iloc[:280, 1:].to_numpy()
    np.testing.assert_allclose(scaler.mean, train.mean(0))
    np.testing.assert_allclose(scaler.std, train.std(0))


def test_training_learns_a_periodic_series(csv, tmp_path):
    record = run_forecast(
        config_of(csv, changes=["training.epochs=15", "training.learning_rate=1e-2", "model.dropout=0.0"]),
        tmp_path,
        device="cpu",
    )
    assert record["metrics"]["mse"] < 0.3


def test_a_finished_run_is_read(csv, tmp_path):
    first = run_forecast(config_of(csv), tmp_path, device="cpu")
    assert run_forecast(config_of(csv), tmp_path, device="cpu", command=["other"]) == first


def test_a_stopped_run_goes_on_to_the_same_result(csv, tmp_path):
    whole = run_forecast(config_of(csv), tmp_path / "whole", device="cpu")

    def stop(done: int, total: int, loss: float, validation: float | None) -> None:
        if done >= 20:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingStopped):
        run_forecast(config_of(csv), tmp_path / "stopped", device="cpu", observe=stop)
    resumed = run_forecast(config_of(csv), tmp_path / "stopped", device="cpu")
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["history"] == whole["history"]


def test_a_seed_changes_the_run_and_its_folder(csv, tmp_path):
    one, two = (config_of(csv, changes=[f"seed={seed}"]) for seed in (1, 2))
    assert run_folder(one, tmp_path) != run_folder(two, tmp_path)
    first, second = (run_forecast(config, tmp_path, device="cpu")["metrics"] for config in (one, two))
    assert first != second


def test_unknown_model_settings_and_missing_files_are_refused(csv, tmp_path):
    with pytest.raises(ValueError, match=message("unknown setting 'depth' of model 'patchtst'", "num_layers")):
        run_forecast(config_of(csv, changes=["model.depth=3"]), tmp_path, device="cpu")
    with pytest.raises((ValueError, OSError), match=r"nothing\.csv"):
        run_forecast(config_of(csv.with_name("nothing.csv")), tmp_path, device="cpu")


def test_missing_and_constant_values_need_a_word(csv, tmp_path):
    frame = pd.read_csv(csv)
    frame.loc[3:5, "b"] = np.nan
    frame["c"] = 1.0
    frame.to_csv(csv, index=False)
    with pytest.raises(ValueError, match=message("missing values", "3 in 'b'", "ffill")):
        run_forecast(config_of(csv), tmp_path / "runs", device="cpu")
    with pytest.raises(ValueError, match=message("constant", "'c'", "allow_constant")):
        run_forecast(config_of(csv, changes=["fill=ffill"]), tmp_path / "runs", device="cpu")
    assert not (tmp_path / "runs").exists()
    changes = ["fill=ffill", "allow_constant=true", "training.epochs=1"]
    assert run_forecast(config_of(csv, changes=changes), tmp_path / "runs", device="cpu")["metrics"]["mse"] > 0


def test_a_file_without_dates_can_be_run(csv, tmp_path):
    pd.read_csv(csv).drop(columns="date").to_csv(csv, index=False)
    config = config_of(csv, changes=['date_column=""', "training.epochs=1"])
    assert run_forecast(config, tmp_path, device="cpu")["metrics"]["mse"] > 0


def test_layers_can_share_a_drop_rate(csv, tmp_path):
    own, shared = (
        run_forecast(config_of(csv, changes=[f"share_drop_rate={choice}"]), tmp_path, device="cpu")["metrics"]
        for choice in ("false", "true")
    )
    assert own != shared


def test_deterministic_mode_is_left_as_it_was(csv, tmp_path):
    run_forecast(config_of(csv, "itransformer", "softmax", ["deterministic=true"]), tmp_path, device="cpu")
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
def test_two_processes_train_together_and_one_writes(csv, tmp_path):
    words = ["run", "--dataset", str(csv), "--horizon", "12", "--backbone", "itransformer", "--device", "cpu"]
    changes = [word for change in SMALL for word in ("--set", change)]
    command = [sys.executable, "-m", "toa.cli", *words, *changes, "--devices", "2", "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("record:") == 1
    (path,) = (tmp_path / "runs").glob("*/record.json")
    assert read_record(path)["devices"] == 2
