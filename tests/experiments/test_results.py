import os
import re
import statistics

import pytest
import torch

from tests.support import ROOT
from toa.data import DATASETS, load_forecast
from toa.experiments import read_record
from toa.experiments.published import published_numbers
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


FORECASTS = ROOT / "results" / "forecasting"
# what records of the first runs set by hand and the protocol has had since
SINCE = ("training.patience=10", "training.epochs=20", "attention.score_norm=rms", "attention.gate_norm=rms")


def errors_at_96() -> dict[str, dict[tuple[str, str], tuple[float, float]]]:
    """By attention, then by dataset and backbone: validation and test MSE, means over seeds."""
    found: dict[str, dict[tuple[str, str], list[dict[str, float]]]] = {}
    for record in read_search(FORECASTS / "horizon-96.jsonl"):
        config = record["config"]
        cell = found.setdefault(config["attention"]["name"], {})
        cell.setdefault((config["dataset"], config["backbone"]), []).append(record["metrics"])
    return {
        attention: {
            place: (statistics.mean(m["val_mse"] for m in metrics), statistics.mean(m["mse"] for m in metrics))
            for place, metrics in cells.items()
        }
        for attention, cells in found.items()
    }


@pytest.mark.parametrize("backbone", ["patchtst", "itransformer", "duet"])
def test_the_page_of_forecasts_shows_the_stored_runs(backbone):
    page = (FORECASTS / "README.md").read_text()
    records = read_search(FORECASTS / "horizon-96.jsonl")
    sets = ("ETTh1", "ETTh2", "Exchange", "ETTm1", "Weather")
    lines = search_table(records, backbone=backbone, horizon=96, datasets=sets, common=SINCE)
    assert len(lines) == 6
    assert "\n".join(lines) in page
    seeds: dict[str, set[int]] = {name: set() for name in sets}
    for record in records:
        seeds[record["config"]["dataset"]].add(record["seed"])
        assert record["device"] == "NVIDIA H200"
    assert [len(found) for found in seeds.values()] == [3, 3, 3, 1, 1]


@pytest.mark.parametrize("name", ["other-protocols", "subsets"])
def test_the_page_of_forecasts_shows_other_runs_too(name):
    page = (FORECASTS / "README.md").read_text()
    errors: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for record in read_search(FORECASTS / f"{name}.jsonl"):
        config, metrics = record["config"], record["metrics"]
        place = (record["name"], config["protocol"], config["dataset"])
        errors.setdefault(place, []).append((metrics["val_mse"], metrics["mse"]))
        assert (record["subset_of"] is not None) == (name == "subsets")
    for place, found in errors.items():
        means = (f"{statistics.mean(values):.4f}" for values in zip(*found, strict=True))
        assert f"| {' | '.join((*place, *means))} |" in page


def published_at_96() -> dict[tuple[str, str, str], float]:
    """Test MSE by attention, dataset and backbone."""
    return {
        (row.variant, row.dataset, row.backbone): row.value
        for row in published_numbers()
        if (row.table, row.horizon, row.metric) == ("forecast-full", "96", "mse")
    }


@pytest.mark.parametrize("backbone", ["PatchTST", "iTransformer", "DUET"])
def test_the_readme_shows_forecasts_beside_published_ones(backbone):
    readme = (ROOT / "README.md").read_text()
    sets = ("ETTh1", "ETTh2", "Exchange", "ETTm1", "Weather")
    assert f"| | {' | '.join(sets)} |" in readme
    ours, published = errors_at_96(), published_at_96()
    softmax = ours.pop("softmax")
    rows: dict[str, list[str]] = {"softmax": [], "best TOA": []}
    for dataset in sets:
        place = (dataset, backbone.lower())
        rows["softmax"].append(f"{softmax[place][1]:.3f} ({published['softmax', *place]:.3f})")
        _, chosen = min(cells[place] for cells in ours.values())
        rows["best TOA"].append(f"{chosen:.3f} ({min(published[name, *place] for name in ours):.3f})")
    for name, cells in rows.items():
        assert f"| {backbone}, {name} | {' | '.join(cells)} |" in readme


def test_forecasts_at_96_reach_the_published_errors():
    published = published_at_96()
    ours = errors_at_96()
    softmax = ours.pop("softmax")
    over = {place: error - published["softmax", *place] for place, (_, error) in softmax.items()}
    assert len(over) == 15
    assert all(excess <= (0.010 if backbone == "duet" else 0.005) for (_, backbone), excess in over.items())
    late = []
    for place in softmax:
        _, error = min(cells[place] for cells in ours.values())
        if error > min(published[variant, *place] for variant in ours) + 0.005:
            late.append(place)
    assert [place for place in late if place[1] != "duet"] == [("ETTm1", "patchtst")]


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
