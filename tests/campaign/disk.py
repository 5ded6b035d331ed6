"""A disk that is full, read-only or broken from a chosen step on, for every command that writes.

    outcome = fail_disk("forecast", folder, seed=0, numbers=range(10))    # outcome.counts, outcome.failures

Fault n of a command is at its step n, with an error that depends on seed and n. The command must end with an error in
one line that names a path, without a traceback, and leave no part of a file. What was there before stays as it was. A
command that ends without an error must have written all its files.
"""

import errno
import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tests.campaign.children import Child, Fault, command, run_child
from tests.campaign.kills import SETTINGS, quietly, served, write_table
from tests.campaign.outcome import Outcome
from toa.data.catalogue import DATASETS

_CODES = (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO)
_RUN = ("--backbone", "itransformer", "--horizon", "4", "--seed", "1")
# an entry of the catalogue that is fetched from this machine
_FETCHED = "ETTh1"


def _write_cases(path: Path) -> None:
    rows = [f"{','.join(map(str, case.tolist()))}:{'ab'[i % 2]}" for i, case in enumerate(np.eye(12))]
    header = "@problemName x\n@timestamps false\n@univariate true\n@classLabel true a b\n@data\n"
    path.write_text(header + "\n".join(rows) + "\n")


def _words(name: str, inputs: Path, out: Path) -> tuple[str, ...]:
    """The words of a command that reads from one folder and writes to another."""
    table = str(inputs / "own.csv")
    small = ("--network-only", "--epochs", "1")
    cases = str(inputs / "x_TRAIN.ts")
    found = {
        "run": ("run", "--dataset", table, *_RUN, *SETTINGS, "--device", "cpu", "--out", str(out)),
        "reproduce": ("reproduce", "--runs", str(inputs / "runs.txt"), "--out", str(out), "--device", "cpu"),
        "forecast": ("forecast", table, "--horizon", "2", "--lookback", "8", "--backbone", "dlinear", *small),
        "detect": ("detect", table, "--method", "pca"),
        "classify": ("classify", cases, "--test", cases, *small),
        "compare": ("compare", str(inputs / "runs"), "--metric", "mse", "--out", str(out / "compared")),
        "explain": ("explain", str(inputs / "runs" / "explained"), "--out", str(out / "drawn")),
        "report": ("report", str(inputs / "runs"), "--out", str(out / "page")),
        "demix": ("demix", "--attention", "softmax", "--steps", "2", "--device", "cpu", "--out", str(out)),
        "data fetch": ("data", "fetch", _FETCHED, "--data-dir", str(out)),
    }[name]
    if name in ("forecast", "detect", "classify"):
        found += ("--save", str(out / "m.toa"), "--out", str(out / "table.csv"), "--page", str(out / "page.html"))
    return found


COMMANDS = (
    *("run", "reproduce", "forecast", "detect", "classify", "compare", "report", "explain", "demix", "data fetch"),
)


def prepare(folder: Path) -> Path:
    """The inputs of all commands."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    write_table(folder / "own.csv")
    _write_cases(folder / "x_TRAIN.ts")
    (folder / "runs.txt").write_text(f"--dataset {folder / 'own.csv'} {' '.join((*_RUN, *SETTINGS))}\n")
    for attention in ("softmax", "toa-softmax"):
        quietly(command(*_words("run", folder, folder / "runs"), "--attention", attention))
    next((folder / "runs").glob("*toa*")).rename(folder / "runs" / "explained")
    return folder


def fail_disk(name: str, folder: Path, *, seed: int, numbers: Sequence[int]) -> Outcome:
    """Let the disk fail at the steps with these numbers; those beyond the last step begin again with other errors."""
    inputs = prepare(folder / "inputs")
    with served(inputs) as address, _fetched_from(address, inputs / "own.csv"):
        return _fail_disk(name, folder, inputs, seed, numbers)


@contextmanager
def _fetched_from(address: str, file: Path) -> Iterator[None]:
    """The catalogue with an entry for this file at this address."""
    known = DATASETS[_FETCHED]
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    DATASETS[_FETCHED] = replace(known, url=f"{address}/{file.name}", sha256=checksum)
    try:
        yield
    finally:
        DATASETS[_FETCHED] = known


def _fail_disk(name: str, folder: Path, inputs: Path, seed: int, numbers: Sequence[int]) -> Outcome:
    outcome = Outcome()
    quietly(command(*_words(name, inputs, folder / "warm")))
    alone = run_child(command(*_words(name, inputs, folder / "alone")), folder / "alone")
    if alone.status != 0:
        raise RuntimeError(f"{name} must end, got status {alone.status}: {alone.output[-500:]}")
    steps = [index for index, step in enumerate(alone.steps) if not step.startswith("os.remove")]
    if not steps:
        raise RuntimeError(f"{name} must write something, got no step")
    # once per part of the campaign, which adds up counts
    outcome.counts["steps of the command"] += len(steps) if 0 in numbers else 0
    for number in numbers:
        chance = random.Random(f"{name}/{seed}/{number}")
        out = folder / f"failed-{number}"
        fault = Fault(step=steps[number % len(steps)], code=chance.choice(_CODES))
        old = out / "old.txt"
        out.mkdir()
        old.write_text("old")
        child = run_child(command(*_words(name, inputs, out)), out, fault=fault)
        # how often a run writes a checkpoint depends on time
        reached = len(child.steps) > fault.step
        ending = "ended" if reached else "not reached"
        outcome.counts["refused" if child.status else ending] += 1
        at = f"{name} {number} at {alone.steps[fault.step]}"
        outcome.failures += [f"{at}: {problem}" for problem in _problems(child, out)]
        if old.read_text() != "old":
            outcome.failures.append(f"{at}: another file has changed")
        missing = _files(folder / "alone") - _files(out)
        if child.status == 0 and missing:
            outcome.failures.append(f"{at}: ends without an error and without {', '.join(sorted(missing))}")
    return outcome


def _files(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


def _problems(child: Child, out: Path) -> list[str]:
    found = []
    lines = [line for line in child.output.splitlines() if line.strip()]
    if "Traceback" in child.output:
        found.append(f"a traceback that ends in {lines[-1][:200]}")
    elif child.status not in (0, 1, 2):
        found.append(f"status {child.status}")
    elif child.status and not any("error" in line.lower() for line in lines):
        found.append(f"no error in {' '.join(lines)[-200:]}")
    elif child.status and out.name not in child.output.replace("\n", ""):
        found.append(f"no path in {' '.join(lines)[-300:]}")
    left = [path.name for path in out.rglob("*.partial")]
    return found + ([f"leaves {', '.join(left)}"] if left else [])
