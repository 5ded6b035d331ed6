"""Write every table and every measured number on every page from the stored records: none is typed by hand.

    python docs/page_tables.py [--check]

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`, a number of a sentence between
`<!-- value: NAME -->` and `<!-- end -->` (page_values.py); the text around them is kept. With `--check` nothing is
written, and the exit code is 1 if a page differs from its records.
"""

import argparse
import csv
import functools
import itertools
import json
import re
import shlex
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from many_channels_tables import sets_table, sizes_table
from performance_tables import TABLES as PERFORMANCE
from performance_tables import performance_table, speed_summary, table
from toa.estimators.effort import EFFORTS, Effort
from toa.report.tables import number
from toa_bench.search import Plan, Trials, choose, rank_trials, read_plan, read_trials, sized_datasets
from toa_paper.published import published_numbers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("many_channels", "performance", "protocols", "recipe", "reliability")),
    "docs/two_axis.md",
    "docs/howto/effort.md",
    "results/README.md",
    *(f"results/{name}/README.md" for name in ("anomaly", "classification", "demixing", "forecasting")),
    *(f"results/{name}/README.md" for name in ("leaderboards", "search")),
)

Record = dict[str, Any]

SETS = ("ETTh1", "ETTh2", "Exchange", "ETTm1", "Weather")
RECIPE_SETS = ("ETTh1", "ETTh2", "ETTm1", "ETTm2", "Weather", "Exchange")
BACKBONES = {"patchtst": "PatchTST", "itransformer": "iTransformer", "duet": "DUET"}
NAMES = BACKBONES | {"two-axis": "two-axis"}
# attentions of the protocol `toa`
TITLES = {"softmax": "softmax", "toa-softmax": "TOA-Softmax"}
# settings that the first runs set on the command line and the protocol contains today
IN_PROTOCOL = ("training.patience=10", "training.epochs=20", "attention.score_norm=rms", "attention.gate_norm=rms")
# a validation error above this is not a forecast any more
DIVERGED = 10.0
# records by dataset and horizon
Cells = dict[Any, list[Record]]


