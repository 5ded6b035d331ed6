"""`toa forecast` on tables as users have them, from the file to the dates of the forecast."""

import errno
import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.report.cases import read_page
from toa.cli import app
from toa.estimators import Forecaster

# the command prints warnings itself
pytestmark = pytest.mark.filterwarnings("always::UserWarning")

# one short fit without a network
QUICK = ("--horizon", "3", "--effort", "least", "--device", "cpu")
MONTHS = pd.date_range("2012-01-01", periods=40, freq="MS")


def call(path, *words: object, options: tuple[str, ...] = QUICK, out: str = "next.csv") -> tuple[int, str]:
    line = ["forecast", str(path), *map(str, words), *options, "--out", str(path.with_name(out))]
    result = CliRunner().invoke(app, line, env={"COLUMNS": "300", "TERM": "dumb"})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def table(dates: pd.DatetimeIndex) -> pd.DataFrame:
    steps = np.arange(len(dates))
    return pd.DataFrame({"when": dates, "y": (100 + steps + 10 * np.sin(steps * np.pi / 6)).round(2)})


def test_semicolons_decimal_commas_and_days_first(tmp_path) -> None:
    path = tmp_path / "sales.csv"
    table(MONTHS).assign(when=MONTHS.strftime("%d/%m/%Y")).to_csv(path, index=False, sep=";", decimal=",")
    code, text = call(path)
    assert code == 0, text
    assert "40 rows, every MS; forecast: y." in text
    assert text.count("warning: column 'when' of DATA: '01/02/2012' is read with the day first") == 1
    assert "warning: sales.csv: numbers are read with a decimal comma in 'y'." in text
    found = pd.read_csv(tmp_path / "next.csv")
    assert found["when"].tolist() == ["2015-05-01", "2015-06-01", "2015-07-01"]
    assert found["y"].between(100, 200).all()


def test_an_order_that_is_not_known_is_asked_for_by_its_options(tmp_path) -> None:
    path = tmp_path / "sales.csv"
    table(MONTHS[:10]).assign(when=MONTHS[:10].strftime("%d/%m/%Y")).to_csv(path, index=False)
    code, text = call(path)
    assert code == 2
    assert "error: column 'when' of DATA must show if the day or the month comes first, got '01/02/2012'" in text
    assert "give --day-first or --month-first." in text
    for option, first in (("--day-first", "2012-11-01"), ("--month-first", "2012-01-11")):
        assert call(path, option)[0] == 0
        assert pd.read_csv(tmp_path / "next.csv")["when"].tolist()[0] == first


def test_a_saved_model_reads_dates_in_the_order_of_its_training(tmp_path) -> None:
    path, saved = tmp_path / "sales.csv", tmp_path / "m.toa"
    table(MONTHS).assign(when=MONTHS.strftime("%d/%m/%Y")).to_csv(path, index=False)
    assert call(path, "--save", saved)[0] == 0
    table(MONTHS[-8:]).assign(when=MONTHS[-8:].strftime("%d/%m/%Y")).to_csv(path, index=False)
    code, text = call(path, "--model", saved, options=())
    assert code == 0, text
    assert pd.read_csv(tmp_path / "next.csv")["when"].tolist()[0] == "2015-05-01"
    assert "got '" not in text


def test_local_times_with_summer_time_need_their_zone(tmp_path) -> None:
    path = tmp_path / "load.csv"
    hours = pd.date_range("2024-10-24", periods=120, freq="h", tz="Europe/Rome")
    table(hours).assign(when=hours.strftime("%d.%m.%Y %H:%M")).to_csv(path, index=False)
    code, text = call(path)
    assert (code, "or give --time-zone, if the clocks were changed in that hour." in text) == (2, True), text
    code, text = call(path, "--time-zone", "Europe/Rome")
    assert code == 0, text
    assert pd.read_csv(tmp_path / "next.csv")["when"].tolist()[0] == "2024-10-28 23:00:00+01:00"


