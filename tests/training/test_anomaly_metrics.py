import aeon.benchmarking.metrics.anomaly_detection as aeon
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toa.training.detection import (
    Runs,
    adjusted_metrics,
    pa_k_metrics,
    point_metrics,
    random_adjusted_f1,
    range_metrics,
    vus_metrics,
)


def bits(text: str) -> np.ndarray:
    return np.array([c == "1" for c in text], dtype=bool)


def number(value: float | None) -> float:
    assert value is not None
    return value


# two runs, of 4 and 2 steps; of the first one step is flagged, beside it one false alarm
LABELS = bits("0011110000110")
FLAGS = bits("1000100000000")

flag_vectors = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*(st.lists(st.booleans(), min_size=n, max_size=n).map(np.array) for _ in range(2)))
)


def test_runs_are_half_open_and_count_overlaps():
    runs = Runs.of(LABELS)
    flags = Runs.of(bits("0110011111110"))
    assert (runs.starts.tolist(), runs.stops.tolist()) == ([2, 10], [6, 12])
    assert runs.count(FLAGS).tolist() == [1, 0]
    assert runs.overlapping(flags).tolist() == [2, 1]
    assert flags.overlapping(runs).tolist() == [1, 2]
    assert len(Runs.of(bits("000")).starts) == 0
    assert Runs.of(bits("111")).lengths.tolist() == [3]


def point_adjust(labels, flags):
    """Flag every step of each run that has a flagged step."""
    runs = Runs.of(labels)
    adjusted = flags.copy()
    for run in np.flatnonzero(runs.count(flags)):
        adjusted[runs.starts[run] : runs.stops[run]] = True
    return adjusted


def test_point_metrics_by_hand():
    # 1 of 6 anomalous steps found, 1 false alarm
    assert point_metrics(LABELS, FLAGS) == {"precision": 0.5, "recall": 1 / 6, "f1": 2 / (2 + 1 + 5)}


def test_adjusted_metrics_by_hand():
    # the first run counts as found whole
    assert adjusted_metrics(LABELS, FLAGS) == {"pa_precision": 4 / 5, "pa_recall": 4 / 6, "pa_f1": 8 / (8 + 1 + 2)}


def test_pa_k_by_hand():
    # 25 % of the first run are flagged: it is adjusted for K below 25, not at 25
    adjusted, plain = 8 / 11, 2 / 8
    found = pa_k_metrics(LABELS, FLAGS)
    assert found["pa_20_f1"] == pytest.approx(adjusted)
    area = (24 * adjusted + (adjusted + plain) / 2 + 75 * plain) / 100
    assert found["pa_k_f1"] == pytest.approx(area)


def test_range_metrics_by_hand():
    # flagged: one run inside a true one, one false, one that bridges both runs with 1 + 1 of 5 steps
    labels, flags = bits("0111000111000"), bits("1010111100000")
    found = range_metrics(labels, flags)
    # runs flagged: [0,1) none true; [2,3) all true; [4,8) 1 of 4 true
    assert found["range_precision"] == pytest.approx((0 + 1 + 1 / 4) / 3)
    # true runs: 1 of 3 found by one flag; 1 of 3 found by one flag; half of the weight is for being met
    assert found["range_recall"] == pytest.approx(0.5 + 0.5 * 1 / 3)
    bridge = range_metrics(bits("0110011"), bits("0011110"))
    assert bridge["range_precision"] == pytest.approx(2 / 4 / 2)
    two = range_metrics(bits("1111100"), bits("1010000"), existence=0.0)
    assert two["range_recall"] == pytest.approx(2 / 5 / 2)


def test_a_perfect_score_has_full_vus_and_a_reversed_one_little():
    labels = bits("0" * 40 + "1" * 10 + "0" * 50)
    perfect = vus_metrics(labels, labels + np.linspace(0, 1e-3, 100), max_buffer=0)
    assert perfect["vus_roc"] == pytest.approx(1.0)
    assert perfect["vus_pr"] == pytest.approx(1.0, abs=0.02)
    reversed_ = vus_metrics(labels, 1.0 - labels + np.linspace(0, 1e-3, 100), max_buffer=0)
    assert number(reversed_["vus_roc"]) < 0.1


@given(flag_vectors)
def test_point_adjustment_never_lowers_recall_or_changes_false_alarms(pair):
    labels, flags = pair
    adjusted = point_adjust(labels, flags)
    assert np.all(adjusted >= flags)
    assert np.array_equal(adjusted & ~labels, flags & ~labels)
    plain = point_metrics(labels, flags)
    after = adjusted_metrics(labels, flags)
    if plain["recall"] is not None and after["pa_recall"] is not None:
        assert after["pa_recall"] >= plain["recall"]
    # adjusted counts are those of the adjusted flags, and adjusting twice changes nothing
    assert list(after.values()) == list(point_metrics(labels, adjusted).values())
    assert np.array_equal(point_adjust(labels, adjusted), adjusted)


