"""A search: its plan, its trials, and the choice by validation error.

A trial is an attention and the settings that differ from the plan's protocol, as one line of text. Test errors are
never read: every trial runs with `test=false`, and `read_trial` raises an error on a record that has one.
"""

import json
import shlex
import tomllib
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean

from toa._checks import ArgumentError
from toa.experiments.records import Record

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "benchmarks" / "search.toml"
# stored trials by backbone, trial, dataset, horizon (0 for a task without) and seed
Cell = tuple[str, str, str, int, int]
Trials = dict[Cell, Record]

_KEPT = ("config_hash", "data_checksum", "seed", "device", "commit", "command", "versions", "wall_s", "best_epoch")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is searched; see search.toml.

    Attributes:
        datasets: The search sets, the quickest first.
        seed, horizon: Of every trial; no horizon for a task without.
        records: File of the trials, relative to the repository.
        stages: Trials by stage, backbone and family. The first trial of all is plain softmax.
        task, protocol: What a trial changes.
        base: Settings of every trial, before its own.
        small_below: Training windows that divide small sets from large ones; 0 for one class of sets.
        confirm: Further horizons and seeds at which the best trials run.
        confirm_best: Number of best trials per family and size that run there.
        screen: Datasets by backbone. All its trials run on the first; on the others only plain softmax and the
            `confirm_best` trials per family that are best on the first. They take the place of a confirmation.
        reuse: Files with trials of other searches that this one may use.
        dropped: Settings or values that gained nothing and were removed; their trials are stored, and cannot run again.
    """

    datasets: list[str]
    seed: int
    records: str
    stages: dict[str, dict[str, dict[str, list[str]]]]
    horizon: int = 0
    task: str = "forecast"
    protocol: str = "toa-paper"
    base: list[str] = field(default_factory=list)
    small_below: int = 0
    confirm: list[dict[str, int]] = field(default_factory=list)
    confirm_best: int = 0
    screen: dict[str, list[str]] = field(default_factory=dict)
    reuse: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def can_run(self, trial: str) -> bool:
        """Whether this version has all settings of a trial."""
        settings = trial.split()
        return not {*settings, *(setting.partition("=")[0] for setting in settings)} & set(self.dropped)

    @property
    def confirmed(self) -> list[tuple[int, int]]:
        """Horizons and seeds of the confirmation, that of the search first."""
        return [(self.horizon, self.seed), *((cell.get("horizon", 0), cell["seed"]) for cell in self.confirm)]

    @property
    def sizes(self) -> tuple[str, ...]:
        """Classes of the sets by size."""
        return ("small", "large") if self.small_below else ("all",)

    def size(self, windows: int) -> str:
        """Class of a set by its number of training windows or cases."""
        return self.sizes[windows >= self.small_below if self.small_below else 0]

    def compared(self, value: float, plain: float) -> float:
        """Validation error relative to that of plain softmax; the difference in classification, where it may be 0."""
        return value - plain if self.task == "classify" else value / plain

    def families(self, backbone: str) -> list[str]:
        """Families of attentions that a backbone is searched with."""
        return list(dict.fromkeys(name for stage in self.stages.values() for name in stage.get(backbone, {})))

    def trials(self, backbone: str, family: str) -> list[str]:
        """Trials of a family in all stages."""
        stages = (stage.get(backbone, {}).get(family, []) for stage in self.stages.values())
        return [trial for listed in stages for trial in listed]

    def backbones(self) -> list[str]:
        """Backbones that are searched."""
        return list(dict.fromkeys(backbone for stage in self.stages.values() for backbone in stage))

    def run_lines(self, stages: list[str], found: Trials, stored: Container[Cell] = ()) -> Iterator[str]:
        """Options of one `toa run` per trial and dataset that is not stored; the slow datasets come first."""
        for dataset in reversed(self.datasets):
            for stage in stages:
                for backbone, families in self.stages[stage].items():
                    screened = screened_trials(self, found, backbone, dataset)
                    for trial in (trial for listed in families.values() for trial in listed):
                        known = (backbone, trial, dataset, self.horizon, self.seed) in stored
                        if not known and self.can_run(trial) and (screened is None or trial in screened):
                            yield self._line(backbone, trial, dataset, self.horizon, self.seed)

    def confirm_lines(self, found: Trials, stored: Container[Cell] = ()) -> Iterator[str]:
        """The same in the cells of `confirm`, for the trials that are confirmed on the datasets of a size."""
        for backbone in self.backbones():
            for size in reversed(self.sizes):
                datasets = sized_datasets(self, found, size)
                cell = (self.horizon, self.seed)
                # where trials are screened, the plain attention need not have run on all datasets
                trials = [
                    trial
                    for trial in confirmed_trials(self, found, backbone, size)
                    if all((backbone, trial, dataset, *cell) in found for dataset in datasets)
                ]
                for dataset in reversed(datasets):
                    for trial, (horizon, seed) in product(trials, self.confirmed[1:]):
                        if (backbone, trial, dataset, horizon, seed) not in stored:
                            yield self._line(backbone, trial, dataset, horizon, seed)

    def _line(self, backbone: str, trial: str, dataset: str, horizon: int, seed: int) -> str:
        attention, *settings = trial.split()
        words = ["--task", self.task] if self.task != "forecast" else []
        words += ["--dataset", dataset, *(["--horizon", str(horizon)] if horizon else []), "--backbone", backbone]
        words += ["--attention", attention, "--protocol", self.protocol, "--seed", str(seed)]
        for setting in (*self.base, *settings, "test=false"):
            words += ["--set", setting]
        return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trial on all datasets.

    Attributes:
        trial: The trial.
        ratios: Validation error against plain softmax in the same cell (horizon and seed), mean per dataset; see
            `Plan.compared`.
        means: Mean of the ratios per class of datasets.
        without_operators: Relative rise of the validation error with M = 0, per dataset; empty for softmax.
    """

    trial: str
    ratios: dict[str, float]
    means: dict[str, float]
    without_operators: dict[str, float]


