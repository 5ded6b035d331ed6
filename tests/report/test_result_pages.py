"""Pages of estimators' results, without a browser."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.report.cases import read_page
from toa import AnomalyDetector, Forecaster
from toa.cli import app
from toa.report import write_results


def part_of(page, title, kind):
    (section,) = [one for one in page["sections"] if one["title"] == title]
    return next(part for part in section["parts"] if part["kind"] == kind)


def test_the_page_of_a_forecast_holds_what_the_forecaster_returns(forecast_page, hourly_rows):
    model, path = forecast_page
    page = read_page(path)
    chart = part_of(page, "Forecast", "chart")
    (series,) = chart["series"]
    found = model.predict(hourly_rows)
    for panel, column in zip(series["panels"], model.columns_, strict=True):
        lines = {line["name"]: line for line in panel["lines"]}
        assert panel["name"] == column
        assert lines["forecast"]["start"] == len(lines["past"]["y"]) == 200
        np.testing.assert_allclose(lines["forecast"]["y"], found[column], rtol=1e-4)
        np.testing.assert_allclose(panel["band"]["upper"], found[f"{column}_upper"], rtol=1e-4)
        naive = model.predict_baseline("seasonal naive", hourly_rows)[column]
        np.testing.assert_allclose(lines["seasonal naive"]["y"], naive, rtol=1e-4)
    assert panel["band"]["name"] == "80% interval"
    assert chart["dates"]
    assert pd.Timestamp(series["x"][-1], unit="ms") == found["when"].iloc[-1]
    rows = part_of(page, "Errors", "table")["rows"]
    tested = model.backtest(hourly_rows, test_size=0.2)
    assert float(rows[1][1]) == pytest.approx(tested.comparison["model"].overall["mae"], rel=1e-3)
    assert {"model", "seasonal naive", "drift", "theta"} <= {row[0] for row in rows}
    assert part_of(page, "What the forecast depends on", "operators")["models"][0]["pictures"]
    texts = [part["text"] for part in page["sections"][2]["parts"] if part["kind"] == "text"]
    (looked,) = [text for text in texts if text.startswith("What the network looked at")]
    assert re.search(r"A token is \d+ rows? of one column, \d+ hour", looked)
    assert part_of(page, "Repeat", "code")["text"] == "toa forecast 'a b.csv'"


def test_the_page_states_what_was_filled_and_left_out(forecast_page):
    notes = part_of(read_page(forecast_page[1]), "Notes on the data", "list")["items"]
    assert notes == [
        "Rows from 2024-03-01 00:00:00 to 2024-03-09 07:00:00.",
        "Gaps: 2 rows were missing in time and were filled (interpolate).",
        "Missing values that were filled (interpolate): 1 in <b>load</b>.",
        "Columns left out: unused.",
        "Constant columns: drift.",
    ]


def test_names_of_users_are_no_markup_and_the_page_needs_no_other_file(forecast_page):
    text = forecast_page[1].read_text()
    assert "<title>&lt;i&gt;Load&lt;/i&gt;</title>" in text
    assert "onerror" not in text
    assert "<b>load" not in text
    assert text.count("</script>") == 2
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|script)[^>]+(src|href)=", text)


def test_the_page_of_a_detector_holds_its_events(event_page):
    model, rows, path = event_page
    page = read_page(path)
    events = model.events(rows)
    head, *shown = part_of(page, "Events", "table")["rows"]
    for name in ("event", "id", "start", "end", "peak", "rows", "why"):
        assert [row[head.index(name)] for row in shown] == [str(cell) for cell in events[name]]
    chart = part_of(page, "Events", "chart")
    # the series of the most severe event first
    assert [one["name"] for one in chart["series"]] == ["q", "p"]
    first, *channels = chart["series"][0]["panels"]
    assert (first["name"], first["level"]["value"]) == ("score", model.threshold_)
    np.testing.assert_allclose(first["lines"][0]["y"], model.scores(rows[rows.id == "q"])["score"], rtol=1e-4)
    spans = [(pd.Timestamp(low, unit="ms"), kind) for low, _, _, kind in first["spans"]]
    assert spans[:2] == [(pd.Timestamp("2023-04-11"), "known"), (events["start"].iloc[0], "event")]
    series, low, high = part_of(page, "Events", "table")["jumps"][0]
    assert series == 0
    assert (
        pd.Timestamp(low, unit="ms") < events["start"].iloc[0] <= events["end"].iloc[0] < pd.Timestamp(high, unit="ms")
    )
    bars = part_of(page, "What the events depend on", "bars")["rows"]
    # the channels with the largest shares first
    assert [name for name, *_ in bars] == [panel["name"] for panel in channels] == ["<b>", "x"]
    assert part_of(page, "Methods", "table")["rows"][0][-1] == "average precision on known anomalies"


def test_a_long_series_is_shown_by_its_extremes(tmp_path):
    rows = np.random.default_rng(4).normal(size=120_000)
    rows[70_001] = 50.0
    model = AnomalyDetector(model="z-score", window=20, device="cpu").fit(rows[:5_000])
    page = read_page(model.page(tmp_path / "page.html", rows))
    (series,) = part_of(page, "Events", "chart")["series"]
    values = series["panels"][1]["lines"][0]["y"]
    assert len(values) == len(series["x"]) < 120_000
    assert (max(values), min(values)) == (50.0, pytest.approx(rows.min(), rel=1e-5))
    assert part_of(page, "Events", "text")["text"].startswith("Of up to 3 rows the chart shows")


def test_the_page_of_a_classifier_holds_the_cases_behind_each_cell(case_page):
    model, cases, labels, path = case_page
    page = read_page(path)
    part = part_of(page, "Cases", "matrix")
    assert part["names"] == ["<b>up</b>", "down"]
    predicted = model.predict(cases)
    for row, true in enumerate(part["names"]):
        for column, guess in enumerate(part["names"]):
            behind = np.flatnonzero((labels == true) & (predicted == guess)) + 1
            assert part["counts"][row][column] == len(behind)
            assert [int(one[0]) for one in part["cases"] if one[1:3] == [row, column]] == behind.tolist()
    name, _, _, chance, at = part["cases"][5]
    assert chance == pytest.approx(model.predict_proba(cases)[5].max(), rel=1e-4)
    assert part["chart"]["series"][at]["name"] == name == "6"
    drawn = part["chart"]["series"][at]["panels"][1]["lines"][0]["y"]
    np.testing.assert_allclose(drawn, cases[5, 1], rtol=1e-4)
    channels, steps, lags, columns = [one for one in page["sections"][2]["parts"] if one["kind"] == "bars"]
    # the classes differ in the first channel
    assert max(channels["rows"], key=lambda row: row[1])[0] == "0"
    assert len(steps["rows"]) == 8
    assert columns["rows"][0][0] == "0"
    found = model.explain(cases)
    assert [row[2] for row in lags["rows"]] == [f"{share:.1%}" for share in found.blocks(16).values()]


def test_cases_without_labels_are_listed(case_page, tmp_path):
    model, cases, *_ = case_page
    page = read_page(model.page(tmp_path / "page.html", cases[:3]))
    assert [one[:2] for one in part_of(page, "Cases", "cases")["cases"]] == [["1", None], ["2", None], ["3", None]]


def test_lags_that_a_forecast_repeats_change_it_most(tmp_path):
    rows = np.random.default_rng(1).normal(size=60).cumsum()
    model = Forecaster(1, model="auto", season=1, effort="least", device="cpu").fit(rows)
    page = read_page(model.page(tmp_path / "page.html", rows))
    section = next(one for one in page["sections"] if one["title"] == "What the forecast depends on")
    *_, bars = (part for part in section["parts"] if part["kind"] == "bars")
    assert section["parts"][-1]["text"].startswith("No network decides here, only: ")
    assert max(bars["rows"], key=lambda row: row[1])[0].startswith("lag")
    # a random walk is forecast from its last value
    assert bars["rows"][0][1] == 1.0


@pytest.mark.filterwarnings("ignore:The forecast does not depend")
@pytest.mark.parametrize("columns", [["a"], ["a", "b"]])
def test_covariates_have_no_part_in_the_change_by_lags(tmp_path, columns):
    def shown(size):
        rows = np.arange(60.0)
        table = pd.DataFrame({column: np.sin(rows / (2.0 + place)) for place, column in enumerate(columns)})
        table["size"] = size * (rows % 7.0)
        model = Forecaster(2, effort="least", values=columns, past_covariates=["size"]).fit(table)
        page = read_page(model.page(tmp_path / "page.html", table))
        (section,) = (part for part in page["sections"] if part["title"] == "What the forecast depends on")
        # the bars after their text
        texts = [part.get("text", "") for part in section["parts"]]
        place = next(place for place, text in enumerate(texts) if "straight line" in text)
        return section["parts"][place + 1]["rows"]

    assert shown(1.0)[0][0].startswith("lag")
    assert shown(1.0) == shown(1000.0)


def test_a_page_of_several_series_without_dates(tmp_path):
    rows = [np.arange(30.0) % 7, np.arange(40.0) % 7]
    model = Forecaster(7, season=7, effort="least", device="cpu").fit(rows)
    page = read_page(model.page(tmp_path / "page.html", rows, left_out=["extra"]))
    assert part_of(page, "Notes on the data", "list")["items"] == ["Columns left out: extra."]
    chart = part_of(page, "Forecast", "chart")
    assert [(one["name"], one["x"][-1]) for one in chart["series"]] == [("0", 37), ("1", 47)]
    assert not chart["dates"]
    assert "Forecaster(" in part_of(page, "Repeat", "code")["text"]


def test_numbers_that_json_lacks_and_broken_text_do_not_break_a_page(tmp_path):
    write_results("\ud800", {"numbers": [1.0, math.nan, math.inf], "text": "\ud800"}, tmp_path / "page.html")
    assert read_page(tmp_path / "page.html") == {"numbers": [1.0, None, None], "text": "?"}


def test_hours_after_the_clock_is_set_back_keep_their_order(tmp_path):
    hours = pd.date_range("2024-10-26", periods=72, freq="h", tz="Europe/Berlin")
    rows = pd.DataFrame({"hour": hours, "x": np.arange(72.0) % 24})
    page = read_page(Forecaster(2, effort="least", device="cpu").fit(rows).page(tmp_path / "page.html", rows))
    axis = part_of(page, "Forecast", "chart")["series"][0]["x"]
    assert set(np.diff(axis)) == {3_600_000}
    assert (
        "The clock was set back in these rows, so the chart shows UTC."
        in (part_of(page, "Notes on the data", "list")["items"])
    )


def test_the_command_writes_the_page_with_itself_on_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"day": pd.date_range("2024-01-01", periods=40), "x": np.arange(40) % 7}).to_csv("x.csv", index=False)
    words = ["forecast", "x.csv", "--horizon", "7", "--effort", "least", "--device", "cpu", "--page", "my page.html"]
    monkeypatch.setattr("sys.argv", ["toa", *words])
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "page:    my page.html" in done.output
    page = read_page(tmp_path / "my page.html")
    assert part_of(page, "Repeat", "code")["text"] == (
        "toa forecast x.csv --horizon 7 --effort least --device cpu --page 'my page.html'"
    )
    assert {"forecast", "seasonal naive"} <= {row[0] for row in part_of(page, "Errors", "table")["rows"]}


def test_detect_writes_a_page_and_classify_only_of_classified_cases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = pd.DataFrame({"x": np.sin(np.arange(200) / 3), "bad": 0})
    rows.loc[150:152, "x"] = [8.0, 9.0, 7.0]
    rows.loc[150:152, "bad"] = 1
    rows.to_csv("x.csv", index=False)
    words = ["--method", "z-score", "--window", "20", "--label", "bad", "--device", "cpu", "--page", "x.html"]
    done = CliRunner().invoke(app, ["detect", "x.csv", *words])
    assert done.exit_code == 0, done.output
    page = read_page(tmp_path / "x.html")
    assert page["title"] == "x.csv: events"
    (series,) = part_of(page, "Events", "chart")["series"]
    assert {span[3] for span in series["panels"][0]["spans"]} == {"event", "known"}
    done = CliRunner().invoke(app, ["classify", "x.csv", "--label", "bad", "--save", "m.toa", "--page", "c.html"])
    assert (done.exit_code, "--page must come with --test or --model" in done.output) == (2, True)


def test_classify_writes_a_page(tmp_path, monkeypatch, case_page):
    monkeypatch.chdir(tmp_path)
    model, cases, labels, _ = case_page
    model.save("kinds.toa")
    lines = ["@problemName cases", "@univariate false", "@dimensions 2", "@classLabel true <b>up</b> down", "@data"]
    for case, label in zip(cases[:4], labels[:4], strict=True):
        lines.append(":".join(",".join(map(str, channel)) for channel in case) + f":{label}")
    (tmp_path / "cases.ts").write_text("\n".join(lines))
    done = CliRunner().invoke(app, ["classify", "cases.ts", "--model", "kinds.toa", "--page", "c.html"])
    assert done.exit_code == 0, done.output
    counts = np.array(part_of(read_page(tmp_path / "c.html"), "Cases", "matrix")["counts"])
    assert counts.sum(1).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("page", "words"), [("page.pdf", "must end in .html"), ("x.csv/page.html", "must be a folder")]
)
def test_a_page_that_cannot_be_written_is_refused_before_training(tmp_path, monkeypatch, page, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("x\n1\n")
    monkeypatch.setattr("toa.cli.terminal.fitted", lambda *_, **__: pytest.fail("trained"))
    done = CliRunner().invoke(app, ["forecast", "x.csv", "--horizon", "1", "--page", page])
    assert done.exit_code == 2
    assert words in done.output