@pytest.mark.parametrize("ending", ["parquet", "feather", "xlsx", "jsonl"])
def test_other_formats_have_the_forecast_of_the_csv_file(ending, tmp_path) -> None:
    frame = table(MONTHS)
    path = tmp_path / f"a.{ending}"
    frame.to_csv(tmp_path / "a.csv", index=False)
    write = {"parquet": frame.to_parquet, "feather": frame.to_feather, "xlsx": lambda p: frame.to_excel(p, index=False)}
    write.get(ending, lambda p: frame.to_json(p, orient="records", lines=True, date_format="iso"))(path)
    assert call(tmp_path / "a.csv")[0] == 0
    expected = pd.read_csv(tmp_path / "next.csv")
    code, text = call(path)
    assert code == 0, text
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "next.csv"), expected)


def test_columns_that_begin_years_apart_and_a_constant_text(tmp_path) -> None:
    frame = table(MONTHS).assign(region="PJM", late=np.arange(40.0)).assign(later=50.0 + np.arange(40.0))
    frame.loc[:23, "late"] = np.nan
    frame.loc[:29, "later"] = np.nan
    frame.to_csv(tmp_path / "a.csv", index=False)
    code, text = call(tmp_path / "a.csv", "--test", 0.2)
    assert code == 0, text
    assert "some columns begin later than others: 'late' at 2014-01-01 00:00:00, 'later' at 2014-07-01" in text
    assert "are left out: 'region'" in text
    assert "forecast: y, late, later." in text
    found = pd.read_csv(tmp_path / "next.csv")
    # the weights of the methods are chosen for all columns, and not all methods continue a line
    np.testing.assert_allclose(found["late"], [40, 41, 42], atol=3)
    np.testing.assert_allclose(found["later"], [90, 91, 92], atol=3)


@pytest.mark.slow
def test_series_of_very_different_lengths_and_ids_that_were_not_trained(tmp_path) -> None:
    days = pd.date_range("2024-01-01", periods=90)
    lengths = {"a": 90, "b": 30, "c": 7, "d": 1}
    frame = pd.concat([table(days[:rows]).assign(shop=shop) for shop, rows in lengths.items()])
    frame.to_csv(tmp_path / "a.csv", index=False)
    limit = (*QUICK[:2], "--backbone", "dlinear", "--epochs", "1", "--device", "cpu")
    code, text = call(tmp_path / "a.csv", "--id", "shop", "--save", tmp_path / "m.toa", options=limit)
    assert code == 0, text
    found = pd.read_csv(tmp_path / "next.csv")
    assert found["shop"].value_counts().to_dict() == dict.fromkeys(lengths, 3)
    # the wave rises by 1 a day; one row has no trend
    ends = {shop: table(days[:rows])["y"].iloc[-1] for shop, rows in lengths.items()}
    assert ((found["y"] - found["shop"].map(ends)).abs() < 15).all()
    assert found["y"][found["shop"] == "d"].between(99, 104).all()
    frame.assign(shop=frame["shop"] + "2", y=frame["y"] * 1000).to_csv(tmp_path / "new.csv", index=False)
    code, text = call(tmp_path / "new.csv", "--model", tmp_path / "m.toa", options=())
    assert code == 0, text
    assert "4 series were not in the training, such as 'a2'" in text
    found = pd.read_csv(tmp_path / "next.csv")
    assert found["y"].between(90_000, 250_000).all()


def test_gaps_are_filled_as_asked(tmp_path) -> None:
    table(MONTHS).drop(index=[5, 20, 21]).to_csv(tmp_path / "a.csv", index=False)
    assert "fill them with --missing interpolate" in call(tmp_path / "a.csv")[1]
    code, text = call(tmp_path / "a.csv", "--missing", "interpolate")
    assert code == 0, text
    assert "37 rows, every MS" in text
    filled = pd.read_csv(tmp_path / "next.csv")
    table(MONTHS).to_csv(tmp_path / "a.csv", index=False)
    assert call(tmp_path / "a.csv")[0] == 0
    whole = pd.read_csv(tmp_path / "next.csv")
    assert filled["when"].tolist() == whole["when"].tolist()
    np.testing.assert_allclose(filled["y"], whole["y"], atol=3)


