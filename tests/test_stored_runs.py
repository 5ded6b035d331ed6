"""Runs, models and checkpoints made before the code was reorganised give the same numbers now.

Stored under `tests/stored` with commit e1a5411 on one CPU thread. Settings, names and counts are equal; numbers agree
within a tolerance, because machines round sums differently. That a machine repeats its own numbers exactly is tested
where runs are tested. To store again after a change that is meant to alter numbers (say so in the commit):

    TOA_DATA=... OMP_NUM_THREADS=1 python -m tests.test_stored_runs
"""

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

import toa
from tests.support import ROOT
from toa.cli import app

STORED = ROOT / "tests" / "stored"
# a table of two columns and a series with a labelled anomaly; their numbers were computed once, because their last
# bits depend on the machine, and checksums on them
INPUTS = STORED / "inputs"
# record fields that must not change; the others name the machine, the time or the commit
KEPT = ("task", "name", "seed", "config", "config_hash", "parameters", "best_epoch", "data_checksum", "confusion")
# numbers compared with a tolerance
NUMBERS = ("metrics", "history")
# of a few steps of training. PyTorch's instruction sets and those of its libraries differ by 3e-7 at most.
SMALL_TOLERANCE: dict[str, Any] = {"rel": 1e-5, "abs": 1e-6}
# of thousands of steps, which may amplify rounding errors; they differ by 3e-7 at most too
REAL_TOLERANCE: dict[str, Any] = {"rel": 1e-4, "abs": 1e-5}
# decided by comparing such numbers
DECIDED = ("best_epoch", "confusion")
# a loss that no training gives
MARK = 1234.5

# on the files of `INPUTS`
DLINEAR = (
    "toa run --dataset own.csv --horizon 4 --backbone dlinear --protocol tslib-96 "
    "--set lookback=48 --set training.epochs=2"
)
SMALL = f"""\
{DLINEAR}
toa run --dataset own.csv --horizon 8 --backbone patchtst --attention toa-gated --set lookback=48 \
--set training.epochs=2
toa run --dataset own.csv --horizon 8 --backbone duet --attention toa-relu --set lookback=48 --set training.epochs=1
toa run --task anomaly --dataset train.npy --test-file test.npy --label-file labels.npy --backbone itransformer \
--attention toa-relu --set training.epochs=1
toa demix --attention toa-gated --seed 7 --steps 3
"""
# on the files of $TOA_DATA
REAL = """\
toa run --dataset Exchange --horizon 336 --backbone itransformer --attention softmax --set training.epochs=1
toa run --dataset Exchange --horizon 336 --backbone itransformer --attention toa-gated --set training.epochs=1
toa run --dataset Exchange --horizon 96 --backbone itransformer --attention toa-softmax --set training.epochs=1
toa run --dataset ETTh1 --horizon 96 --backbone dlinear --protocol tslib-96 --set training.epochs=2
toa run --dataset ETTh2 --horizon 96 --backbone itransformer --attention toa-relu --set training.epochs=1
toa run --task classify --dataset ERing --backbone patchtst --attention toa-gated --protocol tslib-uea \
--set training.epochs=5
toa run --task classify --dataset JapaneseVowels --backbone patchtst --attention toa-relu --protocol strict \
--set training.epochs=2
toa run --task classify --dataset BasicMotions --backbone transformer --protocol strict --set training.epochs=3
toa run --task classify --dataset NATOPS --backbone patchtst --attention hyperglu --protocol strict \
--set training.epochs=2
toa run --task classify --dataset Libras --backbone patchtst --attention toa-softmax --protocol strict \
--set training.epochs=2
"""


def copy_inputs(folder: Path) -> None:
    """The small table, and the series with its labels."""
    shutil.copytree(INPUTS, folder, dirs_exist_ok=True)


def run_line(line: str, folder: Path) -> dict[str, Any]:
    """Run a command line on the CPU; its record."""
    out = folder / "out"
    result = CliRunner().invoke(app, [*shlex.split(line)[1:], "--device", "cpu", "--out", str(out)])
    assert result.exit_code == 0, result.output
    (path,) = out.rglob("record.json")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    shutil.rmtree(out)
    return record


def machine() -> dict[str, str]:
    """What decides how float32 sums are rounded; stored beside the numbers."""
    return {"cpu": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}


def kept(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in (*KEPT, *NUMBERS) if name in record}


def stored_runs() -> dict[str, dict[str, Any]]:
    lines = (STORED / "cpu_runs.jsonl").read_text(encoding="utf-8").splitlines()
    return {run["line"]: run for run in map(json.loads, lines)}


def check_line(line: str, folder: Path, tolerance: dict[str, Any], computed: Sequence[str] = ()) -> None:
    """Compare a run with the stored one; fields that are computed from rounded numbers are left out."""
    stored = stored_runs()[line]["record"]
    found = json.loads(json.dumps(kept(run_line(line, folder))))
    assert found.keys() == stored.keys()
    for name, value in stored.items():
        if name in NUMBERS:
            assert flat(found[name]) == pytest.approx(flat(value), **tolerance), name
        elif name not in computed:
            assert found[name] == value, name


