"""The headline numbers and the files for leaderboards follow from stored records alone."""

import csv
import json
import re

import pytest
from typer.testing import CliRunner

from tests.support import ROOT, message
from toa.cli import app
from toa_bench.headline import demixing, estimators, headlines
from toa_bench.submissions import FILES, GIFT_EVAL_CARD, submission_table

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def printed() -> str:
    result = CliRunner().invoke(app, ["bench", "headline", "--results", str(RESULTS)])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_the_numbers_of_the_readme(printed):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- generated: when-to-use -->(.*?)<!-- end -->", text, re.DOTALL)
    without_links = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", table)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in without_links.strip().splitlines()[2:]]
    stated = [f"{data}: {measured}" for data, _, measured in rows]
    assert [line for line in printed.splitlines() if not line.startswith("    from ")] == stated


def test_every_headline_names_files_that_exist(printed):
    named = [name for line in printed.splitlines() if line.startswith("    from ") for name in line[9:].split(", ")]
    assert len(named) >= 5
    assert [name for name in named if not (RESULTS / name).is_file()] == []


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(ValueError, match=message("--results must be the folder of stored results", str(tmp_path))):
        headlines(tmp_path)


@pytest.mark.parametrize(
    ("name", "headline", "score"),
    [("demixing/toa.jsonl", demixing, "mse"), ("leaderboards/gift-eval.jsonl", estimators, "mase")],
)
def test_an_edited_record_is_an_error(name, headline, score, tmp_path):
    first, *rest = (RESULTS / name).read_text(encoding="utf-8").splitlines()
    record = json.loads(first)
    record["metrics"][score] /= 2
    target = tmp_path / name
    target.parent.mkdir(parents=True)
    target.write_text("\n".join([json.dumps(record), *rest]))
    with pytest.raises(ValueError, match="checksum"):
        headline(tmp_path)


def test_files_for_leaderboards_have_the_columns_that_the_projects_ask_for():
    columns = {}
    for records, name, row in FILES:
        rows = list(csv.reader(submission_table(RESULTS / records, row).splitlines()))
        columns[name] = rows[0]
        assert len(rows) > 1
        assert {len(cells) for cells in rows} == {len(rows[0])}
    gift = columns["gift-eval/toa/all_results.csv"]
    # 4 columns and 11 scores
    assert len(gift) == 15
    assert (gift[:2], gift[-2:]) == (["dataset", "model"], ["domain", "num_variates"])
    fev = columns["fev/toa.csv"]
    assert {"model_name", "task_name", "SQL", "MASE", "test_error", "num_forecasts", "fev_version"} <= set(fev)
    assert columns["tsb-ad/toa.csv"] == ["file", "Time", "VUS-PR", "VUS-ROC"]
    # the fields of config.json in the README of gift-eval
    assert list(GIFT_EVAL_CARD) == [
        "model",
        "model_type",
        "model_dtype",
        "model_link",
        "code_link",
        "org",
        "testdata_leakage",
        "replication_code_available",
    ]


def test_the_command_writes_a_folder_per_leaderboard(tmp_path):
    words = ["bench", "submissions", "--results", str(RESULTS), "--out", str(tmp_path / "files")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert sorted(str(path.relative_to(tmp_path / "files")) for path in (tmp_path / "files").rglob("*.*")) == [
        "fev/toa.csv",
        "gift-eval/toa/all_results.csv",
        "gift-eval/toa/config.json",
        "tsb-ad/toa.csv",
    ]
    (row,) = csv.DictReader((tmp_path / "files" / "fev" / "toa.csv").read_text().splitlines())
    # 20 windows of two series with seven columns
    assert (row["dataset_path"], row["num_forecasts"]) == ("autogluon/fev_datasets", "280")
