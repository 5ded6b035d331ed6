import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.experiments.runner_cases import make_jobs, write_series
from tests.support import ROOT, message
from toa.data import load_forecast
from toa.experiments import forecasting, read_record, runner
from toa.experiments.claims import CLAIM, claimed, holder
from toa.experiments.demixing import demixing_config
from toa.experiments.jobs import Job, config_from, outcome
from toa.experiments.pool import run_pool, spread
from toa.experiments.ray_crew import run_ray
from toa.experiments.runner import (
    ERROR,
    RECORD,
    BrokenDeviceError,
    Event,
    Place,
    failures_now,
    finished,
    run_jobs,
    write_failure,
)
from toa.experiments.step_run import StepRun
from toa.tasks.training import TrainingStopped


def play(folder, *cases: str):
    """What the cases of `runner_cases` saw, in a process of their own."""
    command = [sys.executable, "-m", "tests.experiments.runner_cases", str(folder), *cases]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return play(tmp_path_factory.mktemp("runner"), "share=40", "kill=4", "stop=3")


def test_two_processes_share_forty_runs_and_repeat_none(seen):
    assert seen["share"] == {"codes": [0, 0], "records": 40, "begun": 40, "different": 40}


def check_kills(found):
    assert found["codes"] == [0, 0]
    assert found["records"] == found["jobs"]
    assert found["before"] > 0
    assert found["rewritten"] == 0
    assert found["held"] == 0


def test_killed_runners_lose_and_repeat_no_finished_run(seen):
    check_kills(seen["kill"])


@pytest.mark.slow
def test_twenty_kills_lose_and_repeat_no_finished_run(tmp_path):
    check_kills(play(tmp_path, "kill=20")["kill"])


def test_a_stopped_runner_saves_its_run_and_the_next_goes_on(seen):
    assert seen["stop"] == {"codes": [130, 0], "saved": True, "unfinished": True, "records": 1}


@pytest.fixture
def jobs(tmp_path):
    return make_jobs(write_series(tmp_path), 3, "training.epochs=1")


def run_here(jobs, out, **options):
    """Outcome, and what happened to each job by its label."""
    names = {job.key: job.label for job in jobs}
    happened: list[tuple[str, str]] = []

    def watch(event: Event) -> None:
        if event.kind != "step":
            happened.append((event.kind, names[event.key]))

    return run_jobs(jobs, Place(out=out, device="cpu", poll_s=0.01), watch=watch, **options), happened


def test_a_finished_run_is_read_and_not_run_again(jobs, tmp_path):
    first, _ = run_here(jobs[:2], tmp_path)
    again, happened = run_here(jobs, tmp_path)
    assert happened == [("found", "seed 0"), ("found", "seed 1"), ("begin", "seed 2"), ("done", "seed 2")]
    assert first.records.items() <= again.records.items()
    assert read_record(jobs[2].folder(tmp_path) / RECORD) == again.records[jobs[2].key]
    assert again.records[jobs[2].key]["command"] == "toa run"


def test_jobs_with_one_config_are_one_run(jobs, tmp_path):
    _, happened = run_here([jobs[0], replace(jobs[0], label="seed 0")], tmp_path)
    assert happened == [("begin", "seed 0"), ("done", "seed 0")]


def test_a_run_that_raises_is_recorded_and_the_rest_go_on(jobs, tmp_path):
    broken = make_jobs(tmp_path / "nowhere.csv", 1)[0]
    broken = replace(broken, label="broken")
    ended, _ = run_here([jobs[0], broken, jobs[1]], tmp_path / "out")
    assert set(ended.records) == {jobs[0].key, jobs[1].key}
    assert set(ended.failures) == {broken.key}
    content = json.loads((broken.folder(tmp_path / "out") / ERROR).read_text())
    assert content["config_hash"] == broken.key
    assert "FileNotFoundError: dataset must be a file" in content["error"]
    assert "nowhere.csv" in content["error"]
    assert "Traceback" in content["traceback"]
    assert not (broken.folder(tmp_path / "out") / CLAIM).exists()


