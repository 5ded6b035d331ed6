import json
from pathlib import Path

import pytest
import torch

from tests.support import message
from toa.data import CLASSIFICATION_SETS
from toa.experiments import experiment_of, load_run, protocol_names, resolve, run_folder, run_task
from toa.models import backbone_names, build_classifier
from toa.nn import ATTENTIONS, AttentionSpec
from toa.training.checkpoint import load_checkpoint

SMALL = ("model.num_layers=1", "model.embed_dim=16", "model.ff_dim=16", "model.num_heads=2", "training.epochs=2")


@pytest.fixture(autouse=True)
def _own_data(monkeypatch):
    monkeypatch.delenv("TOA_DATA", raising=False)


def run(out: Path, *, dataset: str = "JapaneseVowels", protocol: str = "strict", seed: int = 1, **options):
    given = {"backbone": "patchtst", "attention": "toa-gated"} | options
    config = resolve("classify", protocol, dataset=dataset, seed=seed, changes=SMALL, **given)
    return config, run_task(config, out, device="cpu", command=("toa", "run"))


def test_every_cell_of_every_protocol_resolves_to_the_papers_sizes():
    of_the_paper = ["strict", "toa", "toa-paper", "tslib-uea"]
    assert protocol_names("classify") == [*of_the_paper, "two-axis"]
    for protocol in of_the_paper:
        for backbone in set(backbone_names("classify")) - {"two-axis"}:
            for attention in ATTENTIONS:
                for dataset in CLASSIFICATION_SETS:
                    config = resolve("classify", protocol, dataset=dataset, backbone=backbone, attention=attention)
                    wide = (protocol, backbone, dataset) == ("tslib-uea", "itransformer", "EthanolConcentration")
                    assert config.model["embed_dim"] == (2048 if wide else 128)
                    assert (config.model["ff_dim"], config.model["num_layers"], config.model["num_heads"]) == (
                        256,
                        3,
                        8,
                    )
                    assert config.evaluation == {"tslib-uea": "tslib-uea", "toa": "folds"}.get(protocol, "strict")
                    training = config.training
                    assert (training.optimizer, training.learning_rate, training.clip_norm) == ("radam", 1e-3, 4.0)
                    length = (200, 30) if (protocol, backbone) == ("toa", "patchtst") else (100, 10)
                    assert (training.epochs, training.patience, config.batch_size, config.seed) == (*length, 16, 2024)


def test_a_change_stays_in_its_run():
    for change, width in (("model.embed_dim=16", 16), ("batch_size=16", 128)):
        config = resolve("classify", "strict", dataset="ERing", backbone="patchtst", changes=(change,))
        assert config.model["embed_dim"] == width


def test_toa_has_its_normalisers():
    gated, relu, softmax = (
        resolve("classify", "strict", dataset="ERing", backbone="patchtst", attention=name).attention
        for name in ("toa-gated", "toa-relu", "softmax")
    )
    assert (gated.score_norm, gated.gate_norm) == ("rms", "rms")
    assert relu.score_norm == "rms"
    assert softmax == AttentionSpec(name="softmax").resolved()


def test_settings_of_a_protocol_build_a_model():
    config = resolve("classify", "strict", dataset="StandWalkJump", backbone="patchtst", attention="softmax")
    model = build_classifier(
        "patchtst", lookback=2500, channels=4, num_classes=3, attention=config.attention, settings=config.model
    )
    assert model.backbone.num_tokens == 312
    assert model(torch.zeros(1, 2500, 4)).shape == (1, 3)


def test_a_strict_run_has_a_complete_record(tmp_path):
    config, record = run(tmp_path)
    assert record["task"] == "classify"
    assert record["name"] == "patchtst/toa-gated"
    assert record["cases"] == {"train": 216, "val": 54, "test": 370}
    assert set(record["metrics"]) == {
        *("accuracy", "balanced_accuracy", "macro_f1"),
        *("val_accuracy", "val_balanced_accuracy", "val_macro_f1"),
    }
    confusion = torch.tensor(record["confusion"])
    assert confusion.shape == (9, 9)
    assert int(confusion.sum()) == 370
    assert int(confusion.diagonal().sum()) / 370 == pytest.approx(record["metrics"]["accuracy"])
    assert record["evaluation"]["validation"] == "held out of TRAIN"
    assert "at least 1" in record["evaluation"]["rule"]
    assert record["metrics"]["val_accuracy"] == pytest.approx(1 - min(e["validation"] for e in record["history"]))
    folder = run_folder(config, tmp_path)
    assert json.loads((folder / "record.json").read_text())["config_hash"] == record["config_hash"]
    saved = load_checkpoint(folder / "model.safetensors")
    assert saved.facts["length"] == 29
    assert {"scaler.mean", "scaler.std"} <= set(saved.tensors)