@given(flag_vectors)
def test_pa_k_lies_between_no_adjustment_and_all(pair):
    labels, flags = pair
    area = pa_k_metrics(labels, flags)["pa_k_f1"]
    low = point_metrics(labels, flags)["f1"]
    high = adjusted_metrics(labels, flags)["pa_f1"]
    if area is not None and low is not None and high is not None:
        assert low - 1e-12 <= area <= high + 1e-12


def test_a_random_score_gains_only_from_long_runs():
    long = bits(("0" * 900 + "1" * 100) * 20)
    short = bits(("0" * 9 + "1") * 2000)
    gain, spread = (number(value) for value in random_adjusted_f1(long, 0.05).values())
    none, _ = random_adjusted_f1(short, 0.05).values()
    assert gain > 0.75
    assert spread > 0.0
    assert number(none) < 0.1
    assert [*random_adjusted_f1(long, 0.05).values()] == [gain, spread]


@pytest.mark.parametrize("labels", [np.zeros(5, bool), np.ones(5, bool)], ids=["normal", "anomalous"])
def test_equal_labels_leave_every_metric_undefined(labels):
    flags = bits("01000")
    results = {
        **point_metrics(labels, flags),
        **adjusted_metrics(labels, flags),
        **pa_k_metrics(labels, flags),
        **range_metrics(labels, flags),
        **random_adjusted_f1(labels, 0.5),
        **vus_metrics(labels, np.arange(5.0)),
    }
    assert len(results) == 15
    assert set(results.values()) == {None}


def test_without_flags_precision_is_undefined_and_f1_is_zero():
    none = np.zeros(len(LABELS), bool)
    assert point_metrics(LABELS, none) == {"precision": None, "recall": 0.0, "f1": 0.0}
    assert range_metrics(LABELS, none) == {"range_precision": None, "range_recall": 0.0, "range_f1": 0.0}
    assert vus_metrics(LABELS, np.ones(len(LABELS))) == {"vus_pr": None, "vus_roc": None}


@pytest.mark.parametrize("seed", range(4))
def test_range_and_vus_metrics_are_those_of_aeon(seed):
    draw = np.random.default_rng(seed)
    labels = np.zeros(300, bool)
    for start in draw.integers(0, 300, 3):
        labels[start : start + draw.integers(1, 40)] = True
    score = draw.random(300) + 0.3 * labels
    score = score.round(1) if seed % 2 else score
    truth = labels.astype(int)
    flags = score > np.quantile(score, 0.8)
    found = {**vus_metrics(labels, score, max_buffer=40), **range_metrics(labels, flags)}
    assert found["vus_pr"] == pytest.approx(aeon.range_pr_vus_score(truth, score, 40), abs=1e-12)
    assert found["vus_roc"] == pytest.approx(aeon.range_roc_vus_score(truth, score, 40), abs=1e-12)
    assert found["range_precision"] == pytest.approx(aeon.range_precision(truth, flags.astype(int)), abs=1e-12)
    assert found["range_recall"] == pytest.approx(aeon.range_recall(truth, flags.astype(int), alpha=0.5), abs=1e-12)
    assert found["range_f1"] == pytest.approx(aeon.range_f_score(truth, flags.astype(int)), abs=1e-12)


# computed by `generate_curve(labels, score, buffer, "opt", 250)` of TheDatumOrg/TSB-AD, commit 8763009
TSB_AD = {
    0: (0.2896408440407287, 0.6197318181818181),
    1: (0.2896408440407287, 0.6197318181818181),
    10: (0.4385638257181677, 0.7173287933538869),
    100: (0.7897517170635243, 0.9204270539107572),
}


@pytest.mark.parametrize("buffer", TSB_AD)
def test_vus_metrics_are_those_of_tsb_ad(buffer):
    t = np.arange(600)
    high = 1.5 * ((t >= 200) & (t < 230)) + 1.2 * (t >= 590)
    score = np.round(np.abs(np.sin(t / 7)) + (t % 97) / 97 + high, 3)
    # two runs whose buffers meet, and one at the end
    labels = ((t >= 195) & (t < 225)) | ((t >= 230) & (t < 232)) | ((t >= 400) & (t < 410)) | (t >= 592)
    found = vus_metrics(labels, score, max_buffer=buffer, rules="tsb-ad")
    assert (found["vus_pr"], found["vus_roc"]) == pytest.approx(TSB_AD[buffer], abs=1e-12)
