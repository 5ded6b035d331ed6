import json
import os
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tests.report.test_progress import finish, jobs  # noqa: F401
from toa.cli import app
from toa.experiments.claims import CLAIM, claimed
from toa.experiments.run import write_failure, write_plan

runner = CliRunner(env={"COLUMNS": "200"})


@pytest.fixture
def runs(tmp_path, jobs):  # noqa: F811
    write_plan(jobs, tmp_path)
    finish(jobs[0], tmp_path, 90.0)
    write_failure(jobs[1], tmp_path, "ValueError: [it] broke")
    return tmp_path


def test_once_prints_the_progress(runs, jobs, monkeypatch):  # noqa: F811
    with claimed(jobs[2].folder(runs)):
        since = json.loads((jobs[2].folder(runs) / CLAIM).read_text())["since"]
        monkeypatch.setattr("toa.report.progress.time", SimpleNamespace(time=lambda: since + 2.0))
        result = runner.invoke(app, ["watch", str(runs), "--once"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    # four runs of 90 s, less the seconds since the claim
    assert lines[0] == "1 of 6 done, 1 running, 1 failed, 3 to do; about 5 min 58 s left."
    assert set(lines[1].strip()) == {"━"}
    assert any(jobs[2].label in line and f"process {os.getpid()} on " in line for line in lines)
    assert f"FAILED {jobs[1].label}: ValueError: [it] broke" in result.output
    assert f"done   {jobs[0].label}  test 0.4000" in result.output


def test_watching_ends_with_the_last_run(runs, jobs, monkeypatch):  # noqa: F811
    waits: list[float] = []

    def finish_one_run(seconds: float) -> None:
        finish(jobs[2 + len(waits)], runs, 1.0)
        waits.append(seconds)

    monkeypatch.setattr("toa.cli.report.time", SimpleNamespace(sleep=finish_one_run))
    result = runner.invoke(app, ["watch", str(runs), "--every", "0.05"])
    assert result.exit_code == 0, result.output
    assert waits == [0.05] * 4
    assert "5 of 6 done, 0 running, 1 failed, 0 to do." in result.output


def test_without_finished_runs_there_is_no_time_left(tmp_path, jobs):  # noqa: F811
    write_plan(jobs, tmp_path)
    result = runner.invoke(app, ["watch", str(tmp_path), "--once"])
    assert "0 of 6 done, 0 running, 0 failed, 6 to do; no finished run" in result.output


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("nowhere",), ("error: RESULTS must be a folder", "nowhere")),
        ((".", "--every", "0"), ("error: --every must be positive", "got 0.0")),
    ],
)
def test_wrong_input_is_reported_in_one_line(words, parts):
    result = runner.invoke(app, ["watch", *words])
    assert result.exit_code == 2
    assert all(part in result.output for part in parts)
