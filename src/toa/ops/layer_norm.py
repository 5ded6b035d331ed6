"""Layer norm: PyTorch's, and on a GPU kernels that read every tensor once."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toa.ops._backend import runs_kernels
from toa.ops.column_sum import as_rows, sum_rows

# a row is held whole
MAX_WIDTH = 1024

# numbers that a program holds of each tensor, and how many of them a warp takes
_TILE = 4096
_WARP_SHARE = 512


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, *, leading: int | None = None) -> Tensor:
    """Normalise the last axis, as `torch.nn.functional.layer_norm` does; autocast runs it in float32 there too.

    (x - mean) / sqrt(var + eps) * weight + bias, var without Bessel's correction.

    Args:
        x: (..., W). Wider rows than `MAX_WIDTH`, rows of one number, tensors of differing dtypes and what is not on a
            CUDA device go to PyTorch's own function.
        weight: (W,).
        bias: (W,).
        eps: Added to the variance.
        leading: Of tokens (B, N, W), how many to normalise and return, (B, leading, W); None is all.
    """
    if fits(x, weight, bias):
        if torch.is_autocast_enabled(x.device.type):
            x, weight, bias = x.float(), weight.float(), bias.float()
        if x.dtype == weight.dtype == bias.dtype:
            return _forward(x, weight, bias, eps, leading)
    return F.layer_norm(x if leading is None else x[:, :leading], weight.shape, weight, bias, eps)


def fits(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether kernels run on x, and hold its rows."""
    # of one number the gradient is nothing; a fused product would leave its rounding error there, times 1 / sqrt(eps)
    held = weight.shape == bias.shape == x.shape[-1:] and 1 < weight.numel() <= MAX_WIDTH
    return held and runs_kernels(x)


@torch.library.custom_op("toa::layer_norm", mutates_args=())
def _forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float, leading: int | None) -> Tensor:
    # importing the kernels imports Triton
    from toa.ops import row_kernels

    out = _empty_result(x, leading)
    if out.numel() == 0:
        return out
    rows = as_rows(x)
    blocks, constants = block_rows(as_rows(out))
    # Triton launches on the current device, wherever the tensors are
    with torch.cuda.device_of(x):
        row_kernels.norm_kernel[(blocks,)](
            *(rows, weight.contiguous(), bias.contiguous(), out),
            *(rows.stride(0), out.numel() // out.shape[-1], out.shape[-1], eps, *_groups(x, leading)),
            **constants,
        )
    return out


@_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float, leading: int | None) -> Tensor:
    return _empty_result(x, leading)


def _empty_result(x: Tensor, leading: int | None) -> Tensor:
    return x.new_empty(x.shape if leading is None else (x.shape[0], leading, x.shape[2]))


def _groups(x: Tensor, leading: int | None) -> tuple[int, int]:
    """How many rows are taken of every group of so many."""
    return (1, 1) if leading is None else (leading, x.shape[1])


@torch.library.custom_op("toa::layer_norm_backward", mutates_args=())
def _backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float, leading: int | None) -> tuple[Tensor, Tensor]:
    grad_x, others = x.new_empty(x.shape), weight.new_empty((2, *weight.shape))
    launch_backward(grad, x, weight, eps, grad_x, others, groups=_groups(x, leading))
    return grad_x, others


def launch_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    eps: float,
    grad_x: Tensor,
    others: Tensor,
    grad_y: Tensor | None = None,
    seed: Tensor | None = None,
    p: float = 0.0,
    groups: tuple[int, int] = (1, 1),
) -> None:
    """Write the gradients of x, of weight and bias (2, W), and of y if x was a sum with what dropout left of it."""
    from toa.ops import row_kernels

    if grad_x.numel() == 0:
        others.zero_()
        return
    rows, above = as_rows(x), as_rows(grad)
    blocks, constants = block_rows(rows)
    programs = min(blocks, _most_programs(x.device))
    shares = x.new_empty((programs, others.numel()), dtype=torch.float32)
    with torch.cuda.device_of(x):
        row_kernels.norm_backward_kernel[(programs,)](
            *(above, rows, weight.contiguous(), grad_x, grad_y, shares, seed),
            *(above.stride(0), rows.stride(0), *rows.shape, eps, p, *groups),
            DROP=grad_y is not None,
            **constants,
        )
    sum_rows(shares, others)


@_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty((2, *weight.shape))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.eps, ctx.leading = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    grad_x, others = _backward(grad, *ctx.saved_tensors, ctx.eps, ctx.leading)
    return grad_x, others[0], others[1], None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)


def block_rows(rows: Tensor) -> tuple[int, dict[str, int]]:
    """Into how many blocks the kernels cut rows, and their size: as large as leaves every program some."""
    import triton

    count, width = rows.shape
    padded = triton.next_power_of_2(width)
    tile = max(_TILE, padded)
    while tile > max(_WARP_SHARE, padded) and count * padded < tile * _most_programs(rows.device):
        tile //= 2
    constants = {"ROWS": tile // padded, "WIDTH": padded, "num_warps": tile // _WARP_SHARE}
    return triton.cdiv(count, tile // padded), constants


def _most_programs(device: torch.device) -> int:
    """Programs that a device runs at once, two on each of its processors."""
    on_chip = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return 2 * on_chip
