import json

import pytest

from tests.report.cases import SEED, job_of, record_of
from toa.experiments.claims import CLAIM, claimed
from toa.experiments.records import write_record
from toa.experiments.run import read_plans, write_failure, write_plan
from toa.report.progress import read_progress


@pytest.fixture
def jobs():
    found = []
    for horizon in (96, 192):
        job = job_of("itransformer", "softmax", horizon)
        found += [job.seeded(SEED + number) for number in range(3)]
    return found


def finish(job, out, seconds):
    write_record(job.folder(out) / "record.json", record_of(job, {"mse": 0.4}, seed=job.config.seed, wall_s=seconds))


def test_a_plan_is_stored_once_and_read_back(tmp_path, jobs):
    assert write_plan(jobs, tmp_path) == write_plan([*reversed(jobs), jobs[0]], tmp_path)
    write_plan(jobs[:2], tmp_path)
    found, unreadable = read_plans(tmp_path)
    assert set(found) == {job.key for job in jobs}
    assert {job.label for job in found.values()} == {job.label for job in jobs}
    assert unreadable == []


def test_runs_are_done_running_failed_and_waiting(tmp_path, jobs):
    write_plan(jobs, tmp_path)
    finish(jobs[0], tmp_path, 40.0)
    finish(jobs[1], tmp_path, 60.0)
    write_failure(jobs[2], tmp_path, "ValueError: it broke")
    with claimed(jobs[3].folder(tmp_path)) as mine:
        assert mine
        since = json.loads((jobs[3].folder(tmp_path) / CLAIM).read_text())["since"]
        progress = read_progress(tmp_path, now=since + 20.0)
    assert [len(part) for part in (progress.done, progress.running, progress.failed)] == [2, 1, 1]
    assert (progress.waiting, progress.total, progress.over) == (2, 6, False)
    assert progress.done[0].startswith(jobs[0].label)
    (run,) = progress.running
    # the most similar finished runs have another horizon: the median of 40 and 60
    assert (run.label, run.estimate) == (jobs[3].label, 50.0)
    assert run.seconds == pytest.approx(20.0)
    assert progress.failed == ((jobs[2].label, "ValueError: it broke"),)
    # 30 s of the running run, 50 s of each waiting one
    assert progress.seconds_left == pytest.approx(130.0)


def test_two_at_a_time_take_half_as_long(tmp_path, jobs):
    write_plan(jobs, tmp_path)
    finish(jobs[0], tmp_path, 100.0)
    with claimed(jobs[1].folder(tmp_path)), claimed(jobs[2].folder(tmp_path)):
        first, second = (json.loads((job.folder(tmp_path) / CLAIM).read_text())["since"] for job in (jobs[1], jobs[2]))
        progress = read_progress(tmp_path, now=second)
    # five runs of 100 s, of which the first began earlier
    assert progress.seconds_left == pytest.approx((500.0 - (second - first)) / 2)


def test_the_claim_of_a_dead_process_does_not_count_as_running(tmp_path, jobs):
    write_plan(jobs, tmp_path)
    folder = jobs[0].folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / CLAIM).write_text('{"pid": 1, "host": "x", "since": 0}')
    progress = read_progress(tmp_path)
    assert (progress.running, progress.waiting, progress.seconds_left) == ((), 6, None)


def test_without_a_plan_only_running_runs_count(tmp_path, jobs):
    finish(jobs[0], tmp_path, 40.0)
    finish(jobs[3], tmp_path, 900.0)
    with claimed(jobs[1].folder(tmp_path)):
        since = json.loads((jobs[1].folder(tmp_path) / CLAIM).read_text())["since"]
        progress = read_progress(tmp_path, now=since + 10.0)
    assert progress.waiting is None
    assert progress.running[0].label == f"forecast/{jobs[1].folder(tmp_path).name}"
    # a run that differs only in the seed took 40 s
    assert progress.seconds_left == pytest.approx(30.0)


def test_unreadable_files_are_reported(tmp_path, jobs):
    plan = write_plan(jobs[:1], tmp_path)
    plan.with_name("x.plan").write_text('{"task": "jugg')
    folder = jobs[0].folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "record.json").write_text('{"tas')
    progress = read_progress(tmp_path)
    assert progress.done == ()
    assert f"{plan.with_name('x.plan')} must be a plan" in progress.unreadable[0]
    assert "must be a record of toa" in progress.unreadable[1]


def test_a_missing_folder_raises(tmp_path):
    with pytest.raises(ValueError, match="results must be a folder of runs"):
        read_progress(tmp_path / "nowhere")
