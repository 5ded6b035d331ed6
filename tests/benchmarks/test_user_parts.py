"""`toa bench tables`: one command for forecasts, alarms and classes."""

import json

import pytest

from tests.benchmarks.test_cli import call
from toa_bench import covariate_tables, detection_tables, tsb_ad, uea, user_tables

MODULES = {"forecasting": user_tables, "detection": detection_tables, "classification": uea}


@pytest.fixture
def measured(monkeypatch):
    """What was measured, without measuring it."""
    runs = []
    for part, module in MODULES.items():

        def evaluate(dataset, method, *, part=part, **options):
            runs.append((part, dataset, method, options.get("effort")))
            return {"metrics": {}, "cpu_seconds": 0.0}

        monkeypatch.setattr(module, "evaluate", evaluate)
    return runs


def outs(folder):
    return (
        "--out",
        folder / "a.jsonl",
        "--detection-out",
        folder / "b.jsonl",
        "--classification-out",
        folder / "c.jsonl",
    )


def test_one_command_measures_all_parts_once(measured, tmp_path) -> None:
    code, text = call("tables", *outs(tmp_path))
    assert code == 0, text
    for part, module in MODULES.items():
        assert f"{part}:" in text
        assert {dataset for where, dataset, _, _ in measured if where == part} == set(module.SETS)
    assert ("detection", "MSL", "pca mean", None) in measured
    assert ("classification", "ERing", "multirocket-hydra", None) in measured
    assert ("classification", "ERing", "toa", "quick") in measured
    # the network alone is no row of this table
    assert not any(method == "toa-network" for _, _, method, _ in measured)
    count = len(measured)
    assert call("tables", *outs(tmp_path))[0] == 0
    assert len(measured) == count
    assert {json.loads(line)["benchmark"] for line in (tmp_path / "b.jsonl").read_text().splitlines()} == {"detection"}


def test_a_set_or_a_method_belongs_to_its_part(measured, tmp_path) -> None:
    assert call("tables", "--dataset", "SKAB", "--method", "z-score", *outs(tmp_path))[0] == 0
    assert measured == [("detection", "SKAB", "z-score", None)]
    for words, expected in (
        (("--dataset", "NAB"), "--dataset must be one of tourism monthly"),
        (("--method", "lof"), "--method must be one of toa"),
        (("--part", "speed"), "unknown part 'speed'; known: forecasting, detection, classification"),
    ):
        code, text = call("tables", *words, *outs(tmp_path))
        assert code == 2
        assert expected in text


@pytest.mark.parametrize("module", [covariate_tables, detection_tables, tsb_ad, uea, user_tables])
def test_a_benchmark_of_sets_states_what_its_command_needs(module) -> None:
    assert set(module.SETS) <= set(module.KNOWN)
    assert set(module.LIMITED) <= set(module.METHODS)
    assert not set(module.METHODS) & set(module.RIVALS)
    assert module.TITLES
