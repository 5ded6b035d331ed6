"""The headline numbers of the README, from stored records alone: no GPU and no data set.

    headlines(Path("results"))      # one per kind of data: what to take, and what was measured

The README's table "when to use it" is made of these texts, and `toa bench headline` prints them.
"""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean

from toa._checks import ArgumentError
from toa.report.decision import choose_variant, decide
from toa.report.gains import mean_over_horizons, percent_gain
from toa.report.tables import signed
from toa_bench.leaderboards import read_lines
from toa_bench.wide import PLAN, read_results, read_wide_plan
from toa_bench.wide_results import VARIANTS, final_errors
from toa_paper.report.cells import RECIPE, RecipeCell, recipe_cells
from toa_paper.report.evidence import read_evidence

NAMES = {"toa-softmax": "TOA-Softmax", "toa-relu": "TOA-ReLU", "toa-gated": "TOA-Gated"}
# files below the folder of results
MANY_CHANNELS = ("search/wide-trials.jsonl", "many_channels/runs.jsonl", "many_channels/sets.json")
FORECASTING = ("forecasting/toa.jsonl", "forecasting/horizon-96.jsonl", "forecasting/horizons.jsonl")
DEMIXING = "demixing/toa.jsonl"
GIFT_EVAL = "leaderboards/gift-eval.jsonl"
PUBLISHED = "leaderboards/published.csv"
# published models that stand beside the forecaster: one that is trained per data set, and one that is pretrained
RIVALS = ("PatchTST", "Chronos-2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """What was measured for a kind of data.

    Attributes:
        data: What one has.
        take: What to take.
        measured: The numbers.
        files: The records behind them.
    """

    data: str
    take: str
    measured: str
    files: tuple[str, ...]


def headlines(results: Path) -> list[Headline]:
    """All headlines, from a folder of stored results.

    Raises:
        ValueError: If a record was edited, or a file is missing.
    """
    for name in (*MANY_CHANNELS, *FORECASTING, DEMIXING, GIFT_EVAL, PUBLISHED):
        if not (results / name).is_file():
            rule = f"be the folder of stored results, with {name}"
            raise ArgumentError("--results", rule, results, "run it in a clone of the repository")
    cells = recipe_cells(read_evidence([results / name for name in FORECASTING]))
    return [many_channels(results), *few_channels_and_patches(cells), demixing(results), estimators(results)]


def many_channels(results: Path) -> Headline:
    """The suite toa-wide: the variant that validation prefers, against softmax."""
    plan = read_wide_plan(PLAN)
    *records, sets = (results / name for name in MANY_CHANNELS)
    runs = read_results(records)
    facts = json.loads(sets.read_text(encoding="utf-8"))
    validation, _ = final_errors(plan, runs, facts, "val_mse", VARIANTS)
    variant = choose_variant(validation, VARIANTS)
    test, _ = final_errors(plan, runs, facts, "mse", (variant, "softmax"))
    against = decide(test, variant, "softmax")
    count = len(against.differences)
    measured = f"{-against.percent:.1f} % less error than softmax, better on {against.wins} of {count} sets"
    if count < len(plan.units):
        measured += f"; {len(plan.units) - count} more sets are planned"
    return Headline(
        data="many channels, each a token (iTransformer)", take=NAMES[variant], measured=measured, files=MANY_CHANNELS
    )


def few_channels_and_patches(cells: Iterable[RecipeCell]) -> list[Headline]:
    """The protocol `toa` of forecasting: TOA against the equally tuned softmax."""
    by_backbone = {name: gains_by_set(cells, name) for name in ("itransformer", "patchtst")}
    few = by_backbone["itransformer"]
    patches = by_backbone["patchtst"]
    return [
        Headline(
            data="few channels, each a token (iTransformer)",
            take="softmax, or try both",
            measured=f"{mean_gain(few)}: not shown by a test",
            files=FORECASTING,
        ),
        Headline(
            data="patches of a series as tokens (PatchTST)",
            take="softmax",
            measured=f"{mean_gain(patches)}, three with one seed",
            files=FORECASTING,
        ),
    ]


def mean_gain(gains: Mapping[str, float]) -> str:
    """The mean gain over data sets, in words."""
    return f"{signed(fmean(gains.values()))} % gain over softmax on {len(gains)} sets"


def gains_by_set(cells: Iterable[RecipeCell], backbone: str) -> Mapping[str, float]:
    """Gain of TOA over softmax by data set, in percent of the geometric mean over horizons."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        ours = cell.mean(RECIPE, cell.chosen(RECIPE))
        plain = cell.mean(RECIPE, "softmax")
        if cell.task == "forecast" and cell.backbone == backbone and ours is not None and plain is not None:
            pairs.setdefault(cell.dataset, []).append((ours, plain))
    gains = {}
    for dataset, errors in pairs.items():
        ours, plain = mean_over_horizons(errors, "mse")
        gains[dataset] = float(percent_gain(ours, plain, "mse"))
    return gains


def demixing(results: Path) -> Headline:
    """The synthetic task with tuned settings: TOA-Gated without SOR against softmax, mean over seeds."""
    errors: dict[str, dict[int, float]] = {}
    for record in read_results([results / DEMIXING]).values():
        errors.setdefault(record["name"], {})[record["seed"]] = record["metrics"]["mse"]
    gains = [100 * (1 - error / errors["softmax"][seed]) for seed, error in errors["toa-gated-no-sor"].items()]
    return Headline(
        data="signals to separate, unlimited data",
        take="TOA-Gated without SOR",
        measured=f"{fmean(gains):.0f} % less error than softmax",
        files=(DEMIXING,),
    )


def estimators(results: Path) -> Headline:
    """GIFT-Eval: the MASE of the forecaster over that of the seasonal naive forecast, beside published models."""
    scores: dict[str, dict[str, float]] = {}
    for record in read_lines(results / GIFT_EVAL, "config", "method", "metrics"):
        scores.setdefault(record["config"], {})[record["method"]] = record["metrics"]["mase"]
    with (results / PUBLISHED).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["benchmark"] == "gift-eval" and row["model"] in RIVALS:
                scores[row["config"]][row["model"]] = float(row["mase"])
    ratios = {
        name: geometric_mean(by_method[name] / by_method["seasonal naive"] for by_method in scores.values())
        for name in ("toa", *RIVALS)
    }
    ours = f"MASE {ratios['toa']:.2f} of seasonal naive on {len(scores)} GIFT-Eval configurations"
    beside = ", ".join(f"{name} {ratios[name]:.2f}" for name in RIVALS)
    return Headline(
        data="a file and ten minutes",
        take="`toa forecast`, `detect`, `classify`",
        measured=f"{ours} (published: {beside})",
        files=(GIFT_EVAL, PUBLISHED),
    )
