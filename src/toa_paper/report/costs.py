"""What an attention costs: the time of a training step with it, over that of a step with softmax.

One definition for every page. Both steps are those of our own model, with equal sizes and settings but the attention,
and both times stand in one record. Systems are timed in turns, a block of steps at a time; the ratio is the median over
turns of the ratio of the two blocks of a turn.

    ratio = median over turns of median(block of ours) / median(block of softmax)
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from toa.experiments.records import Record

# what every attention is compared with first
BASE = "softmax"
# the task of records whose systems are timed in turns
STEP_TASK = "training_step"
# the task of records of the paper's rows
ROW_TASK = "efficiency"


class StepRatio(NamedTuple):
    """Time of a step over that of another system.

    Attributes:
        ratio: The median over turns.
        least, greatest: The extremes over turns. With one turn: the first decile of our steps over the last decile of
            the other's, and the reverse.
    """

    ratio: float
    least: float
    greatest: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.least:.2f} to {self.greatest:.2f})"


def step_ratio(system: Record, other: Record) -> StepRatio:
    """Time of a system's step over that of another system of the same record."""
    turns = [
        ours / theirs for ours, theirs in zip(system.get("blocks_ms", ()), other.get("blocks_ms", ()), strict=True)
    ]
    if len(turns) > 1:
        return StepRatio(statistics.median(turns), min(turns), max(turns))
    ratio = system["milliseconds"] / other["milliseconds"]
    return StepRatio(ratio, system["tenth"] / other["ninetieth"], system["ninetieth"] / other["tenth"])


def systems_by_case(records: Iterable[Record]) -> dict[str, Mapping[str, Record]]:
    """The timed systems of every case, by name; of a case in several records, those of the first."""
    cases: dict[str, Mapping[str, Record]] = {}
    for record in records:
        for name, systems in _cases(record):
            cases.setdefault(name, {key: system for key, system in systems.items() if "milliseconds" in system})
    return cases


def attention_costs(records: Iterable[Record]) -> dict[tuple[str, str], StepRatio]:
    """The cost of each attention, by case and name of the attention; records without softmax have none."""
    return {
        (case, name): step_ratio(system, systems[BASE])
        for case, systems in systems_by_case(records).items()
        if BASE in systems
        for name, system in systems.items()
        if name.startswith("toa-")
    }


def _cases(record: Record) -> Iterator[tuple[str, Mapping[str, Record]]]:
    if record.get("task") == STEP_TASK:
        yield from ((row["name"], row["systems"]) for row in record["rows"])
    elif record.get("task") == ROW_TASK and "rows" in record:
        # the paper's rows, named as the cases are: by backbone and width
        found: dict[str, dict[str, Record]] = {}
        for row in record["rows"]:
            backbone, _, attention = row["name"].partition("/")
            if attention:
                case = f"{backbone}-{row['config']['model']['embed_dim']}"
                found.setdefault(case, {})[attention] = row
        yield from found.items()
