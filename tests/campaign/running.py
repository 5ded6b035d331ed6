"""Run parts of the campaign, two at a time, and keep what they found in a file.

    campaign = Campaign(path, seed=0)
    run_parts(campaign, parts, 2, new_process)
    campaign.state(parts)    # what is bad or missing

Parts run in processes of their own; those that measure time or memory run alone, after the others.
"""

import json
import logging
import multiprocessing
import os
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.campaign.outcome import Outcome
from tests.campaign.parts import Attempt, Part
from toa._console import make_console
from toa._files import parse_json, seal, unseal, write_atomically
from toa._limits import shorten
from toa.experiments.records import provenance


class Campaign:
    """Results so far, by name, in a file.

    Args:
        keep_older: Whether a part that is complete at another commit counts as done.
    """

    def __init__(self, path: Path, seed: int, *, keep_older: bool = False) -> None:
        self.path = path
        self.seed = seed
        self.keep_older = keep_older
        self.about = provenance(torch.device("cpu"), ["make", "campaign"])
        stored: Any = {"parts": {}}
        if path.exists():
            stored = unseal(parse_json(path.read_text(), str(path)), str(path))[0]
        self.parts: dict[str, Any] = stored["parts"]
        # number to try in each part
        self.planned: dict[str, int] = {}
        # parts that run at the same time write one file
        self.lock = threading.Lock()

    def done(self, part: Part) -> int:
        """How many were tried with this seed at this commit, or at an older one if that counts."""
        stored = self.parts.get(part.name)
        if stored is None or stored["seed"] != self.seed:
            return 0
        older = self.keep_older and stored["tried"] >= part.wanted
        return int(stored["tried"]) if older or stored["commit"] == self.about["commit"] else 0

    def add(self, part: Part, outcome: Outcome, tried: int, seconds: float) -> None:
        """Add results to those of the same commit, and write the file."""
        with self.lock:
            old = self.parts[part.name] if self.done(part) else {}
            counts = {key: old.get("counts", {}).get(key, 0) + value for key, value in outcome.counts.items()}
            self.parts[part.name] = {
                "seed": self.seed,
                "tried": old.get("tried", 0) + tried,
                "counts": old.get("counts", {}) | counts,
                "failures": old.get("failures", []) + outcome.failures,
                "seconds": round(old.get("seconds", 0.0) + seconds, 1),
                **self.about,
            }
            self.write()

    def write(self) -> None:
        """Write all results."""
        content = seal({"task": "reliability", "planned": self.planned, "parts": self.parts})
        write_atomically(self.path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())

    def plan(self, parts: Iterable[Part]) -> None:
        """State all parts, so that the file names those that are missing, and leave out parts that are gone."""
        self.planned = {part.name: part.wanted for part in parts}
        self.parts = {name: stored for name, stored in self.parts.items() if name in self.planned}

    def state(self, parts: Iterable[Part]) -> list[str]:
        """What is bad, missing, or of another commit, in one line each."""
        lines = []
        for part in parts:
            stored = self.parts.get(part.name, {"tried": 0, "failures": []})
            lines += [f"{part.name}: {failure}" for failure in stored["failures"]]
            if stored["tried"] < part.wanted:
                lines.append(f"{part.name}: {stored['tried']} of {part.wanted}")
            elif stored["commit"] != self.about["commit"] and not self.keep_older:
                lines.append(f"{part.name}: of commit {stored['commit']}, not {self.about['commit']}")
        return lines


def run_parts(campaign: Campaign, parts: Sequence[Part], jobs: int, make_process: Callable[[int], Executor]) -> None:
    """Run what is not done, `jobs` parts at a time, and then those that run alone.

    Args:
        make_process: Returns a process for parts of one family, when so many run at a time.
    """
    missing = [part for part in parts if campaign.done(part) < part.wanted]
    beside = deque(part for part in missing if not part.alone)
    alone = deque(part for part in missing if part.alone)
    for waiting, count in ((beside, jobs), (alone, 1)):
        with ThreadPoolExecutor(count) as threads:
            running = [
                threads.submit(_run_waiting, campaign, waiting, partial(make_process, count)) for _ in range(count)
            ]
            for future in running:
                future.result()


def _run_waiting(campaign: Campaign, waiting: deque[Part], make_process: Callable[[], Executor]) -> None:
    """Run waiting parts one after another, those of another family in a new process."""
    family = ""
    with ExitStack() as processes:
        while waiting:
            try:
                part = waiting.popleft()
            except IndexError:
                # another thread took the last one
                return
            if part.family != family:
                processes.close()
                process = processes.enter_context(make_process())
                family = part.family
            try:
                _run_part(campaign, part, process)
            except Exception as error:
                # a part that cannot even try is bad, and the others still run
                outcome = Outcome(failures=[f"ends with {type(error).__name__}: {shorten(str(error))}"])
                campaign.add(part, outcome, 0, 0.0)
                family = ""


def _run_part(campaign: Campaign, part: Part, process: Executor) -> None:
    """Run one part to its end."""
    while (done := campaign.done(part)) < part.wanted:
        count = min(part.step, part.wanted - done)
        outcome, seconds = process.submit(_try, part.attempt, done, count, campaign.seed).result()
        # the last kills of a work may be more than were asked for
        campaign.add(part, outcome, outcome.counts.get("kills", count), seconds)
        stored = campaign.parts[part.name]
        bad = len(stored["failures"])
        make_console().print(f"{part.name}: {stored['tried']} of {part.wanted}, {bad} bad, {stored['seconds']} s")


def _try(attempt: Attempt, first: int, count: int, seed: int) -> tuple[Outcome, float]:
    """In a process of its own: one step in a folder that is removed afterwards, and its seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        outcome = attempt(Path(scratch), first, count, seed=seed)
    return outcome, time.monotonic() - begin


def new_process(beside: int) -> ProcessPoolExecutor:
    """A process for parts, when so many run at a time."""
    # a fork would copy the threads of the libraries that this one has used
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_prepare, initargs=(beside,))


def _prepare(beside: int) -> None:
    """In a process of a part: share the cores, and print no warnings."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // beside))
