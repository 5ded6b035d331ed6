import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import toa
from toa.cli import app
from toa.experiments.records import read_record, write_record
from toa.experiments.run import load_run

SIZES = ["embed_dim=8", "num_heads=1", "num_layers=1", "ff_dim=8"]


def call(*words: object):
    result = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "500", "TERM": "dumb"})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def settings(*more: str) -> list[str]:
    changes = [f"model.{size}" for size in SIZES] + ["training.epochs=1", *more]
    return [word for change in changes for word in ("--set", change)]


@pytest.fixture(scope="module")
def forecast(tmp_path_factory):
    """A folder with a tiny forecasting run on a file, and the file."""
    folder = tmp_path_factory.mktemp("forecast")
    values = np.random.default_rng(0).normal(size=(200, 2)).round(3)
    frame = pd.DataFrame(values, columns=["a", "b"])
    frame.insert(0, "date", pd.date_range("2024-01-01", periods=200, freq="h").astype(str))
    frame.to_csv(folder / "own.csv", index=False)
    command = ["run", "--dataset", folder / "own.csv", "--horizon", 4, "--backbone", "patchtst"]
    for attention in ("toa-gated", "softmax"):
        code, text = call(
            *command, "--attention", attention, "--out", folder / attention, *settings("lookback=32", "batch_size=64")
        )
        assert code == 0, text
    return folder


def run_of(folder):
    return next(folder.glob("*/record.json")).parent


@pytest.mark.usefixtures("pictures")
def test_a_run_is_explained_by_a_page_and_pictures(forecast):
    run = run_of(forecast / "toa-gated")
    code, text = call("explain", run)
    assert code == 0, text
    made = run / "explain"
    assert {path.name for path in made.iterdir()} == {
        "index.html",
        "layer1-s1.png",
        "layer1-s2.png",
        "layer1-gate_s1.png",
        "layer1-mixing.png",
    }
    assert "Sample: window 0 of the test data of own.csv." in text
    assert f"page: {made / 'index.html'}" in text
    assert "patchtst/toa-gated, task forecast on own.csv" in (made / "index.html").read_text()


def test_a_model_without_operators_prints_an_error(forecast, tmp_path):
    code, text = call("explain", run_of(forecast / "softmax"), "--out", tmp_path)
    assert code == 2
    assert "error: the model must have operators to explain, got SoftmaxAttention" in text
    assert not list(tmp_path.iterdir())


def test_without_its_data_a_run_is_explained_without_a_sample(forecast, tmp_path):
    run = run_of(forecast / "toa-gated")
    hidden = forecast / "hidden.csv"
    (forecast / "own.csv").rename(hidden)
    try:
        code, text = call("explain", run, "--out", tmp_path)
    finally:
        hidden.rename(forecast / "own.csv")
    assert code == 0, text
    assert "No sample: dataset must be a file" in text
    assert not (tmp_path / "layer1-mixing.png").exists()


def test_a_missing_sample_raises_an_error(forecast):
    code, text = call("explain", run_of(forecast / "toa-gated"), "--sample", 10_000)
    assert code == 2
    assert "sample must be below" in text


def test_a_folder_without_a_finished_run_raises_an_error(tmp_path):
    code, text = call("explain", tmp_path)
    assert code == 2
    assert "must be the folder of a finished run" in text