@functools.cache
def read_records(name: str) -> list[Record]:
    """Records of a file under results/, one JSON object per line."""
    lines = (RESULTS / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@functools.cache
def published(task: str) -> dict[tuple[str, ...], float]:
    """The paper's numbers of a table by dataset, horizon, backbone, variant and metric."""
    rows = [row for row in published_numbers() if row.table == task]
    return {(row.dataset, row.horizon, row.backbone, row.variant, row.metric): row.value for row in rows}


def read_csv(name: str) -> list[dict[str, str]]:
    """Rows of a CSV file under results/."""
    with (RESULTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mean_of(records: Iterable[Record], metric: str) -> float:
    """Mean of a metric over records."""
    return statistics.mean(record["metrics"][metric] for record in records)


def variant_of(record: Record) -> str:
    """The paper's name of an attention."""
    attention = record["config"]["attention"]
    name: str = {"hyperglu": "hyperglu-dplr"}.get(attention["name"], attention["name"])
    return f"{name}-nosor" if name.startswith("toa-") and not attention["sor"] else name


def grouped(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    """Records by key, in the order of their first appearance."""
    found: dict[Any, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


# forecasting


def changes_of(record: Record) -> tuple[str, ...]:
    """Settings that a run's command changed in its protocol, as key=value."""
    return tuple(value for option, value in pairwise(shlex.split(record["command"])) if option == "--set")


def setting_table(
    file: str,
    *,
    backbone: str,
    horizon: int,
    datasets: Sequence[str],
    device: str = "",
    hidden: Sequence[str] = (),
    norms: bool = False,
) -> str:
    """One line per attention and setting; a cell is validation MSE / test MSE, the mean over seeds.

    Sets without a run have no column. `device` is the start of the device's name, "" for any; `hidden` are settings
    that the text around states. With `norms`, a line names its normalisers, which a command may have left to the
    protocol of its time.
    """

    def cell(found: Sequence[Record]) -> str:
        errors = [mean_of(found, metric) for metric in ("val_mse", "mse")] if found else []
        return " / ".join(f"{x:.4f}" if x < DIVERGED else f"**{x:.0e}**" for x in errors) or "-"

    chosen = [
        record
        for record in read_records(f"forecasting/{file}.jsonl")
        if (record["config"]["backbone"], record["config"]["horizon"]) == (backbone, horizon)
        and record["config"]["dataset"] in datasets
        and record["device"].startswith(device)
    ]

    datasets = [name for name in datasets if any(record["config"]["dataset"] == name for record in chosen)]

    def line_of(record: Record) -> tuple[str, str]:
        attention = record["config"]["attention"]
        shown = [change for change in changes_of(record) if change not in hidden]
        if norms:
            used = {"toa-relu": ("score_norm",), "toa-gated": ("score_norm", "gate_norm")}.get(attention["name"], ())
            shown = [change for change in shown if not change.startswith(tuple(f"attention.{key}" for key in used))]
            shown = [*(f"{key}={attention[key]}" for key in used), *shown]
        return attention["name"], ", ".join(shown) or "protocol"

    rows = []
    for line, found in grouped(chosen, line_of).items():
        by_set = grouped(found, lambda record: record["config"]["dataset"])
        rows.append([*line, *(cell(by_set.get(dataset, [])) for dataset in datasets)])
    return table(["attention", "setting", *datasets], rows, left=2 + len(datasets))


def forecast_errors(*files: str) -> dict[str, dict[tuple[str, str, int], tuple[float, float]]]:
    """Validation and test MSE, means over seeds, by attention, then by dataset, backbone and horizon."""
    records = [record for file in files for record in read_records(f"forecasting/{file}.jsonl")]
    found: dict[str, dict[tuple[str, str, int], tuple[float, float]]] = {}
    for attention, runs in grouped(records, lambda record: record["config"]["attention"]["name"]).items():
        cells = grouped(runs, lambda record: tuple(record["config"][k] for k in ("dataset", "backbone", "horizon")))
        found[attention] = {key: (mean_of(cell, "val_mse"), mean_of(cell, "mse")) for key, cell in cells.items()}
    return found


def published_mse(variant: str, dataset: str, backbone: str, horizon: int) -> float:
    """The paper's test MSE."""
    return published("forecast-full")[dataset, str(horizon), backbone, variant, "mse"]


def mean_errors(cells: Cells, metric: str = "mse") -> dict[Any, float]:
    """Mean over seeds by dataset and horizon."""
    return {cell: mean_of(records, metric) for cell, records in cells.items()}


def gains_by_set(ours: Mapping[Any, float], plain: Mapping[Any, float]) -> dict[str, float]:
    """Gain by set from errors by dataset and horizon: percent of the geometric mean over horizons, as in the report."""
    from toa.report.gains import mean_over_horizons, percent_gain

    found = {}
    for dataset in dict.fromkeys(dataset for dataset, _ in plain):
        rows = [(ours[cell], error) for cell, error in plain.items() if cell[0] == dataset]
        new, old = mean_over_horizons(rows, "mse")
        found[dataset] = float(percent_gain(new, old, "mse"))
    return found


def recipe_gains(backbone: str) -> dict[str, float]:
    """Gain of TOA over softmax under `toa` by set."""
    gains = gains_by_set(*(mean_errors(recipe_records(backbone)[name,]) for name in ("toa", "softmax")))
    return {dataset: gains[dataset] for dataset in RECIPE_SETS}


def forecast_summary() -> str:
    """The README's table: protocol `toa`, softmax and TOA-Softmax, mean over horizons, beside the published means."""
    horizons = (96, 192, 336, 720)
    records = recipe_records("itransformer")

    def ours(name: str) -> list[float]:
        return [statistics.fmean(mean_of(records[name,][d, h], "mse") for h in horizons) for d in RECIPE_SETS]

    def theirs(*names: str) -> list[float]:
        return [
            statistics.fmean(min(published_mse(name, d, "itransformer", h) for name in names) for h in horizons)
            for d in RECIPE_SETS
        ]

    rows = {
        "softmax, published": theirs("softmax"),
        "TOA, published, best of three variants at each horizon": theirs("toa-softmax", "toa-relu", "toa-gated"),
        "softmax, tuned here": ours("softmax"),
        "TOA-Softmax, tuned here": ours("toa"),
    }
    made = [[title, *(f"{value:.3f}" for value in values)] for title, values in rows.items()]
    gains = recipe_gains("itransformer").values()
    made.append(["gain, of geometric means", *(f"{gain:+.1f} %" for gain in gains)])
    return table(["iTransformer, mean test MSE of four horizons", *RECIPE_SETS], made, left=1)


def sor_table() -> str:
    """Test MSE with SOR / without."""
    kept, left = forecast_errors("horizon-96", "horizons"), forecast_errors("no-sor")
    horizons = (96, 192, 336, 720)
    rows = []
    for dataset, name in itertools.product(RECIPE_SETS, left):
        keys = [(dataset, "patchtst", horizon) for horizon in horizons]
        cells = [f"{kept[name][key][1]:.4f} / {left[name][key][1]:.4f}" if key in left[name] else "-" for key in keys]
        rows += [[dataset, name, *cells]] if set(cells) != {"-"} else []
    return table(["dataset", "attention", *map(str, horizons)], rows, left=6)


def other_runs(file: str) -> str:
    """One line per model, protocol and dataset."""
    records = read_records(f"forecasting/{file}.jsonl")
    keys = grouped(records, lambda r: (r["config"]["dataset"], r["name"], r["config"]["protocol"]))
    rows = [
        [name, protocol, dataset, f"{mean_of(found, 'val_mse'):.4f}", f"{mean_of(found, 'mse'):.4f}"]
        for (dataset, name, protocol), found in sorted(keys.items())
    ]
    return table(["model", "protocol", "dataset", "validation MSE", "test MSE"], rows, left=3)


def window_ranges() -> str:
    """Largest absolute value of normalised windows in each part of a dataset."""
    stored = json.loads((RESULTS / "forecasting" / "window-ranges.json").read_text(encoding="utf-8"))
    rows = [[dataset, *(f"{value:.1f}" for value in values)] for dataset, values in stored["largest"].items()]
    return table([f"largest value, look-back {stored['lookback']}", "training", "validation", "test"], rows)


# classification

UEA = ("toa-paper", "tslib-uea")
VARIANTS = ("softmax", "hyperglu-dplr", "toa-softmax", "toa-relu", "toa-relu-nosor", "toa-gated", "toa-gated-nosor")


@functools.cache
def compared(protocol: str) -> str:
    """What `toa compare` prints."""
    from toa.report.statistics import collect, compare, system_table

    scores = collect(read_records(f"classification/{protocol}.jsonl"), "accuracy")
    titles, *rows = system_table(scores, compare(scores, "softmax"))
    return table(titles, rows)


def accuracies(protocol: str) -> dict[str, dict[str, list[float]]]:
    """Accuracy of every seed by variant and dataset."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in read_records(f"classification/{protocol}.jsonl"):
        cells = found.setdefault(variant_of(record), {})
        cells.setdefault(record["config"]["dataset"], []).append(record["metrics"]["accuracy"])
    return found


def accuracy_lines() -> dict[str, list[float]]:
    """Mean accuracy of each variant in percent beside the paper's, and the mean distance from it, by title."""
    ours = {protocol: accuracies(protocol) for protocol in UEA}
    sets = sorted(set.intersection(*(set(found["softmax"]) for found in ours.values())))
    cells = [(name, variant) for name in sets for variant in VARIANTS]
    theirs = {(key[0], key[3]): value for key, value in published("classification").items()}
    means = {protocol: {(n, v): statistics.mean(found[v][n]) for n, v in cells} for protocol, found in ours.items()}
    lines = {"published": theirs} | {f"`{protocol}`": found for protocol, found in means.items()}
    lines[f"`{UEA[0]}`, best seed"] = {(n, v): max(ours[UEA[0]][v][n]) for n, v in cells}
    for protocol, found in means.items():
        lines[f"distance of `{protocol}` from published"] = {key: abs(found[key] - theirs[key]) for key in cells}
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
        read_records("classification/toa.jsonl"), lambda record: (record["config"]["dataset"], variant_of(record))
    )
    lines: dict[str, list[float]] = {}
    for dataset in sorted({name for name, _ in cells}):
        plain, ours = (cells[dataset, variant] for variant in ("softmax", "toa-softmax"))
        gains = [mean_of(ours, metric) - mean_of(plain, metric) for metric in ("accuracy", "val_accuracy")]
        known = [theirs[dataset, name] for name in others if (dataset, name) in theirs]
        lines[dataset] = [mean_of(plain, "accuracy"), mean_of(ours, "accuracy"), *gains, *known]
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
    records = read_records("classification/search.jsonl")
    datasets = list(grouped(records, lambda record: record["config"]["dataset"]))

    def setting(record: Record) -> str:
        attention = record["config"]["attention"]
        norms = [norm for norm in (attention["score_norm"], attention["gate_norm"]) if norm]
        without = ["no instance norm"] if "model.instance_norm=false" in changes_of(record) else []
        return ", ".join((attention["name"], *norms, *without))

    rows = []
    for name, found in sorted(grouped(records, setting).items()):
        cells = {}
        for record in found:
            shown = [f"{record['metrics'][metric]:.3f}" for metric in ("val_accuracy", "accuracy")]
            cells[record["config"]["dataset"]] = " / ".join(shown)
        rows.append([name, *(cells.get(dataset, "-") for dataset in datasets)])
    return table(["setting", *datasets], rows, left=1 + len(datasets))


RIVAL_CLASSIFIERS = ("ROCKET", "HC2", "InceptionT", "1NN-DTW-D")
OUR_CLASSIFIERS = {"toa": "toa", "toa-network": "toa, network alone", "multirocket-hydra": "MultiRocketHydra"}


@functools.cache
def uea_accuracies() -> dict[str, dict[str, float]]:
    """Test accuracy by dataset, and by our methods and published classifiers; "cross-validated" is that of toa."""
    found: dict[str, dict[str, float]] = {}
    for record in read_records("leaderboards/uea.jsonl"):
        cells = found.setdefault(record["dataset"], {})
        cells[record["method"]] = record["accuracy"]
        if record["method"] == "toa":
            cells["cross-validated"] = record["validation"]
    for row in read_csv("classification/published.csv"):
        if row["dataset"] in found:
            found[row["dataset"]][row["classifier"]] = float(row["accuracy"])
    return found


def uea_table() -> str:
    """Ours beside MultiRocketHydra and published figures, in percent, with means over the sets."""
    found = uea_accuracies()
    names = ("toa", "cross-validated", "toa-network", "multirocket-hydra", *RIVAL_CLASSIFIERS)

    def cells(values: Iterable[float | None]) -> list[str]:
        return [number(value and 100 * value, ".1f", "") for value in values]

    rows = [[dataset, *cells(own.get(name) for name in names)] for dataset, own in found.items()]
    whole = [name for name in names if all(name in own for own in found.values())]
    means = [statistics.fmean(own[name] for own in found.values()) if name in whole else None for name in names]
    titles = [OUR_CLASSIFIERS.get(name, name) for name in names]
    return table(["test accuracy, %", *titles], [*rows, ["mean", *cells(means)]])


def uea_choices() -> str:
    """Weights of the members, and CPU seconds of fit and prediction."""
    records = {(r["dataset"], r["method"]): r for r in read_records("leaderboards/uea.jsonl")}
    rows = []
    for dataset in dict.fromkeys(dataset for dataset, _ in records):
        weights = sorted(records[dataset, "toa"]["weights"].items(), key=lambda pair: -pair[1])
        seconds = [records.get((dataset, method), {}).get("cpu_seconds") for method in OUR_CLASSIFIERS]
        shown = [number(value, ".0f", "") for value in seconds]
        rows.append([dataset, ", ".join(f"{weight:.2f} {name}" for name, weight in weights), *shown])
    times = [[r["cpu_seconds"] for (_, m), r in records.items() if m == method] for method in OUR_CLASSIFIERS]
    # a sum over a part of the sets would not compare
    rows.append(["sum", "", *(f"{sum(found):.0f}" if len(found) == len(rows) else "" for found in times)])
    titles = [f"{title}, CPU s" for title in OUR_CLASSIFIERS.values()]
    return table(["dataset", "weights of toa", *titles], rows, left=2)


# anomaly detection and demixing

ANOMALY_METRICS = ("tslib-pa/pa_f1", "tslib-pa/random_pa_f1", "strict/f1", "strict/vus_pr")


def anomaly_table(dataset: str) -> str:
    """Means over seeds, both sets of rules side by side."""
    records = [r for r in read_records("anomaly/toa-paper.jsonl") if r["config"]["dataset"] == dataset]
    theirs = {key[:4]: value for key, value in published("anomaly").items()}
    rows = []
    for (backbone, variant), found in sorted(
        grouped(records, lambda r: (r["config"]["backbone"], variant_of(r))).items()
    ):
        ours = [f"{mean_of(found, metric):.3f}" for metric in ANOMALY_METRICS]
        shown = number(theirs.get((dataset, "", backbone, variant)), ".3f")
        rows.append([f"{backbone}/{variant}", str(len(found)), ours[0], shown, *ours[1:]])
    titles = ["system", "seeds", "PA-F1", "published", "PA-F1 of a random score", "strict F1", "strict VUS-PR"]
    return table(titles, rows)


DETECTION_SETS = ("SMD-machine-1-6", "SMD-machine-2-1", "MSL", "SMAP")


def detector_table() -> str:
    """VUS-PR of every detector, the means over SMD and MSL and over all sets, and the CPU time of all sets."""
    rows = []
    for method, found in grouped(read_records("anomaly/detectors.jsonl"), lambda record: record["method"]).items():
        scores = {record["dataset"]: record["vus_pr"] for record in found}
        for names in (DETECTION_SETS[:3], DETECTION_SETS):
            if all(name in scores for name in names):
                scores[f"mean of {len(names)}"] = statistics.mean(scores[name] for name in names)
        shown = (*DETECTION_SETS, "mean of 3", "mean of 4")
        cells = [f"{scores[name]:.3f}" if name in scores else "-" for name in shown]
        rows.append([method, *cells, f"{sum(record['cpu_seconds'] for record in found):.0f}"])
    return table(["method", *DETECTION_SETS, "mean of SMD and MSL", "mean", "CPU s"], rows, left=1)


def detector_choices() -> str:
    """The methods in the combination, their average precision on injected anomalies, and times per set."""
    rows = []
    for record in read_records("anomaly/detectors.jsonl"):
        if record["method"] == "toa":
            found = [f"{name} {record['precision'][name]:.3f}" for name in record["weights"]]
            times = [f"{record[name]:.0f}" for name in ("fit_seconds", "score_seconds", "cpu_seconds")]
            rows.append([record["dataset"], ", ".join(found), f"{record['precision']['combination']:.3f}", *times])
    return table(["dataset", "methods", "combination", "fit, s", "scores, s", "CPU s"], rows, left=2)


@functools.cache
def demixing_errors() -> dict[str, dict[int, float]]:
    """Test MSE by system and seed; ablations are named by what differs."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((RESULTS / "demixing").glob("*.json"))]
    found: dict[str, dict[int, float]] = {}
    for record in [*map(json.loads, texts), *read_records("demixing/ablations.jsonl")]:
        name = record["name"] + ", backend folded" * (record["backend"] == "folded")
        found.setdefault(name, {})[record["seed"]] = record["metrics"]["mse"]
    return found


@functools.cache
def tuned_demixing_errors() -> dict[str, dict[int, float]]:
    """Test MSE under the protocol `toa` by system and seed."""
    found = grouped(read_records("demixing/toa.jsonl"), lambda record: record["name"])
    return {name: {r["seed"]: r["metrics"]["mse"] for r in records} for name, records in found.items()}


def demixing_trials() -> str:
    """The trials of demixing, those of a family by their validation error."""
    plan = tomllib.loads((ROOT / "benchmarks" / "demixing-trials.toml").read_text(encoding="utf-8"))
    trials = itertools.chain.from_iterable(plan["trials"].values())
    pairs = zip(trials, read_records("demixing/search.jsonl"), strict=True)
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
    found = tuned_demixing_errors() if tuned else demixing_errors()
    for name, errors in sorted(found.items(), key=lambda item: ("gated" not in item[0], item[0])):
        cells = [f"{errors[seed]:.5f}" if seed in errors else "-" for seed in seeds]
        known = f"{theirs[name]:.4f}" if name in theirs else ""
        rows.append([name, *cells, f"{statistics.median(errors.values()):.5f}", *([] if tuned else [known])])
    return table(["system", *map(str, seeds), "median", "published"][: len(seeds) + (2 if tuned else 3)], rows)


def cell_of(record: Record) -> tuple[str, int]:
    """Dataset and horizon of a forecasting run."""
    return record["config"]["dataset"], record["config"]["horizon"]


@functools.cache
def recipe_records(backbone: str) -> dict[Any, dict[Any, list[Record]]]:
    """Runs with the settings of protocol `toa` by family ("softmax", "toa") and changes, then by dataset and horizon.

    Runs of `toa-paper` with these settings are among them.
    """
    from toa_paper.report.cells import protocol_setting
    from toa_paper.report.evidence import read_evidence

    files = [RESULTS / "forecasting" / f"{name}.jsonl" for name in ("toa", "two-axis", "horizon-96", "horizons")]
    runs = [run for run in read_evidence(files).runs if run.record["config"]["backbone"] == backbone]
    found = [
        run.record
        for run in runs
        if run.record["config"]["protocol"] == "toa" or run.setting == protocol_setting(run, "toa")
    ]
    lines = grouped(found, lambda record: (record["config"]["attention"]["name"].split("-")[0], *changes_of(record)))
    return {line: grouped(records, cell_of) for line, records in lines.items()}


def recipe_table(backbone: str) -> str:
    """Protocol `toa`: `gain_table` of softmax and TOA, and of TOA without SOR."""
    errors = recipe_records(backbone)
    lines = (("softmax",), ("toa",), ("toa", "attention.sor=false"))
    return gain_table(*(errors.get(line, {}) for line in lines))


def searched_duet() -> dict[str, Cells]:
    """Runs of DUET with its authors' look-backs and sizes by attention, then by dataset and horizon."""
    runs = grouped(read_records("forecasting/duet-search.jsonl"), lambda record: record["config"]["attention"]["name"])
    return {attention: grouped(found, cell_of) for attention, found in runs.items()}


def searched_duet_table() -> str:
    """`gain_table` of DUET with its authors' look-backs and sizes."""
    found = searched_duet()
    return gain_table(*(found[attention] for attention in TITLES))


def gain_table(softmax: Cells, toa: Cells, no_sor: Cells | None = None) -> str:
    """Test MSE of softmax and TOA, TOA's change, and its change when SOR is switched off, if that was run."""

    def change(ours: list[Record], plain: list[Record], metric: str) -> float:
        return 100 * (mean_of(ours, metric) / mean_of(plain, metric) - 1)

    rows, gains = [], []
    for cell in sorted(toa):
        plain, ours = softmax[cell], toa[cell]
        gains.append((change(ours, plain, "mse"), change(ours, plain, "val_mse")))
        errors_of_cell = [f"{mean_of(found, 'mse'):.4f}" for found in (plain, ours)]
        rows.append([cell[0], str(cell[1]), *errors_of_cell, *(f"{gain:+.1f} %" for gain in gains[-1])])
        if no_sor is not None:
            left_out = no_sor.get(cell, [])
            same = [record for record in ours if record["seed"] in {other["seed"] for other in left_out}]
            rows[-1].append(f"{change(left_out, same, 'mse'):+.1f} %" if left_out else "")
    means = [f"{statistics.fmean(found):+.1f} %" for found in zip(*gains, strict=True)]
    names = ["dataset", "horizon", "softmax", "TOA", "change", "in validation", "without SOR"]
    rows.append(["mean", "", "", "", *means, *[""] * (no_sor is not None)])
    return table(names[: len(rows[0])], rows)


def set_means(cells: dict[Any, list[Record]], metric: str = "mse") -> list[str]:
    """Mean over the four horizons of each set; empty where one was not run."""
    wanted = {dataset: [cells.get((dataset, h)) for h in (96, 192, 336, 720)] for dataset in RECIPE_SETS}
    return [
        f"{statistics.fmean(mean_of(found, metric) for found in runs if found):.3f}" if all(runs) else ""
        for runs in wanted.values()
    ]


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
        found = recipe_records(backbone)
        for family, title in {"softmax": "softmax", "toa": "TOA"}.items():
            rows.append([f"{NAMES[backbone]}, {title}", *set_means(found[family, *settings])])
    if not settings:
        for attention, title in TITLES.items():
            rows.append([f"DUET, searched look-back, {title}", *set_means(searched_duet()[attention])])
        choices = choose(*searched("search-two-axis"), "two-axis")
        chosen = [tuple(one.trial.split()[1:]) for (family, _), one in choices.items() if family == "none"]
        runs = [record for record in read_records("forecasting/two-axis.jsonl") if changes_of(record) in chosen]
        rows.append(["two-axis, channels not mixed", *set_means(grouped(runs, cell_of))])
    return table(["test MSE", *RECIPE_SETS], rows)


def two_axis_ablations() -> str:
    """What a change costs the chosen two-axis with TOA at horizon 96: validation MSE / test MSE, one seed."""
    found = recipe_records("two-axis")
    base = found["toa",]

    def cell(change: str, dataset: str) -> str:
        (changed,) = found["toa", change][dataset, 96]
        (kept,) = (record for record in base[dataset, 96] if record["seed"] == changed["seed"])
        shown = [changed["metrics"][one] / kept["metrics"][one] - 1 for one in ("val_mse", "mse")]
        return " / ".join(f"{100 * one:+.1f} %" for one in shown)

    changes = [line[1] for line, cells in found.items() if line[0] == "toa" and len(line) == 2]
    rows = [[f"`{change}`", *(cell(change, dataset) for dataset in RECIPE_SETS)] for change in changes]
    return table(["change", *RECIPE_SETS], rows)


def two_axis_accuracies() -> str:
    """Test accuracy of two-axis by set in percent, beside PatchTST and its own small model, and the means."""
    files = {"PatchTST": "toa", "two-axis": "two-axis", "small": "two-axis-small"}
    cells = {
        (title, *key): found
        for title, file in files.items()
        for key, found in grouped(
            read_records(f"classification/{file}.jsonl"), lambda r: (variant_of(r), r["config"]["dataset"])
        ).items()
    }
    systems = list(itertools.product(files, TITLES))
    ours = {name: [mean_of(cells[*system, name], "accuracy") for system in systems] for *_, name in cells}
    named = {row["dataset"] for row in read_csv("classification/published.csv")}
    groups = {name: [name] for name in sorted(ours)} | {"mean": list(ours)}
    known = [name for name in ours if name in named]
    groups[f"mean of the {len(known)} with published figures"] = known
    rows = []
    for title, sets in groups.items():
        means = [100 * statistics.fmean(column) for column in zip(*(ours[name] for name in sets), strict=True)]
        shown = [f"{value:.1f}" for value in means]
        rows.append([title, *shown[:4], f"{means[3] - means[1]:+.1f}", *shown[4:]])
    titles = [f"{model}, {TITLES[variant]}" for model, variant in systems]
    return table(["accuracy, %", *titles[:4], "two-axis minus PatchTST, TOA-Softmax", *titles[4:]], rows)


def two_axis_detection() -> str:
    """VUS-PR by the rules of `toa run`: two-axis, the other backbones and the methods without a network."""
    runs = read_records("anomaly/two-axis.jsonl") + read_records("anomaly/toa-paper.jsonl")
    scores: dict[str, dict[str, float]] = {}
    for key, found in grouped(runs, lambda r: (r["config"]["backbone"], variant_of(r), r["config"]["dataset"])).items():
        if key[1] in TITLES:
            own = scores.setdefault(f"{NAMES.get(key[0], 'Transformer')}, {TITLES[key[1]]}", {})
            own[key[2]] = mean_of(found, "strict/vus_pr")
    for record in read_records("anomaly/detectors.jsonl"):
        if record["method"] != "toa-network":
            scores.setdefault(record["method"], {})[record["dataset"]] = record["run_vus_pr"]
    rows = []
    for method, own in scores.items():
        values = [own[name] for name in DETECTION_SETS]
        rows.append([method, *(f"{value:.3f}" for value in (*values, statistics.fmean(values)))])
    return table(["VUS-PR", *DETECTION_SETS, "mean"], rows)


def dropout_table() -> str:
    """DUET on small sets: softmax with its own dropout, with TOA's, and TOA-Softmax."""
    errors = recipe_records("duet")
    equal = grouped(read_records("forecasting/duet-dropout.jsonl"), cell_of)
    rows, changes = [], []
    for cell in sorted(equal):
        groups = errors["softmax",][cell], equal[cell], errors["toa",][cell]
        found = [mean_of(records, "mse") for records in groups]
        changes.append([100 * (found[2] / other - 1) for other in found[:2]])
        rows.append([*map(str, cell), *(f"{error:.4f}" for error in found), *(f"{one:+.1f} %" for one in changes[-1])])
    means = (f"{statistics.fmean(column):+.1f} %" for column in zip(*changes, strict=True))
    rows.append(["mean", "", "", "", "", *means])
    head = ["dataset", "horizon", "softmax, dropout 0", "softmax, dropout 0.3", "TOA-Softmax, dropout 0.3"]
    return table([*head, "TOA's change", "at equal dropout"], rows)


def rate_table() -> str:
    """DUET's softmax on Exchange with the paper's learning rate and with that of DUET's authors, validation / test."""
    files = ("horizon-96", "horizons", "duet-rate")
    records = [record for file in files for record in read_records(f"forecasting/{file}.jsonl")]
    same = {"backbone": "duet", "dataset": "Exchange", "seed": 2024}
    own = [r for r in records if same.items() <= r["config"].items() and variant_of(r) == "softmax"]
    rows = []
    for horizon, runs in sorted(grouped(own, lambda r: r["config"]["horizon"]).items()):
        cells = [f"{r['metrics']['val_mse']:.4f} / {r['metrics']['mse']:.4f}" for r in runs]
        rows.append([str(horizon), *cells, f"{published_mse('softmax', 'Exchange', 'duet', horizon):.3f}"])
    return table(["horizon", "rate of `toa-paper`", "rate of DUET's authors", "published, test"], rows)


def unified_table() -> str:
    """DUET under `toa-paper` and with its authors' settings, the same seed, beside the published MSE of softmax."""
    files = ("horizon-96", "horizons", "duet-unified")
    records = [record for file in files for record in read_records(f"forecasting/{file}.jsonl")]
    own = [r for r in records if {"backbone": "duet", "seed": 2024}.items() <= r["config"].items()]
    names = [("toa-paper", "softmax"), *(("duet-unified-96", one) for one in ("softmax", "toa-softmax", "toa-gated"))]
    rows, changes = [], []
    for (dataset, horizon), runs in sorted(grouped(own, cell_of).items()):
        errors = {(r["config"]["protocol"], variant_of(r)): r["metrics"]["mse"] for r in runs}
        theirs, shown = published_mse("softmax", dataset, "duet", horizon), [errors.get(name) for name in names]
        changes.append([None if error is None else error - theirs for error in shown])
        rows.append([dataset, str(horizon), f"{theirs:.3f}", *("" if e is None else f"{e:.3f}" for e in shown)])
    for title, sign in (("above", 1), ("below", -1)):
        found = [[sign * one for one in column if one is not None] for column in zip(*changes, strict=True)]
        counts = (f"{sum(one > 0.005 for one in column)} of {len(column)}" for column in found)
        rows.append([f"more than 0.005 {title} published softmax", "", "", *counts])
    titles = [
        "softmax, `toa-paper`",
        *(f"{label}, `duet-unified-96`" for label in ("softmax", "TOA-Softmax", "TOA-Gated")),
    ]
    return table(["dataset", "horizon", "softmax, published", *titles], rows)


# the search


NOT_RUN = "The runs of this plan are not stored yet."


@functools.cache
def searched(plan: str) -> tuple[Plan, Trials]:
    """A plan by the name of its file, and its stored trials."""
    content = read_plan(ROOT / "benchmarks" / f"{plan}.toml")
    return content, read_trials(content)


def search_choice(name: str) -> str:
    """The chosen trial per backbone, size and family, with its mean over the datasets of that size."""
    plan, found = searched(name)
    rows = []
    for backbone in plan.backbones():
        for (family, size), result in choose(plan, found, backbone).items():
            rows.append([NAMES[backbone], size, family, f"`{result.trial}`", f"{result.means[size]:.4f}"])
    titles = ["backbone", "datasets", "family", "chosen trial", "validation"]
    return table(titles, rows, left=4) if rows else NOT_RUN


def search_trials(name: str, datasets: list[str] | None = None, backbones: Sequence[str] = ()) -> str:
    """Every trial that ran on all sets of the plan, or on the named ones; the best first."""
    plan, found = searched(name)
    plan = replace(plan, datasets=datasets or plan.datasets)
    parts = []
    for backbone in backbones or plan.backbones():
        for family in plan.families(backbone):
            rows = []
            for result in rank_trials(plan, found, backbone, family):
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
    plan, found = searched(name)
    parts = []
    for backbone, size in itertools.product(plan.backbones(), plan.sizes):
        cells = [(data, *cell) for data in sized_datasets(plan, found, size) for cell in plan.confirmed[1:]]
        rows = []
        for family in plan.families(backbone):
            for result in rank_trials(plan, found, backbone, family, size, confirmed=True):
                pairs = [[found[backbone, one, *cell] for one in (result.trial, "softmax")] for cell in cells]
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


RIVALS = ("AutoTheta", "AutoETS", "DLinear", "PatchTST", "iTransformer", "N-BEATS", "Chronos-2", "TimesFM-2.5")
PRETRAINED = ("Chronos", "TimesFM", "TiRex", "Toto", "Moirai", "Sundial", "TabPFN", "CITRAS", "FlowState", "TS-ICL")
# methods in the records that are neither a baseline nor the default
ALONE = ("toa-network", "toa-without-trees", "boosting")
# near the least MASE that methods trained on the series alone had published when they were set
AIMS = {"m4_hourly/H/short": 0.85, "m4_weekly/W/short": 2.10, "m4_monthly/M/short": 0.95, "m4_quarterly/Q/short": 1.16}
AIMS |= {"m4_yearly/A/short": 3.08, "hospital/M/short": 0.755, "ett1/H/short": 0.85}
AIMS |= {"M3-Monthly": 0.86, "M3-Quarterly": 1.13, "M3-Yearly": 2.62}
M3_BASELINES = ("seasonal naive", "drift", "theta", "damped trend", "optimised theta")


def leaderboard_records(*names: str) -> dict[str, dict[str, Record]]:
    """Records of benchmarks by configuration and method."""
    found: dict[str, dict[str, Record]] = {}
    for name in names:
        if (RESULTS / "leaderboards" / f"{name}.jsonl").exists():
            for record in read_records(f"leaderboards/{name}.jsonl"):
                found.setdefault(record["config"], {})[record["method"]] = record
    return found


def best_baseline(records: dict[str, Record], score: str) -> float:
    """The smallest score of a baseline."""
    own = ("toa", *ALONE)
    return float(min(record["metrics"][score] for method, record in records.items() if method not in own))


def own_cells(records: dict[str, Record], score: str) -> list[str]:
    """Our score, that of boosting alone, and that of the best baseline; empty if not run."""
    found = [records[method]["metrics"][score] if method in records else None for method in ("toa", "boosting")]
    return [number(value, missing="") for value in (*found, best_baseline(records, score))]


def leaderboard_table(score: str) -> str:
    """Ours beside the published figures, one row per configuration."""
    known = {(row["config"], row["model"]): float(row[score]) for row in read_csv("leaderboards/published.csv")}
    rows = []
    for config, records in leaderboard_records("gift-eval").items():
        others = [known.get((config, name)) for name in ("seasonal naive", *RIVALS)]
        rows.append([config, *own_cells(records, score), *(number(value, ".4g", "") for value in others)])
    return table(["configuration", "toa", "boosting", "baseline", "seasonal naive", *RIVALS], rows, left=1)


def fev_table() -> str:
    """Ours among the published figures of ETT_1H, the best first."""
    (ours,) = leaderboard_records("fev").values() or [{}]
    scores = ("mase", "sql", "wql", "wape")
    rows: list[list[str]] = []
    for row in read_csv("leaderboards/published-fev.csv"):
        name = f"{row['model']} (pretrained)" if row["model"].startswith(PRETRAINED) else row["model"]
        rows.append([name, *(f"{float(row[score]):.4f}" for score in scores)])
    own = {method: ours[method]["metrics"] for method in ("toa", "boosting") if method in ours}
    rows += [[f"**{name}, here**", *(f"{found[score]:.4f}" for score in scores)] for name, found in own.items()]
    rows.sort(key=lambda cells: cells[1])
    return table(["model", "MASE", "SQL", "WQL", "WAPE"], rows, left=1)


def m3_table() -> str:
    """Ours, boosting alone and the baselines on the M3 competition."""
    rows = []
    for config, records in leaderboard_records("m3").items():
        shown = own_cells(records, "mase")[:2]
        shown += [f"{records[name]['metrics']['mase']:.4f}" if name in records else "" for name in M3_BASELINES]
        rows.append([config, *shown, f"{records['toa']['metrics']['wql']:.4f}"])
    return table(["MASE", "toa", "boosting", *M3_BASELINES, "toa, WQL"], rows, left=1)


def earlier_table() -> str:
    """MASE on windows before the tested ones, with and without trees."""
    rows = []
    for config, records in sorted(leaderboard_records("earlier").items()):
        without, (own, *others) = records["toa-without-trees"]["metrics"]["mase"], own_cells(records, "mase")
        rows.append([config, own, f"{without:.4f}", *others])
    return table(["MASE", "toa", "toa without trees", "boosting", "best baseline"], rows, left=1)


def aims_table() -> str:
    """MASE of the forecaster beside the least that a method trained on the series alone had published."""
    found = leaderboard_records("gift-eval", "m3")
    rows = []
    for config, aim in AIMS.items():
        own = found[config]["toa"]["metrics"]["mase"]
        rows.append([config, f"{aim:g}", f"{own:.4f}", f"{100 * (own / aim - 1):+.1f}"])
    return table(["MASE", "aim", "toa", "%"], rows, left=1)


def scale_table() -> str:
    """Throughput and memory of forecasts of panels in parquet files."""
    rows = []
    for record in read_records("leaderboards/scale.jsonl"):
        count, seconds = record["series"], record["seconds"]
        cells = [f"{count:,}", f"{record['rows']:,}", f"{record['parquet_bytes'] / 2**20:,.0f}", f"{seconds:.0f}"]
        peak = f"{record['peak_bytes'] / 2**20:.0f}"
        rows.append([record["executor"], str(record["workers"] or 1), *cells, f"{count / seconds:,.0f}", peak])
    titles = ["executor", "processes", "series", "rows", "parquet, MiB", "s", "series / s", "MiB per process"]
    return table(titles, rows, left=1)


def leaderboard_weights() -> str:
    """What the forecaster chose, and its CPU time."""
    rows = []
    for config, records in leaderboard_records("gift-eval", "fev", "m3").items():
        if "toa" in records:
            record = records["toa"]
            mixed = ", ".join(f"{weight:.2f} {name}" for name, weight in record["weights"].items())
            rows.append([config, mixed, f"{record['cpu_s']:.0f}", f"{record['time_limit']:g}"])
    return table(["configuration", "weights", "CPU s", "limit, s"], rows, left=2)


def all_tables() -> dict[str, Callable[[], str]]:
    """Every table by name."""
    from aims_tables import aims, gain_parts
    from page_values import against_paper, sor_pairs
    from repeat_tables import by_commit, duet_gains, repeats

    found: dict[str, Callable[[], str]] = {name: partial(performance_table, name) for name in PERFORMANCE}
    found |= {"speed-summary": speed_summary, "forecast-summary": forecast_summary, "without-sor": sor_table}
    found |= {"duet-dropout": dropout_table, "duet-rate": rate_table, "duet-unified": unified_table}
    found |= {"repeats": repeats, "repeats-commits": by_commit, "repeats-duet": duet_gains}
    of_patchtst = {
        "search-patchtst": ["ETTh1", "Exchange"],
        "search-weather": ["Weather"],
        "search-large": ["ETTm1", "Weather"],
    }
    found |= {name: partial(search_trials, "search", sets, ["patchtst"]) for name, sets in of_patchtst.items()}
    found["search-pooled"] = partial(search_trials, "search-pooled", ["ETTh1", "Exchange"])
    found |= {"window-ranges": window_ranges, "demixing": demixing_table, "accuracy": accuracy_table}
    found |= {"demixing-toa": partial(demixing_table, tuned=True), "demixing-trials": demixing_trials}
    found |= {"classification-search": classification_search, "accuracy-toa": recipe_accuracies}
    found |= {"uea": uea_table, "uea-choices": uea_choices}
    found["signed"] = signed_table
    found |= {f"leaderboard-{score}": partial(leaderboard_table, score) for score in ("mase", "wql")}
    found |= {"leaderboard-weights": leaderboard_weights, "fev": fev_table, "m3": m3_table, "scale": scale_table}
    found |= {"earlier": earlier_table, "aims": aims_table}
    found |= {"detectors": detector_table, "detector-choices": detector_choices}
    for name in ("search", "search-classify", "search-two-axis", "search-classify-two-axis"):
        found |= {f"{name}-choice": partial(search_choice, name), f"{name}-trials": partial(search_trials, name)}
    found["search-trials"] = partial(search_trials, "search", backbones=["itransformer", "duet"])
    found |= {f"toa-{backbone}": partial(recipe_table, backbone) for backbone in ("itransformer", "duet", "patchtst")}
    found |= {"two-axis": two_axis_table, "two-axis-96": partial(two_axis_table, "lookback=96")}
    found["duet-search"] = searched_duet_table
    found |= {"toa-two-axis": partial(recipe_table, "two-axis"), "two-axis-ablations": two_axis_ablations}
    found |= {"wide-sets": sets_table, "wide-sizes": sizes_table, "efforts": efforts_table}
    found |= {"two-axis-accuracies": two_axis_accuracies, "two-axis-detection": two_axis_detection}
    for name in ("toa", "toa-unnormalised"):
        found[f"{name}-96"] = partial(setting_table, name, backbone="itransformer", horizon=96, datasets=RECIPE_SETS)
    found |= {name: partial(other_runs, name) for name in ("other-protocols", "subsets")}
    found |= {f"compared-{protocol}": partial(compared, protocol) for protocol in (*UEA, "toa")}
    for dataset in DETECTION_SETS:
        found[f"anomaly-{dataset}"] = partial(anomaly_table, dataset)
    for backbone in BACKBONES:
        for horizon in (96, 192, 336, 720):
            file = "horizon-96" if horizon == 96 else "horizons"
            options: dict[str, Any] = {"backbone": backbone, "horizon": horizon, "datasets": (*SETS, "ETTm2")}
            found[f"forecast-{backbone}-{horizon}"] = partial(setting_table, file, hidden=IN_PROTOCOL, **options)
    first_search = partial(setting_table, "search", hidden=("training.patience=10", "training.epochs=20"), norms=True)
    patchtst = {"backbone": "patchtst", "horizon": 96}
    itransformer = {"backbone": "itransformer", "horizon": 96}
    found["recipe-patchtst"] = partial(first_search, datasets=SETS[:3], **patchtst)
    found |= {"recipe-aims": aims, "recipe-parts": gain_parts}
    found |= {"reliability": reliability_table, "search-confirmed": partial(search_confirmed, "search")}
    found |= {"agreement": agreement_table, "findings": findings}
    found |= {"against-paper": against_paper, "sor-pairs": sor_pairs, "promises": promise_table}
    found["recipe-patchtst-ETTm1"] = partial(first_search, datasets=("ETTm1",), **patchtst)
    found["recipe-itransformer"] = partial(first_search, datasets=SETS, device="NVIDIA", **itransformer)
    found["recipe-itransformer-cpu"] = partial(first_search, datasets=SETS[:3], device="cpu", **itransformer)
    found["recipe-itransformer-720"] = partial(first_search, datasets=("ETTh1",), backbone="itransformer", horizon=720)
    return found


# promise, parts of the campaign that test it, how, and what others say of it: scikit-learn, NeuralForecast, safetensors
PROMISES = (
    (
        *("No damaged file is accepted, none is executed, none ends in a traceback", ("fuzz",)),
        *("damaged and forged files", "pickle may execute code", "safetensors and JSON", "no code; no checksum"),
    ),
    ("Killed work loses nothing", ("kill",), "signals at each step of writing", "-", "-", "-"),
    ("A failing disk is an error in one line", ("disk",), "faults at each step of writing", "-", "-", "-"),
    ("Any name works or is refused", ("names",), "names of columns and files", "-", "-", "-"),
    ("No answer is NaN or infinite", ("numbers",), "hostile numbers", "inputs are checked", "-", "-"),
    (
        *("Threads and processes change no answer", ("load threads on one estimator", "load processes on one folder")),
        *("many at a time", "-", "-", "-"),
    ),
    ("A stream takes constant memory", ("load rows of a stream",), "rows one after another", "-", "-", "-"),
    ("A sweep takes as long per run, however long", ("load runs of a sweep",), "four sizes", "-", "-", "-"),
    ("Memory is bounded", ("load memory",), "long and wide tables", "-", "-", "header of 100 MB"),
    ("Each mend has a test that fails without it", ("mends",), "mends taken out", "-", "-", "-"),
)


@functools.cache
def campaign() -> dict[str, Any]:
    """The parts of the stored campaign."""
    found: dict[str, Any] = json.loads((RESULTS / "reliability" / "campaign.json").read_text(encoding="utf-8"))["parts"]
    return found


def promise_table() -> str:
    """Promises, how each is tested, how often that was tried, and what others promise."""
    rows = []
    for promise, prefixes, how, *others in PROMISES:
        own = [part for name, part in campaign().items() if name.startswith(prefixes)]
        bad = sum(len(part["failures"]) for part in own)
        rows.append((promise, how, str(sum(part["tried"] for part in own)), str(bad), *others))
    heads = ("promise", "tested by", "tried", "bad", "scikit-learn", "NeuralForecast", "safetensors")
    return table(heads, rows)


def reliability_table() -> str:
    """Damaged files and kills of the stored campaign, with the number that broke a promise."""
    rows = []
    for name, part in sorted(campaign().items()):
        counts = ", ".join(f"{key}: {value}" for key, value in sorted(part["counts"].items()) if key != "kills")
        rows.append((name, str(part["tried"]), str(len(part["failures"])), counts, str(part["seed"]), part["commit"]))
    return table(("part", "tried", "bad", "counts", "seed", "commit"), rows)


def agreement_table() -> str:
    """Differences between our backbones and their authors' code, and the command."""
    records = read_records("agreement/agreement.jsonl")
    rows = []
    for r in records:
        differences = (f"{r[part]:.0e}" for part in ("output", "gradient"))
        rows.append([r["backbone"], f"{r['peer']} at {r['peer_commit'][:12]}", r["dtype"], *differences])
    titles = ["backbone", "authors' code", "dtype", "output", "gradient of the weights"]
    return f"{table(titles, rows, left=3)}\n\nCommit {records[0]['commit']}: `{records[0]['command']}`"


def efforts_table() -> str:
    """What each effort limits, from the code."""
    levels = [EFFORTS[name] for name in ("quick", "thorough")]
    rows = []
    for field in fields(Effort):
        meaning = str(field.metadata["limits"])
        rows.append([meaning, *(f"{getattr(level, field.name):,}" for level in levels)])
    return table(("limit", "`quick` (default)", "`thorough`"), rows)


def findings() -> str:
    """What the report's summary says first."""
    text = (RESULTS / "report" / "summary.md").read_text(encoding="utf-8")
    return text.split("## What was found")[1].split("##")[0].strip()


def rendered(page: str) -> str:
    """The page with every table and every value made again.

    Raises:
        ValueError: If the page names an unknown one.
    """
    # these build on this module
    from page_values import all_values
    from use_table import use_table

    kinds = {"generated": (all_tables() | {"when-to-use": use_table}, "\n\n"), "value": (all_values(), "")}

    def replace(match: re.Match[str]) -> str:
        kind, name = match.groups()
        known, space = kinds[kind]
        if name not in known:
            raise ValueError(f"{'table' if space else 'value'} {name!r} on the page must be one of {', '.join(known)}.")
        return f"<!-- {kind}: {name} -->{space}{known[name]()}{space}<!-- end -->"

    return re.sub(r"<!-- (generated|value): ([\w.-]+) -->.*?<!-- end -->", replace, page, flags=re.DOTALL)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page would change")
    args = parser.parse_args(words)
    changed = 0
    for name in PAGES:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = rendered(before)
        changed += before != after
        if not args.check:
            path.write_text(after, encoding="utf-8")
    return int(args.check and changed > 0)


if __name__ == "__main__":
    sys.exit(main())
