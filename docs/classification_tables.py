"""Tables of classification: the protocols of the paper, protocol `toa`, and the classifier on the UEA archive."""

import functools
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from performance_tables import table
from stored_results import (
    Record,
    changes_of,
    dataset_of,
    grouped,
    mean_of,
    pivot,
    published,
    read_csv,
    stored_records,
    variant_of,
)
from toa.report.tables import number

UEA = ("toa-paper", "tslib-uea")
VARIANTS = ("softmax", "hyperglu-dplr", "toa-softmax", "toa-relu", "toa-relu-nosor", "toa-gated", "toa-gated-nosor")


@functools.cache
def compared(protocol: str) -> str:
    """What `toa compare` prints."""
    from toa.report.statistics import collect, compare, system_table

    scores = collect(stored_records(f"classification/{protocol}.jsonl"), "accuracy")
    titles, *rows = system_table(scores, compare(scores, "softmax"))
    return table(titles, rows)


def accuracies(protocol: str) -> dict[str, dict[str, list[float]]]:
    """Accuracy of every seed by variant and dataset."""
    seeds_of: dict[str, dict[str, list[float]]] = {}
    for record in stored_records(f"classification/{protocol}.jsonl"):
        by_dataset = seeds_of.setdefault(variant_of(record), {})
        by_dataset.setdefault(record["config"]["dataset"], []).append(record["metrics"]["accuracy"])
    return seeds_of


def accuracy_lines() -> dict[str, list[float]]:
    """Mean accuracy of each variant in percent beside the paper's, and the mean distance from it, by title."""
    ours = {protocol: accuracies(protocol) for protocol in UEA}
    sets = sorted(set.intersection(*(set(accuracies_of["softmax"]) for accuracies_of in ours.values())))
    cells = [(name, variant) for name in sets for variant in VARIANTS]
    theirs = {(key[0], key[3]): value for key, value in published("classification").items()}
    means = {
        protocol: {(n, v): statistics.mean(accuracies_of[v][n]) for n, v in cells}
        for protocol, accuracies_of in ours.items()
    }
    lines = {"published": theirs} | {f"`{protocol}`": accuracies_of for protocol, accuracies_of in means.items()}
    lines[f"`{UEA[0]}`, best seed"] = {(n, v): max(ours[UEA[0]][v][n]) for n, v in cells}
    for protocol, accuracies_of in means.items():
        lines[f"distance of `{protocol}` from published"] = {
            key: abs(accuracies_of[key] - theirs[key]) for key in cells
        }
    return {
        title: [100 * statistics.mean(values[name, variant] for name in sets) for variant in VARIANTS]
        for title, values in lines.items()
    }


def accuracy_table() -> str:
    """The lines of accuracies as a table."""
    titles = [name.replace("-dplr", "").replace("-nosor", ", no SOR") for name in VARIANTS]
    rows = [[title, *(f"{value:.1f}" for value in values)] for title, values in accuracy_lines().items()]
    return table(["accuracy (%), distance (points)", *titles], rows)


def recipe_accuracies() -> str:
    """Protocol `toa` of classification: test accuracy by set in percent, beside published ones."""
    others = ("1NN-DTW-D", "ROCKET", "HC2")
    rows_of_others = read_csv("classification/published.csv")
    theirs = {(row["dataset"], row["classifier"]): float(row["accuracy"]) for row in rows_of_others}
    cells = grouped(
        stored_records("classification/toa.jsonl"), lambda record: (record["config"]["dataset"], variant_of(record))
    )
    lines: dict[str, list[float]] = {}
    for dataset in sorted({name for name, _ in cells}):
        plain, ours = (cells[dataset, variant] for variant in ("softmax", "toa-softmax"))
        gains = [mean_of(ours, metric) - mean_of(plain, metric) for metric in ("accuracy", "val_accuracy")]
        published_here = [theirs[dataset, name] for name in others if (dataset, name) in theirs]
        lines[dataset] = [mean_of(plain, "accuracy"), mean_of(ours, "accuracy"), *gains, *published_here]
    complete = [line for line in lines.values() if len(line) == 7]
    lines["mean"] = [statistics.fmean(column) for column in zip(*(line[:4] for line in lines.values()), strict=True)]
    lines[f"mean of the {len(complete)} with published figures"] = [
        statistics.fmean(column) for column in zip(*complete, strict=True)
    ]
    rows = []
    for title, line in lines.items():
        shown = [f"{100 * value:{'+' if place in (2, 3) else ''}.1f}" for place, value in enumerate(line)]
        rows.append([title, *shown, *[""] * (7 - len(line))])
    return table(["dataset", "softmax", "TOA-Softmax", "change", "in validation", *others], rows)


