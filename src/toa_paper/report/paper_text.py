"""The comparison with the paper as Markdown: a short summary, and all tables."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean, median

import pandas as pd

from toa.experiments.protocols import load_protocol
from toa.report.figures import system_title
from toa.report.gains import gain_unit, lower_is_better
from toa.report.tables import Table, grouped, markdown_table, number, signed
from toa_paper.published import PublishedNumber
from toa_paper.report.cells import PAPER, RECIPE, STATUSES, Entry, RecipeCell, contribution, decimals, departure, is_toa
from toa_paper.report.evidence import Trial
from toa_paper.report.findings import demixing, found_parts
from toa_paper.report.paper import PaperReport, RankRow
from toa_paper.report.regimes import regime_rows, regime_table
from toa_paper.report.texts import TEXTS
from toa_paper.tables import TABLES

# tables whose cells are compared with the published ones, and how much worse counts as equal
_COMPARED = ("forecast-full", "pems-full", "classification")
_TOLERANCES = {"mse": 0.005, "accuracy": 0.015}
# protocols of the library and of the authors that the paper follows: how they differ from `toa-paper`, and the systems
# to count; under `duet-unified-96` not all variants of TOA were run
_PEERS = {
    "tslib-uea": ("where TEST is scaled by its own statistics and chooses the epoch", ("softmax", "variants")),
    "duet-unified-96": ("with the authors' loss, optimizer and learning rates, most cells with one seed", ("softmax",)),
}


def summary(report: PaperReport, items: str = "`docs/paper.md`") -> list[str]:
    """What was found, the progress of the reproduction, and how our numbers compare.

    Args:
        items: The page with every item of the paper: its name, or a link to it.
    """
    lines = []
    for title, sentences in found_parts(report).items():
        lines += [f"## {title}", "", *(f"- {sentence}" for sentence in sentences), ""]
        if title == "What was found":
            lines += ["## By regime", "", TEXTS["paper"]["regimes"], "", *markdown_table(regimes(report), left=7), ""]
    lines += ["## Progress", "", progress_line(report), "", *markdown_table(status_table(report)), ""]
    return [*lines, "## Item by item", "", TEXTS["paper"]["items"].format(items=items), ""]


def regimes(report: PaperReport) -> Table:
    """One row per regime."""
    return regime_table(regime_rows(report.entries), report.decision, demixing(report))


def progress_line(report: PaperReport) -> str:
    """How many published numbers are measured, why others are not, and how many cells are about as good."""
    own_entries = [entry for entry in report.entries if entry.own]
    measured = sum(entry.status == "measured" for entry in own_entries)
    runs = {run.where for entry in report.entries for run in entry.runs}
    words = f"{measured:,} of {len(own_entries):,} published numbers are measured here, from {len(runs):,} records. "
    words += _gaps(own_entries)
    if near := _near(own_entries, "softmax", "validation", "variants"):
        words += f"Cells at most 0.005 (MSE) or 1.5 points (accuracy) worse than published: {near}. "
    replaced: dict[PublishedNumber, Entry] = {}
    for protocol, (about, systems) in _PEERS.items():
        others = {entry.number: entry for entry in report.entries if not entry.own and entry.protocol == protocol}
        same = [entry for entry in own_entries if entry.number in others]
        if near := _near([*others.values()], *systems):
            words += f"Under `{protocol}`, {about}: {near} (the same cells under `{PAPER}`: {_near(same, 'softmax')}). "
            replaced |= others
    if replaced and (near := _near([replaced.get(entry.number, entry) for entry in own_entries], "softmax")):
        names = " and ".join(
            f"`{protocol}`" for protocol in dict.fromkeys(recipe.protocol for recipe in replaced.values())
        )
        words += f"With {names}, where they were run, in place of `{PAPER}`: {near}. "
    words += "Means over seeds; the median difference is relative to the published number, negative if ours is lower."
    return words


def _near(entries: Sequence[Entry], *systems: str) -> str:
    """How many cells of each system are at most a little worse than published; "" if none can be compared."""
    found = {system: _count_near(entries, system) for system in systems}
    titles = {"softmax": "softmax", "validation": "TOA chosen by validation", "variants": "all variants of TOA"}
    return "; ".join(f"{titles[system]} {counts}" for system, counts in found.items() if counts)


def _count_near(entries: Iterable[Entry], system: str) -> str:
    """The count of `_near` in all and by backbone; "" if no cell can be compared.

    `system` is "softmax", "variants", all variants of TOA, or "validation", the variant of TOA with our best validation
    metric in each cell. Each is compared with the published number of the same variant.
    """
    cells: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        number = entry.number
        wanted = number.variant == "softmax" if system == "softmax" else is_toa(number.variant)
        if wanted and number.table in _COMPARED and number.metric in _TOLERANCES and entry.mean is not None:
            key = (number.table, number.backbone, number.dataset, number.horizon, number.metric)
            cells.setdefault(key, []).append(entry)
    near: dict[str, list[bool]] = {}
    for (table, backbone, *_), cell in cells.items():
        compared = _preferred_entries(cell) if system == "validation" else cell
        label = table if table == "classification" else backbone
        if compared:
            near.setdefault(label, []).extend(_is_near(entry) for entry in compared)
    parts = ", ".join(f"{label} {sum(group)} of {len(group)}" for label, group in sorted(near.items()))
    total = f"{sum(map(sum, near.values()))} of {sum(map(len, near.values()))}"
    if not near:
        return ""
    return f"{total} ({parts})" if len(near) > 1 else total


def _preferred_entries(cell: Sequence[Entry]) -> Sequence[Entry]:
    """The entry of a cell with the best validation metric; none if a record states no such metric."""
    if not all(entry.validation for entry in cell):
        return ()
    best = min if lower_is_better(cell[0].number.metric) else max
    return (best(cell, key=lambda entry: fmean(entry.validation.values())),)


def _is_near(entry: Entry) -> bool:
    """Whether our mean is at most a little worse than the published number of the same variant."""
    metric = entry.number.metric
    above = (entry.mean or 0.0) - entry.number.value
    worse = above if lower_is_better(metric) else -above
    return worse <= _TOLERANCES[metric]


def _gaps(entries: Sequence[Entry]) -> str:
    """A sentence about the numbers that are not measured; "" if there are none."""
    words = {
        "no data": "need data that are not here",
        "not run": "were not run",
        "partial": "are means of which a part was not run",
        "no settings": "have no settings in the paper",
        "failed": "failed",
    }
    counts = {status: sum(entry.status == status for entry in entries) for status in words}
    parts = [f"{count:,} {words[status]}" for status, count in counts.items() if count]
    return f"Of the others, {', '.join(parts)}. " if parts else ""


def status_table(report: PaperReport) -> Table:
    """Per table: how many numbers are measured, why others are not, and how ours compare."""
    table: Table = [("table", "numbers", *STATUSES, "as good or better", "median difference")]
    for name, group in grouped((entry.number.table, entry) for entry in report.entries if entry.own).items():
        counts = [sum(entry.status == status for entry in group) for status in STATUSES]
        pairs = [(entry, entry.difference) for entry in group if entry.difference is not None]
        # ours rounded as printed
        rounded = [(entry, round(entry.mean or 0.0, decimals(entry.number.text))) for entry, _ in pairs]
        good = sum(
            ours <= entry.number.value if lower_is_better(entry.number.metric) else ours >= entry.number.value
            for entry, ours in rounded
        )
        cells = [str(len(group)), *(str(count or "") for count in counts), "", ""]
        if pairs:
            relative = median(100 * difference / entry.number.value for entry, difference in pairs)
            cells[-2:] = [f"{good} of {len(pairs)}", f"{relative:+.1f} %"]
        table.append((name, *cells))
    return table


def rank_table(rows: Iterable[RankRow]) -> Table:
    """Per variant: ranks and top-1 counts, ours and the paper's over the shared blocks, and the paper's over all."""
    head = ("table", "backbone", "attention", "over", "rank, ours", "rank, paper", "top-1, ours", "top-1, paper")
    table: Table = [(*head, "paper over all: rank, top-1")]
    for row in rows:
        ranks = (number(rank, ".2f") for rank in (row.our_rank, row.same_rank))
        counts = (number(count, "d") for count in (row.our_top1, row.same_top1))
        over = f"{row.shared} of {row.blocks}"
        published = f"{row.published_rank:.2f}, {row.published_top1}"
        table.append((row.table, row.backbone, row.variant, over, *ranks, *counts, published))
    return table


def full_text(report: PaperReport, items: str = "`docs/paper.md`") -> list[str]:
    """The complete comparison."""
    lines = ["# The paper, reproduced", "", *summary(report, items), "## Reading", "", TEXTS["paper"]["reading"], ""]
    if ranked := [row for row in report.ranks if row.shared]:
        lines += [TEXTS["paper"]["ranks"], "", *markdown_table(rank_table(ranked)), ""]
    if report.recipes:
        lines += ["## Recipes side by side", "", TEXTS["paper"]["recipes"], ""]
        lines += [*markdown_table(recipe_table(report.recipes), left=3), "", TEXTS["paper"]["ablation"], ""]
        lines += [*markdown_table(ablation_table(report.recipes), left=3), ""]
    if report.evidence.signed:
        lines += ["## Signed attentions", "", TEXTS["paper"]["signed"], ""]
        lines += [*markdown_table(signed_table(report.evidence.signed), left=2), ""]
    for name, group in grouped((entry.number.table, entry) for entry in report.entries).items():
        lines += [f"## {name}: {TABLES[name].about}", ""]
        panels: dict[tuple[str, str, str], list[Entry]] = {}
        for entry in group:
            metric = entry.number.metric if entry.comparable else entry.metric
            panels.setdefault((entry.number.backbone, entry.protocol, metric), []).append(entry)
        for (backbone, protocol, metric), panel in panels.items():
            lines += [f"{backbone or 'All'}, {metric}{f', {protocol}' if protocol else ''}:", ""]
            lines += [*markdown_table(_panel_table(panel)), ""]
        reasons = Counter(
            entry.reason if entry.status == "not run" else f"{entry.status}: {entry.reason}"
            for entry in group
            if entry.status != "measured"
        )
        lines += [*(f"- {count} numbers {reason}" for reason, count in reasons.items()), ""]
    lines += ["## Significance", ""]
    lines += [] if report.contests else ["Nothing measured yet can be tested.", ""]
    for contest in report.contests:
        lines += [f"### {contest.title}", ""]
        lines += [*markdown_table(contest.results), ""] if contest.results else []
        lines += [f"![Critical-difference diagram]({contest.file})", ""] if contest.diagram else []
        lines += [*contest.notes, ""]
    return [*lines, "## Left out", "", *left_out(report), ""]


def _panel_table(entries: Sequence[Entry]) -> Table:
    """One row per data set and horizon, one column per attention."""
    variants = list(dict.fromkeys(entry.number.variant for entry in entries))
    table: Table = [("data", *variants)]
    for (dataset, horizon), row in groupby(entries, key=lambda entry: (entry.number.dataset, entry.number.horizon)):
        cells = {entry.number.variant: cell_text(entry) for entry in row}
        table.append((f"{dataset} {horizon}".strip() or "all", *(cells.get(variant, "") for variant in variants)))
    return table


def cell_text(entry: Entry) -> str:
    """Ours, and in brackets the published number and the difference."""
    ours = our_text(entry) or "-"
    if not entry.comparable:
        return ours
    more = "" if entry.difference is None else f", {entry.difference:+.{decimals(entry.number.text) + 1}f}"
    return f"{ours} ({entry.number.text}{more})"


def our_text(entry: Entry) -> str:
    """Mean ± standard deviation over seeds, with one digit more than published; "" if there is none."""
    if entry.mean is None:
        return ""
    digits = decimals(entry.number.text) + 1
    spread = "" if entry.spread is None else f" ± {entry.spread:.{digits}f}"
    return f"{entry.mean:.{digits}f}{spread}"


def left_out(report: PaperReport, *, most: int | None = None) -> list[str]:
    """What was read and does not count, one bullet per reason that names at most `most` places."""
    skipped = grouped((one.reason.rstrip("."), one.where) for one in report.evidence.skipped)
    lines = [f"- {_places(places, most)}: {reason}." for reason, places in skipped.items()]
    for reason, paths in grouped((departure(run), str(run.path)) for run in report.others).items():
        places = _places(list(dict.fromkeys(paths)), most)
        lines.append(f"- {len(paths)} records in {places} are not compared: {reason}.")
    lines += [f"- {note}" for note in (*report.evidence.notes, *report.remarks)]
    return lines or ["Nothing."]


def _places(places: Sequence[str], most: int | None) -> str:
    more = 0 if most is None else len(places) - most
    return ", ".join(places[:most]) + (f" and {more} more" if more > 0 else "")


def recipe_table(cells: Iterable[RecipeCell]) -> Table:
    """One row per cell: softmax and TOA under `toa-paper` and under `toa`, and their changes, beside the published."""
    parts = (f"{name} {part}" for name in (PAPER, RECIPE) for part in ("softmax", "TOA", "change"))
    table: Table = [("backbone", "data", "published TOA is", "published softmax", "published TOA", *parts)]
    for cell in cells:
        # the published number of the variant that is ours under the paper's settings
        variant = cell.chosen(PAPER) or cell.chosen(RECIPE)
        published = [number(cell.published.get(name), ".3f", "") for name in ("softmax", variant)]
        row = [system_title(variant) if variant else "", *published]
        for protocol in (PAPER, RECIPE):
            row += [number(cell.mean(protocol, name), missing="") for name in ("softmax", cell.chosen(protocol))]
            row.append(_change(cell.gain(protocol), gain_unit(cell.metric)))
        table.append((cell.backbone, cell.data, *row))
    return table


def ablation_table(cells: Iterable[RecipeCell]) -> Table:
    """One row per cell under `toa`: the chosen TOA, without SOR, and the validation error with M = 0."""
    table: Table = [("backbone", "data", "attention", "TOA", "without SOR", "M = 0", "M = 0, without SOR")]
    for cell in cells:
        if name := cell.chosen(RECIPE):
            runs = (cell.runs.get((RECIPE, variant), ()) for variant in (name, f"{name}-nosor"))
            shown = [number(cell.mean(RECIPE, name), missing=""), _change(cell.without_sor(), gain_unit(cell.metric))]
            shown += [_change(contribution(group), "%") for group in runs]
            table.append((cell.backbone, cell.data, system_title(name), *shown))
    return table


def _change(value: float | None, unit: str) -> str:
    return "" if value is None else f"{signed(value)} {unit}"


def signed_table(trials: Iterable[Trial]) -> Table:
    """Attentions by backbone, the best first: on each set the trial with the lowest mean over the sets of its size.

    Errors are relative to plain softmax. A trial counts if it ran on every set.
    """
    frame = pd.DataFrame(trials, columns=Trial._fields)
    small = frame.groupby("dataset")["windows"].last() < load_protocol("forecast", RECIPE).small_below
    # the small sets first
    sets = sorted(small.index, key=lambda name: (not small[name], name))
    same_size = {name: [other for other in sets if small[other] == small[name]] for name in sets}
    table: Table = [("backbone", "attention", "trials", *sets, "mean")]
    errors = frame.pivot_table("error", ["backbone", "trial"], "dataset", "last", sort=False)[sets].dropna()
    for backbone, runs in errors.groupby("backbone", sort=False):
        rows: Table = []
        runs = runs.droplevel("backbone")
        ratios = runs / runs.loc["softmax"] if "softmax" in runs.index else runs[:0]
        for attention, own in ratios.groupby(lambda trial: trial.split()[0], sort=False):
            best = [own[name][own[same_size[name]].mean(axis=1).idxmin()] for name in sets]
            rows.append((backbone, attention, str(len(own)), *(f"{value:.4f}" for value in (*best, fmean(best)))))
        table += sorted(rows, key=lambda row: row[-1])
    return table
