"""Every table of the paper as data: for each published number the runs that reproduce it, or why there are none.

`TABLES` describes the tables; their cells follow from the description and the rows of `published.csv`.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from toa._checks import check_choice
from toa.data import DatasetNotFoundError
from toa.experiments.paper import PublishedNumber, published_numbers
from toa.experiments.protocols import load_protocol
from toa.experiments.run import Job
from toa.tasks import TASKS, Protocol

FIRST_SEED = 2024
_PAPER = "toa-paper"
_LONG, _SHORT = (96, 192, 336, 720), (12, 24, 48, 96)
# names that differ in the paper
_DATASETS = {"SWAT": "SWaT"}
_ATTENTIONS = {"hyperglu-dplr": "hyperglu", "auto-correlation": None, "probsparse": None}
_NO_SOR = "-nosor"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table of the paper.

    Attributes:
        metrics: Metric of the records per published metric.
        protocols: Protocol of the runs per backbone. One without settings of attention uses those of toa-paper.
        horizons: Horizons that "avg" is the mean over.
        groups: Datasets of the table that are the mean over several.
        seeds: Number of seeds in the paper, or for a comparison.
    """

    about: str
    task: str
    metrics: Mapping[str, str]
    protocols: Mapping[str, str] = field(default_factory=dict)
    horizons: tuple[int, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: int = 1


# the published softmax column of DUET is that of its authors' script
_LONG_TERM = dict.fromkeys(("patchtst", "itransformer", "duet"), _PAPER)
_PEMS = {"patchtst": _PAPER, "itransformer": "itransformer-pems"}
_UEA, CLASSIFIERS = (
    tuple(dict.fromkeys(getattr(row, name) for row in published_numbers() if row.table == "classification"))
    for name in ("dataset", "variant")
)
_ETT = ("ETTh1", "ETTh2", "ETTm1", "ETTm2")

_forecasting = partial(Table, task="forecast", metrics={"mse": "mse", "mae": "mae"})
_long_term = partial(_forecasting, protocols=_LONG_TERM, horizons=_LONG)
_pems = partial(_forecasting, protocols=_PEMS, horizons=_SHORT)
_classification = partial(Table, task="classify", protocols={"patchtst": _PAPER}, seeds=3)
_sor = partial(_forecasting, protocols={"patchtst": _PAPER}, horizons=_LONG)

TABLES = {
    "demixing": Table(
        about="harmonic demixing, one layer's primitive alone",
        task="demixing",
        metrics={"mse": "mse"},
        protocols={"transformer-2x2": "paper"},
        seeds=3,
    ),
    "forecast-full": _long_term(about="long-term forecasting"),
    "forecast-average": _long_term(about="the same, mean over horizons", groups={"ETT": _ETT}),
    "pems-full": _pems(about="short-term forecasting of traffic"),
    "pems-average": _pems(about="the same, mean over horizons"),
    "classification": _classification(about="28 sets of the UEA archive", metrics={"accuracy": "accuracy"}),
    "classification-summary": _classification(
        about="the same, mean accuracy and mean rank",
        metrics={"accuracy_pct": "accuracy", "avg_rank": "accuracy"},
        groups={"UEA-28": _UEA},
    ),
    "anomaly": Table(
        about="anomaly detection, point-adjusted F1",
        task="anomaly",
        metrics={"f1_pa": "tslib-pa/pa_f1"},
        protocols=dict.fromkeys(("patchtst", "itransformer", "transformer"), _PAPER),
    ),
    "sor-ablation-full": _sor(about="with and without stochastic operator regularization"),
    "sor-ablation-average": _sor(about="the same, mean over horizons"),
    "efficiency": Table(
        about="time of a training step on ETTh1", task="efficiency", metrics={"train_step_ms": "train_step_ms"}
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cell:
    """A published number and the runs that reproduce it.

    Attributes:
        jobs: Its runs with the first seed; empty if there are none yet.
        datasets: Datasets of the catalogue that it needs, even if there are no runs.
        combine: "mean" over the runs, or the mean "rank" of the variant among all variants of the full table.
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
        """Its runs with a number of seeds, starting with the paper's."""
        # a run without a seed appears once
        runs = {run.key: run for job in self.jobs for run in (job.seeded(FIRST_SEED + i) for i in range(seeds))}
        return list(runs.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """A dataset that is missing on this machine: its files in a data folder, and how to get them."""

    dataset: str
    files: tuple[str, ...]
    remedy: str


def table_cells(name: str) -> list[Cell]:
    """All cells of a table, in the order of `published.csv`."""
    check_choice("table", name, TABLES)
    return [_cell(TABLES[name], row) for row in published_numbers() if row.table == name]


def select(cells: Iterable[Cell], **wanted: Iterable[str] | None) -> list[Cell]:
    """Cells with one of the given values in each column: dataset, horizon, backbone, variant."""
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
    """Datasets of a cell that are missing on this machine."""
    task = TASKS[TABLES[cell.number.table].task]
    missing = []
    for dataset in () if task.catalogue is None else cell.datasets:
        try:
            task.locate(dataset, data_dir)
        except DatasetNotFoundError as error:
            # the message ends with the remedy
            remedy = str(error).partition("; ")[2]
            missing.append(Missing(dataset=dataset, files=task.files(dataset), remedy=remedy))
    return missing


def _cell(table: Table, row: PublishedNumber) -> Cell:
    ranked = row.metric == "avg_rank"
    variants = CLASSIFIERS if ranked else (row.variant,)
    datasets = table.groups.get(row.dataset, (_DATASETS.get(row.dataset, row.dataset),))
    horizons: tuple[int | None, ...] = (int(row.horizon) if row.horizon.isdecimal() else None,)
    protocol, jobs, reason = table.protocols.get(row.backbone, ""), tuple[Job, ...](), ""
    try:
        jobs = tuple(
            protocol_job(table.task, protocol, dataset, horizon, row.backbone, variant)
            for dataset, horizon, variant in itertools.product(
                datasets, table.horizons if row.horizon == "avg" else horizons, variants
            )
        )
    except ValueError as error:
        reason = f"no settings yet: {error}"
    return Cell(
        number=row,
        jobs=jobs,
        metric=table.metrics[row.metric],
        datasets=datasets,
        combine="rank" if ranked else "mean",
        factor=100.0 if row.metric == "accuracy_pct" else 1.0,
        reason=reason,
    )


@cache
def protocol_job(task: str, protocol: str, dataset: str, horizon: int | None, backbone: str, variant: str) -> Job:
    """One run of a protocol, for a variant as the tables name it, with the command line that repeats it."""
    kind = TASKS[task]
    base = variant.removesuffix(_NO_SOR)
    attention = _ATTENTIONS.get(base, base)
    settings = load_protocol(task, protocol) if protocol else None
    changes = [] if settings is None else _paper_attention(task, settings, attention)
    changes += ["attention.sor=false"] if variant.endswith(_NO_SOR) else []
    given: dict[str, Any] = {"dataset": dataset, "backbone": backbone, "attention": attention, "horizon": horizon}
    names = {name: given[name] for name in kind.names}
    config = kind.resolve(settings, seed=FIRST_SEED, changes=changes, **names)
    words = kind.command(protocol, names) + [word for change in changes for word in ("--set", change)]
    label = f"{dataset}{'' if horizon is None else f' {horizon}'}, {backbone}/{variant}"
    return Job(config=config, label=label if "dataset" in names else kind.title(config), command=tuple(words))


def _paper_attention(task: str, protocol: Protocol, attention: str | None) -> list[str]:
    """The paper's settings of an attention as changes, if the protocol has no settings of attention itself."""
    if attention is None or protocol.attention:
        return []
    settings = load_protocol(task, _PAPER).attention.get(attention, {})
    return [f"attention.{name}={value}" for name, value in settings.items()]
