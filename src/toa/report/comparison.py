"""A comparison to look at: tables as text and Markdown, and the critical-difference diagram."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from toa._files import write_atomically
from toa.report.statistics import ALPHA, Row, Scores, find_system, least_p

_SCALE_INCHES = 5.0


def system_table(scores: Scores, rows: Sequence[Row], baseline: str) -> list[tuple[str, ...]]:
    """A header and a row for each system."""
    base = find_system(scores, baseline)
    table: list[tuple[str, ...]] = [
        ("system", f"mean {scores.metric}", "average rank", f"W/T/L against {base}", "p", "p (Holm)")
    ]
    for row in rows:
        against = "-" if row.wins is None else f"{row.wins}/{row.ties}/{row.losses}"
        table.append((row.system, f"{row.mean:.4f}", f"{row.rank:.2f}", against, _p(row.p), _p(row.p_holm)))
    return table


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.0e}"


def dataset_table(scores: Scores, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A header and a row for each data set: the means over seeds, systems by rank."""
    order = [scores.systems.index(row.system) for row in rows]
    table = [("data set", *(scores.systems[place] for place in order))]
    for dataset, values in zip(scores.datasets, scores.values, strict=True):
        table.append((dataset, *(f"{values[place]:.4f}" for place in order)))
    return table


def notes(scores: Scores, baseline: str) -> list[str]:
    """What a reader has to know of the numbers, a sentence each."""
    count = len(scores.datasets)
    kinds = set(scores.seeds.values())
    seeds = ", ".join(map(str, next(iter(kinds)))) if len(kinds) == 1 else "as in the records, not the same everywhere"
    said = [
        f"Task {scores.task}, protocol {scores.protocol}; {scores.metric} over {count} data sets, "
        f"{'lower' if scores.lower_is_better else 'higher'} is better; means over seeds {seeds}."
    ]
    if least_p(count) <= ALPHA:
        said.append(
            f"p: Wilcoxon signed-rank test against {find_system(scores, baseline)} over data sets, two-sided; Holm's "
            "correction is for all systems that are tested."
        )
    else:
        said.append(
            f"No test is made: over {count} data sets no p of the signed-rank test is under {least_p(count):.3g}; 6 "
            f"data sets are the fewest that can show p under {ALPHA}."
        )
    said += [f"{dataset} is left out: {reason}." for dataset, reason in scores.left_out.items()]
    if reason := no_diagram(scores):
        said.append(f"No critical-difference diagram: {reason}.")
    return said


def no_diagram(scores: Scores) -> str:
    """Why there can be no critical-difference diagram, or nothing."""
    if len(scores.systems) < 3:
        return f"it needs 3 systems, got {len(scores.systems)}"
    if len(scores.datasets) < 3:
        return f"it needs 3 data sets, got {len(scores.datasets)}"
    if np.ptp(scores.values, axis=1).max() == 0:
        return "all systems have the same score on every data set"
    return ""


def draw_critical_difference(scores: Scores) -> Figure:
    """Systems by average rank, bars over those that do not differ at level 0.05; aeon's diagram.

    Its bars come from one-sided Wilcoxon tests between all pairs at level 0.05 / (k - 1), after Friedman's test.

    Raises:
        ValueError: If there are too few systems or data sets, or nothing differs.
    """
    if reason := no_diagram(scores):
        raise ValueError(f"a critical-difference diagram must have something to show: {reason}.")
    from aeon.visualisation import plot_critical_difference

    # inches on each side for the longest name; the scale lies between them
    margin = 0.16 * max(map(len, scores.systems))
    with warnings.catch_warnings():
        # of pairs that never differ, whose p is then 1
        warnings.simplefilter("ignore")
        figure, _ = plot_critical_difference(
            scores.values,
            list(scores.systems),
            lower_better=scores.lower_is_better,
            alpha=ALPHA,
            width=2.0 * margin + _SCALE_INCHES,
            textspace=margin,
        )
    return figure


def write_comparison(scores: Scores, rows: Sequence[Row], baseline: str, out: Path) -> list[Path]:
    """Write comparison.md and, where there can be one, critical-difference.png; returns their paths."""
    page = out / "comparison.md"
    picture = out / "critical-difference.png"
    lines = [f"# {scores.metric} over {len(scores.datasets)} data sets", ""]
    lines += [*markdown_table(system_table(scores, rows, baseline)), "", *notes(scores, baseline), ""]
    written = [page]
    if not no_diagram(scores):
        out.mkdir(parents=True, exist_ok=True)
        figure = draw_critical_difference(scores)
        figure.savefig(picture, dpi=130, bbox_inches="tight")
        plt.close(figure)
        lines += [f"![critical difference]({picture.name})", ""]
        written.append(picture)
    lines += [*markdown_table(dataset_table(scores, rows)), ""]
    write_atomically(page, "\n".join(lines).encode())
    return written


def markdown_table(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table from a header and rows; all columns but the first are to the right."""
    header, *rows = table
    rule = ["---", *("---:" for _ in header[1:])]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]
