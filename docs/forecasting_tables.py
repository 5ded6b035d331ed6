"""Tables of forecasting: the first runs, protocol `toa`, and DUET's settings."""

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from performance_tables import table
from stored_results import (
    BACKBONES,
    NAMES,
    RECIPE_SETS,
    RESULTS,
    SETS,
    TITLES,
    Cells,
    Record,
    cell_of,
    changes_of,
    dataset_of,
    gains_by_set,
    grouped,
    mean_errors,
    mean_of,
    pivot,
    published,
    published_mse,
    recipe_records,
    stored_records,
    variant_of,
)
from toa.report.tables import signed

# settings that the first runs set on the command line and the protocol contains today
IN_PROTOCOL = ("training.patience=10", "training.epochs=20", "attention.score_norm=rms", "attention.gate_norm=rms")
# a validation error above this is not a forecast any more
DIVERGED = 10.0
HORIZONS = (96, 192, 336, 720)
Errors = dict[Any, float]


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
    records = [
        record
        for record in stored_records(f"forecasting/{file}.jsonl")
        if (record["config"]["backbone"], record["config"]["horizon"]) == (backbone, horizon)
        and dataset_of(record) in datasets
        and record["device"].startswith(device)
    ]

    def cell(runs: list[Record]) -> str:
        errors = [mean_of(runs, metric) for metric in ("val_mse", "mse")]
        return " / ".join(f"{error:.4f}" if error < DIVERGED else f"**{error:.0e}**" for error in errors)

    def line_of(record: Record) -> tuple[str, str]:
        attention = record["config"]["attention"]
        shown = [change for change in changes_of(record) if change not in hidden]
        if norms:
            used = {"toa-relu": ("score_norm",), "toa-gated": ("score_norm", "gate_norm")}.get(attention["name"], ())
            shown = [change for change in shown if not change.startswith(tuple(f"attention.{key}" for key in used))]
            shown = [*(f"{key}={attention[key]}" for key in used), *shown]
        return attention["name"], ", ".join(shown) or "protocol"

    columns = [name for name in datasets if name in map(dataset_of, records)]
    rows = pivot(records, row=line_of, column=dataset_of, columns=columns, cell=cell)
    return table(["attention", "setting", *columns], rows, left=2 + len(columns))


def first_search(backbone: str, horizon: int, datasets: Sequence[str], device: str = "") -> str:
    """`setting_table` of the search behind `toa-paper`."""
    hidden = ("training.patience=10", "training.epochs=20")
    return setting_table(
        "search", backbone=backbone, horizon=horizon, datasets=datasets, device=device, hidden=hidden, norms=True
    )


def paper_table(backbone: str, horizon: int) -> str:
    """`setting_table` of the protocol `toa-paper`."""
    file = "horizon-96" if horizon == 96 else "horizons"
    return setting_table(file, backbone=backbone, horizon=horizon, datasets=(*SETS, "ETTm2"), hidden=IN_PROTOCOL)


def searched_variants(file: str) -> str:
    """`setting_table` of iTransformer at horizon 96 under the protocol `toa`."""
    return setting_table(file, backbone="itransformer", horizon=96, datasets=RECIPE_SETS)


def forecast_errors(*files: str) -> dict[str, dict[tuple[str, str, int], tuple[float, float]]]:
    """Validation and test MSE, means over seeds, by attention, then by dataset, backbone and horizon."""
    records = [record for file in files for record in stored_records(f"forecasting/{file}.jsonl")]
    errors: dict[str, dict[tuple[str, str, int], tuple[float, float]]] = {}
    for attention, runs in grouped(records, lambda record: record["config"]["attention"]["name"]).items():
        cells = grouped(runs, lambda record: tuple(record["config"][k] for k in ("dataset", "backbone", "horizon")))
        errors[attention] = {key: (mean_of(cell, "val_mse"), mean_of(cell, "mse")) for key, cell in cells.items()}
    return errors


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

    def theirs(name: str) -> list[float]:
        return [statistics.fmean(published_mse(name, d, "itransformer", h) for h in horizons) for d in RECIPE_SETS]

    rows = {
        "softmax, published": theirs("softmax"),
        "TOA-Softmax, published": theirs("toa-softmax"),
        "softmax, tuned here": ours("softmax"),
        "TOA-Softmax, tuned here": ours("toa"),
    }
    lines = [[title, *(f"{value:.3f}" for value in values)] for title, values in rows.items()]
    gains = recipe_gains("itransformer").values()
    lines.append(["gain, of geometric means", *(f"{gain:+.1f} %" for gain in gains)])
    return table(["iTransformer, mean test MSE of four horizons", *RECIPE_SETS], lines, left=1)


