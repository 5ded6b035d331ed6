"""The rule of decision: units, the choice of the variant, tests, and runs that diverged."""

import math

import numpy as np
import pytest

from tests.support import message
from toa.report.decision import capped_error, choose_variant, decide


def errors(ratios, base=0.2, runs=6):
    """Errors of softmax and of ours, which has these ratios to it, on as many data sets."""
    plain = {f"set{i}": [base * (1 + 0.01 * run) for run in range(runs)] for i in range(len(ratios))}
    ours = {name: [r * value for value in plain[name]] for name, r in zip(plain, ratios, strict=True)}
    return {"softmax": plain, "toa": ours}


def test_the_mean_difference_is_the_mean_log_ratio_over_data_sets():
    ratios = [0.9, 0.95, 0.97, 1.02]
    found = decide(errors(ratios), "toa", "softmax")
    assert found.mean == pytest.approx(np.log(ratios).mean())
    assert found.percent == pytest.approx(100 * (np.exp(np.log(ratios).mean()) - 1))
    assert list(found.differences.values()) == pytest.approx(np.log(ratios))
    assert found.wins == 3


def test_a_data_set_counts_once_whatever_its_number_of_runs():
    table = errors([0.9, 0.9, 1.1])
    for system in table:
        table[system]["set2"] = table[system]["set2"] * 20
    assert decide(table, "toa", "softmax").mean == pytest.approx(np.log([0.9, 0.9, 1.1]).mean())


def test_the_t_test_and_its_interval_are_those_of_student():
    # differences with mean -0.03 and standard deviation 0.02: t = -0.03 / (0.02 / sqrt(4)) = -3, 3 degrees of freedom
    logs = -0.03 + 0.02 * np.array([-1, -1, 1, 1]) * math.sqrt(3) / 2
    found = decide(errors(np.exp(logs)), "toa", "softmax")
    assert found.p == pytest.approx(0.0577, abs=1e-4)
    assert found.interval == pytest.approx((-0.03 - 3.1824 * 0.01, -0.03 + 3.1824 * 0.01), abs=1e-5)
    assert found.bootstrap is not None
    low, high = found.bootstrap
    assert low < -0.03 < high


def test_ten_wins_of_ten_have_the_exact_sign_test():
    found = decide(errors(np.linspace(0.9, 0.99, 10)), "toa", "softmax")
    assert found.sign_p == pytest.approx(2 * 0.5**10)
    assert found.p < 0.01
    even = decide(errors([0.9, 1.1, 0.9, 1.1, 1.0]), "toa", "softmax")
    assert even.sign_p == 1
    assert even.wins == 2


def test_validation_chooses_one_variant_by_the_mean_log_error():
    validation = {
        "toa-relu": {"small": [0.010, 0.010], "large": [1.00]},
        "toa-gated": {"small": [0.009, 0.009], "large": [1.05]},
    }
    # 10 % less on the small set outweighs 5 % more on the large one, whatever their sizes and numbers of runs
    assert choose_variant(validation, ["toa-relu", "toa-gated"]) == "toa-gated"
    assert choose_variant(validation, ["toa-relu"]) == "toa-relu"


def test_a_diverged_run_counts_with_the_error_of_the_training_mean():
    assert capped_error(None, 1.2) == 1.2
    assert capped_error(math.inf, 1.2) == 1.2
    assert capped_error(math.nan, 1.2) == 1.2
    assert capped_error(7.0, 1.2) == 1.2
    assert capped_error(0.3, 1.2) == 0.3
    with pytest.raises(ValueError, match=message("worst must be positive, got 0")):
        capped_error(0.3, 0.0)


def test_systems_with_different_runs_cannot_be_compared():
    table = errors([0.9, 0.9, 1.1])
    table["toa"]["set1"] = table["toa"]["set1"][:-1]
    with pytest.raises(ValueError, match=message("toa and softmax must have the same runs", "set1")):
        decide(table, "toa", "softmax")
    with pytest.raises(ValueError, match=message("at least 3 data sets, got 2")):
        decide(errors([0.9, 0.8]), "toa", "softmax")