def test_weights_of_another_run_raise_an_error(forecast, tmp_path):
    ours, other = run_of(forecast / "toa-gated"), run_of(forecast / "softmax")
    (tmp_path / "record.json").write_bytes((ours / "record.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"model.safetensors must hold the weights of .*, got other weights"):
        load_run(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((ours / "model.safetensors").read_bytes()[:100])
    with pytest.raises(ValueError, match="must be a checkpoint of toa"):
        load_run(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"must hold model.safetensors beside its record"):
        load_run(tmp_path)
    record = read_record(ours / "record.json") | {"task": "sort"}
    write_record(tmp_path / "record.json", record)
    with pytest.raises(ValueError, match="unknown task 'sort'; known: anomaly, "):
        load_run(tmp_path)


def test_runs_of_the_other_tasks_are_explained(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "train.npy", rng.normal(size=(120, 2)))
    np.save(tmp_path / "test.npy", rng.normal(size=(60, 2)))
    np.save(tmp_path / "labels.npy", np.arange(60) > 50)
    files = ["--test-file", tmp_path / "test.npy", "--label-file", tmp_path / "labels.npy"]
    commands = {
        "anomaly": [
            *("run", "--task", "anomaly", "--dataset", tmp_path / "train.npy", *files, "--backbone", "itransformer"),
            *settings("lookback=20"),
        ],
        "classify": [
            *("run", "--task", "classify", "--dataset", "BasicMotions", "--backbone", "itransformer"),
            *("--protocol", "tslib-uea", *settings()),
        ],
    }
    for name, words in commands.items():
        code, text = call(*words, "--out", tmp_path / name)
        assert code == 0, text
    for name in commands:
        run = load_run(run_of(tmp_path / name))
        inputs = run.task.sample(run.config, 1)
        assert run.model(*inputs).isfinite().all()
        assert not run.model.training


@pytest.mark.slow
def test_saved_estimators_are_explained(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 2)).round(3)
    frame = pd.DataFrame(rows, columns=["a", "b"])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    wide = frame.T.assign(kind=["x", "y"])
    # enough for five folds
    wide = pd.concat([wide] * 10)
    wide.to_csv(tmp_path / "cases.csv", index=False)
    sizes: dict[str, Any] = {"embed_dim": 8, "num_heads": 1, "num_layers": 1, "ff_dim": 8}
    common: dict[str, Any] = {"epochs": 1, "settings": sizes, "attention": "toa-relu"}
    made: dict[str, tuple[Any, str]] = {
        "forecaster": (toa.Forecaster(2, lookback=8, **common).fit(frame), "rows.csv"),
        "detector": (toa.AnomalyDetector(window=8, **common).fit(frame), "rows.csv"),
        "classifier": (toa.Classifier(label="kind", model="toa", backbone="patchtst", **common).fit(wide), "cases.csv"),
    }
    for name, (estimator, data) in made.items():
        estimator.save(tmp_path / f"{name}.toa")
        out = tmp_path / name
        code, text = call("explain", tmp_path / f"{name}.toa", "--data", tmp_path / data, "--sample", 1, "--out", out)
        assert code == 0, text
        assert f"Sample: window or case 1 of {data}." in text
        assert (out / "layer1-mixing.png").exists()
        assert (out / "importance.png").exists()
        for part in ("A token is ", "by lag: ", "by column: ", "by integrated gradients"):
            assert part in text
        assert not (out / "layer2-mixing.png").exists()
        page = (out / "index.html").read_text()
        assert type(estimator).__name__ in page
        assert ("the first of 5 networks" in page) == (name == "classifier")
    toa.AnomalyDetector(window=8, model="pca").fit(frame).save(tmp_path / "without.toa")
    code, text = call("explain", tmp_path / "without.toa")
    assert code == 2
    assert "got a model without, in which these decide: 1.00 pca; train it with --method toa" in text
    made["detector"][0].save_pretrained(tmp_path / "hub")
    code, text = call("explain", tmp_path / "hub")
    assert code == 0, text
    assert "No sample: give a table with --data." in text
    assert (tmp_path / "hub" / "explain" / "index.html").exists()
    code, text = call("explain", tmp_path / "detector.toa", "--data", tmp_path / "rows.csv", "--sample", 99)
    assert code == 2
    assert "sample must be below 53, the number of windows or cases, got 99" in text


@pytest.mark.slow
def test_a_token_of_a_classifier_has_the_steps_of_its_patch(tmp_path):
    rng = np.random.default_rng(0)
    cases = pd.DataFrame(rng.standard_normal((20, 130))).assign(kind=["x", "y"] * 10)
    cases.columns = cases.columns.map(str)
    sizes: dict[str, Any] = {"embed_dim": 8, "num_heads": 1, "num_layers": 1, "ff_dim": 8}
    common: dict[str, Any] = {"epochs": 1, "settings": sizes, "attention": "toa-relu", "device": "cpu"}
    classifier = toa.Classifier(label="kind", model="toa", backbone="transformer", **common).fit(cases)
    classifier.save(tmp_path / "kinds.toa")
    patch = classifier.architecture_["patch"]
    assert patch > 1
    code, text = call("explain", tmp_path / "kinds.toa", "--out", tmp_path / "page")
    assert code == 0, text
    assert f"A token is {patch} rows" in text


def test_a_path_that_is_not_a_model_prints_an_error(tmp_path, forecast):
    code, text = call("explain", tmp_path / "nosuch.toa")
    assert code == 2
    assert "error: No such file: " in text
    code, text = call("explain", run_of(forecast / "toa-gated") / "model.safetensors")
    assert code == 2
    assert "must be a model saved by toa" in text
    code, text = call("explain", run_of(forecast / "toa-gated"), "--data", forecast / "own.csv")
    assert code == 2
    assert "--data must be left out for a run" in text
