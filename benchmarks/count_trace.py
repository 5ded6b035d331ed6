"""Count what a reader must follow: functions, files and changes of folder that one command visits.

    python benchmarks/count_trace.py [--list]

Runs `toa forecast own.csv` and `toa run --dataset ETTh1` in miniature. Counts distinct functions under src/toa, their
files, and changes of folder: functions that are called from a function in another folder. Leaves out what runs while
modules are imported, comprehensions and lambdas.
"""

import argparse
import contextlib
import inspect
import io
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pandas as pd

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "toa"

COMMANDS = {
    "toa forecast own.csv": "forecast own.csv --horizon 8 --lookback 48 --epochs 1 --device cpu",
    "toa run --dataset ETTh1": (
        "run --dataset ETTh1 --horizon 96 --backbone patchtst --attention toa-gated --device cpu --out runs"
        " --set lookback=48 --set batch_size=512 --set training.epochs=1 --set model.num_layers=1"
        " --set model.embed_dim=8 --set model.ff_dim=8 --set model.num_heads=2"
    ),
}

# file and name of a function
Place = tuple[str, str]


class Trace:
    """A profiler that collects distinct functions, and those entered from another folder with their caller."""

    def __init__(self) -> None:
        self.functions: set[Place] = set()
        self.changes: dict[Place, Place] = {}
        self._places: dict[CodeType, Place | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """See a call of Python."""
        callee = self._place(frame.f_code) if event == "call" else None
        if callee is None or (callee not in self.functions and _importing(frame)):
            return
        self.functions.add(callee)
        outer = frame.f_back
        caller = None
        while outer is not None and (caller := self._place(outer.f_code)) is None:
            outer = outer.f_back
        if caller in self.functions and folder_of(caller) != folder_of(callee):
            self.changes.setdefault(callee, caller)

    def folders(self) -> Counter[tuple[str, str]]:
        """Number of changes of folder from one folder to another."""
        return Counter((folder_of(caller), folder_of(callee)) for callee, caller in self.changes.items())

    def _place(self, code: CodeType) -> Place | None:
        """File and name of a function of the package; None for other code."""
        if code not in self._places:
            path = Path(code.co_filename)
            # bodies of modules and classes are not optimized
            function = bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")
            inside = function and path.is_relative_to(PACKAGE)
            self._places[code] = (str(path.relative_to(PACKAGE)), code.co_qualname) if inside else None
        return self._places[code]

    @property
    def files(self) -> set[str]:
        """Files visited."""
        return {file for file, _ in self.functions}


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported further out."""
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def folder_of(place: Place) -> str:
    """Folder under src/toa; the package's own modules are in ''."""
    parent = Path(place[0]).parts[:-1]
    return parent[0] if parent else ""


@contextlib.contextmanager
def inside(folder: str) -> Iterator[None]:
    """Work in a folder of small files."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_table() -> None:
    """A small table of two columns."""
    rng = np.random.default_rng(0)
    values = np.sin(np.arange(1000) / 4)[:, None] + 0.1 * rng.standard_normal((1000, 2))
    table = pd.DataFrame(values, columns=["load", "heat"])
    table.insert(0, "date", pd.date_range("2026-01-01", periods=1000, freq="h"))
    table.to_csv("own.csv", index=False)


def traced(call: Callable[[], object]) -> Trace:
    """What a call visits."""
    trace = Trace()
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
    return trace


def run_command(line: str) -> Trace:
    """Trace a command line of `toa`, with its output thrown away."""
    from typer.testing import CliRunner

    from toa.cli import app

    words = line.split()

    def call() -> None:
        result = CliRunner().invoke(app, words)
        if result.exit_code:
            raise SystemExit(f"error: toa {line} ended with {result.exit_code}: {result.output}")

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return traced(call)


def commands() -> dict[str, str]:
    """The two command lines; without the real ETTh1, `toa run` takes the small table."""
    from toa.data import DATASETS, locate

    try:
        locate(DATASETS["ETTh1"])
    except FileNotFoundError:
        return {name: line.replace("ETTh1", "own.csv") for name, line in COMMANDS.items()}
    return COMMANDS


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every function and every change of folder as well")
    args = parser.parse_args(words)
    lines = commands()
    print("| command | functions | files | changes of folder |")
    print("| --- | ---: | ---: | ---: |")
    for name, line in lines.items():
        with tempfile.TemporaryDirectory() as folder, inside(folder):
            write_table()
            trace = run_command(line)
        print(f"| `{name}` | {len(trace.functions)} | {len(trace.files)} | {len(trace.changes)} |")
        for (caller, callee), count in trace.folders().most_common():
            print(f"    {count} functions of {callee or 'toa'} called from {caller or 'toa'}")
        if args.list:
            print("\n".join(f"    {file}: {function}" for file, function in sorted(trace.functions)))
            print(
                "\n".join(
                    f"    {caller[0]}: {caller[1]} -> {callee[0]}: {callee[1]}"
                    for callee, caller in sorted(trace.changes.items())
                )
            )


if __name__ == "__main__":
    main()
