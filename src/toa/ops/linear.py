"""Linear maps, and the split of their results, with fewer passes over memory in backward on a GPU.

`benchmarks/row_kernels.py` measures the gains, "bias_gradient" and "split".
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toa.ops._backend import runs_kernels
from toa.ops.row_functions import as_rows, column_sum


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x weightᵀ + bias on the last axis, as `torch.nn.functional.linear` does, autocast included.

    Products and their gradients are PyTorch's. Where kernels run, the gradient of the bias is summed in float32, under
    autocast too, and changing the result in place raises, because it is a view.
    """
    learns = bias is not None and torch.is_grad_enabled() and bias.requires_grad and bias.numel() > 0
    if bias is None or not learns or not runs_kernels(x, "bias_gradient"):
        return F.linear(x, weight, bias)
    out: Tensor = _BiasGradient.apply(F.linear(x, weight, bias.detach()), bias)
    return out


class _BiasGradient(torch.autograd.Function):
    """The identity on a sum, which computes the gradient of the bias in it."""

    @staticmethod
    def forward(total: Tensor, bias: Tensor) -> Tensor:
        return total.view_as(total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dtype = inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        # at most one copy, for both gradients
        rows = as_rows(grad)
        return rows.view(grad.shape), column_sum(rows, ctx.dtype)


def split(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Parts (..., size) of a tensor (..., W), as `torch.split` returns them.

    Where kernels run, no copy joins gradients that a kernel has written into one tensor. Changing a part in place then
    raises.
    """
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and x.requires_grad and runs_kernels(x, "split")):
        return x.split(sizes, -1)
    parts: tuple[Tensor, ...] = _Split.apply(x, sizes)
    return parts


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        return x.split(sizes, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        return

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        joined = _adjacent(grads)
        return torch.cat(grads, -1) if joined is None else joined, None


def _adjacent(parts: tuple[Tensor, ...]) -> Tensor | None:
    """The tensor whose last axis the parts cover in order and without gaps; None if there is none."""
    first = parts[0]
    strides, end = first.stride(), first.storage_offset()
    for part in parts:
        same = part.untyped_storage()._cdata == first.untyped_storage()._cdata and part.stride() == strides
        if not same or part.storage_offset() != end:
            return None
        end += part.shape[-1]
    width = end - first.storage_offset()
    # parts of the same rows, not matrices one after the other
    if strides[-1] != 1 or len(strides) < 2 or width > strides[-2]:
        return None
    return first.as_strided((*first.shape[:-1], width), strides)