def classification_search() -> str:
    """One line per setting; a cell is validation / test accuracy."""
    records = stored_records("classification/search.jsonl")
    datasets = list(grouped(records, dataset_of))

    def setting(record: Record) -> tuple[str]:
        attention = record["config"]["attention"]
        norms = [norm for norm in (attention["score_norm"], attention["gate_norm"]) if norm]
        without = ["no instance norm"] if "model.instance_norm=false" in changes_of(record) else []
        return (", ".join((attention["name"], *norms, *without)),)

    def cell(runs: list[Record]) -> str:
        return " / ".join(f"{mean_of(runs, metric):.3f}" for metric in ("val_accuracy", "accuracy"))

    rows = pivot(records, row=setting, column=dataset_of, columns=datasets, cell=cell)
    return table(["setting", *datasets], sorted(rows), left=1 + len(datasets))


RIVAL_CLASSIFIERS = ("ROCKET", "HC2", "InceptionT", "1NN-DTW-D")
OUR_CLASSIFIERS = {"toa": "toa", "toa-network": "toa, network alone", "multirocket-hydra": "MultiRocketHydra"}


@functools.cache
def uea_accuracies() -> dict[str, dict[str, float]]:
    """Test accuracy by dataset, and by our methods and published classifiers; "cross-validated" is that of toa."""
    accuracies_of: dict[str, dict[str, float]] = {}
    for record in stored_records("leaderboards/uea.jsonl"):
        cells = accuracies_of.setdefault(record["dataset"], {})
        cells[record["method"]] = record["accuracy"]
        if record["method"] == "toa":
            cells["cross-validated"] = record["validation"]
    for row in read_csv("classification/published.csv"):
        if row["dataset"] in accuracies_of:
            accuracies_of[row["dataset"]][row["classifier"]] = float(row["accuracy"])
    return accuracies_of


def uea_table() -> str:
    """Ours beside MultiRocketHydra and published figures, in percent, with means over the sets."""
    accuracies_of = uea_accuracies()
    names = ("toa", "cross-validated", "toa-network", "multirocket-hydra", *RIVAL_CLASSIFIERS)

    def cells(values: Iterable[float | None]) -> list[str]:
        return [number(value and 100 * value, ".1f", "") for value in values]

    rows = [[dataset, *cells(by_method.get(name) for name in names)] for dataset, by_method in accuracies_of.items()]
    whole = [name for name in names if all(name in by_method for by_method in accuracies_of.values())]
    summaries = []
    for title, summarise in (("mean", statistics.fmean), ("median", statistics.median)):
        values = [
            summarise([by_method[name] for by_method in accuracies_of.values()]) if name in whole else None
            for name in names
        ]
        summaries.append([title, *cells(values)])
    titles = [OUR_CLASSIFIERS.get(name, name) for name in names]
    return table(["test accuracy, %", *titles], [*rows, *summaries])


def user_classes() -> str:
    """Test accuracy of the default classifier and of MultiRocketHydra, in percent, and where the first is better."""
    accuracies_of = uea_accuracies()
    pairs = {name: (100 * by["toa"], 100 * by["multirocket-hydra"]) for name, by in accuracies_of.items()}
    rows = [[name, f"{ours:.1f}", f"{theirs:.1f}"] for name, (ours, theirs) in pairs.items()]
    rows.append(["mean", *(f"{statistics.fmean(values):.1f}" for values in zip(*pairs.values(), strict=True))])
    better = sum(ours > theirs for ours, theirs in pairs.values())
    worse = sum(ours < theirs for ours, theirs in pairs.values())
    rows.append(["sets where it is better", str(better), str(worse)])
    return table(["test accuracy, %", "toa", "MultiRocketHydra"], rows)


def uea_choices() -> str:
    """Weights of the members, and CPU seconds of fit and prediction."""
    records = {(r["dataset"], r["method"]): r for r in stored_records("leaderboards/uea.jsonl")}
    rows = []
    for dataset in dict.fromkeys(dataset for dataset, _ in records):
        weights = sorted(records[dataset, "toa"]["weights"].items(), key=lambda pair: -pair[1])
        seconds = [records.get((dataset, method), {}).get("cpu_seconds") for method in OUR_CLASSIFIERS]
        shown = [number(value, ".0f", "") for value in seconds]
        rows.append([dataset, ", ".join(f"{weight:.2f} {name}" for name, weight in weights), *shown])
    times = [[r["cpu_seconds"] for (_, m), r in records.items() if m == method] for method in OUR_CLASSIFIERS]
    # a sum over a part of the sets would not compare
    sums = [f"{sum(spent):.0f}" if len(spent) == len(rows) else "" for spent in times]
    rows.append(["sum", "", *sums])
    titles = [f"{title}, CPU s" for title in OUR_CLASSIFIERS.values()]
    return table(["dataset", "weights of toa", *titles], rows, left=2)


TABLES: Mapping[str, Callable[[], str]] = {
    "accuracy": accuracy_table,
    "accuracy-toa": recipe_accuracies,
    "classification-search": classification_search,
    **{f"compared-{protocol}": partial(compared, protocol) for protocol in (*UEA, "toa")},
    "uea": uea_table,
    "user-classes": user_classes,
    "uea-choices": uea_choices,
}
