import hashlib
import json

import pytest

from tests.paper.report.cases import cell_of, etth1_records
from tests.report.cases import record_of, write_lines
from tests.support import message
from toa.experiments.records import write_record
from toa_paper.report.cells import paper_entries
from toa_paper.report.evidence import read_evidence


@pytest.fixture
def job():
    return cell_of("forecast-full", dataset="ETTh1", horizon="96", backbone="itransformer", variant="softmax").jobs[0]


def reasons(evidence):
    return [one.reason for one in evidence.skipped]


def test_records_are_read_from_folders_files_and_lines(tmp_path, job):
    write_record(tmp_path / "runs" / "a" / "record.json", record_of(job, {"mse": 0.4}))
    write_record(tmp_path / "runs" / "named.json", record_of(job, {"mse": 0.4}, seed=2025))
    write_lines(tmp_path / "runs" / "more.jsonl", [record_of(job, {"mse": 0.4}, seed=2026)])
    for name in ("claim.json", "efficiency.json", "training_step.json", "other.json"):
        (tmp_path / "runs" / name).write_text("{}")
    evidence = read_evidence([tmp_path / "runs", tmp_path / "runs" / "more.jsonl"])
    assert sorted(run.seed for run in evidence.runs if run.seed) == [2024, 2025, 2026]
    assert len({run.setting for run in evidence.runs}) == 1
    assert evidence.skipped == []


def test_a_truncated_record_is_named_and_the_rest_counts(tmp_path, job):
    whole = json.dumps(record_of(job, {"mse": 0.4}))
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{whole}\n{whole[: len(whole) // 2]}")
    (tmp_path / "record.json").write_text(whole[:100])
    evidence = read_evidence([tmp_path])
    assert len(evidence.runs) == 1
    assert [one.where for one in evidence.skipped] == [str(tmp_path / "record.json"), f"line 2 of {path}"]
    assert all("it is not valid JSON" in reason and "run it again" in reason for reason in reasons(evidence))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metrics": {"mse": float("nan")}}, "its metrics must be finite, got other values for mse."),
        ({"metrics": None}, "must be a record of toa"),
        ({"task": "juggling"}, "unknown task 'juggling'; known: "),
        ({"config_hash": "0" * 16}, "its config must have the hash 0000000000000000, got "),
        ({"config": 3}, "its config must be a mapping, got 3."),
    ],
)
def test_an_invalid_record_is_skipped_with_a_reason(tmp_path, job, change, said):
    evidence = read_evidence([write_lines(tmp_path / "x.jsonl", [record_of(job, {"mse": 0.4}) | change])])
    assert evidence.runs == []
    assert said in reasons(evidence)[0]


def test_an_altered_config_does_not_count(tmp_path, job):
    record = record_of(job, {"mse": 0.4})
    record["config"]["training"]["epochs"] = 99
    evidence = read_evidence([write_lines(tmp_path / "x.jsonl", [record])])
    assert reasons(evidence)[0].endswith("the record was altered.")


def rehashed(record):
    """The record with the hash that its config has."""
    text = json.dumps(record["config"], sort_keys=True, separators=(",", ":"))
    return record | {"config_hash": hashlib.sha256(text.encode()).hexdigest()[:16]}


def test_a_record_of_another_version_is_skipped(tmp_path, job):
    record = record_of(job, {"mse": 0.4})
    record["config"]["warp"] = 9
    evidence = read_evidence([write_lines(tmp_path / "x.jsonl", [rehashed(record)])])
    assert reasons(evidence) == [
        "another version wrote it (unknown key 'warp' in a forecast config); repeat its command to run it again."
    ]
    del record["config"]["warp"], record["config"]["lookback"]
    evidence = read_evidence([write_lines(tmp_path / "x.jsonl", [rehashed(record)])])
    assert "must set every key without a default" in reasons(evidence)[0]


def test_an_older_record_counts_with_defaults_and_a_note(tmp_path, job):
    record = record_of(job, {"mse": 0.4})
    del record["config"]["tf32"], record["config"]["training"]["patience"]
    # the protocol's patience is not the default: the older record is another setting
    evidence = read_evidence([write_lines(tmp_path / "x.jsonl", [rehashed(record)])])
    assert evidence.notes == [
        "1 records of task forecast have no training.patience, tf32; the default is used.",
        "1 of 1 records are without checksum: edits are not noticed.",
    ]
    del (record := record_of(job, {"mse": 0.4}))["config"]["tf32"]
    evidence = read_evidence([write_lines(tmp_path / "x.jsonl", [rehashed(record)])])
    lines = paper_entries(evidence, tables=["forecast-full"])
    assert [line.mean for line in lines if line.values] == [0.4]


