"""Damaged and forged files for every loader. A file is decided by the loader's name, the seed and its number.

    outcome = fuzz("record", folder, seed=0, numbers=range(100))
    outcome.counts                # loaded, refused, refused in use
    outcome.failures              # what no loader may do

A loader may return, or raise ValueError or OSError with the name of the file. If the file has a checksum and was
damaged byte by byte, it may only return the content of the undamaged file. A loaded estimator may answer with finite
numbers, or raise ValueError. Nothing may take more time or memory than the limits below, unpickle or start a program.
"""

import copy
import gzip
import json
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch

from tests.campaign.loaders import LOADERS, Loader, write_good
from tests.campaign.outcome import Outcome
from toa._files import seal
from toa.estimators.files import WEIGHTS
from toa.training.checkpoint import load_checkpoint, save_checkpoint

# seconds of CPU time per file
LIMIT_S = 10.0
# growth of the largest memory per file
LIMIT_MIB = 600
# seconds on the clock after which a file is left
_LEFT_S = 120.0
# characters of an error at most, which has the path of the file
_LONGEST_ERROR = 1_000
# what a file may cause in no case, by the names of Python's audit events
_FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")
_WORDS = ("", "nan", "inf", "-", "1e400", "9" * 400, "[" * 60, "\0", "é", "\x1b[31m", "x" * 1000, "2024-13-45", "True")
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 1000, 10**9, 2**63, 10**60, -1e300, 1e-300, 1e308, "", "x", [], {}, [[[]]]),
    *({"a": None}, "9" * 400, "toa", "auto", "pca", "kernels", [10**9, 10**9], 0.5, float("nan"), float("inf")),
)


def fuzz(kind: str, folder: Path, *, seed: int, numbers: Iterable[int]) -> Outcome:
    """Write the files with these numbers one after another, load each, and use what was loaded."""
    loader = LOADERS[kind]
    outcome = Outcome()
    path = write_good(kind, folder)
    content = path.read_bytes()
    expected = _answers(loader, loader.read(path))
    for number in numbers:
        chance = random.Random(f"{kind}/{seed}/{number}")
        forged = _mutate(path, content, loader, chance)
        for problem in load(loader, path, outcome.counts, None if forged or not loader.sealed else expected):
            outcome.failures.append(f"{kind} {number}: {problem}")
    return outcome


class TooSlow(BaseException):
    """A file took too long on the clock; no loader catches it."""


def load(loader: Loader, path: Path, counts: Counter[str], expected: str | None = None) -> list[str]:
    """Load and use one file; returns what went wrong. `expected` are the answers of a file that was only damaged."""
    problems = []
    begin = time.process_time()
    before = _peak()
    stage = "refused"
    _events.clear()
    try:
        with _alarm(_LEFT_S), _watch():
            found = loader.read(path)
            stage = "refused in use"
            answers = _answers(loader, found)
        counts["loaded"] += 1
        if expected is not None and answers != expected:
            problems.append("damaged content was accepted")
        if loader.use is not None and ("nan" in answers or "inf" in answers):
            problems.append("an answer is not finite")
    except (ValueError, OSError) as error:
        counts[stage] += 1
        if stage == "refused" and path.name not in str(error) and str(path.parent) not in str(error):
            problems.append(f"no file name in {str(error)[:200]!r}")
        if len(str(error).splitlines()) > 1 or len(str(error)) > _LONGEST_ERROR:
            problems.append(f"more than a line: {str(error)[:200]!r}")
    except TooSlow:
        problems.append(f"took longer than {_LEFT_S} s on the clock")
    except Exception as error:
        problems.append(f"{stage.removeprefix('refused ')}: {type(error).__name__}: {str(error)[:200]}")
    if time.process_time() - begin > LIMIT_S:
        problems.append(f"took longer than {LIMIT_S} s")
    if _peak() - before > LIMIT_MIB:
        problems.append(f"took {_peak() - before:.0f} MiB")
    return problems + [f"caused {event}" for event in _events]


def _answers(loader: Loader, found: Any) -> str:
    """What was read, or the answers of an estimator, as text."""
    if loader.use is None:
        return repr(found.tolist() if isinstance(found, np.ndarray) else found)
    answers = loader.use(found)
    return repr(
        [
            np.asarray(one, dtype=float).tolist() if isinstance(one, pd.DataFrame) else np.asarray(one).tolist()
            for one in answers
        ]
    )


