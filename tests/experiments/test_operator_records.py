"""What the operators contribute is in every record of a trained model, and shown by the commands."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.experiments.sweep_cases import write_series
from toa.cli import app
from toa.experiments import resolve, run_folder, run_task
from toa.training.diagnostics import describe_operators

SMALL = ["model.num_layers=1", "model.embed_dim=8", "model.ff_dim=8", "model.num_heads=2", "training.epochs=1"]


def config_of(task: str, folder: Path, attention: str, *changes: str) -> Any:
    small = [*SMALL, *changes]
    if task == "forecast":
        names: dict[str, Any] = {"dataset": str(write_series(folder)), "horizon": 4}
        small += ["lookback=16", "marks=false", 'date_column=""']
    elif task == "anomaly":
        series = np.random.default_rng(0).normal(size=(300, 2))
        for name, array in (("train", series), ("test", series[:120]), ("labels", np.arange(120) % 40 == 0)):
            np.save(folder / f"{name}.npy", array)
        names = {"dataset": str(folder / "train.npy"), "test_file": str(folder / "test.npy")}
        names["label_file"] = str(folder / "labels.npy")
        small += ["lookback=20", "window_stride=20"]
    else:
        names = {"dataset": "BasicMotions"}
    return resolve(task, "toa-paper", backbone="itransformer", attention=attention, seed=1, changes=small, **names)


@pytest.mark.parametrize("task", ["forecast", "anomaly", "classify"])
def test_the_record_of_every_task_states_what_the_operators_contribute(task, tmp_path, monkeypatch):
    monkeypatch.delenv("TOA_DATA", raising=False)
    record = run_task(config_of(task, tmp_path, "toa-relu"), tmp_path / "runs", device="cpu")
    operators = record["operators"]
    (layer,) = operators["branch_sizes"]["start"]
    assert set(operators["norms"]) == {f"{layer}.s1", f"{layer}.s2"}
    assert all(0 < norm < 1 for norm in operators["norms"].values())
    assert operators["branch_sizes"]["start"][layer] > 0
    assert operators["branch_sizes"]["end"][layer] != operators["branch_sizes"]["start"][layer]
    assert set(operators["contributions"]) == {"operators", "attention"}


def test_a_model_without_operators_has_only_its_attention(tmp_path):
    record = run_task(config_of("forecast", tmp_path, "softmax"), tmp_path / "runs", device="cpu")
    assert record["operators"]["norms"] == {}
    assert record["operators"]["contributions"]["operators"] is None
    assert describe_operators(record) == []


def test_measuring_the_branches_does_not_change_the_run(tmp_path, monkeypatch):
    config = config_of("forecast", tmp_path, "toa-relu", "model.dropout=0.5")
    measured = run_task(config, tmp_path / "a", device="cpu")
    monkeypatch.setattr("toa.training.base.branch_sizes", lambda model, run: {})
    assert run_task(config, tmp_path / "b", device="cpu")["metrics"] == measured["metrics"]


def test_a_run_of_a_search_measures_no_test_error(tmp_path):
    record = run_task(config_of("forecast", tmp_path, "toa-softmax", "test=false"), tmp_path / "runs", device="cpu")
    assert set(record["metrics"]) == {"val_mse", "val_mae"}


def test_commands_and_the_page_show_the_contribution(tmp_path):
    config = config_of("forecast", tmp_path, "toa-relu")
    runs = tmp_path / "runs"
    record = run_task(config, runs, device="cpu", command=["toa", "run"])
    (sentence,) = describe_operators(record)
    words = ["run", "--dataset", config.dataset, "--horizon", "4", "--backbone", "itransformer", "--attention"]
    words += ["toa-relu", "--seed", "1", "--device", "cpu", "--out", str(runs), "--set", 'date_column=""']
    words += [word for change in (*SMALL, "lookback=16", "marks=false") for word in ("--set", change)]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert sentence.split("(")[0] in " ".join(shown.output.split())
    explained = CliRunner().invoke(app, ["explain", str(run_folder(config, runs)), "--out", str(tmp_path / "page")])
    assert explained.exit_code == 0, explained.output
    assert sentence.split("(")[0].strip() in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.parametrize(("rise", "words"), [(0.031, "3.1 % higher"), (0.0002, "warning: the operators contribute")])
def test_a_contribution_of_nothing_is_a_warning(rise, words):
    record = {"operators": {"contributions": {"operators": rise}}}
    (line,) = describe_operators(record)
    assert words in line
    assert "the validation error" in line
    # where TEST is the validation part, the sentence states it
    (line,) = describe_operators({**record, "evaluation": {"validation": "TEST"}})
    assert "the test error" in line
    assert describe_operators({}) == []
