"""Published, `toa-paper` and `toa` side by side, from records made without a run, and in the stored report."""

import json
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from tests.report.cases import read_page, record_of, write_lines
from tests.support import ROOT
from toa.experiments.run import Job
from toa_paper.report.cells import recipe_cells
from toa_paper.report.evidence import read_evidence
from toa_paper.report.findings import found_parts
from toa_paper.report.paper import make_report
from toa_paper.report.paper_text import ablation_table, progress_line, recipe_table, signed_table
from toa_paper.tables import protocol_job

# test and validation error of each protocol and variant
ERRORS = {
    ("toa-paper", "softmax"): (0.30, 0.40),
    ("toa-paper", "toa-relu"): (0.24, 0.42),
    ("toa-paper", "toa-softmax"): (0.27, 0.39),
    ("toa", "softmax"): (0.25, 0.38),
    ("toa", "toa-softmax"): (0.20, 0.35),
    ("toa", "toa-softmax-nosor"): (0.21, 0.36),
}


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %".replace("-0.0", "+0.0")


def records() -> list[dict[str, Any]]:
    found = []
    for (protocol, variant), (test, validation) in ERRORS.items():
        job = protocol_job("forecast", protocol, "ETTm1", 96, "itransformer", variant)
        for seed in (2024, 2025):
            operators = {"contributions": {"operators": 0.01 * (seed - 2022)}}
            metrics = {"mse": test, "val_mse": validation}
            found.append(record_of(job, metrics, seed=seed, operators=operators))
    return found


@pytest.fixture
def cells(tmp_path):
    return recipe_cells(read_evidence([write_lines(tmp_path / "runs.jsonl", records())]))


def test_validation_chooses_the_variant_that_stands_beside_softmax(cells):
    (cell,) = cells
    assert (cell.chosen("toa-paper"), cell.chosen("toa")) == ("toa-softmax", "toa-softmax")
    _, row = recipe_table(cells)
    # of TOA-Softmax, although TOA-ReLU has a lower published number
    published = ("TOA-Softmax", "0.347", "0.335")
    paper, ours = ("0.3000", "0.2700", "-10.0 %"), ("0.2500", "0.2000", "-20.0 %")
    assert row == ("itransformer", "ETTm1 96", *published, *paper, *ours)


def test_the_ablation_shows_sor_and_the_operators(cells):
    _, row = ablation_table(cells)
    # 2 and 3 % in the two seeds
    assert row == ("itransformer", "ETTm1 96", "TOA-Softmax", "0.2000", "+5.0 %", "+2.5 %", "+2.5 %")


_NEAR = "worse than published: softmax {0} of 1; TOA chosen by validation {0} of 1; all variants of TOA {1} of 2."


def test_the_summary_says_how_many_cells_reach_the_paper_and_are_better_with_sor(tmp_path):
    report = make_report([write_lines(tmp_path / "runs.jsonl", records())], tables=["forecast-full"])
    claims = found_parts(report)["Claims of the paper"]
    assert any(
        line.endswith("Under `toa` TOA is better with SOR than without in 1 of 1 cells of itransformer.")
        for line in claims
    )
    # published: 0.347, 0.333 for TOA-ReLU and 0.335 for TOA-Softmax; validation chooses TOA-Softmax, 0.27
    assert _NEAR.format(1, 2) in progress_line(report)
    # TOA-ReLU has 0.335 then, at most 0.005 above 0.333, and TOA-Softmax 0.365; validation still chooses TOA-Softmax
    worse = [{**one, "metrics": {**one["metrics"], "mse": one["metrics"]["mse"] + 0.095}} for one in records()]
    report = make_report([write_lines(tmp_path / "worse.jsonl", worse)], tables=["forecast-full"])
    assert _NEAR.format(0, 1) in progress_line(report)


def test_the_summary_counts_cells_under_the_settings_of_peers_and_what_they_give_softmax(tmp_path):
    # published: 0.742 and 0.958 for softmax, 0.778 for TOA-ReLU on Libras
    accuracies = {
        ("toa-paper", "Libras", "softmax"): 0.70,
        ("tslib-uea", "Libras", "softmax"): 0.76,
        ("tslib-uea", "Libras", "toa-relu"): 0.75,
        ("toa-paper", "PenDigits", "softmax"): 0.95,
        ("tslib-uea", "PenDigits", "softmax"): 0.97,
        # without a run under toa-paper it takes no part in the comparison
        ("tslib-uea", "NATOPS", "softmax"): 0.10,
    }
    found = [
        record_of(
            protocol_job("classify", protocol, dataset, None, "patchtst", variant),
            {"accuracy": value, "val_accuracy": value},
        )
        for (protocol, dataset, variant), value in accuracies.items()
    ]
    report = make_report([write_lines(tmp_path / "runs.jsonl", found)], tables=["classification"])
    near = "softmax 2 of 3; all variants of TOA 0 of 1 (the same cells under `toa-paper`: softmax 1 of 2)."
    near += " With `tslib-uea`, where they were run, in place of `toa-paper`: softmax 2 of 3. "
    assert (
        f"Under `tslib-uea`, where TEST is scaled by its own statistics and chooses the epoch: {near}"
        in progress_line(report)
    )
    words = (
        "Softmax alone gains +4.0 points on 2 data sets if it trains on all of TRAIN, and TEST is scaled by its own "
    )
    words += "statistics and chooses the epoch (`tslib-uea`)."
    assert any(words in claim for claim in found_parts(report)["Claims of the paper"])


