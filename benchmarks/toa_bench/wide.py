"""The matrix of the protocol toa-wide: trials that choose the settings of each system and data set, and final runs.

A run is known by the hash of its config, so results of earlier calls are found wherever they were made.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from toa._checks import ArgumentError
from toa.data import DATASETS
from toa.experiments import resolve
from toa.experiments.records import Record, check_record
from toa.experiments.run import Job
from toa.models import build_forecaster

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "benchmarks" / "wide.toml"
# start of the message of a run whose loss became infinite or undefined; it counts as diverged
DIVERGED = "FloatingPointError"
# stored results by the hash of the config
Results = Mapping[str, Record]


@dataclass(frozen=True, kw_only=True)
class WidePlan:
    """What is run; see wide.toml for the fields. `base` changes settings of all runs, for small trials."""

    protocol: str
    backbone: str
    tuning_seed: int
    seeds: list[int]
    norms: list[bool]
    rates: list[float]
    lower: list[float]
    higher: list[float]
    between: float
    reference: str
    widened: list[str]
    units: dict[str, list[str]]
    optional: dict[str, list[str]]
    systems: dict[str, str]
    base: list[str] = field(default_factory=list)

    def members(self, unit: str) -> list[str]:
        """Data sets of a unit."""
        return (self.units | self.optional)[unit]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the search varies."""

    rate: float
    instance_norm: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The setting that validation chose for a system on a data set.

    Attributes:
        validation: Validation error of each trial; infinite for a diverged one.
    """

    dataset: str
    system: str
    setting: Setting
    validation: dict[Setting, float]

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the lowest or the highest that was tried with its instance norm."""
        rates = [tried.rate for tried in self.validation if tried.instance_norm == self.setting.instance_norm]
        return self.setting.rate in (min(rates), max(rates))


def read_wide_plan(path: Path = PLAN) -> WidePlan:
    """Read a plan."""
    return WidePlan(**tomllib.loads(path.read_text(encoding="utf-8")))


@cache
def horizons(protocol: str, backbone: str, dataset: str) -> list[int]:
    """Horizons of a data set in a protocol; the search has the first."""
    from toa.experiments.protocols import load_protocol

    table = load_protocol("forecast", protocol).tables[backbone]
    found: list[int] = table[dataset].get("horizons", table["default"]["horizons"])
    return found


