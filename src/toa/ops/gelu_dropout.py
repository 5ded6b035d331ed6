"""GELU and the dropout behind it, in one kernel each way."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toa.ops._backend import runs_kernels
from toa.ops.dropout import draw_seeds, dropout

_BLOCK = 1024


def gelu_dropout(x: Tensor, p: float, *, seed: Tensor | None = None) -> Tensor:
    """dropout(gelu(x)), GELU by the error function.

    Args:
        x: Of any shape; what kernels do not run on, or no dropout is applied to, goes to PyTorch.
        p: Rate of the dropout.
        seed: Of the kernel's mask, int32 (1,), on x's device; drawn if None.
    """
    if not (0.0 < p < 1.0 and runs_kernels(x)) or x.numel() >= 2**31:
        return dropout(F.gelu(x), p)
    return _forward(x, draw_seeds(x, 1)[0] if seed is None else seed, p)


@torch.library.custom_op("toa::gelu_dropout", mutates_args=())
def _forward(x: Tensor, seed: Tensor, p: float) -> Tensor:
    return _launch(x, None, seed, p)


@_forward.register_fake
def _(x: Tensor, seed: Tensor, p: float) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("toa::gelu_dropout_backward", mutates_args=())
def _backward(grad: Tensor, x: Tensor, seed: Tensor, p: float) -> Tensor:
    return _launch(x, grad, seed, p)


@_backward.register_fake
def _(grad: Tensor, x: Tensor, seed: Tensor, p: float) -> Tensor:
    return x.new_empty(x.shape)


def _launch(x: Tensor, grad: Tensor | None, seed: Tensor, p: float) -> Tensor:
    # importing the kernels imports Triton
    from toa.ops import row_kernels

    out = x.new_empty(x.shape)
    if out.numel():
        # Triton launches on the current device, wherever the tensors are
        with torch.cuda.device_of(x):
            row_kernels.gelu_dropout_kernel[(-(-x.numel() // _BLOCK),)](
                *(x.contiguous(), None if grad is None else grad.contiguous(), out, seed, x.numel(), p),
                BLOCK=_BLOCK,
                num_warps=4,
            )
    return out


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, seed, ctx.p = inputs
    ctx.save_for_backward(x, seed)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _backward(grad, *ctx.saved_tensors, ctx.p), None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)
