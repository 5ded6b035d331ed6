"""Checkpoints: tensors and JSON facts in one safetensors file with a checksum, written atomically."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from toa._checks import ArgumentError, Name
from toa._files import log_unsealed, parse_json, read_file, seal, unseal, write_atomically
from toa._limits import check_sizes, shorten
from toa.ops.dropout import initial_weights, random_numbers

_KEY = "toa"
# of the length of the header
_LENGTH_BYTES = 8
# what reading a file raises whose content has other types or sizes than toa writes
UNREADABLE = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, AssertionError, RuntimeError, OverflowError),
    *(ZeroDivisionError, MemoryError, RecursionError),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Named tensors and facts about them; `verified` if a checksum was found and fits."""

    tensors: dict[str, Tensor]
    facts: dict[str, object]
    verified: bool = False


def check_weights(tensors: Mapping[str, Tensor], where: Name) -> None:
    """Raise ValueError for weights that are not finite, and for a scaler that would divide by zero."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ArgumentError(where, "hold finite numbers", f"NaN or infinite ones in {name!r}", "fit again")
        if name.startswith("scaler.") and not tensor.is_floating_point():
            raise ArgumentError(where, f"hold floating point numbers in {name!r}", tensor.dtype, "fit again")
        if name == "scaler.std" and not (tensor > 0).all():
            raise ArgumentError(where, "hold positive standard deviations", f"{float(tensor.min())} in {name!r}")


def model_with(
    build: Callable[[], nn.Module], tensors: Mapping[str, Tensor], settings: Mapping[str, Any], where: Name
) -> nn.Module:
    """Build a model and fill in the tensors "model.NAME"; the sizes are compared before memory is allocated.

    Args:
        settings: Sizes of the model as stated by the file.
    """
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    check_sizes(settings, weights, where)
    try:
        with torch.device("meta"):
            build().load_state_dict(weights, assign=True)
        # the random initial weights are replaced
        with random_numbers(torch.Generator()), initial_weights():
            model = build()
        model.load_state_dict(weights)
    except ValueError as error:
        raise ArgumentError(where, "describe a model that can be built", f"an error: {error}") from None
    except UNREADABLE as error:
        reason = shorten(" ".join(str(error).split()))
        raise ArgumentError(
            where,
            "hold the weights of its model",
            f"other weights ({reason})",
            "restore the file, use the version of toa that wrote it, or fit and save again",
        ) from None
    return model.eval()


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Write a checkpoint atomically."""
    write_atomically(path, checkpoint_content(tensors, facts))


def checkpoint_content(tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> bytes:
    """The content of the file of a checkpoint."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(plain, {_KEY: json.dumps(seal(facts, plain), sort_keys=True)})


def _metadata(content: bytes) -> dict[str, str]:
    """Texts in the header of a safetensors file: eight bytes with its length, then JSON."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    header = parse_json(content[_LENGTH_BYTES : _LENGTH_BYTES + length], "the header")
    metadata: dict[str, str] = header.get("__metadata__") or {}
    return metadata


def load_checkpoint(path: Path, *, content: bytes | None = None, verify: bool = True) -> Checkpoint:
    """Read a checkpoint; a file that an older version wrote without checksum is read and logged.

    Args:
        content: What the file holds, if it was read before.
        verify: Compare its checksum; False for a file whose checksum covers another file too.
    """
    try:
        # read once: another process may replace the file between two readings
        content = read_file(path) if content is None else content
        tensors = load(content)
        facts = parse_json(_metadata(content)[_KEY], f"the header of {path}")
        if not isinstance(facts, dict):
            raise ValueError(f"a header that is a {type(facts).__name__}")
    except (SafetensorError, OSError, *UNREADABLE) as error:
        raise ArgumentError(path, "be a checkpoint of toa", f"another file ({error})", "delete it") from error
    if not verify:
        return Checkpoint(tensors=tensors, facts=facts)
    plain, verified = unseal(facts, str(path), tensors)
    if not verified:
        log_unsealed(path)
    return Checkpoint(tensors=tensors, facts=plain, verified=verified)
