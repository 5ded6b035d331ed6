import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from tests.support import ROOT, message
from toa.data import DATASETS, DatasetNotFoundError, StandardScaler, checksum
from toa.experiments import read_record, resolve, run_folder, run_task
from toa.models import BACKBONES
from toa.training import TrainingStopped
from toa.training.checkpoint import load_checkpoint

SMALL = [
    "lookback=24",
    "batch_size=16",
    "training.epochs=3",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.embed_dim=8",
    "model.ff_dim=8",
]
ROWS = 160


@pytest.fixture
def csv(tmp_path):
    t = np.arange(ROWS)
    noise = np.random.default_rng(0).normal(size=(ROWS, 3))
    values = np.sin(2 * np.pi * t[:, None] / np.array([12, 24, 8])) + 0.1 * noise
    frame = pd.DataFrame(values, columns=["a", "b", "c"])
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=ROWS, freq="h"))
    path = tmp_path / "own.csv"
    frame.to_csv(path, index=False)
    return path


def config_of(path, backbone="patchtst", attention="toa-gated", changes=(), protocol="toa-paper"):
    sizes = {f"model.{name}" for name in BACKBONES[backbone].settings("forecast")}
    small = [c for c in SMALL if not c.startswith("model.") or c.partition("=")[0] in sizes]
    return resolve(
        "forecast",
        protocol,
        dataset=str(path),
        horizon=12,
        backbone=backbone,
        attention=attention,
        changes=[*small, *changes],
    )


@pytest.mark.parametrize("backbone", ["patchtst", "itransformer"])
def test_a_run_leaves_a_model_and_a_complete_record(csv, tmp_path, backbone):
    config = config_of(csv, backbone)
    record = run_task(config, tmp_path / "runs", device="cpu", command=["toa", "run"])
    folder = run_folder(config, tmp_path / "runs")
    assert read_record(folder / "record.json") == record
    assert record["windows"] == {"train": 112 - 24 - 12 + 1, "val": 16 - 12 + 1, "test": 32 - 12 + 1}
    assert record["subset_of"] is None
    assert len(record["history"]) == 3
    assert record["metrics"]["val_mse"] == pytest.approx(record["history"][record["best_epoch"] - 1]["validation"])
    assert {"config_hash", "seed", "data_checksum", "versions", "device", "backend", "wall_s"} <= record.keys()
    saved = load_checkpoint(folder / "model.safetensors")
    scaler = StandardScaler.from_state({n: saved.tensors[f"scaler.{n}"] for n in ("mean", "std")})
    train = pd.read_csv(csv).iloc[:112, 1:].to_numpy()
    np.testing.assert_allclose(scaler.mean, train.mean(0))
    np.testing.assert_allclose(scaler.std, train.std(0))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_run_repeats_although_its_evaluation_draws_random_numbers(csv, tmp_path, device):
    changes = ["model.mask_sampling=always", "model.moving_average=13", "model.num_experts=2", "training.epochs=1"]
    config = config_of(csv, "duet", changes=changes)
    first, second = (run_task(config, tmp_path / name, device=device) for name in "ab")
    assert first["metrics"] == second["metrics"]
    assert first["operators"] == second["operators"]


@pytest.mark.parametrize(
    ("backbone", "attention", "changes", "name"),
    [
        ("transformer", "toa-gated", ["model.label_len=12"], "transformer/toa-gated"),
        ("dlinear", None, ["model.moving_average=13"], "dlinear"),
        ("tsmixer", None, [], "tsmixer"),
    ],
)
def test_complete_models_run_with_and_without_an_attention(csv, tmp_path, backbone, attention, changes, name):
    config = config_of(csv, backbone, attention, ["training.epochs=1", *changes], protocol="tslib-96")
    record = run_task(config, tmp_path, device="cpu")
    assert record["name"] == name
    assert (record["backend"] is None) == (record["config"]["attention"] is None) == (attention is None)
    assert run_folder(config, tmp_path).name.startswith(f"own-12-{name.replace('/', '-')}-2021-")


@pytest.mark.parametrize(
    ("name", "protocol", "windows"),
    # floors of 0.6 and 0.8 of 240 rows without overlap; of 0.7, 0.1 and 0.2 with the look-back before the border
    [
        ("PEMS03", "itransformer-pems", (144 - 35, 48 - 35, 48 - 35)),
        ("Solar", "itransformer-96", (168 - 35, 24 - 11, 48 - 11)),
    ],
)
def test_npz_and_text_files_run_through_their_protocols(tmp_path, monkeypatch, name, protocol, windows):
    table = np.random.default_rng(0).normal(size=(240, 5)).round(3)
    horizon = 12 if name == "PEMS03" else 96
    path = tmp_path / DATASETS[name].path
    path.parent.mkdir()
    if name == "PEMS03":
        np.savez(path, data=np.stack((table, 9.0 - table), 2))
    else:
        np.savetxt(path, table, delimiter=",", fmt="%.3f")
    spec = replace(DATASETS[name], rows=240, channels=5, sha256=checksum(path))
    monkeypatch.setitem(DATASETS, name, spec)
    config = resolve(
        "forecast",
        protocol,
        dataset=name,
        horizon=horizon,
        backbone="itransformer",
        changes=[*SMALL, "training.epochs=1", "training.accumulate=2"],
    )
    record = run_task(replace(config, horizon=12), tmp_path / "runs", data_dir=tmp_path, device="cpu")
    assert tuple(record["windows"].values()) == windows
    assert record["subset_of"] is None
    assert not record["config"]["marks"]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("ECL-6ch", "itransformer-96"),
        ("Traffic-6ch", "itransformer-96"),
        ("Solar-12ch", "itransformer-96"),
        ("ECL-6ch", "tslib-96"),
        ("Traffic-6ch", "tslib-96"),
    ],
)
def test_files_with_some_of_the_channels_are_marked_in_the_record(tmp_path, name, protocol):
    backbone, attention = ("itransformer", "toa-gated") if protocol == "itransformer-96" else ("dlinear", None)
    sizes = ["model.num_layers=1", "model.embed_dim=8", "model.ff_dim=8"] if attention else []
    config = resolve(
        "forecast",
        protocol,
        dataset=name,
        horizon=96,
        backbone=backbone,
        attention=attention,
        changes=[*sizes, "training.epochs=1", "batch_size=256"],
    )
    try:
        record = run_task(config, tmp_path, device="cpu")
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    assert record["subset_of"] == name.partition("-")[0]
    assert 0 < record["metrics"]["mse"] < 10


