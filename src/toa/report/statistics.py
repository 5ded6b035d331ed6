"""Compare systems over many data sets: ranks, wins and losses, significance tests, tables and diagrams.

Alphabet: n data sets, k systems.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from matplotlib.figure import Figure

from toa._checks import check_choice
from toa._files import write_atomically
from toa.experiments.records import Record
from toa.report.figures import save_figure
from toa.report.tables import Rows, Table, escape_markdown, markdown_table

ALPHA = 0.05
# scores equal to this many decimals tie: means over seeds have rounding errors
TIE_DIGITS = 9
_SCALE_INCHES = 5.0
# last word of the metrics that are errors, ranks or times
_LOWER_IS_BETTER = ("mse", "mae", "rank", "ms")


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric is better."""
    return re.split("[/_]", metric)[-1] in _LOWER_IS_BETTER


def rank_scores(
    values: Any, metric: str, *, digits: int = TIE_DIGITS, ties: Literal["average", "min"] = "average"
) -> Float64[np.ndarray, "... k"]:
    """Ranks along the last axis, 1 is best, of values rounded to `digits` decimals.

    Args:
        digits: Values that are equal after rounding tie.
        ties: A tie gets the mean, or the best, of its ranks.
    """
    from scipy.stats import rankdata

    rounded = np.round(values, digits)
    ranks: Float64[np.ndarray, "... k"] = rankdata(
        rounded if lower_is_better(metric) else -rounded, method=ties, axis=-1
    )
    return ranks


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scores:
    """One score per data set and system, the mean over seeds.

    Args:
        seeds: Seeds of each data set.
        left_out: Data sets on which the systems have different runs, each with the reason.
    """

    task: str
    protocol: str
    metric: str
    datasets: tuple[str, ...]
    systems: tuple[str, ...]
    values: Float64[np.ndarray, "n k"]
    seeds: Mapping[str, tuple[int, ...]]
    left_out: Mapping[str, str]

    def find(self, name: str) -> int:
        """Index of the one system with a name, or whose name ends with it after a slash."""
        if name in self.systems:
            return self.systems.index(name)
        ends = [system for system in self.systems if system.endswith(f"/{name}")]
        if len(ends) != 1:
            found = f"several of {', '.join(ends)}" if ends else f"none of {', '.join(self.systems)}"
            raise ValueError(f"baseline {name!r} must name one system, got {found}; give a full name.")
        return self.systems.index(ends[0])


def system_name(record: Record) -> str:
    """Backbone and attention, with "-no-sor" if SOR is off for an attention that has it."""
    attention = record["config"].get("attention") or {}
    off = attention.get("sor") is False and str(attention.get("name", "")).startswith("toa")
    return f"{record['name']}{'-no-sor' if off else ''}"


def collect(records: Sequence[Record], metric: str) -> Scores:
    """Collect the scores of a metric.

    A data set counts if every system has a run with each seed that any system has. Others are left out, with a reason.

    Raises:
        ValueError: If the records have several tasks or protocols, different data under one name, different settings
            under one system, or a run twice; if no record has the metric; or if no data set counts.
    """
    task = _only("task", (record.get("task") for record in records))
    protocol = _only("protocol", (record["config"].get("protocol", "none") for record in records))
    check_choice("metric", metric, sorted({name for record in records for name in record["metrics"]}))
    runs: dict[str, dict[str, dict[int, Record]]] = {}
    for record in records:
        cell = runs.setdefault(_dataset(record), {}).setdefault(system_name(record), {})
        _check_new(record, cell)
        cell[record["seed"]] = record
    systems = list(dict.fromkeys(system for cells in runs.values() for system in cells))
    seeds, left_out, values = {}, {}, []
    for dataset, cells in runs.items():
        sums = sorted({str(run["data_checksum"])[:16] for cell in cells.values() for run in cell.values()})
        if len(sums) > 1:
            raise ValueError(
                f"records of {dataset} must use the same data, got {len(sums)} checksums: {', '.join(sums)}; run them "
                "again on one file."
            )
        expected = tuple(sorted({seed for cell in cells.values() for seed in cell}))
        if reason := _incomplete(cells, systems, expected, metric):
            left_out[dataset] = reason
        else:
            seeds[dataset] = expected
            values.append([mean(run["metrics"][metric] for run in cells[system].values()) for system in systems])
    if not values:
        reasons = "; ".join(f"{dataset}: {reason}" for dataset, reason in list(left_out.items())[:4])
        raise ValueError(f"a comparison needs a data set with the same runs of every system, got none ({reasons}).")
    return Scores(
        task=task,
        protocol=protocol,
        metric=metric,
        datasets=tuple(seeds),
        systems=tuple(systems),
        values=np.array(values, dtype=np.float64),
        seeds=seeds,
        left_out=left_out,
    )


def _only(what: str, values: Any) -> str:
    found = sorted({str(value) for value in values})
    if len(found) > 1:
        raise ValueError(f"records must have one {what}, got {', '.join(found)}; give the folders of one {what}.")
    return found[0]


