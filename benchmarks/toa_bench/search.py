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
_KEPT = ("config_hash", "data_checksum", "seed", "device", "commit", "command", "versions", "wall_s", "best_epoch")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is searched; see search.toml."""

    datasets: tuple[str, ...]
    horizon: int
    seed: int
    small_below: int
    stages: dict[str, dict[str, dict[str, list[str]]]]

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
                        attention, *settings = trial.split()
                        words = ["--dataset", dataset, "--horizon", str(self.horizon), "--backbone", backbone]
                        words += ["--attention", attention, "--protocol", "toa-paper", "--seed", str(self.seed)]
                        for setting in (*settings, "test=false"):
                            words += ["--set", setting]
                        yield shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trial on all datasets.

    Attributes:
        trial: The trial.
        ratios: Validation error relative to plain softmax, per dataset.
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
    return Plan(**{**content, "datasets": tuple(content["datasets"])}, stages=stages)


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


def read_trials(path: Path = TRIALS) -> dict[tuple[str, str, str], Record]:
    """Stored trials by backbone, trial and dataset."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(row["backbone"], row["trial"], row["dataset"]): row for row in rows}


def rank_trials(plan: Plan, found: dict[tuple[str, str, str], Record], backbone: str, family: str) -> list[Result]:
    """Trials that ran on every dataset, the best first by the mean over both sizes."""
    results = []
    for trial in plan.trials(backbone, family):
        rows = {name: found.get((backbone, trial, name)) for name in plan.datasets}
        base = {name: found.get((backbone, "softmax", name)) for name in plan.datasets}
        if None in rows.values() or None in base.values():
            continue
        ratios, sizes, rises = {}, {size: list[float]() for size in SIZES}, {}
        for name, row in rows.items():
            plain = base[name]
            assert row is not None
            assert plain is not None
            ratios[name] = row["validation"] / plain["validation"]
            sizes["small" if row["windows"] < plan.small_below else "large"].append(ratios[name])
            rise = row["operators"]["contributions"]["operators"]
            if rise is not None:
                rises[name] = rise
        means = {size: fmean(values) for size, values in sizes.items()}
        results.append(Result(trial=trial, ratios=ratios, means=means, without_operators=rises))
    return sorted(results, key=lambda result: sum(result.means.values()))


def choose(plan: Plan, found: dict[tuple[str, str, str], Record], backbone: str) -> dict[tuple[str, str], Result]:
    """The trial with the lowest mean per family and size; empty if a family has no complete trial."""
    chosen = {}
    for family in FAMILIES:
        results = rank_trials(plan, found, backbone, family)
        for size in SIZES if results else ():
            chosen[family, size] = min(results, key=lambda result: result.means[size])
    return chosen
