"""A search of settings as a table: a row for each setting tried, validation and test error for each dataset."""

import json
import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

from toa.experiments.records import Record, check_record

# a validation error beyond this is no forecast any more
_DIVERGED = 10.0


def read_search(path: Path) -> list[Record]:
    """Records of runs, one JSON object a line.

    Raises:
        ValueError: If a line is no record.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    return [check_record(json.loads(line), f"line {number} of {path}") for number, line in enumerate(lines, 1)]


def changes_of(record: Record) -> tuple[str, ...]:
    """What a run's command set apart from its protocol, as key=value."""
    words = shlex.split(record["command"])
    return tuple(value for option, value in pairwise(words) if option == "--set")


def search_table(
    records: Iterable[Record], *, backbone: str, horizon: int, datasets: Sequence[str], common: Sequence[str] = ()
) -> list[str]:
    """Lines of a Markdown table; a cell is validation MSE / test MSE, the mean over seeds.

    Args:
        records: Of forecasting runs.
        backbone: Which of them.
        horizon: Likewise.
        datasets: Columns.
        common: Changes that are not shown, since the text around says them.
    """
    cells: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        config = record["config"]
        if (config["backbone"], config["horizon"]) != (backbone, horizon) or config["dataset"] not in datasets:
            continue
        shown = ", ".join(change for change in changes_of(record) if change not in common) or "as it is"
        row = cells.setdefault((config["attention"]["name"], shown), {})
        row.setdefault(config["dataset"], []).append(record)
    head = ["attention", "setting", *datasets]
    lines = [_line(head), _line(["---"] * len(head))]
    for (attention, shown), row in cells.items():
        lines.append(_line([attention, shown, *(_cell(row.get(dataset, [])) for dataset in datasets)]))
    return lines


def _cell(records: Sequence[Record]) -> str:
    if not records:
        return "-"
    validation, test = (mean(record["metrics"][name] for record in records) for name in ("val_mse", "mse"))
    return " / ".join(f"{value:.4f}" if value < _DIVERGED else f"**{value:.0e}**" for value in (validation, test))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
