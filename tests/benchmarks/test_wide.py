"""The plan of toa-wide: equal trials, the rule of the learning rates, sizes of the widened model, what is stored."""

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.support import load_script, message
from toa.data import DATASETS
from toa.experiments.records import hashed_values
from toa.experiments.sweep import Event
from toa_bench.wide import (
    ROOT,
    Setting,
    choose_setting,
    final_jobs,
    horizons,
    next_settings,
    pending_jobs,
    read_results,
    read_wide_plan,
    trial_job,
    trials,
    validation_error,
)
from toa_bench.wide_cost import count_channels, count_weights, epoch_windows, run_cost, window_operations
from toa_bench.wide_results import checked_commit, decision_lines, decision_record, final_errors, slim_trial

PLAN = read_wide_plan()
MEMBERS = [dataset for members in PLAN.units.values() for dataset in members]
RIVALS = read_wide_plan(ROOT / "benchmarks" / "wide-rivals.toml")
SCALING = read_wide_plan(ROOT / "benchmarks" / "wide-scaling.toml")


def search(error):
    """All trials of the rule, in order, for a validation error per setting."""
    done: dict[Setting, float] = {}
    while settings := next_settings(PLAN, done):
        done |= {setting: error(setting) for setting in settings}
    return list(done.items())


def nearest(best, norm=True):
    """An error that is lowest at a rate, and lower with the given instance norm."""
    return lambda one: 1.0 + abs(math.log(one.rate / best)) + (0.0 if one.instance_norm == norm else 10.0)


@pytest.mark.parametrize(
    ("best", "last"),
    [
        (1e-3, [2e-3, 5e-4]),
        (2e-3, [2e-3, 4e-3]),
        (4e-3, [2e-3, 4e-3]),
        (3e-4, [1e-4, 5e-4]),
        (1e-4, [1e-4, 3e-5]),
        (3e-5, [1e-4, 3e-5]),
    ],
)
@pytest.mark.parametrize("norm", [True, False])
def test_six_trials_follow_the_better_rate_until_it_gets_worse(best, last, norm):
    tried = search(nearest(best, norm))
    assert len(tried) == 6
    assert [one.rate for one, _ in tried[4:]] == last
    assert {one.instance_norm for one, _ in tried[4:]} == {norm}


def test_a_search_in_which_everything_diverges_still_has_six_trials():
    assert len(search(lambda one: math.inf)) == 6


def make_record(job, error, test=None):
    metrics = {} if error is None else {"val_mse": error, **({} if test is None else {"mse": test})}
    return {
        "task": "forecast",
        "name": job.config.name,
        "config": json.loads(json.dumps(hashed_values(job.config))),
        "config_hash": job.key,
        "seed": job.config.seed,
        "command": " ".join(job.command),
        "metrics": metrics,
        "history": [{"train": 1.0}] * 3,
    }


def run_trials(dataset, system, error):
    """Results of all trials of a system on a data set."""
    results: dict[str, Any] = {}
    while True:
        waiting = trials(PLAN, dataset, system, results)[1]
        if not waiting:
            return results
        for job in waiting:
            config = job.config
            setting = Setting(rate=config.training.learning_rate, instance_norm=config.model["instance_norm"])
            results[job.key] = make_record(job, error(setting))


def test_validation_chooses_the_setting_and_diverged_trials_are_never_chosen():
    error = nearest(2e-3)
    results = run_trials("NN5-Daily", "toa-gated", lambda one: None if one.rate > 1e-3 else error(one))
    choice = choose_setting(PLAN, "NN5-Daily", "toa-gated", results)
    assert choice is not None
    assert choice.setting == Setting(rate=1e-3, instance_norm=True)
    assert choice.validation[Setting(rate=2e-3, instance_norm=True)] == math.inf
    assert not choice.at_edge
    assert choose_setting(PLAN, "NN5-Daily", "gated", results) is None
    all_diverged = run_trials("NN5-Daily", "gated", lambda one: None)
    with pytest.raises(ValueError, match=message("gated on NN5-Daily must have a trial that converges")):
        choose_setting(PLAN, "NN5-Daily", "gated", all_diverged)


