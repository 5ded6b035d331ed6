"""`toa bench tables --part detection`: the parts of sets, and their metrics by hand."""

import gzip

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import precision_recall_curve

from tests.support import message
from toa_bench.detection_parts import Part, read_parts
from toa_bench.detection_tables import Flagged, best_f1, evaluate, flag, summarise


def test_the_best_f1_is_that_of_all_thresholds():
    generator = np.random.default_rng(0)
    labels = generator.random(500) < 0.1
    # rounded scores have ties
    scores = np.round(labels + generator.normal(size=500), 1)
    precision, recall, _ = precision_recall_curve(labels, scores)
    expected = (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()
    assert best_f1(labels, scores) == pytest.approx(expected)


def test_files_of_skab_are_split_after_their_first_rows(tmp_path):
    (tmp_path / "SKAB").mkdir()
    table = pd.DataFrame({"datetime": range(450), "Current": np.arange(450.0), "anomaly": np.arange(450) >= 440})
    for name in ("valve1_0", "anomaly-free_anomaly-free"):
        with gzip.open(tmp_path / "SKAB" / f"{name}.csv.gz", "wt") as file:
            table.astype({"anomaly": float}).assign(changepoint=0.0).to_csv(file, sep=";", index=False)
    (part,) = read_parts("SKAB", tmp_path)
    assert (part.name, part.train.shape, part.test.shape, part.labels.sum()) == ("valve1_0", (400, 1), (50, 1), 10)
    assert part.test[0, 0] == 400.0


def test_a_set_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("TOA_DATA", raising=False)
    with pytest.raises(ValueError, match=message("name a folder with SKAB")):
        list(read_parts("SKAB", tmp_path))
    with pytest.raises(ValueError, match="unknown dataset 'NAB'"):
        evaluate("NAB", "toa")
    with pytest.raises(ValueError, match="unknown method 'lof'; known: toa, z-score, pca mean"):
        evaluate("SKAB", "lof")


def flagged(labels, scores, threshold, *, warned):
    values = np.array(scores, dtype=np.float64)
    return Flagged(labels=np.array(labels, dtype=bool), scores=values, flags=values > threshold, warned=warned)


def test_metrics_are_means_over_the_parts_and_those_of_all_rows():
    labels = np.repeat([False, True, False], (40, 10, 50))
    good = flagged(labels, np.where(labels, 5.0, np.linspace(0.0, 1.0, 100)), 2.0, warned=True)
    # a score that tells nothing flags a tenth of the rows
    useless = flagged(labels, np.linspace(0.0, 1.0, 100), 0.899, warned=False)
    result = summarise([good, useless])
    assert (result["parts"], result["rows"]) == (2, 200)
    assert result["f1"] == pytest.approx(0.5)
    assert result["recall"] == pytest.approx(0.5)
    assert result["uninformative"] == 0.5
    assert result["warned"] == 0.5
    assert result["largest_unwarned_share"] == pytest.approx(0.1, abs=0.011)
    assert result["flag_all_f1"] == pytest.approx(0.2 / 1.1, abs=1e-4)
    assert result["of_best"] == pytest.approx(result["f1"] / result["best_f1"], abs=1e-4)
    assert result["pooled_f1"] == pytest.approx(2 * 10 / (20 + 20), abs=0.05)
    # without anomalies a part has no F1
    normal = flagged(np.zeros(100), np.zeros(100), 0.5, warned=False)
    assert summarise([good, normal])["f1"] == 1.0


def test_a_simple_score_flags_what_stands_out():
    generator = np.random.default_rng(1)
    train, test = generator.normal(size=(400, 2)), generator.normal(size=(300, 2))
    labels = np.zeros(300, dtype=bool)
    labels[100:130] = True
    test[labels] += 8.0
    found = flag(Part(name="made", train=train, test=test, labels=labels), model="pca mean", window=10)
    assert found.warned
    assert found.flags[103:127].all()
    assert summarise([found])["vus_pr"] > 0.8
