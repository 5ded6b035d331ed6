import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from toa.cli import app
from toa.estimators import AnomalyDetector, Classifier
from toa.training.detection import vus_metrics

SMALL = ["--epochs", "1", "--device", "cpu"]


def call(*words: object):
    result = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "500", "TERM": "dumb"})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def sensors(rows: int = 120, **columns: object) -> pd.DataFrame:
    t = np.arange(rows)
    frame = pd.DataFrame({"date": pd.date_range("2024-01-01", periods=rows, freq="h"), "a": np.sin(t / 3)})
    return frame.assign(b=np.cos(t / 5), **columns)


def spiked() -> pd.DataFrame:
    frame = sensors(broken=0)
    frame.loc[60:61, ["a", "b"]] += 9.0
    frame.loc[60:61, "broken"] = 1
    return frame


def cases(count: int = 8) -> pd.DataFrame:
    t = np.arange(10)
    kind = np.arange(count) % 2
    return pd.DataFrame(np.sin(np.where(kind, 2.0, 0.5)[:, None] * t)).assign(kind=np.where(kind, "quick", "slow"))


def write(frame: pd.DataFrame, path):
    frame.to_csv(path, index=False)
    return path


TS = """@problemName tiny
@timeStamps false
@univariate true
@equalLength true
@seriesLength 4
@classLabel true up down
@data
1,2,3,4:up
4,3,2,1:down
2,3,4,5:up
5,4,3,2:down
"""


@pytest.mark.parametrize("command", ["detect", "classify"])
def test_help_shows_examples(command):
    code, text = call(command, "--help")
    assert code == 0
    assert f"toa {command} " in text
    assert "--model" in text
    assert "itransformer, patchtst" in text
    assert "toa-softmax" in text


def test_detect_names_the_highest_score_if_no_row_is_flagged(tmp_path):
    normal = write(spiked(), tmp_path / "spiked.csv")
    data = write(sensors(broken=0), tmp_path / "normal.csv")
    code, text = call("detect", data, "--train", normal, "--label", "broken", "--out", tmp_path / "a.csv", *SMALL)
    assert code == 0, text
    assert "0 of 120 rows flagged" in text
    scores = pd.read_csv(tmp_path / "a.csv")["score"]
    assert re.search(rf"The highest score is 0\.\d\d times the threshold, at data row {scores.argmax() + 1}\.", text)


@pytest.mark.usefixtures("pictures")
def test_detect_writes_a_table_a_picture_and_a_reusable_model(tmp_path):
    data = write(spiked(), tmp_path / "own.csv")
    out, model = tmp_path / "found.csv", tmp_path / "own.toa"
    code, text = call("detect", data, "--label", "broken", "--out", out, "--save", model, "--window", 12, *SMALL)
    assert code == 0, text
    assert "channels: a, b. 2 of 120 rows flagged" in text
    assert "fitted to the searched rows; --train gives normal rows" in text
    assert re.search(r"1 2024-01-03 12:00:00 2024-01-03 13:00:00 \S+ \S+ 2 \d\S* [ab] \d+ %", text)
    assert "average precision on anomalies injected into held-out rows: " in text
    assert "against the labels: precision" in text
    assert re.search(r"result \d\.\d+ .* pca \d\.\d+ ", text)
    found = pd.read_csv(out, keep_default_na=False)
    events = pd.read_csv(tmp_path / "found-events.csv")
    assert list(found.columns) == ["date", "score", "anomaly", "event", "why"]
    assert found["score"].argmax() in (60, 61)
    assert found["why"][60] == events["why"][0]
    assert (found["why"][:50] == "").all()
    columns = ["event", "start", "end", "peak", "rows", "reach_start", "reach_end", "severity", "channel", "why"]
    assert list(events) == columns
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    frame = spiked().drop(columns="broken")
    assert np.allclose(AnomalyDetector.load(model).predict(frame)["score"], found["score"])
    code, text = call("detect", data, "--label", "broken", "--model", model, "--out", tmp_path / "again.csv")
    assert code == 0, text
    assert (tmp_path / "again.csv").read_bytes() == out.read_bytes()