def sor_table() -> str:
    """Test MSE with SOR / without."""
    kept = forecast_errors("horizon-96", "horizons")
    left = forecast_errors("no-sor")
    horizons = (96, 192, 336, 720)
    rows = []
    for dataset, name in itertools.product(RECIPE_SETS, left):
        keys = [(dataset, "patchtst", horizon) for horizon in horizons]
        cells = [f"{kept[name][key][1]:.4f} / {left[name][key][1]:.4f}" if key in left[name] else "-" for key in keys]
        rows += [[dataset, name, *cells]] if set(cells) != {"-"} else []
    return table(["dataset", "attention", *map(str, horizons)], rows, left=6)


def other_runs(file: str) -> str:
    """One line per model, protocol and dataset."""
    records = stored_records(f"forecasting/{file}.jsonl")
    keys = grouped(records, lambda r: (r["config"]["dataset"], r["name"], r["config"]["protocol"]))
    rows = [
        [name, protocol, dataset, f"{mean_of(runs, 'val_mse'):.4f}", f"{mean_of(runs, 'mse'):.4f}"]
        for (dataset, name, protocol), runs in sorted(keys.items())
    ]
    return table(["model", "protocol", "dataset", "validation MSE", "test MSE"], rows, left=3)


def window_ranges() -> str:
    """Largest absolute value of normalised windows in each part of a dataset."""
    stored = json.loads((RESULTS / "forecasting" / "window-ranges.json").read_text(encoding="utf-8"))
    rows = [[dataset, *(f"{value:.1f}" for value in values)] for dataset, values in stored["largest"].items()]
    return table([f"largest value, look-back {stored['lookback']}", "training", "validation", "test"], rows)


def recipe_table(backbone: str) -> str:
    """Protocol `toa`: `gain_table` of softmax and TOA, and of TOA without SOR."""
    errors = recipe_records(backbone)
    lines = (("softmax",), ("toa",), ("toa", "attention.sor=false"))
    return gain_table(*(errors.get(line, {}) for line in lines))


def searched_duet() -> dict[str, Cells]:
    """Runs of DUET with its authors' look-backs and sizes by attention, then by dataset and horizon."""
    runs = grouped(
        stored_records("forecasting/duet-search.jsonl"), lambda record: record["config"]["attention"]["name"]
    )
    return {attention: grouped(records, cell_of) for attention, records in runs.items()}


def searched_duet_table() -> str:
    """`gain_table` of DUET with its authors' look-backs and sizes."""
    cells_of = searched_duet()
    return gain_table(*(cells_of[attention] for attention in TITLES))


def gain_table(softmax: Cells, toa: Cells, no_sor: Cells | None = None) -> str:
    """Test MSE of softmax and TOA, TOA's change, and its change when SOR is switched off, if that was run."""

    def change(ours: list[Record], plain: list[Record], metric: str) -> float:
        return 100 * (mean_of(ours, metric) / mean_of(plain, metric) - 1)

    rows = []
    gains = []
    for cell in sorted(toa):
        plain, ours = softmax[cell], toa[cell]
        gains.append((change(ours, plain, "mse"), change(ours, plain, "val_mse")))
        errors_of_cell = [f"{mean_of(runs, 'mse'):.4f}" for runs in (plain, ours)]
        rows.append([cell[0], str(cell[1]), *errors_of_cell, *(f"{gain:+.1f} %" for gain in gains[-1])])
        if no_sor is not None:
            left_out = no_sor.get(cell, [])
            same = [record for record in ours if record["seed"] in {other["seed"] for other in left_out}]
            rows[-1].append(f"{change(left_out, same, 'mse'):+.1f} %" if left_out else "")
    means = [f"{statistics.fmean(column):+.1f} %" for column in zip(*gains, strict=True)]
    names = ["dataset", "horizon", "softmax", "TOA", "change", "in validation", "without SOR"]
    rows.append(["mean", "", "", "", *means, *[""] * (no_sor is not None)])
    return table(names[: len(rows[0])], rows)


