"""Tables of many channels, from the stored facts of the data sets, the runs, the rivals and users' tables."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from math import exp, expm1, log
from pathlib import Path
from statistics import fmean
from typing import Any

from performance_tables import table
from stored_results import ROOT
from toa_bench.wide import read_results, read_wide_plan
from toa_bench.wide_scaling import STRENGTHS, Cell, accepted, cells_of, fit_rule, read_cells, rule_gain

FOLDER = Path(__file__).resolve().parents[1] / "results" / "many_channels"
SETS = FOLDER / "sets.json"
# systems of the runs that stand beside the rivals, and their seeds
NETWORKS = ("softmax", "toa-relu", "toa-gated")
SEEDS = 3
RIVALS = ("seasonal-naive", "own-lags", "all-channels", "boosted-trees")
RIVAL_NETWORKS = ("dlinear", "tsmixer", "patchtst")
# how systems are named in tables
TITLES = {
    "softmax": "softmax",
    "toa-softmax": "TOA-Softmax",
    "toa-relu": "TOA-ReLU",
    "toa-gated": "TOA-Gated",
    "dlinear": "DLinear",
    "tsmixer": "TSMixer",
    "patchtst": "PatchTST",
}

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


def seed_means(name: str, system_of: Callable[[Mapping[str, Any]], str | None]) -> Errors:
    """Test MSE of stored runs by cell and system, mean over the seeds where all of them are there."""
    runs: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in read_lines(name) if (FOLDER / name).exists() else []:
        config = record["config"]
        system = system_of(config)
        if system is not None and "mse" in record["metrics"]:
            runs[config["dataset"], config["horizon"]][system].append(record["metrics"]["mse"])
    return {
        cell: {system: fmean(errors) for system, errors in systems.items() if len(errors) == SEEDS}
        for cell, systems in runs.items()
    }


def network_of(config: Mapping[str, Any]) -> str | None:
    """The system of a run of the decision, if it stands beside the rivals."""
    attention = config["attention"]
    # softmax with as many weights as TOA-Gated has wider queries
    return attention["name"] if attention["name"] in NETWORKS and attention.get("qk_dim") is None else None


def shown_errors() -> tuple[list[str], Errors]:
    """The systems that stand beside each other, and their test MSE by data set and horizon."""
    networks = seed_means("runs.jsonl", network_of)
    rival_networks = seed_means("rivals-runs.jsonl", lambda config: config["backbone"])
    errors = {
        cell: rivals | rival_networks.get(cell, {}) | networks.get(cell, {}) for cell, rivals in rival_errors().items()
    }
    return [*RIVALS, *(RIVAL_NETWORKS if rival_networks else ()), *NETWORKS], errors


def rivals_table() -> str:
    """Test MSE of rivals and networks by data set and horizon; the least is bold."""
    systems, by_cell = shown_errors()
    rows = []
    for (dataset, horizon), errors in by_cell.items():
        best = min(errors.values())
        cells = []
        for system in systems:
            shown = f"{errors[system]:.4f}" if system in errors else ""
            cells.append(f"**{shown}**" if errors.get(system) == best else shown)
        rows.append([f"{dataset}, {horizon}", *cells])
    return table(["data set, steps", *(TITLES.get(system, system) for system in systems)], rows)


def variant_against_rivals() -> str:
    """How much lower the test MSE of the variant that validation prefers is than that of each rival, by source."""
    variant = json.loads((FOLDER / "decision.json").read_text(encoding="utf-8"))["variant"]
    systems, by_cell = shown_errors()
    rivals = [system for system in systems if system not in NETWORKS]
    rows = []
    wins = 0
    for unit, datasets in read_wide_plan().units.items():
        cells = [errors for (dataset, _), errors in by_cell.items() if dataset in datasets]
        if any(variant not in errors for errors in cells):
            continue
        changes = {rival: fmean(log(errors[variant] / errors[rival]) for errors in cells) for rival in rivals}
        is_best = max(changes.values()) < 0
        wins += is_best
        shown = [f"{100 * expm1(change):+.1f} %" for change in changes.values()]
        rows.append([unit, *shown, "yes" if is_best else "no"])
    rows.append([f"{wins} of {len(rows)}", *("" for _ in rivals), ""])
    heads = (TITLES.get(rival, rival) for rival in rivals)
    return table([f"{TITLES[variant]} against", *heads, "below all"], rows)


def read_scaling() -> list[Cell]:
    """The complete cases of wide-scaling.toml."""
    plan = read_wide_plan(ROOT / "benchmarks" / "wide-scaling.toml")
    results = FOLDER.parent
    return read_cells(plan, read_results([results / plan.stored.trials, results / plan.stored.runs]))


def scaling_table() -> str:
    """Gain of each system against softmax, by channels and training windows."""
    cells = read_scaling()
    if not cells:
        return "No case is complete yet."
    systems = [system for system in cells[0].errors if system != "softmax"]
    rows = []
    for cell in cells:
        gains = [f"{100 * cell.gain(system):+.1f} %" for system in systems]
        rows.append(
            [cell.unit, str(cell.channels), str(cell.windows), f"{exp(cell.errors['softmax'].test):.4f}", *gains]
        )
    return table(["data", "channels", "windows", "softmax, MSE", *systems], rows)


def sor_rule_table() -> str:
    """The rule for SOR of each set, and its test error on the other set against each fixed strength."""
    cells = read_scaling()
    units = list(dict.fromkeys(cell.unit for cell in cells))
    if len(units) < 2:
        return "No rule is fitted yet: it needs complete cases of both sets."
    rows = []
    gains = []
    for unit in units:
        rule = fit_rule(cells_of(cells, unit))
        others = [cell for cell in cells if cell.unit != unit]
        changes = [rule_gain(rule, others, fixed) for fixed in STRENGTHS]
        gains += changes
        words = f"{rule.few:g} below {rule.border:.1f} windows per channel, else {rule.many:g}"
        if rule.few == rule.many:
            words = f"{rule.few:g} everywhere"
        rows.append([unit, words, *(f"{100 * expm1(change):+.2f} %" for change in changes)])
    head = ["fitted to", "strength", *(f"other set, against {fixed:g}" for fixed in STRENGTHS)]
    verdict = "The rule becomes the default." if accepted(gains) else "The rule is not accepted."
    return f"{table(head, rows, left=2)}\n\n{verdict}"


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
    "wide-rivals-by-source": variant_against_rivals,
    "wide-scaling": scaling_table,
    "wide-sor-rule": sor_rule_table,
    "wide-tables": user_tables,
}
