"""Tables, notes and critical-difference diagrams of a comparison."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from toa._files import write_atomically
from toa.report.figures import save_figure
from toa.report.statistics import ALPHA, TIE_DIGITS, Row, Scores, least_p, lower_is_better
from toa.report.tables import Table, markdown_table

_SCALE_INCHES = 5.0


def system_table(scores: Scores, rows: Sequence[Row], baseline: str) -> Table:
    """One row per system."""
    base = scores.systems[scores.find(baseline)]
    table: Table = [("system", f"mean {scores.metric}", "average rank", f"W/T/L against {base}", "p", "p (Holm)")]
    for row in rows:
        against = "-" if row.wins is None else f"{row.wins}/{row.ties}/{row.losses}"
        table.append((row.system, f"{row.mean:.4f}", f"{row.rank:.2f}", against, _p(row.p), _p(row.p_holm)))
    return table


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.0e}"


def dataset_table(scores: Scores, rows: Sequence[Row]) -> Table:
    """One row per data set with the means over seeds, one column per system, ordered by rank."""
    order = [scores.systems.index(row.system) for row in rows]
    table: Table = [("data set", *(scores.systems[place] for place in order))]
    for dataset, values in zip(scores.datasets, scores.values, strict=True):
        table.append((dataset, *(f"{values[place]:.4f}" for place in order)))
    return table


def notes(scores: Scores, baseline: str) -> list[str]:
    """Sentences that explain the numbers."""
    count = len(scores.datasets)
    different = set(scores.seeds.values())
    seeds = ", ".join(map(str, next(iter(different)))) if len(different) == 1 else "that differ between data sets"
    better = "lower" if lower_is_better(scores.metric) else "higher"
    lines = [
        f"Task {scores.task}, protocol {scores.protocol}; {scores.metric} over {count} data sets, {better} is better; "
        f"means over seeds {seeds}."
    ]
    if least_p(count) <= ALPHA:
        lines.append(
            f"p: two-sided Wilcoxon signed-rank test against {scores.systems[scores.find(baseline)]} over data sets; "
            "Holm's correction covers all tested systems."
        )
    else:
        lines.append(
            f"No test is made: over {count} data sets p cannot be below {least_p(count):.3g}; p below {ALPHA} needs at "
            "least 6 data sets."
        )
    lines += [f"{dataset} is left out: {reason}." for dataset, reason in scores.left_out.items()]
    if reason := no_diagram(scores):
        lines.append(f"No critical-difference diagram: {reason}.")
    return lines


def no_diagram(scores: Scores) -> str:
    """Why there is no critical-difference diagram; "" if there is one."""
    if len(scores.systems) < 3:
        return f"it needs 3 systems, got {len(scores.systems)}"
    if len(scores.datasets) < 3:
        return f"it needs 3 data sets, got {len(scores.datasets)}"
    if np.ptp(scores.values, axis=1).max() == 0:
        return "all systems have the same score on every data set"
    return ""


def draw_critical_difference(scores: Scores) -> Figure:
    """Systems by average rank, with bars over those that do not differ at level 0.05, drawn by aeon.

    The bars come from one-sided Wilcoxon tests of all pairs at level 0.05 / (k - 1), after Friedman's test. Ranks have
    the same ties as in `compare`.

    Raises:
        ValueError: If there are too few systems or data sets, or nothing differs.
    """
    if reason := no_diagram(scores):
        raise ValueError(f"cannot draw a critical-difference diagram: {reason}.")
    from aeon.visualisation import plot_critical_difference

    # inches on each side for the longest name; the scale is between them
    margin = 0.16 * max(map(len, scores.systems))
    with warnings.catch_warnings():
        # for pairs that never differ, whose p is then 1
        warnings.simplefilter("ignore")
        figure, _ = plot_critical_difference(
            np.round(scores.values, TIE_DIGITS),
            list(scores.systems),
            lower_better=lower_is_better(scores.metric),
            alpha=ALPHA,
            width=2.0 * margin + _SCALE_INCHES,
            textspace=margin,
        )
    return figure


def write_comparison(scores: Scores, rows: Sequence[Row], baseline: str, out: Path) -> list[Path]:
    """Write comparison.md and, if possible, critical-difference.png; returns their paths."""
    written = [out / "comparison.md"]
    lines = [f"# {scores.metric} over {len(scores.datasets)} data sets", ""]
    lines += [*markdown_table(system_table(scores, rows, baseline)), "", *notes(scores, baseline), ""]
    if not no_diagram(scores):
        picture = save_figure(draw_critical_difference(scores), out / "critical-difference.png", tight=True)
        lines += [f"![critical difference]({picture.name})", ""]
        written.append(picture)
    lines += [*markdown_table(dataset_table(scores, rows)), ""]
    write_atomically(written[0], "\n".join(lines).encode())
    return written
