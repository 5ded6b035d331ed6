"""Tables of runs that were repeated, from results/repeats.json."""

import functools
import itertools
import json
import shlex
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from performance_tables import table
from stored_results import RESULTS, Record, gains_by_set, grouped
from toa.report.gains import lower_is_better, t_interval
from toa.report.tables import signed

# runs of DUET under `toa`
DUET_RUNS = {"earlier": ["stored"], "repeated": ["repeated"], "both": ["stored", "repeated"]}


def read_repeats() -> Record:
    """The file of repeated runs."""
    content: Record = json.loads((RESULTS / "repeats.json").read_text(encoding="utf-8"))
    return content


@functools.cache
def repeated_pairs() -> list[Record]:
    """Stored runs with their repetitions, and the changes in percent of an error or in points of an accuracy.

    `change` is that of the repeated run, `seeds` are the sizes of those to other seeds of the same cell.
    """
    pairs: list[Record] = read_repeats()["pairs"]
    for pair in pairs:
        unit = 100 / (pair["stored"] if lower_is_better(pair["metric"]) else 1)
        pair["change"] = unit * (pair["repeated"] - pair["stored"])
        pair["seeds"] = [unit * abs(other - pair["stored"]) for other in pair["other_seeds"]]
    return pairs


def repeats() -> str:
    """Repeated runs by task, protocol and backbone."""
    rows = []
    for key, pairs in sorted(grouped(repeated_pairs(), lambda p: (p["task"], p["protocol"], p["backbone"])).items()):
        sizes = [abs(pair["change"]) for pair in pairs]
        seeds = [change for pair in pairs for change in pair["seeds"]]
        counts = [str(len(pairs)), str(len({pair["stored_commit"] for pair in pairs}))]
        mean = statistics.mean(pair["change"] for pair in pairs)
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
        alike = list(runs)
        errors = [number for run in alike for number in run["validation"]]
        span = " to ".join(dict.fromkeys(run["commit"][:7] for run in (alike[0], alike[-1])))
        shown = ", ".join(f"{number:.5f}" for number in losses)
        bounds = dict.fromkeys(f"{limit(errors):.5f}" for limit in (min, max))
        rows.append([span, str(len(errors)), shown, " to ".join(bounds)])
    rows_of_commits = table(["commits", "runs", "training loss of two epochs", "validation error"], rows)
    return f"{rows_of_commits}\n\n{content['device']}, PyTorch {content['torch']}: `{content['command']}`"


def duet_gains() -> str:
    """What TOA-Softmax and SOR gain under DUET in the earlier runs, in the repeated ones and in both."""
    rows = []
    for title, sides in DUET_RUNS.items():
        gains = {other: duet_gain(other, sides) for other in ("softmax", "equal dropout", "without SOR")}
        shown = [f"{gain.mean:+.1f} % ({signed(*gain.interval)})" for gain in gains.values()]
        counts = [f"{gain.better} of {gain.cells}" for gain in gains.values()]
        rows.append([title, *(f"{mean}, {count}" for mean, count in zip(shown, counts, strict=True))])
    return table(["runs", "over softmax", "over softmax with TOA's dropout", "over itself without SOR"], rows)


class Gain(NamedTuple):
    """Gain of TOA-Softmax in percent: mean over data sets, its t interval, and cells in which it is better."""

    mean: float
    interval: tuple[float, float]
    better: int
    cells: int


def duet_gain(other: str, sides: Sequence[str]) -> Gain:
    """Gain of TOA-Softmax over another variant of `duet_errors`."""
    errors = duet_errors(sides)
    ours = errors["toa-softmax"]
    plain = errors[other]
    gains = [*gains_by_set(ours, plain).values()]
    interval = t_interval(np.array(gains))
    assert interval is not None
    return Gain(statistics.fmean(gains), interval, sum(ours[cell] < error for cell, error in plain.items()), len(plain))


def duet_errors(sides: Sequence[str]) -> dict[str, dict[tuple[str, str], float]]:
    """Mean test MSE of DUET under `toa` by variant, and by dataset and horizon, over the runs of these sides.

    "equal dropout" is softmax with the dropout of TOA. On large sets the protocol gives both the same.
    """
    errors_of: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair in repeated_pairs():
        if (pair["protocol"], pair["backbone"]) == ("toa", "duet"):
            options = dict(pairwise(shlex.split(pair["command"])))
            changed = {"model.dropout=0.3": "equal dropout", "attention.sor=false": "without SOR", "": ""}
            variant = changed[options.get("--set", "")] or options["--attention"]
            errors_of[variant][options["--dataset"], options["--horizon"]] += [pair[side] for side in sides]
    means = {
        name: {cell: statistics.fmean(errors) for cell, errors in cells.items()} for name, cells in errors_of.items()
    }
    return means | {"equal dropout": means["softmax"] | means["equal dropout"]}


TABLES: Mapping[str, Callable[[], str]] = {
    "repeats": repeats,
    "repeats-commits": by_commit,
    "repeats-duet": duet_gains,
}
