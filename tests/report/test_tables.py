import json
from typing import Any

import pytest

from tests.support import message
from toa.experiments.records import read_records
from toa.report.tables import anomaly_table, undefined_notes

RECORD = {
    "metrics": {"tslib-pa/f1": 0.25, "tslib-pa/pa_f1": 0.75, "tslib-pa/random_pa_f1": 0.5, "strict/f1": 0.125},
    "detections": {
        "tslib-pa": {"headline": "pa_f1", "undefined": {"range_precision": "no step is flagged"}},
        "strict": {"headline": "f1", "undefined": {"precision": "nothing", "vus_pr": "flat", "recall": "nothing"}},
    },
}


def record(dataset: str, attention: str, mse: float, *changes: str, seed: int = 1, horizon: int = 96) -> dict[str, Any]:
    sets = " ".join(f"--set {change}" for change in changes)
    config = {"backbone": "patchtst", "horizon": horizon, "dataset": dataset, "attention": {"name": attention}}
    return {
        "config": config,
        "config_hash": "x",
        "seed": seed,
        "command": f"toa run --dataset {dataset} {sets}",
        "metrics": {"mse": mse, "val_mse": 2 * mse},
    }


def test_a_line_that_is_not_a_record_is_named(tmp_path):
    path = tmp_path / "search.jsonl"
    path.write_text(json.dumps(record("A", "softmax", 0.1)) + "\n" + json.dumps({"a": 1}) + "\n")
    with pytest.raises(ValueError, match=message("line 2 of", "search.jsonl", "must be a record")):
        read_records([path])


def test_the_anomaly_table_marks_the_main_metric_and_undefined_values():
    header, pa, strict = anomaly_table(RECORD)
    assert header[:6] == ("rules", "precision", "recall", "F1", "PA-F1", "random PA-F1")
    assert pa[:6] == ("tslib-pa", "-", "-", "0.250", "0.750*", "0.500")
    assert strict[:5] == ("strict", "-", "-", "0.125*", "-")


def test_notes_give_the_reasons_of_undefined_values():
    assert undefined_notes(RECORD) == [
        "strict: precision, recall undefined: nothing.",
        "strict: VUS-PR undefined: flat.",
    ]
