"""Errors of toa.Forecaster on tables with several columns, with and without the methods that read all of them.

    python benchmarks/wide_tables.py [--case pems08 ...] [--effort quick] [--methods without ...] [--out FILE]

    pems08      PEMS08-Last40, 170 columns, 12 steps, every window of the test
    eia930      EIA930, 54 columns, 24 steps
    hangzhou    Hangzhou-Metro, 80 columns, 12 steps
    nn5         NN5-Daily, 111 columns, 7 steps
    weather     Weather, 21 columns, 24 steps
    etth1       ETTh1, 7 columns, 24 steps

The methods:

    without     none that reads all columns
    with        all
    ridge       the method `all columns` alone: a ridge regression on principal components of all columns
    gated       all, but the network with TOA-Gated has no operators (M = 0); `with` where no network is trained

The first 80 % of the rows are fitted, the last 20 % are forecast from rolling origins. Errors are in standard
deviations of the fitted rows. `cpu_s` is the time of all threads.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import toa
from toa._console import make_table
from toa.data import DATASETS, locate
from toa.data.tables import read_dataset
from toa.estimators.channel_networks import NETWORKS
from toa.estimators.effort import EFFORTS
from toa.estimators.families import FAMILIES
from toa_bench.script import command_line, exit_on_error, make_console, make_parser, save

# share of the rows that are fitted
FITTED = 0.8
# families that read all columns
READS_ALL = ("columns", "channels")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table of the catalogue; `stride` rows lie between two origins."""

    dataset: str
    horizon: int
    stride: int = 1


CASES = {
    "pems08": Case(dataset="PEMS08-Last40", horizon=12),
    "eia930": Case(dataset="EIA930", horizon=24, stride=24),
    "hangzhou": Case(dataset="Hangzhou-Metro", horizon=12),
    "nn5": Case(dataset="NN5-Daily", horizon=7),
    "weather": Case(dataset="Weather", horizon=24, stride=24),
    "etth1": Case(dataset="ETTh1", horizon=24, stride=6),
}


@contextmanager
def without_families(*names: str) -> Iterator[None]:
    """Leave some families of methods out of the choice."""
    with mock.patch.dict(FAMILIES):
        for name in names:
            del FAMILIES[name]
        yield


def ridge_alone() -> AbstractContextManager[None]:
    """Only the ridge regression on all columns."""
    return without_families(*(name for name in FAMILIES if name != "columns"))


@contextmanager
def without_operators() -> Iterator[None]:
    """Networks of columns with the gated activation instead of TOA-Gated: the same with M = 0."""
    names = {name: "gated" if attention == "toa-gated" else attention for name, attention in NETWORKS.items()}
    with mock.patch.dict(NETWORKS, names):
        yield


METHODS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "without": lambda: without_families(*READS_ALL),
    "with": nullcontext,
    "ridge": ridge_alone,
    "gated": without_operators,
}


def measure(case: Case, effort: str, data_dir: Path | None, methods: str) -> dict[str, Any]:
    """Errors, weights and times of one fit and its backtest."""
    spec = DATASETS[case.dataset]
    values = read_dataset(spec, locate(spec, data_dir)).values[0]
    stop = int(len(values) * FITTED)
    begin = time.perf_counter()
    cpu = time.process_time()
    with METHODS[methods]():
        model = toa.Forecaster(case.horizon, effort=effort).fit(values[:stop])
        fit_wall = time.perf_counter() - begin
        fit_cpu = time.process_time() - cpu
        tested = model.backtest(values, test_size=len(values) - stop, stride=case.stride)
    deviations = values[:stop].std(0)
    deviations[deviations == 0] = 1.0
    missed = (tested.forecast - tested.actual) / deviations
    return {
        "mse": float(np.square(missed).mean()),
        "mae": float(np.abs(missed).mean()),
        "origins": len(missed),
        "weights": {name: round(weight, 3) for name, weight in model.shown_weights().items()},
        "fit_wall_s": round(fit_wall, 1),
        "fit_cpu_s": round(fit_cpu, 1),
    }


def run(args: argparse.Namespace) -> None:
    console = make_console()
    cases: dict[str, Any] = {}
    head = ("table", "columns", "methods", "MSE", "CPU of the fit, s", "weights")
    rows: list[tuple[str, ...]] = [head]
    for name in args.case or CASES:
        case = CASES[name]
        results = {methods: measure(case, args.effort, args.data_dir, methods) for methods in args.methods}
        cases[name] = {
            "dataset": case.dataset,
            "columns": DATASETS[case.dataset].channels,
            "horizon": case.horizon,
            "stride": case.stride,
            **results,
        }
        for methods, found in results.items():
            weights = ", ".join(f"{method} {weight:.2f}" for method, weight in found["weights"].items())
            rows.append(
                (
                    name,
                    str(cases[name]["columns"]),
                    methods,
                    f"{found['mse']:.4f}",
                    f"{found['fit_cpu_s']:.0f}",
                    weights,
                )
            )
            console.print(f"{name}: {rows[-1]}")
    console.print(make_table(rows))
    settings = {"effort": args.effort, "fitted": FITTED}
    record = {"benchmark": "wide_tables", "settings": settings, "cases": cases}
    save(record, args, command_line("benchmarks/wide_tables.py", None), console)


def main() -> None:
    parser = make_parser(__doc__, "runs/wide_tables.json")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--effort", choices=list(EFFORTS), default="quick")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["without", "with"])
    parser.add_argument("--data-dir", type=Path)
    with exit_on_error():
        run(parser.parse_args())


if __name__ == "__main__":
    main()
