"""Options of the commands that read tables: codes for missing values, formulas in text, names of other libraries."""

import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from toa.cli import app

QUICK = ("--effort", "least", "--device", "cpu")


def call(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200", "TERM": "dumb"})
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def daily(rows: int = 60) -> pd.DataFrame:
    values = 20.0 + np.sin(np.arange(rows)) + 0.1 * np.random.default_rng(0).normal(size=rows)
    return pd.DataFrame({"day": pd.date_range("2024-01-01", periods=rows), "y": values})


@pytest.fixture
def gaps(tmp_path):
    frame = daily()
    frame.loc[[20, 40], "y"] = -9999
    frame.to_csv(tmp_path / "gaps.csv", index=False)
    return tmp_path / "gaps.csv"


@pytest.mark.filterwarnings("default")
def test_a_command_names_codes_and_takes_them_as_missing(gaps, tmp_path) -> None:
    out = tmp_path / "next.csv"
    code, text = call("forecast", gaps, "--horizon", 2, "--out", out, *QUICK)
    assert code == 0
    assert "-9999 in column 'y' (2 times)" in text
    assert "--missing-values -9999 if" in text
    marked = ("--missing-values", -9999, "--missing", "interpolate")
    code, text = call("forecast", gaps, "--horizon", 2, "--out", out, "--test", 0.4, *marked, *QUICK)
    assert code == 0
    assert "look like codes" not in text
    assert pd.read_csv(out)["y"].between(15, 25).all()
    # row 40 is tested at two steps
    assert re.search(r"(\d+) of \d+ forecast values are scored", text)
    code, text = call("forecast", gaps, "--horizon", 2, "--out", out, "--missing-values", "nan", *QUICK)
    assert (code, "look like codes" in text) == (0, False)


def test_detect_and_classify_take_codes_as_missing(gaps, tmp_path) -> None:
    marked = ("--missing-values", -9999, "--missing", "ffill")
    code, text = call("detect", gaps, "--out", tmp_path / "rows.csv", "--method", "pca", *marked)
    assert (code, "look like codes" in text) == (0, False)
    cases = pd.DataFrame(np.random.default_rng(0).normal(size=(12, 9))).add_prefix("t")
    cases.loc[:3, "t4"] = -9999
    cases.assign(kind=["a", "b"] * 6).to_csv(tmp_path / "cases.csv", index=False)
    words = ("classify", tmp_path / "cases.csv", "--label", "kind", "--save", tmp_path / "kinds.toa")
    code, text = call(*words, *marked, *QUICK)
    assert (code, "look like codes" in text) == (0, False), text


def test_a_table_with_the_names_of_other_libraries_needs_no_options(tmp_path) -> None:
    parts = [daily().rename(columns={"day": "ds"}).assign(unique_id=name) for name in ("007", "=b")]
    pd.concat(parts).to_csv(tmp_path / "shops.csv", index=False)
    words = ("forecast", tmp_path / "shops.csv", "--horizon", 2, "--out", tmp_path / "next.csv", *QUICK)
    code, text = call(*words)
    assert code == 0, text
    assert "of 2 series" in text
    written = pd.read_csv(tmp_path / "next.csv", dtype={"unique_id": str})
    assert written["unique_id"].unique().tolist() == ["007", "'=b"]
    assert call(*words, "--keep-formulas")[0] == 0
    written = pd.read_csv(tmp_path / "next.csv", dtype={"unique_id": str})
    assert written["unique_id"].unique().tolist() == ["007", "=b"]


def test_detect_reads_such_a_table_also_with_a_loaded_detector(tmp_path) -> None:
    parts = []
    for name in ("007", "b"):
        part = daily(120).rename(columns={"day": "timestamp", "y": "target"}).assign(item_id=name, known=0)
        part.loc[90, ["target", "known"]] = 40.0, 1
        parts.append(part)
    pd.concat(parts).to_csv(tmp_path / "machines.csv", index=False)
    out = tmp_path / "rows.csv"
    words = ("detect", tmp_path / "machines.csv", "--label", "known", "--out", out)
    code, text = call(*words, "--method", "pca", "--save", tmp_path / "m.toa", "--page", tmp_path / "p.html")
    assert code == 0, text
    assert "mean of 2 series" in text
    assert pd.read_csv(out, dtype=str)["item_id"].unique().tolist() == ["007", "b"]
    first = out.read_bytes()
    code, text = call(*words, "--model", tmp_path / "m.toa")
    assert (code, out.read_bytes() == first) == (0, True), text