def _dataset(record: Record) -> str:
    """The data set, and the horizon if there is one."""
    config = record["config"]
    name = Path(str(config["dataset"])).name.split("_TRAIN.ts")[0]
    return f"{name}-{config['horizon']}" if "horizon" in config else name


def _check_new(record: Record, cell: Mapping[int, Record]) -> None:
    """Raise if a run exists already, or differs from those of other seeds in more than the seed."""
    where = f"{system_name(record)} on {_dataset(record)}"
    if record["seed"] in cell:
        raise ValueError(
            f"records must have one run of {where} with seed {record['seed']}, got two (config hashes "
            f"{cell[record['seed']]['config_hash']} and {record['config_hash']}); leave one of them out."
        )
    for other in cell.values():
        ours, theirs = record["config"], other["config"]
        keys = [key for key in {**ours, **theirs} if key != "seed" and ours.get(key) != theirs.get(key)]
        if keys:
            raise ValueError(
                f"records of {where} must have one setting, got different values of {', '.join(sorted(keys))} "
                f"(seeds {other['seed']} and {record['seed']}); compare them separately."
            )


def _incomplete(
    cells: Mapping[str, Mapping[int, Record]], systems: Sequence[str], seeds: Sequence[int], metric: str
) -> str:
    """Why a data set does not count; "" if it does."""
    for system in systems:
        cell = cells.get(system, {})
        if not cell:
            return f"no run of {system}"
        if absent := [seed for seed in seeds if seed not in cell]:
            return f"no run of {system} with seed {', '.join(map(str, absent))}"
        if without := [seed for seed in seeds if metric not in cell[seed]["metrics"]]:
            return f"{metric} of {system} is undefined with seed {', '.join(map(str, without))}"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A system in a comparison.

    Attributes:
        rank: Average rank; 1 is best, ties share the mean of their ranks.
        wins, ties, losses: Numbers of data sets, against the baseline; None for the baseline.
        p: Two-sided Wilcoxon signed-rank test against the baseline; None if it was not made.
        p_holm: The same with Holm's correction for all tested systems.
    """

    system: str
    mean: float
    rank: float
    wins: int | None = None
    ties: int | None = None
    losses: int | None = None
    p: float | None = None
    p_holm: float | None = None


def least_p(count: int) -> float:
    """The smallest two-sided p of a signed-rank test over `count` data sets: 2^(1 - n)."""
    return 2.0 ** (1 - count)


def compare(scores: Scores, baseline: str = "softmax") -> list[Row]:
    """One row per system, best rank first.

    There is no p if the data sets are too few for any p below 0.05, or if no score differs.

    Args:
        baseline: A system, or the end of its name: "softmax" for "patchtst/softmax" if no other name ends so.
    """
    from scipy.stats import wilcoxon

    base = scores.find(baseline)
    ranks = rank_scores(scores.values, scores.metric)  # (n, k)
    gains = (-1.0 if lower_is_better(scores.metric) else 1.0) * (scores.values - scores.values[:, [base]])  # (n, k)
    gains[np.abs(gains) <= 10.0**-TIE_DIGITS] = 0.0
    rows: list[dict[str, Any]] = []
    for place, system in enumerate(scores.systems):
        gain = gains[:, place]
        row = {"system": system, "mean": float(scores.values[:, place].mean()), "rank": float(ranks[:, place].mean())}
        if place != base:
            row |= {"wins": int((gain > 0).sum()), "ties": int((gain == 0).sum()), "losses": int((gain < 0).sum())}
            if least_p(len(gain)) <= ALPHA and gain.any():
                row["p"] = float(wilcoxon(gain).pvalue)
        rows.append(row)
    tested = [row for row in rows if "p" in row]
    for row, corrected in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = corrected
    return sorted((Row(**row) for row in rows), key=lambda row: row.rank)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction: the i-th smallest of m values times m - i + 1, not decreasing, at most 1."""
    corrected = [0.0] * len(values)
    highest = 0.0
    for done, place in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        highest = max(highest, min(1.0, values[place] * (len(values) - done)))
        corrected[place] = highest
    return corrected


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
    the same ties as in `compare`. Only for scores without a reason in `no_diagram`.
    """
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
    lines = [f"# {escape_markdown(scores.metric)} over {len(scores.datasets)} data sets", ""]
    lines += [*markdown_table(_escaped(system_table(scores, rows, baseline))), ""]
    lines += [*map(escape_markdown, notes(scores, baseline)), ""]
    if not no_diagram(scores):
        picture = save_figure(draw_critical_difference(scores), out / "critical-difference.png", tight=True)
        lines += [f"![critical difference]({picture.name})", ""]
        written.append(picture)
    lines += [*markdown_table(_escaped(dataset_table(scores, rows))), ""]
    write_atomically(written[0], "\n".join(lines).encode())
    return written


def _escaped(rows: Rows) -> Rows:
    """A table whose names, in the first row and column, cannot become Markdown or HTML."""
    header, *body = rows
    return [list(map(escape_markdown, header)), *([escape_markdown(row[0]), *row[1:]] for row in body)]