def test_thirty_rows_are_forecast_with_their_trend_and_an_interval(tmp_path) -> None:
    days = pd.date_range("2024-01-01", periods=33)
    frame = table(days).assign(y=100.0 + 2.0 * np.arange(33) + np.random.default_rng(0).normal(size=33).round(2))
    frame[:30].to_csv(tmp_path / "a.csv", index=False)
    code, text = call(tmp_path / "a.csv")
    assert code == 0, text
    found = pd.read_csv(tmp_path / "next.csv")
    assert found["when"].tolist() == ["2024-01-31", "2024-02-01", "2024-02-02"]
    np.testing.assert_allclose(found["y"], frame["y"][30:], atol=3)
    assert (found["y_lower"] < frame["y"].to_numpy()[30:]).all()
    assert (found["y_upper"] > frame["y"].to_numpy()[30:]).all()


def test_past_and_static_covariates_and_holidays(tmp_path) -> None:
    days = pd.date_range("2024-01-01", periods=80)
    parts = [table(days).assign(shop=shop, region=region) for shop, region in (("a", "north"), ("b", "south"))]
    frame = pd.concat(parts).assign(lead=lambda one: one["y"] / 2)
    frame.to_csv(tmp_path / "a.csv", index=False)
    words = ("--id", "shop", "--past-covariate", "lead", "--static", "region", "--holidays", "US-CA")
    quick = ("--backbone", "dlinear", "--epochs", 1, "--device", "cpu", "--save", tmp_path / "m.toa")
    code, text = call(tmp_path / "a.csv", *words, "--network-only", *quick, options=QUICK[:2])
    assert code == 0, text
    assert "160 rows of 2 series, every D; forecast: y." in text
    first = pd.read_csv(tmp_path / "next.csv")
    code, text = call(tmp_path / "a.csv", "--model", tmp_path / "m.toa", options=())
    assert code == 0, text
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "next.csv"), first)


def test_a_covariate_without_influence_is_named_in_the_terminal_and_on_the_page(tmp_path) -> None:
    table(MONTHS).assign(lead=np.arange(40) % 5).to_csv(tmp_path / "a.csv", index=False)
    unused = "The forecast does not depend on 'lead': no method with a weight uses it."
    saved, page = tmp_path / "m.toa", tmp_path / "p.html"
    code, text = call(tmp_path / "a.csv", "--past-covariate", "lead", "--save", saved, "--page", page, "--test", 0.3)
    assert (code, text.count(f"warning: {unused}")) == (0, 1), text
    assert unused in str(read_page(page))
    assert f"warning: {unused}" in call(tmp_path / "a.csv", "--model", saved, options=())[1]


@pytest.mark.parametrize(
    ("first", "words", "expected"),
    [
        ("", (), "must have text in every row, got an empty cell at data row 1 (39 such rows); fill empty cells, for"),
        (
            "none",
            ("--test", 0.3),
            "must have each of its texts before the tested rows, got 'Easter' only in the rows of",
        ),
        (
            "none",
            ("--test", 0.3),
            "--test 0.3, first at data row 31; test fewer rows, or use an earlier text.",
        ),
    ],
)
def test_texts_of_a_covariate_are_checked_before_training(tmp_path, monkeypatch, first, words, expected) -> None:
    def train(*_: object) -> None:
        raise AssertionError("trained before the check")

    monkeypatch.setattr("toa.estimators.forecaster.fit_forecaster", train)
    table(MONTHS).assign(day=[*[first] * 30, "Easter", *[first] * 9]).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"when": MONTHS[:3] + pd.DateOffset(months=40), "day": "none"}).to_csv(tmp_path / "b.csv", index=False)
    code, text = call(
        tmp_path / "a.csv", "--time", "when", "--covariate", "day", "--future", tmp_path / "b.csv", *words
    )
    assert code == 2, text
    assert "error: column 'day' of DATA must" in text
    assert expected in text


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        (lambda future: future.assign(day="Easter"), "column 'day' of --future must have a category of fit", ()),
        (lambda future: future[:1], "--future must have 3 rows, the horizon of fit, got 1", ("--test", 0.3)),
        (
            lambda future: future.assign(when=future["when"] + pd.DateOffset(months=1)),
            "--future must continue DATA",
            (),
        ),
    ],
    ids=["new text", "too few rows", "later rows"],
)
def test_future_covariates_are_checked_before_training(tmp_path, monkeypatch, change, expected, words) -> None:
    def train(*_: object) -> None:
        raise AssertionError("trained before the check")

    monkeypatch.setattr("toa.estimators.Forecaster.fit", train)
    table(MONTHS).assign(day=["none", "sale"] * 20).to_csv(tmp_path / "a.csv", index=False)
    future = pd.DataFrame({"when": MONTHS[:3] + pd.DateOffset(months=40), "day": "none"})
    change(future).to_csv(tmp_path / "b.csv", index=False)
    paths = (tmp_path / "a.csv", "--time", "when", "--covariate", "day", "--future", tmp_path / "b.csv")
    code, text = call(*paths, *words)
    assert code == 2, text
    assert f"error: {expected}" in text