def test_a_best_rate_at_the_end_of_the_rates_is_marked():
    results = run_trials("NN5-Daily", "softmax", nearest(4e-3))
    choice = choose_setting(PLAN, "NN5-Daily", "softmax", results)
    assert choice is not None
    assert choice.setting.rate == 4e-3
    assert choice.at_edge


def test_trials_have_no_test_error_and_no_seed_of_a_final_run():
    for job in pending_jobs(PLAN, "tune", MEMBERS, {}):
        assert job.config.test is False
        assert job.config.seed == PLAN.tuning_seed not in PLAN.seeds
        assert job.config.horizon == horizons(PLAN, job.config.dataset)[0]
    job = trial_job(PLAN, "NN5-Daily", "softmax", Setting(rate=1e-3, instance_norm=True))
    record = make_record(job, 0.5)
    record["config"]["test"] = True
    with pytest.raises(ValueError, match="test=false"):
        validation_error(record)


def test_every_system_has_the_same_runs():
    jobs = pending_jobs(PLAN, "tune", MEMBERS, {})
    assert Counter(job.config.dataset for job in jobs) == dict.fromkeys(MEMBERS, 6 * 4)
    # the most expensive first
    assert jobs[0].config.dataset in ("Favorita", "NYC-Taxi")
    assert len(PLAN.units) == 10
    assert all(DATASETS[dataset].channels >= 20 for dataset in MEMBERS)


def test_final_runs_have_two_horizons_and_three_seeds_at_the_chosen_setting():
    results = run_trials("Weather", "toa-relu", nearest(5e-4, norm=False))
    choice = choose_setting(PLAN, "Weather", "toa-relu", results)
    assert choice is not None
    jobs = list(final_jobs(PLAN, choice))
    assert {(job.config.horizon, job.config.seed) for job in jobs} == {(h, s) for h in (24, 96) for s in PLAN.seeds}
    assert {job.config.training.learning_rate for job in jobs} == {5e-4}
    assert {job.config.model["instance_norm"] for job in jobs} == {False}
    assert {job.config.attention.score_norm for job in jobs} == {"rms"}
    # found by their hash wherever they ran
    assert {job.key for job in pending_jobs(PLAN, "final", ["Weather"], results)} == {job.key for job in jobs}
    # the trials of the other five systems, and the final runs of the system whose trials are done
    assert len(pending_jobs(PLAN, "tune", ["Weather"], results)) == 5 * 4
    assert len(pending_jobs(PLAN, "all", ["Weather"], results)) == 5 * 4 + 6
    done = results | {job.key: make_record(job, 0.1, 0.2) for job in jobs[:4]}
    assert len(pending_jobs(PLAN, "final", ["Weather"], done)) == 2


@pytest.mark.parametrize("dataset", ["Hangzhou-Metro", "Weather", "SMD-1-6"])
def test_the_widened_softmax_has_as_many_weights_as_toa_gated_and_no_narrower_network_has(dataset):
    setting = Setting(rate=1e-3, instance_norm=True)
    jobs = {name: trial_job(PLAN, dataset, name, setting).config for name in ("toa-gated", "softmax-wide", "gated")}
    channels = DATASETS[dataset].channels
    wide, gated = jobs["softmax-wide"], jobs["toa-gated"]
    assert wide.attention.name == "softmax"
    assert wide.attention.qk_dim == 2 * 256 // 8
    needed = count_weights(gated, channels)
    assert count_weights(wide, channels) >= needed
    smaller = replace(wide, model={**wide.model, "ff_dim": wide.model["ff_dim"] - 1})
    assert count_weights(smaller, channels) < needed
    # three operators per head and layer
    assert needed - count_weights(jobs["gated"], channels) == 2 * 3 * 8 * channels**2