def duet_operators() -> str:
    """Under DUET and `toa-paper`, by set: what each variant gains, and the validation error with M = 0."""
    from toa.report.figures import system_title
    from toa_paper.report.cells import paper_entries
    from toa_paper.report.evidence import read_evidence
    from toa_paper.report.regimes import VARIANTS, operator_shares

    files = [RESULTS / "forecasting" / f"{name}.jsonl" for name in ("horizon-96", "horizons")]
    rows = []
    for share in operator_shares(paper_entries(read_evidence(files), tables=["forecast-full"])):
        cells = [f"{signed(share.gains[name].gain)} / {signed(share.rise(name) or 0.0)} %" for name in VARIANTS]
        rows.append([share.dataset, *cells, "no" if share.little else "yes"])
    titles = [f"{system_title(name)}: gain / M = 0" for name in VARIANTS]
    return table(["dataset", *titles, "do operators contribute to TOA-Gated?"], rows, left=1)


def dropout_table() -> str:
    """DUET on small sets: softmax with its own dropout, with TOA's, and TOA-Softmax."""
    errors = recipe_records("duet")
    equal = grouped(stored_records("forecasting/duet-dropout.jsonl"), cell_of)
    rows = []
    changes = []
    for cell in sorted(equal):
        groups = errors["softmax",][cell], equal[cell], errors["toa",][cell]
        errors_of_cell = [mean_of(records, "mse") for records in groups]
        changes.append([100 * (errors_of_cell[2] / other - 1) for other in errors_of_cell[:2]])
        rows.append(
            [
                *map(str, cell),
                *(f"{error:.4f}" for error in errors_of_cell),
                *(f"{change:+.1f} %" for change in changes[-1]),
            ]
        )
    means = (f"{statistics.fmean(column):+.1f} %" for column in zip(*changes, strict=True))
    rows.append(["mean", "", "", "", "", *means])
    head = ["dataset", "horizon", "softmax, dropout 0", "softmax, dropout 0.3", "TOA-Softmax, dropout 0.3"]
    return table([*head, "TOA's change", "at equal dropout"], rows)


def rate_table() -> str:
    """DUET's softmax on Exchange with the paper's learning rate and with that of DUET's authors, validation / test."""
    files = ("horizon-96", "horizons", "duet-rate")
    records = [record for file in files for record in stored_records(f"forecasting/{file}.jsonl")]
    same = {"backbone": "duet", "dataset": "Exchange", "seed": 2024}
    runs = [run for run in records if same.items() <= run["config"].items() and variant_of(run) == "softmax"]
    rows = []
    for horizon, pair in sorted(grouped(runs, lambda run: run["config"]["horizon"]).items()):
        cells = [f"{run['metrics']['val_mse']:.4f} / {run['metrics']['mse']:.4f}" for run in pair]
        rows.append([str(horizon), *cells, f"{published_mse('softmax', 'Exchange', 'duet', horizon):.3f}"])
    return table(["horizon", "rate of `toa-paper`", "rate of DUET's authors", "published, test"], rows)