def test_a_run_repeated_by_another_backend_does_not_count(tmp_path, job):
    runs = [record_of(job, {"mse": mse}) | {"backend": name} for name, mse in (("folded", 0.4), ("triton", 0.41))]
    evidence = read_evidence([write_lines(tmp_path / "a.jsonl", runs)])
    assert [run.record["metrics"]["mse"] for run in evidence.runs] == [0.41]
    assert "1 records of another backend do not count: the kernels made the same runs." in evidence.notes


def test_contradicting_records_are_both_skipped(tmp_path, job):
    one = write_lines(tmp_path / "a.jsonl", [record_of(job, {"mse": 0.4, "mae": 0.5})])
    other = write_lines(
        tmp_path / "b.jsonl", [record_of(job, {"mse": 0.41, "mae": 0.5}), record_of(job, {"mse": 0.3}, seed=7)]
    )
    evidence = read_evidence([tmp_path])
    assert [run.seed for run in evidence.runs] == [7]
    (skipped,) = evidence.skipped
    assert skipped.where == f"line 1 of {one} and line 1 of {other}"
    assert skipped.reason == "records of one config must agree, got different mse; remove the wrong ones"
    (tmp_path / "b.jsonl").write_text(json.dumps(record_of(job, {"mse": 0.41, "mae": 0.5})))
    lines = paper_entries(read_evidence([tmp_path]), tables=["forecast-full"])
    assert [line.reason for line in lines if line.status == "partial"] == [
        "its records contradict each other; see the records left out"
    ] * 2


def test_the_same_record_in_two_places_counts_once(tmp_path, job):
    for name in ("a", "b"):
        write_lines(tmp_path / f"{name}.jsonl", [record_of(job, {"mse": 0.4})])
    evidence = read_evidence([tmp_path])
    assert len(evidence.runs) == 1
    assert evidence.skipped == []
    assert evidence.notes[0] == "1 records occur again with the same setting and metrics, and count once."


def test_seeds_on_different_data_are_not_averaged(tmp_path, job):
    records = [record_of(job, {"mse": 0.4}, seed=seed, data_checksum=f"{seed}") for seed in (2024, 2025)]
    evidence = read_evidence([write_lines(tmp_path / "x.jsonl", records)])
    assert evidence.runs == []
    assert "records of one setting must use the same data, got 2 checksums" in reasons(evidence)[0]


def test_dirty_and_unknown_commits_are_counted_by_file(tmp_path, job):
    commits = ("0123456789ab", "0123456789ab-dirty", None)
    records = [record_of(job, {"mse": 0.4}, seed=2024 + n, commit=commit) for n, commit in enumerate(commits)]
    path = write_lines(tmp_path / "a.jsonl", records)
    write_lines(tmp_path / "b.jsonl", [record_of(job, {"mse": 0.4}, seed=9)])
    said = [note for note in read_evidence([tmp_path]).notes if "commit" in note]
    assert said == [f"2 of 3 records in {path} name no clean commit: 1 a dirty one, 1 none."]


def test_a_hyperparameter_search_is_skipped(tmp_path):
    path = write_lines(tmp_path / "search.jsonl", etth1_records(1))
    evidence = read_evidence([tmp_path])
    assert evidence.runs == []
    assert [(one.where, one.reason[:10]) for one in evidence.skipped] == [(str(path), "16 records")]


def test_scores_of_a_benchmark_are_counted_in_one_note(tmp_path, job):
    write_lines(tmp_path / "scores.jsonl", [{"benchmark": "gift-eval", "metrics": {"mase": 1.0}}] * 3)
    write_lines(tmp_path / "runs.jsonl", [record_of(job, {"mse": 0.4})])
    evidence = read_evidence([tmp_path])
    assert len(evidence.runs) == 1
    assert reasons(evidence) == []
    assert any("3 scores" in note and "scores.jsonl" in note for note in evidence.notes)


def test_a_broken_error_file_is_named(tmp_path):
    (tmp_path / "error.json").write_text('{"task": "forecast"}')
    evidence = read_evidence([tmp_path])
    assert "it must be the error of a run of this version" in reasons(evidence)[0]


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=message("results must be files or folders, got", "nowhere")):
        read_evidence([tmp_path / "nowhere"])


def test_an_edited_record_does_not_count(tmp_path, job):
    record = record_of(job, {"mse": 0.4})
    path = tmp_path / "record.json"
    write_record(path, record)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"metrics": {"mse": 0.0001}}))
    evidence = read_evidence([tmp_path])
    assert evidence.runs == []
    assert [str(path)] == [one.where for one in evidence.skipped]
    assert "edited or damaged" in reasons(evidence)[0]
    # a record of an older version
    path.write_text(json.dumps(record))
    assert "1 of 1 records are without checksum: edits are not noticed." in read_evidence([tmp_path]).notes
