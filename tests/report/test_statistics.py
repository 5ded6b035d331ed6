import copy
import json
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, wilcoxon

from tests.support import message
from toa.experiments.records import read_records
from toa.report.gains import detectable_gain, fewest_for_ranks, holm, least_p, lower_is_better
from toa.report.statistics import (
    collect,
    compare,
    draw_critical_difference,
    no_diagram,
    notes,
    system_name,
    system_table,
    write_comparison,
)

SYSTEMS = ("softmax", "toa-relu", "toa-gated")


def record(dataset: str, attention: str, value: float, *, seed: int = 1, **changes: Any) -> dict[str, Any]:
    config = {
        "protocol": "strict",
        "dataset": dataset,
        "backbone": "patchtst",
        "attention": {"name": attention, "sor": None},
        "seed": seed,
    }
    return {
        "task": "classify",
        "name": f"patchtst/{attention}",
        "config": config,
        "config_hash": f"{attention}-{seed}",
        "seed": seed,
        "data_checksum": f"sum of {dataset}",
        "metrics": {"accuracy": value, "mse": 1.0 - value},
    } | changes


def grid(values: np.ndarray, seeds: tuple[int, ...] = (1,)) -> list[dict[str, Any]]:
    """Records of a table, data sets by systems; seeds spread around each value."""
    spread = np.linspace(-0.01, 0.01, len(seeds)) if len(seeds) > 1 else [0.0]
    return [
        record(f"set{row}", system, float(values[row, column] + shift), seed=seed)
        for row in range(len(values))
        for column, system in enumerate(SYSTEMS)
        for seed, shift in zip(seeds, spread, strict=True)
    ]


VALUES = np.array([[0.5, 0.6, 0.7], [0.5, 0.5, 0.6], [0.8, 0.7, 0.9], [0.1, 0.3, 0.2]])


def test_ranks_wins_and_means_by_hand():
    rows = {row.system: row for row in compare(collect(grid(VALUES, (1, 2, 3)), "accuracy"))}
    assert {name: row.rank for name, row in rows.items()} == {
        "patchtst/softmax": (3 + 2.5 + 2 + 3) / 4,
        "patchtst/toa-relu": (2 + 2.5 + 3 + 1) / 4,
        "patchtst/toa-gated": (1 + 1 + 1 + 2) / 4,
    }
    relu = rows["patchtst/toa-relu"]
    assert (relu.wins, relu.ties, relu.losses) == (2, 1, 1)
    assert relu.mean == pytest.approx(VALUES[:, 1].mean())
    assert rows["patchtst/softmax"].wins is None
    # four data sets are too few for a test of ranks
    assert all(row.p is None and row.p_holm is None for row in rows.values())


def test_lower_errors_and_times_are_better():
    rows = compare(collect(grid(VALUES), "mse"))
    assert rows[0].system == "patchtst/toa-gated"
    assert (rows[0].wins, rows[0].losses) == (4, 0)
    assert [lower_is_better(name) for name in ("val_mse", "train_step_ms", "avg_rank")] == [True] * 3
    assert [lower_is_better(name) for name in ("accuracy_pct", "strict/f1", "f1_pa")] == [False] * 3


def test_p_is_scipys_and_corrected_by_holm():
    values = np.random.default_rng(0).uniform(0.3, 0.9, (12, 3))
    values[:, 2] = values[:, 0] + np.linspace(0.01, 0.05, 12)
    rows = {row.system: row for row in compare(collect(grid(values), "accuracy"))}
    p = {name: wilcoxon(values[:, place] - values[:, 0]).pvalue for name, place in (("relu", 1), ("gated", 2))}
    assert rows["patchtst/toa-relu"].p == pytest.approx(p["relu"])
    assert rows["patchtst/toa-gated"].p == pytest.approx(p["gated"])
    assert rows["patchtst/toa-gated"].p_holm == pytest.approx(2 * p["gated"])
    assert rows["patchtst/toa-relu"].p_holm == pytest.approx(max(2 * p["gated"], p["relu"]))