def flat(value: Any, key: str = "") -> dict[str, float | None]:
    """Numbers of nested lists and tables by their place."""
    if isinstance(value, dict):
        return {k: v for name, part in value.items() for k, v in flat(part, f"{key}/{name}").items()}
    if isinstance(value, list):
        return {k: v for place, part in enumerate(value) for k, v in flat(part, f"{key}/{place}").items()}
    return {key: value}


@pytest.mark.parametrize("line", SMALL.splitlines())
def test_a_small_run_repeats_its_numbers(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_inputs(tmp_path)
    # the signals of demixing are computed in float32, whose sine depends on PyTorch's instructions
    computed = ("data_checksum",) if line.startswith("toa demix") else ()
    check_line(line, tmp_path, SMALL_TOLERANCE, computed)


@pytest.mark.data
@pytest.mark.skipif("TOA_DATA" not in os.environ, reason="needs real files under $TOA_DATA")
@pytest.mark.parametrize("line", REAL.splitlines())
def test_a_run_on_real_data_repeats_its_numbers(line, tmp_path):
    check_line(line, tmp_path, REAL_TOLERANCE, DECIDED)


# saved models: the file, and what it predicts for the table of `INPUTS`


def table_of(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "own.csv", parse_dates=["date"])


def predictions(folder: Path) -> dict[str, list[float]]:
    """What the stored models predict, through the public estimators."""
    table = table_of(folder)
    forecast = toa.Forecaster.load(STORED / "forecaster.toa").predict(table)
    scores = toa.AnomalyDetector.load(STORED / "detector.toa").predict(table)
    cases = np.stack([table[["a", "b"]].to_numpy()[k : k + 48].T for k in range(0, 240, 24)])
    chances = toa.Classifier.load(STORED / "classifier.toa").predict_proba(cases)
    numbers = {f"forecast {name}": forecast[name].tolist() for name in forecast.columns if name != "date"}
    return {**numbers, "score": scores["score"].tolist(), "chances": chances.ravel().tolist()}


def test_stored_models_load_and_predict_the_same(tmp_path):
    copy_inputs(tmp_path)
    stored = json.loads((STORED / "predictions.json").read_text(encoding="utf-8"))
    found = predictions(tmp_path)
    assert found.keys() == stored.keys()
    for name, values in stored.items():
        # rounding of float32 differs between machines, but no training amplifies it
        assert found[name] == pytest.approx(values, rel=1e-4, abs=1e-5), name


def test_a_stored_checkpoint_is_resumed(tmp_path, monkeypatch):
    """Its history begins with a marked loss, which only reading the file can bring into the record."""
    monkeypatch.chdir(tmp_path)
    copy_inputs(tmp_path)
    stored = stored_runs()[DLINEAR]["record"]
    shutil.copytree(STORED / "stopped", tmp_path / "out")
    record = run_line(DLINEAR, tmp_path)
    assert record["history"][0]["loss"] == MARK
    assert record["config_hash"] == stored["config_hash"]
    assert flat(record["metrics"]) == pytest.approx(flat(stored["metrics"]), rel=1e-4, abs=1e-5)


def store_checkpoint(folder: Path) -> None:
    """Keep the checkpoint of a run, with a mark in its history."""
    result = CliRunner().invoke(app, [*shlex.split(DLINEAR)[1:], "--device", "cpu", "--out", str(folder / "out")])
    assert result.exit_code == 0, result.output
    (path,) = (folder / "out").rglob("checkpoint.safetensors")
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["toa"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    facts["state"]["history"][0]["loss"] = MARK
    shutil.rmtree(STORED / "stopped", ignore_errors=True)
    target = STORED / "stopped" / path.parent.name / path.name
    target.parent.mkdir(parents=True)
    save_file(tensors, target, {"toa": json.dumps(facts, sort_keys=True)})


def store_models(folder: Path) -> None:
    """Train and save one small model of each estimator, and keep what they predict."""
    table = table_of(folder)
    sizes = {"embed_dim": 8, "num_heads": 2, "ff_dim": 8, "num_layers": 1}
    small: dict[str, Any] = {"epochs": 1, "device": "cpu", "seed": 0, "settings": sizes}
    forecaster = toa.Forecaster(
        horizon=6, lookback=24, interval=0.8, quantiles=(0.1,), backbone="itransformer", model="toa", **small
    )
    forecaster.fit(table).save(STORED / "forecaster.toa")
    toa.AnomalyDetector(window=24, **small).fit(table).save(STORED / "detector.toa")
    cases = np.stack([table[["a", "b"]].to_numpy()[k : k + 48].T for k in range(0, 240, 24)])
    toa.Classifier(model="toa", **small).fit(cases, np.array(["x", "y"] * 5)).save(STORED / "classifier.toa")
    (STORED / "predictions.json").write_text(json.dumps(predictions(folder)) + "\n", encoding="utf-8")


def store() -> None:
    """Write all stored files again."""
    folder = Path("/tmp/stored-runs")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    copy_inputs(folder)
    os.chdir(folder)
    torch.set_num_threads(1)
    runs = [
        {"line": line, "machine": machine(), "record": kept(run_line(line, folder))}
        for line in (*SMALL.splitlines(), *REAL.splitlines())
    ]
    text = "".join(f"{json.dumps(run)}\n" for run in runs)
    (STORED / "cpu_runs.jsonl").write_text(text, encoding="utf-8")
    store_checkpoint(folder)
    store_models(folder)


if __name__ == "__main__":
    store()
