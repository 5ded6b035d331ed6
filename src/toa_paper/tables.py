"""Every table of the paper as data: for each published number the runs that reproduce it, or why there are none.

`tables.toml` describes the tables; their cells follow from it and the rows of `published.csv`.
"""

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from toa._checks import check_choice
from toa.data import DatasetNotFoundError
from toa.experiments.base import experiment_of
from toa.experiments.protocols import load_protocol
from toa.experiments.run import Job
from toa.experiments.settings import Protocol
from toa.training import TASKS
from toa.training.config import build_config
from toa_paper.published import PublishedNumber, published_numbers

FIRST_SEED = 2024
_PAPER = "toa-paper"
# names that differ in the paper
_DATASETS = {"SWAT": "SWaT"}
_ATTENTIONS = {"hyperglu-dplr": "hyperglu", "auto-correlation": None, "probsparse": None}
_NO_SOR = "-nosor"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperTable:
    """One table of the paper; `tables.toml` explains the fields."""

    about: str
    task: str
    metrics: Mapping[str, str]
    protocols: Mapping[str, str] = field(default_factory=dict)
    horizons: tuple[int, ...] = ()
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seeds: int = 1


_CONTENT = tomllib.loads((files("toa_paper") / "tables.toml").read_text(encoding="utf-8"))
TABLES = {name: build_config(PaperTable, values, f"table {name!r}") for name, values in _CONTENT.items()}
CLASSIFIERS = tuple(dict.fromkeys(row.variant for row in published_numbers() if row.table == "classification"))


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
class MissingData:
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


def missing_data(cell: Cell, data_dir: Path | None = None) -> list[MissingData]:
    """Datasets of a cell that are missing on this machine."""
    task = TASKS[TABLES[cell.number.table].task]
    missing = []
    for dataset in () if task.catalogue is None else cell.datasets:
        try:
            task.locate(dataset, data_dir)
        except DatasetNotFoundError as error:
            # the message ends with the remedy
            remedy = str(error).partition("; ")[2]
            missing.append(MissingData(dataset=dataset, files=task.files(dataset), remedy=remedy))
    return missing


def _cell(table: PaperTable, row: PublishedNumber) -> Cell:
    ranked = row.metric == "avg_rank"
    variants = CLASSIFIERS if ranked else (row.variant,)
    datasets = tuple(table.groups.get(row.dataset, (_DATASETS.get(row.dataset, row.dataset),)))
    horizons: tuple[int | None, ...] = (int(row.horizon) if row.horizon.isdecimal() else None,)
    protocol = table.protocols.get(row.backbone, "")
    jobs = tuple[Job, ...]()
    reason = ""
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
    experiment = experiment_of(task)
    base = variant.removesuffix(_NO_SOR)
    attention = _ATTENTIONS.get(base, base)
    settings = load_protocol(task, protocol) if protocol else None
    changes = [] if settings is None else _paper_attention(task, settings, attention)
    changes += ["attention.sor=false"] if variant.endswith(_NO_SOR) else []
    given: dict[str, Any] = {"dataset": dataset, "backbone": backbone, "attention": attention, "horizon": horizon}
    names = {name: given[name] for name in experiment.names}
    config = experiment.resolve(settings, seed=FIRST_SEED, changes=changes, **names)
    words = experiment.command(protocol, names) + [word for change in changes for word in ("--set", change)]
    label = f"{dataset}{'' if horizon is None else f' {horizon}'}, {backbone}/{variant}"
    return Job(config=config, label=label if "dataset" in names else experiment.title(config), command=tuple(words))


def _paper_attention(task: str, protocol: Protocol, attention: str | None) -> list[str]:
    """The paper's settings of an attention as changes, if the protocol has no settings of attention itself."""
    if attention is None or protocol.attention:
        return []
    settings = load_protocol(task, _PAPER).attention.get(attention, {})
    return [f"attention.{name}={value}" for name, value in settings.items()]