def _peak() -> float:
    """Largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_events: list[str] = []
_watching = False


def _note(event: str, arguments: object) -> None:
    if _watching and event in _FORBIDDEN:
        _events.append(event)


sys.addaudithook(_note)


@contextmanager
def _watch() -> Iterator[None]:
    global _watching
    _watching = True
    try:
        yield
    finally:
        _watching = False


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _mutate(path: Path, content: bytes, loader: Loader, chance: random.Random) -> bool:
    """Write a changed file; returns whether its checksum, if any, was made to fit."""
    structured = loader.structure != "bytes" and chance.random() < 0.6
    if not structured:
        path.write_bytes(_damage(content, chance))
        return False
    if loader.structure == "packed":
        path.write_bytes(gzip.compress(_damage(gzip.decompress(content), chance)))
        return False
    if loader.structure == "text":
        path.write_bytes(_change_text(content, chance))
        return False
    if loader.structure == "tensors":
        path.write_bytes(content)
        saved = load_checkpoint(path)
        _forge_tensors(saved.tensors, chance) if chance.random() < 0.5 else None
        facts: Any = copy.deepcopy(saved.facts)
        if chance.random() < 0.8:
            facts = _change_value(facts, chance, deep=chance.random() < 0.7)
        save_checkpoint(path, saved.tensors, facts if isinstance(facts, dict) else {"facts": facts})
        return True
    value = _change_value(json.loads(content), chance)
    if loader.structure == "folder":
        tensors = loader.read_tensors(path.with_name(WEIGHTS))
        path.write_text(json.dumps(seal(value, tensors) if isinstance(value, dict) else value))
        return True
    sealed = loader.sealed and isinstance(value, dict) and chance.random() < 0.7
    text = json.dumps(seal(value) if sealed else value)
    if chance.random() < 0.1:
        text = "[" * 100_000 + text
    path.write_text(text + "\n")
    # without its checksum, a record is one of an older version
    return True


def _damage(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data)) if data else 0
        stop = min(len(data), start + chance.choice((1, 1, 1, 4, 64)))
        how = chance.randrange(6)
        if how == 0:
            del data[start:]
        elif how == 1:
            del data[start:stop]
        elif how == 2:
            data[start:start] = data[start:stop] * chance.randint(1, 50)
        elif how == 3:
            data[start:stop] = chance.randbytes(stop - start)
        elif data:
            data[min(start, len(data) - 1)] ^= 1 << chance.randrange(8)
    return bytes(data)


def _change_text(content: bytes, chance: random.Random) -> bytes:
    text = content.decode()
    for _ in range(chance.randint(1, 3)):
        lines = text.split("\n")
        row = chance.randrange(len(lines))
        cells = chance.choice((",", ":", " ")).join(lines[row].split(","))
        parts = cells.split(chance.choice((",", ":", " ")))
        parts[chance.randrange(len(parts))] = chance.choice(_WORDS)
        lines[row] = chance.choice((",", ":", " ")).join(parts)
        if chance.random() < 0.2:
            chance.shuffle(lines)
        text = "\n".join(lines)
    return text.encode("utf-8")


def _change_value(value: Any, chance: random.Random, *, deep: bool = False) -> Any:
    """One entry of a JSON value removed, added, or replaced by another; `deep` is one without entries of its own."""
    if deep and isinstance(value, dict | list) and value:
        place = chance.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
        value[place] = _change_value(value[place], chance, deep=True)
        return value
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(sorted(value))
        how = chance.random()
        if how < 0.15:
            del value[name]
        elif how < 0.25:
            value[f"{name}?"] = value[name]
        else:
            value[name] = _change_value(value[name], chance)
        return value
    if isinstance(value, list) and value and chance.random() < 0.7:
        value[chance.randrange(len(value))] = _change_value(value[0], chance)
        return value
    return copy.deepcopy(chance.choice(_VALUES))


def _forge_tensors(tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    name = chance.choice(sorted(tensors))
    tensor = tensors[name]
    how = chance.randrange(5)
    if how == 0:
        del tensors[name]
    elif how == 1:
        tensors[name] = tensor.reshape(-1).repeat(chance.choice((2, 300)))
    elif how == 2:
        tensors[name] = tensor.to(chance.choice((torch.int8, torch.float16, torch.float64, torch.bool)))
    elif how == 3 and tensor.is_floating_point():
        tensors[name] = tensor * chance.choice((0.0, float("nan"), float("inf"), -1.0))
    else:
        tensors[f"{name}.more"] = tensor.clone()
