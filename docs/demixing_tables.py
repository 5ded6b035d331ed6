"""Tables of demixing."""

import functools
import itertools
import json
import statistics
import tomllib
from collections.abc import Callable, Mapping
from functools import partial

from performance_tables import table
from stored_results import RESULTS, ROOT, grouped, published, stored_records


@functools.cache
def demixing_errors() -> dict[str, dict[int, float]]:
    """Test MSE by system and seed; ablations are named by what differs."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((RESULTS / "demixing").glob("*.json"))]
    errors: dict[str, dict[int, float]] = {}
    for record in [*map(json.loads, texts), *stored_records("demixing/ablations.jsonl")]:
        name = f"{record['name']}, backend folded" if record["backend"] == "folded" else record["name"]
        errors.setdefault(name, {})[record["seed"]] = record["metrics"]["mse"]
    return errors


@functools.cache
def tuned_demixing_errors() -> dict[str, dict[int, float]]:
    """Test MSE under the protocol `toa` by system and seed."""
    by_system = grouped(stored_records("demixing/toa.jsonl"), lambda record: record["name"])
    return {name: {r["seed"]: r["metrics"]["mse"] for r in records} for name, records in by_system.items()}


@functools.cache
def step_errors() -> dict[str, dict[int, dict[int, float]]]:
    """Test MSE in the demo's size by system, steps and seed."""
    errors: dict[str, dict[int, dict[int, float]]] = {}
    for record in stored_records("demixing/demo-steps.jsonl"):
        of_system = errors.setdefault(record["name"], {})
        of_system.setdefault(record["config"]["steps"], {})[record["seed"]] = record["metrics"]["mse"]
    return errors


def steps_table() -> str:
    """One row per system and number of steps, one column per seed."""
    seeds = (2024, 2025, 2026)
    rows = [
        [name, f"{steps:,}", *(f"{by_seed[seed]:.4f}" if seed in by_seed else "-" for seed in seeds)]
        for name, by_steps in step_errors().items()
        for steps, by_seed in sorted(by_steps.items())
    ]
    return table(["system", "steps", *map(str, seeds)], rows)


def gated_with_most_steps() -> str:
    """By how much TOA-Gated is below softmax with the most steps, in percent: least and greatest of the seeds."""
    errors = step_errors()
    most = max(errors["softmax"])
    softmax, gated = errors["softmax"][most], errors["toa-gated-no-sor"][most]
    changes = sorted(100 * (1 - gated[seed] / error) for seed, error in softmax.items())
    return f"{changes[0]:.0f} to {changes[-1]:.0f}"


def steps_change() -> str:
    """By how much four times as many steps lower the error of softmax, in percent: least and greatest of the seeds."""
    few, many = (by_seed for _, by_seed in sorted(step_errors()["softmax"].items()))
    changes = sorted(100 * (1 - many[seed] / error) for seed, error in few.items())
    return f"{changes[0]:.0f} to {changes[-1]:.0f}"


def demixing_trials() -> str:
    """The trials of demixing, those of a family by their validation error."""
    plan = tomllib.loads((ROOT / "benchmarks" / "demixing-trials.toml").read_text(encoding="utf-8"))
    trials = itertools.chain.from_iterable(plan["trials"].values())
    pairs = zip(trials, stored_records("demixing/search.jsonl"), strict=True)
    errors = {trial: record["metrics"]["val_mse"] for trial, record in pairs}
    rows = [
        [f"`{trial}`", f"{errors[trial]:.5f}"]
        for family in plan["trials"].values()
        for trial in sorted(family, key=errors.__getitem__)
    ]
    return table(["trial", "validation MSE"], rows)


def demixing_table(tuned: bool = False) -> str:
    """One column per seed, the median and the paper's number."""
    seeds = range(2024, 2030)
    theirs = {} if tuned else {key[3]: value for key, value in published("demixing").items()}
    rows = []
    errors_of = tuned_demixing_errors() if tuned else demixing_errors()
    for name, errors in sorted(errors_of.items(), key=lambda item: ("gated" not in item[0], item[0])):
        cells = [f"{errors[seed]:.5f}" if seed in errors else "-" for seed in seeds]
        published_error = f"{theirs[name]:.4f}" if name in theirs else ""
        rows.append([name, *cells, f"{statistics.median(errors.values()):.5f}", *([] if tuned else [published_error])])
    return table(["system", *map(str, seeds), "median", "published"][: len(seeds) + (2 if tuned else 3)], rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "demixing": demixing_table,
    "demixing-toa": partial(demixing_table, tuned=True),
    "demixing-trials": demixing_trials,
    "demixing-steps": steps_table,
}
