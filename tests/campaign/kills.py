"""Kill work at chosen steps, repeat it, and compare its result with that of work left alone.

    outcome = kill("run", folder, seed=0, kills=20)    # outcome.counts, outcome.failures

Each kill is a signal at a step of the writing (`tests.campaign.children`), at once or up to 50 ms later. After a few
kills the work is repeated to its end. It must end with the same result, byte by byte, and leave no part of a file.
"""

import functools
import hashlib
import http.server
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from tests.campaign.children import Stop, command, run_child
from tests.campaign.outcome import Outcome
from tests.support import ROOT
from toa.data.catalogue import FileSpec
from toa.data.files import fetch
from toa.estimators import AnomalyDetector, Forecaster
from toa.estimators.base import load_estimator
from toa.experiments.records import RECORD, read_record

_SIZES = ("lookback=8", "batch_size=16", "training.epochs=4", "model.num_layers=1", "model.embed_dim=8")
SETTINGS = [word for size in (*_SIZES, "model.num_heads=2", "model.ff_dim=8") for word in ("--set", size)]
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# share of the kills that come some time after their step
_LATER = 0.4
# that time in seconds
_DELAY = 0.05
# kills until a work is left to end
_EACH = 4


def write_table(path: Path, rows: int = 120) -> None:
    """A table with dates and two columns."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(rows, 2)), columns=["a", "b"])
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=rows, freq="h"))
    frame.to_csv(path, index=False)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is killed: an action that writes below a folder, and what must be there at its end."""

    action: Callable[[Path], Callable[[], object]]
    result: Callable[[Path], object]


def _run(table: Path) -> Work:
    words = ("run", "--dataset", str(table), "--backbone", "itransformer", "--horizon", "4", "--seed", "1", *SETTINGS)

    def result(out: Path) -> object:
        (path,) = out.rglob(RECORD)
        return read_record(path)["metrics"], (path.parent / "model.safetensors").read_bytes()

    return Work(action=lambda out: command(*words, "--device", "cpu", "--out", str(out)), result=result)


def _forecast(table: Path) -> Work:
    words = ("forecast", str(table), "--horizon", "2", "--network-only", "--backbone", "dlinear", "--epochs", "1")

    def action(out: Path) -> Callable[[], object]:
        return command(*words, "--lookback", "8", "--save", str(out / "m.toa"), "--out", str(out / "f.csv"))

    return Work(action=action, result=lambda out: ((out / "m.toa").read_bytes(), (out / "f.csv").read_bytes()))


def _save(table: Path) -> Work:
    """One file that is written again and again with two models; at any time it holds one of them."""
    models = [Forecaster(2, lookback=8, epochs=1, backbone="dlinear", model="toa", seed=s) for s in (1, 2)]
    for model in models:
        model.fit(pd.read_csv(table))

    def action(out: Path) -> Callable[[], object]:
        def save() -> None:
            if (out / "m.toa").exists():
                load_estimator(out / "m.toa")
            for number in range(6):
                models[number % 2].save(out / "m.toa")

        return save

    return Work(action=action, result=lambda out: (out / "m.toa").read_bytes())


def _fit(table: Path) -> Work:
    """A detector that is fitted and saved as a folder of two files."""
    frame = pd.read_csv(table)

    def action(out: Path) -> Callable[[], object]:
        return lambda: AnomalyDetector(model="pca", window=8).fit(frame).save_pretrained(out)

    def result(out: Path) -> object:
        return load_estimator(out).predict(frame).to_csv(), sorted(path.name for path in out.iterdir())

    return Work(action=action, result=result)


def _panel(table: Path) -> Work:
    """The forecasts of a folder of two files."""
    # needs pyarrow, which not every machine has that collects the tests
    from toa.integrations.ray import forecast_parts

    source, model = table.parent / "panel", table.parent / "panel.toa"
    source.mkdir(exist_ok=True)
    frame = pd.read_csv(table, parse_dates=["date"])
    for name in ("u", "v"):
        frame.assign(id=name).to_parquet(source / f"{name}.parquet", index=False)
    Forecaster(2, id="id", time_limit=1e-9).fit(frame.assign(id="u")).save(model)

    def result(out: Path) -> object:
        return {file.name: file.read_bytes() for file in out.iterdir()}

    return Work(action=lambda out: lambda: forecast_parts(model, source, out), result=result)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A killed client is no error."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of this folder on this machine."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with _Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def make_download(table: Path, address: str) -> Work:
    """A file that is served beside the table, and fetched."""
    content = random.Random(0).randbytes(300_000)
    (table.parent / "x.bin").write_bytes(content)
    about = {"name": "x", "path": "x.bin", "source": "here", "note": ""}
    spec = FileSpec(**about, sha256=hashlib.sha256(content).hexdigest(), url=f"{address}/x.bin")

    def result(out: Path) -> object:
        return (out / "x.bin").read_bytes() == content, sorted(path.name for path in out.iterdir())

    return Work(action=lambda out: lambda: fetch(spec, out), result=result)