def test_the_peers_run_reports_the_best_test_accuracy(tmp_path):
    _, record = run(tmp_path, dataset="BasicMotions", protocol="tslib-uea", attention="softmax")
    assert record["cases"] == {"train": 40, "val": 40, "test": 40}
    assert record["metrics"]["accuracy"] == record["metrics"]["val_accuracy"]
    assert record["metrics"]["accuracy"] == pytest.approx(1 - min(e["validation"] for e in record["history"]))
    assert record["evaluation"]["validation"] == "TEST"


def test_a_small_set_is_validated_by_folds_whose_models_vote(tmp_path):
    config, record = run(tmp_path, dataset="BasicMotions", protocol="toa")
    assert record["cases"] == {"train": 40, "val": 40, "test": 40}
    assert record["evaluation"]["validation"] == "5 folds of TRAIN"
    assert record["metrics"]["val_accuracy"] == pytest.approx(1 - min(e["validation"] for e in record["history"]))
    loaded = load_run(run_folder(config, tmp_path))
    data = loaded.task.load(config, torch.device("cpu"))
    scores = loaded.task.evaluate(config, loaded.model, data).metrics
    assert scores == record["metrics"]
    assert loaded.model(*loaded.task.sample(config, 0)).exp().sum().item() == pytest.approx(1.0)


def test_a_search_measures_no_test_accuracy(tmp_path):
    config = resolve("classify", "toa", dataset="BasicMotions", backbone="patchtst", changes=(*SMALL, "test=false"))
    record = run_task(config, tmp_path, device="cpu", command=("toa", "run"))
    assert all(name.startswith("val_") for name in record["metrics"])
    assert "confusion" not in record
    assert any("validation accuracy" in line for line in experiment_of("classify").describe(record))


def test_no_dataset_has_an_exception_in_the_protocol_toa():
    for backbone in backbone_names("classify"):
        models = [resolve("classify", "toa", dataset=name, backbone=backbone).model for name in CLASSIFICATION_SETS]
        assert all(model == models[0] for model in models)


def test_a_finished_run_is_loaded_and_a_seed_gives_the_same_metrics(tmp_path):
    config, first = run(tmp_path / "a", dataset="BasicMotions")
    assert run_task(config, tmp_path / "a", device="cpu")["commit"] == first["commit"]
    _, again = run(tmp_path / "b", dataset="BasicMotions")
    assert again["metrics"] == first["metrics"]
    assert again["history"] == first["history"]


@pytest.mark.parametrize("backbone", ["itransformer", "transformer"])
def test_the_other_backbones_run(tmp_path, backbone):
    _, record = run(tmp_path, dataset="BasicMotions", backbone=backbone, attention="hyperglu")
    assert 0.0 <= record["metrics"]["accuracy"] <= 1.0


def test_series_shorter_than_a_patch_are_padded_to_one(tmp_path):
    header = "@problemName toy\n@univariate false\n@equalLength true\n@classLabel true a b\n@data\n"
    body = "".join(f"{i},2,{i}:1,{i},{i % 3}:{'ab'[i % 2]}\n" for i in range(12))
    for split in ("TRAIN", "TEST"):
        (tmp_path / f"toy_{split}.ts").write_text(header + body)
    _, record = run(tmp_path / "out", dataset=str(tmp_path / "toy_TRAIN.ts"))
    assert record["evaluation"]["length"] == 16


BAD = [
    ({"dataset": "Basic"}, "unknown dataset 'Basic'; known: Articulary"),
    ({"protocol": "tslib-96"}, "unknown protocol 'tslib-96'; known: strict, toa, toa-paper, tslib-uea, two-axis."),
    ({"backbone": "dlinear"}, "unknown backbone 'dlinear'; known: itransformer, patchtst, transformer, two-axis."),
    ({"changes": ("evaluation=honest",)}, "unknown evaluation 'honest'; known: strict, folds, tslib-uea."),
    ({"changes": ("horizon=96",)}, "unknown key 'horizon'"),
    ({"changes": ("batch_size=0",)}, "batch_size must be at least 1, got 0."),
]


@pytest.mark.parametrize(("options", "text"), BAD, ids=str)
def test_wrong_arguments_raise_an_error(options, text):
    given = {"protocol": "strict", "dataset": "ERing", "backbone": "patchtst"} | options
    with pytest.raises(ValueError, match=message(text)):
        resolve("classify", given.pop("protocol"), **given)
