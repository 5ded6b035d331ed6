import json
import os
import signal
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import message
from toa.data import ANOMALY_SETS, DatasetNotFoundError
from toa.experiments import config_hash, load_protocol, protocol_names, read_record, resolve, run_folder, run_task
from toa.models import backbone_names, build_reconstructor
from toa.training import TrainingStopped
from toa.training.checkpoint import load_checkpoint

SMALL = [
    "lookback=20",
    "batch_size=16",
    "anomaly_ratio=5",
    "training.epochs=2",
    "training.learning_rate=1e-3",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.embed_dim=8",
    "model.ff_dim=8",
]
# backbones with settings from papers or libraries
PUBLISHED = [name for name in backbone_names("reconstruct") if name != "two-axis"]
CELLS = [
    (protocol, backbone, "SMD-machine-3-7" if name == "SMD-machine" else name)
    for protocol in protocol_names("anomaly")
    for backbone in backbone_names("reconstruct")
    if backbone in load_protocol("anomaly", protocol).tables
    for name in load_protocol("anomaly", protocol).tables[backbone]
    if name != "default"
]


@pytest.fixture
def data_folder(tmp_path):
    t = np.arange(400)[:, None]
    series = np.sin(2 * np.pi * t / np.array([12, 24, 8])) + 0.05 * np.random.default_rng(0).normal(size=(400, 3))
    test = series[200:].copy()
    labels = np.zeros(200, bool)
    for start in (50, 120):
        test[start : start + 8] += 3.0
        labels[start : start + 8] = True
    for name, array in (("train", series[:250]), ("test", test), ("labels", labels)):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def config_of(folder: Path, backbone: str = "itransformer", *changes: str, attention: str = "toa-gated", **options):
    given: dict[str, Any] = {
        "dataset": str(folder / "train.npy"),
        "test_file": str(folder / "test.npy"),
        "label_file": str(folder / "labels.npy"),
    }
    return resolve(
        "anomaly",
        "two-axis" if backbone == "two-axis" else "toa-paper",
        backbone=backbone,
        attention=attention,
        changes=[*SMALL, *changes],
        **{**given, **options},
    )


def test_every_cell_is_complete_and_its_model_can_be_built():
    for protocol, backbone, dataset in CELLS:
        check_cell(protocol, backbone, dataset)


def check_cell(protocol: str, backbone: str, dataset: str) -> None:
    config = resolve("anomaly", protocol, dataset=dataset, backbone=backbone, attention="softmax")
    assert json.loads(json.dumps(asdict(config)))["dataset"] == dataset
    settings = {**config.model, "embed_dim": config.model["num_heads"], "ff_dim": 2}
    model = build_reconstructor(
        backbone, lookback=config.lookback, channels=2, attention=config.attention, settings=settings
    )
    assert sum(p.numel() for p in model.parameters()) > 0


def test_protocols_cover_the_paper_and_the_library():
    assert protocol_names("anomaly") == ["toa-paper", "tslib", "two-axis"]
    assert all(len(load_protocol("anomaly", name).about) > 20 for name in protocol_names("anomaly"))
    paper = {(backbone, dataset) for protocol, backbone, dataset in CELLS if protocol == "toa-paper"}
    sets = ("PSM", "MSL", "SMAP", "SMD", "SWaT", "SMD-machine-3-7")
    assert paper == {(backbone, dataset) for backbone in PUBLISHED for dataset in sets}


@pytest.mark.parametrize(
    ("dataset", "stride", "ratio", "epochs"),
    [
        ("MSL", 1, 1.0, 10),
        ("SMAP", 1, 1.0, 3),
        ("PSM", 1, 1.0, 3),
        ("SWaT", 1, 1.0, 3),
        ("SMD", 100, 0.5, 10),
        ("SMD-machine-1-6", 1, 0.5, 10),
    ],
)
@pytest.mark.parametrize("backbone", PUBLISHED)
def test_settings_are_the_published_ones(backbone, dataset, stride, ratio, epochs):
    config = resolve("anomaly", "toa-paper", dataset=dataset, backbone=backbone)
    assert (config.window_stride, config.anomaly_ratio, config.training.epochs) == (stride, ratio, epochs)
    assert (config.lookback, config.batch_size, config.seed) == (100, 128, 2024)
    training = config.training
    assert (training.optimizer, training.learning_rate, training.schedule) == ("adam", 1e-4, "type1")
    assert training.patience == 3
    assert config.model == {"num_layers": 3, "embed_dim": 128, "ff_dim": 128, "num_heads": 8, "dropout": 0.1}
    assert config.validation_in_train
    assert (config.attention.name, config.attention.score_norm) == ("toa-gated", "rms")
    assert config.attention.gate_norm == "rms"


