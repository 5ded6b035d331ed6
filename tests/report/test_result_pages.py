"""Pages of estimators' results, without a browser."""

import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.report.paper_cases import read_page
from toa import Forecaster
from toa.cli import app


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
    assert part_of(page, "Repeat", "code")["text"] == "toa forecast 'a b.csv'"


def test_the_page_states_what_was_filled_and_left_out(forecast_page):
    notes = part_of(read_page(forecast_page[1]), "Notes on the data", "list")["items"]
    assert notes == [
        "Rows from 2024-03-01 00:00:00 to 2024-03-09 07:00:00.",
        "Gaps: 2 rows were missing in time and were filled (interpolate).",
        "Missing values that were filled (interpolate): 1 in <b>load</b>.",
        "Columns left out: unused.",
        "Constant columns: flat.",
    ]


def test_names_of_users_are_no_markup_and_the_page_needs_no_other_file(forecast_page):
    text = forecast_page[1].read_text()
    assert "<title>&lt;i&gt;Load&lt;/i&gt;</title>" in text
    assert "onerror" not in text
    assert "<b>load" not in text
    assert text.count("</script>") == 2
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|script)[^>]+(src|href)=", text)


def test_lags_that_a_forecast_repeats_change_it_most(tmp_path):
    rows = np.random.default_rng(1).normal(size=60).cumsum()
    model = Forecaster(1, model="auto", season=1, time_limit=0.1, device="cpu").fit(rows)
    page = read_page(model.page(tmp_path / "page.html", rows))
    section = next(one for one in page["sections"] if one["title"] == "What the forecast depends on")
    *_, bars = (part for part in section["parts"] if part["kind"] == "bars")
    assert max(bars["rows"], key=lambda row: row[1])[0].startswith("lag")
    # a random walk is forecast from its last value
    assert bars["rows"][0][1] == 1.0


def test_a_page_of_several_series_without_dates(tmp_path):
    rows = [np.arange(30.0) % 7, np.arange(40.0) % 7]
    model = Forecaster(7, season=7, time_limit=0.1, device="cpu").fit(rows)
    page = read_page(model.page(tmp_path / "page.html", rows))
    chart = part_of(page, "Forecast", "chart")
    assert [(one["name"], one["x"][-1]) for one in chart["series"]] == [("0", 37), ("1", 47)]
    assert not chart["dates"]
    assert "Forecaster(" in part_of(page, "Repeat", "code")["text"]


def test_the_command_writes_the_page_with_itself_on_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"day": pd.date_range("2024-01-01", periods=40), "x": np.arange(40) % 7}).to_csv("x.csv", index=False)
    words = ["forecast", "x.csv", "--horizon", "7", "--time-limit", "0.1", "--device", "cpu", "--page", "my page.html"]
    monkeypatch.setattr("sys.argv", ["toa", *words])
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "page:    my page.html" in done.output
    page = read_page(tmp_path / "my page.html")
    assert part_of(page, "Repeat", "code")["text"] == (
        "toa forecast x.csv --horizon 7 --time-limit 0.1 --device cpu --page 'my page.html'"
    )
    assert {"forecast", "seasonal naive"} <= {row[0] for row in part_of(page, "Errors", "table")["rows"]}


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
