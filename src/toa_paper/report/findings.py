"""What the records show, in words: where TOA helps, by how much, where it does not, and which claims of the paper hold.

Every sentence follows from records by a rule, so the text changes with them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from toa.experiments.protocols import resolve
from toa.report.figures import system_title
from toa.report.gains import (
    POWER,
    excludes_zero,
    gain_unit,
    lower_is_better,
    mean_over_horizons,
    percent_gain,
    t_interval,
)
from toa.report.statistics import Row, collect, compare, system_name
from toa.report.tables import grouped, signed
from toa_paper.report.cells import PAPER, RECIPE, Entry, contribution, is_toa
from toa_paper.report.evidence import setting_of
from toa_paper.report.paper import Contest, PaperReport
from toa_paper.report.regimes import first_sentence, gate_sentence, regime_rows
from toa_paper.report.texts import TEXTS

_TASKS = {
    "forecast-full": "Forecasting",
    "pems-full": "Short-term forecasting",
    "classification": "Classification",
    "anomaly": "Anomaly detection",
    "sor-ablation-full": "SOR",
}
# tables of means, and the tables that they summarise
_SUMMARISED = {
    "forecast-average": "forecast-full",
    "pems-average": "pems-full",
    "classification-summary": "classification",
    "sor-ablation-average": "sor-ablation-full",
}
# seeds that a comparison of runs on one task needs
_FEWEST_SEEDS = 6
# variants that a claim of the paper names
_NAMED = ("toa-relu", "toa-gated")
# cases of the measured training steps with the sizes of the paper's table of efficiency
_PAPER_CASES = {"patchtst": "patchtst-512", "itransformer": "itransformer-256"}
# verdict: how the lead names it
_VERDICTS = {
    "helps": "TOA helps",
    "hurts": "TOA hurts",
    "not robust": "The difference is not robust",
    "no gain shown": "No gain could be shown",
    "too few data sets": "Too few data sets",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Finding:
    """One comparison of TOA with its baseline.

    Attributes:
        row: The TOA variant that validation prefers, as the only one that is tested. If records state no validation
            metric, that with the largest gain; the level of its t interval then covers all variants.
        preferred: Whether validation chose it.
        verdict: A key of `_VERDICTS`.
        published: Gain of that variant in the paper, on the same data sets and horizons.
        validation: Its gain in the validation metric, likewise; None if no record states it.
        verdicts: Verdict of every TOA variant.
        by_set: Its gain on each data set, one per seed.
        without_operators: Rise of the validation error with M = 0 in percent; None if no record states it.
    """

    contest: Contest
    row: Row
    preferred: bool
    verdict: str
    published: float | None
    validation: float | None
    verdicts: Mapping[str, str]
    by_set: Mapping[str, Sequence[float]]
    without_operators: float | None

    @property
    def title(self) -> str:
        """What is compared, for a list."""
        task = _TASKS[self.contest.table]
        task += f" of {self.variant}" if task == "SOR" else ""
        return f"{task}, {self.contest.backbone} under `{self.contest.protocol}`"

    @property
    def variant(self) -> str:
        """Printed name of the variant."""
        return system_title(self.row.system.partition("/")[2])

    @property
    def gain(self) -> str:
        """The gain in test."""
        return f"{signed(self.row.gain or 0.0)} {gain_unit(self.contest.metric)}"

    @property
    def under(self) -> str:
        """The gain in test, its protocol, a cell without which it is not shown, and other variants that differ."""
        notes = [f"no longer shown if one cell is left out, such as {self.row.rests_on}"] if self.row.rests_on else []
        notes += [f"{name} {signed(row.gain or 0.0)}, which validation does not prefer" for name, row in self.others]
        shown = f" ({'; '.join(notes)})" if notes else ""
        return f"{self.gain} under `{self.contest.protocol}`{shown}"

    @property
    def others(self) -> list[tuple[str, Row]]:
        """Variants of TOA that validation does not prefer and whose corrected t interval excludes zero."""
        rows = [row for row in self.contest.rows if is_toa(_variant(row)) and row.system != self.row.system]
        return [(system_title(_variant(row)), row) for row in rows if self.preferred and excludes_zero(row.t_interval)]

    @property
    def short(self) -> str:
        """The gain in a few words."""
        name = self.variant if self.contest.table.startswith("sor-") else f"{self.contest.backbone} {self.variant}"
        theirs = "" if self.published is None else f" (published {signed(self.published)})"
        return f"{name} {self.gain}{theirs}"

    def text(self) -> str:
        """The comparison in a few sentences."""
        row = self.row
        against = "itself without SOR" if self.contest.table.startswith("sor-") else "softmax"
        chosen = "which validation prefers" if self.preferred else "the best"
        best = f", {chosen} of {len(self.verdicts)} variants," if len(self.verdicts) > 1 else ""
        beside = "" if self.validation is None else f" in test and {signed(self.validation)} in validation"
        words = f"**{self.title}: {self.verdict}.** {self.variant}{best} gains {self.gain}{beside} over {against} on "
        words += f"{len(self.by_set)} data sets"
        words += f" (t interval {signed(*row.t_interval)}" if row.t_interval else ""
        words += f", bootstrap {signed(*row.interval)})" if row.interval else ""
        words += "." if self.published is None else f"; published on the same data: {signed(self.published)}."
        words += f" Without one cell, such as {row.rests_on}, the t interval contains zero." if row.rests_on else ""
        for name, other in self.others:
            interval = f"t interval {signed(*other.t_interval)}, corrected for all variants" if other.t_interval else ""
            words += f" {name}, which validation does not prefer, gains {signed(other.gain or 0.0)} ({interval})."
        hurt = [system_title(name) for name, verdict in self.verdicts.items() if verdict == "hurts"]
        if best and "too few data sets" not in self.verdicts.values():
            words += f" With all variants tested together, {', '.join(hurt) or 'none'} hurts."
        groups: dict[str, list[str]] = {"better with every seed": [], "worse with every seed": [], "one seed": []}
        for name, gains in self.by_set.items():
            sign = round(min(gains), 1) > 0 or -(round(max(gains), 1) < 0)
            kind = "one seed" if len(gains) == 1 else f"{'better' if sign > 0 else 'worse'} with every seed"
            if sign or len(gains) == 1:
                groups[kind].append(f"{name} ({signed(fmean(gains))})")
        shown = "; ".join(
            f"{kind}: {', '.join(names) or 'none'}" for kind, names in groups.items() if names or "every" in kind
        )
        words += f" {shown[0].upper()}{shown[1:]}."
        if row.detectable is not None:
            words += f" The t test finds a mean gain of {row.detectable:.1f} with probability {POWER}."
        rise = self.without_operators
        part = "test" if self.contest.protocol == "tslib-uea" else "validation"
        state = "the records do not state it" if rise is None else f"the {part} error changes by {rise:+.1f} %"
        return f"{words} With M = 0: {state}."


def findings(report: PaperReport) -> list[Finding]:
    """One finding per comparison in which TOA and its baseline were measured, our recipe first."""
    results = []
    for contest in sorted(report.contests, key=lambda item: item.protocol != RECIPE):
        rows = [row for row in contest.rows if row.gain is not None and is_toa(_variant(row))]
        if contest.scores is None or not rows:
            continue
        preferred = _preferred(contest, rows)
        best = preferred or max(rows, key=lambda row: row.gain or 0.0)
        published = _gains(contest, best, lambda entry: {None: entry.number.value} if entry.comparable else {})
        validation = _gains(contest, best, _validation)
        runs = [run for entry in contest.entries if entry.number.variant == _variant(best) for run in entry.runs]
        results.append(
            Finding(
                contest=contest,
                row=best,
                preferred=preferred is not None,
                verdict=_verdict(best),
                published=fmean(map(fmean, published.values())) if published else None,
                validation=fmean(map(fmean, validation.values())) if validation else None,
                verdicts={_variant(row): _verdict(row) for row in rows},
                by_set=_gains(contest, best, lambda entry: entry.values),
                without_operators=contribution(runs),
            )
        )
    return results


def _preferred(contest: Contest, rows: Sequence[Row]) -> Row | None:
    """The result of the variant that validation prefers, tested alone; None if a record lacks the metric.

    It has the largest median over data sets of the gain in validation, so that no single set decides.
    """
    assert contest.scores is not None
    gains = {row.system: _gains(contest, row, _validation) for row in rows}
    if any(len(found) < len(contest.scores.cells) for found in gains.values()):
        return None
    chosen = max(gains, key=lambda system: median(map(fmean, gains[system].values())))
    runs = {run.where: run.record for entry in contest.entries for run in entry.runs}
    kept = [record for record in runs.values() if system_name(record) in (chosen, contest.baseline)]
    return next(row for row in compare(collect(kept, contest.metric), contest.baseline) if row.system == chosen)


def _validation(entry: Entry) -> dict[int | None, float]:
    """The validation metric, mean over seeds; none where validation is the test part, as under `tslib-uea`."""
    rules = {run.record["config"].get("evaluation") for run in entry.runs}
    return {None: fmean(entry.validation.values())} if entry.validation and "tslib-uea" not in rules else {}


def _variant(row: Row) -> str:
    return row.system.partition("/")[2].replace("-no-sor", "-nosor")


def _verdict(row: Row) -> str:
    """One rule for better and worse: the corrected t interval excludes zero, also without any one cell."""
    if row.detectable is None:
        return "too few data sets"
    sign = excludes_zero(row.t_interval)
    if not sign:
        return "no gain shown"
    if row.rests_on:
        return "not robust"
    return "helps" if sign > 0 else "hurts"


def _gains(contest: Contest, row: Row, values: Callable[[Entry], Mapping[int | None, float]]) -> dict[str, list[float]]:
    """Gain of a system over the baseline by data set, one per seed that has the most horizons of both."""
    assert contest.scores is not None
    base = contest.baseline.partition("/")[2].replace("-no-sor", "-nosor")
    cells: dict[tuple[str, int | None], dict[str, dict[str, float]]] = {}
    for entry in contest.entries:
        for seed, value in values(entry).items():
            cell = cells.setdefault((entry.number.dataset, seed), {})
            cell.setdefault(entry.number.horizon, {})[entry.number.variant] = value
    pairs: dict[str, list[list[tuple[float, float]]]] = {}
    for (dataset, _), horizons in cells.items():
        both = [
            (systems[_variant(row)], systems[base])
            for systems in horizons.values()
            if {_variant(row), base} <= systems.keys()
        ]
        if both and dataset in contest.scores.cells:
            pairs.setdefault(dataset, []).append(both)
    gains = {}
    for dataset, seeds in pairs.items():
        means = [mean_over_horizons(both, contest.metric) for both in seeds if len(both) == max(map(len, seeds))]
        gains[dataset] = [float(percent_gain(ours, plain, contest.metric)) for ours, plain in means]
    return gains


def lead(findings: Sequence[Finding]) -> list[str]:
    """What was found, one line per verdict: by task and backbone, the gain in test under each protocol."""
    lines = []
    for verdict, words in _VERDICTS.items():
        same_verdict = [finding for finding in findings if finding.verdict == verdict]
        if verdict == "too few data sets":
            tasks = ((finding.title.partition(",")[0], finding.contest) for finding in same_verdict)
            groups = grouped((f"{task} under `{contest.protocol}`", contest.backbone) for task, contest in tasks)
            members = [f"{what} ({', '.join(backbones)})" for what, backbones in groups.items()]
        else:
            groups = grouped((finding.title.partition(" under ")[0], finding.under) for finding in same_verdict)
            members = [f"{what} {', '.join(gains)}" for what, gains in groups.items()]
        if members or verdict == "helps":
            lines.append(
                f"{words}: {'; '.join(members) or 'in none of the comparisons over all data sets of a backbone'}."
            )
    return lines


def coverage(report: PaperReport) -> list[str]:
    """How many published numbers were measured, and which were not, in one sentence each; none if nothing lacks."""
    numbers = [entry for entry in report.entries if entry.own]
    without_data = [entry for entry in numbers if entry.status == "no data"]
    if not without_data:
        return []
    measured = sum(entry.status == "measured" for entry in numbers)
    groups: dict[str, list[Entry]] = {}
    for entry in without_data:
        groups.setdefault(_task_name(entry), []).append(entry)
    parts = []
    for task, entries in groups.items():
        among = sum(_task_name(entry) == task for entry in numbers)
        sets = dict.fromkeys(entry.number.dataset for entry in entries if entry.number.table in _TASKS)
        parts.append(f"{task} {len(entries)} of {among} ({', '.join(sets)})")
    return [
        f"Tested: {measured:,} of the {len(numbers):,} published numbers. **Not tested: {len(without_data):,}**, whose "
        f"data are not here: {'; '.join(parts)}."
    ]


def _task_name(entry: Entry) -> str:
    """The task of a number; means belong to the table that they summarise."""
    table = entry.number.table
    return _TASKS.get(_SUMMARISED.get(table, table), table)


def claims(report: PaperReport, findings: Sequence[Finding]) -> list[str]:
    """The claims of the paper's abstract and results, each with what the records under its own settings say.

    A claim on named variants is decided by all of them, a claim on TOA by the variant that validation prefers.
    """
    lines = []
    for table, claim, named in (
        ("forecast-full", "TOA improves forecasting under every backbone", ()),
        ("classification", "TOA-ReLU and TOA-Gated are better than softmax in classification", _NAMED),
        ("anomaly", "TOA improves anomaly detection under every backbone", ()),
        ("sor-ablation-full", "SOR improves operators", ()),
    ):
        supporting = [
            finding
            for finding in findings
            if finding.contest.table == table and finding.contest.protocol.startswith(PAPER)
        ]
        supporting = [finding for finding in supporting if "strict" not in finding.contest.protocol]
        supporting = [finding for finding in supporting if set(named) <= finding.verdicts.keys()]
        verdicts = (
            [finding.verdicts[name] for finding in supporting for name in named]
            if named
            else [finding.verdict for finding in supporting]
        )
        line = f"{claim}: {_holds(verdicts)}."
        line += f" Gains: {', '.join(finding.short for finding in supporting)}." if supporting else ""
        more = {"classification": _gain_of_protocol, "sor-ablation-full": _sor}.get(table)
        lines.append(f"{line}{more(report) if more else ''}")
    runs = {entry.number.variant: entry.values for entry in _own(report, "demixing")}
    order = ("toa-gated", "toa-relu", "softmax")
    if seeds := set.intersection(*(set(runs.get(name, ())) for name in order)):
        errors = [fmean(runs[name][seed] for seed in seeds) for name in order]
        shown = ", ".join(f"{system_title(name)} {error:.4f}" for name, error in zip(order, errors, strict=True))
        words = "In demixing TOA-Gated is better than TOA-ReLU, and TOA-ReLU better than softmax"
        holds = "holds" if errors[0] < errors[1] < errors[2] else "does not hold"
        lines.append(f"{words}: {holds} (mean error, the same {len(seeds)} seeds for all: {shown}).")
    return [*lines, *_step_costs(report)]


def _step_costs(report: PaperReport) -> list[str]:
    """Time of a step of TOA-Gated over one of softmax at the paper's sizes: the paper's programs, and ours."""
    published: dict[str, dict[str, float]] = {}
    for entry in _own(report, "efficiency"):
        published.setdefault(entry.number.backbone, {})[entry.number.variant] = entry.number.value
    lines = []
    for backbone, case in _PAPER_CASES.items():
        cost = report.evidence.costs.get((case, "toa-gated"))
        if cost is not None and backbone in published:
            theirs = published[backbone]["toa-gated"] / published[backbone]["softmax"]
            lines.append(
                f"A step of TOA-Gated takes {cost} times as long as one of softmax under {backbone} at the paper's "
                f"sizes. The paper's own programs: {theirs:.2f} times."
            )
    return lines


def demixing(report: PaperReport) -> list[str]:
    """How TOA-Gated compares with softmax in demixing under our recipe, in one sentence; none without such runs."""
    errors: dict[str, dict[int, float]] = {"softmax": {}, "toa-gated": {}}
    for name, found in errors.items():
        setting = setting_of("demixing", resolve("demixing", RECIPE, attention=name))
        runs = report.evidence.by_setting.get(setting, {})
        found |= {seed: run.record["metrics"]["mse"] for seed, run in runs.items() if seed is not None}
    softmax, ours = errors.values()
    seeds = sorted(softmax.keys() & ours.keys())
    if len(seeds) < _FEWEST_SEEDS:
        return []
    gains = np.array([percent_gain(ours[seed], softmax[seed], "mse") for seed in seeds])
    interval = t_interval(gains)
    assert interval is not None
    return [
        f"In harmonic demixing under `{RECIPE}`, a synthetic task, TOA-Gated gains {signed(gains.mean())} % over "
        f"softmax (better with {(gains > 0).sum()} of {len(seeds)} seeds; t interval over them {signed(*interval)})."
    ]


def _sor(report: PaperReport) -> str:
    """In how many cells of our recipe the chosen TOA is better with SOR than without; "" if none was run."""
    counts: dict[str, list[bool | None]] = {}
    for cell in report.recipes:
        if (change := cell.without_sor()) is not None:
            better = (change > 0) is lower_is_better(cell.metric) if change else None
            counts.setdefault(cell.backbone, []).append(better)
    parts = []
    for name, signs in counts.items():
        equal = f" ({signs.count(None)} are equal)" if None in signs else ""
        parts.append(f"{signs.count(True)} of {len(signs)} cells of {name}{equal}")
    return f" Under `{RECIPE}` TOA is better with SOR than without in {', '.join(parts)}." if parts else ""


def _gain_of_protocol(report: PaperReport) -> str:
    """What softmax alone gains in classification under `tslib-uea`; "" without such runs."""
    entries = [entry for entry in report.entries if entry.number.table == "classification" and entry.mean is not None]
    accuracies = {
        (entry.protocol, entry.number.dataset): entry.mean or 0.0
        for entry in entries
        if entry.number.variant == "softmax"
    }
    shared = [name for protocol, name in accuracies if protocol == "tslib-uea" and (PAPER, name) in accuracies]
    gains = [accuracies["tslib-uea", name] - accuracies[PAPER, name] for name in shared]
    if not gains:
        return ""
    rules = "it trains on all of TRAIN, and TEST is scaled by its own statistics and chooses the epoch (`tslib-uea`)"
    return f" Softmax alone gains {signed(100 * fmean(gains))} points on {len(gains)} data sets if {rules}."


def _holds(verdicts: Sequence[str]) -> str:
    """What the verdicts of a claim's comparisons say together."""
    if not verdicts:
        return "not measured"
    counts = ", ".join(f'{verdicts.count(one)} x "{one}"' for one in _VERDICTS if one in verdicts)
    words = {"helps": "holds", "too few data sets": "not decided yet"} if len(set(verdicts)) == 1 else {}
    return f"{words.get(verdicts[0], 'not shown here')} ({counts})"


