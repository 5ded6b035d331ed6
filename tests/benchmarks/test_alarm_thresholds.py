"""The benchmark of thresholds, on made data."""

import gzip

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import precision_recall_curve

import alarm_thresholds


def test_the_best_f1_is_that_of_all_thresholds():
    generator = np.random.default_rng(0)
    labels = generator.random(500) < 0.1
    # rounded scores have ties
    scores = np.round(labels + generator.normal(size=500), 1)
    precision, recall, _ = precision_recall_curve(labels, scores)
    expected = (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()
    assert alarm_thresholds.best_f1(labels, scores) == pytest.approx(expected)


def test_both_rules_are_measured_on_the_same_scores():
    generator = np.random.default_rng(1)
    train, test = generator.normal(size=(400, 2)), generator.normal(size=(300, 2))
    labels = np.zeros(300, dtype=bool)
    labels[100:130] = True
    test[labels] += 8.0
    part = alarm_thresholds.measure(train, test, labels, model="z-score", window=10)
    assert part["best_f1"] > 0.95
    # the level of the scores is that of fit
    assert part["adaptive"] == part["quantile"]
    assert part["adaptive"]["recall"] > 0.95
    assert part["warned"] == 1.0
    summary = alarm_thresholds.summarise([part, part])
    assert summary["parts"] == 2
    assert summary["adaptive"]["of_best"] == pytest.approx(part["adaptive"]["f1"] / part["best_f1"], abs=1e-4)
    assert summary["largest_unwarned_share"] == 0.0


def test_files_of_skab_are_split_after_their_first_rows(tmp_path):
    (tmp_path / "SKAB").mkdir()
    table = pd.DataFrame({"datetime": range(450), "Current": np.arange(450.0), "anomaly": np.arange(450) >= 440})
    for name in ("valve1_0", "anomaly-free_anomaly-free"):
        with gzip.open(tmp_path / "SKAB" / f"{name}.csv.gz", "wt") as file:
            table.astype({"anomaly": float}).assign(changepoint=0.0).to_csv(file, sep=";", index=False)
    ((name, train, test, labels),) = alarm_thresholds.parts_of("SKAB", tmp_path)
    assert (name, train.shape, test.shape, labels.sum()) == ("valve1_0", (400, 1), (50, 1), 10)
    assert test[0, 0] == 400.0


def test_the_command_of_a_record_names_no_folder():
    words = ["python", "alarm_thresholds.py", "--data-dir", "data", "--set", "MSL"]
    assert alarm_thresholds.without_folder(words) == [*words[:3], "DATA", *words[4:]]
