"""Published numbers, `toa-paper` and `toa` side by side, and what SOR and the operators contribute under `toa`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from toa.experiments.paper.tables import table_cells
from toa.report.cells import protocol_setting
from toa.report.evidence import Evidence, Run
from toa.report.figures import system_title
from toa.report.statistics import lower_is_better
from toa.report.tables import Table

PAPER, RECIPE = "toa-paper", "toa"
# per task: the table of the paper and the metric
_TASKS = {"forecast": ("forecast-full", "mse"), "classify": ("classification", "accuracy")}


@dataclass(frozen=True, kw_only=True, eq=False)
class RecipeCell:
    """One backbone, data set and horizon that was run under `toa`.

    Attributes:
        task, backbone, dataset, horizon: What it is; the horizon is None in classification.
        metric: Metric of the records.
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

    def mean(self, protocol: str, variant: str, metric: str = "") -> float | None:
        """Mean of a metric over seeds; None if no record has it."""
        records = (run.record["metrics"] for run in self.runs.get((protocol, variant), ()))
        values = [metrics[metric or self.metric] for metrics in records if (metric or self.metric) in metrics]
        return fmean(values) if values else None

    def chosen(self, protocol: str) -> str:
        """The variant of TOA with the best validation metric; "" if there is none."""
        found = {name: self.mean(protocol, name, f"val_{self.metric}") for own, name in self.runs if own == protocol}
        values = {name: value for name, value in found.items() if value is not None and _is_toa(name)}
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
        """Change of the chosen TOA under `toa` if it is trained without SOR."""
        name = self.chosen(RECIPE)
        return self.change(self.mean(RECIPE, f"{name}-nosor"), self.mean(RECIPE, name))

    def contribution(self, variant: str) -> float | None:
        """Rise of the validation error with M = 0 under `toa`, in percent."""
        return contribution(self.runs.get((RECIPE, variant), ()))


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
        protocol = config.get("protocol")
        if task in _TASKS and protocol in (PAPER, RECIPE) and protocol_setting(run) == run.setting:
            attention = config["attention"]
            off = attention["name"].startswith("toa-") and attention["sor"] is False
            variant = f"{attention['name']}{'-nosor' if off else ''}"
            key = (task, config["backbone"], config["dataset"], config.get("horizon") or 0)
            found.setdefault(key, {}).setdefault((protocol, variant), []).append(run)
    cells = []
    for (task, backbone, dataset, horizon), runs in sorted(found.items()):
        if any(protocol == RECIPE for protocol, _ in runs):
            table, metric = _TASKS[task]
            published = {
                cell.number.variant: cell.number.value
                for cell in table_cells(table)
                if cell.datasets == (dataset,) and cell.number.horizon in (str(horizon), "")
                if (cell.number.backbone, cell.number.metric) == (backbone, metric)
            }
            names = {"task": task, "backbone": backbone, "dataset": dataset, "metric": metric}
            cells.append(RecipeCell(**names, horizon=horizon or None, runs=runs, published=published))
    return cells


def recipe_table(cells: Iterable[RecipeCell]) -> Table:
    """One row per cell: softmax and TOA as published, under `toa-paper` and under `toa`, and their changes."""
    parts = (f"{name} {part}" for name in (PAPER, RECIPE) for part in ("softmax", "TOA", "change"))
    table: Table = [("backbone", "data", "published softmax", "published best TOA", *parts)]
    for cell in cells:
        best = min if lower_is_better(cell.metric) else max
        theirs = best((value for name, value in cell.published.items() if _is_toa(name)), default=None)
        row = [_number(cell.published.get("softmax"), 3), _number(theirs, 3)]
        for protocol in (PAPER, RECIPE):
            row += [_number(cell.mean(protocol, name)) for name in ("softmax", cell.chosen(protocol))]
            row.append(_change(cell.gain(protocol), cell))
        table.append((cell.backbone, cell.data, *row))
    return table


def ablation_table(cells: Iterable[RecipeCell]) -> Table:
    """One row per cell under `toa`: the chosen TOA, without SOR, and the validation error with M = 0."""
    table: Table = [("backbone", "data", "attention", "TOA", "without SOR", "M = 0", "M = 0, without SOR")]
    for cell in cells:
        if name := cell.chosen(RECIPE):
            rises = [_signed(cell.contribution(variant), "%") for variant in (name, f"{name}-nosor")]
            without = _change(cell.without_sor(), cell)
            table.append(
                (cell.backbone, cell.data, system_title(name), _number(cell.mean(RECIPE, name)), without, *rises)
            )
    return table


def recipe_notes(cells: Iterable[RecipeCell]) -> list[str]:
    """One sentence per task and backbone about the gain of TOA and of SOR under `toa`."""
    lines = []
    for (_, backbone), group in groupby(cells, key=lambda cell: (cell.task, cell.backbone)):
        members = list(group)
        sign = 1.0 if lower_is_better(members[0].metric) else -1.0
        gains = [gain for gain in (cell.gain(RECIPE) for cell in members) if gain is not None]
        if not gains:
            continue
        better, worst = sum(sign * gain < 0 for gain in gains), max(gains, key=lambda gain: sign * gain)
        mean, least = (_change(value, members[0]) for value in (fmean(gains), worst))
        words = f"{backbone}: TOA is better than softmax in {better} of {len(gains)} cells, {mean} in the mean, "
        words += f"{least} in the worst."
        if dropped := [change for change in (cell.without_sor() for cell in members) if change is not None]:
            helped = sum(sign * change > 0 for change in dropped)
            words += f" With SOR it is better than without in {helped} of {len(dropped)} cells."
        lines.append(words)
    return lines


def _is_toa(variant: str) -> bool:
    return variant.startswith("toa-") and not variant.endswith("-nosor")


def _number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _change(value: float | None, cell: RecipeCell) -> str:
    return _signed(value, "%" if lower_is_better(cell.metric) else "points")


def _signed(value: float | None, unit: str) -> str:
    # adding zero turns -0.0 into 0.0
    return "" if value is None else f"{round(value, 1) + 0.0:+.1f} {unit}"
