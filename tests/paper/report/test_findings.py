"""The summary in words follows from the records: with other records it says something else."""

import json
import math
import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import t

from tests.report.cases import hide_data, record_of, write_lines
from toa.experiments.protocols import resolve
from toa.experiments.run import Job
from toa.report.gains import FEWEST_SETS
from toa_paper.report.findings import claims, coverage, demixing, findings, found_parts
from toa_paper.report.paper import PaperReport, make_report
from toa_paper.report.texts import TEXTS
from toa_paper.tables import protocol_job

SETS = ("ETTh1", "ETTh2", "ETTm1", "ETTm2", "Weather", "Exchange")


UEA = ("ERing", "Libras", "NATOPS", "RacketSports", "Handwriting", "BasicMotions", "Cricket", "LSST", "PenDigits")


def made_up(folder, gains: tuple[Any, ...], *, protocol: str = "toa", seeds: int = 2) -> PaperReport:
    """iTransformer with softmax, and with a TOA-Softmax that is better by a percentage on each set or horizon."""
    records = []
    for place, (dataset, gain) in enumerate(zip(SETS, gains, strict=False)):
        for horizon, percent in zip((96, 720), gain if isinstance(gain, tuple) else (gain, gain), strict=True):
            for variant, factor in (("softmax", 1.0), ("toa-softmax", 1.0 - percent / 100)):
                job = protocol_job("forecast", protocol, dataset, horizon, "itransformer", variant)
                for seed in range(2024, 2024 + seeds):
                    mse = (0.3 + 0.1 * place + 1e-4 * horizon + 1e-3 * (seed - 2024)) * factor
                    more = {"operators": {"contributions": {"operators": 0.07}}} if variant != "softmax" else {}
                    records.append(
                        record_of(
                            job, {"mse": mse, "mae": mse, "val_mse": 1.0 if factor == 1.0 else 1.01}, seed=seed, **more
                        )
                    )
    trials = [
        {"trial": trial, "backbone": "itransformer", "horizon": 96, "dataset": dataset}
        for trial in ("softmax", "softmax model.dropout=0.0", "toa-softmax", "toa-relu a=1")
        for dataset in ("ETTh1", "Weather")
    ]
    write_lines(folder / "runs.jsonl", records)
    write_lines(folder / "trials.jsonl", trials)
    # these chose nothing, and do not count
    write_lines(folder / "pooled-trials.jsonl", [trials[0] | {"trial": "softmax model.pooled=true"}])
    return make_report([folder], tables=["forecast-full"])


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    hide_data(monkeypatch, tmp_path)


def test_a_gain_on_every_set_is_said_first_with_its_size(tmp_path):
    parts = found_parts(made_up(tmp_path, (1.0, 2.0, 3.0, 2.0, 6.0, 4.0)))
    assert next(iter(parts)) == "What was found"
    first, untested = parts["What was found"]
    assert first == "TOA helps: Forecasting, itransformer +3.0 % under `toa`."
    assert untested.startswith("Tested: 0 of the 864 published numbers. **Not tested: 864**, whose data are not here: ")
    rule, text, budget = parts["Comparisons"]
    assert "too narrow" in rule
    assert "under `toa`: helps.** TOA-Softmax gains +3.0 % in test and -1.0 in validation over softmax" in text
    assert " on 6 data sets (t interval +1.1 to +4.9, bootstrap +" in text
    assert "The t test finds a mean gain of " in text
    assert "Weather (+6.0)" in text.split("worse with every seed")[0]
    assert "worse with every seed: none" in text
    assert text.endswith("With M = 0: the validation error changes by +7.0 %.")
    assert "by validation error: itransformer, forecast: softmax 2, TOA 2. The stage that confirmed" in budget


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((1.0, -1.0, 2.0, -2.0, 0.5, -0.5), "No gain could be shown"),
        ((-1.0, -2.0, -3.0, -2.0, -6.0, -4.0), "TOA hurts"),
        ((0.1, 3.0, 3.0, 2.0, 6.0, -0.5), "No gain could be shown"),
        ((1.0, 2.0, 3.0), "No gain could be shown: Forecasting, itransformer +2.0 % under `toa`."),
        ((1.0, 2.0), "Too few data sets: Forecasting under `toa` (itransformer)."),
    ],
)
def test_other_records_give_another_sentence(tmp_path, gains, verdict):
    first, *others = found_parts(made_up(tmp_path, gains))["What was found"]
    assert first == "TOA helps: in none of the comparisons over all data sets of a backbone."
    assert [line.startswith(verdict) for line in others] == [True, False]
    assert "**Not tested: " in others[1]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_difference_that_rests_on_one_cell_is_neither_help_nor_harm(tmp_path, sign):
    gains = tuple(sign * gain for gain in (0.3, 0.3, 2.5, 3.0, 2.8))
    parts = found_parts(made_up(tmp_path, (*gains, (-1.0 * sign, 6.0 * sign))))
    assert parts["What was found"][1].startswith("The difference is not robust: ")
    assert "no longer shown if one cell is left out, such as Exchange at 720" in parts["What was found"][1]


