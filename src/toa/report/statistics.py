"""Compare systems over many data sets: ranks, wins and losses, gains, significance tests, tables and diagrams.

A data set is one observation: horizons of one set are not independent, so its score is the mean over them; of errors
the geometric mean, because errors of different horizons have different sizes.
Alphabet: n data sets, k systems.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from matplotlib.figure import Figure

from toa._checks import ArgumentError, check_choice
from toa._files import write_atomically
from toa.experiments.records import Record
from toa.report import gains
from toa.report.figures import save_figure
from toa.report.tables import TEXTS, Rows, Table, escape_markdown, markdown_table, number

# scores equal to this many decimals tie: means over seeds have rounding errors
TIE_DIGITS = 9
_SCALE_INCHES = 5.0
# settings that the name of a system or of a run has
_NAMED = ("attention", "backbone", "seed")

# one row of systems by data set and horizon
Cells = Mapping[str, Mapping[int | None, Sequence[float]]]


def rank_scores(
    values: Any, metric: str, *, digits: int = TIE_DIGITS, ties: Literal["average", "min"] = "average"
) -> Float64[np.ndarray, "... k"]:
    """Ranks along the last axis, 1 is best, of values rounded to `digits` decimals; ties get the mean or best rank."""
    from scipy.stats import rankdata

    rounded = np.round(values, digits)
    ranks: Float64[np.ndarray, "... k"] = rankdata(
        rounded if gains.lower_is_better(metric) else -rounded, method=ties, axis=-1
    )
    return ranks


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SystemScores:
    """One score per data set and system, from the means over seeds.

    Args:
        cells: Means over seeds by data set, then by horizon, None for a task without.
        values: `mean_over_horizons` of the cells of each data set.
        seeds: Seeds of each data set and horizon.
        left_out: Data sets on which the systems have different runs, each with the reason.
        differences: Settings that are not the same for all systems, beside the attention.
    """

    task: str
    protocol: str
    metric: str
    systems: tuple[str, ...]
    cells: Cells
    values: Float64[np.ndarray, "n k"]
    seeds: Mapping[str, tuple[int, ...]]
    left_out: Mapping[str, str]
    differences: tuple[str, ...] = ()

    def find(self, name: str) -> int:
        """Index of the one system with a name, or whose name ends with it after a slash."""
        if name in self.systems:
            return self.systems.index(name)
        ends = [system for system in self.systems if system.endswith(f"/{name}")]
        if len(ends) != 1:
            found = f"several of {', '.join(ends)}" if ends else f"none of {', '.join(self.systems)}"
            raise ArgumentError(f"baseline {name!r}", "name one system", found, "give a full name")
        return self.systems.index(ends[0])


def system_name(record: Record) -> str:
    """Backbone and attention, with "-no-sor" if SOR is off for an attention that has it."""
    attention = record["config"].get("attention") or {}
    off = attention.get("sor") is False and str(attention.get("name", "")).startswith("toa")
    return f"{record['name']}{'-no-sor' if off else ''}"


def collect(records: Sequence[Record], metric: str) -> SystemScores:
    """Collect the scores of a metric.

    A data set and horizon counts if every system has a run with each seed that any system has. Others are left out,
    with a reason.

    Raises:
        ValueError: If the records have several tasks or protocols, different data under one name, different settings
            under one system, or a run twice; if no record has the metric; or if no data set counts.
    """
    task = _only("task", (record.get("task") for record in records))
    protocol = _only("protocol", (record["config"].get("protocol", "none") for record in records))
    check_choice("metric", metric, sorted({name for record in records for name in record["metrics"]}))
    runs: dict[tuple[str, int | None], dict[str, dict[int, Record]]] = {}
    for record in records:
        cell = runs.setdefault(_dataset(record), {}).setdefault(system_name(record), {})
        _check_new(record, cell)
        cell[record["seed"]] = record
    systems = tuple(dict.fromkeys(system for by_system in runs.values() for system in by_system))
    seeds = {}
    left_out = {}
    differences = set[str]()
    cells: dict[str, dict[int | None, list[float]]] = {}
    for (name, horizon), by_system in runs.items():
        label = _label(name, horizon)
        sums = sorted({str(run["data_checksum"])[:16] for cell in by_system.values() for run in cell.values()})
        if len(sums) > 1:
            raise ArgumentError(
                f"records of {label}",
                "use the same data",
                f"{len(sums)} checksums: {', '.join(sums)}",
                "run them again on one file",
            )
        expected = tuple(sorted({seed for cell in by_system.values() for seed in cell}))
        if reason := _incomplete(by_system, systems, expected, metric):
            left_out[label] = reason
        else:
            seeds[label] = expected
            configs = [flatten(next(iter(by_system[system].values()))["config"]) for system in systems]
            differences |= {
                name for name in set().union(*configs) if len({str(config.get(name)) for config in configs}) > 1
            }
            means = [mean(run["metrics"][metric] for run in by_system[system].values()) for system in systems]
            cells.setdefault(name, {})[horizon] = means
    if not cells:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in list(left_out.items())[:4])
        raise ValueError(f"a comparison needs a data set with the same runs of every system, got none ({reasons}).")
    return SystemScores(
        task=task,
        protocol=protocol,
        metric=metric,
        systems=systems,
        cells=cells,
        values=_set_scores(cells, metric),
        seeds=seeds,
        left_out=left_out,
        differences=tuple(sorted(name for name in differences if not name.startswith(_NAMED))),
    )


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by names such as training.epochs."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _set_scores(cells: Cells, metric: str) -> Float64[np.ndarray, "n k"]:
    return np.array([gains.mean_over_horizons(list(rows.values()), metric) for rows in cells.values() if rows])


def _only(what: str, values: Any) -> str:
    found = sorted({str(value) for value in values})
    if len(found) > 1:
        raise ArgumentError("records", f"have one {what}", ", ".join(found), f"give the folders of one {what}")
    return found[0]


def _dataset(record: Record) -> tuple[str, int | None]:
    """The data set, and the horizon if there is one."""
    config = record["config"]
    return Path(str(config["dataset"])).name.split("_TRAIN.ts")[0], config.get("horizon")


def _label(name: str, horizon: int | None) -> str:
    return name if horizon is None else f"{name}-{horizon}"


def _check_new(record: Record, cell: Mapping[int, Record]) -> None:
    """Raise if a run exists already, or differs from those of other seeds in more than the seed."""
    where = f"{system_name(record)} on {_label(*_dataset(record))}"
    if record["seed"] in cell:
        raise ArgumentError(
            "records",
            f"have one run of {where} with seed {record['seed']}",
            f"two (config hashes {cell[record['seed']]['config_hash']} and {record['config_hash']})",
            "leave one of them out",
        )
    for other in cell.values():
        ours, theirs = record["config"], other["config"]
        keys = [key for key in {**ours, **theirs} if key != "seed" and ours.get(key) != theirs.get(key)]
        if keys:
            raise ArgumentError(
                f"records of {where}",
                "have one setting",
                f"different values of {', '.join(sorted(keys))} (seeds {other['seed']} and {record['seed']})",
                "compare them separately",
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
        gain: Mean gain over the baseline, positive is better: in percent of an error, else in points.
        interval: 95 % bootstrap interval of the gain, data sets resampled; None for fewer than three. Of few sets it is
            too narrow.
        t_interval: t interval of the gain at level 1 - 0.05 / m, with m tested systems (Bonferroni); None likewise.
        detectable: Mean gain that the t test at level 0.05 / m finds with probability 0.8; None for fewer than three
            data sets.
        rests_on: The one data set, or data set and horizon, without which the t interval contains zero; "" if none.
        p: Two-sided Wilcoxon signed-rank test against the baseline; None if the data sets are too few for it.
        p_holm: The same with Holm's correction for all tested systems.
    """

    system: str
    mean: float
    rank: float
    wins: int | None = None
    ties: int | None = None
    losses: int | None = None
    gain: float | None = None
    interval: tuple[float, float] | None = None
    t_interval: tuple[float, float] | None = None
    detectable: float | None = None
    rests_on: str = ""
    p: float | None = None
    p_holm: float | None = None