@pytest.mark.slow
def test_detect_measures_each_series_by_itself(tmp_path):
    """The buffers of VUS around an anomaly end with its series, in whatever order the rows of the table are."""
    parts = [spiked().assign(machine=name) for name in ("m1", "m2")]
    parts[1].loc[110:, "broken"] = 1
    shown = []
    for name, frame in {"blocks": pd.concat(parts), "turns": pd.concat(parts).sort_values("date")}.items():
        words = ["--label", "broken", "--id", "machine", "--method", "z-score", "--window", 12]
        code, text = call("detect", write(frame, tmp_path / f"{name}.csv"), *words, "--out", tmp_path / "o.csv")
        assert code == 0, text
        assert "VUS-PR, mean of 2 series" in text
        shown += re.findall(r"result (\d\.\d+) ", text)
    found = pd.read_csv(tmp_path / "o.csv")
    labels = pd.concat(parts).sort_values("date")["broken"].to_numpy() == 1
    each = [
        vus_metrics(labels[own], found["score"].to_numpy()[own], max_buffer=12, rules="tsb-ad")["vus_pr"] or 0.0
        for own in found.groupby("machine").indices.values()
    ]
    assert shown == [f"{np.mean(each):.3f}"] * 2


def test_detect_trains_on_another_table_with_ids(tmp_path):
    normal = pd.concat([sensors(machine=name) for name in ("m1", "m2")])
    train = write(normal, tmp_path / "train.csv")
    data = write(normal.groupby("machine").head(40), tmp_path / "new.csv")
    picture = tmp_path / "shown.png"
    words = ["--train", train, "--id", "machine", "--window", 8, "--out", tmp_path / "o.csv", "--picture", picture]
    code, text = call("detect", data, *words, *SMALL)
    assert code == 0, text
    assert len(pd.read_csv(tmp_path / "o.csv")) == 80
    assert picture.exists()


@pytest.mark.filterwarnings("default:.*of the rows are flagged")
def test_detect_by_a_baseline_merges_alarms_by_the_rules(tmp_path):
    frame = sensors(200)
    frame.loc[[100, 101, 102, 108, 109, 110, 150], "a"] += 9.0
    words = ["--train", write(sensors(200), tmp_path / "normal.csv"), "--method", "pca", "--contamination", 0.001]
    words += ["--min-length", 2, "--cool-down", 6, "--out", tmp_path / "o.csv", "--device", "cpu"]
    code, text = call("detect", write(frame, tmp_path / "own.csv"), *words)
    assert code == 0, text
    assert "warning: 3.0% of the rows are flagged, 0.10% was expected of normal rows" in text
    assert "method: pca." in text
    assert "expected in normal rows: about 0.1 % of them above the threshold; after a fit to few rows usually" in text
    (event,) = pd.read_csv(tmp_path / "o-events.csv").itertuples()
    assert (event.start, event.end, event.rows) == ("2024-01-05 04:00:00", "2024-01-05 14:00:00", 11)
    found = pd.read_csv(tmp_path / "o.csv")
    assert np.flatnonzero(found["anomaly"]).tolist() == [100, 101, 102, 108, 109, 110]
    assert np.flatnonzero(found["event"]).tolist() == list(range(100, 111))


@pytest.mark.parametrize(("words", "events"), [((), "1"), (("--alarms-per-day", 0.5), "0.5")])
def test_detect_states_the_events_that_a_budget_allows(tmp_path, words, events):
    options = ("--threshold", "budget", *words, "--method", "pca", "--out", tmp_path / "o.csv", "--device", "cpu")
    code, text = call("detect", write(sensors(), tmp_path / "own.csv"), *options)
    assert code == 0, text
    assert f"expected in normal rows: events, at most {events} per day, approximately." in text
    # a method of single rows
    assert "a strong event" not in text


