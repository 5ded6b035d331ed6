"""Load: many threads, many processes, long streams, and sweeps of many runs.

Each part returns an outcome whose counts hold what was measured; a broken promise is a failure.
"""

import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from tests.campaign.children import Child, command, run_child
from tests.campaign.kills import SETTINGS, make_download, quietly, served, write_table
from tests.campaign.memory import CASES, measure_memory
from tests.campaign.outcome import Outcome
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.experiments import resolve
from toa.experiments.claims import claimed
from toa.experiments.records import RECORD, config_hash, hashed_values, read_record, write_record
from toa.experiments.run import Job, read_outcome, read_plans, write_plan
from toa.report.progress import read_progress
from toa.training.checkpoint import load_checkpoint, save_checkpoint
from toa_paper.report.evidence import read_evidence

_SMALL = {"embed_dim": 4, "num_heads": 2, "num_layers": 1, "ff_dim": 4}
# how much more a step may take at the end of a long stream or sweep than at its beginning
_GROWTH = 1.5
# saves per writer, and loads per reader, of one file
_TURNS = 150
# the same of one folder of a model, whose content is larger
_FOLDER_TURNS = 40
# records per writer of one folder of results, and readings of the whole folder per reader
_RECORDS = 20
# MiB by which the memory of a stream may grow after its start
_GROWTH_MIB = 64


