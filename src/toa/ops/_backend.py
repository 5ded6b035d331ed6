"""Which kernels this machine can run, and the description of a problem that decides it."""

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from toa._checks import check_choice


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# looked up once, at import: a compiler that traces a function would trace the look-up
_TRITON = _installed("triton")
_OLDEST_TRITON = (3, 2)
_OLDEST_GPU = (8, 0)

# kernels beside the attention that `disable_kernels` can switch off
SWITCHABLE_KERNELS = ("layer_norm", "add_norm", "gelu_dropout", "bias_gradient", "series_norm", "split")
_disabled: set[str] = set()


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What decides whether a backend can run; the fields are arguments of `choose_backend`."""

    activation: str
    device: torch.device
    dtype: torch.dtype
    width: int = 0
    pair_mask: bool = False
    window: bool = False


def runs_kernels(x: Tensor, kernel: str | None = None) -> bool:
    """Whether functions that have both PyTorch code and kernels use their kernels for x.

    They do on a CUDA device where the kernels can run, unless TOA_BACKEND names a backend without kernels. If it names
    "triton", they do in Triton's interpreter too. `kernel` is a name of `SWITCHABLE_KERNELS`.
    """
    wanted = os.environ.get("TOA_BACKEND") or "auto"
    if kernel in _disabled or (wanted != "triton" and (wanted != "auto" or x.device.type != "cuda")):
        return False
    return kernel_objection(x.device, x.dtype) is None


def disable_kernels(*names: str) -> None:
    """Use PyTorch's functions in place of these kernels, and the kernels of all other `SWITCHABLE_KERNELS`.

    Private to `benchmarks/row_kernels.py`, which measures what each kernel gains.
    """
    for name in names:
        check_choice("kernel", name, SWITCHABLE_KERNELS)
    _disabled.clear()
    _disabled.update(names)


def kernel_objection(device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why no Triton kernel can run on tensors of a device and dtype; None if kernels can."""
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
