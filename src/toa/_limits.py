"""Limits on what a file, a download or a batch may take, so that no input exhausts memory, disk or time."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadLimits:
    """What a download may take; the largest file of the catalogue has 0.6 GB.

    Attributes:
        total_bytes: Largest size of the file.
        seconds: Time of all attempts.
        piece_bytes: Bytes that are written at once. Those since the last piece are lost when a connection breaks.
    """

    total_bytes: int = 8 << 30
    seconds: float = 3600.0
    piece_bytes: int = 1 << 16


# a packed file may always become this large, and beyond it at most this many times its size
_UNPACKED_BYTES = 256 << 20
_UNPACKED_RATIO = 100
_MEMORY = "TOA_MEMORY"
_DEFAULT_MEMORY = 1.0
# bytes of the activations of one channel of one window of the default models in training
_TRAINING_BYTES = 100_000
# bytes in training that each other channel adds if channels are tokens
_TRAINING_PAIR = 100
# bytes of the activations of one channel of one window in evaluation
_EVALUATION_BYTES = 56_000
# bytes in evaluation that each other channel adds if channels are tokens
_EVALUATION_PAIR = 40
# shown of a value in an error message
_SHOWN = 80


def unpacked_limit(packed_bytes: int) -> int:
    """The most bytes that a packed file of this size may become."""
    return max(_UNPACKED_BYTES, _UNPACKED_RATIO * packed_bytes)


def check_unpacked(name: str, count: int, tensors: Mapping[str, Any]) -> None:
    """Raise ValueError for a size in a file that needs `count` numbers, far more than its tensors could fill."""
    limit = unpacked_limit(sum(tensor.nbytes for tensor in tensors.values()))
    if not 8 * count <= limit:
        raise _error(name, f"need at most {limit} bytes for one answer", 8 * count)


def memory_budget() -> int:
    """Bytes that the activations of a batch, or a packed table, may take: $TOA_MEMORY in GiB, 1 unless set.

    Raises:
        ValueError: If the variable is not a positive number.
    """
    text = os.environ.get(_MEMORY) or str(_DEFAULT_MEMORY)
    try:
        budget = float(text)
    except ValueError:
        budget = 0.0
    if not 0.0 < budget < 2**40:
        raise _error(_MEMORY, "be a positive number of GiB", shorten(text), "for instance 2")
    return int(budget * 2**30)


def most_windows(channels: int, *, training: bool, mixed: bool = False) -> int:
    """The most windows per batch whose activations fit the memory budget, for this number of channels; at least one.

    `mixed` is for models whose tokens are channels: each attends to each.
    """
    per_channel = _TRAINING_BYTES if training else _EVALUATION_BYTES
    if mixed:
        per_channel += channels * (_TRAINING_PAIR if training else _EVALUATION_PAIR)
    return max(1, memory_budget() // (channels * per_channel))


def shorten(value: object) -> str:
    """The value as in Python, at most 80 characters of it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def list_first(texts: Sequence[str], count: int) -> str:
    """The first of several texts with commas between them, and an ellipsis if there are more."""
    listed = ", ".join(texts[:count])
    return f"{listed} …" if len(texts) > count else listed


def check_sizes(settings: Mapping[str, Any], tensors: Mapping[str, Any], where: object) -> None:
    """Raise ValueError for settings of a model that its weights cannot have, before a model is built from them."""
    count = sum(tensor.numel() for tensor in tensors.values())
    for name, value in settings.items():
        if isinstance(value, int) and value > (len(tensors) if name.endswith("layers") else max(4096, count)):
            raise _error(
                str(where),
                f"have settings that fit its {len(tensors)} weights",
                f"{name}={value}",
                "the file is damaged or was edited: fit and save again",
            )


def peak_bytes() -> int:
    """Largest memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # what getrusage has on Linux began as the memory of the process that started this one
        lines = status.read_text(encoding="utf-8").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _error(name: str, rule: str, value: object, *remedies: str) -> ValueError:
    """The error of an argument or a file."""
    # not above: the checks import `shorten` from here
    from toa._checks import ArgumentError

    return ArgumentError(name, rule, value, *remedies)