BAD_DETECT = {
    "both": (["--model", "m.toa", "--train", "t.csv"], "--train cannot be combined with --model"),
    "option": (["--model", "m.toa", "--window", "8"], "--window goes with training, got it beside --model"),
    "default": (["--model", "m.toa", "--cool-down", "0"], "--cool-down goes with training, got it beside --model"),
    "label": (["--label", "nosuch"], "must have a column 'nosuch', got 'date', 'a'"),
    "wrong label": (["--label", "a"], "must have 0 or 1 in column 'a', got"),
    "no model": (["--model", "nosuch.toa"], "No such file: nosuch.toa"),
    "column": (["--values", "c"], "must have a column 'c'"),
    "method": (["--method", "lof"], "unknown --method 'lof'; known: auto, toa, z-score, pca,"),
    "method of a model": (["--model", "m.toa", "--method", "pca"], "--method goes with training"),
    "rule": (["--threshold", "high"], "unknown threshold 'high'; known: adaptive, quantile, extreme value, budget"),
    "budget": (["--threshold", "budget", "--alarms-per-day", "0"], "--alarms-per-day must be positive, got 0"),
    "length": (["--min-length", "0"], "--min-length must be an integer of at least 1, got 0"),
    "folder": (["--events", "."], "must be a file to write, got a folder"),
}


