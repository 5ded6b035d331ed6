"""Tables of the hyperparameter searches."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from performance_tables import table
from stored_results import BACKBONES, NAMES, RESULTS, ROOT
from toa_bench.search import Plan, Trials, choose, rank_trials, read_plan, read_trials, sized_datasets

NOT_RUN = "The runs of this plan are not stored yet."


@functools.cache
def searched(plan: str) -> tuple[Plan, Trials]:
    """A plan by the name of its file, and its stored trials."""
    content = read_plan(ROOT / "benchmarks" / f"{plan}.toml")
    return content, read_trials(content)


def search_choice(name: str) -> str:
    """The chosen trial per backbone, size and family, with its mean over the datasets of that size."""
    plan, trials = searched(name)
    rows = []
    for backbone in plan.backbones():
        for (family, size), result in choose(plan, trials, backbone).items():
            rows.append([NAMES[backbone], size, family, f"`{result.trial}`", f"{result.means[size]:.4f}"])
    titles = ["backbone", "datasets", "family", "chosen trial", "validation"]
    return table(titles, rows, left=4) if rows else NOT_RUN


def search_trials(name: str, datasets: list[str] | None = None, backbones: Sequence[str] = ()) -> str:
    """Every trial that ran on all sets of the plan, or on the named ones; the best first."""
    plan, trials = searched(name)
    plan = replace(plan, datasets=datasets or plan.datasets)
    parts = []
    for backbone in backbones or plan.backbones():
        for family in plan.families(backbone):
            rows = []
            for result in rank_trials(plan, trials, backbone, family):
                sizes = [size for size in plan.sizes if size in result.means]
                means = [f"{result.means[size]:.4f}" for size in sizes]
                shown = {name: f"{100 * value:.1f}" for name, value in result.without_operators.items()}
                rises = ", ".join(shown.get(name, "-") for name in plan.datasets) if shown else ""
                ratios = [f"{result.ratios[name]:.4f}" for name in plan.datasets]
                rows.append([f"`{result.trial}`", *means, *ratios, rises])
            if rows:
                titles = ["trial", *sizes, *plan.datasets, "M = 0, %"]
                parts.append(f"### {NAMES[backbone]}, {family}\n\n{table(titles, rows)}")
    return "\n\n".join(parts) or NOT_RUN


def search_confirmed(name: str) -> str:
    """Per backbone and size the trials of the last stage, the best first: the mean that chooses, and its new cells."""
    plan, trials = searched(name)
    parts = []
    for backbone, size in itertools.product(plan.backbones(), plan.sizes):
        cells = [(data, *cell) for data in sized_datasets(plan, trials, size) for cell in plan.confirmed[1:]]
        rows = []
        for family in plan.families(backbone):
            for result in rank_trials(plan, trials, backbone, family, size, confirmed=True):
                pairs = [[trials[backbone, trial, *cell] for trial in (result.trial, "softmax")] for cell in cells]
                ratios = [plan.compared(*(row["validation"] for row in pair)) for pair in pairs]
                rows.append([family, f"`{result.trial}`", *(f"{value:.4f}" for value in (result.means[size], *ratios))])
        if rows:
            titles = ["family", "trial", "mean", *(f"{data} {horizon}" for data, horizon, _ in cells)]
            parts.append(f"### {NAMES[backbone]}, {size} sets\n\n{table(titles, rows, left=2)}")
    return "\n\n".join(parts)


def signed_table() -> str:
    """One line per attention: validation error relative to plain softmax, of the trial chosen for the set's size."""
    from toa_paper.report.evidence import read_evidence
    from toa_paper.report.paper_text import signed_table

    head, *rows = signed_table(read_evidence([RESULTS / "search" / "signed-trials.jsonl"]).signed)
    return table(list(head), [[BACKBONES[row[0]], *row[1:]] for row in rows], left=2)


# plans whose choice and all trials have tables
PLANS = ("search", "search-classify", "search-two-axis", "search-classify-two-axis")
TABLES: Mapping[str, Callable[[], str]] = {
    **{f"{plan}-choice": partial(search_choice, plan) for plan in PLANS},
    **{f"{plan}-trials": partial(search_trials, plan) for plan in PLANS[1:]},
    "search-trials": partial(search_trials, "search", backbones=["itransformer", "duet"]),
    "search-confirmed": partial(search_confirmed, "search"),
    "search-patchtst": partial(search_trials, "search", ["ETTh1", "Exchange"], ["patchtst"]),
    "search-weather": partial(search_trials, "search", ["Weather"], ["patchtst"]),
    "search-large": partial(search_trials, "search", ["ETTm1", "Weather"], ["patchtst"]),
    "search-pooled": partial(search_trials, "search-pooled", ["ETTh1", "Exchange"]),
    "signed": signed_table,
}
