import json
import re
import shlex
import sys

import pytest

from tests.cli.test_app import call
from tests.experiments.sweep_cases import TINY, write_series
from tests.support import message
from toa.cli.sweep import read_runs
from toa.experiments import resolve
from toa.experiments.run import Estimates, Job, Outcome, timed_records
from toa.experiments.sweep import BrokenDeviceError
from toa_paper.published import published_numbers
from toa_paper.tables import TABLES, table_cells


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("TOA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def line(path, seed: int) -> str:
    words = ["--dataset", str(path), "--horizon", "4", "--backbone", "dlinear", "--protocol", "tslib-96"]
    words += ["--seed", str(seed), *(word for change in TINY for word in ("--set", change))]
    return shlex.join(words)


@pytest.fixture
def runs(tmp_path):
    path = write_series(tmp_path)
    file = tmp_path / "runs.txt"
    file.write_text(f"# two seeds\n\ntoa run {line(path, 1)}\n{line(path, 2)}  # the second\n")
    return file


def test_the_list_counts_every_number(no_data):
    code, text = call("reproduce", "--list", columns=80)
    assert code == 0
    assert "…" not in text
    for table in TABLES:
        assert table in text
    assert f"all {len(published_numbers())} " in text
    assert "108 numbers wait for Solar (Solar/solar_AL.txt): get it from https://www.nrel.gov" in text
    assert "15 numbers wait for SWaT (SWaT/swat_train2.csv, SWaT/swat2.csv)" in text


def test_help_names_every_table():
    _, text = call("reproduce", "--help", columns=400)
    assert all(table in text for table in TABLES)


def test_a_list_is_run_once_with_one_line_per_run(runs, tmp_path):
    words = ["reproduce", "--runs", str(runs), "--out", str(tmp_path / "out"), "--device", "cpu"]
    code, text = call(*words)
    assert code == 0
    assert text.count(" val ") == text.count(" test ") == text.count("best 2/2") == 2
    assert "2 runs done, 0 failed" in text
    paths = sorted((tmp_path / "out").glob("forecast/own-4-dlinear-*/record.json"))
    written = [path.stat().st_mtime_ns for path in paths]
    records = [json.loads(path.read_text()) for path in paths]
    assert [shlex.split(record["command"])[:3] for record in records] == [["toa", "run", "--dataset"]] * 2
    assert call(*words)[1].count(" val ") == 2
    assert [path.stat().st_mtime_ns for path in paths] == written
    assert "2 of 2 done, 0 running, 0 failed, 0 to do." in call("watch", str(tmp_path / "out"), "--once")[1]


@pytest.mark.parametrize(("commit", "warned"), [("0123456789ab-dirty", True), ("0123456789ab", False), (None, False)])
def test_changes_that_are_not_committed_are_named_before_the_runs(runs, tmp_path, monkeypatch, commit, warned):
    monkeypatch.setattr("toa.experiments.records.checkout_commit", lambda: commit)
    monkeypatch.setattr("toa.experiments.sweep.sweep", lambda *_, **__: Outcome(records={}, failures={}))
    code, text = call("reproduce", "--runs", str(runs), "--out", str(tmp_path / "out"), "--device", "cpu")
    assert code == 0
    assert text.startswith("warning: every record will name 0123456789ab-dirty; commit") is warned


def test_a_failed_run_is_reported_and_retried_on_request(runs, tmp_path):
    gone = tmp_path / "gone.csv"
    runs.write_text(f"{line(gone, 1)}\n{line(tmp_path / 'own.csv', 2)}\n")
    words = ["reproduce", "--runs", str(runs), "--out", str(tmp_path / "out"), "--device", "cpu"]
    code, text = call(*words)
    assert code == 1
    assert "FAILED MissingFileError: dataset" in text
    assert "1 runs done, 1 failed; --retry" in text
    gone.write_text((tmp_path / "own.csv").read_text())
    assert call(*words)[0] == 1
    code, text = call(*words, "--retry")
    assert code == 0
    assert "2 runs done, 0 failed" in text


def test_a_dry_run_estimates_time_from_earlier_records(runs, tmp_path):
    words = ["reproduce", "--runs", str(runs), "--out", str(tmp_path / "out"), "--device", "cpu"]
    code, text = call(*words, "--dry-run")
    assert code == 0
    assert "2 runs to do; no earlier record" in text
    assert not (tmp_path / "out").exists()
    assert call(*words)[0] == 0
    runs.write_text(runs.read_text() + line(tmp_path / "own.csv", 3) + "\n")
    _, text = call(*words, "--dry-run")
    assert text.count(" done ") == 2
    assert re.search(r"1 runs to do; about \d+ s of training, by earlier records", text)


def test_unreadable_files_are_reported_and_the_others_are_run(runs, tmp_path):
    """A truncated record, one of an older version, and a malformed error are reported and kept."""
    own, out = tmp_path / "own.csv", tmp_path / "out"
    runs.write_text("\n".join(line(own, seed) for seed in range(4)))
    jobs = read_runs(runs)
    contents = ['{"metrics": {"mse": 0.3', json.dumps({"metrics": {"mse": 0.3}, "config_hash": jobs[1].key}), "[]"]
    names = ["record.json", "record.json", "error.json"]
    paths = [job.folder(out) / name for job, name in zip(jobs, names, strict=False)]
    for path, content in zip(paths, contents, strict=True):
        path.parent.mkdir(parents=True)
        path.write_text(content)
    words = ["reproduce", "--runs", str(runs), "--out", str(out), "--device", "cpu"]
    parts = ("got a file that is not", "an older one without task, name", "the error of a run")
    for more in (["--dry-run"], [], ["--retry"]):
        code, text = call(*words, *more)
        assert code == (0 if more == ["--dry-run"] else 1)
        for part, path in zip(parts, paths, strict=True):
            assert f"{path} must be" in text
            assert part in text
    assert "1 runs done, 3 failed" in text
    assert [path.read_text() for path in paths] == contents


@pytest.mark.usefixtures("no_data")
def test_a_run_without_data_reports_how_to_get_them(runs, tmp_path):
    runs.write_text("--dataset ETTh1 --horizon 96\n" + line(tmp_path / "own.csv", 1))
    words = ["reproduce", "--runs", str(runs), "--out", str(tmp_path / "out"), "--device", "cpu"]
    code, text = call(*words)
    assert code == 1
    assert "FAILED DatasetNotFoundError: " in text
    assert "toa data fetch ETTh1" in text
    assert "1 runs done, 1 failed" in text
    assert "failed --dataset ETTh1 --horizon 96 DatasetNotFoundError: " in call(*words, "--dry-run")[1]


def test_a_broken_device_is_reported_in_one_line(runs, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise BrokenDeviceError("cuda must still work after a run, got: illegal memory access")

    monkeypatch.setattr("toa.experiments.sweep.run_job", broken)
    code, text = call("reproduce", "--runs", str(runs), "--out", str(tmp_path / "out"), "--device", "cpu")
    assert code == 2
    assert "error: cuda must still work after a run" in text


def test_estimates_use_the_most_similar_runs(tmp_path):
    def job(horizon: int, attention: str) -> Job:
        config = resolve(
            "forecast", "toa-paper", dataset="ETTh1", horizon=horizon, backbone="patchtst", attention=attention
        )
        return Job(config=config, label="")

    def record(of: Job, seconds: float, device: str = "cpu (x86)") -> dict[str, object]:
        return {"task": of.task, "device": device, "wall_s": seconds, **json.loads(of.to_json())}

    known = [record(job(96, "softmax"), 10.0), record(job(96, "toa-relu"), 30.0), record(job(192, "softmax"), 70.0)]
    known.append(record(job(96, "toa-relu"), 1.0, "NVIDIA H200"))
    estimates = Estimates(known, on_cpu=True)
    assert estimates.seconds(job(96, "toa-relu")) == 30.0
    assert estimates.seconds(job(96, "toa-gated")) == 20.0
    assert estimates.seconds(job(720, "toa-gated")) == 30.0
    assert Estimates(known, on_cpu=False).seconds(job(192, "softmax")) == 1.0
    assert Estimates([], on_cpu=True).seconds(job(96, "softmax")) is None
    (tmp_path / "forecast" / "x").mkdir(parents=True)
    (tmp_path / "forecast" / "x" / "record.json").write_text("{")
    assert timed_records(tmp_path) == []


def test_the_command_of_a_cell_gives_its_config(tmp_path):
    """`toa run` with the command of a record resolves to the same config."""
    cells = [cell for name in TABLES for cell in table_cells(name)]
    shapes = {(c.number.table, c.number.backbone, c.number.variant): c.seeded(2)[-1] for c in cells}
    jobs = {job.key: job for job in shapes.values() if job.command[:2] == ("toa", "run")}
    assert len(jobs) > 40
    file = tmp_path / "runs.txt"
    file.write_text("\n".join(shlex.join(job.command) for job in jobs.values()))
    assert [job.key for job in read_runs(file)] == list(jobs)


def test_a_table_without_data_reports_what_it_lacks(no_data):
    code, text = call("reproduce", "pems-full", "--dataset", "PEMS03", "--dry-run")
    assert code == 2
    assert "0 of 64 numbers can be run here" in text
    assert "it lacks PEMS03 (64 numbers)" in text


def test_a_table_prints_its_runs(no_data, tmp_path):
    words = ["--dry-run", "--out", str(tmp_path / "out"), "--device", "cpu"]
    code, text = call("reproduce", "demixing", "--attention", "softmax", *words)
    assert code == 0
    assert "1 of 1 numbers can be run here, with 3 runs" in text
    assert "demixing, softmax, seed 2026" in text
    _, text = call("reproduce", "demixing", "--seeds", "1", *words)
    assert "with 3 runs" in text
    assert "seed 2025" not in text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((), ("TABLE, --list, --runs", "got none")),
        (("demixing", "--list"), ("got TABLE and --list",)),
        (("forecast",), ("unknown table 'forecast'", "forecast-full")),
        (("forecast-full", "--dataset", "ETT"), ("unknown dataset 'ETT'", "ETTh1")),
        (("forecast-full", "--attention", "toa"), ("unknown variant 'toa'", "toa-gated")),
        (("demixing", "--seeds", "0"), ("seeds must be at least 1, got 0",)),
        (("demixing", "--executor", "cloud"), ("unknown executor 'cloud'", "process, pool, ray")),
        (("demixing", "--workers", "3"), ("workers must be left out with the executor 'process'", "got 3")),
        (
            ("demixing", "--executor", "pool", "--address", "auto"),
            ("address must be left out with the executor 'pool'", "got auto"),
        ),
        (("demixing", "--executor", "pool", "--workers", "0"), ("workers must be at least 1, got 0",)),
        (("--runs", "nowhere.txt"), ("--runs must be a file", "nowhere.txt")),
        (("--runs", "x.txt", "--seeds", "3"), ("--seeds must be left out with --runs", "got 3")),
        (("--runs", "x.txt", "--attention", "softmax"), ("--attention must be left out with --runs",)),
    ],
)
def test_wrong_options_are_reported_in_one_line(words, parts):
    code, text = call("reproduce", *words)
    assert code == 2
    assert "error: " in text
    assert all(part in text for part in parts)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("# nothing\n", ("x.txt must have a run on at least one line",)),
        ("\n--dataset\n", ("line 2 of x.txt", "--dataset")),
        ("--horizon 96", ("line 1 of x.txt", "Missing option '--dataset'")),
        ("--dataset ETTh1 --horizon many", ("line 1 of x.txt", "--horizon")),
        ("--dataset ETTh1", ("line 1 of x.txt: --horizon must be given",)),
        ("--dataset ETTh1 --horizon 96 --set x", ("line 1 of x.txt: a change must read key=value",)),
        ("--dataset ETTh1 --horizon 96 --out runs", ("line 1", "--out must be left out of a line, got runs")),
        ("--dataset ETTh1 --horizon 96 --device cpu", ("line 1", "--device must be left out of a line, got cpu")),
        ("--dataset ETTh1 --horizon 96 --dry-run", ("line 1", "--dry-run must be left out")),
        ("--dataset ETTh1 --horizon 96 --devices 2", ("line 1", "--devices must be left out of a line, got 2")),
        ("--dataset ETTh1 --horizon 96 --num-nodes 2", ("line 1", "--num-nodes must be left out of a line, got 2")),
        ("--dataset 'ETTh1", ("line 1 of x.txt: No closing quotation",)),
        ("--help", ("line 1 of x.txt: must be options of a run, got --help",)),
    ],
)
def test_a_wrong_line_is_reported_by_number(tmp_path, monkeypatch, content, parts):
    monkeypatch.chdir(tmp_path)
    file = (tmp_path / "x.txt").relative_to(tmp_path)
    file.write_text(content)
    with pytest.raises(ValueError, match=message(*parts)):
        read_runs(file)


def test_without_ray_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, text = call("reproduce", "demixing", "--executor", "ray", "--device", "cpu", "--out", str(tmp_path / "out"))
    assert code == 2
    assert "error: ray is needed for the executor 'ray', and is not installed; install toa[ray]." in text
    assert not (tmp_path / "out").exists()