def test_operations_grow_as_the_products_of_a_layer():
    setting = Setting(rate=1e-3, instance_norm=True)
    found = {name: trial_job(PLAN, "EIA930", name, setting).config for name in ("softmax", "toa-softmax", "gated")}
    counts = {name: window_operations(config, 54) for name, config in found.items()}
    layer = 256 * 256 * 6 + 2 * 54 * 256
    assert counts["softmax"] == 6 * 54 * (2 * layer + 256 * (96 + 24))
    assert counts["toa-softmax"] - counts["softmax"] == 6 * 54 * 2 * 2 * 54 * 256
    assert counts["gated"] > counts["softmax"]


def stored_matrix(errors):
    """Results of three units in which each system has a constant error, and facts of their data sets."""
    plan = replace(
        PLAN, units={"A": ["Weather"], "SMD": ["SMD-1-6", "SMD-2-1"], "N": ["NN5-Daily"]}, optional={}, seeds=[2024]
    )
    results: dict[str, Any] = {}
    sets = {}
    for number, dataset in enumerate(["Weather", "SMD-1-6", "SMD-2-1", "NN5-Daily"]):
        known = horizons(PLAN, dataset)
        sets[dataset] = {"horizons": {str(h): {"mse": 1.0, "val_mse": 1.0} for h in known}}
        for system in plan.systems:
            results |= run_trials(dataset, system, nearest(1e-3))
            choice = choose_setting(plan, dataset, system, results)
            assert choice is not None
            for job in final_jobs(plan, choice):
                error = errors.get(system, 0.2)
                error = None if error is None else error * (1 + 0.01 * number)
                results[job.key] = make_record(job, error, error)
    return plan, results, sets


def test_the_decision_is_taken_over_units_with_capped_errors():
    plan, results, sets = stored_matrix({"toa-gated": 0.18, "toa-softmax": None, "gated": 3.0})
    test, notes = final_errors(plan, results, sets, "mse", plan.systems)
    assert {system: len(units["SMD"]) for system, units in test.items()} == dict.fromkeys(plan.systems, 4)
    assert test["toa-softmax"]["A"] == test["gated"]["A"] == [1.0, 1.0]
    assert any(note == "toa-softmax on SMD: 4 runs count with the error of the training mean" for note in notes)
    lines = list(decision_lines(decision_record(plan, results, sets)))
    assert any(line.endswith("validation chooses toa-gated") for line in lines)
    assert any(line.startswith("toa-gated against softmax: -10.00 % test MSE") for line in lines)
    assert any("lower on 3 of 3" in line for line in lines)


def test_a_unit_without_all_runs_is_left_out():
    plan, results, sets = stored_matrix({})
    choice = choose_setting(plan, "NN5-Daily", "softmax", results)
    assert choice is not None
    del results[next(final_jobs(plan, choice)).key]
    test, notes = final_errors(plan, results, sets, "mse", plan.systems)
    assert list(test["softmax"]) == ["A", "SMD"]
    assert "N is not complete: 1 final runs or choices are missing" in notes
    record = decision_record(plan, results, sets)
    assert not record["complete"]
    assert record["finished"] == ["A", "SMD"]
    assert list(decision_lines(record))[-1] == "fewer than three data sets are complete: no decision"


def test_a_comparison_has_the_units_in_which_its_two_systems_are_complete():
    plan, results, sets = stored_matrix({})
    choice = choose_setting(plan, "NN5-Daily", "softmax-wide", results)
    assert choice is not None
    del results[next(final_jobs(plan, choice)).key]
    record = decision_record(plan, results, sets)
    assert not record["complete"]
    assert record["finished"] == ["A", "SMD", "N"]
    assert list(record["against"]) == ["softmax", "gated"]
    assert any("lower on 0 of 3" in line for line in decision_lines(record))


