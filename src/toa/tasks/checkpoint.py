"""Checkpoints: tensors and JSON facts in one safetensors file, written atomically."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from toa._files import write_atomically

_KEY = "toa"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Named tensors and facts about them."""

    tensors: dict[str, Tensor]
    facts: dict[str, object]


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Write a checkpoint atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(plain, {_KEY: json.dumps(facts, sort_keys=True)}))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        ValueError: If the file is not a checkpoint.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})[_KEY])
            return Checkpoint(tensors={name: file.get_tensor(name) for name in file.keys()}, facts=facts)  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
        raise ValueError(f"{path} must be a checkpoint of toa, got another file ({error}); delete it.") from error
