"""Functions of the rows of a matrix that have fused kernels on a GPU: linear maps and layer norm.

Elsewhere each is the PyTorch function of the same meaning. A kernel stays only if it gains at least 3 % of a training
step. On an H200, sums of bias gradients gain 9 % with 7 channels; the kernels of layer norm, with and without a sum
before it, 25 % (PatchTST) and 6 % (iTransformer) together: `benchmarks/row_kernels.py`, table in docs/performance.md.

W is the width of a row.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toa.ops._backend import LAUNCH_OPTIONS, kernel_op, runs_kernels
from toa.ops.dropout import draw_seeds, dropout

# layer norm: widest row that a program holds, numbers per program and tensor, and numbers per warp
MAX_WIDTH = 1024
_NORM_TILE = 4096
_WARP_SHARE = 512

# column sums: numbers per program, programs that fill the largest chips, and rows that need no second kernel
_SUM_TILE = 2048
_SUM_PROGRAMS = 528
_FEW_ROWS = 512


def as_rows(x: Tensor) -> Tensor:
    """A tensor (..., W) as a matrix whose rows have stride 1, as the kernels read them."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


# ---- linear maps, and column sums: the gradient of a bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x weightᵀ + bias on the last axis, as `torch.nn.functional.linear` does, autocast included.

    Products and their gradients are PyTorch's. Where kernels run, the gradient of the bias is summed in float32, under
    autocast too, and changing the result in place raises, because it is a view.
    """
    learns = bias is not None and torch.is_grad_enabled() and bias.requires_grad and bias.numel() > 0
    if bias is None or not learns or not runs_kernels(x, "bias_gradient"):
        return F.linear(x, weight, bias)
    # of a tensor with gaps PyTorch would add the bias in a second kernel
    out: Tensor = _BiasGradient.apply(F.linear(x.contiguous(), weight, bias.detach()), bias)
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


@kernel_op("column_sum")
def column_sum(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums (W,) of a tensor (..., W) over all axes but the last, in float32, then rounded to `dtype`."""
    out = x.new_empty(x.shape[-1], dtype=dtype)
    _sum_rows(as_rows(x), out)
    return out


def _sum_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.shape = inputs[0].shape
    ctx.dtype = inputs[0].dtype


column_sum.register_fake(lambda x, dtype: x.new_empty(x.shape[-1], dtype=dtype))
column_sum.register_autograd(lambda ctx, grad: (grad.to(ctx.dtype).expand(ctx.shape), None), setup_context=_sum_context)


