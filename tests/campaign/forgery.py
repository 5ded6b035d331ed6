"""Forged files of every kind that has a checksum: one entry is absurd, and the checksum fits.

    outcome = forge("detector", folder, seed=0, numbers=range(100))    # outcome.counts, outcome.failures

The schema is that of a good file: every entry of its JSON, at any depth, and every tensor is replaced by absurd
values of all types and sizes, removed, or repeated. Each file is loaded and used. Both may end with finite answers, or
with an error in one line; time and memory are bounded as in `tests.campaign.fuzz`. Numbers beyond those of all such
files combine two of them.
"""

import copy
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.campaign.fuzz import load
from tests.campaign.loaders import LOADERS, Loader, write_good
from tests.campaign.outcome import Outcome
from toa._files import CHECKSUM, seal
from toa._limits import shorten
from toa.estimators.files import WEIGHTS
from toa.training.checkpoint import load_checkpoint, save_checkpoint

# structures of files that hold JSON with a checksum
STRUCTURES = ("tensors", "folder", "json", "line")
FORGED = tuple(kind for kind, loader in LOADERS.items() if loader.sealed and loader.structure in STRUCTURES)
# of a longer list only the first and the last entries are replaced one by one
_ENDS = 2
# repetitions that make a value very long
_MANY = 50_000
# values that no entry of a file may be trusted with
_ABSURD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 1_000_000, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.5, 1e-300, 1e300),
    *(float("nan"), float("inf"), -float("inf"), "", "NaN", "1000000000000YE", "../x", "\0", "x" * _MANY, "1" * 30),
    *([], [None], [0] * _MANY, [[]], [-1, -1], {}, {"x": None}, {"": {}}),
)
# other forms of a tensor
_TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": lambda x: x.new_zeros(0),
    "a number": lambda x: x.new_zeros(()),
    "flat": lambda x: x.reshape(-1),
    "transposed": lambda x: x.reshape(x.shape[::-1]) if x.ndim > 1 else x.reshape(1, -1),
    "with another axis": lambda x: x.unsqueeze(0),
    "with an empty axis": lambda x: x.new_zeros((0, *x.shape[1:])),
    "twice": lambda x: torch.cat((x, x)) if x.ndim else x.repeat(2),
    "a half": lambda x: x[: len(x) // 2] if x.ndim else x,
    "longer": lambda x: x.reshape(-1)[:1].repeat(1_000_000),
    "zeros": torch.zeros_like,
    "minus one": lambda x: torch.full_like(x, True if x.dtype == torch.bool else -1),
    "large": lambda x: _filled(x, 1e30),
    "largest": lambda x: _filled(x, float("inf")),
    "tiny": lambda x: _filled(x, 1e-38),
    "reversed": lambda x: x.flip(0) if x.ndim else x,
    "of int8": lambda x: x.to(torch.int8),
    "of int64": lambda x: x.to(torch.int64),
    "of bool": lambda x: x.to(torch.bool),
    "of float16": lambda x: x.to(torch.float16),
    "of float64": lambda x: x.to(torch.float64),
}


def _filled(tensor: Tensor, value: float) -> Tensor:
    """The tensor filled with a value, or the largest number that it can hold."""
    if tensor.dtype == torch.bool:
        return torch.ones_like(tensor)
    limits = torch.finfo(tensor.dtype) if tensor.is_floating_point() else torch.iinfo(tensor.dtype)
    most = limits.max
    return torch.full_like(tensor, most if value > most else value)


