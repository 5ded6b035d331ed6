"""The runs of a plan of the protocol toa-wide: trials that choose the settings of each system and case, and final runs.

A plan is a file: wide.toml, wide-rivals.toml or wide-scaling.toml. A case is a data set, or a part of one. A run is
known by the hash of its config, so results of earlier calls are found wherever they were made.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from toa._checks import ArgumentError
from toa.experiments import resolve
from toa.experiments.records import Record, check_record
from toa.experiments.run import Job
from toa_bench.wide_cost import count_channels, count_weights, run_cost

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "benchmarks" / "wide.toml"
# start of the message of a run whose loss became infinite or undefined; it counts as diverged
DIVERGED = "FloatingPointError"
# stored results by the hash of the config
Results = Mapping[str, Record]


@dataclass(frozen=True, kw_only=True)
class System:
    """What is compared: a backbone, its attention if it takes one, and further settings as "key=value"."""

    backbone: str
    attention: str | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A data set, with changes such as "most_columns=20" for a part of it."""

    dataset: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files of stored results, below the folder of results."""

    trials: str
    runs: str
    choices: str


@dataclass(frozen=True, kw_only=True)
class WidePlan:
    """What is run; see wide.toml for the fields.

    Attributes:
        cases: Parts of data sets by name; any other name is that of a complete data set.
        base: Changes of the settings of all runs.
    """

    protocol: str
    tuning_seed: int
    seeds: list[int]
    norms: list[bool]
    rates: list[float]
    lower: list[float]
    higher: list[float]
    units: dict[str, list[str]]
    systems: dict[str, System]
    stored: Files
    between: float | None = None
    reference: str | None = None
    widened: list[str] = field(default_factory=list)
    optional: dict[str, list[str]] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)
    first_horizon_only: bool = False
    base: list[str] = field(default_factory=list)

    def case(self, name: str) -> Case:
        """A case by name."""
        return self.cases.get(name, Case(dataset=name))

    @property
    def members(self) -> list[str]:
        """Names of all cases, also of those without a part in the decision."""
        return [case for cases in (self.units | self.optional).values() for case in cases]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the search varies."""

    rate: float
    instance_norm: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The setting that validation chose for a system on a case.

    Attributes:
        validation: Validation error of each trial; infinite for a diverged one.
    """

    case: str
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
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    systems = {name: System(**_with_tuples(values)) for name, values in content.pop("systems").items()}
    cases = {name: Case(**_with_tuples(values)) for name, values in content.pop("cases", {}).items()}
    return WidePlan(systems=systems, cases=cases, stored=Files(**content.pop("stored")), **content)


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def horizons(plan: WidePlan, case: str) -> list[int]:
    """Horizons of a case; the search has the first."""
    backbone = next(iter(plan.systems.values())).backbone
    every = _protocol_horizons(plan.protocol, backbone, plan.case(case).dataset)
    return every[:1] if plan.first_horizon_only else every


@cache
def _protocol_horizons(protocol: str, backbone: str, dataset: str) -> list[int]:
    from toa.experiments.protocols import load_protocol

    table = load_protocol("forecast", protocol).tables[backbone]
    found: list[int] = table[dataset].get("horizons", table["default"]["horizons"])
    return found


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


def _changes_of(plan: WidePlan, case: str, system: str) -> tuple[str, ...]:
    """The changes of a plan, a case and a system, before those of a setting."""
    return (*plan.base, *plan.case(case).changes, *plan.systems[system].changes)


@cache
def _sizes_of_widened(
    protocol: str, system: System, reference: System, dataset: str, changes: tuple[str, ...], horizon: int
) -> dict[str, int]:
    config, model = (
        resolve(
            "forecast",
            protocol,
            dataset=dataset,
            backbone=each.backbone,
            attention=each.attention,
            horizon=horizon,
            changes=changes,
        )
        for each in (system, reference)
    )
    return widened_sizes(config, model, count_channels(config))


def make_job(plan: WidePlan, case: str, system: str, setting: Setting, *, horizon: int, seed: int, test: bool) -> Job:
    """The run of a system with a setting, and its command line."""
    dataset = plan.case(case).dataset
    changes = [
        *_changes_of(plan, case, system),
        f"training.learning_rate={setting.rate:g}",
        f"model.instance_norm={str(setting.instance_norm).lower()}",
    ]
    if system in plan.widened:
        assert plan.reference is not None
        sizes = _sizes_of_widened(
            plan.protocol,
            plan.systems[system],
            plan.systems[plan.reference],
            dataset,
            _changes_of(plan, case, system),
            horizons(plan, case)[0],
        )
        changes += [f"attention.qk_dim={sizes['qk_dim']}", f"model.ff_dim={sizes['ff_dim']}"]
    if not test:
        changes.append("test=false")
    return _job(plan.protocol, seed, dataset, horizon, plan.systems[system], tuple(changes))


@cache
def _job(protocol: str, seed: int, dataset: str, horizon: int, system: System, changes: tuple[str, ...]) -> Job:
    options: dict[str, Any] = {"dataset": dataset, "horizon": horizon, "backbone": system.backbone}
    if system.attention is not None:
        options["attention"] = system.attention
    config = resolve("forecast", protocol, seed=seed, changes=changes, **options)
    words = ["toa", "run", "--protocol", protocol, "--seed", str(seed)]
    words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += [word for change in changes for word in ("--set", change)]
    return Job(config=config, label=" ".join(words[2:]), command=tuple(words))


def trial_job(plan: WidePlan, case: str, system: str, setting: Setting) -> Job:
    """A trial: the first horizon, the seed of the search, no test error."""
    horizon = horizons(plan, case)[0]
    return make_job(plan, case, system, setting, horizon=horizon, seed=plan.tuning_seed, test=False)


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
    beyond = plan.higher if start.rate == max(plan.rates) else plan.lower
    if not beyond:
        # a plan without further rates ends with the first stage
        return []
    ladder = [replace(start, rate=rate) for rate in beyond]
    if ladder[0] not in done:
        return [ladder[0]]
    assert plan.between is not None
    last = ladder[1] if done[ladder[0]] < done[start] else replace(start, rate=plan.between)
    return [] if last in done else [last]


def trials(plan: WidePlan, case: str, system: str, results: Results) -> tuple[dict[Setting, float], list[Job]]:
    """Validation errors of the trials that are stored, and the next trials."""
    done: dict[Setting, float] = {}
    while True:
        settings = next_settings(plan, done)
        jobs = {setting: trial_job(plan, case, system, setting) for setting in settings}
        done |= {one: validation_error(results[job.key]) for one, job in jobs.items() if job.key in results}
        waiting = [job for job in jobs.values() if job.key not in results]
        if waiting or not settings:
            return done, waiting


def choose_setting(plan: WidePlan, case: str, system: str, results: Results) -> Choice | None:
    """The setting with the lowest validation error, the first of equal ones; None while trials are missing.

    Raises:
        ValueError: If all trials diverged.
    """
    done, waiting = trials(plan, case, system, results)
    if waiting:
        return None
    best = min(done, key=done.__getitem__)
    if math.isinf(done[best]):
        raise ArgumentError(f"{system} on {case}", "have a trial that converges", f"none of {len(done)}")
    return Choice(case=case, system=system, setting=best, validation=done)


def final_jobs(plan: WidePlan, choice: Choice) -> Iterator[Job]:
    """The final runs of a system on a case: all horizons and seeds."""
    for horizon in horizons(plan, choice.case):
        for seed in plan.seeds:
            yield make_job(plan, choice.case, choice.system, choice.setting, horizon=horizon, seed=seed, test=True)


def pending_jobs(plan: WidePlan, stage: str, cases: Iterable[str], results: Results) -> list[Job]:
    """Runs of a stage that can start now and have no result; the most expensive come first.

    Args:
        stage: "tune", "final", or "all": final runs of systems whose trials are done, and trials of the others.
    """
    jobs: list[Job] = []
    for case in cases:
        for system in plan.systems:
            if stage != "final":
                jobs += trials(plan, case, system, results)[1]
            if stage != "tune" and (choice := choose_setting(plan, case, system, results)) is not None:
                jobs += [job for job in final_jobs(plan, choice) if job.key not in results]
    return sorted(jobs, key=lambda job: -run_cost(job.config))


def read_results(paths: Iterable[Path]) -> dict[str, Record]:
    """Records of .jsonl files by the hash of the config; a file that does not exist has none."""
    found: dict[str, Record] = {}
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            record = check_record(json.loads(line), f"line {number} of {path}")
            found[record["config_hash"]] = record
    return found
