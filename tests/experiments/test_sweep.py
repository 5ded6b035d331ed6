import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from tests.experiments.sweep_cases import make_jobs, write_series
from tests.support import ROOT, message
from toa.data import load_forecast
from toa.experiments import read_record
from toa.experiments import sweep as sweep_module
from toa.experiments.claims import CLAIM, claimed, holder
from toa.experiments.records import RECORD
from toa.experiments.run import ERROR, Job, failure_times, finished, outcome, write_failure
from toa.experiments.sweep import (
    EXECUTORS,
    BrokenDeviceError,
    Event,
    RunContext,
    default_workers,
    run_job,
    spread,
    sweep,
)
from toa.training import TASKS
from toa.training.loop import TrainingStopped


def play(folder, *cases: str):
    """Return the results of cases of `sweep_cases`, which run in a separate process."""
    command = [sys.executable, "-m", "tests.experiments.sweep_cases", str(folder), *cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return play(tmp_path_factory.mktemp("sweep"), "share=3", "kill=1", "stop=2")


def check_shared(found, runs):
    assert found == {"codes": [0, 0], "records": runs, "begun": runs, "different": runs}


def test_two_processes_share_runs_and_repeat_none(seen):
    check_shared(seen["share"], 3)


def check_kills(found):
    assert found["codes"] == [0, 0]
    assert found["records"] == found["jobs"]
    assert found["before"] > 0
    assert found["rewritten"] == 0
    assert found["held"] == 0


def test_killed_sweeps_lose_and_repeat_no_finished_run(seen):
    check_kills(seen["kill"])


@pytest.mark.slow
def test_forty_runs_and_twenty_kills_lose_and_repeat_no_finished_run(tmp_path):
    found = play(tmp_path, "share=40", "kill=20")
    check_shared(found["share"], 40)
    check_kills(found["kill"])


def test_a_stopped_sweep_saves_its_run_and_the_next_resumes_it(seen):
    assert seen["stop"] == {"codes": [130, 0], "saved": True, "unfinished": True, "records": 1}


@pytest.fixture
def jobs(tmp_path):
    return make_jobs(write_series(tmp_path), 3, "training.epochs=1")


def run_here(jobs, out, retry_failed=None):
    """Return the outcome, and the events but the steps as pairs of kind and label."""
    names = {job.key: job.label for job in jobs}
    events: list[tuple[str, str]] = []

    def watch(event: Event) -> None:
        if event.kind != "step":
            events.append((event.kind, names[event.key]))

    context = RunContext(out=out, device="cpu", poll_s=0.01, retry_failed=retry_failed or {})
    return sweep(jobs, context, watch=watch), events


def test_a_finished_run_is_not_repeated(jobs, tmp_path):
    first, _ = run_here(jobs[:2], tmp_path)
    again, events = run_here(jobs, tmp_path)
    assert events == [("found", "seed 0"), ("found", "seed 1"), ("begin", "seed 2"), ("done", "seed 2")]
    assert first.records.items() <= again.records.items()
    assert read_record(jobs[2].folder(tmp_path) / RECORD) == again.records[jobs[2].key]
    assert again.records[jobs[2].key]["command"] == "toa run"


def test_jobs_with_the_same_config_are_one_run(jobs, tmp_path):
    _, events = run_here([jobs[0], replace(jobs[0], label="seed 0")], tmp_path)
    assert events == [("begin", "seed 0"), ("done", "seed 0")]


def test_a_run_that_raises_is_recorded_and_the_others_are_run(jobs, tmp_path):
    broken = make_jobs(tmp_path / "nowhere.csv", 1)[0]
    broken = replace(broken, label="broken")
    ended, _ = run_here([jobs[0], broken, jobs[1]], tmp_path / "out")
    assert set(ended.records) == {jobs[0].key, jobs[1].key}
    assert set(ended.failures) == {broken.key}
    content = json.loads((broken.folder(tmp_path / "out") / ERROR).read_text())
    assert content["config_hash"] == broken.key
    assert "MissingFileError: dataset must be a file" in content["error"]
    assert "nowhere.csv" in content["error"]
    assert "Traceback" in content["traceback"]
    assert not (broken.folder(tmp_path / "out") / CLAIM).exists()


def test_a_failed_run_is_retried_only_on_request_and_once(jobs, tmp_path, monkeypatch):
    write_failure(jobs[0], tmp_path, "ValueError: of yesterday")
    ended, events = run_here(jobs[:1], tmp_path)
    assert (events, ended.failures) == ([("failed", "seed 0")], {jobs[0].key: "ValueError: of yesterday"})
    with monkeypatch.context() as patch:
        # only the file of the error is read, not the data of the run
        patch.setattr("toa.experiments.run.finished", None)
        retry_failed = failure_times(jobs, tmp_path)
    # another sweep has retried it since
    write_failure(jobs[0], tmp_path, "ValueError: of today")
    ended, _ = run_here(jobs[:1], tmp_path, retry_failed)
    assert ended.failures == {jobs[0].key: "ValueError: of today"}
    ended, events = run_here(jobs[:1], tmp_path, failure_times(jobs, tmp_path))
    assert events == [("begin", "seed 0"), ("done", "seed 0")]
    assert not (jobs[0].folder(tmp_path) / ERROR).exists()


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('{"metrics": {"mse"', ("record.json must be a record of toa", "delete it")),
        ('{"metrics": {}, "config_hash": "0"}', ("must be a record of the config", "got one of 0")),
        (
            '{"metrics": {}, "config_hash": "KEY", "task": "forecast", "config": {}}',
            ("this version of toa, got an older one without name, wall_s, device, command", "move it away"),
        ),
    ],
)
def test_an_unreadable_record_is_reported_and_kept(jobs, tmp_path, content, parts):
    path = jobs[0].folder(tmp_path) / RECORD
    path.parent.mkdir(parents=True)
    content = content.replace("KEY", jobs[0].key)
    path.write_text(content)
    ended, _ = run_here(jobs[:2], tmp_path)
    assert set(ended.records) == {jobs[1].key}
    assert all(part in ended.failures[jobs[0].key] for part in parts)
    assert path.read_text() == content
    with pytest.raises(ValueError, match=message(*parts)):
        finished(jobs[0], tmp_path)


