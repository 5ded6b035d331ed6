"""The campaign: `make campaign`, or python -m tests.campaign --files 20000 --kills 1000.

It can be stopped and repeated: finished parts are kept in results/reliability/campaign.json.
"""

import argparse
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from tests.campaign import disk, hostile, load, mends
from tests.campaign.fuzz import fuzz
from tests.campaign.kills import WORKS, kill, kill_sweeps
from tests.campaign.loaders import LOADERS
from tests.campaign.outcome import Outcome
from tests.metamorphic import cases
from tests.ops import oracle
from tests.support import ROOT
from toa._console import make_console
from toa._files import parse_json, seal, unseal, write_atomically
from toa.experiments.records import provenance

# random calls of operator attention that are compared with its formula
ORACLE_CASES = 5_000
# random tables on which each promise of tests/metamorphic/properties.toml is tried
PROPERTY_CASES = 40


class Attempt(Protocol):
    """Tries `count` files, kills or faults, from the number `first` on."""

    def __call__(self, folder: Path, first: int, count: int, *, seed: int) -> Outcome: ...


class Campaign:
    """Results so far, by name, in a file."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.seed = seed
        self.about = provenance(torch.device("cpu"), ["make", "campaign"])
        found: Any = unseal(parse_json(path.read_text(), str(path)), str(path))[0] if path.exists() else {"parts": {}}
        self.parts: dict[str, Any] = found["parts"]

    def done(self, name: str, wanted: int) -> int:
        """How many were tried with this seed; a part that is not finished starts again at another commit."""
        part = self.parts.get(name)
        if part is None or part["seed"] != self.seed:
            return 0
        return part["tried"] if part["tried"] >= wanted or part["commit"] == self.about["commit"] else 0

    def add(self, name: str, outcome: Outcome, tried: int, wanted: int, seconds: float) -> None:
        old = self.parts.get(name, {}) if self.done(name, wanted) else {}
        counts = {key: old.get("counts", {}).get(key, 0) + value for key, value in outcome.counts.items()}
        self.parts[name] = {
            "seed": self.seed,
            "tried": old.get("tried", 0) + tried,
            "counts": old.get("counts", {}) | counts,
            "failures": old.get("failures", []) + outcome.failures,
            "seconds": round(old.get("seconds", 0.0) + seconds, 1),
            **self.about,
        }
        content = seal({"task": "reliability", "parts": self.parts})
        write_atomically(self.path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def parts(files: int, kills: int, faults: int) -> Iterator[tuple[str, int, int, Attempt]]:
    """Name, number to try, number at a time, and what tries them."""
    each = -(-files // len(LOADERS))
    for kind in LOADERS:
        yield f"fuzz {kind}", each, 100, partial(_numbered, fuzz, kind)
    # a child of a sweep is a new program, which takes seconds
    sweeps = {"pool": kills // 100, "ray": kills // 250}
    # a run has the most steps, and a forecast draws figures
    shares = {name: {"run": 5, "forecast": 1}.get(name, 4) for name in WORKS}
    for name, share in shares.items():
        yield (
            f"kill {name}",
            -(-(kills - sum(sweeps.values())) * share // sum(shares.values())),
            20,
            partial(_kill, name),
        )
    for executor, count in sweeps.items():
        yield f"kill sweep by {executor}", count, 2, partial(_kill_sweeps, executor)
    for name in disk.COMMANDS:
        yield f"disk {name}", faults, 50, partial(_numbered, disk.fail_disk, name)
    for name in (*hostile.COMMANDS, *hostile.ESTIMATORS):
        yield f"names {name}", len(hostile.NAMES), len(hostile.NAMES), partial(_numbered, hostile.try_names, name)
    for name in hostile.ESTIMATORS:
        yield f"numbers {name}", 10 * len(hostile.NUMBERS), 50, partial(_numbered, hostile.try_numbers, name)
    for name, (attempt, count) in load.PARTS.items():
        # a case of memory is a program of minutes
        yield f"load {name}", count, 1 if name == "memory" else count, attempt
    yield "oracle of operator attention", ORACLE_CASES, 500, oracle.try_cases
    for kind in cases.KINDS:
        yield f"properties of the {kind}", PROPERTY_CASES, 10, partial(cases.try_cases, kind)
    yield "mends taken out", len(mends.MENDS), 5, mends.take_out


def _numbered(attempt: Any, kind: str, folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    found: Outcome = attempt(kind, folder, seed=seed, numbers=range(first, first + count))
    return found


def _kill(name: str, folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    return kill(name, folder, seed=seed + first, kills=count)


def _kill_sweeps(executor: str, folder: Path, first: int, count: int, *, seed: int) -> Outcome:
    return kill_sweeps(folder, seed=seed + first, kills=count, executor=executor)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000, help="files over all loaders")
    parser.add_argument("--kills", type=int, default=1_000, help="kills over all kinds of work")
    parser.add_argument("--faults", type=int, default=80, help="failures of the disk per command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="parts whose name begins like this")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reliability" / "campaign.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    campaign = Campaign(args.out, args.seed)
    for name, wanted, step, attempt in parts(args.files, args.kills, args.faults):
        while name.startswith(args.only) and (done := campaign.done(name, wanted)) < wanted:
            begin = time.monotonic()
            count = min(step, wanted - done)
            with tempfile.TemporaryDirectory() as scratch:
                outcome = attempt(Path(scratch), done, count, seed=args.seed)
            # the last kills of a work may be more than were asked for
            campaign.add(name, outcome, outcome.counts.get("kills", count), wanted, time.monotonic() - begin)
            part = campaign.parts[name]
            done = part["tried"]
            bad = len(part["failures"])
            seconds = part["seconds"]
            make_console().print(f"{name}: {done} of {wanted}, {bad} bad, {seconds} s")
    failures = [line for part in campaign.parts.values() for line in part["failures"]]
    make_console().print(*failures, sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
