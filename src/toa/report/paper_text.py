"""The comparison with the paper as Markdown: a short summary, and every table in full."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import median

from toa.experiments.paper.tables import TABLES
from toa.report.cells import STATUSES, Line, departure
from toa.report.comparison import markdown_table, system_table
from toa.report.evidence import Run, Skipped
from toa.report.paper import PaperReport
from toa.report.ranks import RankRow, decimals, higher_is_better

Table = list[tuple[str, ...]]


def summary(report: PaperReport) -> list[str]:
    """Lines that say how far the reproduction is, and how it compares."""
    own = [line for line in report.lines if line.own]
    measured = sum(line.status == "measured" for line in own)
    runs = {run.where for line in report.lines for run in line.runs}
    lines = [
        f"{measured:,} of {len(own):,} published numbers are measured here, from {len(runs):,} records. Means over "
        "seeds; the median relative difference is of ours to the published number, negative where ours is lower.",
        "",
        *markdown_table(status_table(own)),
        "",
    ]
    if ranked := [row for row in report.ranks if row.shared]:
        lines += [
            "Average rank and number of first places, as the paper computes them, over data sets and horizons where "
            "every attention of a backbone was measured:",
            "",
            *markdown_table(rank_table(ranked)),
            "",
        ]
    return lines


def status_table(lines: Sequence[Line]) -> Table:
    """A row for each table: how many numbers are measured and what the others wait for."""
    table: Table = [("table", "numbers", *STATUSES, "as good or better", "median difference")]
    for name, group in _by_table(lines):
        counts = [sum(line.status == status for line in group) for status in STATUSES]
        told = [line for line in group if line.difference is not None]
        good = sum(_is_as_good(line) for line in told)
        between = median(100 * (line.difference or 0.0) / line.number.value for line in told) if told else None
        table.append(
            (
                name,
                str(len(group)),
                *("" if count == 0 else str(count) for count in counts),
                f"{good} of {len(told)}" if told else "",
                "" if between is None else f"{between:+.1f} %",
            )
        )
    return table


def rank_table(rows: Iterable[RankRow]) -> Table:
    """A row for each variant: ranks and counts, ours and the paper's over the same blocks, and the paper's over all."""
    head = ("table", "backbone", "attention", "over", "rank, ours", "rank, paper", "top-1, ours", "top-1, paper")
    table: Table = [(*head, "paper over all: rank, top-1")]
    for row in rows:
        table.append(
            (
                row.table,
                row.backbone,
                row.variant,
                f"{row.shared} of {row.blocks}",
                *("-" if rank is None else f"{rank:.2f}" for rank in (row.our_rank, row.same_rank)),
                *("-" if count is None else str(count) for count in (row.our_top1, row.same_top1)),
                f"{row.published_rank:.2f}, {row.published_top1}",
            )
        )
    return table


def full_text(report: PaperReport) -> list[str]:
    """The whole comparison."""
    lines = ["# The paper, reproduced", "", *summary(report), "## Reading", "", *_reading(report), ""]
    for name, group in _by_table(report.lines):
        lines += [f"## {name}: {TABLES[name].about}", ""]
        for (backbone, protocol, metric), block in _panels(group):
            lines += [f"{backbone or 'All'}, {metric}{f', {protocol}' if protocol else ''}:", ""]
            lines += [*markdown_table(panel(block)), ""]
        lines += [*_reasons(group), ""]
    lines += ["## Significance", ""]
    lines += [] if report.contests else ["Nothing is measured yet that could be tested.", ""]
    for contest in report.contests:
        lines += [f"### {contest.title}", ""]
        if contest.scores is not None:
            lines += [*markdown_table(system_table(contest.scores, contest.rows, contest.baseline)), ""]
        lines += [f"![Critical-difference diagram]({contest.file})", ""] if contest.diagram else []
        lines += [*contest.notes, ""]
    lines += ["## Left out", "", *left_out(report), ""]
    return lines


def panel(lines: Sequence[Line]) -> Table:
    """A row for each data set and horizon, a column for each attention, cells as `cell_text` has them."""
    variants = list(dict.fromkeys(line.number.variant for line in lines))
    table: Table = [("data", *variants)]
    for (dataset, horizon), row in groupby(lines, key=lambda line: (line.number.dataset, line.number.horizon)):
        cells = {line.number.variant: cell_text(line) for line in row}
        table.append((f"{dataset} {horizon}".strip() or "all", *(cells.get(variant, "") for variant in variants)))
    return table


def cell_text(line: Line) -> str:
    """Ours with its spread, and in brackets the published number and the difference."""
    if not line.comparable:
        return our_text(line) or "-"
    more = "" if line.difference is None else f", {line.difference:+.{decimals(line.number.text) + 1}f}"
    return f"{our_text(line) or '-'} ({line.number.text}{more})"


def our_text(line: Line) -> str:
    """Ours, a digit more than was published: mean ± standard deviation over seeds; "" if there is none."""
    if line.mean is None:
        return ""
    digits = decimals(line.number.text) + 1
    spread = "" if line.spread is None else f" ± {line.spread:.{digits}f}"
    return f"{line.mean:.{digits}f}{spread}"


def left_out(report: PaperReport, *, most: int | None = None) -> list[str]:
    """What was read and does not count, a bullet for each reason that names so many places at most."""
    groups: dict[str, list[Skipped]] = {}
    for one in report.skipped:
        groups.setdefault(one.reason.rstrip("."), []).append(one)
    lines = [f"- {_places([one.where for one in group], most)}: {reason}." for reason, group in groups.items()]
    others: dict[str, list[Run]] = {}
    for run in report.others:
        others.setdefault(departure(run), []).append(run)
    for reason, runs in others.items():
        places = _places(list(dict.fromkeys(str(run.path) for run in runs)), most)
        lines.append(f"- {len(runs)} records in {places} are not compared: {reason}.")
    lines += [f"- {note}" for note in (*report.evidence.notes, *report.remarks)]
    return lines or ["Nothing."]


def _reading(report: PaperReport) -> list[str]:
    return [
        "- A cell is ours, mean ± standard deviation over seeds (one seed: no deviation), in brackets the published "
        "number and ours less that; `-` is not measured, and under each table stands why.",
        "- A record counts for a cell if its config is the cell's protocol in everything but the seed. The page "
        "`index.html` beside this file leads from every number to its records and the command that made them.",
        "- Ranks are made of numbers rounded as the paper prints them; equal ones share the best rank, in "
        "classification the mean of their ranks, and each counts as top-1.",
        "- Tests take each data set and horizon as one observation, as the paper's ranks do; horizons of one data set "
        "are not independent, so that a small p is easier to have than it should be.",
    ]


def _reasons(lines: Iterable[Line]) -> list[str]:
    """Why numbers of a table are not measured, a bullet for each reason."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        if line.status != "measured":
            groups.setdefault(f"{line.status}: {line.reason}", []).append(line)
    return [
        f"- {len(group)} numbers {reason if reason != 'not run: not run yet' else 'not run yet'}"
        for reason, group in groups.items()
    ]


def _panels(lines: Iterable[Line]) -> Iterator[tuple[tuple[str, str, str], list[Line]]]:
    panels: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        metric = line.number.metric if line.comparable else line.metric
        panels.setdefault((line.number.backbone, line.protocol, metric), []).append(line)
    yield from panels.items()


def _by_table(lines: Iterable[Line]) -> Iterator[tuple[str, list[Line]]]:
    for name, group in groupby(lines, key=lambda line: line.number.table):
        yield name, list(group)


def _is_as_good(line: Line) -> bool:
    """Whether ours, rounded as printed, is no worse."""
    digits = decimals(line.number.text)
    ours, theirs = round(line.mean or 0.0, digits), line.number.value
    return ours >= theirs if higher_is_better(line.number.metric) else ours <= theirs


def _places(places: Sequence[str], most: int | None) -> str:
    more = 0 if most is None else len(places) - most
    return ", ".join(places[:most]) + (f" and {more} more" if more > 0 else "")
