"""Sweeps that share a results folder and are killed: `python -m tests.experiments.sweep_cases FOLDER CASE=COUNT …`.

Run in a separate process, so that the sweeps are forked before any training. Prints the result of each case as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

# imported once here, not in each child
from lightning.fabric import Fabric  # noqa: F401

from toa.experiments import resolve
from toa.experiments.claims import holder
from toa.experiments.records import RECORD
from toa.experiments.run import Job
from toa.experiments.sweep import Event, RunContext, sweep

TINY = ["lookback=8", "batch_size=16", "training.epochs=2", "model.moving_average=3", 'date_column=""']


def write_series(folder: Path, rows: int = 150) -> Path:
    values = np.random.default_rng(0).normal(size=(rows, 2)).round(3)
    path = folder / "own.csv"
    path.write_text("a,b\n" + "\n".join(f"{a},{b}" for a, b in values) + "\n")
    return path


def make_jobs(path: Path, count: int, *changes: str) -> list[Job]:
    """Return `count` jobs that train the same tiny model with different seeds."""
    configs = [
        resolve(
            "forecast",
            "tslib-96",
            dataset=str(path),
            horizon=4,
            backbone="dlinear",
            seed=seed,
            changes=[*TINY, *changes],
        )
        for seed in range(count)
    ]
    return [Job(config=config, label=f"seed {config.seed}", command=("toa", "run")) for config in configs]


def start(jobs: list[Job], out: Path, gate: Path | None = None) -> int:
    """Start a sweep in a child that logs its events to a file. It waits at each step until the file `gate` exists."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        log = os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def watch(event: Event) -> None:
            if event.kind in ("begin", "step", "done"):
                os.write(log, f"{event.kind} {event.key}\n".encode())
            while event.kind == "step" and gate is not None and not gate.exists():
                time.sleep(0.01)

        sweep(jobs, RunContext(out=out, device="cpu", poll_s=0.02), watch=watch)
        code = 0
    except KeyboardInterrupt:
        code = 130
    finally:
        os._exit(code)


def stamps(out: Path) -> dict[str, int]:
    """Return the modification time of each record."""
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob(f"*/*/{RECORD}")}


def share(folder: Path, count: int) -> dict[str, object]:
    """Two sweeps run one list."""
    jobs = make_jobs(write_series(folder), count)
    out = folder / "shared"
    children = [start(jobs, out) for _ in range(2)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    lines = out.with_suffix(".log").read_text().split("\n")
    begun = [line.split()[1] for line in lines if line.startswith("begin")]
    return {"codes": codes, "records": len(stamps(out)), "begun": len(begun), "different": len(set(begun))}


def kill(folder: Path, kills: int) -> dict[str, object]:
    """Two sweeps run one list; they are killed in turn and started again."""
    jobs = make_jobs(write_series(folder), 3 + 2 * kills, "training.epochs=6")
    out = folder / "killed"
    chance = random.Random(kills)
    known: dict[str, int] = {}
    rewritten = 0
    children = [start(jobs, out), start(jobs, out)]
    for turn in range(kills):
        time.sleep(chance.uniform(0.05, 0.4))
        while turn + 1 == kills and not stamps(out):
            # at least one run is finished before the last kill, however slow the machine
            time.sleep(0.01)
        victim = children[turn % 2]
        os.kill(victim, signal.SIGTERM if turn % 3 == 2 else signal.SIGKILL)
        os.waitpid(victim, 0)
        found = stamps(out)
        rewritten += sum(found.get(name) != written for name, written in known.items())
        known |= found
        children[turn % 2] = start(jobs, out)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    found = stamps(out)
    rewritten += sum(found.get(name) != written for name, written in known.items())
    return {
        "codes": codes,
        "jobs": len(jobs),
        "records": len(found),
        "before": len(known),
        "rewritten": rewritten,
        "held": sum(holder(job.folder(out)) is not None for job in jobs),
    }


def stop(folder: Path, epochs: int) -> dict[str, object]:
    """A sweep is stopped during training, and a second one resumes."""
    jobs = make_jobs(write_series(folder), 1, f"training.epochs={epochs}")
    out = folder / "stopped"
    gate = folder / "gate"
    log = out.with_suffix(".log")
    child = start(jobs, out, gate)
    while not (log.exists() and "step" in log.read_text()):
        time.sleep(0.01)
    os.kill(child, signal.SIGTERM)
    gate.touch()
    first = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    saved = (jobs[0].folder(out) / "checkpoint.safetensors").exists()
    unfinished = not stamps(out)
    second = os.waitstatus_to_exitcode(os.waitpid(start(jobs, out), 0)[1])
    return {"codes": [first, second], "saved": saved, "unfinished": unfinished, "records": len(stamps(out))}


CASES = {"share": share, "kill": kill, "stop": stop}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    given = sys.argv[2:]
    seen = {case: CASES[case](folder, int(count)) for case, _, count in (word.partition("=") for word in given)}
    sys.stdout.write(json.dumps(seen) + "\n")
