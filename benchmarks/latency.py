"""How long one forecast takes: a saved forecaster in a service that gets a row at a time.

    python benchmarks/latency.py [--calls 300] [--processes 5] [--effort quick] [--out FILE]

A forecaster of hourly values, one column and the horizon 24, is fitted with the settings of the quickstart and saved.
Then each process measures, in this order:

    import toa            the package alone
    import toa.nn         the layers, with PyTorch
    import Forecaster     the estimators
    load                  `toa.Forecaster.load`
    first call            the first `predict(rows)`
    predict               a table of the last 512 rows, `--calls` times
    update and predict    one row as a dict, then `predict()`, `--calls` times

Of the two last ones the record has the median, the 99th percentile and the largest value of all calls of all
processes; of the others the median over processes and their range. `wall` is what a user waits, `cpu` the time of all
threads, which a busy machine changes less. The load before the first process is in the record.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HORIZON = 24
# rows of the fit, and of the table that each call forecasts after
ROWS = 2_000
CONTEXT = 512
# measured once per process, in this order
ONCE = ("import toa", "import toa.nn", "import Forecaster", "load", "first call")
# measured `--calls` times
CALLS = ("predict", "update and predict")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
# milliseconds of a call by clock
Times = dict[str, float]


def make_rows(count: int) -> Any:
    """Hourly values with a day, a week and noise."""
    import pandas as pd

    hours = np.arange(count)
    noise = np.random.default_rng(0).normal(size=count)
    load = 100.0 + 10.0 * np.sin(2 * np.pi * hours / 24) + 5.0 * np.sin(2 * np.pi * hours / 168) + noise
    return pd.DataFrame({"time": pd.date_range("2024-01-01", periods=count, freq="h"), "load": load})


def timed(call: Callable[[], object]) -> Times:
    """Milliseconds of one call."""
    begin = {name: clock() for name, clock in CLOCKS.items()}
    call()
    return {name: 1000.0 * (clock() - begin[name]) for name, clock in CLOCKS.items()}


def import_package() -> None:
    import toa  # noqa: F401


def import_layers() -> None:
    import toa.nn  # noqa: F401


def import_estimators() -> None:
    from toa import Forecaster  # noqa: F401


def measure(path: Path, calls: int) -> dict[str, list[Times]]:
    """The times of one new process, which has not imported toa."""
    times = {"import toa": [timed(import_package)], "import toa.nn": [timed(import_layers)]}
    times["import Forecaster"] = [timed(import_estimators)]
    import toa

    rows = make_rows(ROWS + calls)
    times["load"] = [timed(lambda: toa.Forecaster.load(path, device="cpu"))]
    model = toa.Forecaster.load(path, device="cpu")
    times["first call"] = [timed(lambda: model.predict(rows[ROWS - CONTEXT : ROWS]))]
    tables = [rows[last - CONTEXT : last] for last in range(ROWS, ROWS + calls)]
    times["predict"] = [timed(lambda table=table: model.predict(table)) for table in tables]  # type: ignore[misc]
    model.update(tables[0])
    new = rows[ROWS:].to_dict("records")
    times["update and predict"] = [timed(lambda row=row: model.update(row).predict()) for row in new]  # type: ignore[misc]
    return times


def in_new_process(path: Path, calls: int) -> dict[str, list[Times]]:
    """The result of `measure` in a process of its own."""
    words = [sys.executable, __file__, "--measure", str(path), str(calls)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"a process must end without an error, got\n{done.stderr}")
    result: dict[str, list[Times]] = json.loads(done.stdout.splitlines()[-1])
    return result


def summarise(processes: Sequence[dict[str, list[Times]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Median and spread per kind of call and clock."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for kind in (*ONCE, *CALLS):
        summary[kind] = {}
        for clock in CLOCKS:
            values = np.array([call[clock] for times in processes for call in times[kind]])
            spread = {"median": np.median(values), "largest": values.max()}
            if kind in CALLS:
                spread |= {"p99": np.quantile(values, 0.99)}
            else:
                spread |= {"least": values.min()}
            summary[kind][clock] = {name: round(float(value), 2) for name, value in spread.items()}
    return summary


def run(args: argparse.Namespace) -> None:
    import toa
    from toa._console import make_table
    from toa_bench.script import command_line, make_console, save

    console = make_console()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.toa"
        model = toa.Forecaster(HORIZON, interval=0.8, effort=args.effort, device="cpu").fit(make_rows(ROWS))
        model.save(path)
        processes = [in_new_process(path, args.calls) for _ in range(args.processes)]
    summary = summarise(processes)
    header = ("milliseconds", *(f"{clock}, {name}" for clock in CLOCKS for name in ("median", "p99", "largest")))
    table: list[tuple[str, ...]] = [header]
    for kind, clocks in summary.items():
        cells = [clocks[clock].get(name) for clock in CLOCKS for name in ("median", "p99", "largest")]
        table.append((kind, *("" if cell is None else f"{cell:.1f}" for cell in cells)))
    console.print(make_table(table))
    record = {
        "benchmark": "latency",
        "cores": os.cpu_count(),
        "load_before": round(load, 2),
        "settings": {"rows": ROWS, "context": CONTEXT, "horizon": HORIZON, "calls": args.calls, "effort": args.effort},
        "processes": args.processes,
        "weights": {name: round(weight, 4) for name, weight in model.weights_.items()},
        "milliseconds": summary,
    }
    save(record, args, command_line("benchmarks/latency.py", None), console)


def main() -> None:
    # a process that measures must not have imported toa
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]), int(sys.argv[3]))))
        return
    from toa_bench.script import exit_on_error, make_parser

    parser = make_parser(__doc__, "runs/latency.json")
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind per process")
    parser.add_argument("--processes", type=int, default=5, help="new processes, one after another")
    parser.add_argument("--effort", default="quick", help="effort of the fit")
    with exit_on_error():
        run(parser.parse_args())


if __name__ == "__main__":
    main()
