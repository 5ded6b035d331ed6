import os
import re
import statistics

import pytest
import torch

from tests.support import ROOT
from toa.data import DATASETS, load_forecast
from toa.experiments import read_record
from toa.nn import ReversibleInstanceNorm
from toa.report.search import read_search, search_table

FOLDER = ROOT / "results" / "demixing"


def medians() -> dict[str, float]:
    errors: dict[str, list[float]] = {}
    for path in FOLDER.glob("*.json"):
        record = read_record(path)
        errors.setdefault(record["name"], []).append(record["metrics"]["mse"])
    assert all(len(values) == 3 for values in errors.values())
    return {name: statistics.median(values) for name, values in errors.items()}


def test_stored_runs_reach_the_published_errors():
    found = medians()
    assert found["toa-gated"] <= 0.0024
    assert found["toa-relu"] <= 0.0035


def test_the_readme_shows_the_stored_medians():
    readme = (ROOT / "README.md").read_text()
    for system, name in (("TOA-Gated", "toa-gated"), ("TOA-ReLU", "toa-relu"), ("softmax attention", "softmax")):
        shown = re.search(rf"^\| {system} \| (0\.\d+) \|", readme, flags=re.MULTILINE)
        assert shown is not None, system
        assert float(shown.group(1)) == round(medians()[name], 5)


def test_stored_runs_share_their_test_signals_and_name_their_command():
    records = [read_record(path) for path in FOLDER.glob("*.json")]
    assert len({record["data_checksum"] for record in records}) == 1
    assert all(record["command"].startswith("toa demix --preset paper") for record in records)
    assert all("H200" in record["device"] for record in records)


def shown_cells(document: str) -> set[tuple[str, str, str, str]]:
    """Attention, setting, dataset and cell of every table of settings in a document."""
    cells = set()
    columns: list[str] = []
    for line in document.splitlines():
        words = [word.strip() for word in line.strip("|").split("|")]
        if words[:2] == ["attention", "setting"]:
            columns = words[2:]
        elif columns and line.startswith("| ") and words[0] != "---":
            attention, setting, *row = words
            cells |= {(attention, setting, *pair) for pair in zip(columns, row, strict=True) if pair[1] != "-"}
        elif not line.startswith("|"):
            columns = []
    return cells


def test_the_recipe_shows_every_stored_run_and_no_other():
    document = (ROOT / "docs" / "recipe.md").read_text()
    records = read_search(ROOT / "results" / "forecasting" / "search.jsonl")
    found = set()
    for record in records:
        config = record["config"]
        lines = search_table(
            [record],
            backbone=config["backbone"],
            horizon=config["horizon"],
            datasets=(config["dataset"],),
            common=("training.patience=10", "training.epochs=20"),
        )
        found |= shown_cells("\n".join(lines))
    assert len(found) > 50
    assert shown_cells(document) == found


def test_runs_of_the_search_name_their_command_and_the_data():
    for record in read_search(ROOT / "results" / "forecasting" / "search.jsonl"):
        assert record["command"].startswith("toa run --task forecast")
        spec = DATASETS[record["config"]["dataset"]]
        assert record["data_checksum"] == spec.sha256


@pytest.mark.data
@pytest.mark.skipif("TOA_DATA" not in os.environ, reason="needs real files under $TOA_DATA")
@pytest.mark.parametrize("dataset", ["ETTh1", "ETTh2", "ETTm1", "Exchange", "Weather"])
def test_the_recipe_shows_how_far_normalised_windows_reach(dataset):
    data = load_forecast(dataset, lookback=512, horizon=96)
    found = []
    for windows in (data.train, data.val, data.test):
        series = windows.batch(torch.arange(0, len(windows), max(1, len(windows) // 1500))).x
        normalised, _ = ReversibleInstanceNorm().normalise(series)
        found.append(f"{normalised.abs().max().item():.1f}")
    document = (ROOT / "docs" / "recipe.md").read_text().replace("**", "")
    assert f"| {dataset} | {' | '.join(found)} |" in document
