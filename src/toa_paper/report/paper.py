"""The comparison with the paper: our numbers, ranks, significance tests and operators."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from toa.report import statistics
from toa.report.figures import svg_text
from toa.report.operators import OPERATORS_FILE, Pictures, pictures_of, read_pictures
from toa.report.tables import Table
from toa_paper.published import PublishedNumber
from toa_paper.report.cells import RECIPE, Entry, RecipeCell, decimals, is_toa, paper_entries, recipe_cells
from toa_paper.report.evidence import Evidence, Run, read_evidence
from toa_paper.report.regimes import read_decision

# tables with ranks, and the ranked metric
RANKED = {
    "forecast-full": "mse",
    "forecast-average": "mse",
    "pems-full": "mse",
    "pems-average": "mse",
    "classification": "accuracy",
    "anomaly": "f1_pa",
    "sor-ablation-full": "mse",
}
# ranked tables that are means over other tables are not tested
_TESTED = ("forecast-full", "pems-full", "classification", "anomaly", "sor-ablation-full")
_NO_SOR = "-nosor"
Ties = Literal["average", "min"]
# base64 characters of operators on a page; one model has about ten thousand
_MAX_CHARACTERS = 350_000


@dataclass(frozen=True, slots=True)
class RankRow:
    """Average rank and top-1 count of a variant.

    The ranks over all blocks are computed as in the paper: from printed numbers, where equal numbers share the best
    rank, in classification the mean rank. This reproduces all ranks that the paper prints, except for one tie in the
    SOR ablation (ETTm1, horizon 96, TOA-Gated). Over the shared blocks ties share the mean rank and our numbers are
    not rounded, as in the critical-difference diagrams. Every tied best counts as top-1, in numbers as printed.

    Attributes:
        blocks: Number of data sets and horizons of the table.
        shared: Number of those in which we measured all variants.
        published_rank, published_top1: Published numbers over all blocks.
        same_rank, same_top1: Published numbers over the shared blocks; None if there are none.
        our_rank, our_top1: Our numbers over the shared blocks.
    """

    table: str
    backbone: str
    variant: str
    blocks: int
    shared: int
    published_rank: float
    published_top1: int
    same_rank: float | None
    same_top1: int | None
    our_rank: float | None
    our_top1: int | None


def rank_rows(entries: Iterable[Entry]) -> list[RankRow]:
    """One row per variant of each backbone of the tables with ranks."""
    groups: dict[tuple[str, str, str], dict[tuple[str, str], dict[str, Entry]]] = {}
    for entry in entries:
        number = entry.number
        if entry.own and number.metric == RANKED.get(number.table):
            group = groups.setdefault((number.table, number.backbone, _family(number)), {})
            group.setdefault((number.dataset, number.horizon), {})[number.variant] = entry
    return [row for (table, backbone, _), group in groups.items() for row in _rows(table, backbone, [*group.values()])]


def _family(number: PublishedNumber) -> str:
    """Variants of one family are ranked together: in the SOR ablation with and without SOR, else all ("")."""
    return number.variant.removesuffix(_NO_SOR) if number.table.startswith("sor-") else ""


def _rows(table: str, backbone: str, blocks: list[dict[str, Entry]]) -> list[RankRow]:
    variants = list(dict.fromkeys(variant for block in blocks for variant in block))
    complete = [[block[variant] for variant in variants] for block in blocks if len(block) == len(variants)]
    shared = [block for block in complete if all(entry.mean is not None for entry in block)]
    ties: Ties = "average" if table == "classification" else "min"
    standings = (
        _standings(RANKED[table], complete, ties),
        _standings(RANKED[table], shared, "average"),
        _standings(RANKED[table], shared, "average", ours=True),
    )
    columns = [found or [(None, None)] * len(variants) for found in standings]
    return [
        RankRow(table, backbone, variant, len(complete), len(shared), *all_blocks, *same, *ours)
        for variant, all_blocks, same, ours in zip(variants, *columns, strict=True)
    ]


def _standings(metric: str, blocks: Sequence[Sequence[Entry]], ties: Ties, *, ours: bool = False) -> list[Any]:
    """Average rank and top-1 count of each variant, by published numbers or ours; empty without blocks."""
    if not blocks:
        return []
    values: Any = [[entry.mean if ours else entry.number.value for entry in block] for block in blocks]
    digits = [max(decimals(entry.number.text) for entry in block) for block in blocks]
    printed = [np.round(row, count) for row, count in zip(values, digits, strict=True)]
    firsts = (statistics.rank_scores(printed, metric, ties="min") == 1).sum(0)
    ranks = statistics.rank_scores(values, metric, ties=ties).mean(0)
    return list(zip(ranks.tolist(), firsts.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Contest:
    """Significance tests of the attentions of one backbone under one protocol, over data sets.

    Attributes:
        baseline: System that the others are tested against.
        entries: The measured numbers.
        scores, rows: Scores and results; None and empty if nothing can be compared.
        notes: Explanations, or why there is nothing.
    """

    table: str
    backbone: str
    protocol: str
    metric: str
    baseline: str
    entries: Sequence[Entry]
    scores: statistics.SystemScores | None = None
    rows: tuple[statistics.Row, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What is compared."""
        return f"{self.table}, {self.backbone}, {self.protocol}: {self.metric}"

    @property
    def file(self) -> str:
        """File name of the diagram."""
        return f"critical-difference-{re.sub('[^a-z0-9]+', '-', self.title.lower())}.svg"

    @property
    def results(self) -> Table:
        """A header and one row per system; empty if nothing can be compared."""
        return [] if self.scores is None else statistics.system_table(self.scores, self.rows)

    @cached_property
    def diagram(self) -> str:
        """The critical-difference diagram as SVG; "" if there is none."""
        if self.scores is None or statistics.no_diagram(self.scores):
            return ""
        return svg_text(statistics.draw_critical_difference(self.scores))


