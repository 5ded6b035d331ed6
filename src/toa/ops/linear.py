"""PyTorch's linear map, with a fast column sum for the gradient of its bias on a GPU.

The gain of the kernel has to be measured: `benchmarks/row_kernels.py`, "bias_gradient".
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
