"""Tables of many channels, from the stored facts of the data sets, the runs, the rivals and users' tables."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from performance_tables import table

FOLDER = Path(__file__).resolve().parents[1] / "results" / "many_channels"
SETS = FOLDER / "sets.json"
# systems of the runs that stand beside the rivals, and their seeds
NETWORKS = ("softmax", "toa-gated")
SEEDS = 3
RIVALS = ("seasonal-naive", "own-lags", "all-channels")

# errors by data set and horizon, then by system
Errors = dict[tuple[str, int], dict[str, float]]


def read_sets() -> dict[str, Any]:
    """Facts of the data sets, made by `python benchmarks/wide.py sizes`."""
    facts: dict[str, Any] = json.loads(SETS.read_text(encoding="utf-8"))
    return facts


def sets_table() -> str:
    """Rows, channels, windows and treated values of each data set."""
    rows = []
    for name, facts in read_sets().items():
        windows = next(iter(facts["horizons"].values()))["windows"]
        rows.append(
            [
                name,
                str(facts["rows"]),
                str(facts["channels"]),
                str(facts["lookback"]),
                ", ".join(facts["horizons"]),
                " / ".join(map(str, windows.values())),
                f"{100 * facts['zeros']:.1f} %",
                str(facts["constant_columns"]),
                str(facts["clipped"]),
            ]
        )
    head = ["data set", "rows", "channels", "look-back", "horizons", "windows: train / validation / test"]
    return table([*head, "zeros", "constant columns", "clipped values"], rows)


def sizes_table() -> str:
    """Weights of the models, and operations of an epoch."""
    rows = []
    for name, facts in read_sets().items():
        weights = [f"{facts['weights'][system] / 1e6:.1f}" for system in ("softmax", "gated", "toa-gated")]
        operations = [
            f"{facts['teraflop_per_epoch'][system]:.1f}" for system in ("softmax", "toa-gated", "softmax-wide")
        ]
        widths = [str(facts["ff_dim"][system]) for system in ("softmax", "softmax-wide")]
        rows.append([name, str(facts["epoch_windows"]), *weights, *widths, *operations])
    head = ["data set", "windows per epoch", "softmax, M weights", "gated", "TOA-Gated and softmax-wide"]
    head += ["feed-forward width", "of softmax-wide", "softmax, TFLOP per epoch", "TOA-Gated", "softmax-wide"]
    return table(head, rows)


def read_lines(name: str) -> list[dict[str, Any]]:
    """The records of a file of results."""
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def rival_errors() -> Errors:
    """Test MSE of the rivals without a network, made by `python benchmarks/wide_rivals.py`."""
    errors: Errors = defaultdict(dict)
    for record in read_lines("rivals.jsonl"):
        errors[record["dataset"], record["horizon"]][record["system"]] = record["metrics"]["mse"]
    return errors


def network_errors() -> Errors:
    """Test MSE of the stored runs, mean over the seeds where all of them are there."""
    runs: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in read_lines("runs.jsonl"):
        config = record["config"]
        system = config["attention"]["name"]
        # softmax with as many weights as TOA-Gated has wider queries
        if system in NETWORKS and config["attention"].get("qk_dim") is None and "mse" in record["metrics"]:
            runs[config["dataset"], config["horizon"]][system].append(record["metrics"]["mse"])
    return {
        cell: {system: fmean(errors) for system, errors in systems.items() if len(errors) == SEEDS}
        for cell, systems in runs.items()
    }


def rivals_table() -> str:
    """Test MSE of rivals and networks by data set and horizon; the least is bold."""
    networks = network_errors()
    rows = []
    for (dataset, horizon), rivals in rival_errors().items():
        errors = rivals | networks.get((dataset, horizon), {})
        best = min(errors.values())
        cells = []
        for system in (*RIVALS, *NETWORKS):
            shown = f"{errors[system]:.4f}" if system in errors else ""
            cells.append(f"**{shown}**" if errors.get(system) == best else shown)
        rows.append([f"{dataset}, {horizon}", *cells])
    return table(["data set, steps", *RIVALS, "softmax", "TOA-Gated"], rows)


def user_tables() -> str:
    """Errors of toa.Forecaster with and without the methods that read all columns, from benchmarks/wide_tables.py."""
    record = json.loads((FOLDER / "tables.json").read_text(encoding="utf-8"))
    rows = []
    for case in record["cases"].values():
        before = case["without"]
        after = case["with"]
        change = 100 * (after["mse"] / before["mse"] - 1)
        weight = after["weights"].get("all columns", 0.0)
        seconds = f"{before['fit_cpu_s']:.0f}, {after['fit_cpu_s']:.0f}"
        cells = (f"{before['mse']:.4f}", f"{after['mse']:.4f}", f"{change:+.1f} %", f"{weight:.2f}", seconds)
        rows.append([case["dataset"], str(case["columns"]), str(case["horizon"]), *cells])
    head = ["table", "columns", "steps", "MSE without", "MSE with", "change", "weight of `all columns`"]
    return table([*head, "CPU seconds of the fit, without and with"], rows)


def known_operator_table() -> str:
    """Errors on tables whose best operator is known, from benchmarks/known_operator.py; means over the seeds."""
    record = json.loads((FOLDER / "known_operator.json").read_text(encoding="utf-8"))
    rows = []
    for channels, case in record["cases"].items():
        errors = case["mse"]
        pairs = list(zip(errors["own lags"], errors["known operator"], strict=True))
        for name, values in sorted(errors.items(), key=lambda pair: fmean(pair[1])):
            closed = [(own - value) / (own - best) for value, (own, best) in zip(values, pairs, strict=True)]
            ends = f"{min(values):.4f} to {max(values):.4f}"
            rows.append([f"{channels}, {name}", str(len(values)), f"{fmean(values):.4f}", ends, f"{fmean(closed):.2f}"])
    return table(["channels, system", "seeds", "MSE", "lowest to highest", "gap closed"], rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "known-operator": known_operator_table,
    "wide-sets": sets_table,
    "wide-sizes": sizes_table,
    "wide-rivals": rivals_table,
    "wide-tables": user_tables,
}