@given(st.lists(st.floats(0.0, 1.0), max_size=8))
def test_holm_keeps_the_order_and_lies_between_p_and_bonferroni(values):
    corrected = holm(values)
    for one, p in zip(corrected, values, strict=True):
        assert p <= one <= min(1.0, len(values) * p) + 1e-15
    order = np.argsort(values)
    assert np.all(np.diff(np.array(corrected)[order]) >= 0) if len(values) else corrected == []


def test_a_data_set_counts_once_with_the_mean_over_its_horizons():
    records = []
    for horizon, shift in ((96, 0.0), (720, 0.2)):
        for one in copy.deepcopy(grid(VALUES[:3])):
            one["config"]["horizon"] = horizon
            records.append(one | {"metrics": {"mse": 1.0 + shift - one["metrics"]["accuracy"]}})
    scores = collect(records, "mse")
    assert tuple(scores.cells) == ("set0", "set1", "set2")
    assert scores.values == pytest.approx(np.sqrt((1.0 - VALUES[:3]) * (1.2 - VALUES[:3])))
    # 20 % less at one horizon and 25 % more at the other are no gain, whatever the sizes
    level = []
    for dataset, (horizon, values) in product("abc", ((96, (0.1, 0.08)), (720, (1.0, 1.25)))):
        for system, value in zip(SYSTEMS, values, strict=False):
            level.append(record(dataset, system, 0.0) | {"metrics": {"mse": value}})
            level[-1]["config"] |= {"horizon": horizon}
    assert {row.gain for row in compare(collect(level, "mse"))} == {None, 0.0}
    assert "with the geometric mean over its horizons (set0, set1, set2: 96, 720)." in notes(scores, "softmax")[0]


def test_gains_have_an_interval_over_data_sets_and_a_least_detectable_size():
    values = np.array([[0.5, 0.51, 0.5], [0.6, 0.62, 0.6], [0.7, 0.73, 0.7], [0.8, 0.84, 0.8]])
    rows = {row.system: row for row in compare(collect(grid(values), "accuracy"))}
    relu, gated = rows["patchtst/toa-relu"], rows["patchtst/toa-gated"]
    assert relu.gain == pytest.approx(2.5)
    assert relu.interval is not None
    assert 1.0 < relu.interval[0] < 2.5 < relu.interval[1] < 4.0
    # t(1 - 0.05 / 2 / 2) s / sqrt(n) with 3 degrees of freedom: two systems are tested
    half = 4.17653 * np.std([1, 2, 3, 4], ddof=1) / 2
    assert relu.t_interval == pytest.approx((2.5 - half, 2.5 + half), rel=1e-4)
    assert (gated.gain, gated.interval, gated.t_interval, gated.detectable) == (0.0, (0.0, 0.0), (0.0, 0.0), 0.0)
    # an error counts in percent of the baseline's
    errors = {row.system: row for row in compare(collect(grid(values), "mse"))}
    assert errors["patchtst/toa-relu"].gain == pytest.approx(100 * np.mean([0.01 / 0.5, 0.02 / 0.4, 0.1, 0.2]))
    few = {row.system: row for row in compare(collect(grid(values[:2]), "accuracy"))}["patchtst/toa-relu"]
    assert (few.interval, few.t_interval, few.detectable) == (None, None, None)


def test_three_data_sets_are_enough_for_a_t_test_of_two_systems():
    values = np.array([[0.5, 0.61, 0.5], [0.6, 0.7, 0.6], [0.7, 0.79, 0.7]])
    relu = {row.system: row for row in compare(collect(grid(values), "accuracy"))}["patchtst/toa-relu"]
    assert relu.t_interval is not None
    assert relu.t_interval[0] > 0
    assert relu.detectable is not None
    # without one of them there is no interval
    assert relu.rests_on == "set0"
    assert relu.p is None


def test_a_detectable_gain_is_found_with_probability_0_8_by_the_corrected_t_test():
    normal = np.random.default_rng(0).normal(size=(20_000, 6))
    gain = detectable_gain(np.array([-1.0, 1.0] * 3), tested=4) / np.std([-1.0, 1.0] * 3, ddof=1)
    p = ttest_1samp(normal + gain, 0.0, axis=1).pvalue
    assert np.mean(p <= 0.05 / 4) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("tested", [1, 2, 6])
