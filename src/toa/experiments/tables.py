"""Every table of the paper as data: for each published number the runs that make it here, or why there are none.

A table is described once, by `TABLES`; its cells follow from the description and the rows of `published.csv`.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from toa._checks import check_choice
from toa._registry import Registry
from toa.data import (
    ANOMALY_SETS,
    CLASSIFICATION_SETS,
    DATASETS,
    DatasetNotFoundError,
    locate,
    locate_anomaly,
    locate_classification,
)
from toa.experiments.anomaly_config import resolve_anomaly
from toa.experiments.classification_config import resolve_classify
from toa.experiments.demixing import demixing_config
from toa.experiments.jobs import Job
from toa.experiments.protocols import resolve
from toa.experiments.published import PublishedNumber, published_numbers
from toa.experiments.settings import load
from toa.experiments.step_run import StepRun

FIRST_SEED = 2024
_PAPER = "toa-paper"
_LONG, _SHORT = (96, 192, 336, 720), (12, 24, 48, 96)
# what the paper calls otherwise
_DATASETS = {"SWAT": "SWaT"}
_ATTENTIONS = {"hyperglu-dplr": "hyperglu", "auto-correlation": None, "probsparse": None}
_NO_SOR = "-nosor"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table of the paper.

    Attributes:
        about: What it shows.
        task: A name of `toa.experiments.jobs.KINDS`.
        metrics: From the metric as published to that of a record.
        protocols: For each backbone the protocol that its runs follow. One without settings of attention takes those
            of toa-paper.
        horizons: Those that "avg" is the mean over.
        groups: Datasets of the table that are the mean over several.
        seeds: How many the paper has, or a comparison needs.
    """

    about: str
    task: str
    metrics: Mapping[str, str]
    protocols: Mapping[str, str] = field(default_factory=dict)
    horizons: tuple[int, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: int = 1


_ERRORS = {"mse": "mse", "mae": "mae"}
# DUET's published softmax column is that of its authors' script
_LONG_TERM = dict.fromkeys(("patchtst", "itransformer", "duet"), _PAPER)
_PEMS = {"patchtst": _PAPER, "itransformer": "itransformer-pems"}
_SOR = {"patchtst": _PAPER}
_UEA = tuple(dict.fromkeys(row.dataset for row in published_numbers() if row.table == "classification"))

TABLES = {
    "demixing": Table(
        about="harmonic demixing, one layer's primitive alone", task="demixing", metrics={"mse": "mse"}, seeds=3
    ),
    "forecast-full": Table(
        about="long-term forecasting", task="forecast", metrics=_ERRORS, protocols=_LONG_TERM, horizons=_LONG
    ),
    "forecast-average": Table(
        about="the same, mean over horizons",
        task="forecast",
        metrics=_ERRORS,
        protocols=_LONG_TERM,
        horizons=_LONG,
        groups={"ETT": ("ETTh1", "ETTh2", "ETTm1", "ETTm2")},
    ),
    "pems-full": Table(
        about="short-term forecasting of traffic", task="forecast", metrics=_ERRORS, protocols=_PEMS, horizons=_SHORT
    ),
    "pems-average": Table(
        about="the same, mean over horizons", task="forecast", metrics=_ERRORS, protocols=_PEMS, horizons=_SHORT
    ),
    "classification": Table(
        about="28 sets of the UEA archive",
        task="classify",
        metrics={"accuracy": "accuracy"},
        protocols={"patchtst": _PAPER},
        seeds=3,
    ),
    "classification-summary": Table(
        about="the same, mean accuracy and mean rank",
        task="classify",
        metrics={"accuracy_pct": "accuracy", "avg_rank": "accuracy"},
        protocols={"patchtst": _PAPER},
        groups={"UEA-28": _UEA},
        seeds=3,
    ),
    "anomaly": Table(
        about="anomaly detection, point-adjusted F1",
        task="anomaly",
        metrics={"f1_pa": "tslib-pa/pa_f1"},
        protocols=dict.fromkeys(("patchtst", "itransformer", "transformer"), _PAPER),
    ),
    "sor-ablation-full": Table(
        about="with and without stochastic operator regularization",
        task="forecast",
        metrics=_ERRORS,
        protocols=_SOR,
        horizons=_LONG,
    ),
    "sor-ablation-average": Table(
        about="the same, mean over horizons", task="forecast", metrics=_ERRORS, protocols=_SOR, horizons=_LONG
    ),
    "efficiency": Table(
        about="time of a training step on ETTh1", task="efficiency", metrics={"train_step_ms": "train_step_ms"}
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cell:
    """A published number and what makes it here.

    Attributes:
        jobs: Runs, but for the seed; empty if there can be none yet.
        metric: What is read in each of their records.
        combine: "mean" over the runs, or the mean "rank" of the variant among all that the full table has.
        factor: What the mean is multiplied by.
        datasets: What they need of a catalogue, whether or not there are runs.
        reason: Why there are no runs; "" if there are.
    """

    number: PublishedNumber
    jobs: tuple[Job, ...]
    metric: str
    datasets: tuple[str, ...]
    combine: Literal["mean", "rank"] = "mean"
    factor: float = 1.0
    reason: str = ""

    def seeded(self, seeds: int) -> list[Job]:
        """Its runs with so many seeds, the paper's first."""
        # a run without chance in it comes back as itself
        runs = {run.key: run for job in self.jobs for run in (job.seeded(FIRST_SEED + i) for i in range(seeds))}
        return list(runs.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """A dataset that is not on this machine: its files under a data folder, and how to get them."""

    dataset: str
    files: tuple[str, ...]
    remedy: str


def table_cells(name: str) -> list[Cell]:
    """All cells of a table, in the order of `published.csv`."""
    check_choice("table", name, TABLES)
    return [_cell(TABLES[name], row) for row in published_numbers() if row.table == name]


def select(cells: Iterable[Cell], **wanted: Iterable[str] | None) -> list[Cell]:
    """Cells whose number has one of the values wanted of each column: dataset, horizon, backbone, variant.

    Raises:
        ValueError: If no cell has a value.
    """
    chosen = list(cells)
    for column, values in wanted.items():
        if values is None:
            continue
        known = dict.fromkeys(getattr(cell.number, column) for cell in chosen)
        for value in values:
            check_choice(column, value, known)
        chosen = [cell for cell in chosen if getattr(cell.number, column) in values]
    return chosen


def missing_data(cell: Cell, data_dir: Path | None = None) -> list[Missing]:
    """Datasets that a cell needs and that are not here."""
    task = TABLES[cell.number.table].task
    missing = []
    for dataset in cell.datasets if task in _SOURCES else ():
        source = _SOURCES[task]
        spec = source.catalogue[dataset]
        try:
            source.locate(spec, data_dir)
        except DatasetNotFoundError as error:
            # the message ends with what to do
            remedy = str(error).partition("; ")[2]
            missing.append(Missing(dataset=dataset, files=source.files(spec), remedy=remedy))
    return missing


def _cell(table: Table, row: PublishedNumber) -> Cell:
    ranked = row.metric == "avg_rank"
    variants = _variants("classification") if ranked else (row.variant,)
    datasets = table.groups.get(row.dataset, (_DATASETS.get(row.dataset, row.dataset),))
    try:
        jobs = tuple(_jobs(table, row, datasets, variants))
        reason = ""
    except ValueError as error:
        jobs, reason = (), f"no settings yet: {error}"
    return Cell(
        number=row,
        jobs=jobs,
        metric=table.metrics[row.metric],
        datasets=datasets,
        combine="rank" if ranked else "mean",
        factor=100.0 if row.metric == "accuracy_pct" else 1.0,
        reason=reason,
    )


def _jobs(table: Table, row: PublishedNumber, datasets: Iterable[str], variants: Iterable[str]) -> list[Job]:
    if table.task == "demixing":
        return [_demixing(row.variant)]
    if table.task == "efficiency":
        return [_step(row.backbone, row.variant)]
    horizons: tuple[int | None, ...] = (int(row.horizon) if row.horizon.isdecimal() else None,)
    if row.horizon == "avg":
        horizons = table.horizons
    return [
        protocol_job(table.task, table.protocols[row.backbone], dataset, horizon, row.backbone, variant)
        for dataset, horizon, variant in itertools.product(datasets, horizons, variants)
    ]


@cache
def _variants(table: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.variant for row in published_numbers() if row.table == table))


@cache
def protocol_job(task: str, protocol: str, dataset: str, horizon: int | None, backbone: str, variant: str) -> Job:
    """A run of a protocol, of a variant as tables name it; its command says the same in the words of `toa run`.

    Raises:
        ValueError: If the protocol has no such run.
    """
    check_choice("task", task, _RESOLVERS)
    base = variant.removesuffix(_NO_SOR)
    attention = _ATTENTIONS.get(base, base)
    changes = _paper_attention(task, protocol, attention)
    changes += ["attention.sor=false"] if variant.endswith(_NO_SOR) else []
    names: dict[str, Any] = {"dataset": dataset, "backbone": backbone, "attention": attention}
    if horizon is not None:
        names["horizon"] = horizon
    config = _RESOLVERS[task](protocol, **names, seed=FIRST_SEED, changes=changes)
    words = ["toa", "run", "--task", task, "--protocol", protocol]
    words += [word for name, value in names.items() for word in (f"--{name}", str(value))]
    words += [word for change in changes for word in ("--set", change)]
    label = f"{dataset}{'' if horizon is None else f' {horizon}'}, {backbone}/{variant}"
    return Job(config=config, label=label, command=tuple(words))


def _paper_attention(task: str, protocol: str, attention: str | None) -> list[str]:
    """As changes, how the paper's protocol sets an attention, where a backbone's own protocol says nothing of any."""
    if attention is None or "attention" in load(task, protocol):
        return []
    settings = load(task, _PAPER).get("attention", {}).get(attention, {})
    return [f"attention.{name}={value}" for name, value in settings.items()]


@cache
def _demixing(variant: str) -> Job:
    command = ("toa", "demix", "--preset", "paper", "--attention", variant)
    config = demixing_config("paper", variant, FIRST_SEED)
    return Job(config=config, label=f"demixing, {variant}", command=command)


@cache
def _step(backbone: str, variant: str) -> Job:
    attention = _ATTENTIONS.get(variant, variant)
    row = backbone if attention is None else f"{backbone}/{attention}"
    command = ("toa", "bench", "efficiency", "--rows", row)
    return Job(config=StepRun(row=row), label=f"step of {row}", command=command)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """Where a task's data come from."""

    catalogue: Registry[Any]
    locate: Callable[[Any, Path | None], object]
    files: Callable[[Any], tuple[str, ...]]


_SERIES = _Source(catalogue=DATASETS, locate=locate, files=lambda spec: (spec.path,))

# a task enters here, and in `toa.experiments.jobs.KINDS`
_RESOLVERS: dict[str, Callable[..., Any]] = {
    "forecast": resolve,
    "anomaly": resolve_anomaly,
    "classify": resolve_classify,
}
_SOURCES = {
    "forecast": _SERIES,
    "efficiency": _SERIES,
    "anomaly": _Source(
        catalogue=ANOMALY_SETS,
        locate=locate_anomaly,
        files=lambda spec: tuple(file.path for file in spec.layouts[0]),
    ),
    "classify": _Source(catalogue=CLASSIFICATION_SETS, locate=locate_classification, files=lambda spec: spec.files()),
}