def compare(scores: SystemScores, baseline: str = "softmax") -> list[Row]:
    """One row per system, best rank first.

    There is no p if the data sets are too few for any corrected p below 0.05, or if no score differs.

    Args:
        baseline: A system, or the end of its name: "softmax" for "patchtst/softmax" if no other name ends so.
    """
    from scipy.stats import wilcoxon

    base = scores.find(baseline)
    tested = len(scores.systems) - 1
    ranks = rank_scores(scores.values, scores.metric)  # (n, k)
    changes = _gains(scores.values, base, scores.metric)  # (n, k)
    enough_for_t = len(changes) >= gains.FEWEST_SETS
    enough_for_ranks = len(changes) >= gains.fewest_for_ranks(max(tested, 1))
    rows: list[dict[str, Any]] = []
    for place, system in enumerate(scores.systems):
        gain = changes[:, place]
        row = {"system": system, "mean": float(scores.values[:, place].mean()), "rank": float(ranks[:, place].mean())}
        if place != base:
            row |= {"wins": int((gain > 0).sum()), "ties": int((gain == 0).sum()), "losses": int((gain < 0).sum())}
            row |= {"gain": float(gain.mean()), "interval": gains.gain_interval(gain)}
            row["t_interval"] = gains.t_interval(gain, tested)
            if enough_for_t:
                row |= {"detectable": gains.detectable_gain(gain, tested), "rests_on": _rests_on(scores, base, place)}
            if enough_for_ranks and gain.any():
                # zeros do not count; of at most 13 numbers scipy would try all their signs, which takes long
                row["p"] = float(wilcoxon(gain[gain != 0] if len(gain) <= 13 else gain).pvalue)
        rows.append(row)
    with_p = [row for row in rows if "p" in row]
    for row, corrected in zip(with_p, gains.holm([row["p"] for row in with_p]), strict=True):
        row["p_holm"] = corrected
    return sorted((Row(**row) for row in rows), key=lambda row: row.rank)