def test_a_failed_run_is_tried_again_only_when_asked_and_then_once(jobs, tmp_path):
    write_failure(jobs[0], tmp_path, "ValueError: of yesterday")
    ended, happened = run_here(jobs[:1], tmp_path)
    assert (happened, ended.failures) == ([("failed", "seed 0")], {jobs[0].key: "ValueError: of yesterday"})
    forgive = failures_now(jobs, tmp_path)
    # meanwhile another runner has tried
    write_failure(jobs[0], tmp_path, "ValueError: of today")
    ended, _ = run_here(jobs[:1], tmp_path, forgive=forgive)
    assert ended.failures == {jobs[0].key: "ValueError: of today"}
    ended, happened = run_here(jobs[:1], tmp_path, forgive=failures_now(jobs, tmp_path))
    assert happened == [("begin", "seed 0"), ("done", "seed 0")]
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
def test_a_broken_record_is_named_kept_and_not_counted(jobs, tmp_path, content, parts):
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
    def stop(self, *_, **__):
        raise TrainingStopped("stopped after 3 of 9 steps")

    monkeypatch.setattr(Job, "run", stop)
    with pytest.raises(KeyboardInterrupt, match="3 of 9"):
        run_here(jobs, tmp_path)
    assert not jobs[0].folder(tmp_path).exists()


def test_a_claim_is_held_by_one_and_given_back(tmp_path):
    with claimed(tmp_path / "run") as mine:
        assert mine
        found = holder(tmp_path / "run")
        assert found is not None
        assert found["pid"] == os.getpid()
        with claimed(tmp_path / "run") as also:
            assert not also
    assert holder(tmp_path / "run") is None
    assert not (tmp_path / "run").exists()


def test_a_claim_leaves_what_was_written_and_clears_what_was_not_finished(tmp_path):
    (tmp_path / "record.json").touch()
    (tmp_path / "record.json.17.partial").touch()
    with claimed(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_claim_in_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ValueError, match=message("must be a folder that can be written to", "choose another")),
        claimed(tmp_path / "file" / "run"),
    ):
        pass


def test_a_dead_process_leaves_its_claim_to_the_next(tmp_path):
    path = tmp_path / CLAIM
    code = "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(fd, fcntl.LOCK_EX)"
    code += "; os.write(fd, b'{\"pid\": 7}'); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with claimed(tmp_path) as mine:
            assert not mine
        assert holder(tmp_path) == {"pid": 7}
        other.kill()
        other.wait()
    assert path.exists()
    assert holder(tmp_path) is None
    with claimed(tmp_path) as mine:
        assert mine


def test_a_pool_ends_as_one_process_does(jobs, tmp_path):
    broken = make_jobs(tmp_path / "nowhere.csv", 1)[0]
    kinds: list[str] = []
    place = Place(out=tmp_path / "pool", device="cpu", poll_s=0.05)
    ended = run_pool([*jobs, broken], place, workers=1, watch=lambda event: kinds.append(event.kind))
    alone, _ = run_here([*jobs, broken], tmp_path / "alone")
    assert ended.failures == alone.failures
    assert {key: record["metrics"] for key, record in ended.records.items()} == {
        key: record["metrics"] for key, record in alone.records.items()
    }
    assert [kinds.count(kind) for kind in ("begin", "done", "failed")] == [4, 3, 1]


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
def test_workers_are_dealt_out_to_devices_and_share_one(device, count, devices):
    assert [spread(device, number, count) for number in range(3)] == devices


@pytest.mark.slow
def test_a_pool_goes_on_after_the_death_of_workers(tmp_path):
    jobs, out = make_jobs(write_series(tmp_path), 8, "training.epochs=30"), tmp_path / "out"
    begun: list[str] = []
    killed: list[int] = []

    def watch(event: Event) -> None:
        if event.kind == "begin":
            begun.append(event.key)
            found = holder(next(job for job in jobs if job.key == event.key).folder(out))
            # every other run is killed as it begins, the first time
            if len(begun) % 2 and begun.count(event.key) == 1 and found:
                killed.append(found["pid"])
                os.kill(found["pid"], signal.SIGKILL)

    ended = run_pool(jobs, Place(out=out, device="cpu", poll_s=0.05), workers=2, watch=watch)
    assert killed
    assert len(ended.records) == 8
    assert not ended.failures


@pytest.mark.slow
def test_a_run_that_kills_its_workers_is_given_up(tmp_path):
    jobs, out = make_jobs(write_series(tmp_path), 2, "training.epochs=30"), tmp_path / "out"

    def watch(event: Event) -> None:
        if event.kind == "begin" and event.key == jobs[0].key:
            found = holder(jobs[0].folder(out))
            assert found is not None
            os.kill(found["pid"], signal.SIGKILL)

    ended = run_pool(jobs, Place(out=out, device="cpu", poll_s=0.05), workers=1, watch=watch)
    assert set(ended.records) == {jobs[1].key}
    assert ended.failures == {jobs[0].key: "its worker died 3 times, the last time with exit code -9"}


