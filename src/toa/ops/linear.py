"""Linear maps: PyTorch's, whose bias gets its gradient on a GPU by kernels that sum rows at full speed."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toa.ops._backend import runs_kernels
from toa.ops.rows import as_rows, column_sum


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Map the last axis, as `torch.nn.functional.linear` does, autocast included.

    x weightᵀ + bias. Products and their gradients are PyTorch's own. Where kernels run, the gradient of the bias is
    summed in float32, under autocast too, and the result is a view that PyTorch refuses to change in place.

    Args:
        x: (..., K).
        weight: (W, K).
        bias: (W,), or None.
    """
    if bias is None or not (
        torch.is_grad_enabled() and bias.requires_grad and bias.numel() and runs_kernels(x, "bias_gradient")
    ):
        return F.linear(x, weight, bias)
    out: Tensor = _BiasGradient.apply(F.linear(x, weight, bias.detach()), bias)
    return out


class _BiasGradient(torch.autograd.Function):
    """A sum as it is; the bias that went into it gets its gradient here."""

    @staticmethod
    def forward(total: Tensor, bias: Tensor) -> Tensor:
        return total.view_as(total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dtype = inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        # copied once for both if rows do not lie apart alike
        rows = as_rows(grad)
        return rows.view(grad.shape), column_sum(rows, ctx.dtype)