def count_weights(config: Any, channels: int) -> int:
    """Number of trained weights of the model of a run."""
    with torch.device("meta"):
        model = build_forecaster(
            config.backbone,
            lookback=config.lookback,
            horizon=config.horizon,
            channels=channels,
            attention=config.attention,
            settings=config.model,
        )
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def widened_sizes(config: Any, reference: Any, channels: int) -> dict[str, int]:
    """Sizes of a softmax model with as many weights as a reference that has a second set of queries and keys.

    Queries and keys get twice the width. `ff_dim` is the smallest with at least as many weights as the reference.
    """
    qk_dim = 2 * config.model["embed_dim"] // config.model["num_heads"]
    wide = replace(config, attention=replace(config.attention, qk_dim=qk_dim))

    def weights(ff_dim: int) -> int:
        return count_weights(replace(wide, model={**config.model, "ff_dim": ff_dim}), channels)

    smallest = config.model["ff_dim"]
    # the number of weights is linear in ff_dim
    per_unit = weights(smallest + 1) - weights(smallest)
    missing = count_weights(reference, channels) - weights(smallest)
    return {"qk_dim": qk_dim, "ff_dim": smallest + max(0, -(-missing // per_unit))}


@cache
def _sizes_of_widened(
    protocol: str, backbone: str, attention: str, reference: str, dataset: str, base: tuple[str, ...]
) -> dict[str, int]:
    names: dict[str, Any] = {"dataset": dataset, "backbone": backbone, "changes": base}
    names["horizon"] = horizons(protocol, backbone, dataset)[0]
    config, model = (resolve("forecast", protocol, attention=name, **names) for name in (attention, reference))
    return widened_sizes(config, model, DATASETS[dataset].channels)


def make_job(
    plan: WidePlan, dataset: str, system: str, setting: Setting, *, horizon: int, seed: int, test: bool
) -> Job:
    """The run of a system with a setting, and its command line."""
    attention = plan.systems[system]
    changes = [
        *plan.base,
        f"training.learning_rate={setting.rate:g}",
        f"model.instance_norm={str(setting.instance_norm).lower()}",
    ]
    if system in plan.widened:
        names = (plan.protocol, plan.backbone, attention, plan.reference, dataset)
        sizes = _sizes_of_widened(*names, tuple(plan.base))
        changes += [f"attention.qk_dim={sizes['qk_dim']}", f"model.ff_dim={sizes['ff_dim']}"]
    if not test:
        changes.append("test=false")
    return _job(plan.protocol, seed, dataset, horizon, plan.backbone, attention, tuple(changes))


@cache
def _job(
    protocol: str, seed: int, dataset: str, horizon: int, backbone: str, attention: str, changes: tuple[str, ...]
) -> Job:
    options: dict[str, Any] = {"dataset": dataset, "horizon": horizon, "backbone": backbone, "attention": attention}
    config = resolve("forecast", protocol, seed=seed, changes=changes, **options)
    words = ["toa", "run", "--protocol", protocol, "--seed", str(seed)]
    words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += [word for change in changes for word in ("--set", change)]
    return Job(config=config, label=" ".join(words[2:]), command=tuple(words))


def trial_job(plan: WidePlan, dataset: str, system: str, setting: Setting) -> Job:
    """A trial: the first horizon, the seed of the search, no test error."""
    horizon = horizons(plan.protocol, plan.backbone, dataset)[0]
    return make_job(plan, dataset, system, setting, horizon=horizon, seed=plan.tuning_seed, test=False)


def validation_error(record: Record) -> float:
    """Validation error of a trial; infinite if it diverged."""
    config = record["config"]
    if config.get("test", True):
        raise ArgumentError("a trial", "have test=false", f"a run with a test error: {record['command']}")
    found = record["metrics"].get("val_mse", math.inf)
    return found if math.isfinite(found) else math.inf


def next_settings(plan: WidePlan, done: Mapping[Setting, float]) -> list[Setting]:
    """The trials that the rules of the plan ask for next, after those in `done`; none after the last stage."""
    first = [Setting(rate=rate, instance_norm=norm) for norm in plan.norms for rate in plan.rates]
    missing = [setting for setting in first if setting not in done]
    if missing:
        return missing
    start = min(first, key=done.__getitem__)
    rising = start.rate == max(plan.rates)
    ladder = [replace(start, rate=rate) for rate in (plan.higher if rising else plan.lower)]
    if ladder[0] not in done:
        return [ladder[0]]
    last = ladder[1] if done[ladder[0]] < done[start] else replace(start, rate=plan.between)
    return [] if last in done else [last]


def trials(plan: WidePlan, dataset: str, system: str, results: Results) -> tuple[dict[Setting, float], list[Job]]:
    """Validation errors of the trials that are stored, and the next trials."""
    done: dict[Setting, float] = {}
    while True:
        settings = next_settings(plan, done)
        jobs = {setting: trial_job(plan, dataset, system, setting) for setting in settings}
        done |= {one: validation_error(results[job.key]) for one, job in jobs.items() if job.key in results}
        waiting = [job for job in jobs.values() if job.key not in results]
        if waiting or not settings:
            return done, waiting


def choose_setting(plan: WidePlan, dataset: str, system: str, results: Results) -> Choice | None:
    """The setting with the lowest validation error, the first of equal ones; None while trials are missing.

    Raises:
        ValueError: If all trials diverged.
    """
    done, waiting = trials(plan, dataset, system, results)
    if waiting:
        return None
    best = min(done, key=done.__getitem__)
    if math.isinf(done[best]):
        raise ArgumentError(f"{system} on {dataset}", "have a trial that converges", f"none of {len(done)}")
    return Choice(dataset=dataset, system=system, setting=best, validation=done)


def final_jobs(plan: WidePlan, choice: Choice) -> Iterator[Job]:
    """The final runs of a system on a data set: all horizons and seeds."""
    for horizon in horizons(plan.protocol, plan.backbone, choice.dataset):
        for seed in plan.seeds:
            yield make_job(plan, choice.dataset, choice.system, choice.setting, horizon=horizon, seed=seed, test=True)


def pending_jobs(plan: WidePlan, stage: str, datasets: Iterable[str], results: Results) -> list[Job]:
    """Runs of a stage that can start now and have no result; the most expensive come first.

    Args:
        stage: "tune", "final", or "all": final runs of systems whose trials are done, and trials of the others.
    """
    jobs: list[Job] = []
    for dataset in datasets:
        for system in plan.systems:
            if stage != "final":
                jobs += trials(plan, dataset, system, results)[1]
            if stage != "tune" and (choice := choose_setting(plan, dataset, system, results)) is not None:
                jobs += [job for job in final_jobs(plan, choice) if job.key not in results]
    return sorted(jobs, key=lambda job: -run_cost(job.config))


def window_operations(config: Any, channels: int) -> float:
    """Floating-point operations of a training step per window: three times those of the forward pass."""
    model, attention = config.model, config.attention
    width, heads, ff_dim = model["embed_dim"], model["num_heads"], model["ff_dim"]
    groups = 2 if attention.name.endswith("gated") else 1
    qk_width = groups * heads * (attention.qk_dim or width // heads)
    # products per token: projections, feed-forward, scores, values, operators
    products = width * (2 * qk_width + 2 * width) + 2 * width * ff_dim + channels * (qk_width + width)
    if attention.name.startswith("toa-"):
        products += channels * (qk_width + width)
    ends = width * (config.lookback + config.horizon)
    return 3.0 * 2.0 * channels * (model["num_layers"] * products + ends)


def memory_hungry(config: Any) -> bool:
    """Whether a run takes tens of GB: its feed-forward network has more than 1e8 values per batch and layer."""
    values = config.batch_size * DATASETS[config.dataset].channels * config.model["ff_dim"]
    return bool(values > 1e8)


def run_cost(config: Any) -> float:
    """Operations of all epochs of a run, without evaluation."""
    spec = DATASETS[config.dataset]
    return config.training.epochs * epoch_windows(config) * window_operations(config, spec.channels)


def epoch_windows(config: Any) -> int:
    """Windows that an epoch trains on."""
    from toa.data import split_rows

    rows = DATASETS[config.dataset].rows
    rule = config.split or DATASETS[config.dataset].split
    windows = split_rows(rule, rows, lookback=config.lookback, horizon=config.horizon).train.windows(
        config.lookback, config.horizon
    )
    return min(windows, config.batch_size * (config.epoch_steps or windows))


def read_results(paths: Iterable[Path]) -> dict[str, Record]:
    """Records of .jsonl files by the hash of the config; a file that does not exist has none."""
    found: dict[str, Record] = {}
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            record = check_record(json.loads(line), f"line {number} of {path}")
            found[record["config_hash"]] = record
    return found
