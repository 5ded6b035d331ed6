"""Thresholds after the level of the data has changed, and what users are told of it."""

import warnings

import numpy as np
import pandas as pd
import pytest

from tests.support import message
from toa.estimators import AnomalyDetector
from toa.estimators.detector_files import restore_detector
from toa.estimators.shift import NormalLevels, ShareFlagged
from toa.estimators.thresholds import ThresholdRule, Thresholds

ROWS = 1_200
FLAGGED = "ignore:.*of the rows are flagged"
RAISED = "ignore:.*the threshold was raised"


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 4))


def shifted(count: int, seed: int = 1) -> np.ndarray:
    """Rows with another level in two channels, and one unusual row in the middle."""
    values = rows(count, seed)
    values[:, :2] += 4.0
    values[count // 2] += 25.0
    return values


def fit(**options) -> AnomalyDetector:
    return AnomalyDetector(**{"model": "z-score", "window": 20, "device": "cpu", **options}).fit(rows(ROWS, 0))


@pytest.fixture(scope="module")
def detector() -> AnomalyDetector:
    return fit()


def test_the_default_threshold_survives_a_shift_that_a_fixed_one_does_not(detector):
    values = shifted(2_500)
    with pytest.warns(UserWarning, match="the threshold was raised from"):
        flags = detector.predict(values)
    fixed = fit(threshold="quantile")
    assert fixed.threshold_ == detector.threshold_
    with pytest.warns(UserWarning, match=r"9\d\.\d% of the rows are flagged, 1\.00% was expected"):
        assert fixed.predict(values).mean() > 0.9
    assert flags[1_250] == 1
    assert flags.mean() < 0.15


def test_rows_of_the_level_of_fit_have_the_threshold_of_fit_and_no_warning(detector):
    values = rows(2_000, 2)
    thresholds = detector.scores(values) - detector.decision_function(values)
    np.testing.assert_allclose(thresholds, detector.threshold_)
    assert detector.predict(values).mean() < 0.03


@pytest.mark.filterwarnings(FLAGGED)
def test_anomalies_in_a_third_of_the_rows_do_not_raise_the_threshold(detector):
    values = rows(900, 3)
    values[300:600] += 6.0
    assert detector.predict(values)[300:600].mean() > 0.99


@pytest.mark.filterwarnings(FLAGGED, RAISED)
def test_a_shift_in_a_part_of_a_table_raises_the_threshold_there_alone(detector):
    values = rows(8_000, 4)
    values[4_000:, :2] += 4.0
    flags = detector.predict(values)
    # the scores before and after a row tell the level, so that few rows around the shift are flagged
    assert flags.mean() < 0.1
    thresholds = detector.fitted_.thresholds.of_rows(detector.scores(values))
    assert thresholds[:2_500] == pytest.approx(detector.threshold_)
    assert thresholds[-2_500:].min() > 1.5 * detector.threshold_


def test_the_threshold_of_a_combination_is_limited_by_what_its_scores_mean():
    # as high as one half of few held-out rows may choose it for the other half
    high = Thresholds(rows=90.0, stream=4.0)
    limited = ThresholdRule("adaptive", 0.01).limit(high, held=200)
    # -log of a share of 1 %, and half as much again for 200 rows
    assert limited.rows == pytest.approx(4.605 * 1.5, rel=1e-3)
    assert limited.stream == 4.0
    # half of the rows have more than the mean of a score of normal rows
    assert ThresholdRule("adaptive", 0.5).limit(high, held=200).rows == pytest.approx(1.5)
    for rule in ("quantile", "extreme value"):
        assert ThresholdRule(rule, 0.01).limit(high, held=200) == high
    assert ThresholdRule("adaptive", 0.01).limit(high, held=49) == high


def test_held_out_rows_that_change_their_level_do_not_hide_anomalies():
    values = rows(1_000, 11)[:, :2]
    # the second half of the held-out rows varies less than the first
    values[900:] *= 0.6
    thresholds = {
        rule: AnomalyDetector(effort="least", threshold=rule, device="cpu").fit(values).threshold_
        for rule in ("adaptive", "quantile")
    }
    assert thresholds["adaptive"] == pytest.approx(4.605 * 1.5, rel=1e-3)
    assert thresholds["quantile"] > 1.5 * thresholds["adaptive"]


@pytest.mark.filterwarnings(FLAGGED)
@pytest.mark.parametrize("count", [50, 900])
def test_a_table_of_anomalies_that_is_shorter_than_half_of_the_memory_is_flagged_whole(detector, count):
    assert detector.predict(rows(count, 5) + 9.0).all()


def test_a_share_of_flagged_rows_far_above_the_expected_one_is_named(detector):
    values = rows(400, 6)
    values[:40] += 9.0
    for call in (detector.predict, detector.alarms, detector.events):
        with pytest.warns(UserWarning, match=r"1\d\.\d% of the rows are flagged, 1\.00% was expected of normal rows"):
            call(values)
    few = ShareFlagged(flagged=3, rows=30, expected=0.01)
    assert not few.is_far_above
    assert ShareFlagged(flagged=4, rows=30, expected=0.01).is_far_above
    assert not ShareFlagged(flagged=30, rows=1_000, expected=0.01).is_far_above
    assert ShareFlagged(flagged=31, rows=1_000, expected=0.01).is_far_above


def test_a_budget_of_events_expects_no_share():
    frame = pd.DataFrame(rows(ROWS, 0), columns=list("abcd"))
    frame.insert(0, "when", pd.date_range("2024-01-01", periods=ROWS, freq="h"))
    detector = AnomalyDetector(model="z-score", window=20, threshold="budget", device="cpu").fit(frame)
    frame.loc[:99, "a"] += 9.0
    assert detector.predict(frame)["anomaly"].sum() >= 100
    assert detector.fitted_.thresholds.row_levels is None


@pytest.mark.parametrize("size", [1, 700])
def test_a_stream_adapts_by_earlier_rows_and_in_calls_of_any_size(detector, size):
    values = np.concatenate((rows(40, 7), shifted(1_960)))[: 2_000 if size > 1 else 300]
    detector.reset_stream()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = pd.concat([detector.detect(values[i : i + size]) for i in range(0, len(values), size)])
        detector.reset_stream()
        once = detector.detect(values)
    assert (result["anomaly"].to_numpy() == once["anomaly"].to_numpy()).all()
    flags = once["anomaly"].to_numpy()
    assert flags[60:150].mean() > 0.9
    # half of the memory of 2,000 scores shows the new level, which is looked at every 50 rows
    assert size == 1 or flags[1_200:].mean() < 0.2


def test_a_stream_reports_the_share_of_flagged_rows_once(detector):
    detector.reset_stream()
    values = rows(200, 8)
    values[60:100] += 9.0
    with warnings.catch_warnings(record=True) as reports:
        warnings.simplefilter("always")
        for start in range(0, 200, 20):
            detector.detect(values[start : start + 20])
    (report,) = map(str, (entry.message for entry in reports))
    assert report.startswith("the stream: ")
    assert "of the rows are flagged, 1.00% was expected of normal rows" in report


@pytest.mark.filterwarnings(FLAGGED, RAISED)
def test_a_saved_detector_keeps_its_rule(detector, tmp_path):
    values = shifted(2_500)
    for model in (detector, fit(threshold="quantile")):
        model.save(tmp_path / "d.toa")
        loaded = AnomalyDetector.load(tmp_path / "d.toa")
        assert loaded.threshold == model.threshold
        assert (loaded.predict(values) == model.predict(values)).all()
    assert loaded.fitted_.thresholds.row_levels is None


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"memory": 10**9}, "memory must be at most 10000"),
        ({"memory": 1}, "memory must be an integer of at least 2000"),
        ({"contamination": 2.0}, "contamination must lie in (0, 1)"),
    ],
)
def test_forged_levels_are_refused(detector, change, rule):
    tensors, facts = detector._saved()
    facts["fitted"]["levels"]["rows"] |= change
    with pytest.raises(ValueError, match=message(rule)):
        restore_detector(tensors, facts["fitted"], detector.settings_of_fit(), "d.toa")


