"""A residual path and the norm behind it: dropout, sum and layer norm in one kernel each way."""

from typing import Any

import torch
from torch import Tensor

from toa.ops.column_sum import as_rows
from toa.ops.dropout import draw_seeds, dropout
from toa.ops.layer_norm import block_rows, fits, launch_backward, layer_norm


def add_norm(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    p: float = 0.0,
    eps: float = 1e-5,
    seed: Tensor | None = None,
) -> Tensor:
    """Layer norm of x + dropout(y).

    Args:
        x: (..., W).
        y: As x. Tensors of differing dtypes and what kernels do not run on go through `toa.ops.layer_norm`.
        weight: (W,).
        bias: (W,).
        p: Rate of the dropout.
        eps: Added to the variance.
        seed: Of the kernel's mask, int32 (1,), on x's device; drawn if None.
    """
    alike = x.dtype == y.dtype == weight.dtype == bias.dtype and x.shape == y.shape and 0.0 <= p < 1.0
    if not alike or not fits(x, weight, bias) or torch.is_autocast_enabled(x.device.type):
        return layer_norm(x + dropout(y, p), weight, bias, eps)
    if p and seed is None:
        (seed,) = draw_seeds(x, 1)
    return _forward(x, y, weight, bias, seed if p else None, p, eps)[0]


@torch.library.custom_op("toa::add_norm", mutates_args=())
def _forward(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, p: float, eps: float
) -> tuple[Tensor, Tensor]:
    """The norm, and the sum that it is of."""
    # importing the kernels imports Triton
    from toa.ops import row_kernels

    out, total = x.new_empty(x.shape), x.new_empty(x.shape)
    if out.numel() == 0:
        return out, total
    rows, others = as_rows(x), as_rows(y)
    blocks, constants = block_rows(rows)
    # Triton launches on the current device, wherever the tensors are
    with torch.cuda.device_of(x):
        row_kernels.add_norm_kernel[(blocks,)](
            *(rows, others, weight.contiguous(), bias.contiguous(), total, out, seed),
            *(rows.stride(0), others.stride(0), *rows.shape, eps, p),
            DROP=seed is not None,
            **constants,
        )
    return out, total


@_forward.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


@torch.library.custom_op("toa::add_norm_backward", mutates_args=())
def _backward(
    grad: Tensor, total: Tensor, weight: Tensor, seed: Tensor | None, p: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of y, nothing if it is the same, and of weight and bias."""
    grads = _empty_gradients(total, weight, seed)
    grad_x, grad_y, others = grads
    launch_backward(grad, total, weight, eps, grad_x, others, None if seed is None else grad_y, seed, p)
    return grads


@_backward.register_fake
def _(grad: Tensor, total: Tensor, weight: Tensor, seed: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(total, weight, seed)


def _empty_gradients(total: Tensor, weight: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    of_y = total.new_empty(0 if seed is None else total.shape)
    return total.new_empty(total.shape), of_y, weight.new_empty((2, *weight.shape))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, weight, _, seed, ctx.p, ctx.eps = inputs
    ctx.mark_non_differentiable(output[1])
    # nor zeros in place of its gradient
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], weight, seed)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    total, weight, seed = ctx.saved_tensors
    grad_x, grad_y, others = _backward(grad, total, weight, seed, ctx.p, ctx.eps)
    return grad_x, grad_x if seed is None else grad_y, others[0], others[1], None, None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)
