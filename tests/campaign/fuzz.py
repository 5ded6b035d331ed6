"""Damaged and forged files for every loader. A file is decided by the loader's name, the seed and its number.

    outcome = fuzz("record", folder, seed=0, numbers=range(100))
    outcome.counts                # loaded, refused
    outcome.failures              # what no loader may do: another error, no file name, too slow, other content

A loader may return, or raise ValueError or OSError with the name of the file. If the file has a checksum and was
damaged byte by byte, it may only return the content of the undamaged file.
"""

import copy
import hashlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from toa._files import seal
from toa.cli.reproduce import read_runs
from toa.data import DATASETS, read_csv_series, read_dataset, read_ts, read_values
from toa.data.collections import read_tsf
from toa.estimators import Forecaster
from toa.estimators.base import load_estimator
from toa.experiments import resolve
from toa.experiments.records import config_hash, hashed_values, read_record, write_record
from toa.experiments.run import Job, read_error, read_plans, write_failure, write_plan
from toa.report.evidence import read_evidence
from toa.report.operators import read_pictures, write_pictures
from toa.tasks.checkpoint import load_checkpoint, save_checkpoint
from toa.tasks.distributed import make_fabric
from toa.tasks.optimization import TrainingConfig
from toa.tasks.training import train

# seconds per file
LIMIT_S = 10.0
_WORDS = ("", "nan", "inf", "-", "1e400", "9" * 400, "[" * 60, "\0", "é", "\x1b[31m", "x" * 1000, "2024-13-45", "True")
_VALUES: tuple[Any, ...] = (None, True, -1, 2**63, 10**60, 1e308, "", "x", [], {}, [[[]]], {"a": None}, "9" * 400)


@dataclass(kw_only=True)
class Outcome:
    """Counts of what loaders did, and what none may do."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class _Table:
    """Two steps of four numbers, for a model of four weights."""

    steps_per_epoch = 2

    def at(self, epoch: int, step: int) -> tuple[torch.Tensor, ...]:
        return (torch.ones(3, 4) * (step + 1),)


@cache
def _fabric() -> Any:
    return make_fabric(torch.device("cpu"))


def _train(path: Path) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    config = TrainingConfig(epochs=1, learning_rate=1e-3)
    loss = lambda module, x: module(x).square().mean()  # noqa: E731
    state = train(model, _Table(), loss, config, fabric=_fabric(), key="fuzz", validate=_validate, checkpoint=path)
    return state.history, [parameter.tolist() for parameter in model.parameters()]


def _validate(model: nn.Module) -> float:
    return 1.0


def _config() -> Any:
    return resolve("forecast", "toa-paper", dataset="ETTh1", horizon=96, backbone="itransformer")


def _write_record(path: Path) -> None:
    config = _config()
    content: Any = {"task": "forecast", "name": config.name, "config": hashed_values(config), "seed": 2024}
    content |= {"config_hash": config_hash(config), "metrics": {"mse": 0.4, "mae": 0.3}, "wall_s": 1.0, "device": "cpu"}
    write_record(path, content | {"command": "toa run", "data_checksum": "0" * 64, "history": [], "best_epoch": 1})


def _write_csv(path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(40, 3))
    frame = pd.DataFrame(values, columns=["a", "b", "OT"])
    frame.insert(0, "date", pd.date_range("2024-01-01", periods=40, freq="h"))
    frame.to_csv(path, index=False)


def _write_error(path: Path) -> None:
    job = Job(config=_config(), label="x")
    write_failure(job, path.parent / "runs", "ValueError: no", "trace")
    (job.folder(path.parent / "runs") / "error.json").replace(path)


def _write_plan(path: Path) -> None:
    assert write_plan([Job(config=_config(), label="x", command=("toa", "run"))], path.parent.parent) == path


def _read_plans(path: Path) -> Any:
    jobs, unreadable = read_plans(path.parent.parent)
    if unreadable:
        raise ValueError(unreadable[0])
    return [job.to_json() for job in jobs.values()]


def _read_evidence(path: Path) -> Any:
    found = read_evidence([path])
    if found.skipped:
        raise ValueError(found.skipped[0].where)
    return [run.record["metrics"] for run in found.runs]


def _save_model(path: Path) -> None:
    Forecaster(2, lookback=8, epochs=1, backbone="dlinear").fit(np.arange(60.0)).save(path)


def _arrays(found: Any) -> Any:
    return [part.tolist() for part in found.values], list(found.columns)


def _weights(model: Any) -> Any:
    return {name: value.tolist() for name, value in model.model_.state_dict().items()}, model.get_params()


def _write_ts(path: Path) -> None:
    cases = "".join(f"{i},{i + 1},{i + 2}:3,{i},5:{'ab'[i % 2]}\n" for i in range(8))
    path.write_text(f"@problemName x\n@timestamps false\n@univariate false\n@classLabel true a b\n@data\n{cases}")


def _write_tsf(path: Path) -> None:
    rows = "".join(f"T{i}:2020-01-0{i + 1} 00-00-00:1,2,3.5,{i}\n" for i in range(4))
    header = "@relation x\n@attribute series_name string\n@attribute start_timestamp date\n@frequency daily\n"
    path.write_text(f"{header}@horizon 2\n@missing false\n@equallength true\n@data\n{rows}")


_PLAN = hashlib.sha256(config_hash(_config()).encode()).hexdigest()[:16]
_PEMS = replace(DATASETS["PEMS03"], rows=12, channels=2)


@dataclass(frozen=True, kw_only=True)
class Loader:
    """A file name, what writes the file, what reads it, and how its content is structured."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    structure: str = "bytes"
    sealed: bool = False


