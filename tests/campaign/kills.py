"""Kill a run at moments spread over its time, repeat the command, and compare the result with that of a run left alone.

    outcome = kill_runs(folder, seed=0, kills=20)    # outcome.counts, outcome.failures

A killed run must end with the same metrics and byte-identical weights, without a repeated or lost run.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from tests.campaign.fuzz import Outcome
from tests.support import ROOT
from toa.experiments.records import RECORD, read_record

_SIZES = ("lookback=24", "batch_size=4", "training.epochs=8", "model.num_layers=1", "model.embed_dim=8")
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def _write_table(path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(400, 2)), columns=["a", "b"])
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=400, freq="h"))
    frame.to_csv(path, index=False)


def _start(table: Path, out: Path, seed: int) -> "subprocess.Popen[bytes]":
    words = ["--dataset", str(table), "--backbone", "itransformer", "--horizon", "12", "--seed", str(seed)]
    changes = [word for size in (*_SIZES, "model.num_heads=2", "model.ff_dim=8") for word in ("--set", size)]
    command = [sys.executable, "-m", "toa", "run", *words, *changes, "--device", "cpu", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _has_checkpoint(out: Path) -> bool:
    return any(out.rglob("checkpoint.safetensors"))


def _result(out: Path) -> tuple[object, bytes]:
    (path,) = out.rglob(RECORD)
    return read_record(path)["metrics"], (path.parent / "model.safetensors").read_bytes()


def kill_runs(folder: Path, *, seed: int, kills: int) -> Outcome:
    """Kill runs until `kills` signals have hit one, and compare each run's end with that of a run left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome, chance = Outcome(), random.Random(seed)
    table = folder / "own.csv"
    _write_table(table)
    begin = time.monotonic()
    if _start(table, folder / "alone", seed).wait() != 0:
        raise RuntimeError("the run left alone must end")
    expected, length = _result(folder / "alone"), time.monotonic() - begin
    number = 0
    while outcome.counts["kills"] < kills:
        out = folder / f"killed-{number}"
        number += 1
        for _ in range(4):
            process = _start(table, out, seed)
            if chance.random() < 0.5:
                # during training, soon after a checkpoint
                while process.poll() is None and not _has_checkpoint(out):
                    time.sleep(0.01)
                time.sleep(chance.uniform(0.0, 0.3))
            else:
                time.sleep(length * chance.uniform(0.3, 1.0))
            kept = _has_checkpoint(out)
            if process.poll() is None:
                process.send_signal(chance.choice(_SIGNALS))
                outcome.counts["kills"] += 1
                outcome.counts["after a checkpoint"] += kept
            process.wait()
        if _start(table, out, seed).wait() != 0 or _result(out) != expected:
            outcome.failures.append(f"run {number} of seed {seed} differs from the run left alone")
        left = [path.name for path in out.rglob("*.partial")]
        if left:
            outcome.failures.append(f"run {number} of seed {seed} leaves {', '.join(left)}")
    return outcome
