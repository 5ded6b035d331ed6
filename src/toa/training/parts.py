"""A checkpoint in parts: vectors of one length, cut into files that are small enough to be moved one by one.

    save_parts(folder, {"weights": weights, "first": first}, facts)
    vectors, facts = load_parts(folder)

checkpoint.json names the parts and is written last, so that a crash leaves the checkpoint before it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toa._checks import ArgumentError
from toa._files import parse_json, seal, unseal, write_atomically
from toa.training.checkpoint import load_checkpoint, save_checkpoint

# bytes of the tensors of a part, below 15 MiB with the header
PART_BYTES = 15 * 2**20 - 2**16
# bytes of all parts
MOST_BYTES = 45 * 2**20
STATE_FILE = "checkpoint.json"
_PART = "part-{step}-{number}.safetensors"


def check_checkpoint_size(vectors: Mapping[str, Tensor]) -> None:
    """Raise ValueError if a checkpoint of these vectors would be too large."""
    size = sum(vector.nbytes for vector in vectors.values())
    if size > MOST_BYTES - 2**16:
        length = len(next(iter(vectors.values())))
        raise ArgumentError(
            "a checkpoint",
            f"take at most {MOST_BYTES / 2**20:.0f} MiB",
            f"{size / 2**20:.1f} MiB for {length} weights",
            "choose a smaller model",
        )


def save_parts(folder: Path, vectors: Mapping[str, Tensor], facts: Mapping[str, Any], step: int) -> None:
    """Replace the checkpoint of a folder.

    Args:
        vectors: By name, all of one length.
        facts: JSON values.
        step: Number in the names of the files; another one than that of the checkpoint before.
    """
    check_checkpoint_size(vectors)
    length = len(next(iter(vectors.values())))
    per_weight = sum(vector.element_size() for vector in vectors.values())
    size = PART_BYTES // per_weight
    names = []
    for number, start in enumerate(range(0, length, size)):
        piece = {name: vector[start : start + size] for name, vector in vectors.items()}
        names.append(_PART.format(step=step, number=number))
        save_checkpoint(folder / names[-1], piece, {"step": step, "number": number})
    content = {"parts": names, "step": step, "facts": dict(facts)}
    write_atomically(folder / STATE_FILE, (json.dumps(seal(content), indent=1) + "\n").encode())
    for path in folder.glob(_PART.format(step="*", number="*")):
        if path.name not in names:
            path.unlink()


def has_parts(folder: Path) -> bool:
    """Whether a folder has a checkpoint."""
    return (folder / STATE_FILE).exists()


def load_parts(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Vectors and facts of the checkpoint of a folder.

    Raises:
        ValueError: If a part is missing or damaged.
    """
    path = folder / STATE_FILE
    content = parse_json(path.read_bytes(), str(path))
    if not isinstance(content, dict):
        raise ArgumentError(path, "be a checkpoint in parts", "another file", "delete it")
    plain, verified = unseal(content, str(path))
    if not verified:
        raise ArgumentError(path, "have a checksum", "none", "restore or delete the checkpoint")
    pieces = []
    for number, name in enumerate(plain["parts"]):
        if Path(name).name != name or not (folder / name).is_file():
            raise ArgumentError(folder, f"have the part {name!r} of its checkpoint", "none", "restore or delete it")
        part = load_checkpoint(folder / name)
        if not part.verified or part.facts != {"step": plain["step"], "number": number}:
            raise ArgumentError(folder / name, f"be part {number} of step {plain['step']}", "another", "restore it")
        pieces.append(part.tensors)
    vectors = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    return vectors, plain["facts"]