def test_levels_are_the_median_and_its_deviation_whatever_a_third_of_the_scores_is():
    generator = np.random.default_rng(9)
    normal = generator.normal(size=10_000)
    levels = NormalLevels.fit([normal], contamination=0.01, longest=10_000)
    assert levels.memory == 5_000
    clean = generator.normal(10.0, 1.0, size=6_000)
    with_anomalies = np.concatenate((clean[:4_000], np.full(2_000, 1e6)))
    # median 10, median deviation 0.67, 2.33 is the normal quantile
    assert levels.raised(2.5, clean) == pytest.approx(10.0 + 1.2 * 2.33 * 0.674, rel=0.03)
    # the highest of the other rows at most
    assert levels.raised(2.5, with_anomalies) < 20.0
    assert levels.raised(2.5, normal[:6_000]) == 2.5
    # a threshold of fit below the level of its own scores stays
    assert levels.raised(0.1, normal) == pytest.approx(0.1, abs=0.1)


def test_a_spike_of_one_row_is_an_event_of_one_row_with_the_reach_of_its_window():
    time = np.arange(1_500)
    normal = np.stack([np.sin(time / 5), np.cos(time / 7)], 1) + 0.1 * rows(1_500, 10)[:, :2]
    detector = AnomalyDetector(window=30, effort="least", device="cpu").fit(normal[:1_000])
    values = normal[1_000:].copy()
    values[250, 0] += 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows_of_alarms, events = detector.alarms(values)
    first = events.iloc[0]
    assert (first["start"], first["end"], first["peak"], first["rows"]) == (250, 250, 250, 1)
    reach = np.flatnonzero(rows_of_alarms["event"] == 1)
    assert len(reach) > 5
    assert (first["reach_start"], first["reach_end"]) == (reach[0], reach[-1])
    # an anomaly that lasts is named from its first row to its last
    values[100:140, 1] += 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        events = detector.events(values)
    lasting = events[events["channel"] == "1"].iloc[0] if "1" in set(events["channel"]) else events.iloc[1]
    assert abs(lasting["start"] - 100) <= 3
    assert abs(lasting["end"] - 139) <= 3
