from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import toa
from tests.support import message
from toa.data import SeriesWindows
from toa.estimators.combination import inject_anomalies
from toa.estimators.detector import MODELS, AnomalyDetector
from toa.estimators.files import save_file
from toa.estimators.scorers import SCORERS
from toa.estimators.sizes import choose_stride
from toa.estimators.thresholds import Thresholds

# these tables are short, so that few flagged rows are many
pytestmark = pytest.mark.filterwarnings("ignore:.*of the rows are flagged")

ROWS = 240
WINDOW = 12


def waves(rows: int = ROWS, seed: int = 0) -> np.ndarray:
    t = np.arange(rows)
    noise = 0.02 * np.random.default_rng(seed).normal(size=(rows, 2))
    return np.stack([np.sin(t / 3), np.cos(t / 5)], 1) + noise


def spiked() -> tuple[np.ndarray, np.ndarray]:
    values = waves(90, 1)
    labels = np.zeros(90, dtype=int)
    values[50:52] += 5.0
    labels[50:52] = 1
    return values, labels


def table(values: np.ndarray, start: str = "2024-01-01", **columns: object) -> pd.DataFrame:
    frame = pd.DataFrame(values, columns=["a", "b"]).assign(**columns)
    frame.insert(0, "when", pd.date_range(start, periods=len(values), freq="h"))
    return frame


def machines(rows: int = 100) -> pd.DataFrame:
    """Two series whose rows alternate, the second a thousand times as large."""
    parts = [table(waves(rows, i) * size, machine=name) for i, (name, size) in enumerate((("m1", 1.0), ("m2", 1e3)))]
    return pd.concat(parts).sort_values("when", kind="stable").reset_index(drop=True)


def make(**options) -> AnomalyDetector:
    small = {"embed_dim": 8, "num_heads": 2, "num_layers": 1, "ff_dim": 8}
    return AnomalyDetector(**{"window": WINDOW, "epochs": 4, "learning_rate": 5e-3, "settings": small, **options})


@pytest.fixture(scope="module")
def fitted() -> AnomalyDetector:
    return make().fit(waves())


@pytest.fixture(scope="module")
def network() -> AnomalyDetector:
    return make(model="toa").fit(waves())


@pytest.fixture(scope="module")
def framed() -> AnomalyDetector:
    return make(epochs=1).fit(table(waves()))


@pytest.fixture(scope="module")
def grouped() -> AnomalyDetector:
    return make(epochs=1, id="machine").fit(machines())


def test_the_detector_is_exported_by_the_package():
    assert toa.AnomalyDetector is AnomalyDetector


def test_a_spike_has_the_highest_score_and_is_flagged(fitted):
    values, labels = spiked()
    scores = fitted.scores(values)
    flags = fitted.predict(values)
    assert scores.argmax() in (50, 51)
    assert flags[50:52].all()
    assert set(np.unique(flags)) == {0, 1}
    assert ((fitted.decision_function(values) > 0) == flags).all()
    assert 0.0 < fitted.score(values, labels) <= 1.0


@pytest.mark.parametrize("name", [pytest.param("auto", marks=pytest.mark.slow), "sub-sequence pca"])
def test_about_the_asked_share_of_new_normal_rows_is_flagged(name):
    shares = []
    for seed in range(6):
        rows = np.random.default_rng(seed).normal(size=(6_000, 10))
        # without time there is no network, whose training would take most of the time of the test
        detector = AnomalyDetector(model=name, effort="least").fit(rows[:3_000])
        shares.append((detector.predict(rows[3_000:]).mean(), detector.detect(rows[3_000:])["anomaly"].mean()))
    assert (np.abs(np.log2(np.mean(shares, 0) / 0.01)) < 1.0).all(), np.mean(shares, 0)


def test_fitting_is_reproducible_and_keeps_the_random_state(fitted):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = clone(fitted).fit(waves())
    assert torch.get_rng_state().equal(before)
    assert (again.scores(waves()) == fitted.scores(waves())).all()
    assert again.validation_ == fitted.validation_


