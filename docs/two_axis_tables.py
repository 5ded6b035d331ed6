"""Tables of the model two-axis in all three tasks."""

import itertools
import statistics
from collections.abc import Callable, Mapping
from functools import partial

from detection_tables import DETECTION_SETS
from forecasting_tables import searched_duet
from performance_tables import table
from search_tables import searched
from stored_results import (
    NAMES,
    RECIPE_SETS,
    TITLES,
    cell_of,
    changes_of,
    grouped,
    mean_of,
    read_csv,
    recipe_records,
    set_means,
    stored_records,
    variant_of,
)
from toa_bench.search import choose


def two_axis_table(*settings: str) -> str:
    """Test MSE of each set, mean over horizons and seeds: published, the other backbones, and two-axis.

    `settings` are those that the runs of two-axis change; with a look-back of their own there are fewer rows.
    """
    wanted = "look-back 96" if settings else "searched look-back"
    rows = [
        [f"{row['model']}, {row['setting']}, published ({row['source']})", *(row[name] for name in RECIPE_SETS)]
        for row in read_csv("forecasting/published-means.csv")
        if row["setting"] == wanted
    ]
    for backbone in ("two-axis",) if settings else NAMES:
        records_of = recipe_records(backbone)
        for family, title in {"softmax": "softmax", "toa": "TOA"}.items():
            rows.append([f"{NAMES[backbone]}, {title}", *set_means(records_of[family, *settings])])
    if not settings:
        for attention, title in TITLES.items():
            rows.append([f"DUET, searched look-back, {title}", *set_means(searched_duet()[attention])])
        choices = choose(*searched("search-two-axis"), "two-axis")
        chosen = [tuple(choice.trial.split()[1:]) for (family, _), choice in choices.items() if family == "none"]
        runs = [record for record in stored_records("forecasting/two-axis.jsonl") if changes_of(record) in chosen]
        rows.append(["two-axis, channels not mixed", *set_means(grouped(runs, cell_of))])
    return table(["test MSE", *RECIPE_SETS], rows)


def two_axis_ablations() -> str:
    """What a change costs the chosen two-axis with TOA at horizon 96: validation MSE / test MSE, one seed."""
    records_of = recipe_records("two-axis")
    base = records_of["toa",]

    def cell(change: str, dataset: str) -> str:
        (changed,) = records_of["toa", change][dataset, 96]
        (kept,) = (record for record in base[dataset, 96] if record["seed"] == changed["seed"])
        rises = [changed["metrics"][metric] / kept["metrics"][metric] - 1 for metric in ("val_mse", "mse")]
        return " / ".join(f"{100 * rise:+.1f} %" for rise in rises)

    changes = [line[1] for line, cells in records_of.items() if line[0] == "toa" and len(line) == 2]
    rows = [[f"`{change}`", *(cell(change, dataset) for dataset in RECIPE_SETS)] for change in changes]
    return table(["change", *RECIPE_SETS], rows)


def two_axis_accuracies() -> str:
    """Test accuracy of two-axis by set in percent, beside PatchTST and its own small model, and the means."""
    files = {"PatchTST": "toa", "two-axis": "two-axis", "small": "two-axis-small"}
    cells = {
        (title, *key): runs
        for title, file in files.items()
        for key, runs in grouped(
            stored_records(f"classification/{file}.jsonl"), lambda r: (variant_of(r), r["config"]["dataset"])
        ).items()
    }
    systems = list(itertools.product(files, TITLES))
    ours = {name: [mean_of(cells[*system, name], "accuracy") for system in systems] for *_, name in cells}
    named = {row["dataset"] for row in read_csv("classification/published.csv")}
    groups = {name: [name] for name in sorted(ours)} | {"mean": list(ours)}
    with_published = [name for name in ours if name in named]
    groups[f"mean of the {len(with_published)} with published figures"] = with_published
    rows = []
    for title, sets in groups.items():
        means = [100 * statistics.fmean(column) for column in zip(*(ours[name] for name in sets), strict=True)]
        shown = [f"{value:.1f}" for value in means]
        rows.append([title, *shown[:4], f"{means[3] - means[1]:+.1f}", *shown[4:]])
    titles = [f"{model}, {TITLES[variant]}" for model, variant in systems]
    return table(["accuracy, %", *titles[:4], "two-axis minus PatchTST, TOA-Softmax", *titles[4:]], rows)


def two_axis_detection() -> str:
    """VUS-PR by the rules of `toa run`: two-axis, the other backbones and the methods without a network."""
    runs = stored_records("anomaly/two-axis.jsonl") + stored_records("anomaly/toa-paper.jsonl")
    scores: dict[str, dict[str, float]] = {}
    for key, runs_of_cell in grouped(
        runs, lambda r: (r["config"]["backbone"], variant_of(r), r["config"]["dataset"])
    ).items():
        if key[1] in TITLES:
            by_dataset = scores.setdefault(f"{NAMES.get(key[0], 'Transformer')}, {TITLES[key[1]]}", {})
            by_dataset[key[2]] = mean_of(runs_of_cell, "strict/vus_pr")
    for record in stored_records("anomaly/detectors.jsonl"):
        if record["method"] != "toa-network":
            scores.setdefault(record["method"], {})[record["dataset"]] = record["run_vus_pr"]
    rows = []
    for method, by_dataset in scores.items():
        values = [by_dataset[name] for name in DETECTION_SETS]
        rows.append([method, *(f"{value:.3f}" for value in (*values, statistics.fmean(values)))])
    return table(["VUS-PR", *DETECTION_SETS, "mean"], rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "two-axis": two_axis_table,
    "two-axis-96": partial(two_axis_table, "lookback=96"),
    "two-axis-ablations": two_axis_ablations,
    "two-axis-accuracies": two_axis_accuracies,
    "two-axis-detection": two_axis_detection,
}