@pytest.mark.parametrize("name", BAD_DETECT)
def test_detect_exits_with_one_line_on_wrong_options(tmp_path, monkeypatch, name):
    words, complaint = BAD_DETECT[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.toa").touch()
    code, text = call("detect", write(sensors(), tmp_path / "own.csv"), "--out", tmp_path / "o.csv", *words)
    assert code == 2
    assert text.startswith("error: ")
    assert complaint in text
    assert not (tmp_path / "o.csv").exists()


def test_detect_refuses_a_time_column_with_the_name_of_a_result_before_training(tmp_path):
    code, text = call("detect", write(sensors().rename(columns={"date": "start"}), tmp_path / "own.csv"))
    assert code == 2
    assert "must have other names of its id and time columns than a result has, got 'start'; rename it." in text


@pytest.mark.parametrize("name", ["column", "rows", "row"])
def test_detect_checks_the_table_to_search_before_training(tmp_path, monkeypatch, name):
    monkeypatch.setattr("toa.cli.terminal.fitted", lambda *_, **__: pytest.fail("trained"))
    other = sensors().drop(columns="b") if name == "column" else sensors().head(3 if name == "rows" else 1)
    train = write(sensors(), tmp_path / "normal.csv")
    code, text = call("detect", write(other, tmp_path / "own.csv"), "--train", train, "--out", tmp_path / "o.csv")
    assert code == 2
    assert ("got no 'b'" if name == "column" else "must have at least one window of") in text


def test_detect_in_one_row_asks_for_rows_and_for_no_option_that_it_lacks(tmp_path):
    code, text = call("detect", write(sensors().head(1), tmp_path / "own.csv"), "--out", tmp_path / "o.csv")
    assert code == 2
    assert text.endswith("error: DATA must have two rows in a series to infer freq, got one each; add rows. ")


@pytest.mark.parametrize("future", [None, "other"])
def test_forecast_asks_for_future_covariates_before_training(tmp_path, monkeypatch, future):
    monkeypatch.setattr("toa.cli.terminal.fitted", lambda *_, **__: pytest.fail("trained"))
    words = [] if future is None else ["--future", write(sensors()[["date", "a"]], tmp_path / "plan.csv")]
    own = write(sensors(), tmp_path / "own.csv")
    out = tmp_path / "o.csv"
    code, text = call("forecast", own, "--horizon", "4", "--covariate", "b", "--out", out, *words)
    assert code == 2
    assert "--future must have the covariate 'b' of the forecast steps" in text


def test_detect_names_the_row_of_text_and_a_missing_file(tmp_path):
    frame = sensors().astype({"a": object})
    frame.loc[7, "a"] = "broken"
    code, text = call("detect", write(frame, tmp_path / "own.csv"))
    assert code == 2
    assert "'broken' in column 'a' at data row 8" in text
    code, text = call("detect", tmp_path / "nosuch.csv")
    assert code == 2
    assert "No such file" in text


@pytest.mark.usefixtures("pictures")
def test_classify_trains_on_rows_and_classifies_others(tmp_path):
    train = write(cases(), tmp_path / "train.csv")
    test = write(cases(6), tmp_path / "test.csv")
    out, model = tmp_path / "p.csv", tmp_path / "kinds.toa"
    code, text = call("classify", train, "--label", "kind", "--test", test, "--out", out, "--save", model, *SMALL)
    assert code == 0, text
    assert text.startswith("train.csv: 8 cases of 10 steps ('0' to '9'), 1 channel. 2 classes")
    assert "test.csv: 6 cases of 10 steps ('0' to '9'), 1 channel. 6 cases of test.csv: accuracy" in text
    assert "classes, no network (too few cases), cross-validated accuracy" in text
    assert "only for new cases of the same source; 8 cases are too few to rely on it)." in text
    assert "1-NN" in text
    assert re.search(r"recall of each class, lowest first: \w+ [01]\.\d{3}, \w+ [01]\.\d{3}\.", text)
    assert re.search("the stack beats [^;]*most frequent class", text)
    found = pd.read_csv(out)
    assert list(found.columns) == ["case", "prediction", "p(quick)", "p(slow)"]
    quick = cases(6)["kind"] == "quick"
    recall = (found["prediction"][quick] == "quick").mean()
    assert re.search(rf"class cases recall precision \W*quick {quick.sum()} {recall:.3f} ", text), text
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    values = cases(6).drop(columns="kind").to_numpy()
    assert (Classifier.load(model).predict(values) == found["prediction"]).all()
    unlabelled = write(cases(3).drop(columns="kind"), tmp_path / "new.csv")
    code, text = call("classify", unlabelled, "--model", model, "--out", tmp_path / "n.csv")
    assert code == 0, text
    assert text.startswith("new.csv: 3 cases of 10 steps ('0' to '9'), 1 channel. 3 cases of new.csv classified.")
    assert "too high" not in text
    assert (tmp_path / "n.png").exists()
    code, text = call("classify", train, "--model", model, "--out", tmp_path / "again.csv")
    assert code == 0, text
    assert "if the model was trained on these cases, this is too high." in text
    other = cases(6).assign(kind=["quick", "slow", "slwo", "slwo", "idle", "quick"])
    code, text = call("classify", write(other, tmp_path / "o.csv"), "--model", model, "--out", tmp_path / "p.csv")
    assert code == 0, text
    assert "3 cases of o.csv: accuracy" in text
    assert "3 of 6 cases are not evaluated: their labels are not classes of the model: 'slwo' (2), 'idle' (1)." in text


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([*range(20), *range(19, 120)], "error: --train must have each date once, got 2024-01-01 19:00:00 again"),
        (range(3), "error: --train must have two windows of 8 rows"),
    ],
)
def test_detect_names_the_file_of_normal_rows_in_errors(tmp_path, rows, found):
    train = write(sensors().iloc[list(rows)], tmp_path / "train.csv")
    data = write(sensors(), tmp_path / "own.csv")
    code, text = call("detect", data, "--train", train, "--out", tmp_path / "o.csv", *SMALL)
    assert code == 2
    assert found in text


