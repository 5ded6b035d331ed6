"""Which kernels this machine can run, the description of a problem that decides it, and operators that call them."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from toa._checks import check_choice

# looked up once, at import: a compiler that traces a function would trace the look-up
_TRITON: str | None
try:
    _TRITON = version("triton")
except PackageNotFoundError:
    _TRITON = None
_OLDEST_TRITON = (3, 2)
_OLDEST_GPU = (8, 0)
# options of every launch. A product and the sum after it are rounded once, as in all measured kernels: Triton 3.10 no
# longer does this by default, and 3.9 warns of the change.
LAUNCH_OPTIONS: dict[str, Any] = {"enable_fp_fusion": True}

# kernels beside the attention that `disable_kernels` can switch off
SWITCHABLE_KERNELS = ("layer_norm", "add_norm", "bias_gradient")
_disabled: set[str] = set()


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What decides whether a backend can run; the fields are arguments of `choose_backend`."""

    activation: str
    device: torch.device
    dtype: torch.dtype
    width: int = 0
    pair_mask: bool = False


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
    if device.type != "cuda" and (device.type != "cpu" or os.environ.get("TRITON_INTERPRET") != "1"):
        return f"it needs a CUDA device, got {device}"
    wanted = ".".join(map(str, _OLDEST_TRITON))
    if _TRITON is None:
        return f"it needs Triton {wanted} or newer, which is not installed (pip install 'toa[triton]')"
    if tuple(int(part) for part in _TRITON.split(".")[:2]) < _OLDEST_TRITON:
        return f"it needs Triton {wanted} or newer, found {_TRITON}"
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < _OLDEST_GPU:
        return f"it needs a GPU of compute capability {_OLDEST_GPU[0]}.{_OLDEST_GPU[1]}, found {found[0]}.{found[1]}"
    if torch.version.hip is not None and os.environ.get("TOA_BACKEND") != "triton":
        return "its kernels compile for AMD's GPUs but were never run on one; TOA_BACKEND=triton tries them"
    return None


class KernelOp:
    """A custom operator of PyTorch that plain eager tensors call without PyTorch's dispatcher.

    The dispatcher takes 30 µs of the host's time per call, and 150 with gradients; an autograd function around `run`
    takes 10. Compilers, transforms, dispatch modes and subclasses of tensors see the operator `op`.
    """

    def __init__(self, name: str, schema: str | None, run: Callable[..., Any]) -> None:
        self.op = torch.library.custom_op(f"toa::{name}", run, mutates_args=(), schema=schema)
        self.run = run
        self._name = f"toa_{name}"
        self._apply: Callable[..., Any] | None = None
        self.register_fake = self.op.register_fake

    def register_autograd(self, gradients: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """Register the gradients of `op`, and of plain eager calls."""
        self.op.register_autograd(gradients, setup_context=setup_context)
        run = self.run

        def forward(ctx: Any, *inputs: Any) -> Any:
            output = run(*inputs)
            setup_context(ctx, inputs, output)
            return output

        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            # the operator has a gradient per tensor of a list, an autograd function has none for the list
            return tuple(None if isinstance(grad, list) else grad for grad in gradients(ctx, *grads))

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self._apply = type(self._name, (torch.autograd.Function,), methods).apply  # type: ignore[attr-defined]

    def __call__(self, *inputs: Any) -> Any:
        others = [x for x in inputs if isinstance(x, Tensor) and type(x) not in PLAIN]
        if others or torch.compiler.is_compiling() or is_observed():
            return self.op(*inputs)
        if not torch.is_grad_enabled():
            return self.run(*inputs)
        # an operator without gradients raises where it is differentiated
        return self.op(*inputs) if self._apply is None else self._apply(*inputs)


# types of tensors that nothing but autograd observes
PLAIN = (Tensor, nn.Parameter)


def is_observed() -> bool:
    """Whether more than autograd observes the operators that this thread calls: modes, transforms, a tracer."""
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return True
    return torch._C._get_tracing_state() is not None


def kernel_op(name: str, schema: str | None = None) -> Callable[[Callable[..., Any]], KernelOp]:
    """Make a function of tensors, whose kernels PyTorch cannot trace, an operator; None infers its schema."""
    return functools.partial(KernelOp, name, schema)