def predict_in_threads(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """`count` threads predict with one estimator at the same time: each must get the answer of one thread alone."""
    outcome = Outcome()
    rows = np.random.default_rng(seed).normal(size=(120, 2))
    cases = rows[:96].reshape(12, 2, 8).repeat(2, 2)
    fitted = {
        "forecaster": Forecaster(2, lookback=8, epochs=1, settings=_SMALL, time_limit=5.0).fit(rows).predict,
        "detector": AnomalyDetector(window=8, epochs=1, settings=_SMALL).fit(rows).scores,
        "classifier": Classifier(epochs=1, settings=_SMALL).fit(cases, np.arange(12) % 2).predict_proba,
    }
    for name, predict in fitted.items():
        data = [cases + i if name == "classifier" else rows + i for i in range(4)]
        expected = [predict(one) for one in data]
        with ThreadPoolExecutor(count) as pool:
            found = list(pool.map(predict, [data[i % 4] for i in range(count)]))
        wrong = sum(not np.array_equal(one, expected[i % 4]) for i, one in enumerate(found))
        outcome.counts[name] = count - wrong
        if wrong:
            outcome.failures.append(f"{wrong} of {count} threads got another answer of the {name}")
    return outcome


def run_in_processes(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """`count` processes work on one folder of results: every run is done once, and every record is whole."""
    outcome = Outcome()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    write_table(folder / "own.csv")
    line = f"--dataset {folder / 'own.csv'} --backbone itransformer --horizon 4 {' '.join(SETTINGS)}"
    (folder / "runs.txt").write_text("".join(f"{line} --seed {number}\n" for number in range(2 * count)))
    words = ("reproduce", "--runs", str(folder / "runs.txt"), "--device", "cpu", "--out")
    quietly(command(*words, str(folder / "warm")))
    out = folder / "out"

    def start(number: int) -> int:
        return run_child(command(*words, str(out)), folder / f"child-{number}").status

    # each thread waits for its child
    with ThreadPoolExecutor(count) as pool:
        ended = list(pool.map(start, range(count)))
    records = [read_record(path) for path in out.rglob(RECORD)]
    expected = {str(read_record(path)["metrics"]) for path in (folder / "warm").rglob(RECORD)}
    outcome.counts["runs"] = len(records)
    if any(ended) or len(records) != 2 * count or {str(record["metrics"]) for record in records} != expected:
        outcome.failures.append(f"{count} processes ended with {ended} and {len(records)} of {2 * count} records")
    left = [path.name for path in out.rglob("*.partial")]
    outcome.failures += [f"leaves {left}"] if left else []
    return outcome


def share_one_file(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """`count` processes save to one file and as many load it: no save fails, and no good file is called damaged."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "m.safetensors"

    def save(writer: int) -> None:
        save_checkpoint(path, {"x": torch.full((1_000,), float(writer))}, {"writer": writer})

    def work(number: int) -> None:
        for _ in range(_TURNS):
            if number < count:
                save(number)
                continue
            saved = load_checkpoint(path)
            if not torch.equal(saved.tensors["x"], torch.full((1_000,), float(str(saved.facts["writer"])))):
                raise ValueError("tensors of one writer with the facts of another")

    save(0)
    outcome = _in_processes(work, 2 * count, folder)
    outcome.counts["saves"] = count * _TURNS
    outcome.counts["loads"] = count * _TURNS
    left = sorted(file.name for file in folder.glob("*.partial"))
    outcome.failures += [f"leaves {left}"] if left else []
    return outcome


def share_one_model_folder(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """`count` processes save to one folder of two files, and as many load it: each gets the model of one of them."""
    rows = np.random.default_rng(seed).normal(size=(60, 2))
    models = [AnomalyDetector(model="pca", window=8).fit(scale * rows) for scale in (1.0, 100.0)]
    expected = [model.scores(rows) for model in models]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model"
    models[0].save_pretrained(path)

    def work(number: int) -> None:
        for turn in range(_FOLDER_TURNS):
            if number < count:
                models[turn % 2].save_pretrained(path)
                continue
            scores = AnomalyDetector.from_pretrained(path).scores(rows)
            if not any(np.array_equal(scores, part) for part in expected):
                raise ValueError("the scores are those of no writer")

    outcome = _in_processes(work, 2 * count, folder)
    outcome.counts["saves"] = count * _FOLDER_TURNS
    outcome.counts["loads"] = count * _FOLDER_TURNS
    left = sorted(file.name for file in path.iterdir())
    outcome.failures += [] if left == ["config.json", "model.safetensors"] else [f"leaves {left}"]
    return outcome


def share_one_results_folder(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """`count` processes write plans and records to one folder, and as many read it: nothing is lost or unreadable."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "results"
    out.mkdir()

    def write(writer: int) -> None:
        jobs = [_job(writer * _RECORDS + turn) for turn in range(_RECORDS)]
        write_plan(jobs, out)
        for job in jobs:
            with claimed(job.folder(out)):
                write_record(job.folder(out) / RECORD, _record(job))
            # one record that all write
            write_record(out / "shared" / RECORD, _record(job))

    def read() -> None:
        for _ in range(_RECORDS):
            unreadable = read_plans(out)[1]
            skipped = [part.where for part in read_evidence([out]).skipped]
            if unreadable or skipped:
                raise ValueError(f"unreadable: {unreadable}, skipped: {skipped}")
            read_progress(out)

    outcome = _in_processes(lambda number: write(number) if number < count else read(), 2 * count, folder)
    records = [read_record(path) for path in out.rglob(RECORD)]
    outcome.counts["records"] = len(records)
    if len(records) != count * _RECORDS + 1 or len(read_progress(out).done) < count * _RECORDS:
        outcome.failures.append(f"{len(records)} records of {count * _RECORDS + 1}")
    left = sorted(file.name for file in out.rglob("*.partial"))
    outcome.failures += [f"leaves {left}"] if left else []
    return outcome


def share_one_download(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """`count` processes fetch one file at the same time: each gets it whole."""
    (folder / "served").mkdir(parents=True, exist_ok=True)
    with served(folder / "served") as address:
        download = make_download(folder / "served" / "table.csv", address)
        out = folder / "out"
        outcome = _in_processes(lambda number: download.action(out)(), count, folder)
        outcome.counts["downloads"] = count
        if not outcome.failures and download.result(out) != (True, ["x.bin"]):
            outcome.failures.append(f"{count} downloads leave {sorted(file.name for file in out.iterdir())}")
    return outcome


def _in_processes(work: Callable[[int], object], count: int, folder: Path) -> Outcome:
    """Do work in `count` processes at the same time; each that fails is a failure."""
    outcome = Outcome()

    def start(number: int) -> Child:
        def run() -> None:
            work(number)

        return run_child(run, folder / f"child-{number}")

    with ThreadPoolExecutor(count) as pool:
        children = list(pool.map(start, range(count)))
    for number, child in enumerate(children):
        if child.status:
            outcome.failures.append(f"process {number}: {child.output.strip()[-300:]}")
    return outcome


def stream_rows(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """`count` rows through `detect` in calls of 1,000, and a thousandth of them one by one: memory and latency."""
    outcome = Outcome()
    rng = np.random.default_rng(seed)
    detector = AnomalyDetector(window=16, time_limit=1e-9).fit(rng.normal(size=(2_000, 5)))
    block = rng.normal(size=(1_000, 5))
    times, used = np.empty((2, max(1, count // 1_000)))
    start = _resident()
    for number in range(len(times)):
        begin = time.perf_counter()
        cpu = time.process_time()
        detector.detect(block)
        times[number] = time.perf_counter() - begin
        used[number] = time.process_time() - cpu
        if number == min(99, len(times) - 1):
            start = _resident()
    grown = _resident() - start
    single = np.empty(max(100, count // 100_000))
    for number in range(len(single)):
        begin = time.perf_counter()
        detector.detect(block[number % 1_000])
        single[number] = time.perf_counter() - begin
    for share in (50, 99):
        outcome.counts[f"µs per call of 1000 rows, {share} %"] = int(1e6 * np.percentile(times, share))
        outcome.counts[f"µs per row alone, {share} %"] = int(1e6 * np.percentile(single, share))
    outcome.counts["MiB more at the end"] = int(grown)
    outcome.counts["rows"] = 1_000 * len(times)
    tenth = max(1, len(times) // 10)
    if grown > _GROWTH_MIB:
        outcome.failures.append(f"memory grew by {grown:.0f} MiB in {count} rows")
    before = np.median(used[:tenth])
    after = np.median(used[-tenth:])
    if after > _GROWTH * before:
        outcome.failures.append(f"calls became slower: from {before:.2e} s to {after:.2e} s")
    return outcome


def plan_many_runs(folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    """A sweep of `count` tiny runs: the bookkeeping per run is the same for a tenth of them and for all.

    CPU time, because other programs on this machine change the time on the clock.
    """
    outcome = Outcome()
    per_run = {}
    for size in (count // 10, count // 5, count // 2, count):
        out = folder / str(size)
        jobs = [_job(number) for number in range(size)]
        begin = time.process_time()
        write_plan(jobs, out)
        for job in jobs:
            with claimed(job.folder(out)):
                write_record(job.folder(out) / RECORD, _record(job))
        read_plans(out)
        found = read_outcome(jobs, out)
        progress = read_progress(out)
        per_run[size] = (time.process_time() - begin) / size
        if len(progress.done) != size or progress.waiting:
            outcome.failures.append(f"{size} runs: {len(progress.done)} done, {progress.waiting} waiting; {found}")
        outcome.counts[f"µs per run of {size}"] = int(1e6 * per_run[size])
    small = per_run[count // 10]
    large = per_run[count]
    outcome.counts[f"% of the time per run of {count // 10}"] = int(100 * large / small)
    if large > _GROWTH * small:
        outcome.failures.append(f"bookkeeping per run grows from {small:.2e} s to {large:.2e} s")
    return outcome


def _job(number: int) -> Job:
    config = resolve("forecast", "toa-paper", dataset="ETTh1", horizon=96, backbone="itransformer", seed=number)
    return Job(config=config, label=str(number), command=("toa", "run"))


def _record(job: Job) -> dict[str, object]:
    own: dict[str, object] = {"task": "forecast", "name": job.config.name, "config": hashed_values(job.config)}
    own |= {"config_hash": config_hash(job.config), "metrics": {"mse": 0.4, "mae": 0.3}, "seed": job.config.seed}
    own |= {"wall_s": 1.0, "device": "cpu", "command": "toa run", "data_checksum": None, "history": []}
    return own | {"best_epoch": 1}


def _resident() -> float:
    """Memory of this process now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


PARTS = {
    "threads on one estimator": (predict_in_threads, 64),
    "processes on one folder": (run_in_processes, 8),
    "processes on one file": (share_one_file, 8),
    "processes on one folder of a model": (share_one_model_folder, 8),
    "processes on one folder of results": (share_one_results_folder, 8),
    "processes on one download": (share_one_download, 8),
    "rows of a stream": (stream_rows, 10_000_000),
    "runs of a sweep": (plan_many_runs, 10_000),
    "memory": (measure_memory, len(CASES)),
}