def test_detect_offers_a_new_column_of_zeros_and_ones_as_labels(tmp_path):
    train = write(sensors(), tmp_path / "train.csv")
    words = ("--train", train, "--out", tmp_path / "o.csv", *SMALL)
    code, text = call("detect", write(spiked(), tmp_path / "own.csv"), *words)
    assert code == 2
    assert "got a new one, 'broken'" in text
    assert "or fit again, or give --label broken, if it marks known anomalies." in text
    code, text = call("detect", write(sensors(c=2), tmp_path / "own.csv"), *words)
    assert code == 2
    assert "--label" not in text
    # Excel has numbers as names
    sensors().assign(**{"2025": 0}).rename(columns={"2025": 2025}).to_excel(tmp_path / "own.xlsx", index=False)
    code, text = call("detect", tmp_path / "own.xlsx", *words)
    assert code == 2
    assert "give --label 2025, if it marks known anomalies." in text
    code, text = call("detect", tmp_path / "own.xlsx", *words, "--label", "2025")
    assert code == 0, text


def test_classify_reads_ts_files_and_long_tables(tmp_path):
    (tmp_path / "T_TRAIN.ts").write_text(TS)
    code, text = call(
        "classify", tmp_path / "T_TRAIN.ts", "--test", tmp_path / "T_TRAIN.ts", "--out", tmp_path / "p.csv", *SMALL
    )
    assert code == 0, text
    assert text.count("T_TRAIN.ts: 4 cases of 4 steps, 1 channel. ") == 2
    assert set(pd.read_csv(tmp_path / "p.csv")["prediction"]) <= {"up", "down"}
    rows = [{"case": f"c{i}", "step": s, "v": s * (-1) ** i, "k": i % 2} for i in range(4) for s in range(5)]
    long = write(pd.DataFrame(rows[:-1]).assign(w=1.0), tmp_path / "long.csv")
    columns = ["--id", "case", "--time", "step", "--label", "k"]
    code, text = call("classify", long, *columns, "--test", long, "--out", tmp_path / "l.csv", *SMALL)
    assert code == 0, text
    assert text.startswith("long.csv: 4 cases of 4 to 5 steps, 2 channels ('v', 'w'); ids: 'case'. ")
    found = pd.read_csv(tmp_path / "l.csv")
    assert list(found.columns) == ["case", "prediction", "p(0)", "p(1)"]
    assert found["case"].tolist() == ["c0", "c1", "c2", "c3"]


@pytest.mark.filterwarnings("default:classes")
def test_classify_names_classes_with_one_case(tmp_path):
    own = write(cases(9).assign(kind=["quick", "slow"] * 4 + ["rare"]), tmp_path / "own.csv")
    code, text = call("classify", own, "--label", "kind", "--save", tmp_path / "m.toa", *SMALL)
    assert code == 0, text
    assert text.count("warning: classes with only one case: 'rare'; in cross-validation no model has seen it") == 1
    code, text = call("classify", write(cases(), own), "--label", "kind", "--save", tmp_path / "m.toa", *SMALL)
    assert (code, "only one case" in text) == (0, False), text


def test_detect_with_a_model_without_a_network_asks_for_no_time(tmp_path):
    data = write(sensors(), tmp_path / "own.csv")
    model = tmp_path / "m.toa"
    out = tmp_path / "o.csv"
    code, text = call("detect", data, "--save", model, "--out", out, "--effort", "least", "--device", "cpu")
    assert (code, "no network: --effort is too low for this table." in text) == (0, True), text
    code, text = call("detect", data, "--model", model, "--out", out)
    assert (code, "no network: the model has none." in text) == (0, True), text