def test_a_claim_on_named_variants_is_decided_by_all_of_them(tmp_path):
    def claim(gains: dict[str, float]) -> str:
        records = []
        for place, dataset in enumerate(UEA):
            for variant, gain in ({"softmax": 0.0} | gains).items():
                job = protocol_job("classify", "toa-paper", dataset, None, "patchtst", variant)
                records.append(record_of(job, {"accuracy": 0.5 + gain * (1 + 0.01 * place)}))
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write_lines(folder / "runs.jsonl", records)
        return found_parts(make_report([folder], tables=["classification"]))["Claims of the paper"][1]

    words = "TOA-ReLU and TOA-Gated are better than softmax in classification: "
    both = f'{words}holds (2 x "helps"). Gains: patchtst TOA-Gated +10.4 points'
    assert claim({"toa-relu": 0.1, "toa-gated": 0.1}).startswith(both)
    one_hurts = f'{words}not shown here (1 x "helps", 1 x "hurts"). Gains: '
    assert claim({"toa-relu": 0.1, "toa-gated": -0.1, "toa-softmax": 0.2}).startswith(one_hurts)
    assert claim({"toa-softmax": 0.2}) == f"{words}not measured."


def variants_report(folder, gains: dict[str, tuple[float, float]], **more: Any) -> PaperReport:
    """iTransformer under toa-paper: per variant its gain in test and in validation, the same on every set."""
    records = []
    for place, dataset in enumerate(SETS):
        for variant, (test, validation) in {"softmax": (0.0, 0.0), **gains}.items():
            job = protocol_job("forecast", "toa-paper", dataset, 96, "itransformer", variant)
            errors = {"mse": 0.3 * (1 - test * (1 + 0.01 * place)), "val_mse": 0.5 * (1 - validation)}
            records += [record_of(job, errors, seed=seed) for seed in (2024, *more.get(variant, ()))]
    write_lines(folder / "runs.jsonl", records)
    return make_report([folder], tables=["forecast-full"])


def test_the_variant_that_validation_prefers_is_the_only_tested_one(tmp_path):
    # the mean gains are 1.025 times these: 2.214, 5.125 and -11.275, so that no machine rounds them otherwise
    report = variants_report(
        tmp_path, {"toa-relu": (0.0216, 0.01), "toa-gated": (0.05, -0.01), "toa-softmax": (-0.11, 0.0)}
    )
    (finding,) = findings(report)
    assert finding.row.system == "itransformer/toa-relu"
    assert finding.verdict == "helps"
    assert "TOA-ReLU, which validation prefers of 3 variants, gains +2.2 %" in finding.text()
    # a t test over six data sets decides on each of three variants
    assert finding.verdicts == {"toa-relu": "helps", "toa-gated": "helps", "toa-softmax": "hurts"}
    # other variants with an interval that excludes zero are named
    assert [(name, round(row.gain or 0.0, 1)) for name, row in finding.others] == [
        ("TOA-Gated", 5.1),
        ("TOA-Softmax", -11.3),
    ]
    assert "+2.2 % under `toa-paper` (TOA-Gated +5.1, which validation does not prefer; TOA-Softmax" in finding.under
    assert "TOA-Gated, which validation does not prefer, gains +5.1 (t interval +" in finding.text()
    assert f"finds a mean gain of {finding.row.detectable:.1f} with" in finding.text()