def test_training_learns_a_periodic_series(csv, tmp_path):
    record = run_task(
        config_of(csv, changes=["training.epochs=15", "training.learning_rate=1e-2", "model.dropout=0.0"]),
        tmp_path,
        device="cpu",
    )
    assert record["metrics"]["mse"] < 0.3


def test_a_finished_run_is_loaded(csv, tmp_path):
    config = config_of(csv, "dlinear", None, ["model.moving_average=13"], protocol="tslib-96")
    first = run_task(config, tmp_path, device="cpu")
    assert run_task(config, tmp_path, device="cpu", command=["other"]) == first


def test_a_stopped_run_resumes_to_the_same_result(csv, tmp_path):
    whole = run_task(config_of(csv), tmp_path / "whole", device="cpu")

    def stop(done: int, total: int, loss: float, validation: float | None) -> None:
        if done >= 7:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingStopped):
        run_task(config_of(csv), tmp_path / "stopped", device="cpu", observe=stop)
    resumed = run_task(config_of(csv), tmp_path / "stopped", device="cpu")
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["history"] == whole["history"]


def test_a_seed_changes_the_run_and_its_folder(csv, tmp_path):
    one, two = (config_of(csv, "itransformer", changes=[f"seed={seed}", "training.epochs=1"]) for seed in (1, 2))
    assert run_folder(one, tmp_path) != run_folder(two, tmp_path)
    first, second = (run_task(config, tmp_path, device="cpu")["metrics"] for config in (one, two))
    assert first != second


def test_unknown_model_settings_and_missing_files_raise_an_error(csv, tmp_path):
    with pytest.raises(ValueError, match=message("unknown setting 'depth' of model 'patchtst'", "num_layers")):
        run_task(config_of(csv, changes=["model.depth=3"]), tmp_path, device="cpu")
    with pytest.raises((ValueError, OSError), match=r"nothing\.csv"):
        run_task(config_of(csv.with_name("nothing.csv")), tmp_path, device="cpu")


def test_missing_and_constant_values_need_a_setting(csv, tmp_path):
    frame = pd.read_csv(csv)
    frame.loc[3:5, "b"] = np.nan
    frame["c"] = 1.0
    frame.to_csv(csv, index=False)
    with pytest.raises(ValueError, match=message("missing values", "3 in 'b'", "ffill")):
        run_task(config_of(csv), tmp_path / "runs", device="cpu")
    with pytest.raises(ValueError, match=message("constant", "'c'", "allow_constant")):
        run_task(config_of(csv, changes=["fill=ffill"]), tmp_path / "runs", device="cpu")
    assert not (tmp_path / "runs").exists()
    changes = ["fill=ffill", "allow_constant=true", "training.epochs=1"]
    assert run_task(config_of(csv, changes=changes), tmp_path / "runs", device="cpu")["metrics"]["mse"] > 0


def test_a_file_without_dates_can_be_run(csv, tmp_path):
    pd.read_csv(csv).drop(columns="date").to_csv(csv, index=False)
    config = config_of(csv, changes=['date_column=""', "training.epochs=1"])
    assert run_task(config, tmp_path, device="cpu")["metrics"]["mse"] > 0


def test_layers_can_share_a_drop_rate(csv, tmp_path):
    own, shared = (
        run_task(config_of(csv, changes=[f"share_drop_rate={choice}", "training.epochs=1"]), tmp_path, device="cpu")
        for choice in ("false", "true")
    )
    assert own["metrics"] != shared["metrics"]


def test_deterministic_mode_is_restored(csv, tmp_path):
    config = config_of(csv, "itransformer", "softmax", ["deterministic=true", "training.epochs=1"])
    run_task(config, tmp_path, device="cpu")
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
def test_two_processes_train_together_and_one_writes(csv, tmp_path):
    words = ["run", "--dataset", str(csv), "--horizon", "12", "--backbone", "itransformer", "--device", "cpu"]
    changes = [word for change in SMALL for word in ("--set", change)]
    command = [sys.executable, "-m", "toa", *words, *changes, "--devices", "2", "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("record:") == 1
    (path,) = (tmp_path / "runs").glob("*/record.json")
    assert read_record(path)["devices"] == 2
