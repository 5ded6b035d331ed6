"""The stored search: equal budgets, no test error, and the protocol `toa` is what its rule chooses."""

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.support import load_script, message
from toa.experiments import resolve
from toa_bench.search import ROOT, choose, rank_trials, read_plan, read_trial, read_trials, screened_trials

PLAN = read_plan()
NO_OPERATORS: dict[str, Any] = {"contributions": {"operators": None}}
PLANS = {path.stem: read_plan(path) for path in sorted((ROOT / "benchmarks").glob("search*.toml"))}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_family_gets_the_same_number_of_different_trials(plan):
    for stage in plan.stages.values():
        for backbone, families in stage.items():
            assert len(set(map(len, families.values()))) == 1, backbone
            assert len(families) > 1
    for backbone in plan.backbones():
        trials = [trial for family in plan.families(backbone) for trial in plan.trials(backbone, family)]
        assert len(set(trials)) == len(trials)
        # errors are relative to plain softmax, of this plan or of the records that it reuses
        cells = [(backbone, "softmax", name, plan.horizon, plan.seed) for name in plan.datasets]
        assert "softmax" in trials or any(cell in read_trials(plan) for cell in cells)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_no_stored_trial_has_a_test_error(plan):
    for row in read_trials(plan).values():
        assert "--set test=false" in row["command"]
        assert not {"metrics", "mse", "test"} & row.keys()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_trial_of_a_plan_resolves(plan):
    for line in plan.run_lines(list(plan.stages), read_trials(plan)):
        assert "test=false" in line
    for backbone in plan.backbones():
        for family in plan.families(backbone):
            for trial in plan.trials(backbone, family):
                attention, *settings = trial.split()
                if not plan.can_run(trial):
                    ran = {(one, text) for one, text, *_ in read_trials(plan)}
                    assert (backbone, trial) in ran
                    continue
                names: dict[str, Any] = {"dataset": plan.datasets[0], "backbone": backbone, "attention": attention}
                names |= {"horizon": plan.horizon} if plan.horizon else {}
                config = resolve(plan.task, plan.protocol, changes=[*plan.base, *settings], **names)
                assert config.attention.name == attention


@pytest.mark.parametrize("backbone", ["itransformer", "duet", "patchtst"])
def test_the_protocol_toa_is_the_choice_of_the_search(backbone):
    chosen = choose(PLAN, read_trials(PLAN), backbone)
    assert len(chosen) == 4
    for (family, size), result in chosen.items():
        attention, *settings = result.trial.split()
        for dataset in ("ETTh2", "Exchange") if size == "small" else ("ETTm2", "Weather"):
            names: dict[str, Any] = {"dataset": dataset, "horizon": 192, "backbone": backbone, "attention": attention}
            searched = resolve("forecast", "toa-paper", changes=settings, **names)
            assert resolve("forecast", "toa", **names) == replace(searched, protocol="toa"), (family, size)
            if family == "toa":
                assert resolve("forecast", "toa", **names | {"attention": None}).attention.name == attention


def test_the_protocol_toa_of_two_axis_is_the_choice_of_its_search():
    plan = PLANS["search-two-axis"]
    chosen = choose(plan, read_trials(plan), "two-axis")
    # family "none" is softmax without mixing: no recipe of its own
    chosen = {key: result for key, result in chosen.items() if key[0] != "none"}
    assert len(chosen) == 4
    for (family, size), result in chosen.items():
        attention, *settings = result.trial.split()
        for dataset in ("ETTh2", "Exchange") if size == "small" else ("ETTm2", "Weather"):
            names: dict[str, Any] = {"dataset": dataset, "horizon": 192, "backbone": "two-axis", "attention": attention}
            searched = resolve("forecast", plan.protocol, changes=settings, **names)
            assert resolve("forecast", "toa", **names) == replace(searched, protocol="toa"), (family, size)


@pytest.mark.parametrize(
    ("name", "backbone"), [("search-classify", "patchtst"), ("search-classify-two-axis", "two-axis")]
)
def test_the_protocol_toa_of_classification_is_the_choice_of_its_search(name, backbone):
    plan = PLANS[name]
    chosen = choose(plan, read_trials(plan), backbone)
    assert {family for family, _ in chosen} == {"softmax", "toa"}
    for result in chosen.values():
        attention, *settings = result.trial.split()
        names: dict[str, Any] = {"dataset": "Cricket", "backbone": backbone, "attention": attention}
        found = resolve("classify", plan.protocol, changes=[*plan.base, *settings], **names)
        assert resolve("classify", "toa", **names) == replace(found, protocol="toa")


def test_classification_compares_differences_because_an_error_may_be_zero():
    plan = PLANS["search-classify"]
    trials = {"softmax": 0.0, "softmax model.instance_norm=false": 0.1}
    rows = {
        ("patchtst", trial, name, 0, plan.seed): {"validation": error, "windows": 30, "operators": NO_OPERATORS}
        for trial, error in trials.items()
        for name in plan.datasets
    }
    ranked = rank_trials(plan, rows, "patchtst", "softmax")
    assert [result.trial for result in ranked] == list(trials)
    assert ranked[1].means == {"all": pytest.approx(0.1)}


def test_a_run_with_a_test_error_is_refused():
    record = {"config": {"backbone": "duet"}, "metrics": {"val_mse": 1.0, "mse": 1.0}, "command": ""}
    with pytest.raises(ValueError, match=message("somewhere", "test=false")):
        read_trial(PLAN, record, "somewhere")


