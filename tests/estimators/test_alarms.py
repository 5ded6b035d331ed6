import numpy as np
import pytest

from toa.estimators.alarms import EVERY_ROW, AlarmRule, alarm_runs, describe_channels, find_events
from toa.estimators.thresholds import choose_threshold


def flags(text: str) -> np.ndarray:
    return np.array([c == "1" for c in text])


def spans(runs) -> list[tuple[int, int]]:
    return list(zip(runs.starts.tolist(), runs.stops.tolist(), strict=True))


def test_short_alarms_are_dropped_and_close_ones_merged():
    rows = flags("0110100110000110")
    assert spans(alarm_runs(rows, AlarmRule(1, 0))) == [(1, 3), (4, 5), (7, 9), (13, 15)]
    assert spans(alarm_runs(rows, AlarmRule(2, 0))) == [(1, 3), (7, 9), (13, 15)]
    assert spans(alarm_runs(rows, AlarmRule(2, 4))) == [(1, 15)]
    assert spans(alarm_runs(rows, AlarmRule(1, 2))) == [(1, 9), (13, 15)]
    assert spans(alarm_runs(rows, AlarmRule(1, 1))) == [(1, 5), (7, 9), (13, 15)]
    assert spans(alarm_runs(rows, AlarmRule(3, 9))) == []


def test_an_event_has_its_peak_severity_and_channels():
    parts = np.zeros((20, 3))
    parts[5:8] = [[1.0, 3.0, 0.0], [2.0, 8.0, 0.0], [0.0, 5.0, 0.0]]
    (event,) = find_events(parts, np.full(20, 2.0), EVERY_ROW)
    assert (event.start, event.stop, event.peak, event.severity) == (5, 8, 6, 5.0)
    assert event.shares.tolist() == pytest.approx([3 / 19, 16 / 19, 0.0])
    assert describe_channels(event.shares, ["x", "flow", "y"]) == "flow 84 %, x 16 %"


def test_the_rule_quantile_leaves_the_asked_share_above():
    scores = [np.arange(500.0), np.arange(500.0, 1000.0)]
    threshold = choose_threshold("quantile", scores, contamination=0.05)
    assert (np.concatenate(scores) > threshold).sum() == 50


def test_the_rule_extreme_value_extrapolates_beyond_the_rows():
    scores = np.random.default_rng(0).exponential(size=20_000)
    threshold = choose_threshold("extreme value", [scores], contamination=1e-6)
    assert threshold == pytest.approx(-np.log(1e-6), rel=0.25)
    assert threshold > scores.max()
    # a share that the rows contain is the quantile
    plain = choose_threshold("quantile", [scores], contamination=0.1)
    assert choose_threshold("extreme value", [scores], contamination=0.1) == plain


def test_the_rule_budget_gives_at_most_so_many_events():
    scores = np.random.default_rng(1).random(5000)
    threshold = choose_threshold("budget", [scores], contamination=0.01, events=7, alarms=AlarmRule(cool_down=3))
    count = len(alarm_runs(scores > threshold, AlarmRule(cool_down=3)).starts)
    assert 4 <= count <= 7
    lower = np.quantile(scores, (scores < threshold).mean() - 0.004)
    assert len(alarm_runs(scores > lower, AlarmRule(cool_down=3)).starts) > 7