def test_the_fewest_sets_for_ranks_are_those_of_which_a_corrected_p_can_pass(tested):
    fewest = fewest_for_ranks(tested)
    assert tested * least_p(fewest) <= 0.05 < tested * least_p(fewest - 1)
    assert fewest == {1: 6, 2: 7, 6: 8}[tested]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_no_sor_is_another_system():
    plain, off = record("a", "toa-gated", 0.5), record("a", "toa-gated", 0.5)
    off["config"]["attention"]["sor"] = False
    assert [system_name(r) for r in (plain, off)] == ["patchtst/toa-gated", "patchtst/toa-gated-no-sor"]
    softmax = record("a", "softmax", 0.5)
    softmax["config"]["attention"]["sor"] = False
    assert system_name(softmax) == "patchtst/softmax"


def test_a_data_set_with_a_missing_run_is_left_out_with_a_note():
    records = grid(VALUES, (1, 2))
    records = [r for r in records if (r["config"]["dataset"], r["name"]) != ("set1", "patchtst/toa-relu")]
    records = [r for r in records if (r["config"]["dataset"], r["name"], r["seed"]) != ("set2", "patchtst/softmax", 2)]
    del next(r for r in records if r["config"]["dataset"] == "set3")["metrics"]["accuracy"]
    scores = collect(records, "accuracy")
    assert tuple(scores.cells) == ("set0",)
    assert scores.left_out == {
        "set1": "no run of patchtst/toa-relu",
        "set2": "no run of patchtst/softmax with seed 2",
        "set3": "accuracy of patchtst/softmax is undefined with seed 1",
    }
    said = " ".join(notes(scores, "softmax"))
    assert "set1 is left out: no run of patchtst/toa-relu." in said
    assert "No signed-rank test is made: over 1 data sets" in said
    assert "No critical-difference diagram: it needs 3 data sets, got 1." in said


def changed(what: str) -> list[dict[str, Any]]:
    records = grid(VALUES, (1, 2))
    odd = copy.deepcopy(records[0])
    match what:
        case "task":
            odd |= {"task": "forecast"}
        case "protocol":
            odd["config"]["protocol"] = "tslib-uea"
        case "settings":
            odd["config"] |= {"batch_size": 8}
            odd["seed"] = 9
        case "data":
            odd |= {"data_checksum": "another", "seed": 9}
    return [*records, odd]


REFUSED = {
    "task": "records must have one task, got classify, forecast;",
    "protocol": "records must have one protocol, got strict, tslib-uea;",
    "twice": "records must have one run of patchtst/softmax on set0 with seed 1, got two",
    "settings": "records of patchtst/softmax on set0 must have one setting, got different values of batch_size",
    "data": "records of set0 must use the same data, got 2 checksums: another, sum of set0;",
}


@pytest.mark.parametrize("what", REFUSED)
def test_inconsistent_records_raise(what):
    with pytest.raises(ValueError, match=message(REFUSED[what])):
        collect(changed(what), "accuracy")


def test_unknown_metrics_and_baselines_are_refused():
    with pytest.raises(ValueError, match=message("unknown metric 'f1'; known: accuracy, mse.")):
        collect(grid(VALUES), "f1")
    with pytest.raises(
        ValueError, match=message("baseline 'linear' must name one system, got none of patchtst/softmax")
    ):
        compare(collect(grid(VALUES), "accuracy"), "linear")
    two = [*grid(VALUES), *(r | {"name": "itransformer/softmax"} for r in grid(VALUES) if "softmax" in r["name"])]
    with pytest.raises(
        ValueError, match=message("'softmax' must name one system, got several of patchtst/softmax, itr")
    ):
        compare(collect(two, "accuracy"))
    assert compare(collect(two, "accuracy"), "patchtst/softmax")


def test_systems_without_a_common_data_set_raise():
    records = [record("a", "softmax", 0.5), record("b", "toa-relu", 0.5)]
    with pytest.raises(ValueError, match=message("same runs of every system, got none (a: no run of patchtst/toa-r")):
        collect(records, "accuracy")