def test_a_diverged_run_is_a_result_and_another_failure_is_not(tmp_path):
    script = load_script("benchmarks/wide.py")
    job = trial_job(PLAN, "NN5-Daily", "softmax", Setting(rate=1e-3, instance_norm=True))
    diverged = Event(kind="failed", key=job.key, message="FloatingPointError: the training loss must be finite")
    record = script.ended_run(job, diverged, tmp_path, "abc")
    assert validation_error(record) == math.inf
    assert (record["commit"], record["config_hash"]) == ("abc", job.key)
    other = Event(kind="failed", key=job.key, message="OutOfMemoryError: CUDA out of memory")
    assert script.ended_run(job, other, tmp_path, "abc") is None
    # stored as lines that are read again
    path = tmp_path / "all.jsonl"
    path.write_text(script.record_line(record) + script.record_line(slim_trial(make_record(job, 0.5))))
    found = read_results([path, tmp_path / "none.jsonl"])
    assert found[job.key]["metrics"] == {"val_mse": 0.5}
    assert found[job.key]["epochs"] == 3
    assert "history" not in found[job.key]


def test_a_copy_without_git_names_its_commit_only_if_the_sources_are_those_of_the_commit(tmp_path, monkeypatch):
    import hashlib

    from toa_bench import wide_results

    source = tmp_path / "src" / "one.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    monkeypatch.setattr(wide_results, "ROOT", tmp_path)
    known = hashlib.sha1(b"blob 6\0x = 1\n").hexdigest()
    listed = tmp_path / "COMMIT"
    listed.write_text(f"0123456789ab\n{known} src/one.py\n")
    assert checked_commit(listed) == "0123456789ab"
    assert checked_commit(None) is None
    (tmp_path / "src" / "two.py").write_text("")
    with pytest.raises(ValueError, match=message("src/two.py must be a file of commit 0123456789ab")):
        checked_commit(listed)
    source.write_text("x = 2\n")
    with pytest.raises(ValueError, match=message("src/one.py must be the file of commit 0123456789ab")):
        checked_commit(listed)


def test_the_rivals_have_the_windows_and_the_number_of_trials_of_the_decision():
    for dataset in MEMBERS:
        assert horizons(RIVALS, dataset) == horizons(PLAN, dataset)
        setting = Setting(rate=1e-3, instance_norm=True)
        expected = trial_job(PLAN, dataset, "softmax", setting).config
        for system in RIVALS.systems:
            found = trial_job(RIVALS, dataset, system, setting).config
            for name in ("lookback", "split", "clip", "allow_constant", "batch_size", "epoch_steps", "training"):
                assert getattr(found, name) == getattr(expected, name)
    assert {name: getattr(RIVALS, name) for name in ("rates", "norms", "lower", "higher", "between", "seeds")} == {
        name: getattr(PLAN, name) for name in ("rates", "norms", "lower", "higher", "between", "seeds")
    }


def test_a_rival_without_attention_has_no_attention_in_its_command():
    job = trial_job(RIVALS, "NN5-Daily", "dlinear", Setting(rate=1e-3, instance_norm=False))
    assert "--attention" not in job.command
    assert job.config.attention is None
    # two maps of the look-back
    assert window_operations(job.config, 111) == 6 * 111 * 2 * 56 * 7


def test_a_plan_without_further_rates_has_the_trials_of_its_first_stage():
    first = next_settings(SCALING, {})
    assert first == [Setting(rate=3e-4, instance_norm=False), Setting(rate=1e-3, instance_norm=False)]
    assert next_settings(SCALING, dict.fromkeys(first, 1.0)) == []


def test_cases_of_the_plan_of_sizes_are_parts_of_data_sets_with_equal_steps():
    setting = Setting(rate=1e-3, instance_norm=False)
    assert set(SCALING.members) == set(SCALING.cases)
    for case in SCALING.members:
        job = trial_job(SCALING, case, "toa-gated-sor-0.5", setting)
        channels, _, windows = case.partition("-")[2].partition("x")
        assert count_channels(job.config) == int(channels)
        assert job.config.train_windows == (None if windows == "all" else int(windows))
        assert job.config.attention.sor_max_rate == 0.5
        assert horizons(SCALING, case) == [job.config.horizon]
        batches = -(-epoch_windows(job.config) // 32)
        assert batches * job.config.training.epochs in range(930, 970)
    # two trials and two final runs per system
    jobs = [trial_job(SCALING, case, system, setting) for case in SCALING.members for system in SCALING.systems]
    assert 4 * sum(run_cost(job.config) for job in jobs) < 33e15
