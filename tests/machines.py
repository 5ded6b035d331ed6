"""Run the quick tests as on other machines: `make test-machines`, or python -m tests.machines [ROW ...].

Instructions of the processor, the number of threads, the order of tests and the load of the machine must not decide
whether a test passes. Each row changes one of them; rows run one after another, and a table ends the output. What
pytest prints is kept in build/machines/ROW.log.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tests.support import ROOT, busy_core
from toa._checks import check_choice
from toa._console import make_console, make_table

LOGS = ROOT / "build" / "machines"
# PyTorch's name of the instructions that the row `torch-avx2` needs, and of those that contain them
WITH_AVX2 = ("AVX2", "AVX512")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A machine: what it changes, as variables of the environment, and whether another process keeps a core busy."""

    name: str
    about: str
    variables: dict[str, str] = field(default_factory=dict)
    busy: bool = False
    # why this processor cannot stand for that machine
    objection: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Counts of tests, the ids of those that failed, and the time that a row took."""

    tests: int
    skipped: int
    failures: tuple[str, ...]
    exit_code: int
    seconds: float

    @property
    def passed(self) -> int:
        """Tests that ran and did not fail."""
        return self.tests - self.skipped - len(self.failures)


def numpy_features() -> str:
    """Instructions that numpy could use on this processor beyond those that it needs, separated by spaces."""
    switched_off = os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()
    return " ".join([*switched_off, *np.show_config(mode="dicts")["SIMD Extensions"].get("found", ())])


def machines(order: int = 0) -> tuple[Row, ...]:
    """The five rows; `order` is the seed of the random order."""
    capability = torch.backends.cpu.get_cpu_capability()
    without_avx2 = "" if capability in WITH_AVX2 else f"this processor has no AVX2 (PyTorch uses {capability})"
    return (
        Row(
            name="numpy-reduced",
            about="numpy without the instructions beyond its baseline",
            variables={"NPY_DISABLE_CPU_FEATURES": numpy_features()},
        ),
        Row(
            name="torch-default",
            about="PyTorch without vector instructions",
            variables={"ATEN_CPU_CAPABILITY": "default"},
        ),
        Row(
            name="torch-avx2",
            about="PyTorch with AVX2",
            variables={"ATEN_CPU_CAPABILITY": "avx2"},
            objection=without_avx2,
        ),
        Row(
            name="random-order",
            about=f"one thread, random order (seed {order})",
            variables={"TOA_TEST_THREADS": "1", "TOA_TEST_ORDER": str(order)},
        ),
        Row(
            name="busy-core",
            about="four threads beside a process that keeps one core busy",
            # threads that wait actively take the cores from each other: the row would take four times as long
            variables={"TOA_TEST_THREADS": "4", "OMP_WAIT_POLICY": "PASSIVE"},
            busy=True,
        ),
    )


def run_row(row: Row, arguments: Sequence[str], logs: Path) -> Outcome:
    """Run pytest with the arguments on a machine.

    Raises:
        RuntimeError: If pytest ends before it counts the tests.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log, counts = logs / f"{row.name}.log", logs / f"{row.name}.xml"
    counts.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={counts}", *arguments]
    start = time.perf_counter()
    with log.open("w", encoding="utf-8") as file, busy_core() if row.busy else nullcontext():
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **row.variables}, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    seconds = time.perf_counter() - start
    if not counts.exists():
        raise RuntimeError(f"pytest must count the tests of {row.name}, got none; read {log}.")
    suite = ElementTree.parse(counts).getroot()
    cases = suite.findall(".//testcase")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return Outcome(
        tests=len(cases),
        skipped=sum(case.find("skipped") is not None for case in cases),
        failures=tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed),
        exit_code=done.returncode,
        seconds=seconds,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the named rows, or all; the exit code is 1 if a test failed or a row ran none."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("rows", nargs="*", help="names of rows; all by default")
    parser.add_argument("--tests", nargs="*", default=(), help="files or ids of tests; all quick tests by default")
    parser.add_argument("--workers", default="auto", help="processes of pytest (pytest-xdist's -n)")
    parser.add_argument("--order", type=int, default=0, help="seed of the random order")
    options = parser.parse_args(words)
    by_name = {row.name: row for row in machines(options.order)}
    for name in options.rows:
        check_choice("row", name, by_name)
    console = make_console()
    table = [["row", "machine", "passed", "failed", "skipped", "seconds"]]
    failures: list[str] = []
    all_passed = True
    for name in options.rows or by_name:
        row = by_name[name]
        if row.objection:
            table.append([name, f"{row.about}: not run, {row.objection}", "-", "-", "-", "-"])
            continue
        console.print(f"{name}: {row.about}; log: {LOGS / name}.log")
        outcome = run_row(row, ("-n", options.workers, "--dist", "worksteal", *options.tests), LOGS)
        counts = (outcome.passed, len(outcome.failures), outcome.skipped)
        table.append([name, row.about, *(f"{count:,}" for count in counts), f"{outcome.seconds:.0f}"])
        failures += [f"{name}: {test}" for test in outcome.failures]
        all_passed = all_passed and outcome.exit_code == 0
    console.print(make_table(table, left=2))
    console.print(*failures, sep="\n")
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