def test_results_are_read_from_files_folders_and_lines(tmp_path):
    records = grid(VALUES)
    for number, one in enumerate(records[:4]):
        path = tmp_path / "runs" / str(number) / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(one))
    (tmp_path / "empty").mkdir()
    lines = tmp_path / "rest.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in records[4:]))
    assert len(read_records([tmp_path])) == len(records)
    assert len(read_records([lines, tmp_path / "runs" / "0" / "record.json"])) == len(records) - 3
    with pytest.raises(
        ValueError, match=message("results must contain records, got none in", "empty; run `toa run` first.")
    ):
        read_records([tmp_path / "empty"])
    with pytest.raises(FileNotFoundError, match=message("got nowhere")):
        read_records([Path("nowhere")])
    lines.write_text("{}\n")
    with pytest.raises(ValueError, match=message("line 1 of", "must be a record of toa")):
        read_records([lines])


def test_tables_and_diagram_are_written(tmp_path):
    values = np.random.default_rng(1).uniform(0.3, 0.9, (8, 3))
    scores = collect(grid(values), "accuracy")
    rows = compare(scores)
    written = write_comparison(scores, rows, "softmax", tmp_path / "out")
    assert [path.name for path in written] == ["comparison.md", "critical-difference.png"]
    assert written[1].read_bytes().startswith(b"\x89PNG")
    page = written[0].read_text()
    for cells in system_table(scores, rows):
        assert f"| {' | '.join(cells)} |" in page
    assert "Task classify, protocol strict; accuracy over 8 data sets, higher is better; means over seeds 1." in page
    assert page.count("| set") == 8


def test_names_of_a_comparison_are_no_markdown(tmp_path):
    records = [r | {"name": f"{r['name']}|<b>"} for r in grid(np.random.default_rng(1).uniform(0.3, 0.9, (3, 3)))]
    scores = collect(records, "accuracy")
    baseline = scores.systems[0]
    page = write_comparison(scores, compare(scores, baseline), baseline, tmp_path)[0].read_text()
    assert r"\|&lt;b&gt;" in page
    assert "|<b>" not in page


def test_long_names_do_not_shrink_the_scale_of_the_diagram():
    values = np.random.default_rng(1).uniform(0.3, 0.9, (8, 3))
    records = [r | {"name": f"{r['name']}-with-a-name-that-goes-on"} for r in grid(values)]
    figures = [draw_critical_difference(collect(r, "accuracy")) for r in (grid(values), records)]
    names = ("patchtst/toa-gated", "patchtst/toa-gated-with-a-name-that-goes-on")
    scales = [f.get_figwidth() - 2 * 0.16 * len(name) for f, name in zip(figures, names, strict=True)]
    assert scales == pytest.approx([5.0, 5.0])
    for figure in figures:
        plt.close(figure)


def test_diagrams_and_tables_have_the_same_ties():
    # the second system differs from the first by a rounding error only
    values = np.array([[0.5, 0.5 + 1e-12, 0.2], [0.6, 0.6, 0.9], [0.7, 0.7 - 1e-12, 0.3]])
    scores = collect(grid(values), "accuracy")
    ranks = {row.system: row.rank for row in compare(scores)}
    figure = draw_critical_difference(scores)
    texts = [text.get_text() for text in figure.axes[0].texts]
    plt.close(figure)
    for system, rank in ranks.items():
        assert any(text.startswith(system) for text in texts)
        assert f"{rank:.4f}" in texts


def test_too_few_scores_have_no_diagram():
    two = collect([r for r in grid(VALUES) if "relu" not in r["name"]], "accuracy")
    assert no_diagram(two) == "it needs 3 systems, got 2"
    assert no_diagram(collect(grid(np.full((5, 3), 0.5)), "accuracy")).startswith("all systems have the same score")


def test_settings_that_differ_beside_the_attention_are_named():
    records = grid(VALUES)
    assert collect(records, "mse").differences == ()
    for one in records:
        one["config"]["training"] = {"epochs": 3 if one["config"]["attention"]["name"] == "softmax" else 1}
    scores = collect(records, "mse")
    assert scores.differences == ("training.epochs",)
    assert "The systems differ in more than the attention: training.epochs." in notes(scores, "softmax")