def test_seeds_that_one_variant_alone_has_are_not_compared(tmp_path):
    report = variants_report(tmp_path, {"toa-relu": (0.02, 0.01)}, softmax=(2025, 2026))
    (contest,) = report.contests
    assert contest.scores is not None
    assert set(contest.scores.seeds.values()) == {(2024,)}


def test_demixing_under_the_recipe_is_compared_seed_by_seed(tmp_path):
    jobs = {name: Job(config=resolve("demixing", "toa", attention=name), label="") for name in ("softmax", "toa-gated")}
    gains = (0.1, 0.2, 0.3, 0.4, 0.5, -0.1)
    records = [
        record_of(jobs[name], {"mse": (0.004 + seed) * (1 - gain * (name != "softmax"))}, seed=2024 + seed)
        for seed, gain in enumerate(gains)
        for name in jobs
    ]
    half = float(t.ppf(0.975, 5)) * statistics.stdev(gains) / math.sqrt(6)
    interval = " to ".join(f"{100 * (statistics.fmean(gains) + sign * half):+.1f}" for sign in (-1, 1))
    (line,) = demixing(make_report([write_lines(tmp_path / "six.jsonl", records)], tables=["demixing"]))
    assert f"gains +23.3 % over softmax (better with 5 of 6 seeds; t interval over them {interval})." in line
    assert demixing(make_report([write_lines(tmp_path / "five.jsonl", records[2:])], tables=["demixing"])) == []


def test_validation_on_the_test_part_prefers_no_variant(tmp_path):
    records = []
    for place, dataset in enumerate(UEA):
        for variant, gain in {"softmax": 0.0, "toa-relu": 0.05, "toa-gated": 0.1}.items():
            job = protocol_job("classify", "tslib-uea", dataset, None, "patchtst", variant)
            right = 0.5 + gain * (1 + 0.01 * place)
            records.append(record_of(job, {"accuracy": right, "val_accuracy": right}))
    write_lines(tmp_path / "runs.jsonl", records)
    (finding,) = [
        one
        for one in findings(make_report([tmp_path], tables=["classification"]))
        if one.contest.protocol == "tslib-uea"
    ]
    assert (finding.preferred, finding.validation) == (False, None)
    assert "TOA-Gated, the best of 2 variants," in finding.text()
    assert "With all variants tested together, none hurts." in finding.text()


def test_a_variant_without_a_validation_metric_leaves_the_choice_to_the_test(tmp_path):
    report = variants_report(tmp_path, {"toa-relu": (0.02, 0.01), "toa-gated": (0.05, -0.01)})
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    del lines[-1]["metrics"]["val_mse"]
    write_lines(tmp_path / "runs.jsonl", lines)
    (finding,) = findings(make_report([tmp_path], tables=["forecast-full"]))
    assert findings(report)[0].preferred
    assert (finding.preferred, finding.row.system) == (False, "itransformer/toa-gated")
    assert "TOA-Gated, the best of 2 variants," in finding.text()


def test_a_seed_with_fewer_horizons_is_no_gain_of_its_own(tmp_path):
    records = []
    for horizon, factor in ((96, 0.8), (720, 1.0)):
        for variant in ("softmax", "toa-softmax"):
            job = protocol_job("forecast", "toa", "ETTh1", horizon, "itransformer", variant)
            error = 0.4 * (factor if variant != "softmax" else 1.0)
            seeds = (2024, 2025) if horizon == 96 else (2024,)
            records += [record_of(job, {"mse": error, "val_mse": error}, seed=seed) for seed in seeds]
    (finding,) = findings(make_report([write_lines(tmp_path / "runs.jsonl", records)], tables=["forecast-full"]))
    # of the geometric mean of 0.8 and 1.0
    assert finding.by_set["ETTh1"] == pytest.approx([100 * (1 - math.sqrt(0.8))])
    assert finding.validation == pytest.approx(100 * (1 - math.sqrt(0.8)))