LOADERS = {
    "csv": Loader(name="x.csv", write=_write_csv, read=lambda p: _arrays(read_csv_series(p)), structure="text"),
    "ts": Loader(name="x.ts", write=_write_ts, read=lambda p: _arrays(read_ts(p)), structure="text"),
    "tsf": Loader(name="x.tsf", write=_write_tsf, read=lambda p: _arrays(read_tsf(p)), structure="text"),
    "npy": Loader(name="x.npy", write=lambda p: np.save(p, np.arange(24.0).reshape(8, 3)), read=read_values),
    "npz": Loader(
        name="x.npz",
        write=lambda p: np.savez(p, data=np.arange(24.0).reshape(12, 2, 1)),
        read=lambda p: _arrays(read_dataset(_PEMS, p)),
    ),
    "model": Loader(
        name="x.toa",
        write=_save_model,
        read=lambda p: _weights(load_estimator(p)),
        structure="tensors",
        sealed=True,
    ),
    "checkpoint": Loader(name="x.safetensors", write=_train, read=_train, structure="tensors", sealed=True),
    "record": Loader(name="record.json", write=_write_record, read=read_record, structure="json", sealed=True),
    "evidence": Loader(name="x.jsonl", write=_write_record, read=_read_evidence, structure="line", sealed=True),
    "error": Loader(name="error.json", write=_write_error, read=read_error, structure="json", sealed=True),
    "plan": Loader(name=f"plans/{_PLAN}.plan", write=_write_plan, read=_read_plans, structure="line", sealed=True),
    "operators": Loader(
        name="operators.json", write=lambda p: write_pictures([], p), read=read_pictures, structure="json"
    ),
    "run list": Loader(
        name="runs.txt",
        write=lambda p: p.write_text("--task forecast --dataset ETTh1 --backbone patchtst --horizon 96 # x\n"),
        read=lambda p: [job.key for job in read_runs(p)],
        structure="text",
    ),
}


def fuzz(kind: str, folder: Path, *, seed: int, numbers: Iterable[int]) -> Outcome:
    """Write the files with these numbers one after another and load each."""
    loader, outcome = LOADERS[kind], Outcome()
    path = folder / loader.name
    path.parent.mkdir(parents=True, exist_ok=True)
    # the last file of an earlier call
    path.unlink(missing_ok=True)
    loader.write(path)
    if kind == "evidence":
        path.write_text(json.dumps(json.loads(path.read_text())) + "\n")
    content, expected = path.read_bytes(), _comparable(loader.read(path))
    for number in numbers:
        chance = random.Random(f"{kind}/{seed}/{number}")
        forged = _mutate(path, content, loader, chance)
        begin = time.monotonic()
        try:
            with _alarm(LIMIT_S):
                found = _comparable(loader.read(path))
            outcome.counts["loaded"] += 1
            if loader.sealed and not forged and found != expected:
                outcome.failures.append(f"{kind} {number}: damaged content was accepted")
        except (ValueError, OSError) as error:
            outcome.counts["refused"] += 1
            if path.name not in str(error):
                outcome.failures.append(f"{kind} {number}: no file name in {str(error)[:200]!r}")
        except Exception as error:
            outcome.failures.append(f"{kind} {number}: {type(error).__name__}: {str(error)[:200]}")
        if time.monotonic() - begin > LIMIT_S:
            outcome.failures.append(f"{kind} {number}: took longer than {LIMIT_S} s")
    return outcome