@pytest.mark.parametrize("backbone", backbone_names("reconstruct"))
def test_one_run_trains_once_and_reports_both_rules(data_folder, tmp_path, backbone):
    config = config_of(data_folder, backbone)
    record = run_task(config, tmp_path / "runs", device="cpu", command=["toa", "run"])
    folder = run_folder(config, tmp_path / "runs")
    assert folder.name.startswith(f"train-{backbone}-toa-gated-2024-")
    assert read_record(folder / "record.json") == record
    assert record["windows"] == {"train": 231, "val": 31, "test": 181}
    assert len(record["history"]) == 2
    assert record["metrics"]["val_mse"] == pytest.approx(record["history"][record["best_epoch"] - 1]["validation"])
    pa, strict = record["detections"]["tslib-pa"], record["detections"]["strict"]
    quirks = ("point_adjust", "threshold_source", "overlaps", "headline")
    assert [pa[name] for name in quirks] == [True, "train and test", "flattened", "pa_f1"]
    assert [strict[name] for name in quirks] == [False, "train", "averaged", "f1"]
    assert all(block["window_stride"] == 1 and block["validation_in_train"] for block in (pa, strict))
    for rules in ("tslib-pa", "strict"):
        for name in ("f1", "precision", "recall", "pa_f1", "pa_k_f1", "range_f1", "vus_pr", "random_pa_f1"):
            assert 0.0 <= record["metrics"][f"{rules}/{name}"] <= 1.0
    # without a threshold there is but one number
    assert record["metrics"]["tslib-pa/vus_roc"] == record["metrics"]["strict/vus_roc"]
    scores = load_checkpoint(folder / "scores.safetensors")
    assert scores.tensors["score"].shape == scores.tensors["labels"].shape == (200,)
    assert (scores.tensors["score"] > strict["threshold"]).equal(scores.tensors["flags.strict"])
    assert {"model.body.head.weight", "scaler.mean"} <= load_checkpoint(folder / "model.safetensors").tensors.keys()


def test_shifted_ranges_are_detected(data_folder, tmp_path):
    config = config_of(data_folder, "transformer", "training.epochs=6", "training.learning_rate=5e-3")
    record = run_task(config, tmp_path, device="cpu")
    assert record["metrics"]["strict/vus_roc"] > 0.9
    assert record["metrics"]["tslib-pa/pa_recall"] == 1.0


def test_a_stopped_run_resumes_to_the_same_result_and_a_finished_one_is_loaded(data_folder, tmp_path):
    config = config_of(data_folder)
    whole = run_task(config, tmp_path / "whole", device="cpu")

    def stop(done: int, total: int, loss: float, validation: float | None) -> None:
        if done >= 20:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingStopped):
        run_task(config, tmp_path / "stopped", device="cpu", observe=stop)
    resumed = run_task(config, tmp_path / "stopped", device="cpu")
    assert resumed["metrics"] == whole["metrics"]
    assert run_task(config, tmp_path / "stopped", device="cpu", command=["other"]) == resumed


def test_validation_can_be_held_out_of_training(data_folder, tmp_path):
    config = config_of(data_folder, "itransformer", "validation_in_train=false")
    record = run_task(config, tmp_path, device="cpu")
    assert record["windows"] == {"train": 181, "val": 31, "test": 181}
    assert not record["detections"]["strict"]["validation_in_train"]
    assert config_hash(config) != config_hash(config_of(data_folder))


def test_with_a_stride_every_step_is_still_scored(data_folder, tmp_path):
    config = config_of(data_folder, "itransformer", "window_stride=15")
    record = run_task(config, tmp_path, device="cpu")
    assert record["windows"] == {"train": 16, "val": 3, "test": 13}
    assert load_checkpoint(run_folder(config, tmp_path) / "scores.safetensors").tensors["score"].shape == (200,)


