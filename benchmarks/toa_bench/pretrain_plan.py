"""The plan of pretraining: models, settings and series of the arms of a screening, and of full trainings.

plan = read_plan(PLAN)
run = make_run(plan, "screen/softmax", device)    # one arm; "screen/softmax@1" with another seed
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toa._checks import ArgumentError, check_choice, check_count, check_seed
from toa.data.synthetic import SyntheticSettings, draw_series
from toa.models.pretrained import PretrainedConfig, PretrainedForecaster
from toa.training.flat_adam import AdamConfig
from toa.training.pretraining import Pretraining, PretrainingConfig

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "benchmarks/pretrain.toml"
# arm that every screening has
CONTROL = "softmax"
_TABLES = ("validation", "series", "model", "training", "screen", "size", "arms", "runs")


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesPlan:
    """Which series are drawn.

    Attributes:
        seed: Seed of all draws; weights of a model have their own.
        together: Steps whose series are drawn at once.
        settings: Kinds and changes.
    """

    seed: int
    together: int
    settings: SyntheticSettings

    def batches(self, batch_size: int, length: int, device: torch.device) -> "Batches":
        """The series of each step."""
        return Batches(self, batch_size, length, device)


class Batches:
    """Series (B, L) of a step, from seed and step alone; those of several steps are drawn together and kept."""

    def __init__(self, plan: SeriesPlan, batch_size: int, length: int, device: torch.device) -> None:
        self._plan = plan
        self._size = batch_size
        self._length = length
        self._device = device
        self._group: int | None = None
        self._series = torch.empty(0)

    def __call__(self, step: int) -> Tensor:
        """The series of a step."""
        plan = self._plan
        group, place = divmod(step, plan.together)
        if group != self._group:
            count = plan.together * self._size
            self._series = draw_series(
                count, self._length, seed=plan.seed, step=group, device=self._device, settings=plan.settings
            )
            self._group = group
        return self._series[place * self._size : (place + 1) * self._size]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One training: a model, and how it is trained."""

    model: PretrainedConfig
    training: PretrainingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All trainings of a plan by name: "screen/ARM" and "SIZE" of the full ones."""

    path: Path
    validation: Path
    series: SeriesPlan
    series_facts: Mapping[str, Any]
    entries: Mapping[str, Entry]

    def arms(self) -> list[str]:
        """Names of the arms of the screening."""
        return [name for name in self.entries if name.startswith("screen/")]

    def entry(self, name: str) -> Entry:
        """A training by name; "NAME@5" is the same with the seed 5 of weights and context lengths."""
        plain, _, seed = name.partition("@")
        check_choice("training", plain, self.entries)
        entry = self.entries[plain]
        if not seed:
            return entry
        if not seed.isdecimal():
            raise ArgumentError(f"the seed in {name!r}", "be an integer", repr(seed), f"write {plain}@1, for instance")
        return replace(entry, training=replace(entry.training, seed=int(seed)))


def read_plan(path: Path = PLAN) -> Plan:
    """Read a plan, and check every model and setting of it."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    for name in tables:
        check_choice(f"table of {path.name}", name, _TABLES)
    if CONTROL not in tables["arms"]:
        raise ArgumentError(f"arms of {path.name}", f"have {CONTROL!r}, the control", ", ".join(tables["arms"]))
    facts = dict(tables["series"])
    options = dict(facts)
    seed, together = options.pop("seed"), options.pop("together")
    check_seed(seed)
    check_count("together", together, 1)
    entries = {
        f"screen/{name}": _entry(tables, tables["size"]["small"] | arm, tables["screen"])
        for name, arm in tables["arms"].items()
    }
    for name, run in tables.get("runs", {}).items():
        settings = dict(run)
        arm, size = settings.pop("arm"), settings.pop("size")
        check_choice("arm", arm, tables["arms"])
        check_choice("size", size, tables["size"])
        entries[name] = _entry(tables, tables["size"][size] | tables["arms"][arm], settings)
    return Plan(
        path=path,
        validation=ROOT / tables["validation"],
        series=SeriesPlan(seed=seed, together=together, settings=SyntheticSettings(**options)),
        series_facts=facts,
        entries=entries,
    )


def _entry(tables: Mapping[str, Any], model: Mapping[str, Any], training: Mapping[str, Any]) -> Entry:
    settings = dict(tables["training"] | training)
    adam = AdamConfig(**settings.pop("adam", {}))
    try:
        training_config = PretrainingConfig(**settings, adam=adam)
    except TypeError as error:
        raise ArgumentError(
            "a training of the plan", "have known settings", f"an error: {error}", "correct it"
        ) from None
    return Entry(model=PretrainedConfig.from_json(tables["model"] | model, "the plan"), training=training_config)


def make_run(plan: Plan, name: str, device: torch.device, *, facts: Mapping[str, Any] | None = None) -> Pretraining:
    """A training in memory, with first weights by its seed."""
    entry = plan.entry(name)
    # the weights are drawn on the CPU, so that they do not depend on the device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(entry.training.seed)
        model = PretrainedForecaster(entry.model)
    length = entry.model.context + entry.model.horizon
    draw = plan.series.batches(entry.training.batch_size, length, device)
    source = {"generator": "toa.data.synthetic", **plan.series_facts}
    return Pretraining(
        model.to(device), entry.training, draw, facts={"name": name, "synthetic": source, **(facts or {})}
    )
