"""Tables of results/README.md on runs that were repeated, from results/repeats.json."""

import functools
import itertools
import json
import shlex
import statistics
from collections import defaultdict
from itertools import pairwise

import page_tables as tables
from performance_tables import table
from toa.report.gains import lower_is_better

# what TOA-Softmax is compared with
COMPARED = ("softmax", "without SOR")


def read_repeats() -> tables.Record:
    """The file of repeated runs."""
    content: tables.Record = json.loads((tables.RESULTS / "repeats.json").read_text(encoding="utf-8"))
    return content


@functools.cache
def repeated_pairs() -> list[tables.Record]:
    """Stored runs with their repetitions, and the changes in percent of an error or in points of an accuracy.

    `change` is that of the repeated run, `seeds` are the sizes of those to other seeds of the same cell.
    """
    pairs: list[tables.Record] = read_repeats()["pairs"]
    for pair in pairs:
        unit = 100 / (pair["stored"] if lower_is_better(pair["metric"]) else 1)
        pair["change"] = unit * (pair["repeated"] - pair["stored"])
        pair["seeds"] = [unit * abs(other - pair["stored"]) for other in pair["other_seeds"]]
    return pairs


def repeats() -> str:
    """Repeated runs by task, protocol and backbone."""
    rows = []
    for key, found in sorted(
        tables.grouped(repeated_pairs(), lambda p: (p["task"], p["protocol"], p["backbone"])).items()
    ):
        sizes, seeds = [abs(pair["change"]) for pair in found], [one for pair in found for one in pair["seeds"]]
        counts = [str(len(found)), str(len({pair["stored_commit"] for pair in found}))]
        mean = statistics.mean(pair["change"] for pair in found)
        shown = [f"{mean:+.2f}", f"{statistics.median(sizes):.2f}", f"{max(sizes):.2f}"]
        rows.append([*key, *counts, *shown, f"{statistics.median(seeds):.2f}" if seeds else ""])
    titles = ["task", "protocol", "backbone", "runs", "commits", "mean change", "median absolute change"]
    return table([*titles, "largest", "between seeds"], rows, left=3)


def by_commit() -> str:
    """One short run of DUET at commits in the order of history; neighbours that behave alike are one row."""
    content = read_repeats()["by_commit"]
    rows = []
    for (losses, _), runs in itertools.groupby(
        content["runs"], lambda run: (run["train"], len(set(run["validation"])) > 1)
    ):
        found = list(runs)
        errors = [one for run in found for one in run["validation"]]
        span = " to ".join(dict.fromkeys(run["commit"][:7] for run in (found[0], found[-1])))
        shown = ", ".join(f"{one:.5f}" for one in losses)
        bounds = dict.fromkeys(f"{limit(errors):.5f}" for limit in (min, max))
        rows.append([span, str(len(errors)), shown, " to ".join(bounds)])
    made = table(["commits", "runs", "training loss of two epochs", "validation error"], rows)
    return f"{made}\n\n{content['device']}, PyTorch {content['torch']}: `{content['command']}`"


def duet_gains() -> str:
    """What TOA-Softmax and SOR gain under DUET in the earlier runs, in the repeated ones and in both."""
    rows = []
    for title, sides in (("earlier", ["stored"]), ("repeated", ["repeated"]), ("both", ["stored", "repeated"])):
        errors = duet_errors(sides)
        ours = errors["toa-softmax"]
        ratios = {other: {cell: ours[cell] / error for cell, error in errors[other].items()} for other in COMPARED}
        by_set = defaultdict(list)
        for (dataset, _), ratio in ratios["softmax"].items():
            by_set[dataset].append(ratio)
        gain = statistics.fmean(1 - statistics.geometric_mean(found) for found in by_set.values())
        better = [f"{sum(ratio < 1 for ratio in found.values())} of {len(found)}" for found in ratios.values()]
        rows.append([title, f"{100 * gain:+.1f} %", *better])
    return table(
        ["runs", "gain of TOA-Softmax", "cells better than softmax", "cells better with SOR than without"], rows
    )


def duet_errors(sides: list[str]) -> dict[str, dict[tuple[str, str], float]]:
    """Mean test MSE of DUET under `toa` by variant, and by dataset and horizon, over the runs of these sides."""
    found: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair in repeated_pairs():
        options = dict(pairwise(shlex.split(pair["command"])))
        change = options.get("--set", "")
        # softmax with TOA's dropout is another comparison
        if (pair["protocol"], pair["backbone"]) == ("toa", "duet") and change in ("", "attention.sor=false"):
            variant = "without SOR" if change else options["--attention"]
            found[variant][options["--dataset"], options["--horizon"]] += [pair[side] for side in sides]
    return {
        variant: {cell: statistics.fmean(errors) for cell, errors in cells.items()} for variant, cells in found.items()
    }
