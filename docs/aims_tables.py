"""Tables of docs/recipe.md on what the protocol `toa` reaches: the aims, and where the gain comes from."""

import statistics
from collections.abc import Iterator
from typing import Any

import classification_tables
import demixing_tables
from performance_tables import table
from repeat_tables import DUET_RUNS, duet_gain
from stored_results import (
    BACKBONES,
    RECIPE_SETS,
    cell_of,
    grouped,
    mean_errors,
    mean_of,
    published_mse,
    recipe_records,
    stored_records,
)

# data sets of the UEA archive of the aim that names ROCKET
ROCKET_SETS = (
    *("ArticularyWordRecognition", "AtrialFibrillation", "BasicMotions", "ERing", "FingerMovements"),
    *("HandMovementDirection", "Handwriting", "Libras", "NATOPS", "PenDigits", "StandWalkJump"),
)
TOA = ("toa-softmax", "toa-relu", "toa-gated")
Errors = dict[Any, float]


def changes(ours: Errors, plain: Errors) -> Errors:
    """Change in percent by cell."""
    return {cell: 100 * (error / plain[cell] - 1) for cell, error in ours.items()}


def plain_softmax(backbone: str, metric: str = "mse") -> Errors:
    """Softmax under `toa-paper`."""
    records = [record for name in ("horizon-96", "horizons") for record in stored_records(f"forecasting/{name}.jsonl")]
    names = backbone, "softmax"
    own = [r for r in records if (r["config"]["backbone"], r["config"]["attention"]["name"]) == names]
    return mean_errors(grouped(own, cell_of), metric)


def gain_parts() -> str:
    """By backbone and set, mean over horizons: what tuning gives softmax, what TOA gives, and what M = 0 costs."""
    rows = []
    for backbone in ("itransformer", "duet", "patchtst"):
        found = recipe_records(backbone)
        parts = []
        for metric in ("mse", "val_mse"):
            plain = plain_softmax(backbone, metric)
            tuned, ours = (mean_errors(found[family,], metric) for family in ("softmax", "toa"))
            parts += [changes(tuned, plain), changes(ours, plain), changes(ours, tuned)]
        rises = {
            cell: 100 * statistics.fmean(record["operators"]["contributions"]["operators"] for record in records)
            for cell, records in found["toa",].items()
        }
        for dataset in RECIPE_SETS:
            means = [statistics.fmean(v for cell, v in part.items() if cell[0] == dataset) for part in (*parts, rises)]
            rows.append([BACKBONES[backbone], dataset, *(f"{mean:+.1f} %" for mean in means)])
    names = ("softmax, tuned", "TOA", "TOA against tuned softmax")
    titles = [*(f"{name}, test" for name in names), *(f"{name}, validation" for name in names), "M = 0, validation"]
    return table(["backbone", "dataset", *titles], rows, left=2)


def aims() -> str:
    """The aims that were set before the search, and what was reached."""
    return table(
        ["aim", "reached", ""], [[aim, reached, "yes" if met else "no"] for aim, reached, met in _aims()], left=3
    )


def _aims() -> Iterator[tuple[str, str, bool]]:
    pairs = []
    near = []
    for backbone, gain, share in (("itransformer", 4, 80), ("duet", 4, 80), ("patchtst", 1, 65)):
        found = recipe_records(backbone)
        name = BACKBONES[backbone]
        ours = mean_errors(found["toa",])
        left = mean_errors(found["toa", "attention.sor=false"])
        found_changes = changes(ours, mean_errors(found["softmax",])).values()
        mean = statistics.fmean(found_changes)
        better = sum(change < 0 for change in found_changes)
        yield f"{name}: test error {gain} % below the tuned softmax in the mean", f"{mean:+.1f} %", mean <= -gain
        yield f"{name}: better in {share} % of cells", f"{better} of {len(ours)}", 100 * better >= share * len(ours)
        if backbone != "patchtst":
            yield f"{name}: no cell more than 1 % worse", f"{max(found_changes):+.1f} %", max(found_changes) <= 1
        if backbone == "duet":
            # its earlier runs count too: the repeated ones alone have another result
            sor = duet_gain("without SOR", DUET_RUNS["both"])
            pairs += [True] * sor.better + [False] * (sor.cells - sor.better)
            continue
        # both over the seeds that ran without SOR
        pairs += [
            statistics.fmean(r["metrics"]["mse"] for r in found["toa",][cell] if r["seed"] in seeds) < error
            for cell, error in left.items()
            for seeds in [{record["seed"] for record in found["toa", "attention.sor=false"][cell]}]
        ]
        published = {cell: min(published_mse(one, cell[0], backbone, cell[1]) for one in TOA) for cell in ours}
        near += [error <= published[cell] + 0.005 for cell, error in ours.items()]
    yield (
        "better with SOR than without in 75 % of pairs",
        f"{sum(pairs)} of {len(pairs)}, earlier and repeated runs of DUET together",
        sum(pairs) >= 0.75 * len(pairs),
    )
    words = "at most 0.005 above the best published variant in 43 of 48 cells of PatchTST and iTransformer"
    yield words, f"{sum(near)} of {len(near)}", sum(near) >= 43
    yield from _classification_aims()
    signals = (
        demixing_tables.tuned_demixing_errors()["toa-gated-no-sor"],
        demixing_tables.demixing_errors()["toa-gated"],
    )
    median, paper = (statistics.median(one.values()) for one in signals)
    words = f"{median:.5f} under `toa`, without SOR; {paper:.5f} with the paper's settings"
    yield "demixing: median of TOA-Gated at most 0.0020, six seeds", words, median <= 0.0020


def _classification_aims() -> Iterator[tuple[str, str, bool]]:
    runs = grouped(
        stored_records("classification/toa.jsonl"),
        lambda r: (r["config"]["attention"]["name"], r["config"]["dataset"]),
    )
    accuracy = {cell: 100 * mean_of(records, "accuracy") for cell, records in runs.items()}
    sets = sorted({dataset for _, dataset in accuracy})
    gain = statistics.fmean(accuracy["toa-softmax", one] - accuracy["softmax", one] for one in sets)
    yield f"UEA, {len(sets)} sets: TOA 2 points above the tuned softmax", f"{gain:+.1f} points", gain >= 2
    found = classification_tables.uea_accuracies()
    best, rocket = (100 * statistics.fmean(found[one][name] for one in ROCKET_SETS) for name in ("toa", "ROCKET"))
    network = statistics.fmean(accuracy["toa-softmax", one] for one in ROCKET_SETS)
    words = f"UEA, {len(ROCKET_SETS)} sets on which ROCKET has {rocket:.1f} %: best configuration 74 %"
    yield words, f"`toa.Classifier()` {best:.1f} %, TOA-Softmax alone {network:.1f} %", best >= 74