@pytest.mark.filterwarnings("default:column")
def test_classify_asks_for_the_ids_of_rows_and_writes_them(tmp_path):
    own = write(cases().assign(sample=np.arange(1, 9)), tmp_path / "own.csv")
    words = ["classify", own, "--label", "kind", "--test", own, "--out", tmp_path / "p.csv", *SMALL]
    code, text = call(*words)
    assert code == 0, text
    note = (
        "warning: column 'sample' is read as step 11 of each case, but looks like an id; give --id sample if it names"
    )
    assert text.count(note) == 1
    code, text = call(*words, "--id", "sample", "--page", tmp_path / "p.html")
    assert code == 0, text
    assert "warning" not in text
    assert text.startswith("own.csv: 8 cases of 10 steps ('0' to '9'), 1 channel; ids: 'sample'. ")
    assert list(pd.read_csv(tmp_path / "p.csv").columns) == ["sample", "prediction", "p(quick)", "p(slow)"]
    assert pd.read_csv(tmp_path / "p.csv")["sample"].tolist() == list(range(1, 9))
    assert "Columns left out" not in (tmp_path / "p.html").read_text()
    named = write(cases().assign(who=list("abcdefgh")), tmp_path / "named.csv")
    code, text = call("classify", named, "--label", "kind", "--save", tmp_path / "m.toa", *SMALL)
    assert code == 2
    assert "got 'a' in column 'who' at data row 1; give --id, if the column names the cases, or drop it" in text


BAD_CLASSIFY = {
    "nothing": ([], "--test or --save must be given"),
    "both": (["--model", "m", "--test", "t"], "--test cannot be combined with --model"),
    "label": (["--save", "m"], "--label must name the column of the classes in"),
    "unlabelled": (["--save", "m", "--label", "nosuch"], "got nosuch; for example --label kind."),
}


def test_classify_checks_the_test_file_before_training(tmp_path, monkeypatch):
    def fit(*_: object) -> None:
        raise AssertionError("trained")

    gap = cases(6)
    gap.loc[2, 4] = np.nan
    train = write(cases(), tmp_path / "train.csv")
    monkeypatch.setattr(Classifier, "fit", fit)
    words = "classify", train, "--label", "kind", "--test"
    code, text = call(*words, write(gap, tmp_path / "gap.csv"))
    assert code == 2
    assert "--test must have no missing values, got 1 NaN: 1 in '4', the first at data row 3" in text
    assert "--missing interpolate" in text
    rows = pd.DataFrame(
        [{"case": i, "step": s, "v": 1.0 * s, "w": 2.0, "k": i % 2} for i in range(4) for s in range(5)]
    )
    long = write(rows, tmp_path / "long.csv")
    less = write(rows.drop(columns="w"), tmp_path / "less.csv")
    code, text = call("classify", long, "--id", "case", "--time", "step", "--label", "k", "--test", less)
    assert code == 2
    assert "--test must have the columns of fit, 'v', 'w', got no 'w'" in text
    write(cases(6).assign(kind="slow"), tmp_path / "one.csv")
    monkeypatch.undo()
    code, text = call("classify", tmp_path / "one.csv", "--label", "kind", "--save", tmp_path / "m.toa")
    assert code == 2
    assert "the labels must have at least two classes, got 1 class, 'slow'" in text


@pytest.mark.filterwarnings("default:1 of 1")
def test_a_longer_test_case_can_be_classified(tmp_path):
    longer = pd.DataFrame(np.sin(0.5 * np.arange(14))[None]).assign(kind="slow")
    train = write(cases(), tmp_path / "train.csv")
    test = write(longer, tmp_path / "test.csv")
    words = ("--label", "kind", "--test", test, "--out", tmp_path / "p.csv", *SMALL)
    code, text = call("classify", train, *words)
    assert code == 0, text
    assert "warning: 1 of 1 cases are much shorter or longer than those of fit, such as 14 steps (fit: 10)" in text
    assert "1 cases of test.csv" in text


@pytest.mark.parametrize("name", BAD_CLASSIFY)
def test_classify_exits_with_one_line_on_wrong_options(tmp_path, name):
    words, complaint = BAD_CLASSIFY[name]
    code, text = call("classify", write(cases(), tmp_path / "own.csv"), *words)
    assert code == 2
    assert complaint in text