def test_a_claim_of_the_paper_is_judged_by_its_own_settings(tmp_path):
    def claim(name: str, protocol: str, gains: tuple[float, ...]) -> str:
        return found_parts(made_up(tmp_path / name, gains, protocol=protocol))["Claims of the paper"][0]

    words = "TOA improves forecasting under every backbone: "
    gains = " Gains: itransformer TOA-Softmax {} % (published {})."
    holds = f'{words}holds (1 x "helps").{gains.format("+3.0", "+1.1")}'
    assert claim("a", "toa-paper", (1.0, 2.0, 3.0, 2.0, 6.0, 4.0)) == holds
    assert claim("b", "toa-paper", (-1.0, 1.0) * 3).startswith(f'{words}not shown here (1 x "no gain shown"). Gains: ')
    assert claim("c", "toa-paper", (1.0, 1.0)).startswith(f'{words}not decided yet (1 x "too few data sets"). Gains: ')
    assert claim("d", "toa", (1.0, 2.0, 3.0, 2.0, 6.0, 4.0)) == f"{words}not measured."


def test_the_cost_of_a_step_is_that_of_the_measured_case_and_no_gain_over_the_papers_programs(tmp_path):
    times = {"softmax": 10.0, "toa-gated": 12.0}
    systems = {
        name: {"milliseconds": value, "tenth": value - 1.0, "ninetieth": value + 1.0, "blocks_ms": [value]}
        for name, value in times.items()
    }
    steps = {"task": "training_step", "rows": [{"name": "patchtst-512", "systems": systems}]}
    (tmp_path / "training_step.json").write_text(json.dumps(steps))
    report = make_report([tmp_path], tables=["efficiency"])
    assert [line for line in claims(report, []) if line.startswith("A step")] == [
        "A step of TOA-Gated takes 1.20 (1.00 to 1.44) times as long as one of softmax under patchtst at the paper's "
        "sizes. The paper's own programs: 1.79 times."
    ]
    entry = replace(report.entries[0], values={None: 1.0})
    assert entry.number.table == "efficiency"
    assert (entry.mean, entry.difference) == (1.0, None)


def test_the_rule_names_the_fewest_data_sets():
    rule = " ".join(TEXTS["paper"]["rule"].split())
    assert f"At least {FEWEST_SETS} data sets are needed" in rule


def test_one_data_set_with_a_large_gain_in_validation_does_not_choose_the_variant(tmp_path):
    records = []
    for dataset in SETS:
        for variant in ("softmax", "toa-relu", "toa-gated"):
            job = protocol_job("forecast", "toa-paper", dataset, 96, "itransformer", variant)
            validation = {"softmax": 0.5, "toa-relu": 0.49, "toa-gated": 0.1 if dataset == "Exchange" else 0.51}[
                variant
            ]
            records.append(record_of(job, {"mse": 0.3, "val_mse": validation}))
    (finding,) = findings(make_report([write_lines(tmp_path / "runs.jsonl", records)], tables=["forecast-full"]))
    # +2 % on all sets, not -2 % on five and +80 % on one
    assert (finding.preferred, finding.row.system) == (True, "itransformer/toa-relu")


def test_numbers_without_data_are_counted_by_task(tmp_path):
    report = made_up(tmp_path, (1.0, 2.0), protocol="toa-paper")
    (line,) = coverage(report)
    without_data = [entry for entry in report.entries if entry.own and entry.status == "no data"]
    measured = [entry for entry in report.entries if entry.own and entry.status == "measured"]
    assert f"Tested: {len(measured)} of the 864" in line
    assert f"**Not tested: {len(without_data)}**" in line
    assert f"Forecasting {len(without_data)} of 864 (" in line
    assert "Traffic" in line
    assert coverage(replace(report, entries=tuple(measured))) == []


def test_errors_of_demixing_are_compared_over_the_seeds_that_all_have():
    runs = {"toa-gated": {1: 0.1, 2: 0.9}, "toa-relu": {1: 0.2}, "softmax": {1: 0.3, 3: 0.0}}
    entries = [
        SimpleNamespace(own=True, number=SimpleNamespace(table="demixing", variant=name), values=values)
        for name, values in runs.items()
    ]
    report: Any = SimpleNamespace(entries=entries, recipes=[], evidence=SimpleNamespace(costs={}))
    words = "mean error, the same 1 seeds for all: TOA-Gated 0.1000, TOA-ReLU 0.2000, Softmax attention 0.3000"
    assert f"holds ({words})." in claims(report, [])[-1]


def test_one_seed_is_not_called_every_seed(tmp_path):
    parts = found_parts(made_up(tmp_path, (1.0, 2.0, 3.0, 2.0, 6.0, 4.0), seeds=1))
    assert "Better with every seed: none; worse with every seed: none; one seed: " in parts["Comparisons"][1]