def contests(entries: Iterable[Entry]) -> list[Contest]:
    """One contest per table, backbone, protocol and metric with a measured number."""
    groups: dict[tuple[str, str, str, str, str], list[Entry]] = {}
    for entry in entries:
        number = entry.number
        if number.table in _TESTED and number.metric == RANKED[number.table] and entry.values:
            key = (number.table, number.backbone, entry.protocol, entry.metric, _family(number))
            groups.setdefault(key, []).append(entry)
    found = []
    for (table, backbone, protocol, metric, family), group in groups.items():
        baseline = f"{backbone}/{f'{family}-no-sor' if family else 'softmax'}"
        group = _shared_seeds(_one_recipe(group) if protocol == RECIPE else group)
        contest = Contest(table, backbone, protocol, metric, baseline, group)
        try:
            records = {run.where: run.record for entry in group for run in entry.runs}
            scores = statistics.collect(list(records.values()), metric)
            rows = tuple(statistics.compare(scores, baseline))
            found.append(replace(contest, scores=scores, rows=rows, notes=tuple(statistics.notes(scores, baseline))))
        except ValueError as error:
            found.append(replace(contest, notes=(str(error),)))
    return found


def _shared_seeds(entries: Sequence[Entry]) -> list[Entry]:
    """Entries with those seeds alone that all variants of a cell have, where there are any."""
    cells: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        cells.setdefault((entry.number.dataset, entry.number.horizon), []).append(entry)
    found = []
    for cell in cells.values():
        shared = set.intersection(*(set(entry.values) for entry in cell))
        for entry in cell:
            seeds = shared or entry.values.keys()
            values = {seed: value for seed, value in entry.values.items() if seed in seeds}
            found.append(replace(entry, values=values, runs=tuple(run for run in entry.runs if run.seed in seeds)))
    return found


def _one_recipe(entries: Sequence[Entry]) -> list[Entry]:
    """Entries under `toa`, whose recipe chooses the attention by size: variants of TOA that share no cell become "toa".

    Records of another protocol with the same settings count too; all get the protocol's name.
    """
    ours = [entry.number for entry in entries if is_toa(entry.number.variant)]
    apart = len({(number.dataset, number.horizon) for number in ours}) == len(ours)
    chosen = []
    for entry in entries:
        number = entry.number
        names = {}
        if apart and len({number_of_ours.variant for number_of_ours in ours}) > 1 and number in ours:
            names = {"name": f"{number.backbone}/toa"}
            number = replace(number, variant="toa")
        records = [run.record | {"config": run.record["config"] | {"protocol": RECIPE}} | names for run in entry.runs]
        runs = tuple(map(lambda run, record: replace(run, record=record), entry.runs, records))
        chosen.append(replace(entry, number=number, runs=runs))
    return chosen


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PaperReport:
    """Everything that a report shows; `decision` is that on many channels, see `read_decision`."""

    evidence: Evidence
    entries: tuple[Entry, ...]
    ranks: tuple[RankRow, ...]
    recipes: tuple[RecipeCell, ...]
    contests: tuple[Contest, ...]
    operators: tuple[Pictures, ...]
    remarks: tuple[str, ...]
    decision: dict[str, Any] | None = None

    @property
    def others(self) -> list[Run]:
        """Runs that belong to no number of the paper."""
        counted = {run.where for entry in self.entries for run in entry.runs}
        counted |= {run.where for cell in self.recipes for runs in cell.runs.values() for run in runs}
        return [run for run in self.evidence.runs if run.where not in counted]


def make_report(
    paths: Sequence[Path], *, tables: Iterable[str] | None = None, data_dir: Path | None = None
) -> PaperReport:
    """Compare all records of files and folders with the paper.

    Args:
        data_dir: First folder to search for data, to explain why a number cannot be measured.
    """
    evidence = read_evidence(paths)
    entries = paper_entries(evidence, tables=tables, data_dir=data_dir)
    operators, remarks = _operators(paths, evidence)
    return PaperReport(
        evidence=evidence,
        entries=tuple(entries),
        ranks=tuple(rank_rows(entries)),
        recipes=tuple(recipe_cells(evidence)),
        contests=tuple(contests(entries)),
        operators=tuple(operators),
        remarks=tuple(remarks),
        decision=read_decision(paths),
    )


def _operators(paths: Iterable[Path], evidence: Evidence) -> tuple[list[Pictures], list[str]]:
    """Pictures from files beside records, then of models that runs saved, as many as fit on a page; and remarks."""
    models: dict[str, Pictures] = {}
    remarks: list[str] = []
    for file in sorted(file for path in paths if path.is_dir() for file in path.rglob(OPERATORS_FILE)):
        try:
            models |= {model["config_hash"]: model for model in read_pictures(file)}
        except ValueError as error:
            remarks.append(str(error))
    # one model per setting, that of the first seed
    firsts = {run.setting: run for run in sorted(evidence.runs, key=lambda run: run.seed or 0, reverse=True)}
    for run in evidence.runs:
        if run is firsts[run.setting] and run.line == 0 and run.record["config_hash"] not in models:
            try:
                if (model := pictures_of(run.record, run.path.parent)) is not None:
                    models[model["config_hash"]] = model
            except (ValueError, OSError) as error:
                remarks.append(str(error))
    taken = []
    left = _MAX_CHARACTERS
    for model in models.values():
        left -= sum(len(picture["values"]) for picture in model["pictures"])
        if left >= 0:
            taken.append(model)
    if len(taken) < len(models):
        remarks.append(f"Operators of {len(models) - len(taken)} of {len(models)} models do not fit on the page.")
    return taken, remarks