def test_runs_of_one_process_share_what_they_load(jobs, tmp_path, monkeypatch):
    path = jobs[0].config.dataset
    read: list[str] = []
    load = load_forecast

    def counted(dataset, **how):
        read.append(dataset)
        return load(dataset, **how)

    monkeypatch.setattr(forecasting, "load_forecast", counted)
    run_here(jobs, tmp_path)
    assert read == [path]
    with open(path, "a") as file:
        file.write("0.5,0.25\n")
    run_here(make_jobs(jobs[0].config.dataset, 4)[3:], tmp_path)
    assert read == [path, path]


@pytest.mark.parametrize("run", [run_jobs, partial(run_pool, workers=2), run_ray])
def test_a_wrong_device_is_refused_before_anything_starts(jobs, tmp_path, run):
    with pytest.raises(ValueError, match=message("device must be auto, cpu", "got 'tpu'")):
        run(jobs, Place(out=tmp_path / "out", device="tpu"))
    assert not (tmp_path / "out").exists()


def test_a_device_that_a_run_broke_ends_the_runner(jobs, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(Job, "run", broken)
    monkeypatch.setattr(runner, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(BrokenDeviceError, match=message("cuda must still work after seed 0", "illegal memory")):
        run_here(jobs, tmp_path)
    # one failure, and the others are left as they were
    assert set(failures_now(jobs, tmp_path)) == {jobs[0].key}


def test_a_row_of_the_efficiency_table_is_a_run(tmp_path, monkeypatch):
    def measured(run, out, *, command):
        cost = {"milliseconds": 3.0, "tenth": 2.0, "ninetieth": 4.0, "peak_memory": 1, "parameters": 2, "backend": None}
        return {"task": "efficiency", "rows": [{"name": run.rows[0], **cost}], "device": "cpu", "command": "toa"}

    monkeypatch.setattr("toa_bench.efficiency.run_efficiency", measured)
    job = Job(config=StepRun(row="patchtst/toa-relu"), label="step")
    ended, _ = run_here([job], tmp_path)
    record = ended.records[job.key]
    assert record["metrics"] == {"train_step_ms": 3.0, "tenth_ms": 2.0, "ninetieth_ms": 4.0}
    assert finished(job, tmp_path) == record
    assert job.folder(tmp_path).name.startswith("patchtst-toa-relu-")


def test_one_run_of_demixing_is_that_of_the_experiment(tmp_path):
    config = replace(demixing_config("demo", "toa-relu", 3), steps=2, test_signals=8)
    job = Job(config=config, label="demixing")
    ended, _ = run_here([job], tmp_path)
    assert ended.records[job.key]["name"] == "toa-relu-no-sor"
    assert (job.folder(tmp_path) / "checkpoint.safetensors").exists()
    assert job.folder(tmp_path).parent == tmp_path / "demixing"
    assert run_here([job], tmp_path)[1] == [("found", "demixing")]


@pytest.mark.parametrize("kind", ["forecast", "demixing", "efficiency"])
def test_a_job_survives_its_way_to_a_worker(jobs, kind):
    config = {
        "forecast": jobs[0].config,
        "demixing": demixing_config("paper", "toa-relu", 3),
        "efficiency": StepRun(row="informer"),
    }[kind]
    job = Job(config=config, label="a, b", command=("toa", "run"))
    again = Job.from_json(job.to_json())
    assert (again.config, again.key, again.label, again.command) == (config, job.key, "a, b", ("toa", "run"))
    assert again.task == kind


def test_a_config_of_an_unknown_task_or_key_is_refused():
    with pytest.raises(ValueError, match=message("unknown task 'sort'", "forecast")):
        config_from("sort", {})
    with pytest.raises(ValueError, match=message("unknown key 'rows'", "efficiency config")):
        config_from("efficiency", {"rows": 3})


def test_an_outcome_is_a_line(jobs, tmp_path):
    ended, _ = run_here(jobs[:1], tmp_path)
    (record,) = ended.records.values()
    metrics = record["metrics"]
    assert outcome(record).startswith(f"val {metrics['val_mse']:.4f}  test {metrics['mse']:.4f}  mae ")
    assert "best 1/1" in outcome(record)