def test_the_summary_names_no_system_without_records(tmp_path):
    softmax = [one for one in records() if one["config"]["attention"]["name"] == "softmax"]
    report = make_report([write_lines(tmp_path / "runs.jsonl", softmax)], tables=["forecast-full"])
    assert "worse than published: softmax 1 of 1. Means over seeds" in progress_line(report)


def test_a_run_with_other_settings_is_not_in_a_cell(tmp_path):
    config = replace(protocol_job("forecast", "toa", "ETTm1", 96, "itransformer", "softmax").config, batch_size=7)
    other = record_of(Job(config=config, label="other"), {"mse": 9.0, "val_mse": 9.0})
    evidence = read_evidence([write_lines(tmp_path / "runs.jsonl", [*records(), other])])
    (cell,) = recipe_cells(evidence)
    assert len(evidence.runs) == len(records()) + 1
    assert cell.mean("toa", "softmax") == pytest.approx(0.25)


def test_the_attentions_that_a_recipe_chooses_by_size_are_one_system(tmp_path):
    errors = {
        ("ETTh1", "toa", "softmax"): 0.40,
        ("ETTh1", "toa", "toa-softmax"): 0.38,
        # a large set: PatchTST's softmax has the settings of toa-paper there
        ("ETTm1", "toa-paper", "softmax"): 0.30,
        ("ETTm1", "toa", "toa-relu"): 0.27,
    }
    found = [
        record_of(protocol_job("forecast", protocol, dataset, 96, "patchtst", variant), {"mse": error})
        for (dataset, protocol, variant), error in errors.items()
    ]
    report = make_report([write_lines(tmp_path / "runs.jsonl", found)], tables=["forecast-full"])
    (contest,) = (one for one in report.contests if one.protocol == "toa")
    assert contest.scores is not None
    assert contest.scores.systems == ("patchtst/softmax", "patchtst/toa")
    assert contest.scores.cells == {"ETTh1": {96: [0.40, 0.38]}, "ETTm1": {96: [0.30, 0.27]}}
    # in a third set both attentions: then they are two systems
    found += [
        record_of(protocol_job("forecast", "toa", "ETTh2", 96, "patchtst", name), {"mse": 0.2})
        for name in ("softmax", "toa-softmax", "toa-relu")
    ]
    report = make_report([write_lines(tmp_path / "more.jsonl", found)], tables=["forecast-full"])
    (contest,) = (one for one in report.contests if one.protocol == "toa")
    assert contest.scores is not None
    assert contest.scores.systems == ("patchtst/softmax", "patchtst/toa-softmax", "patchtst/toa-relu")