def unified_table() -> str:
    """DUET under `toa-paper` and with its authors' settings, the same seed, beside the published MSE of softmax."""
    files = ("horizon-96", "horizons", "duet-unified")
    records = [record for file in files for record in stored_records(f"forecasting/{file}.jsonl")]
    runs_of_seed = [r for r in records if {"backbone": "duet", "seed": 2024}.items() <= r["config"].items()]
    variants = ("softmax", "toa-softmax", "toa-gated")
    names = [("toa-paper", "softmax"), *(("duet-unified-96", variant) for variant in variants)]
    rows = []
    changes = []
    for (dataset, horizon), runs in sorted(grouped(runs_of_seed, cell_of).items()):
        errors = {(r["config"]["protocol"], variant_of(r)): r["metrics"]["mse"] for r in runs}
        theirs = published_mse("softmax", dataset, "duet", horizon)
        shown = [errors.get(name) for name in names]
        changes.append([None if error is None else error - theirs for error in shown])
        rows.append([dataset, str(horizon), f"{theirs:.3f}", *("" if e is None else f"{e:.3f}" for e in shown)])
    for title, sign in (("above", 1), ("below", -1)):
        columns = [[sign * value for value in column if value is not None] for column in zip(*changes, strict=True)]
        counts = (f"{sum(value > 0.005 for value in column)} of {len(column)}" for column in columns)
        rows.append([f"more than 0.005 {title} published softmax", "", "", *counts])
    titles = [
        "softmax, `toa-paper`",
        *(f"{label}, `duet-unified-96`" for label in ("softmax", "TOA-Softmax", "TOA-Gated")),
    ]
    return table(["dataset", "horizon", "softmax, published", *titles], rows)


def percent_changes(ours: Errors, plain: Errors) -> Errors:
    """Change in percent by cell."""
    return {cell: 100 * (error / plain[cell] - 1) for cell, error in ours.items()}


def plain_softmax(backbone: str, metric: str = "mse") -> Errors:
    """Softmax under `toa-paper`."""
    records = [record for name in ("horizon-96", "horizons") for record in stored_records(f"forecasting/{name}.jsonl")]
    names = backbone, "softmax"
    runs = [r for r in records if (r["config"]["backbone"], r["config"]["attention"]["name"]) == names]
    return mean_errors(grouped(runs, cell_of), metric)


def gain_parts() -> str:
    """By backbone and set, mean over horizons: what tuning gives softmax, what TOA gives, and what M = 0 costs."""
    rows = []
    for backbone in ("itransformer", "duet", "patchtst"):
        records_of = recipe_records(backbone)
        parts = []
        for metric in ("mse", "val_mse"):
            plain = plain_softmax(backbone, metric)
            tuned, ours = (mean_errors(records_of[family,], metric) for family in ("softmax", "toa"))
            parts += [percent_changes(tuned, plain), percent_changes(ours, plain), percent_changes(ours, tuned)]
        rises = {
            cell: 100 * statistics.fmean(record["operators"]["contributions"]["operators"] for record in records)
            for cell, records in records_of["toa",].items()
        }
        for dataset in RECIPE_SETS:
            means = [statistics.fmean(v for cell, v in part.items() if cell[0] == dataset) for part in (*parts, rises)]
            rows.append([BACKBONES[backbone], dataset, *(f"{mean:+.1f} %" for mean in means)])
    names = ("softmax, tuned", "TOA", "TOA against tuned softmax")
    titles = [*(f"{name}, test" for name in names), *(f"{name}, validation" for name in names), "M = 0, validation"]
    return table(["backbone", "dataset", *titles], rows, left=2)