def _gains(values: Float64[np.ndarray, "n k"], base: int, metric: str) -> Float64[np.ndarray, "n k"]:
    """Gains over one column; differences that are rounding errors are none."""
    plain = values[:, [base]]
    same = np.abs(values - plain) <= 10.0**-TIE_DIGITS
    return np.where(same, 0.0, gains.percent_gain(values, plain, metric))


def _rests_on(scores: SystemScores, base: int, place: int) -> str:
    """The cell without which an interval that excludes zero is the furthest from doing so; "" if it always does."""

    def interval(values: Float64[np.ndarray, "n k"]) -> tuple[float, float]:
        return gains.t_interval(_gains(values, base, scores.metric)[:, place], len(scores.systems) - 1) or (0.0, 0.0)

    sign = gains.excludes_zero(interval(scores.values))
    bounds = {}
    for name, rows in scores.cells.items():
        for left in rows if sign else ():
            kept = {**scores.cells, name: {horizon: row for horizon, row in rows.items() if horizon != left}}
            label = name if left is None else f"{name} at {left}"
            bounds[label] = min(sign * bound for bound in interval(_set_scores(kept, scores.metric)))
    cell = min(bounds, key=bounds.__getitem__, default="")
    return cell if cell and bounds[cell] <= 0 else ""