def read_plan(path: Path = PLAN) -> Plan:
    """Read a plan."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    stages = {name: content.pop(name) for name in list(content) if name.startswith("stage")}
    return Plan(**content, stages=stages)


def read_trial(plan: Plan, record: Record, where: str) -> Record:
    """The parts of a run's record that a search may use.

    Raises:
        ValueError: If the run has a test error.
    """
    config, metrics = record["config"], record["metrics"]
    if config.get("test", True) or any(not name.startswith("val_") for name in metrics):
        raise ArgumentError(where, "be a run with test=false", "one with a test error", "leave it out")
    settings = [value for option, value in pairwise(shlex.split(record["command"])) if option == "--set"]
    settings = [setting for setting in settings if setting not in (*plan.base, "test=false")]
    loss = 1.0 - metrics["val_accuracy"] if record["task"] == "classify" else metrics[f"val_{config['loss']}"]
    return {name: record[name] for name in _KEPT} | {
        "backbone": config["backbone"],
        "dataset": config["dataset"],
        "horizon": config.get("horizon", 0),
        "trial": " ".join([config["attention"]["name"], *settings]),
        "epochs": len(record["history"]),
        "windows": record["cases" if record["task"] == "classify" else "windows"]["train"],
        "validation": loss,
        "operators": record["operators"],
    }


def read_trials(plan: Plan) -> Trials:
    """Read the stored trials of a plan, and those that it reuses; none if it was not run yet."""
    paths = [ROOT / name for name in (*plan.reuse, plan.records)]
    rows = [json.loads(line) for path in paths if path.exists() for line in path.read_text("utf-8").splitlines()]
    return {(row["backbone"], row["trial"], row["dataset"], row["horizon"], row["seed"]): row for row in rows}


def reused_trials(plan: Plan) -> list[Record]:
    """Trials of the plan that other searches have run."""
    rows = [json.loads(line) for name in plan.reuse for line in (ROOT / name).read_text("utf-8").splitlines()]
    cells = {
        (backbone, trial, dataset, plan.horizon, plan.seed)
        for backbone in plan.backbones()
        for family in plan.families(backbone)
        for trial in plan.trials(backbone, family)
        for dataset in plan.datasets
    }
    return [row for row in rows if tuple(row[k] for k in ("backbone", "trial", "dataset", "horizon", "seed")) in cells]


def sized_datasets(plan: Plan, found: Trials, size: str | None) -> list[str]:
    """Search sets of a size that have a trial; all search sets if the size is None."""
    windows = {name: row["windows"] for (_, _, name, _, _), row in found.items()}
    return [name for name in plan.datasets if size is None or (name in windows and plan.size(windows[name]) == size)]


def rank_trials(
    plan: Plan, found: Trials, backbone: str, family: str, size: str | None = None, confirmed: bool = False
) -> list[Result]:
    """Trials that ran on every dataset of a size, or on all, the best first by the mean over the sizes.

    `confirmed` asks for the trials and the means of all cells of the confirmation.
    """
    results = []
    datasets = sized_datasets(plan, found, size)
    cells = [(name, *cell) for name in datasets for cell in plan.confirmed[: None if confirmed else 1]]
    for trial in plan.trials(backbone, family) if datasets else ():
        ratios: dict[str, list[float]] = {name: [] for name in datasets}
        sizes: dict[str, list[float]] = {}
        rises: dict[str, list[float]] = {}
        if any((backbone, one, *cell) not in found for one in (trial, "softmax") for cell in cells):
            continue
        for name, horizon, seed in cells:
            row, plain = (found[backbone, one, name, horizon, seed] for one in (trial, "softmax"))
            ratios[name].append(plan.compared(row["validation"], plain["validation"]))
            sizes.setdefault(plan.size(row["windows"]), []).append(ratios[name][-1])
            rise = row["operators"]["contributions"]["operators"]
            if rise is not None:
                rises.setdefault(name, []).append(rise)
        ratio_means, size_means, rise_means = (
            {name: fmean(values) for name, values in table.items()} for table in (ratios, sizes, rises)
        )
        results.append(Result(trial=trial, ratios=ratio_means, means=size_means, without_operators=rise_means))
    return sorted(results, key=lambda result: sum(result.means.values()))


def screened_trials(plan: Plan, found: Trials, backbone: str, dataset: str) -> list[str] | None:
    """Trials that run on a dataset, none before all ran on the first one; None if the plan does not screen them."""
    sets = plan.screen.get(backbone, [])
    if dataset not in sets[1:]:
        return None
    trials = ["softmax"]
    for family in plan.families(backbone):
        results = rank_trials(replace(plan, datasets=sets[:1]), found, backbone, family)
        if len(results) < len(plan.trials(backbone, family)):
            return []
        trials += [result.trial for result in results[: plan.confirm_best]]
    return list(dict.fromkeys(trials))


def confirmed_trials(plan: Plan, found: Trials, backbone: str, size: str) -> list[str]:
    """Trials that run again at further horizons and seeds: the best per family for a size, and the plain attentions."""
    trials = ["softmax", "toa-softmax"]
    for family in plan.families(backbone):
        results = rank_trials(plan, found, backbone, family, size)
        trials += [result.trial for result in results[: plan.confirm_best]]
    return list(dict.fromkeys(trials)) if len(trials) > 2 else []


def choose(plan: Plan, found: Trials, backbone: str) -> dict[tuple[str, str], Result]:
    """The trial with the lowest mean per family and size, if the family has a complete trial for that size.

    Where trials ran in all cells of the confirmation, only these count, by their mean over all of them. Where the plan
    screens trials, all that passed must have run, and only confirmed ones can be chosen.
    """
    chosen = {}
    for family in plan.families(backbone):
        for size in plan.sizes:
            names = sized_datasets(plan, found, size)
            screened = {name: screened_trials(plan, found, backbone, name) for name in names}
            cells = [(backbone, trial, name) for name, trials in screened.items() for trial in trials or ()]
            # an empty list: not all trials ran on the first set
            if [] in screened.values() or any((*cell, plan.horizon, plan.seed) not in found for cell in cells):
                continue
            results = rank_trials(plan, found, backbone, family, size, confirmed=True)
            results = results or ([] if cells else rank_trials(plan, found, backbone, family, size))
            if results:
                chosen[family, size] = results[0]
    return chosen
