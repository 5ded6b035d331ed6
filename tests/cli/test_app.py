import json
import re
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import toa
from tests.support import ROOT, shrink_demixing
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


@pytest.mark.parametrize("command", ["demo", "demix", "run", "compare", "bench", "data", "theory"])
def test_every_command_explains_itself(command):
    code, text = call(command, "--help")
    assert code == 0
    assert "Usage" in text
    assert command in text


def test_theory_prints_every_case():
    code, text = call("theory")
    assert code == 0
    for case in ("A", "B", "C", "D", "E", "patch", "inverted"):
        assert f" {case} " in text
    assert "lemmas that fail: none" in text


def test_theory_fits_a_terminal_of_eighty_columns():
    _, text = call("theory", columns=80)
    assert len(re.findall(r"\de-0\d", text)) == 7
    assert "…" not in text


def test_theory_prints_json():
    result = CliRunner().invoke(app, ["theory", "--json"])
    rows = json.loads(result.output)
    assert [row["name"] for row in rows] == ["A", "B", "C", "D", "E", "patch", "inverted"]
    assert all(row["simplex_distance"] > 0 and row["gated_error"] < 1e-6 for row in rows)


@pytest.mark.usefixtures("pictures")
def test_demo_begins_with_a_forecast_beside_baselines_and_ends_with_a_self_contained_page(tmp_path, monkeypatch):
    monkeypatch.delenv("TOA_DATA", raising=False)
    monkeypatch.setattr("toa.experiments.demo.SEEDS", (1,))
    shrink_demixing(monkeypatch)
    code, text = call("demo", "--steps", "2", "--device", "cpu", "--out", str(tmp_path))
    assert code == 0, text
    for part in ("TOA-Gated", "TOA-ReLU", "Softmax attention", "linear oracle", "demixing.png", "index.html"):
        assert part in text
    for part in ("seasonal naive", "drift", "theta", "damped trend", "MASE", "The model", "forecast.png"):
        assert part in text
    page = (tmp_path / "index.html").read_text()
    assert page.index("forecast of rented bicycles beside baselines") == page.index('alt="') + len('alt="')
    parts = ("Forecast of a CSV", "Harmonic demixing", "Classification of BasicMotions", "The anomaly of a UCR")
    for number, part in enumerate(parts, 1):
        assert f"{number}. {part}" in text
        assert f"<h2>{number}. {part}" in page
    for part in ("tslib-pa", "strict", "random PA-F1", "A Transformer with one token per step"):
        assert part in page
    # the forecast, the operators, a confusion matrix an attention, a detection; nothing from outside
    assert page.count("<img") == page.count('src="data:image/png;base64,iVBOR') == 6
    assert "://" not in page
    assert "<link" not in page
    assert "<script" not in page
    found = [path.parent.parent.name for path in tmp_path.rglob("record.json")]
    assert sorted(found) == ["anomaly"] * 3 + ["classification"] * 3 + ["demixing"] * 3


def test_demix_runs_the_given_attention_and_seed(tmp_path, monkeypatch):
    shrink_demixing(monkeypatch)
    code, text = call(
        "demix", "--attention", "softmax", "--seed", "3", "--steps", "1", "--device", "cpu", "--out", str(tmp_path)
    )
    assert code == 0
    assert "TOA" not in text
    assert len(list(tmp_path.glob("softmax-3-*/record.json"))) == 1


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
        (("demix", "--preset", "papr"), ("unknown preset 'papr'", "demo, paper, toa")),
        (("demix", "--attention", "flash"), ("unknown attention 'flash'", "toa-gated")),
        (("demix", "--steps", "0"), ("steps must be at least 1, got 0",)),
        (("demix", "--device", "tpuu"), ("device must be auto", "'tpuu'")),
        (("demo", "--stepz", "1"), ("No such option", "--stepz")),
    ],
)
def test_wrong_options_print_one_clear_line(words, parts, tmp_path):
    code, text = call(*words, *(("--out", str(tmp_path)) if words[0] != "theory" else ()))
    assert code == 2
    for part in parts:
        assert part in text
    assert "Traceback" not in text
