"""Write every table and every measured number on every page from the stored records: none is typed by hand.

    python docs/page_tables.py [--check]

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`, a number of a sentence between
`<!-- value: NAME -->` and `<!-- end -->` (page_values.py); the text around them is kept. With `--check` nothing is
written, and the exit code is 1 if a page differs from its records.
"""

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from classification_tables import (
    UEA,
    accuracy_table,
    classification_search,
    compared,
    recipe_accuracies,
    uea_choices,
    uea_table,
)
from demixing_tables import demixing_table, demixing_trials
from detection_tables import DETECTION_SETS, anomaly_table, detector_choices, detector_table
from forecasting_tables import (
    IN_PROTOCOL,
    dropout_table,
    forecast_summary,
    other_runs,
    rate_table,
    recipe_table,
    searched_duet_table,
    setting_table,
    sor_table,
    unified_table,
    window_ranges,
)
from leaderboard_tables import (
    aims_table,
    earlier_table,
    fev_table,
    leaderboard_table,
    leaderboard_weights,
    m3_table,
    scale_table,
)
from many_channels_tables import sets_table, sizes_table
from performance_tables import TABLES as PERFORMANCE
from performance_tables import performance_table, speed_summary, table
from reliability_tables import promise_table, reliability_table
from search_tables import search_choice, search_confirmed, search_trials, signed_table
from stored_results import BACKBONES, RECIPE_SETS, RESULTS, ROOT, SETS, stored_records
from toa.estimators.effort import EFFORTS, Effort
from two_axis_tables import two_axis_ablations, two_axis_accuracies, two_axis_detection, two_axis_table

PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("many_channels", "performance", "protocols", "recipe", "reliability")),
    "docs/two_axis.md",
    "docs/howto/effort.md",
    "results/README.md",
    *(f"results/{name}/README.md" for name in ("anomaly", "classification", "demixing", "forecasting")),
    *(f"results/{name}/README.md" for name in ("leaderboards", "search")),
)


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


def agreement_table() -> str:
    """Differences between our backbones and their authors' code, and the command."""
    records = stored_records("agreement/agreement.jsonl")
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