def _comparable(value: Any) -> str:
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("too slow")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _mutate(path: Path, content: bytes, loader: Loader, chance: random.Random) -> bool:
    """Write a changed file; returns whether its checksum, if any, was made to fit."""
    structured = loader.structure != "bytes" and chance.random() < 0.6
    if not structured:
        path.write_bytes(_damage(content, chance))
        return False
    if loader.structure == "text":
        path.write_bytes(_change_text(content, chance))
        return False
    if loader.structure == "tensors":
        path.write_bytes(content)
        saved = load_checkpoint(path)
        _forge_tensors(saved.tensors, chance) if chance.random() < 0.5 else None
        facts: Any = _change_value(copy.deepcopy(saved.facts), chance)
        save_checkpoint(path, saved.tensors, facts if isinstance(facts, dict) else {"facts": facts})
        return True
    value = _change_value(json.loads(content), chance)
    sealed = loader.sealed and isinstance(value, dict) and chance.random() < 0.7
    text = json.dumps(seal(value) if sealed else value)
    if chance.random() < 0.1:
        text = "[" * 100_000 + text
    path.write_text(text + "\n")
    # without its checksum, a record is one of an older version
    return True


def _damage(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data)) if data else 0
        stop = min(len(data), start + chance.choice((1, 1, 1, 4, 64)))
        how = chance.randrange(6)
        if how == 0:
            del data[start:]
        elif how == 1:
            del data[start:stop]
        elif how == 2:
            data[start:start] = data[start:stop] * chance.randint(1, 50)
        elif how == 3:
            data[start:stop] = chance.randbytes(stop - start)
        elif data:
            data[min(start, len(data) - 1)] ^= 1 << chance.randrange(8)
    return bytes(data)


def _change_text(content: bytes, chance: random.Random) -> bytes:
    text = content.decode()
    for _ in range(chance.randint(1, 3)):
        lines = text.split("\n")
        row = chance.randrange(len(lines))
        cells = chance.choice((",", ":", " ")).join(lines[row].split(","))
        parts = cells.split(chance.choice((",", ":", " ")))
        parts[chance.randrange(len(parts))] = chance.choice(_WORDS)
        lines[row] = chance.choice((",", ":", " ")).join(parts)
        if chance.random() < 0.2:
            chance.shuffle(lines)
        text = "\n".join(lines)
    return text.encode("utf-8")


def _change_value(value: Any, chance: random.Random) -> Any:
    """One entry of a JSON value removed, added, or replaced by one of another type."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(sorted(value))
        how = chance.random()
        if how < 0.15:
            del value[name]
        elif how < 0.25:
            value[f"{name}?"] = value[name]
        else:
            value[name] = _change_value(value[name], chance)
        return value
    if isinstance(value, list) and value and chance.random() < 0.7:
        value[chance.randrange(len(value))] = _change_value(value[0], chance)
        return value
    return copy.deepcopy(chance.choice(_VALUES))


def _forge_tensors(tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    name = chance.choice(sorted(tensors))
    tensor = tensors[name]
    how = chance.randrange(5)
    if how == 0:
        del tensors[name]
    elif how == 1:
        tensors[name] = tensor.reshape(-1).repeat(chance.choice((2, 300)))
    elif how == 2:
        tensors[name] = tensor.to(chance.choice((torch.int8, torch.float16, torch.float64, torch.bool)))
    elif how == 3 and tensor.is_floating_point():
        tensors[name] = tensor * chance.choice((0.0, float("nan"), float("inf"), -1.0))
    else:
        tensors[f"{name}.more"] = tensor.clone()