def test_equal_labels_are_recorded_as_undefined(data_folder, tmp_path):
    np.save(data_folder / "labels.npy", np.zeros(200, bool))
    record = run_task(config_of(data_folder), tmp_path / "runs", device="cpu")
    assert set(record["metrics"]) == {"val_mse"}
    assert "no step is labelled anomalous" in record["detections"]["strict"]["undefined"]["f1"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"protocol": "tslb"}, ("unknown protocol 'tslb'; known: toa-paper, tslib",)),
        ({"dataset": "MLS"}, ("unknown dataset 'MLS'", "MSL")),
        ({"backbone": "dlinear"}, ("unknown backbone 'dlinear'; known: itransformer, patchtst, transformer",)),
        ({"protocol": "tslib"}, ("unknown backbone of protocol 'tslib' 'patchtst'; known: transformer, itransf",)),
        (
            {"protocol": "tslib", "backbone": "itransformer", "dataset": "PSM"},
            ("unknown dataset of protocol 'tslib' 'PSM'; known: MSL",),
        ),
        ({"attention": "toa"}, ("unknown attention 'toa'",)),
        ({"test_file": "x.npy"}, ("test_file goes with a train file of your own", "'MSL'; leave it out")),
        ({"dataset": "x.npy"}, ("test_file must be given with a train file of your own, x.npy, got none",)),
        ({"dataset": "x.npy", "test_file": "y.npy"}, ("label_file must be given",)),
        ({"changes": ["anomaly_ratio=0"]}, ("anomaly_ratio must lie in (0, 100), got 0",)),
        ({"changes": ["validation_share=1.0"]}, ("validation_share must lie in (0, 1), got 1.0",)),
        ({"changes": ["window_stride=0"]}, ("window_stride must be at least 1, got 0",)),
        ({"changes": ["horizon=3"]}, ("unknown key 'horizon'", "lookback")),
        ({"changes": ["fill=mean"]}, ("unknown fill 'mean'",)),
    ],
)
def test_wrong_cells_raise_an_error(options, parts):
    given: dict[str, Any] = {"protocol": "toa-paper", "dataset": "MSL", "backbone": "patchtst", **options}
    with pytest.raises(ValueError, match=message(*parts)):
        resolve("anomaly", given.pop("protocol"), **given)


def test_a_validation_part_shorter_than_a_window_raises_an_error(data_folder, tmp_path):
    with pytest.raises(ValueError, match=message("the val part of train.npy", "one window of 20 rows, got 13 of 250")):
        run_task(config_of(data_folder, "patchtst", "validation_share=0.05"), tmp_path, device="cpu")


def ucr() -> Path:
    """The UCR anomaly series that aeon's wheel holds."""
    folder = files("aeon.datasets") / "data" / "KDD-TSAD_135"
    assert isinstance(folder, Path)
    return folder


def test_the_real_anomaly_of_a_ucr_series_is_found(tmp_path):
    stem = ucr() / "135_UCR_Anomaly_InternalBleeding16"
    changes = ["lookback=64", "window_stride=8", "anomaly_ratio=1", "training.epochs=5", "training.learning_rate=5e-3"]
    changes += ["model.embed_dim=16", "model.ff_dim=16", "index_column=true", "label_column=true"]
    config = resolve(
        "anomaly",
        "toa-paper",
        dataset=f"{stem}_TRAIN.csv",
        test_file=f"{stem}_TEST.csv",
        backbone="patchtst",
        changes=[*SMALL, *changes],
    )
    metrics = run_task(config, tmp_path, device="cpu")["metrics"]
    assert metrics["strict/vus_roc"] > 0.75
    assert metrics["strict/pa_recall"] == 1.0


@pytest.mark.data
@pytest.mark.parametrize("dataset", ["MSL", "SMD-machine-1-6"])
@pytest.mark.parametrize("backbone", backbone_names("reconstruct"))
def test_real_sets_run_end_to_end(tmp_path, dataset, backbone):
    small = ["model.num_layers=1", "model.embed_dim=8", "model.ff_dim=8", "training.epochs=1", "window_stride=100"]
    protocol = "two-axis" if backbone == "two-axis" else "toa-paper"
    config = resolve("anomaly", protocol, dataset=dataset, backbone=backbone, changes=small)
    try:
        record = run_task(config, tmp_path, device="cpu")
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    assert record["subset_of"] == ANOMALY_SETS[dataset].subset_of
    assert 0.3 < record["metrics"]["tslib-pa/pa_f1"] < 1.0