def _own(report: PaperReport, table: str) -> list[Entry]:
    return [entry for entry in report.entries if entry.own and entry.number.table == table]


def budgets(report: PaperReport) -> str:
    """How many trials chose the settings of our recipe; "" without such records."""
    parts = [
        f"{backbone}, {task}: {', '.join(f'{family} {counts[family]}' for family in sorted(counts, reverse=True))}"
        for (task, backbone), counts in sorted(report.evidence.trials.items())
        if any(
            (one.task, one.backbone) == (task, backbone) and (RECIPE, "softmax") in one.runs for one in report.recipes
        )
    ]
    return (
        f"Trials that chose the settings under `{RECIPE}`, by validation error: {'; '.join(parts)}. The stage that "
        "confirmed the choice in forecasting was added after test errors of iTransformer at horizon 96 had been read, "
        "for PatchTST on large sets after those of its first choice, the third stage of two-axis after its first final "
        "runs, the trials of demixing after test errors without SOR."
        if parts
        else ""
    )


def found_parts(report: PaperReport) -> dict[str, list[str]]:
    """Sentences by heading: what was found, the claims of the paper, every comparison with an interval."""
    all_findings = findings(report)
    compared = [finding.text() for finding in all_findings if finding.row.interval is not None]
    compared = [TEXTS["paper"]["rule"], *compared] if compared else []
    parts = {
        "What was found": [
            *first_sentence(regime_rows(report.entries), report.decision),
            *lead(all_findings),
            *gate_sentence(report.entries),
            *demixing(report),
            *coverage(report),
        ],
        "Claims of the paper": claims(report, all_findings),
        "Comparisons": compared,
    }
    parts["Comparisons"] += [budgets(report)] if budgets(report) else []
    return {title: lines for title, lines in parts.items() if lines}