def _sum_rows(rows: Tensor, out: Tensor) -> None:
    """Write the sums of the columns of a matrix that `as_rows` returns."""
    # importing the kernels imports Triton
    import triton

    from toa.ops import kernels

    def launch(rows: Tensor, out: Tensor, parts: int, columns: int) -> None:
        # Triton launches on the current device, wherever the tensors are
        with torch.cuda.device_of(rows):
            kernels.column_sum_kernel[(parts, triton.cdiv(width, columns))](
                *(rows, out, rows.stride(0), rows.shape[0], width),
                ROWS=_SUM_TILE // columns,
                COLUMNS=columns,
                num_warps=4,
                **LAUNCH_OPTIONS,
            )

    count, width = rows.shape
    if count > _FEW_ROWS:
        columns = min(64, triton.next_power_of_2(width))
        blocks = triton.cdiv(width, columns)
        parts = min(triton.cdiv(count, _SUM_TILE // columns), max(1, _SUM_PROGRAMS // blocks))
        partial = rows.new_empty((parts, width), dtype=torch.float32)
        launch(rows, partial, parts, columns)
        rows = partial
    # few rows: narrow blocks, for many programs
    launch(rows, out, 1, min(16, triton.next_power_of_2(width)))


# ---- layer norm, alone or of x + dropout(y)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Normalise the last axis, as `torch.nn.functional.layer_norm` does; under autocast in float32, as there.

    (x - mean) / sqrt(var + eps) * weight + bias, with var without Bessel's correction. PyTorch's function takes rows of
    one number or of more than `MAX_WIDTH`, mixed dtypes, and tensors that are not on a CUDA device.
    """
    if _kernel_norms(x, weight, bias, "layer_norm"):
        if torch.is_autocast_enabled(x.device.type):
            x, weight, bias = x.float(), weight.float(), bias.float()
        if x.dtype == weight.dtype == bias.dtype:
            return _norm(x, None, weight, bias, None, 0.0, eps)[0]
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, *, p: float = 0.0, eps: float = 1e-5) -> Tensor:
    """Layer norm of x + dropout(y), both (..., W). Mixed dtypes, and tensors without kernels, go by `layer_norm`."""
    alike = x.dtype == y.dtype == weight.dtype == bias.dtype and x.shape == y.shape and 0.0 <= p < 1.0
    if not alike or not _kernel_norms(x, weight, bias, "add_norm") or torch.is_autocast_enabled(x.device.type):
        return layer_norm(x + dropout(y, p), weight, bias, eps)
    seed = draw_seeds(x) if p else None
    return _norm(x, y, weight, bias, seed, p, eps)[0]


def _kernel_norms(x: Tensor, weight: Tensor, bias: Tensor, kernel: str) -> bool:
    # the gradient of a row of one number is zero; a fused product would leave its rounding error, times 1 / sqrt(eps)
    held = weight.shape == bias.shape == x.shape[-1:] and 1 < weight.numel() <= MAX_WIDTH
    return held and runs_kernels(x, kernel)


@kernel_op("layer_norm")
def _norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, seed: Tensor | None, p: float, eps: float
) -> tuple[Tensor, Tensor]:
    """The norm, and the sum x + dropout(y), empty without y."""
    from toa.ops import kernels

    out, total = _empty_norms(x, y)
    if out.numel() == 0:
        return out, total
    rows = as_rows(x)
    others = None if y is None else as_rows(y)
    blocks, constants = _row_blocks(rows)
    with torch.cuda.device_of(x):
        kernels.norm_kernel[(blocks,)](
            *(rows, others, weight.contiguous(), bias.contiguous(), None if y is None else total, out, seed),
            *(rows.stride(0), 0 if others is None else others.stride(0), *rows.shape, eps, p),
            **constants,
            **LAUNCH_OPTIONS,
        )
    return out, total


def _empty_norms(x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0 if y is None else x.shape)


_norm.register_fake(lambda x, y, *rest: _empty_norms(x, y))


@kernel_op("layer_norm_backward")
def _norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, seed: Tensor | None, p: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of y (empty if it is that of x), and of weight and bias, (2, W)."""
    from toa.ops import kernels

    grad_x, grad_y, affine = _empty_norm_gradients(x, weight, seed)
    if grad_x.numel() == 0:
        return grad_x, grad_y, affine.zero_()
    rows, above = as_rows(x), as_rows(grad)
    blocks, constants = _row_blocks(rows)
    programs = min(blocks, _most_programs(x.device))
    partial = x.new_empty((programs, affine.numel()), dtype=torch.float32)
    with torch.cuda.device_of(x):
        kernels.norm_backward_kernel[(programs,)](
            *(above, rows, weight.contiguous(), grad_x, None if seed is None else grad_y, partial, seed),
            *(above.stride(0), rows.stride(0), *rows.shape, eps, p),
            **constants,
            **LAUNCH_OPTIONS,
        )
    _sum_rows(partial, affine)
    return grad_x, grad_y, affine


def _empty_norm_gradients(x: Tensor, weight: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    of_y = x.new_empty(0 if seed is None else x.shape)
    return x.new_empty(x.shape), of_y, weight.new_empty((2, *weight.shape))


_norm_backward.register_fake(lambda grad, x, weight, seed, *rest: _empty_norm_gradients(x, weight, seed))


def _norm_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, y, weight, _, seed, *ctx.settings = inputs
    ctx.mark_non_differentiable(output[1])
    # no zeros in place of the sum's gradient
    ctx.set_materialize_grads(False)
    ctx.summed = y is not None
    ctx.save_for_backward(x if y is None else output[1], weight, seed)


def _norm_gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, seed = ctx.saved_tensors
    grad_x, grad_y, affine = _norm_backward(grad, x, weight, seed, *ctx.settings)
    # without dropout, both summands have the same gradient
    of_summand = grad_x if seed is None else grad_y
    return grad_x, of_summand if ctx.summed else None, affine[0], affine[1], None, None, None


_norm.register_autograd(_norm_gradients, setup_context=_norm_context)


def _row_blocks(rows: Tensor) -> tuple[int, dict[str, int]]:
    """Number of blocks of rows, and their size: as large as possible while every program has a block."""
    import triton

    count, width = rows.shape
    padded = triton.next_power_of_2(width)
    tile = max(_NORM_TILE, padded)
    while tile > max(_WARP_SHARE, padded) and count * padded < tile * _most_programs(rows.device):
        tile //= 2
    constants = {"ROWS": tile // padded, "WIDTH": padded, "num_warps": tile // _WARP_SHARE}
    return triton.cdiv(count, tile // padded), constants


def _most_programs(device: torch.device) -> int:
    """Programs that a device runs at once: two per multiprocessor."""
    on_chip = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return 2 * on_chip