def test_constructor_stores_arguments_and_reports_them():
    settings = {"embed_dim": 8}
    detector = AnomalyDetector(window=5, settings=settings)
    assert detector.settings is settings
    assert detector.get_params()["window"] == 5
    assert clone(detector.set_params(window=7)).window == 7


def test_defaults_go_by_the_size_of_the_data():
    detector = AnomalyDetector(epochs=1, validation_share=0.5).fit(waves(100)[:, :1])
    assert detector.window_ == 20
    assert detector.architecture_["backbone"] == "patchtst"
    wide = AnomalyDetector(window=8, epochs=1).fit(np.random.default_rng(0).normal(size=(40, 33)))
    assert wide.architecture_["backbone"] == "itransformer"


@pytest.mark.parametrize("at", [1250, 600])
def test_anomalies_in_the_rows_of_fit_are_found_wherever_they_are(at):
    time = np.arange(1500)
    random = np.random.default_rng(0)
    load = np.sin(2 * np.pi * time / 144) + 0.05 * random.normal(size=1500)
    values = np.stack([load, 20 + 5 * load + 0.2 * random.normal(size=1500)], 1)
    values[at : at + 10, 1] += 6.0
    detector = AnomalyDetector(effort="least")
    with pytest.warns(match="the last 20% of the rows, .* score far higher") if at > 1200 else nullcontext():
        detector.fit(values)
    assert detector.predict(values)[at : at + 10].all()


def test_the_warning_of_anomalies_in_the_held_out_rows_states_their_share():
    values = np.random.default_rng(0).normal(size=(600, 2))
    values[450:] += 30.0
    detector = AnomalyDetector(model="z-score", window=20, validation_share=0.4)
    with pytest.warns(match="the last 40% of the rows, which were held out"):
        detector.fit(values)


def test_a_stream_flags_nothing_before_it_has_a_window_of_rows():
    detector = make(epochs=1).fit(waves(200))
    detector.fitted_ = replace(detector.fitted_, thresholds=Thresholds(rows=1.0, stream=-1.0))
    flags = [detector.detect(row)["anomaly"].tolist() for row in (waves(5), waves(205)[5:])]
    assert flags == [[0] * 5, [0] * (detector.window_ - 5) + [1] * (200 - detector.window_ + 5)]


def test_the_result_of_a_frame_is_a_frame_with_its_times(framed):
    values, _ = spiked()
    frame = table(values, start="2025-01-01")
    result = framed.predict(frame)
    assert list(result.columns) == ["when", "score", "anomaly"]
    assert (result["when"] == frame["when"]).all()
    assert np.allclose(result["score"], framed.scores(frame)["score"])
    indexed = framed.predict(frame.set_index("when"))
    assert isinstance(indexed.index, pd.DatetimeIndex)
    assert framed.score(frame, spiked()[1]) >= 0.0


def test_the_result_of_a_polars_frame_is_one(framed):
    import polars

    frame = table(spiked()[0])
    result = framed.predict(polars.from_pandas(frame))
    assert isinstance(result, polars.DataFrame)
    assert result["when"].to_list() == frame["when"].to_list()
    assert np.allclose(result["score"].to_numpy(), framed.scores(frame)["score"])


def test_the_order_of_columns_does_not_matter(framed):
    frame = table(spiked()[0])
    assert (framed.scores(frame)["score"] == framed.scores(frame[["b", "when", "a"]])["score"]).all()


def test_series_of_one_table_are_scored_separately_in_row_order(grouped):
    frame = machines(40)
    result = grouped.predict(frame)
    assert (result["machine"] == frame["machine"]).all()
    assert (result["when"] == frame["when"]).all()
    for name in ("m1", "m2"):
        alone = grouped.scores(frame[frame["machine"] == name])
        assert np.allclose(alone["score"], result.loc[result["machine"] == name, "score"])
    # each id has a scale of its own
    assert grouped.scalers_["m2"].std[0] > 100 * grouped.scalers_["m1"].std[0]


def test_the_result_of_a_list_of_arrays_is_a_list():
    detector = make(epochs=1).fit([waves(60), waves(40, 1)])
    result = detector.predict([waves(30), waves(20, 1)])
    assert [len(flags) for flags in result] == [30, 20]
    assert 0.0 <= detector.score([spiked()[0], waves(30)], [spiked()[1], np.zeros(30)]) <= 1.0


