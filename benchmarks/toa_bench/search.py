"""The search for the protocol `toa`: its plan, its trials, and the choice by validation error.

A trial is an attention and the settings that differ from `toa-paper`, as one line of text. Test errors are never read:
every trial runs with `test=false`, and `read_trial` raises an error on a record that has one.
"""

import json
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from toa.experiments.records import Record

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "benchmarks" / "search.toml"
TRIALS = ROOT / "results" / "search" / "trials.jsonl"
FAMILIES = ("softmax", "toa")
SIZES = ("small", "large")
# stored trials by backbone, trial, dataset, horizon and seed
Trials = dict[tuple[str, str, str, int, int], Record]

_KEPT = ("config_hash", "data_checksum", "seed", "device", "commit", "command", "versions", "wall_s", "best_epoch")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is searched; see search.toml."""

    datasets: list[str]
    horizon: int
    seed: int
    small_below: int
    confirm: list[dict[str, int]]
    confirm_best: int
    stages: dict[str, dict[str, dict[str, list[str]]]]

    @property
    def confirmed(self) -> list[tuple[int, int]]:
        """Horizons and seeds of the confirmation, that of the search first."""
        return [(self.horizon, self.seed), *((cell["horizon"], cell["seed"]) for cell in self.confirm)]

    def trials(self, backbone: str, family: str) -> list[str]:
        """Trials of a family in all stages."""
        stages = (stage.get(backbone, {}).get(family, []) for stage in self.stages.values())
        return [trial for listed in stages for trial in listed]

    def backbones(self) -> list[str]:
        """Backbones that are searched."""
        return list(dict.fromkeys(backbone for stage in self.stages.values() for backbone in stage))

    def run_lines(self, stages: list[str]) -> Iterator[str]:
        """Options of one `toa run` per trial and dataset; the large datasets come first, because they take longest."""
        for dataset in reversed(self.datasets):
            for stage in stages:
                for backbone, families in self.stages[stage].items():
                    for trial in (trial for listed in families.values() for trial in listed):
                        yield self._line(backbone, trial, dataset, self.horizon, self.seed)

    def confirm_lines(self, found: Trials) -> Iterator[str]:
        """Further horizons and seeds of the best trials per family and size, and of the plain attentions."""
        for dataset in reversed(self.datasets):
            for backbone in self.backbones():
                for trial in confirmed_trials(self, found, backbone):
                    for horizon, seed in self.confirmed[1:]:
                        yield self._line(backbone, trial, dataset, horizon, seed)

    def _line(self, backbone: str, trial: str, dataset: str, horizon: int, seed: int) -> str:
        attention, *settings = trial.split()
        words = ["--dataset", dataset, "--horizon", str(horizon), "--backbone", backbone]
        words += ["--attention", attention, "--protocol", "toa-paper", "--seed", str(seed)]
        for setting in (*settings, "test=false"):
            words += ["--set", setting]
        return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trial on all datasets.

    Attributes:
        trial: The trial.
        ratios: Validation error relative to plain softmax in the same cell (horizon and seed), mean per dataset.
        means: Mean of the ratios over the small and over the large datasets.
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


def read_trial(record: Record, where: str) -> Record:
    """The parts of a run's record that a search may use.

    Raises:
        ValueError: If the run has a test error.
    """
    config, metrics = record["config"], record["metrics"]
    if config.get("test", True) or any(not name.startswith("val_") for name in metrics):
        raise ValueError(f"{where} must be a run with test=false, got one with a test error; leave it out.")
    words = shlex.split(record["command"])
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set" and words[i + 1] != "test=false"]
    return {name: record[name] for name in _KEPT} | {
        "backbone": config["backbone"],
        "dataset": config["dataset"],
        "horizon": config["horizon"],
        "trial": " ".join([config["attention"]["name"], *settings]),
        "epochs": len(record["history"]),
        "windows": record["windows"]["train"],
        "validation": metrics[f"val_{config['loss']}"],
        "operators": record["operators"],
    }


def read_trials(path: Path = TRIALS) -> Trials:
    """Read stored trials."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(row["backbone"], row["trial"], row["dataset"], row["horizon"], row["seed"]): row for row in rows}


def rank_trials(plan: Plan, found: Trials, backbone: str, family: str, confirmed: bool = False) -> list[Result]:
    """Trials that ran on every dataset, the best first by the mean over both sizes.

    `confirmed` asks for the trials and the means of all cells of the confirmation.
    """
    results = []
    for trial in plan.trials(backbone, family):
        ratios: dict[str, list[float]] = {name: [] for name in plan.datasets}
        sizes: dict[str, list[float]] = {size: [] for size in SIZES}
        rises: dict[str, list[float]] = {}
        cells = [(name, *cell) for name in plan.datasets for cell in plan.confirmed[: None if confirmed else 1]]
        if any((backbone, one, *cell) not in found for one in (trial, "softmax") for cell in cells):
            continue
        for name, horizon, seed in cells:
            row, plain = (found[backbone, one, name, horizon, seed] for one in (trial, "softmax"))
            ratios[name].append(row["validation"] / plain["validation"])
            sizes["small" if row["windows"] < plan.small_below else "large"].append(ratios[name][-1])
            rise = row["operators"]["contributions"]["operators"]
            if rise is not None:
                rises.setdefault(name, []).append(rise)
        ratio_means, size_means, rise_means = (
            {name: fmean(values) for name, values in table.items()} for table in (ratios, sizes, rises)
        )
        results.append(Result(trial=trial, ratios=ratio_means, means=size_means, without_operators=rise_means))
    return sorted(results, key=lambda result: sum(result.means.values()))


def confirmed_trials(plan: Plan, found: Trials, backbone: str) -> list[str]:
    """Trials that run again at further horizons and seeds: the best per family and size, and the plain attentions."""
    trials = ["softmax", "toa-softmax"]
    for family in FAMILIES:
        results = rank_trials(plan, found, backbone, family)
        for size in SIZES:
            best = sorted(results, key=lambda result: result.means[size])[: plan.confirm_best]
            trials += [result.trial for result in best]
    return list(dict.fromkeys(trials)) if len(trials) > 2 else []


def choose(plan: Plan, found: Trials, backbone: str) -> dict[tuple[str, str], Result]:
    """The trial with the lowest mean per family and size; empty if a family has no complete trial.

    Where trials ran in all cells of the confirmation, only these count, by their mean over all of them.
    """
    chosen = {}
    for family in FAMILIES:
        results = rank_trials(plan, found, backbone, family, confirmed=True)
        results = results or rank_trials(plan, found, backbone, family)
        for size in SIZES if results else ():
            chosen[family, size] = min(results, key=lambda result: result.means[size])
    return chosen
