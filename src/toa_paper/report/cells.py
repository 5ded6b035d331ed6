"""The numbers of the paper with our results: a mean over seeds, or the reason why there is none.

`RecipeCell` has published numbers, `toa-paper` and `toa` side by side.
"""

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from toa.experiments.run import Job
from toa.report.gains import lower_is_better
from toa.report.statistics import flatten, rank_scores
from toa_paper.published import PublishedNumber, published_numbers
from toa_paper.report.evidence import Evidence, Run, Setting, setting_of
from toa_paper.tables import CLASSIFIERS, TABLES, Cell, missing_data, protocol_job, table_cells

STATUSES = ("measured", "partial", "failed", "not run", "no data", "no settings")

# anomaly detection: the same runs under the strict rules
_STRICT = {"f1_pa": "strict/f1"}

# protocol of the paper
PAPER = "toa-paper"
# our own protocol, which stands beside it
RECIPE = "toa"
# a table of times on the authors' machine with their programs: no difference from ours is a gain
_TIMES = "efficiency"
# per task: the table of the paper and the metric
_RECIPE_TASKS = {"forecast": ("forecast-full", "mse"), "classify": ("classification", "accuracy")}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A published number and ours.

    Attributes:
        protocol: Protocol of our runs, and the evaluation rules if there are several.
        own: Whether this is the protocol of the table; otherwise an additional one.
        values: Our value per seed; a mean rank has one value with seed None. Empty if there is none.
        status, reason: "measured", or why there is no value.
    """

    number: PublishedNumber
    protocol: str
    metric: str
    own: bool = True
    values: Mapping[int | None, float]
    runs: tuple[Run, ...] = ()
    status: str
    reason: str = ""

    @property
    def comparable(self) -> bool:
        """Whether the published number has the same metric."""
        return self.metric not in _STRICT.values()

    @cached_property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return fmean(self.values.values()) if self.values else None

    @cached_property
    def spread(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return stdev(self.values.values()) if len(self.values) > 1 else None

    @property
    def validation(self) -> dict[int | None, float]:
        """The validation metric by seed, of the runs that have one."""
        name = f"val_{self.metric}"
        return {run.seed: run.record["metrics"][name] for run in self.runs if name in run.record["metrics"]}

    @property
    def difference(self) -> float | None:
        """Ours minus the published number; None for times, which depend on the machine and the program."""
        if self.mean is None or not self.comparable or self.number.table == _TIMES:
            return None
        return self.mean - self.number.value


def paper_entries(
    evidence: Evidence, *, tables: Iterable[str] | None = None, data_dir: Path | None = None
) -> list[Entry]:
    """One entry per published number, followed by entries of other protocols and rules that were measured.

    A record counts for a number if its config equals that of the number's protocol except for the seed.
    """
    named = dict.fromkeys((run.record["task"], run.record["config"].get("protocol")) for run in evidence.runs)
    protocols = [(task, name) for task, name in named if name is not None]
    return [
        entry
        for table in (TABLES if tables is None else tables)
        for cell in table_cells(table)
        for entry in _entries(cell, evidence, protocols, data_dir)
    ]


def _entries(
    cell: Cell, evidence: Evidence, protocols: Iterable[tuple[str, str]], data_dir: Path | None
) -> Iterator[Entry]:
    """The entry of a cell, then those of other rules and protocols that have values."""
    number = cell.number
    table = TABLES[cell.number.table]
    own_protocol = table.protocols.get(number.backbone, "")
    own_settings = [_job_setting(job) for job in cell.jobs]
    metrics = [cell.metric, *([_STRICT[number.metric]] if number.metric in _STRICT else [])]
    read = [(own_settings, own_protocol, metric) for metric in metrics]
    horizon = int(number.horizon) if number.horizon.isdecimal() else None
    for task, protocol in protocols if len(cell.jobs) == 1 else ():
        # a protocol need not cover the cell
        with suppress(ValueError):
            if task == table.task and protocol != own_protocol:
                job = protocol_job(task, protocol, cell.datasets[0], horizon, number.backbone, number.variant)
                read.append(([_job_setting(job)], protocol, cell.metric))
    for place, (settings, protocol, metric) in enumerate(read):
        runs_by_seed = [
            {seed: run for seed, run in evidence.by_setting.get(setting, {}).items() if metric in run.record["metrics"]}
            for setting in settings
        ]
        values = _mean_rank(cell, runs_by_seed) if cell.combine == "rank" else _mean_values(cell, runs_by_seed, metric)
        if place and not values:
            continue
        status, reason = ("measured", "") if values else _gap(cell, evidence, data_dir, settings, runs_by_seed)
        rules, slash, _ = metric.partition("/")
        yield Entry(
            number=number,
            protocol=f"{protocol}, {rules}" if slash else protocol,
            metric=metric,
            own=place == 0,
            values=values,
            # a mean rank, whose seed is None, uses the runs of all seeds
            runs=tuple(
                run
                for setting in runs_by_seed
                for seed, run in setting.items()
                if not values or {seed, None} & values.keys()
            ),
            status=status,
            reason=reason,
        )


def _mean_values(cell: Cell, runs_by_seed: Sequence[Mapping[int | None, Run]], metric: str) -> dict[int | None, float]:
    """Mean over the runs of a cell by seed, for the seeds that all of them have."""
    shared = set.intersection(*map(set, runs_by_seed)) if runs_by_seed else set()
    seeds = sorted(shared, key=lambda seed: -1 if seed is None else seed)
    return {seed: cell.factor * fmean(runs[seed].record["metrics"][metric] for runs in runs_by_seed) for seed in seeds}


def _gap(
    cell: Cell,
    evidence: Evidence,
    data_dir: Path | None,
    settings: Sequence[Setting],
    runs_by_seed: Sequence[Mapping[int | None, Run]],
) -> tuple[str, str]:
    """Why a cell has no values."""
    if cell.reason:
        return "no settings", cell.reason
    for setting, runs in zip(settings, runs_by_seed, strict=True):
        if setting in evidence.failed and not runs:
            return "failed", evidence.failed[setting]
    done = sum(bool(runs) for runs in runs_by_seed)
    if done == len(runs_by_seed):
        return "partial", "no seed has all runs"
    files = ", ".join(file for runs in missing_data(cell, data_dir) for file in runs.files)
    missing = f"file missing: {files}" if files else ""
    if done:
        return "partial", f"{done} of {len(runs_by_seed)} runs are done{'; ' if missing else ''}{missing}"
    if any(setting in evidence.disputed for setting in settings):
        return "partial", "its records contradict each other; see the records left out"
    if any(setting in evidence.by_setting for setting in settings):
        return "partial", f"{cell.metric} is undefined in its records"
    return ("no data", missing) if missing else ("not run", "not run yet")


@cache
def _job_setting(job: Job) -> Setting:
    return setting_of(job.task, job.config)


def _mean_rank(cell: Cell, runs_by_seed: Sequence[Mapping[int | None, Run]]) -> dict[int | None, float]:
    """Mean rank of a variant over the data sets of the classification table."""
    if not runs_by_seed or not all(runs_by_seed):
        return {}
    digits = max(decimals(row.text) for row in published_numbers() if row.table == "classification")
    means = [fmean(run.record["metrics"][cell.metric] for run in runs.values()) for runs in runs_by_seed]
    # jobs are ordered by data set, then by variant
    ranks = rank_scores(np.reshape(means, (-1, len(CLASSIFIERS))), "accuracy", digits=digits)
    return {None: fmean(ranks[:, CLASSIFIERS.index(cell.number.variant)])}


def decimals(text: str) -> int:
    """Digits after the point of a printed number."""
    return len(text.partition(".")[2])


def protocol_setting(run: Run, protocol: str) -> Setting | None:
    """The setting that a run of this data set, model and attention has in a protocol; None if it has no such run."""
    config = run.record["config"]
    names = config.get("dataset"), config.get("horizon"), config.get("backbone")
    with suppress(ValueError, KeyError):
        return _job_setting(protocol_job(run.record["task"], protocol, *names, _variant(config)))
    return None


def _variant(config: Mapping[str, Any]) -> str:
    """The attention of a config, as the tables name it."""
    attention = config.get("attention") or {}
    return f"{attention.get('name', '')}{'-nosor' if attention.get('sor') is False else ''}"


def departure(run: Run) -> str:
    """Why a run belongs to no cell: the settings that differ from its protocol, if they can be found."""
    config = run.record["config"]
    setting = protocol_setting(run, config["protocol"]) if "protocol" in config else None
    if setting is None:
        return "the paper has no such run"
    expected, ours = (flatten(json.loads(one)) for _, one in (setting, run.setting))
    names = [name for name in expected | ours if expected.get(name) != ours.get(name)]
    if not names:
        return f"no table of the paper has this run of {config['protocol']}"
    return f"settings differ from {config['protocol']}: {', '.join(names)}"


@dataclass(frozen=True, eq=False)
class RecipeCell:
    """One backbone, data set and horizon that was run under `toa`.

    Attributes:
        horizon: None in classification.
        runs: Runs by protocol and variant; variants without SOR end in "-nosor".
        published: The paper's numbers by variant; empty if it has none.
    """

    task: str
    backbone: str
    dataset: str
    horizon: int | None
    metric: str
    runs: Mapping[tuple[str, str], list[Run]]
    published: Mapping[str, float]

    @property
    def data(self) -> str:
        """Data set and horizon."""
        return self.dataset if self.horizon is None else f"{self.dataset} {self.horizon}"

    def mean(self, protocol: str, variant: str, metric: str = "", seeds: Container[int] | None = None) -> float | None:
        """Mean of a metric over these seeds, all if None; None if no record has it."""
        runs = self.runs.get((protocol, variant), ())
        records = (run.record["metrics"] for run in runs if seeds is None or run.record["seed"] in seeds)
        values = [metrics[metric or self.metric] for metrics in records if (metric or self.metric) in metrics]
        return fmean(values) if values else None

    def chosen(self, protocol: str) -> str:
        """The variant of TOA with the best validation metric; "" if there is none."""
        found = {name: self.mean(protocol, name, f"val_{self.metric}") for own, name in self.runs if own == protocol}
        values = {name: value for name, value in found.items() if value is not None and is_toa(name)}
        best = min if lower_is_better(self.metric) else max
        return best(values, key=values.__getitem__, default="")

    def change(self, value: float | None, base: float | None) -> float | None:
        """Change against a base: in percent for an error, in points for an accuracy."""
        if value is None or base is None:
            return None
        return 100.0 * (value / base - 1.0 if lower_is_better(self.metric) else value - base)

    def gain(self, protocol: str) -> float | None:
        """Change of the chosen TOA against softmax."""
        return self.change(self.mean(protocol, self.chosen(protocol)), self.mean(protocol, "softmax"))

    def without_sor(self) -> float | None:
        """Change of the chosen TOA under `toa` if it is trained without SOR, over the seeds that have both."""
        names = [f"{self.chosen(RECIPE)}{end}" for end in ("-nosor", "")]
        seeds = [{run.record["seed"] for run in self.runs.get((RECIPE, name), ())} for name in names]
        return self.change(*(self.mean(RECIPE, name, seeds=seeds[0] & seeds[1]) for name in names))


def contribution(runs: Iterable[Run]) -> float | None:
    """Mean rise of the validation error with M = 0, in percent; None if no record states it."""
    found = [run.record.get("operators", {}).get("contributions", {}).get("operators") for run in runs]
    values = [value for value in found if value is not None]
    return 100.0 * fmean(values) if values else None


def recipe_cells(evidence: Evidence) -> list[RecipeCell]:
    """Every cell that was run under `toa`, with the runs of both protocols, by task, backbone, data set and horizon."""
    found: dict[tuple[str, str, str, int], dict[tuple[str, str], list[Run]]] = {}
    for run in evidence.runs:
        task, config = run.record["task"], run.record["config"]
        for protocol in (PAPER, RECIPE) if task in _RECIPE_TASKS else ():
            if protocol_setting(run, protocol) == run.setting:
                key = (task, config["backbone"], config["dataset"], config.get("horizon") or 0)
                found.setdefault(key, {}).setdefault((protocol, _variant(config)), []).append(run)
    cells = []
    for (task, backbone, dataset, horizon), runs in sorted(found.items()):
        if any(protocol == RECIPE for protocol, _ in runs):
            table, metric = _RECIPE_TASKS[task]
            names = (table, dataset, backbone, metric)
            published = {
                row.variant: row.value
                for row in published_numbers()
                if (row.table, row.dataset, row.backbone, row.metric) == names and row.horizon in (str(horizon), "")
            }
            cells.append(RecipeCell(task, backbone, dataset, horizon or None, metric, runs, published))
    return cells


def is_toa(variant: str) -> bool:
    """Whether a variant is TOA with SOR."""
    return variant.startswith("toa") and not variant.endswith("-nosor")