def test_windows_of_several_series_never_cross():
    series = [torch.arange(5.0)[:, None], torch.arange(100.0, 104.0)[:, None]]
    windows = SeriesWindows(series, 3)
    result = windows.batch(torch.arange(len(windows)))[..., 0].tolist()
    assert result == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [100, 101, 102], [101, 102, 103]]


def test_large_tables_train_on_a_part_of_their_windows():
    assert [choose_stride(5_000, 40), choose_stride(5_000, 1), choose_stride(60_000, 1)] == [3, 1, 3]


def test_missing_rows_and_values_are_filled_only_when_asked():
    frame = table(waves(60))
    frame.loc[30, "a"] = np.nan
    gappy = frame.drop(index=40)
    with pytest.raises(ValueError, match=message("must have a row at every step", "at data row 41")):
        make(epochs=1).fit(gappy)
    with pytest.raises(ValueError, match=message("no missing values", "a")):
        make(epochs=1).fit(frame)
    result = make(epochs=1, missing="ffill").fit(gappy).predict(gappy)
    assert len(result) == 59
    assert (result["when"].to_numpy() == gappy["when"].to_numpy()).all()


def test_a_value_that_is_missing_in_a_stream_is_not_filled_by_dropping_its_column(framed):
    frame = table(waves(3))
    frame.loc[0, "a"] = np.nan
    for rows in (frame[:1], frame):
        with pytest.raises(ValueError, match=r"in (column )?'a'.*; fill it before the call, such as by the last value"):
            framed.detect(rows)


@pytest.mark.parametrize("size", [1, 7, 90])
def test_stream_scores_of_the_network_are_those_of_a_batch_that_ends_there(network, size):
    values, _ = spiked()
    network.reset_stream()
    result = pd.concat([network.detect(values[i : i + size]) for i in range(0, 90, size)])
    assert (result.index == np.arange(90)).all()
    for place in (WINDOW - 1, 50, 89):
        assert result["score"][place] == pytest.approx(network.scores(values[: place + 1])[-1], rel=1e-5)
    # before the first row the series is taken to have had its values
    padded = np.concatenate((np.repeat(values[:1], WINDOW - 1, 0), values[:1]))
    assert result["score"][0] == pytest.approx(network.scores(padded)[-1], rel=1e-5)
    assert result["anomaly"][50] == 1


@pytest.mark.parametrize("size", [1, 7])
def test_stream_scores_do_not_depend_on_the_size_of_calls_or_on_later_rows(fitted, size):
    values, _ = spiked()
    fitted.reset_stream()
    once = fitted.detect(values)
    fitted.reset_stream()
    result = pd.concat([fitted.detect(values[i : i + size]) for i in range(0, 63, size)])
    np.testing.assert_allclose(result["score"], once["score"][:63], rtol=1e-5)
    assert result["anomaly"][50] == 1


def test_a_stream_accepts_arrays_lists_and_dicts(fitted, framed):
    values = waves()
    fitted.reset_stream()
    result = [fitted.detect(rows) for rows in (values[0], values[1].tolist(), values[2:4].tolist(), values[4:6])]
    assert [list(part.index) for part in result] == [[0], [1], [2, 3], [4, 5]]
    assert np.isfinite(np.concatenate(result)).all()
    with pytest.raises(ValueError, match="rows must be lists of 2 numbers, got lists of different lengths"):
        fitted.detect([[1.0, 2.0], [3.0]])
    framed.reset_stream()
    rows = table(values).to_dict("records")
    assert framed.detect(rows[0])["when"].tolist() == [pd.Timestamp("2024-01-01")]
    assert len(framed.detect(rows[1:4])) == 3
    with pytest.raises(ValueError, match=message("rows must continue with 2024-01-01 04:00:00")):
        framed.detect(rows[5])
    with pytest.raises(ValueError, match="got no 'b'"):
        framed.detect({"when": "2024-01-01 04:00", "a": 1.0})


