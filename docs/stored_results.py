"""Read the records under results/ for the tables and values of the pages."""

import csv
import functools
import json
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from toa_paper.published import published_numbers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
Record = dict[str, Any]
SETS = ("ETTh1", "ETTh2", "Exchange", "ETTm1", "Weather")
RECIPE_SETS = ("ETTh1", "ETTh2", "ETTm1", "ETTm2", "Weather", "Exchange")
BACKBONES = {"patchtst": "PatchTST", "itransformer": "iTransformer", "duet": "DUET"}
NAMES = BACKBONES | {"two-axis": "two-axis"}
# attentions of the protocol `toa`
TITLES = {"softmax": "softmax", "toa-softmax": "TOA-Softmax"}
# records by dataset and horizon
Cells = dict[Any, list[Record]]


@functools.cache
def stored_records(name: str) -> list[Record]:
    """Records of a file under results/, one JSON object per line."""
    lines = (RESULTS / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@functools.cache
def published(task: str) -> dict[tuple[str, ...], float]:
    """The paper's numbers of a table by dataset, horizon, backbone, variant and metric."""
    rows = [row for row in published_numbers() if row.table == task]
    return {(row.dataset, row.horizon, row.backbone, row.variant, row.metric): row.value for row in rows}


def read_csv(name: str) -> list[dict[str, str]]:
    """Rows of a CSV file under results/."""
    with (RESULTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mean_of(records: Iterable[Record], metric: str) -> float:
    """Mean of a metric over records."""
    return statistics.mean(record["metrics"][metric] for record in records)


def variant_of(record: Record) -> str:
    """The paper's name of an attention."""
    attention = record["config"]["attention"]
    name: str = {"hyperglu": "hyperglu-dplr"}.get(attention["name"], attention["name"])
    return f"{name}-nosor" if name.startswith("toa-") and not attention["sor"] else name


def grouped(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    """Records by key, in the order of their first appearance."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def pivot(
    records: Iterable[Record],
    *,
    row: Callable[[Record], tuple[str, ...]],
    column: Callable[[Record], Any],
    columns: Sequence[Any],
    cell: Callable[[list[Record]], str],
) -> list[list[str]]:
    """The rows of a table: the titles of a row, then one cell per column; "-" where there is no record."""
    rows = []
    for titles, records_of_row in grouped(records, row).items():
        by_column = grouped(records_of_row, column)
        rows.append([*titles, *(cell(by_column[name]) if name in by_column else "-" for name in columns)])
    return rows


def dataset_of(record: Record) -> str:
    """The data set of a run."""
    name: str = record["config"]["dataset"]
    return name


def changes_of(record: Record) -> tuple[str, ...]:
    """Settings that a run's command changed in its protocol, as key=value."""
    return tuple(value for option, value in pairwise(shlex.split(record["command"])) if option == "--set")


def published_mse(variant: str, dataset: str, backbone: str, horizon: int) -> float:
    """The paper's test MSE."""
    return published("forecast-full")[dataset, str(horizon), backbone, variant, "mse"]


def mean_errors(cells: Cells, metric: str = "mse") -> dict[Any, float]:
    """Mean over seeds by dataset and horizon."""
    return {cell: mean_of(records, metric) for cell, records in cells.items()}


def gains_by_set(ours: Mapping[Any, float], plain: Mapping[Any, float]) -> dict[str, float]:
    """Gain by set from errors by dataset and horizon: percent of the geometric mean over horizons, as in the report."""
    from toa.report.gains import mean_over_horizons, percent_gain

    gains = {}
    for dataset in dict.fromkeys(dataset for dataset, _ in plain):
        rows = [(ours[cell], error) for cell, error in plain.items() if cell[0] == dataset]
        new, old = mean_over_horizons(rows, "mse")
        gains[dataset] = float(percent_gain(new, old, "mse"))
    return gains


def cell_of(record: Record) -> tuple[str, int]:
    """Dataset and horizon of a forecasting run."""
    return record["config"]["dataset"], record["config"]["horizon"]


@functools.cache
def recipe_records(backbone: str) -> dict[Any, dict[Any, list[Record]]]:
    """Runs with the settings of protocol `toa` by family ("softmax", "toa") and changes, then by dataset and horizon.

    Runs of `toa-paper` with these settings are among them.
    """
    from toa_paper.report.cells import protocol_setting
    from toa_paper.report.evidence import read_evidence

    files = [RESULTS / "forecasting" / f"{name}.jsonl" for name in ("toa", "two-axis", "horizon-96", "horizons")]
    runs = [run for run in read_evidence(files).runs if run.record["config"]["backbone"] == backbone]
    records = [
        run.record
        for run in runs
        if run.record["config"]["protocol"] == "toa" or run.setting == protocol_setting(run, "toa")
    ]
    lines = grouped(records, lambda record: (record["config"]["attention"]["name"].split("-")[0], *changes_of(record)))
    return {line: grouped(records, cell_of) for line, records in lines.items()}


def set_means(cells: dict[Any, list[Record]], metric: str = "mse") -> list[str]:
    """Mean over the four horizons of each set; empty where one was not run."""
    wanted = {dataset: [cells.get((dataset, h)) for h in (96, 192, 336, 720)] for dataset in RECIPE_SETS}
    return [
        f"{statistics.fmean(mean_of(cell, metric) for cell in runs if cell):.3f}" if all(runs) else ""
        for runs in wanted.values()
    ]
