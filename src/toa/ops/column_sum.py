"""The sum over all rows, as the gradient of a bias is: on a GPU by kernels that read the rows at full speed."""

from typing import Any

import torch
from torch import Tensor

# numbers that a program holds; several warps, and two programs or more on each of a chip's processors
_TILE = 2048
_PROGRAMS = 528

# up to so many rows one program a block of columns is as quick as two kernels
_FEW_ROWS = 512


def column_sum(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums (W,) of a tensor (..., W) over all axes but the last, in float32, then rounded to `dtype`."""
    return _sum(x, dtype)


@torch.library.custom_op("toa::column_sum", mutates_args=())
def _sum(x: Tensor, dtype: torch.dtype) -> Tensor:
    out = x.new_empty(x.shape[-1], dtype=dtype)
    sum_rows(as_rows(x), out)
    return out


@_sum.register_fake
def _(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape[-1], dtype=dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.shape, ctx.dtype = inputs[0].shape, inputs[0].dtype


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return grad.to(ctx.dtype).expand(ctx.shape), None


_sum.register_autograd(_gradient, setup_context=_setup_context)


def as_rows(x: Tensor) -> Tensor:
    """A tensor (..., W) as a matrix, along whose rows the kernels step by one."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def sum_rows(rows: Tensor, out: Tensor) -> None:
    """Write the sums of the columns of a matrix (R, W) that `as_rows` gives."""
    import triton

    count, width = rows.shape
    if count > _FEW_ROWS:
        columns = min(64, triton.next_power_of_2(width))
        blocks = triton.cdiv(width, columns)
        parts = min(triton.cdiv(count, _TILE // columns), max(1, _PROGRAMS // blocks))
        shares = rows.new_empty((parts, width), dtype=torch.float32)
        _launch(rows, shares, parts, columns)
        rows = shares
    # few rows: narrow blocks, for many programs
    _launch(rows, out, 1, min(16, triton.next_power_of_2(width)))


def _launch(rows: Tensor, out: Tensor, parts: int, columns: int) -> None:
    # importing the kernels imports Triton
    import triton

    from toa.ops import row_kernels

    count, width = rows.shape
    # Triton launches on the current device, wherever the tensors are
    with torch.cuda.device_of(rows):
        row_kernels.column_sum_kernel[(parts, triton.cdiv(width, columns))](
            *(rows, out, rows.stride(0), count, width),
            ROWS=_TILE // columns,
            COLUMNS=columns,
            num_warps=4,
        )