def test_a_test_of_too_few_rows_is_an_error_before_training(tmp_path, monkeypatch) -> None:
    def train(*_: object) -> None:
        raise AssertionError("trained before the check")

    monkeypatch.setattr("toa.estimators.Forecaster.fit", train)
    table(MONTHS).to_csv(tmp_path / "a.csv", index=False)
    code, text = call(tmp_path / "a.csv", "--test", 0.05)
    assert code == 2, text
    assert "at least 3 rows, the horizon, in it, got 40 rows, 2 of them tested; test more rows, or" in text


def test_the_ending_of_the_result_is_its_format(tmp_path) -> None:
    table(MONTHS).to_csv(tmp_path / "a.csv", index=False)
    assert call(tmp_path / "a.csv")[0] == 0
    assert call(tmp_path / "a.csv", out="next.parquet")[0] == 0
    expected = pd.read_csv(tmp_path / "next.csv", parse_dates=["when"])
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "next.parquet"), expected, check_dtype=False)
    code, text = call(tmp_path / "a.csv", out="next.xls")
    assert code == 2
    assert "error: --out must be written to a file that ends in .csv" in text
    assert "got 'next.xls'" in text


@pytest.mark.slow
def test_every_command_reads_a_sheet_and_the_decimal_mark_that_is_asked_for(tmp_path) -> None:
    path, book = tmp_path / "a.csv", tmp_path / "a.xlsx"
    rows = pd.DataFrame({"y": [f"{1 + row % 9}.{100 + row % 7}" for row in range(60)], "kind": [0, 1] * 30})
    rows.to_csv(path, index=False, sep=";")
    commands = {
        "forecast": QUICK,
        "detect": ("--effort", "least", "--method", "z-score", "--events", tmp_path / "e.csv"),
        "classify": ("--label", "kind", "--save", tmp_path / "m.toa", "--effort", "least"),
    }
    with pd.ExcelWriter(book) as sheets:
        for name in ("first", "second"):
            rows.assign(y=rows["y"].astype(float)).to_excel(sheets, sheet_name=name, index=False)
    for command, words in commands.items():
        line = [command, *words, "--out", tmp_path / "out.csv"]
        for data, asked in ((path, "give --decimal , if it is 1100, else --decimal ."), (book, "with --sheet.")):
            result = CliRunner().invoke(app, [*map(str, line), str(data)], env={"COLUMNS": "300", "TERM": "dumb"})
            assert (result.exit_code, asked in result.output) == (2, True), result.output
        for more in ((path, "--decimal", ","), (book, "--sheet", "second")):
            result = CliRunner().invoke(app, [*map(str, line), *map(str, more)], env={"COLUMNS": "300", "TERM": "dumb"})
            assert result.exit_code == 0, result.output


def test_a_model_that_does_not_fit_on_the_disk_does_not_cost_the_forecast(tmp_path, monkeypatch) -> None:
    path, saved = tmp_path / "sales.csv", tmp_path / "m.toa"
    table(MONTHS).to_csv(path, index=False)

    def save(self, where):
        raise OSError(errno.ENOSPC, "No space left on device; the file was not written", str(where))

    monkeypatch.setattr(Forecaster, "save", save)
    code, text = call(path, "--save", saved)
    assert code == 2
    assert text.endswith(f"error: [Errno 28] No space left on device; the file was not written: '{saved}' ")
    assert len(pd.read_csv(tmp_path / "next.csv")) == 3
    assert "model:" not in text


def test_a_pipe_is_named_as_one(tmp_path) -> None:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    code, text = call(path)
    assert code == 2
    assert "pipe.csv must be a file to read, got a device or a pipe; copy its content to a file." in text


def test_an_interrupt_while_modules_are_imported_is_one_line() -> None:
    code = """
import sys
class Interrupt:
    def find_spec(self, name, *rest):
        if name == "toa.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from toa.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "stopped.\n")