def system_table(scores: SystemScores, rows: Sequence[Row]) -> Table:
    """One row per system."""
    head = ("system", f"mean {scores.metric}", "average rank", "W/T/L", f"gain, {gains.gain_unit(scores.metric)}")
    table: Table = [(*head, "bootstrap interval", "t interval", "detectable", "p", "p (Holm)")]
    for row in rows:
        against = "-" if row.wins is None else f"{row.wins}/{row.ties}/{row.losses}"
        intervals = (
            "-" if one is None else f"{one[0]:+.2f} to {one[1]:+.2f}" for one in (row.interval, row.t_interval)
        )
        tests = (number(p, ".4f" if p is None or p >= 1e-4 else ".0e") for p in (row.p, row.p_holm))
        size = (number(row.gain, "+.2f"), *intervals, number(row.detectable, ".2f"))
        table.append((row.system, f"{row.mean:.4f}", f"{row.rank:.2f}", against, *size, *tests))
    return table


def dataset_table(scores: SystemScores, rows: Sequence[Row]) -> Table:
    """One row per data set with its scores, one column per system, ordered by rank."""
    order = [scores.systems.index(row.system) for row in rows]
    table: Table = [("data set", *(scores.systems[place] for place in order))]
    for dataset, values in zip(scores.cells, scores.values, strict=True):
        table.append((dataset, *(f"{values[place]:.4f}" for place in order)))
    return table


def notes(scores: SystemScores, baseline: str) -> list[str]:
    """Sentences that explain the numbers."""
    count = len(scores.cells)
    tested = max(len(scores.systems) - 1, 1)
    different = set(scores.seeds.values())
    seeds = ", ".join(map(str, next(iter(different)))) if len(different) == 1 else "that differ between data sets"
    facts = {
        "scores": scores,
        "baseline": scores.systems[scores.find(baseline)],
        "better": "lower" if gains.lower_is_better(scores.metric) else "higher",
        "seeds": seeds,
        "horizons": _horizon_note(scores),
        "count": count,
        "tested": tested,
        "least": tested * gains.least_p(count),
        "fewest": gains.fewest_for_ranks(tested),
        "alpha": gains.ALPHA,
        "power": gains.POWER,
    }
    parts = ("scores", "gains", "tested" if count >= gains.fewest_for_ranks(tested) else "untested")
    lines: list[str] = [TEXTS["comparison"][part].format(**facts) for part in parts]
    if scores.differences:
        lines.append(f"The systems differ in more than the attention: {', '.join(scores.differences)}.")
    lines += [f"{dataset} is left out: {reason}." for dataset, reason in scores.left_out.items()]
    if reason := no_diagram(scores):
        lines.append(f"No critical-difference diagram: {reason}.")
    return lines


def _horizon_note(scores: SystemScores) -> str:
    """Which horizons the score of a data set is the mean of; "" for a task without."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, rows in scores.cells.items():
        groups.setdefault(tuple(sorted(horizon for horizon in rows if horizon is not None)), []).append(name)
    parts = [f"{', '.join(names)}: {', '.join(map(str, found))}" for found, names in groups.items() if found]
    kind = "geometric mean" if gains.lower_is_better(scores.metric) else "mean"
    return f" A data set counts once, with the {kind} over its horizons ({'; '.join(parts)})." if parts else ""


def no_diagram(scores: SystemScores) -> str:
    """Why there is no critical-difference diagram; "" if there is one."""
    if len(scores.systems) < 3:
        return f"it needs 3 systems, got {len(scores.systems)}"
    if len(scores.cells) < 3:
        return f"it needs 3 data sets, got {len(scores.cells)}"
    if np.ptp(scores.values, axis=1).max() == 0:
        return "all systems have the same score on every data set"
    return ""


def draw_critical_difference(scores: SystemScores) -> Figure:
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
            lower_better=gains.lower_is_better(scores.metric),
            alpha=gains.ALPHA,
            width=2.0 * margin + _SCALE_INCHES,
            textspace=margin,
        )
    return figure


def write_comparison(scores: SystemScores, rows: Sequence[Row], baseline: str, out: Path) -> list[Path]:
    """Write comparison.md and, if possible, critical-difference.png; returns their paths."""
    written = [out / "comparison.md"]
    lines = [f"# {escape_markdown(scores.metric)} over {len(scores.cells)} data sets", ""]
    lines += [*markdown_table(_escaped(system_table(scores, rows))), ""]
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