def against_paper() -> str:
    """Our forecasts beside the published ones: where they are more than 0.005 above, and what TOA gains."""
    ours = forecast_errors("horizon-96", "horizons")
    softmax = {
        cell: errors for cell, errors in ours["softmax"].items() if all(cell in cells for cells in ours.values())
    }
    del ours["softmax"]
    # the variant with the lowest validation error in a cell
    variants = {cell: min(ours, key=lambda name: ours[name][cell]) for cell in softmax}
    chosen = {cell: ours[name][cell][1] for cell, name in variants.items()}
    published = {cell: published_mse(name, *cell) for cell, name in variants.items()}
    plain = {cell: errors[1] for cell, errors in softmax.items()}
    pairs = {
        "softmax is at most 0.005 above the published number": (
            plain,
            {cell: published_mse("softmax", *cell) for cell in softmax},
        ),
        "the TOA variant with the lowest validation error is at most 0.005 above its published number": (
            chosen,
            published,
        ),
    }
    lines = []
    for words, (errors, theirs) in pairs.items():
        late = [cell for cell in errors if errors[cell] > theirs[cell] + 0.005]
        others = [
            f"{BACKBONES[backbone]} on {dataset} at {horizon} ({errors[cell]:.3f} against {theirs[cell]:.3f})"
            for cell in late
            for dataset, backbone, horizon in [cell]
        ]
        rest = f"; the others: {', '.join(others)}" if others else ""
        lines.append(f"- {words} in {len(errors) - len(late)} of {len(errors)} cells{rest};")
    gains = [plain[cell] - chosen[cell] for cell in plain]
    ahead = f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
    lines.append(f"- that variant is ahead of softmax in {ahead} cells, by {statistics.mean(gains):.4f} on average.")
    return "\n".join(lines)


def sor_pairs() -> str:
    """What SOR changes in pairs of runs of the paper's ablation, and in the paper."""

    def key(record: Record) -> tuple[Any, ...]:
        config = record["config"]
        return config["dataset"], config["horizon"], config["attention"]["name"], record["seed"]

    runs = stored_records("forecasting/horizon-96.jsonl") + stored_records("forecasting/horizons.jsonl")
    kept = {key(run): run["metrics"]["mse"] for run in runs if run["config"]["backbone"] == "patchtst"}
    left = {key(run): run["metrics"]["mse"] for run in stored_records("forecasting/no-sor.jsonl")}
    costs = [error - kept[pair] for pair, error in left.items()]
    paper = published("sor-ablation-full")
    theirs = [
        paper[dataset, horizon, backbone, f"{variant}-nosor", "mse"] - value
        for (dataset, horizon, backbone, variant, metric), value in paper.items()
        if metric == "mse" and not variant.endswith("-nosor") and dataset in {pair[0] for pair in left}
    ]
    return (
        f"Of {len(costs)} pairs of runs, {sum(cost > 0 for cost in costs)} are better with SOR; without it the error "
        f"is {statistics.mean(costs):+.4f} in the mean and {max(costs):+.3f} at most. The paper has "
        f"{statistics.mean(theirs):+.3f} in the mean and {max(theirs):+.3f} at most on the same sets."
    )


TABLES: Mapping[str, Callable[[], str]] = {
    "forecast-summary": forecast_summary,
    "window-ranges": window_ranges,
    "recipe-patchtst": partial(first_search, "patchtst", 96, SETS[:3]),
    "recipe-patchtst-ETTm1": partial(first_search, "patchtst", 96, ("ETTm1",)),
    "recipe-itransformer": partial(first_search, "itransformer", 96, SETS, device="NVIDIA"),
    "recipe-itransformer-cpu": partial(first_search, "itransformer", 96, SETS[:3], device="cpu"),
    "recipe-itransformer-720": partial(first_search, "itransformer", 720, ("ETTh1",)),
    "recipe-parts": gain_parts,
    **{f"toa-{backbone}": partial(recipe_table, backbone) for backbone in NAMES},
    "toa-96": partial(searched_variants, "toa"),
    "toa-unnormalised-96": partial(searched_variants, "toa-unnormalised"),
    **{
        f"forecast-{backbone}-{horizon}": partial(paper_table, backbone, horizon)
        for backbone in BACKBONES
        for horizon in HORIZONS
    },
    "against-paper": against_paper,
    "without-sor": sor_table,
    "sor-pairs": sor_pairs,
    "duet-operators": duet_operators,
    "duet-dropout": dropout_table,
    "duet-rate": rate_table,
    "duet-unified": unified_table,
    "duet-search": searched_duet_table,
    "other-protocols": partial(other_runs, "other-protocols"),
    "subsets": partial(other_runs, "subsets"),
}
