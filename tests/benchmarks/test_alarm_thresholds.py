"""The benchmark of thresholds, on made data."""

import numpy as np
import pytest

import alarm_thresholds


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


def test_the_command_of_a_record_names_no_folder():
    words = ["python", "alarm_thresholds.py", "--data-dir", "data", "--set", "MSL"]
    assert alarm_thresholds.without_folder(words) == [*words[:3], "DATA", *words[4:]]
