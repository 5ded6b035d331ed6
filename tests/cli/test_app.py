import json
import re
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import toa
from tests.support import ROOT
from toa.cli import app
from toa.experiments import protocol_names
from toa.models import backbone_names
from toa.nn import ATTENTIONS


def call(*words: str, columns: int = 200):
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(columns), "TERM": "dumb"})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def test_help_is_quick_and_imports_no_torch():
    code = "import sys; from toa.cli import app; assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_version_is_printed():
    assert call("--version") == (0, f"toa {toa.__version__} ")


def test_the_package_is_the_command():
    done = subprocess.run([sys.executable, "-m", "toa", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"toa {toa.__version__}\n"


@pytest.mark.parametrize("command", ["run", "compare", "data", "forecast"])
def test_every_command_explains_itself(command):
    code, text = call(command, "--help")
    assert code == 0
    assert "Usage" in text
    assert command in text


def test_dry_run_prints_the_settings():
    result = CliRunner().invoke(app, ["run", "--dataset", "ETTh1", "--horizon", "96", "--dry-run", "--set", "seed=7"])
    config = json.loads(result.output)
    assert (config["protocol"], config["backbone"], config["seed"]) == ("toa-paper", "patchtst", 7)
    assert config["attention"]["gate_norm"] == "rms"


def test_run_names_every_model_attention_and_protocol():
    _, text = call("run", "--help", columns=400)
    listed = set(re.split(r"[^a-z0-9-]+", text))
    protocols = [name for task in ("forecast", "anomaly") for name in protocol_names(task)]
    assert {*backbone_names("forecast"), *ATTENTIONS, *protocols} <= listed


def test_run_needs_no_attention_for_a_model_without_one():
    words = ["run", "--dataset", "ETTh1", "--horizon", "96", "--protocol", "tslib-96", "--dry-run", "--backbone"]
    chosen = {
        name: json.loads(CliRunner().invoke(app, [*words, name]).output)["attention"]
        for name in ("dlinear", "transformer")
    }
    assert chosen["dlinear"] is None
    assert chosen["transformer"]["name"] == "toa-gated"
    code, text = call(*words, "dlinear", "--attention", "softmax")
    assert code == 2
    assert "attention must be left out for model 'dlinear'" in text


def test_run_trains_on_a_users_file(tmp_path):
    rows = "\n".join(f"{i % 7},{i % 5}" for i in range(300))
    (tmp_path / "own.csv").write_text(f"a,b\n{rows}\n")
    changes = ["lookback=32", "training.epochs=1", "model.embed_dim=4", "model.num_heads=2", 'date_column=""']
    words = ["run", "--dataset", str(tmp_path / "own.csv"), "--horizon", "4", "--out", str(tmp_path), "--device", "cpu"]
    code, text = call(*words, *(word for change in changes for word in ("--set", change)))
    assert code == 0
    assert "test MSE" in text
    assert len(list(tmp_path.glob("own-4-patchtst-toa-gated-2024-*/record.json"))) == 1


@pytest.mark.usefixtures("pictures")
def test_run_detects_anomalies_in_users_files(tmp_path):
    series = np.sin(np.arange(200)[:, None] / np.array([2.0, 3.0]))
    labels = np.isin(np.arange(200), [60, 61, 62])
    for name, array in (("train", series), ("test", series + 2.0 * labels[:, None]), ("labels", labels)):
        np.save(tmp_path / f"{name}.npy", array)
    words = ["run", "--task", "anomaly", "--backbone", "transformer", "--device", "cpu", "--out", str(tmp_path)]
    for option, name in (("--dataset", "train"), ("--test-file", "test"), ("--label-file", "labels")):
        words += [option, str(tmp_path / f"{name}.npy")]
    changes = ["lookback=16", "training.epochs=1", "model.embed_dim=4", "model.num_heads=2", "model.num_layers=1"]
    code, text = call(*words, *(word for change in changes for word in ("--set", change)))
    assert code == 0
    for part in ("tslib-pa", "strict", "PA-F1", "random PA-F1", "VUS-PR", "validation MSE", "detection.png"):
        assert part in text
    (folder,) = tmp_path.glob("train-transformer-toa-gated-2024-*")
    assert (folder / "record.json").exists()
    assert (folder / "detection.png").stat().st_size > 10_000


def test_dry_run_prints_the_settings_of_anomaly_detection():
    result = CliRunner().invoke(app, ["run", "--task", "anomaly", "--dataset", "MSL", "--dry-run"])
    config = json.loads(result.output)
    assert (config["protocol"], config["backbone"], config["window_stride"]) == ("toa-paper", "patchtst", 1)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("run", "--dataset", "ETTh9", "--horizon", "96"), ("unknown dataset 'ETTh9'", "ETTh1")),
        (("run", "--dataset", "x.csv", "--horizon", "9"), ("dataset must be a file", "x.csv")),
        (("run", "--dataset", "ETTh1", "--horizon", "9"), ("horizon of ETTh1", "96, 192, 336, 720")),
        (("run", "--dataset", "ETTh1"), ("--horizon must be given for task 'forecast'", "--horizon 96")),
        (("run", "--dataset", "ETTh1", "--horizon", "96", "--task", "sort"), ("unknown task 'sort'", "forecast")),
        (("run", "--task", "anomaly", "--dataset", "MSL", "--horizon", "9"), ("--horizon must be left out", "got 9")),
        (("run", "--task", "anomaly", "--dataset", "ETTh1"), ("unknown dataset 'ETTh1'", "MSL")),
        (("run", "--task", "anomaly", "--dataset", "x.npy"), ("--test-file must be given", "x.npy")),
        (
            ("run", "--dataset", "ETTh1", "--horizon", "96", "--test-file", "x.npy"),
            ("--test-file must be left out for task 'forecast'", "got x.npy"),
        ),
    ],
)
def test_wrong_options_print_one_clear_line(words, parts, tmp_path):
    code, text = call(*words, "--out", str(tmp_path))
    assert code == 2
    for part in parts:
        assert part in text
    assert "Traceback" not in text