@dataclass(frozen=True, kw_only=True)
class Content:
    """JSON values of a file, and the tensors that its checksum covers."""

    facts: Any
    tensors: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One absurd entry: what it is, and what puts it into the content of a file."""

    what: str
    apply: Callable[[Content], Content]


def forge(kind: str, folder: Path, *, seed: int, numbers: Iterable[int]) -> Outcome:
    """Write the forged files with these numbers one after another, load each, and use what was loaded."""
    loader = LOADERS[kind]
    outcome = Outcome()
    path = write_good(kind, folder)
    content = read_content(path, loader)
    changes = list(schema_changes(content))
    random.Random(f"{kind}/{seed}").shuffle(changes)
    for number in numbers:
        chosen = [changes[number % len(changes)]]
        if number >= len(changes):
            chosen.append(random.Random(f"{kind}/{seed}/{number}").choice(changes))
        try:
            forged = _applied(content, chosen)
        except (KeyError, IndexError, TypeError):
            # the first change removed what the second one changes
            chosen = chosen[:1]
            forged = _applied(content, chosen)
        write_content(path, loader, forged)
        what = " and ".join(change.what for change in chosen)
        outcome.failures += [f"{kind} {number}, {what}: {problem}" for problem in load(loader, path, outcome.counts)]
    return outcome


def _applied(content: Content, changes: Iterable[Change]) -> Content:
    for change in changes:
        content = change.apply(content)
    return content


def read_content(path: Path, loader: Loader) -> Content:
    """What a good file holds."""
    if loader.structure == "tensors":
        saved = load_checkpoint(path)
        return Content(facts=saved.facts, tensors=saved.tensors)
    facts = json.loads(path.read_text(encoding="utf-8"))
    del facts[CHECKSUM]
    tensors = loader.read_tensors(path.with_name(WEIGHTS)) if loader.structure == "folder" else {}
    return Content(facts=facts, tensors=tensors)


def write_content(path: Path, loader: Loader, content: Content) -> None:
    """Write a file of this content with a checksum that fits."""
    facts = content.facts if isinstance(content.facts, dict) else {"facts": content.facts}
    if loader.structure == "tensors":
        save_checkpoint(path, content.tensors, facts)
        return
    if loader.structure == "folder":
        loader.write_tensors(path.with_name(WEIGHTS), content.tensors)
    path.write_text(json.dumps(seal(facts, content.tensors)) + "\n", encoding="utf-8")


def schema_changes(content: Content) -> Iterator[Change]:
    """Every absurd file that differs from a good one in one entry."""
    for place, value in entries(content.facts):
        name = "/".join(map(str, place)) or "all"
        if place:
            yield Change(what=f"no {name}", apply=partial(_with_entry, place, ()))
        for absurd in (*_ABSURD, *_absurd_like(value)):
            if not _same(absurd, value):
                yield Change(what=f"{name} = {shorten(absurd)}", apply=partial(_with_entry, place, (absurd,)))
    for name in content.tensors:
        yield Change(what=f"no tensor {name}", apply=partial(_with_tensor, name, None))
        for form, change in _TENSORS.items():
            yield Change(what=f"tensor {name} {form}", apply=partial(_with_tensor, name, change))


def entries(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Each entry of a JSON value with its place, the value itself first."""
    yield place, value
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from entries(entry, (*place, name))
    elif isinstance(value, list):
        for number in sorted({*range(len(value))[:_ENDS], *range(len(value))[-_ENDS:]}):
            yield from entries(value[number], (*place, number))


def _absurd_like(value: Any) -> Iterator[Any]:
    """Values of the same type that do not fit the rest of a file."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (-value, value + 1, value * 1_000_000, str(value), [value])
    elif isinstance(value, str):
        yield from (f"{value}?", value.upper(), [value], value * 2)
    elif isinstance(value, list):
        yield from (value[::-1], value * 2, value[:-1], value * 1_000, [value], [*value, None])
    elif isinstance(value, dict):
        yield from (value | {"x": 0}, list(value), {f"{name}?": entry for name, entry in value.items()})


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and first == second


def _with_entry(place: tuple[str | int, ...], values: tuple[Any, ...], content: Content) -> Content:
    """The content with a value at a place, or without the entry if there is no value."""
    facts = copy.deepcopy(content.facts)
    if not place:
        return Content(facts=values[0], tensors=content.tensors)
    parent = facts
    for step in place[:-1]:
        parent = parent[step]
    if values:
        parent[place[-1]] = values[0]
    else:
        del parent[place[-1]]
    return Content(facts=facts, tensors=content.tensors)


def _with_tensor(name: str, change: Callable[[Tensor], Tensor] | None, content: Content) -> Content:
    """The content with another form of a tensor, or without it."""
    tensors = dict(content.tensors)
    old = tensors.pop(name)
    if change is not None:
        tensors[name] = change(old).contiguous()
    return Content(facts=content.facts, tensors=tensors)