def test_a_stop_leaves_no_error_and_no_claim(jobs, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise TrainingStopped("stopped after 3 of 9 steps")

    monkeypatch.setattr(sweep_module, "run_task", stop)
    with pytest.raises(KeyboardInterrupt, match="3 of 9"):
        run_here(jobs, tmp_path)
    assert not jobs[0].folder(tmp_path).exists()


class FakeWorkers:
    """Two workers that run a job at once when it starts; `instead` lists events to return instead of running."""

    count = 2

    def __init__(self, context: RunContext, *instead: Event | None) -> None:
        self.context = context
        self.instead = list(instead)
        self.events: list[Event] = []
        self.started: list[str] = []
        self.closed = False

    def start(self, job: Job) -> None:
        self.started.append(job.key)
        planned = self.instead.pop(0) if self.instead else None
        self.events.append(planned or run_job(job, self.context, self.events.append))

    def poll(self, watch, timeout_s: float) -> None:
        while self.events:
            watch(self.events.pop(0))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def sweep_with(tmp_path, monkeypatch):
    """A sweep with fake workers; returns its outcome, events and workers."""

    def run(jobs, *instead, watch=None):
        context = RunContext(out=tmp_path / "out", device="cpu", poll_s=0.01)
        workers = FakeWorkers(context, *instead)
        monkeypatch.setattr(sweep_module, "_open_workers", lambda *_: closing(workers))
        events: list[tuple[str, str]] = []

        def collect(event: Event) -> None:
            events.append((event.kind, event.key))
            if watch is not None:
                watch(event)

        try:
            return sweep(jobs, context, watch=collect), events, workers
        finally:
            assert workers.closed

    return run


def test_workers_get_each_unfinished_job_once(jobs, sweep_with):
    sweep_with(jobs[:1])
    ended, events, workers = sweep_with([*jobs, jobs[1]])
    assert set(ended.records) == {job.key for job in jobs}
    assert workers.started == [job.key for job in jobs[1:]]
    assert events[0] == ("found", jobs[0].key)


def test_a_run_held_by_another_process_is_waited_for(jobs, sweep_with, tmp_path):
    taken, free = jobs[:2]
    waited: list[str] = []
    release = claimed(taken.folder(tmp_path / "out"))
    assert release.__enter__()

    def watch(event: Event) -> None:
        if event.kind == "waiting":
            waited.append(event.key)
            if len(waited) == 3:
                release.__exit__(None, None, None)

    ended, events, _ = sweep_with([taken, free], watch=watch)
    assert waited == [taken.key] * 3
    assert set(ended.records) == {taken.key, free.key}
    assert events.index(("done", free.key)) < events.index(("done", taken.key))


def test_a_job_whose_workers_die_fails_and_the_others_are_run(jobs, sweep_with, tmp_path):
    died = [Event(kind="died", key=jobs[0].key, message="SIGKILL")] * 3
    ended, events, _ = sweep_with(jobs[:1], *died)
    assert ended.failures == {jobs[0].key: "its worker died 3 times, the last time with: SIGKILL"}
    assert [kind for kind, _ in events] == ["failed"]
    died = [Event(kind="died", key=job.key, message="SIGKILL") for job in jobs[1:]] * 2
    ended, _, workers = sweep_with(jobs, *died)
    assert set(ended.records) == {job.key for job in jobs[1:]}
    assert len(workers.started) == 6


def test_an_interrupted_sweep_closes_its_workers(jobs, sweep_with):
    def watch(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep_with(jobs, watch=watch)


def test_executors_have_default_workers():
    assert [default_workers(executor, None) for executor in EXECUTORS] == [1, 2, 1]
    assert default_workers("pool", 5) == 5


@pytest.mark.slow
def test_a_pool_has_the_results_of_one_process(jobs, tmp_path):
    broken = make_jobs(tmp_path / "nowhere.csv", 1)[0]
    kinds: list[str] = []
    context = RunContext(out=tmp_path / "pool", device="cpu", poll_s=0.05)
    watch = lambda event: kinds.append(event.kind)  # noqa: E731
    ended = sweep([*jobs[:2], broken], context, executor="pool", workers=1, watch=watch)
    alone, _ = run_here([*jobs[:2], broken], tmp_path / "alone")
    assert ended.failures == alone.failures
    assert {key: record["metrics"] for key, record in ended.records.items()} == {
        key: record["metrics"] for key, record in alone.records.items()
    }
    assert [kinds.count(kind) for kind in ("begin", "done", "failed")] == [3, 2, 1]


@pytest.mark.parametrize(
    ("device", "count", "devices"),
    [
        ("cuda", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("auto", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 1, ["cuda", "cuda", "cuda"]),
        ("cuda:1", 2, ["cuda:1", "cuda:1", "cuda:1"]),
        ("cpu", 2, ["cpu", "cpu", "cpu"]),
        ("auto", 0, ["auto", "auto", "auto"]),
    ],
)
def test_workers_take_turns_on_devices(device, count, devices):
    assert [spread(device, number, count) for number in range(3)] == devices


@pytest.mark.slow
def test_a_run_that_kills_its_workers_fails(tmp_path):
    jobs = make_jobs(write_series(tmp_path), 2, "training.epochs=30")
    out = tmp_path / "out"

    def watch(event: Event) -> None:
        if event.kind == "begin" and event.key == jobs[0].key:
            found = holder(jobs[0].folder(out))
            assert found is not None
            os.kill(found["pid"], signal.SIGKILL)

    ended = sweep(jobs, RunContext(out=out, device="cpu", poll_s=0.05), executor="pool", workers=1, watch=watch)
    assert set(ended.records) == {jobs[1].key}
    assert ended.failures == {jobs[0].key: "its worker died 3 times, the last time with: exit code -9"}


def test_runs_in_one_process_load_their_data_once(jobs, tmp_path, monkeypatch):
    path = jobs[0].config.dataset
    read: list[str] = []
    load = load_forecast

    def counted(dataset, **how):
        read.append(dataset)
        return load(dataset, **how)

    monkeypatch.setattr("toa.training.forecast.load_forecast", counted)
    run_here(jobs, tmp_path)
    assert read == [path]
    with open(path, "a") as file:
        file.write("0.5,0.25\n")
    run_here(make_jobs(jobs[0].config.dataset, 4)[3:], tmp_path)
    assert read == [path, path]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_wrong_device_raises_before_anything_starts(jobs, tmp_path, executor):
    with pytest.raises(ValueError, match=message("device must be auto, cpu", "got 'tpu'")):
        sweep(jobs, RunContext(out=tmp_path / "out", device="tpu"), executor=executor)
    assert not (tmp_path / "out").exists()


def test_a_broken_device_ends_the_sweep(jobs, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(sweep_module, "run_task", broken)
    monkeypatch.setattr(sweep_module, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(BrokenDeviceError, match=message("cuda must still work after seed 0", "illegal memory")):
        run_here(jobs, tmp_path)
    # the other runs have not begun
    assert set(failure_times(jobs, tmp_path)) == {jobs[0].key}


def test_a_job_survives_json(jobs):
    job = replace(jobs[0], label="a, b", command=("toa", "run"))
    again = Job.from_json(job.to_json())
    assert (again.config, again.key, again.label, again.command) == (job.config, job.key, "a, b", ("toa", "run"))
    assert again.task == "forecast"


def test_a_config_of_an_unknown_task_or_key_raises():
    with pytest.raises(ValueError, match=message("unknown task 'sort'", "forecast")):
        TASKS["sort"].config_from({})
    with pytest.raises(ValueError, match=message("unknown key 'rows'", "forecast config")):
        TASKS["forecast"].config_from({"rows": 3})


def test_the_outcome_of_a_run_is_one_line(jobs, tmp_path):
    ended, _ = run_here(jobs[:1], tmp_path)
    (record,) = ended.records.values()
    metrics = record["metrics"]
    assert outcome(record).startswith(f"val {metrics['val_mse']:.4f}  test {metrics['mse']:.4f}  mae ")
    assert "best 1/1" in outcome(record)
