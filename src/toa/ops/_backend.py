"""What a backend is asked, and what this machine can run."""

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from toa.ops.attention.definitions import Activation

MAX_FUSED_WIDTH = 256


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# looked up once, and not in a function: a compiler that traces one would trace the look-up
_TRITON = _installed("triton")
_OLDEST_TRITON = (3, 2)
_OLDEST_GPU = (8, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What decides whether a backend can run.

    Args:
        activation: "softmax", "relu" or "gated".
        device: Where the tensors are.
        dtype: What they hold.
        width: The largest of the widths of queries, values and gate; 0 if it is not known.
        tokens: The larger of the numbers of queries and keys; 0 if it is not known.
        pair_mask: Whether there is a mask of pairs.
    """

    activation: Activation
    device: torch.device
    dtype: torch.dtype
    width: int = 0
    tokens: int = 0
    pair_mask: bool = False


def never_objects(problem: Problem) -> None:
    """A backend made of PyTorch's functions runs wherever PyTorch does."""


def triton_objection(problem: Problem) -> str | None:
    """Why the Triton kernels cannot run a problem; None if they can."""
    if problem.width > MAX_FUSED_WIDTH:
        return f"its kernels take heads of width up to {MAX_FUSED_WIDTH}, not {problem.width}"
    if problem.pair_mask:
        return "its kernels take no pair_mask"
    return _kernel_objection(problem.device, problem.dtype)


def runs_kernels(x: Tensor) -> bool:
    """Whether a function of PyTorch's that has kernels here as well takes them for x.

    On a CUDA device it does, if they can run, unless TOA_BACKEND names a backend without any; where it names "triton",
    in Triton's interpreter too.
    """
    wanted = os.environ.get("TOA_BACKEND") or "auto"
    if wanted != "triton" and (wanted != "auto" or x.device.type != "cuda"):
        return False
    return _kernel_objection(x.device, x.dtype) is None


def _kernel_objection(device: torch.device, dtype: torch.dtype) -> str | None:
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"its kernels take float32, bfloat16 and float16, not {dtype}"
    if device.type == "cuda":
        return _missing_triton() or _old_gpu(device)
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return _missing_triton()
    return f"it needs a CUDA device, got {device}"


def _missing_triton() -> str | None:
    wanted = ".".join(map(str, _OLDEST_TRITON))
    if _TRITON is None:
        return f"it needs Triton {wanted} or newer, which is not installed (pip install 'toa[triton]')"
    numbers = tuple(int(part) for part in _TRITON.split(".")[:2])
    return None if numbers >= _OLDEST_TRITON else f"it needs Triton {wanted} or newer, found {_TRITON}"


def _old_gpu(device: torch.device) -> str | None:
    found = torch.cuda.get_device_capability(device)
    if found >= _OLDEST_GPU:
        return None
    return f"it needs a GPU of compute capability {_OLDEST_GPU[0]}.{_OLDEST_GPU[1]}, found {found[0]}.{found[1]}"