def test_trials_are_ranked_by_validation_relative_to_softmax():
    def row(validation: float, windows: int) -> dict[str, Any]:
        operators = {"contributions": {"operators": 0.5}}
        return {"validation": validation, "windows": windows, "operators": operators}

    small = 100
    large = 10 * PLAN.small_below
    sizes = dict(zip(PLAN.datasets, (small, small, large, large), strict=True))
    trials = {"softmax": 1.0, "softmax model.dropout=0.0": 0.9, "softmax model.dropout=0.2": 1.1}
    found = {
        ("itransformer", trial, name, PLAN.horizon, PLAN.seed): row(value, sizes[name])
        for trial, value in trials.items()
        for name in sizes
    }
    ranked = rank_trials(PLAN, found, "itransformer", "softmax")
    assert [result.trial for result in ranked] == ["softmax model.dropout=0.0", "softmax", "softmax model.dropout=0.2"]
    assert ranked[0].means == {"small": pytest.approx(0.9), "large": pytest.approx(0.9)}


def test_only_the_best_screened_trials_run_on_further_sets():
    first, second = PLAN.screen["patchtst"]
    families = {family: PLAN.trials("patchtst", family) for family in PLAN.families("patchtst")}

    def rows(trials: list[str], name: str, cell: tuple[int, int] = PLAN.confirmed[0]) -> dict[Any, Any]:
        sizes: dict[str, Any] = {"windows": PLAN.small_below, "operators": NO_OPERATORS}
        cells = {("patchtst", trial, name, *cell): place for place, trial in enumerate(trials)}
        return {key: {"validation": 1.0 - 0.01 * place, **sizes} for key, place in cells.items()}

    found = {cell: row for trials in families.values() for cell, row in rows(trials, first).items()}
    best = {trial for trials in families.values() for trial in trials[-3:]}
    lines = [line for line in PLAN.run_lines(["stage2"], found) if f"{second} --horizon 96 --backbone patchtst" in line]
    assert len(lines) == len({"softmax", *best})
    assert screened_trials(PLAN, found, "patchtst", "ETTh1") is None
    # no choice before all of them have run, also in the cells of the confirmation
    ran = ["softmax", *sorted(best)]
    found |= rows(ran[:-1], second)
    assert ("toa", "large") not in choose(PLAN, found, "patchtst")
    found |= rows(ran, second)
    assert len(list(PLAN.confirm_lines(found, found))) == 2 * len(PLAN.confirm) * len(ran)
    assert ("toa", "large") not in choose(PLAN, found, "patchtst")
    for cell in PLAN.confirmed[1:]:
        found |= rows(ran, first, cell) | rows(ran, second, cell)
    assert choose(PLAN, found, "patchtst")["toa", "large"].trial in best
    del found["patchtst", families["toa"][0], first, PLAN.horizon, PLAN.seed]
    assert screened_trials(PLAN, found, "patchtst", second) == []
    assert not any(size == "large" for _, size in choose(PLAN, found, "patchtst"))


def test_the_script_prints_the_plan_and_collects_runs(tmp_path, monkeypatch, capsys):
    script = load_script("benchmarks/search.py")
    # stage 1 of the first search is stored; seven of its 52 trials use settings that were dropped
    for more, count in (((), 0), (("--all",), 45 * len(PLAN.datasets))):
        monkeypatch.setattr(sys, "argv", ["search.py", "lines", "--stage", "stage1", *more])
        script.main()
        assert len(capsys.readouterr().out.splitlines()) == count
    config: dict[str, Any] = {"backbone": "duet", "dataset": "ETTh1", "horizon": 96, "loss": "mse", "test": False}
    record: dict[str, Any] = dict.fromkeys(("data_checksum", "seed", "device", "commit", "versions"), "x")
    record |= {"config": config | {"attention": {"name": "softmax"}}, "config_hash": "0", "metrics": {"val_mse": 0.5}}
    record |= {"command": "toa run --set model.dropout=0.1 --set test=false", "windows": {"train": 10}}
    record |= {"task": "forecast", "operators": {}, "history": [{}], "wall_s": 1.0, "best_epoch": 1}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text(json.dumps(record))
    target = tmp_path / "trials.jsonl"
    earlier = '{"config_hash": "1"}\n'
    target.write_text(earlier)
    assert script.collect(PLAN, tmp_path, target) == 2
    assert target.read_text().startswith(earlier)
    row = json.loads(target.read_text().splitlines()[1])
    assert (row["trial"], row["validation"]) == ("softmax model.dropout=0.1", 0.5)


def test_more_runs_of_the_best_trials_decide_the_choice():
    def row(validation: float, name: str) -> dict[str, Any]:
        windows = 100 if name in PLAN.datasets[:2] else 10 * PLAN.small_below
        return {"validation": validation, "windows": windows, "operators": NO_OPERATORS}

    lucky = "softmax model.dropout=0.0"
    steady = "softmax model.dropout=0.2"
    first = {"softmax": 1.0, lucky: 0.8, steady: 0.9, "toa-softmax": 0.95}
    names = PLAN.datasets
    cell, *more_cells = PLAN.confirmed
    found = {("itransformer", t, name, *cell): row(v, name) for t, v in first.items() for name in names}
    assert choose(PLAN, found, "itransformer")["softmax", "small"].trial == lucky
    lines = list(PLAN.confirm_lines(found))
    assert len(lines) == len(first) * len(names) * len(more_cells)
    assert all("test=false" in line for line in lines)
    more = {"softmax": 1.0, lucky: 1.2, steady: 0.9, "toa-softmax": 0.95}
    for size, part in (("small", names[:2]), ("large", names[2:])):
        # runs on the sets of one size decide for that size alone
        assert choose(PLAN, found, "itransformer")["softmax", size].trial == lucky
        for cell in more_cells:
            found |= {("itransformer", t, name, *cell): row(v, name) for t, v in more.items() for name in part}
        assert choose(PLAN, found, "itransformer")["softmax", size].trial == steady