def test_streams_of_several_ids_go_side_by_side(grouped):
    frame = machines(30)
    grouped.reset_stream()
    result = pd.concat([grouped.detect(frame.iloc[i : i + 6]) for i in range(0, 60, 6)], ignore_index=True)
    assert (result["machine"] == frame["machine"]).all()
    second = result["machine"] == "m2"
    grouped.reset_stream()
    np.testing.assert_allclose(result[second]["score"], grouped.detect(frame[second])["score"], rtol=1e-5)


def test_a_stream_that_skips_or_repeats_rows_is_rejected_and_unchanged(framed):
    frame = table(spiked()[0])
    framed.reset_stream()
    framed.detect(frame.iloc[:20])
    for wrong in (frame.iloc[21:], frame.iloc[19:]):
        with pytest.raises(ValueError, match=message("rows must continue with 2024-01-01 20:00:00", "at data row 1")):
            framed.detect(wrong)
    assert framed.detect(frame.iloc[20:21])["score"].notna().all()


@pytest.mark.parametrize("name", ["fitted", "framed", "grouped"])
def test_a_saved_detector_scores_the_same(name, request, tmp_path):
    detector = request.getfixturevalue(name)
    data = {"fitted": spiked()[0], "framed": table(spiked()[0]), "grouped": machines(40)}[name]
    detector.save(tmp_path / "detector.safetensors")
    loaded = AnomalyDetector.load(tmp_path / "detector.safetensors")
    assert loaded.get_params() == detector.get_params()
    before = detector.predict(data)
    after = loaded.predict(data)
    assert np.array_equal(np.asarray(before), np.asarray(after))
    assert loaded.detect(data) is not None
    detector.save_pretrained(tmp_path / "folder")
    assert AnomalyDetector.from_pretrained(tmp_path / "folder").threshold_ == detector.threshold_


BAD_FIT = {
    "text": (lambda: table(waves()).astype({"a": object}).replace({"a": {waves()[3, 0]: "x"}}), "row 4"),
    "infinity": (lambda: table(np.where(np.arange(480).reshape(-1, 2) == 8, np.inf, waves())), "infinite"),
    "empty column": (lambda: table(waves(), c=np.nan), "'c'"),
    "unsorted": (lambda: table(waves()).iloc[::-1], "data row 2"),
    "repeated": (lambda: pd.concat([table(waves()), table(waves()).tail(1)]), "data row 241"),
    "short": (lambda: table(waves(20)), "must have two windows of 12 rows"),
}


@pytest.mark.parametrize("name", BAD_FIT)
def test_bad_tables_are_rejected_by_row_or_column(name):
    data, words = BAD_FIT[name]
    with pytest.raises(ValueError, match=words):
        make(epochs=1).fit(data())


BAD_PREDICT = {
    "new column": (lambda: table(waves(), c=1.0), "columns of fit, 'a', 'b', got a new one, 'c'"),
    "no column": (lambda: table(waves()).drop(columns="b"), "got no 'b'"),
    "short": (lambda: table(waves(11)), "data must have at least one window of 12 rows, got 11"),
    "one row": (lambda: table(waves(1)), "data must have at least one window of 12 rows, got 1; pass more"),
    "frequency": (lambda: table(waves()).iloc[::2], "the frequency of fit, 'h', got '2h'"),
    "array": (waves, "got no 'a'"),
}


@pytest.mark.parametrize("name", BAD_PREDICT)
def test_other_data_than_fitted_is_rejected(framed, name):
    data, words = BAD_PREDICT[name]
    with pytest.raises(ValueError, match=message(words)):
        framed.predict(data())


def test_a_new_id_is_rejected_by_name(grouped):
    with pytest.raises(ValueError, match=message("ids that were fitted, 'm1', 'm2', got 'm3' in column 'machine'")):
        grouped.predict(machines(40).replace({"machine": {"m2": "m3"}}))


def test_one_row_per_id_is_too_few_and_needs_no_frequency(grouped):
    rows = machines(40).groupby("machine").tail(1)
    with pytest.raises(ValueError, match=message("series 'm1' of data must have at least one window of", "got 1;")):
        grouped.predict(rows)