def test_the_stored_report_has_the_recipes_of_its_records():
    stored: dict[tuple[str, str, str, bool | None], list[dict[str, Any]]] = {}
    own = ("forecasting/toa", "classification/toa", "classification/two-axis")
    for name in (*own, "forecasting/horizon-96", "forecasting/horizons"):
        lines = (ROOT / "results" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        for record in map(json.loads, lines):
            config = record["config"]
            attention = config["attention"]
            place = f"{config['dataset']} {config.get('horizon', '')}".strip()
            # on large sets the recipe of PatchTST's softmax is that of toa-paper
            large = config["dataset"] in ("ETTm1", "ETTm2", "Weather") and attention["name"] == "softmax"
            if name in own or (large and config["backbone"] == "patchtst"):
                key = config["backbone"], place, attention["name"].split("-")[0], attention["sor"]
                stored.setdefault(key, []).append(record)

    def score(group: list[dict[str, Any]]) -> float:
        return fmean(record["metrics"]["mse" if record["task"] == "forecast" else "accuracy"] for record in group)

    def gain(task: str, plain: float, ours: float) -> str:
        return (
            percent(ours / plain - 1)
            if task == "forecast"
            else f"{100 * (ours - plain):+.1f} points".replace("-0.0", "+0.0")
        )

    page = read_page(ROOT / "results" / "report" / "index.html")
    (head, *rows), (_, *ablations) = page["recipes"]
    assert len(rows) == len({key[:2] for key in stored})
    text = (ROOT / "results" / "report" / "report.md").read_text(encoding="utf-8")
    assert (
        text.count("- 60 records in results/classification/two-axis-small.jsonl are not compared: settings differ") == 2
    )
    for row in rows:
        groups = [stored[row[0], row[1], *name] for name in (("softmax", None), ("toa", True))]
        plain, ours = map(score, groups)
        shown = [f"{plain:.4f}", f"{ours:.4f}", gain(groups[0][0]["task"], plain, ours)]
        assert row[head.index("toa softmax") :] == shown
        assert f"| {' | '.join(row)} |" in text
    for row in ablations:
        groups = [stored.get((row[0], row[1], "toa", sor), []) for sor in (True, False)]
        rises = [[r["operators"]["contributions"]["operators"] for r in group] for group in groups]
        known = [[rise for rise in group if rise is not None] for group in rises]
        seeds = {record["seed"] for record in groups[1]}
        pair = [[record for record in group if record["seed"] in seeds] for group in groups]
        assert row[4] == (gain("forecast", *map(score, pair)) if seeds else "")
        assert [cell for cell in row[5:] if cell] == [percent(fmean(group)) for group in known if group]
        assert f"| {' | '.join(row)} |" in text


def test_the_stored_report_shows_what_operators_contribute_in_every_cell_with_diagnostics():
    page = read_page(ROOT / "results" / "report" / "index.html")
    shown = [line for line in page["lines"] if line["without_operators"] is not None]
    assert shown
    assert all(line["attention"].startswith(("toa-", "hyperglu")) for line in shown)
    for line in page["lines"]:
        stated = [page["records"][place]["operators"] for place in line["records"]]
        assert (line["without_operators"] is not None) == (any(stated) and line["metric"] != "avg_rank")


def test_ranks_of_the_stored_report_are_those_of_its_diagrams():
    page = read_page(ROOT / "results" / "report" / "index.html")
    compared = 0
    for contest in page["contests"]:
        table, backbone, rest = contest["title"].split(", ", 2)
        own = {row["variant"].replace("-nosor", "-no-sor").replace("-dplr", ""): row for row in page["ranks"]
               if (row["table"], row["backbone"]) == (table, backbone)}  # fmt: skip
        if not contest["table"] or not rest.startswith("toa-paper") or "strict" in rest or table == "sor-ablation-full":
            continue
        for system, _, rank, *_ in contest["table"][1:]:
            row = own[system.removeprefix(f"{backbone}/")]
            if f"over {row['shared']} data sets" in " ".join(contest["notes"]):
                assert rank == f"{row['our_rank']:.2f}", (contest["title"], system)
                compared += 1
    assert compared >= 15


# windows of a set, then its validation errors by trial
TRIALS = {
    "ETTh1": (8000, {"softmax": 1.0, "softmax a=1": 0.9, "relu": 1.1, "relu a=1": 1.2}),
    "ETTm1": (30000, {"softmax": 2.0, "softmax a=1": 2.2, "relu": 1.9, "relu a=1": 1.8}),
}


def trial_rows() -> list[dict[str, Any]]:
    return [
        {"backbone": "duet", "trial": trial, "dataset": dataset, "windows": windows, "validation": error}
        for dataset, (windows, errors) in TRIALS.items()
        for trial, error in errors.items()
    ]


def test_signed_attentions_show_the_best_trial_of_each_size(tmp_path):
    alone = {**trial_rows()[0], "trial": "cog"}
    found = read_evidence([write_lines(tmp_path / "signed-trials.jsonl", [*trial_rows(), alone])])
    head, *rows = signed_table(found.signed)
    assert head == ("backbone", "attention", "trials", "ETTh1", "ETTm1", "mean")
    # cog ran on one set only
    assert rows == [
        ("duet", "softmax", "2", "0.9000", "1.0000", "0.9500"),
        ("duet", "relu", "2", "1.1000", "0.9000", "1.0000"),
    ]
    # they chose no setting
    assert not found.trials


@pytest.mark.parametrize(
    "wrong", [{"validation": 0}, {"validation": "inf"}, {"windows": "many"}, {"trial": " "}, {"dataset": None}]
)
def test_a_wrong_trial_is_left_out_and_named(tmp_path, wrong):
    row = {key: value for key, value in (trial_rows()[0] | wrong).items() if value is not None}
    found = read_evidence([write_lines(tmp_path / "signed-trials.jsonl", [row, *trial_rows()[1:]])])
    assert len(found.signed) == len(trial_rows()) - 1
    assert [skipped.where.startswith("line 1 of ") for skipped in found.skipped] == [True]


def test_the_stored_report_has_the_table_of_signed_attentions():
    stored = ROOT / "results" / "search" / "signed-trials.jsonl"
    rows = [list(row) for row in signed_table(read_evidence([stored]).signed)]
    assert len(rows) == 21
    assert read_page(ROOT / "results" / "report" / "index.html")["signed"] == rows
