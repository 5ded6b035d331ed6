import json
from statistics import stdev

import pytest

from tests.paper.report.cases import ATTENTIONS, cell_of, etth1_records
from tests.report.cases import hide_data, record_of, write_lines
from tests.support import message
from toa.experiments.records import hashed_values
from toa.experiments.run import Job, write_failure
from toa.training import TASKS
from toa_paper.report.cells import departure, paper_entries
from toa_paper.report.evidence import read_evidence
from toa_paper.tables import protocol_job, table_cells


def lines_of(tmp_path, records, *tables):
    return paper_entries(read_evidence([write_lines(tmp_path / "runs.jsonl", records)]), tables=tables)


def line_of(lines, **wanted):
    (found,) = [line for line in lines if all(getattr(line.number, name) == value for name, value in wanted.items())]
    return found


def test_a_number_is_the_mean_over_seeds_beside_the_published_one(tmp_path):
    line = line_of(
        lines_of(tmp_path, etth1_records(), "forecast-full"),
        dataset="ETTh1", horizon="192", backbone="itransformer", variant="toa-gated", metric="mse",
    )  # fmt: skip
    assert line.values == {
        seed: pytest.approx(value) for seed, value in ((2024, 0.421), (2025, 0.4212), (2026, 0.4214))
    }
    assert line.mean == pytest.approx(0.4212)
    assert line.spread == pytest.approx(stdev([0.421, 0.4212, 0.4214]))
    assert line.number.text == "0.440"
    assert line.difference == pytest.approx(0.4212 - 0.440)
    assert [run.line for run in line.runs] == [16, 17, 18]
    assert (line.status, line.protocol) == ("measured", "toa-paper")


def test_one_seed_has_no_spread_and_an_unmeasured_number_has_a_reason(tmp_path, monkeypatch):
    hide_data(monkeypatch, tmp_path)
    lines = lines_of(tmp_path, etth1_records(1), "forecast-full")
    measured = [line for line in lines if line.values]
    assert len(measured) == 4 * 4 * 2
    assert all(line.spread is None for line in measured)
    assert {line.status for line in lines} == {"measured", "no data"}
    solar = next(line for line in lines if line.number.dataset == "Solar")
    assert solar.reason.startswith("file missing: ")
    assert "solar" in solar.reason.lower()


def test_a_number_with_data_but_without_records_is_not_run_yet(tmp_path):
    lines = lines_of(tmp_path, etth1_records(1), "demixing")
    assert {(line.status, line.reason) for line in lines} == {("not run", "not run yet")}


def test_an_average_needs_all_horizons_of_a_seed(tmp_path):
    records = etth1_records()
    lines = lines_of(tmp_path, records, "sor-ablation-average", "forecast-average")
    # ETT has three more data sets
    ett = line_of(lines, dataset="ETT", backbone="itransformer", variant="softmax")
    assert (ett.status, ett.values) == ("partial", {})
    assert ett.reason.startswith("4 of 16 runs are done")

    cells = [cell for cell in table_cells("forecast-average") if cell.number.dataset == "Exchange"]
    cell = next(cell for cell in cells if (cell.number.backbone, cell.number.variant) == ("itransformer", "softmax"))
    values = (0.1, 0.2, 0.4, 0.9)
    exchange = [record_of(job, {"mse": value}, seed=2024) for job, value in zip(cell.jobs, values, strict=True)]
    exchange += [record_of(cell.jobs[0], {"mse": 0.3}, seed=2025)]
    line = line_of(
        lines_of(tmp_path, exchange, "forecast-average"), dataset="Exchange", backbone="itransformer", variant="softmax"
    )
    assert line.values == {2024: pytest.approx(0.4)}
    assert len(line.runs) == 4


def test_anomaly_detection_has_entries_for_both_rules(tmp_path):
    (job,) = cell_of("anomaly", dataset="MSL", backbone="itransformer", variant="softmax").jobs
    records = [record_of(job, {"tslib-pa/pa_f1": 0.7, "strict/f1": 0.1}, seed=seed) for seed in (2024, 2025)]
    lines = [line for line in lines_of(tmp_path, records, "anomaly") if line.values]
    assert [(line.protocol, line.metric, line.mean, line.own) for line in lines] == [
        ("toa-paper, tslib-pa", "tslib-pa/pa_f1", 0.7, True),
        ("toa-paper, strict", "strict/f1", 0.1, False),
    ]
    # another metric than the paper's has no difference to it
    assert lines[0].difference == pytest.approx(0.7 - 0.725)
    assert lines[1].difference is None