def test_bad_arguments_and_labels_are_rejected(fitted):
    with pytest.raises(ValueError, match="contamination must lie in"):
        make(contamination=0.0).fit(waves())
    with pytest.raises(ValueError, match="unknown backbone 'dlinear'"):
        make(backbone="dlinear").fit(waves())
    with pytest.raises(NotFittedError, match="must be fitted"):
        make().predict(waves())
    with pytest.raises(ValueError, match="Complex data not supported"):
        make().fit(waves() + 1j)
    values, labels = spiked()
    with pytest.raises(ValueError, match="a label for each of the 90 rows"):
        fitted.score(values, labels[:-1])
    with pytest.raises(ValueError, match=message("0 or 1", "at data row 51")):
        fitted.score(values, labels * 2)
    with pytest.raises(ValueError, match="no step is labelled anomalous"):
        fitted.score(values, labels * 0)


BAD_ARGUMENTS = {
    "batch_size": (0, "batch_size must be an integer of at least 1, got 0"),
    "seed": (-1, "seed must be an integer from 0"),
    "min_length": (1.5, "min_length must be an integer of at least 1, got 1.5"),
    "alarms_per_day": (np.inf, "alarms_per_day must be finite, got inf"),
    "time_limit": ("5", "time_limit must be positive, got '5'"),
    "backbone": ("foo", "unknown backbone 'foo'"),
    "attention": ("foo", "unknown attention"),
    "settings": ({"d_modl": 3}, "d_modl"),
    "learning_rate": (-1.0, "learning_rate must be positive"),
    "patience": (0, "patience must be an integer of at least 1"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_a_bad_argument_is_refused_before_a_baseline_is_fitted(name, monkeypatch):
    value, words = BAD_ARGUMENTS[name]
    monkeypatch.setattr("toa.estimators.detection_fitting.fit_baselines", lambda *_: pytest.fail("fitted"))
    with pytest.raises(ValueError, match=message(words)):
        make(model="pca", **{name: value}).fit(waves())


@pytest.mark.parametrize(
    ("rule", "number", "other"),
    [
        ("quantile", {"alarms_per_day": 1.0}, "budget"),
        ("extreme value", {"alarms_per_day": 3}, "budget"),
        ("budget", {"contamination": 0.05}, "adaptive"),
    ],
)
def test_a_number_that_the_rule_does_not_use_is_refused_before_the_data_are_read(rule, number, other):
    ((name, value),) = number.items()
    words = f"{name} must be left out with the rule {rule!r}, which does not use it, got {value}; leave it out, or give"
    with pytest.raises(ValueError, match=message(words, f"threshold={other!r}.")):
        make(threshold=rule, **number).fit("no table")


def test_a_loaded_detector_of_an_older_version_can_be_fitted_again(tmp_path):
    older = make(model="z-score").fit(waves())
    # accepted, and stored, by older versions
    older.alarms_per_day = 1.0
    older.save(tmp_path / "d.toa")
    loaded = AnomalyDetector.load(tmp_path / "d.toa")
    assert loaded.alarms_per_day is None
    assert loaded.fit(waves()).threshold_ == older.threshold_


def test_every_baseline_is_a_detector_of_its_own(tmp_path):
    values = waves(90, 1)
    values[50:52, 0] += 9.0
    for name in MODELS[2:]:
        detector = make(model=name).fit(waves())
        assert detector.architecture_["backbone"] is None
        assert detector.predict(values)[50:52].any(), name
        assert np.isfinite(detector.detect(values)["score"]).all()
        detector.save(tmp_path / "one.toa")
        assert (AnomalyDetector.load(tmp_path / "one.toa").scores(values) == detector.scores(values)).all()
    with pytest.raises(ValueError, match="the anomaly detector must have a network"):
        detector.run_sample(values)


def test_a_fit_without_time_leaves_the_network_out():
    detector = AnomalyDetector(window=WINDOW, effort="least").fit(waves())
    assert detector.architecture_["backbone"] is None
    assert set(detector.weights_) >= {"z-score", "pca", "mahalanobis"}
    assert "toa" not in detector.weights_
    assert detector.predict(spiked()[0])[50:52].all()
    alone = make(model="toa", effort="least", epochs=50).fit(waves())
    assert alone.architecture_["backbone"] == "patchtst"


def test_channel_and_member_scores_add_up(framed):
    frame = table(spiked()[0])
    parts = framed.channel_scores(frame)
    whole = framed.scores(frame)["score"]
    assert list(parts) == ["when", "a", "b"]
    np.testing.assert_allclose(parts["a"] + parts["b"], whole)
    members = framed.member_scores(frame)
    assert list(members) == ["when", *SCORERS, "toa"]
    assert set(framed.choice_.weights) <= set(members)


def test_events_name_the_channel_and_the_time_and_are_sorted_by_severity(framed):
    frame = table(waves(90, 1))
    frame.loc[30:31, "a"] += 4.0
    frame.loc[70:73, "b"] -= 8.0
    events = framed.events(frame)
    assert (np.diff(events["severity"]) <= 0).all()
    assert list(events["event"]) == list(range(1, len(events) + 1))
    first = events.iloc[0]
    assert first["channel"] == "b"
    assert first["why"].startswith("b ")
    assert first["start"] <= frame["when"][70] <= first["peak"] <= first["end"]
    second = events[events["channel"] == "a"].iloc[0]
    assert second["start"] <= frame["when"][30] <= second["end"]
    import polars

    again = framed.events(polars.from_pandas(frame))
    assert isinstance(again, polars.DataFrame)
    assert again["why"].to_list() == events["why"].tolist()


def test_events_of_arrays_and_ids_name_rows_and_series(fitted, grouped):
    values, _ = spiked()
    events = fitted.events([waves(60, 1), values])
    assert events["series"][0] == 1
    assert 50 - WINDOW < events["start"][0] <= 50 <= events["end"][0] < 52 + 2 * WINDOW
    frame = machines(60)
    frame.loc[(frame["machine"] == "m2") & (frame["when"] == "2024-01-02"), "a"] += 9e3
    assert grouped.events(frame)["machine"][0] == "m2"


def test_a_level_shift_is_found_to_its_end_and_not_only_at_its_edge():
    values = waves(400, 1)
    values[150:300, 1] += 3.0
    detector = make(epochs=1).fit(waves(600))
    flags = detector.predict(values)
    assert flags[150:300].mean() > 0.95
    assert flags[:120].mean() < 0.1
    detector.reset_stream()
    assert detector.detect(values)["anomaly"][150:300].mean() > 0.95


def test_one_wrong_value_is_not_an_alarm_of_all_windows_that_contain_it(fitted):
    values = waves(seed=1)
    values[120, 0] = -9_999.0
    flags = fitted.predict(values)
    assert flags[120]
    assert flags.sum() < 1.5 * WINDOW
    # in a stream, of the rows after it
    fitted.reset_stream()
    assert fitted.detect(values)["anomaly"].sum() < WINDOW
    # the methods that score rows one by one are fitted to it
    combined, alone = (make(model=name, epochs=1).fit(values) for name in ("auto", "mahalanobis"))
    for key, value in alone.scorers_["mahalanobis"].state().items():
        torch.testing.assert_close(combined.scorers_["mahalanobis"].state()[key], value)


def test_the_rule_of_the_threshold_is_that_of_the_arguments():
    frame = table(waves(480))
    few = make(model="z-score", threshold="budget", alarms_per_day=0.2).fit(frame)
    many = make(model="z-score", threshold="budget", alarms_per_day=2.0).fit(frame)
    assert len(few.events(frame)) <= 4 < len(many.events(frame)) <= 40
    rare = make(model="z-score", threshold="extreme value", contamination=1e-6).fit(frame)
    assert rare.threshold_ > make(model="z-score", contamination=1e-6).fit(frame).threshold_
    with pytest.raises(ValueError, match="threshold='budget' must have data with dates"):
        make(threshold="budget").fit(waves())


def test_an_alarm_of_a_stream_needs_the_minimum_length():
    detector = make(model="z-score", min_length=3).fit(waves())
    values = waves(60, 1)
    values[20:22] += 9.0
    values[40:45] += 9.0
    result = pd.concat([detector.detect(values[i : i + 1]) for i in range(60)])["anomaly"]
    assert np.flatnonzero(result).tolist() == [42, 43, 44]
    assert np.flatnonzero(detector.predict(values)).tolist() == [40, 41, 42, 43, 44]


@pytest.mark.parametrize("model", ["auto", "toa"])
def test_rows_equal_to_those_of_a_constant_table_are_not_flagged(model, tmp_path):
    rows = np.full((80, 2), 0.1)
    fresh = make(model=model, epochs=1).fit(rows)
    fresh.save(tmp_path / "m.toa")
    for detector in (fresh, AnomalyDetector.load(tmp_path / "m.toa", device="cpu")):
        assert not detector.predict(rows).any()
        assert not detector.predict(rows[:33]).any()
        assert not detector.detect(rows[:20])["anomaly"].any()
        assert detector.predict(rows + np.arange(80)[:, None] // 40)[45:].all()


def test_each_series_gets_other_anomalies(monkeypatch):
    labels = []

    def inject(values, window, seed):
        changed, injected = inject_anomalies(values, window, seed)
        labels.append(injected)
        return changed, injected

    monkeypatch.setattr("toa.estimators.detection_fitting.inject_anomalies", inject)
    make(model="auto", epochs=1).fit([waves(120), waves(120)])
    assert (labels[0] != labels[1]).any()


def test_windows_read_at_most_five_standard_deviations(tmp_path):
    rows = np.random.default_rng(0).normal(size=(400, 2))
    model = make(model="auto", time_limit=1e6, epochs=1).fit(rows)
    assert model.weights_["toa"] > 0
    scores = {}
    for size in (3.0, 6.0, 9.0):
        wrong = rows.copy()
        wrong[200:205] = size * rows.std(0) + rows.mean(0)
        scores[size] = model.member_scores(wrong)
    # rows of their own tell values apart, windows only up to the largest
    assert np.allclose(scores[6.0]["toa"], scores[9.0]["toa"])
    assert scores[3.0]["toa"][202] < scores[6.0]["toa"][202]
    assert scores[6.0]["z-score"][202] < scores[9.0]["z-score"][202]
    model.save(tmp_path / "d.toa")
    assert AnomalyDetector.load(tmp_path / "d.toa").largest_ == model.largest_ == 5.0
    tensors, facts = model._saved()
    fitted = facts["fitted"]
    # older files clipped at ten, and named no number
    older = {name: value for name, value in fitted.items() if name != "largest"}
    save_file(tmp_path / "d.toa", "anomaly detector", tensors, {**facts, "fitted": older})
    assert AnomalyDetector.load(tmp_path / "d.toa").largest_ == 10.0
    save_file(tmp_path / "d.toa", "anomaly detector", tensors, {**facts, "fitted": {**fitted, "largest": -1.0}})
    with pytest.raises(ValueError, match=message("largest must be positive, got -1.0")):
        AnomalyDetector.load(tmp_path / "d.toa")


@pytest.mark.parametrize("stop", [ValueError("stopped"), KeyboardInterrupt()])
def test_a_fit_that_fails_or_is_stopped_leaves_the_detector_as_it_was(stop, monkeypatch):
    detector = make(model="pca").fit(waves())
    detector.detect(waves(30))
    before = detector.fitted_
    scores = detector.scores(waves(40))

    def fail(*_):
        raise stop

    monkeypatch.setattr("toa.estimators.detection_fitting.fit_baselines", fail)
    with pytest.raises(type(stop)):
        detector.fit(2.0 * waves(100)[:, :1])
    monkeypatch.undo()
    assert detector.fitted_ is before
    assert (detector.scores(waves(40)) == scores).all()
    # its stream continues
    assert detector.detect(waves(31)[30:]).index.tolist() == [30]


def test_a_fitted_detector_is_frozen_and_scoring_changes_nothing(fitted):
    with pytest.raises(AttributeError):
        fitted.fitted_.thresholds = Thresholds(rows=0.0, stream=0.0)
    before = fitted.fitted_
    fitted.reset_stream()
    fitted.detect(waves(20))
    fitted.events(spiked()[0])
    assert fitted.fitted_ is before