def test_a_column_that_the_detector_does_not_have_is_named_and_not_used(tmp_path):
    model = tmp_path / "m.toa"
    first = write(sensors(), tmp_path / "a.csv")
    more = write(sensors(wind=1.0), tmp_path / "b.csv")
    assert call("detect", first, "--save", model, "--out", tmp_path / "c.csv", *SMALL)[0] == 0
    code, text = call("detect", more, "--model", model, "--out", tmp_path / "d.csv")
    assert code == 0, text
    assert "not used, because the model has no such column: wind" in text
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "d.csv"), pd.read_csv(tmp_path / "c.csv"))


def test_a_classifier_without_label_is_told_which_column(tmp_path):
    code, text = call("classify", write(cases(), tmp_path / "own.csv"), "--save", tmp_path / "m.toa", *SMALL)
    assert code == 2
    assert "--label must name the column of the classes in" in text
    assert text.rstrip().endswith("for example --label kind.")


def test_a_stopped_classifier_leaves_its_best_model(tmp_path, monkeypatch):
    @contextmanager
    def stop_later(title):
        def observe(done, total, loss, validation):
            if validation is not None:
                signal.raise_signal(signal.SIGINT)

        yield observe

    monkeypatch.setattr("toa._console.show_epochs", stop_later)
    rows = cases(40)
    # without an error of the other members no network would be trained
    rows.loc[3, "kind"] = "slow"
    table = write(rows, tmp_path / "own.csv")
    model = tmp_path / "m.toa"
    code, text = call(
        "classify", table, "--label", "kind", "--save", model, "--epochs", "50", "--progress", "--device", "cpu"
    )
    assert code == 130
    assert "stopped after" in text
    assert f"the best model so far is in {model}." in text
    assert Classifier.load(model).score(cases(40)) >= 0.5


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_results_are_written_although_the_reader_of_the_output_has_left(tmp_path):
    write(spiked(), tmp_path / "own.csv")
    code = "from toa.cli import app; app(['detect', 'own.csv', '--method', 'pca', '--device', 'cpu'])"
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")
    assert {path.name for path in tmp_path.glob("detection*")} == {
        "detection.csv",
        "detection-events.csv",
        "detection.png",
    }


# command lines that need no data to be refused, and the first words of their error
AT_ONCE = {
    "forecast none.csv --save x.toa": "No such file: none.csv.",
    "detect none.csv --save x.toa": "No such file: none.csv.",
    "classify none.csv --save x.toa": "No such file: none.csv.",
    "explain none.toa": "No such file: none.toa.",
    "forecast own.csv --horizon 3 --interval 80": "--interval must lie in (0, 1), got 80",
    "forecast own.csv --horizon 3 --covariate promo": "--future must have the covariate 'promo'",
    "forecast own.csv --horizon 3 --out x.xls": "--out must be written to a file that ends in .csv",
    "detect own.csv --events x.pkl": "--events must be written to a file that ends in .csv",
    "detect own.csv --contamination 5": "--contamination must lie in (0, 1), got 5",
    "detect own.csv --alarms-per-day 1": "--alarms-per-day must be left out with --threshold adaptive, which does",
    "detect own.csv --threshold budget --contamination 0.01": "--contamination must be left out with --threshold",
    "classify own.csv --save x.toa --picture x.gif": "--picture must end in .png",
}


@pytest.mark.parametrize("line", AT_ONCE)
def test_what_needs_no_data_is_refused_before_heavy_imports(line, tmp_path):
    (tmp_path / "own.csv").write_text("a,b\n1,2\n")
    code = (
        "import sys; from toa.cli import app\n"
        f"try: app({line.split()})\n"
        "except SystemExit as end: sys.exit(end.code if not {'torch', 'pandas'} & set(sys.modules) else 9)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"error: {AT_ONCE[line]}")