WORKS = ("run", "forecast", "panel", "save", "fit", "download")


def _work(name: str, table: Path, address: str) -> Work:
    if name == "download":
        return make_download(table, address)
    return {"run": _run, "forecast": _forecast, "panel": _panel, "save": _save, "fit": _fit}[name](table)


def kill(name: str, folder: Path, *, seed: int, kills: int) -> Outcome:
    """Kill a work until `kills` signals have hit it, and compare each end with that of work left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    outcome = Outcome()
    chance = random.Random(f"{name}/{seed}")
    table = folder / "own.csv"
    write_table(table)
    with served(folder) as address:
        work = _work(name, table, address)
        # imports what children would have to import
        quietly(work.action(folder / "warm"))
        alone = run_child(work.action(folder / "alone"), folder / "alone")
        if alone.status != 0:
            raise RuntimeError(f"{name} left alone must end, got status {alone.status}: {alone.output[-500:]}")
        expected = work.result(folder / "alone")
        number = 0
        while outcome.counts["kills"] < kills:
            number += 1
            out = folder / f"killed-{number}"
            problems = _kill_once(work, out, len(alone.steps), chance, outcome)
            if not problems and work.result(out) != expected:
                problems = ["the result differs from that of work left alone"]
            left = [path.name for path in out.rglob("*") if path.name.endswith((".partial", ".probe"))]
            problems += [f"leaves {', '.join(left)}"] if left else []
            outcome.failures += [f"{name} {number} of seed {seed}: {problem}" for problem in problems]
    return outcome


def _kill_once(work: Work, out: Path, steps: int, chance: random.Random, outcome: Outcome) -> list[str]:
    """Kill one work a few times and let it end; returns what went wrong."""
    for _ in range(_EACH):
        after = chance.uniform(0.0, _DELAY) if chance.random() < _LATER else 0.0
        stop = Stop(step=chance.randrange(steps), signal=chance.choice(_SIGNALS), after_s=after)
        kept = any(out.rglob("checkpoint.safetensors"))
        child = run_child(work.action(out), out, stop=stop)
        if len(child.steps) <= stop.step:
            # it ended before
            continue
        last = child.steps[min(stop.step, len(child.steps) - 1)]
        outcome.counts["kills"] += 1
        outcome.counts["after a checkpoint"] += kept
        outcome.counts["during a part of a file"] += ".partial" in last
        outcome.counts["during the record"] += "record.json" in last
        if "Traceback" in child.output and child.status == 1 and "KeyboardInterrupt" not in child.output:
            return [f"ends with {child.output.strip().splitlines()[-1][:200]}"]
    child = run_child(work.action(out), out)
    return [] if child.status == 0 else [f"does not end after kills: {child.output[-300:]}"]


def quietly(action: Callable[[], object]) -> None:
    """Run an action in this process, whatever its exit status."""
    with suppress(SystemExit), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        action()


def kill_sweeps(folder: Path, *, seed: int, kills: int, executor: str = "pool") -> Outcome:
    """The same for a sweep of two runs by workers, which are processes of their own; a signal hits all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome = Outcome()
    chance = random.Random(f"sweep/{executor}/{seed}")
    write_table(folder / "own.csv")
    line = f"--dataset {folder / 'own.csv'} --backbone itransformer --horizon 4 {' '.join(SETTINGS)}"
    (folder / "runs.txt").write_text(f"{line} --seed 1\n{line} --seed 2\n")

    def start(out: Path) -> "subprocess.Popen[bytes]":
        words = ["reproduce", "--runs", str(folder / "runs.txt"), "--out", str(out), "--device", "cpu"]
        words += ["--executor", executor, "--workers", "2"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        return subprocess.Popen([sys.executable, "-m", "toa", *words], cwd=ROOT, **quiet)  # type: ignore[call-overload]

    def result(out: Path) -> object:
        found = sorted(out.rglob(RECORD))
        return [(read_record(path)["metrics"], (path.parent / "model.safetensors").read_bytes()) for path in found]

    begin = time.monotonic()
    if start(folder / "alone").wait() != 0:
        raise RuntimeError("the sweep left alone must end")
    expected = result(folder / "alone")
    length = time.monotonic() - begin
    number = 0
    while outcome.counts["kills"] < kills:
        number += 1
        out = folder / f"killed-{number}"
        for _ in range(2):
            process = start(out)
            time.sleep(length * chance.uniform(0.4, 0.95))
            if process.poll() is None:
                outcome.counts["kills"] += 1
                outcome.counts["after a checkpoint"] += any(out.rglob("checkpoint.safetensors"))
                os.killpg(process.pid, chance.choice(_SIGNALS))
            process.wait()
        if start(out).wait() != 0 or result(out) != expected:
            outcome.failures.append(f"sweep {number} of seed {seed} differs from the sweep left alone")
        left = [path.name for path in out.rglob("*.partial")]
        if left:
            outcome.failures.append(f"sweep {number} of seed {seed} leaves {', '.join(left)}")
    return outcome
