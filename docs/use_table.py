"""The table "when to use it" of the README: one row per kind of data, each from stored records."""

import re
from collections.abc import Callable, Mapping

import page_values
from many_channels_tables import read_sets
from performance_tables import table
from stored_results import RECIPE_SETS, RESULTS
from toa.report.decision import choose_variant, decide
from toa_bench.wide import PLAN, read_results, read_wide_plan
from toa_bench.wide_results import VARIANTS, final_errors

NAMES = {"toa-softmax": "TOA-Softmax", "toa-relu": "TOA-ReLU", "toa-gated": "TOA-Gated"}


def use_table() -> str:
    """What operators gained over softmax, by the kind of tokens."""
    few = summary_gain("itransformer")
    patches = summary_gain("patchtst")
    synthetic = page_values.demixing_gain()
    rows = [
        ["many channels as tokens (iTransformer)", *many_channels()],
        [
            "few channels as tokens (iTransformer)",
            "softmax, or try both",
            f"{few} % over {len(RECIPE_SETS)} sets: not shown",
        ],
        [
            "patches of a series as tokens (PatchTST)",
            "softmax",
            f"{patches} % over {len(RECIPE_SETS)} sets, three with one seed: none",
        ],
        ["signals to separate, data without end", "TOA-Gated without SOR", f"{synthetic} % less error than softmax"],
        [
            "a file and ten minutes",
            "`toa forecast`, `detect`, `classify`",
            "networks beside simple methods, weighted by validation",
        ],
    ]
    return table(["you have", "take", "measured"], rows, left=3)


def many_channels() -> list[str]:
    """What to take for many channels, and the state of the suite toa-wide."""
    plan = read_wide_plan(PLAN)
    results = read_results([RESULTS / "search" / "wide-trials.jsonl", RESULTS / "many_channels" / "runs.jsonl"])
    facts = read_sets()
    validation, _ = final_errors(plan, results, facts, "val_mse", VARIANTS)
    variant = choose_variant(validation, VARIANTS)
    test, _ = final_errors(plan, results, facts, "mse", (variant, "softmax"))
    against = decide(test, variant, "softmax")
    sets = len(against.differences)
    measured = f"{-against.percent:.1f} % less error than softmax, better on {against.wins} of {sets} sets"
    if sets < len(plan.units):
        measured += f"; {len(plan.units) - sets} more sets are planned"
    return [NAMES[variant], f"[{measured}](docs/many_channels.md)"]


def summary_gain(backbone: str) -> str:
    """Mean gain of the variant that validation prefers under the protocol `toa`, as the report states it."""
    text = (RESULTS / "report" / "summary.md").read_text(encoding="utf-8")
    (gain,) = re.findall(rf"Forecasting, {backbone} ([+-][\d.]+) % under `toa`", text)
    return gain


TABLES: Mapping[str, Callable[[], str]] = {"when-to-use": use_table}
