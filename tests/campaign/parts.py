"""The parts of the campaign, in the order in which they run: those that find the most come first.

for part in all_parts(files=20_000, kills=1_000, faults=80):
    outcome = part.attempt(folder, 0, part.step, seed=0)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.campaign import disk, hostile, load, mends, small_tables
from tests.campaign.forgery import FORGED, forge
from tests.campaign.fuzz import fuzz
from tests.campaign.kills import WORKS, kill, kill_sweeps
from tests.campaign.loaders import LOADERS
from tests.campaign.outcome import Outcome
from tests.metamorphic import cases
from tests.ops import oracle

# forged files of each kind, of the two to six thousand that differ from a good one in one entry
FORGERIES = 600
# random calls of operator attention that are compared with its formula
ORACLE_CASES = 5_000
# small random tables with random options, for each estimator
SMALL_TABLES = 600
# random tables on which each promise of tests/metamorphic/properties.toml is tried
PROPERTY_CASES = 40


class Attempt(Protocol):
    """Tries `count` files, kills or faults, from the number `first` on."""

    def __call__(self, folder: Path, first: int, count: int, *, seed: int) -> Outcome: ...


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is tried, and how often.

    Attributes:
        wanted: Number to try.
        step: Number at a time; results are kept after each.
        alone: Whether nothing else runs beside it: parts that measure time or memory of the machine.
    """

    name: str
    wanted: int
    step: int
    attempt: Attempt
    alone: bool = False

    @property
    def family(self) -> str:
        """The first word of the name: parts of one family may run in one process."""
        return self.name.partition(" ")[0]


def all_parts(*, files: int, kills: int, faults: int) -> Iterator[Part]:
    """The parts that run beside others, and then those that run alone."""
    yield from _fuzz(files)
    for kind in FORGED:
        yield Part(name=f"forgery {kind}", wanted=FORGERIES, step=100, attempt=partial(_numbered, forge, kind))
    yield from _kills(kills)
    for name in disk.COMMANDS:
        yield Part(name=f"disk {name}", wanted=faults, step=50, attempt=partial(_numbered, disk.fail_disk, name))
    for name in (*hostile.COMMANDS, *hostile.ESTIMATORS):
        count = len(hostile.NAMES)
        yield Part(name=f"names {name}", wanted=count, step=count, attempt=partial(_numbered, hostile.try_names, name))
    for name in hostile.ESTIMATORS:
        attempt = partial(_numbered, hostile.try_numbers, name)
        yield Part(name=f"numbers {name}", wanted=10 * len(hostile.NUMBERS), step=50, attempt=attempt)
    for name in small_tables.ATTEMPTS:
        attempt = partial(_numbered, small_tables.try_tables, name)
        yield Part(name=f"tables for the {name}", wanted=SMALL_TABLES, step=50, attempt=attempt)
    yield Part(name="oracle of operator attention", wanted=ORACLE_CASES, step=500, attempt=oracle.try_cases)
    for kind in cases.KINDS:
        attempt = partial(cases.try_cases, kind)
        yield Part(name=f"properties of the {kind}", wanted=PROPERTY_CASES, step=10, attempt=attempt)
    yield Part(name="mends taken out", wanted=len(mends.MENDS), step=5, attempt=mends.take_out)
    for name, (work, count) in load.PARTS.items():
        # a case of memory is a program of minutes
        step = 1 if name == "memory" else count
        yield Part(name=f"load {name}", wanted=count, step=step, attempt=work, alone=True)


def _fuzz(files: int) -> Iterator[Part]:
    each = -(-files // len(LOADERS))
    for kind in LOADERS:
        yield Part(name=f"fuzz {kind}", wanted=each, step=100, attempt=partial(_numbered, fuzz, kind))


def _kills(kills: int) -> Iterator[Part]:
    # a child of a sweep is a new program, which takes seconds
    sweeps = {"pool": kills // 100, "ray": kills // 250}
    # a run has the most steps, and a forecast draws figures
    shares = {name: {"run": 5, "forecast": 1}.get(name, 4) for name in WORKS}
    rest = kills - sum(sweeps.values())
    for name, share in shares.items():
        wanted = -(-rest * share // sum(shares.values()))
        yield Part(name=f"kill {name}", wanted=wanted, step=20, attempt=partial(_kill, name))
    for executor, count in sweeps.items():
        yield Part(name=f"kill sweep by {executor}", wanted=count, step=2, attempt=partial(_kill_sweeps, executor))


def _numbered(attempt: Any, kind: str, folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    outcome: Outcome = attempt(kind, folder, seed=seed, numbers=range(first, first + count))
    return outcome


def _kill(name: str, folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    return kill(name, folder, seed=seed + first, kills=count)


def _kill_sweeps(executor: str, folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    return kill_sweeps(folder, seed=seed + first, kills=count, executor=executor)