def test_another_protocol_has_separate_entries(tmp_path):
    paper = cell_of("classification", dataset="BasicMotions", variant="toa-gated").jobs[0]
    peers = protocol_job("classify", "tslib-uea", "BasicMotions", None, "patchtst", "toa-gated")
    records = [record_of(paper, {"accuracy": 0.6}), record_of(peers, {"accuracy": 0.8})]
    lines = [line for line in lines_of(tmp_path, records, "classification") if line.values]
    assert [(line.protocol, line.mean, line.own) for line in lines] == [
        ("toa-paper", 0.6, True),
        ("tslib-uea", 0.8, False),
    ]


def test_a_run_with_a_changed_setting_is_not_compared(tmp_path):
    (job,) = cell_of("forecast-full", dataset="ETTh1", horizon="96", backbone="itransformer", variant="softmax").jobs
    changed = json.loads(json.dumps(hashed_values(job.config)))
    changed["training"]["learning_rate"] = 0.5
    other = Job(config=TASKS["forecast"].config_from(changed), label="other")
    evidence = read_evidence([write_lines(tmp_path / "runs.jsonl", [record_of(other, {"mse": 0.1})])])
    assert not any(line.values for line in paper_entries(evidence, tables=["forecast-full"]))
    assert departure(evidence.runs[0]) == "settings differ from toa-paper: training.learning_rate"


def test_summary_ranks_use_the_full_table(tmp_path):
    cell = next(cell for cell in table_cells("classification-summary") if cell.number.metric == "avg_rank")
    variants = 7
    # the first variant is the worst of all, but ties with the second
    records = [
        record_of(job, {"accuracy": 0.5 + 0.01 * max(1, place % variants)}) for place, job in enumerate(cell.jobs)
    ]
    lines = lines_of(tmp_path, records, "classification-summary")
    found = {(line.number.variant, line.number.metric): line.mean for line in lines}
    assert found["softmax", "avg_rank"] == 6.5
    assert found["toa-softmax", "avg_rank"] == 1.0
    assert found["toa-softmax", "accuracy_pct"] == pytest.approx(56.0)
    missing = lines_of(tmp_path, records[1:], "classification-summary")
    assert line_of(missing, variant="softmax", metric="avg_rank").reason.startswith("195 of 196 runs are done")


def test_a_failed_run_has_status_failed(tmp_path):
    (job,) = cell_of("forecast-full", dataset="ETTh1", horizon="96", backbone="itransformer", variant="softmax").jobs
    write_failure(job, tmp_path, "ValueError: it broke")
    line = line_of(
        paper_entries(read_evidence([tmp_path]), tables=["forecast-full"]),
        dataset="ETTh1", horizon="96", backbone="itransformer", variant="softmax", metric="mse",
    )  # fmt: skip
    assert line.status == "failed"
    assert line.reason.startswith("ValueError: it broke (")


def test_an_undefined_metric_is_partial(tmp_path):
    (job,) = cell_of("anomaly", dataset="MSL", backbone="itransformer", variant="softmax").jobs
    lines = lines_of(tmp_path, [record_of(job, {"strict/f1": 0.1})], "anomaly")
    line = next(line for line in lines if line.status == "partial")
    assert line.number.dataset == "MSL"
    assert (line.status, line.reason) == ("partial", "tslib-pa/pa_f1 is undefined in its records")


def test_an_unknown_table_is_refused(tmp_path):
    with pytest.raises(ValueError, match=message("unknown table 'table-9'; known: demixing, forecast-full")):
        lines_of(tmp_path, etth1_records(1), "table-9")


def test_every_attention_of_the_cases_is_published():
    assert {cell.number.variant for cell in table_cells("forecast-full")} == set(ATTENTIONS)
