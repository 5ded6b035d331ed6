"""Times that a new user sees, alone and beside a process that keeps one core busy.

    python benchmarks/fit_times.py [--case quickstart ...] [--out FILE]

Each case runs in its own process, first alone and then beside the busy core:

    quickstart    the first example of the README, with all imports
    wide          toa.Forecaster(24, interval=0.8) on 3,000 rows x 500 columns
    demo          toa demo

`wall_s` is the time of the whole process, `cpu_s` that of all its threads. The machine must be idle otherwise; the load
before the first case is in the record. The forecast of `wide` is summed, to show that a busy core does not change it.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from toa._console import make_table
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save

ROOT = Path(__file__).resolve().parents[1]
CASES = ("quickstart", "wide", "demo")
# ends with the process that started it
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
WIDE = """
import numpy as np
import toa

random = np.random.default_rng(0)
steps = np.arange(3_000)[:, None]
season = 10 * np.sin(2 * np.pi * steps / 24 + random.uniform(0, 6, 500))
rows = 50 + season + 0.3 * random.normal(size=(3_000, 500)).cumsum(0) + random.normal(size=(3_000, 500))
model = toa.Forecaster(24, season=24, interval=0.8).fit(rows)
print(repr(float(model.predict()["forecast"].sum())))
"""


def quickstart() -> str:
    """The code of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]


def commands(folder: Path) -> dict[str, list[str]]:
    """Words of the process of each case."""
    return {
        "quickstart": [sys.executable, "-c", quickstart()],
        "wide": [sys.executable, "-c", WIDE],
        "demo": [sys.executable, "-m", "toa", "demo", "--out", str(folder / "demo")],
    }


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy in another process."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(words: list[str], folder: Path, beside: AbstractContextManager[None]) -> dict[str, Any]:
    """Run a process in a folder; its times and the last line that it printed, where FOLDER stands for the folder."""
    with beside:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - begin
        # the busy process is not yet a finished child
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise ValueError(f"the case must end without an error, got\n{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    last_line = done.stdout.strip().splitlines()[-1].replace(str(folder), "FOLDER")
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "last_line": last_line}


def run(args: argparse.Namespace) -> None:
    console = make_console()
    load = os.getloadavg()[0]
    cases: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = [("case", "alone, s", "beside a busy core, s", "ratio", "CPU alone, s")]
    for name in args.case or CASES:
        times = {}
        for kind, beside in (("alone", nullcontext()), ("busy", busy_core())):
            with tempfile.TemporaryDirectory() as folder:
                times[kind] = measure(commands(Path(folder))[name], Path(folder), beside)
        alone = times["alone"]
        busy = times["busy"]
        ratio = busy["wall_s"] / alone["wall_s"]
        cases[name] = {**times, "ratio": round(ratio, 2)}
        seconds = (alone["wall_s"], busy["wall_s"])
        rows.append((name, *(f"{value:.1f}" for value in seconds), f"{ratio:.2f}", f"{alone['cpu_s']:.1f}"))
    console.print(make_table(rows))
    record = {"benchmark": "fit_times", "cores": os.cpu_count(), "load_before": round(load, 2), "cases": cases}
    save(record, args, command_line("benchmarks/fit_times.py", None), console)


def main() -> None:
    parser = make_parser(__doc__, "runs/fit_times.json")
    parser.add_argument("--case", action="append", choices=CASES)
    with exit_on_error():
        run(parser.parse_args())


if __name__ == "__main__":
    main()
