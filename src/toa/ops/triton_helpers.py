"""What all Triton kernels share: how a launch describes its tensors, and device functions for tiles and random draws.

Importing this file imports Triton.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from toa.ops._backend import LAUNCH_OPTIONS
from toa.ops.attention import definitions

# `toa.ops.attention.definitions.ROW_UNIT`, as kernels read a global number
ROW_UNIT = tl.constexpr(definitions.ROW_UNIT)
# tensor cores multiply tiles of at least this size
SMALLEST = 16


def needs_exact_products(dtype: torch.dtype) -> bool:
    """Whether float32 products may not be rounded to TF32, by PyTorch's setting.

    Call it inside custom operators only: PyTorch 2.11 cannot trace `get_float32_matmul_precision`.
    """
    return dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"


def padded(size: int) -> int:
    """A width or length as the kernels hold it: a power of two of at least `SMALLEST`."""
    return max(SMALLEST, 1 << (size - 1).bit_length())


def unit_stride(x: Tensor | None) -> Any:
    """A tensor whose last axis has stride 1, as the kernels read it; None stays None."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def strides_of(axes: int, *tensors: Tensor | None) -> list[int]:
    """Strides of the leading axes of each tensor; zeros for None."""
    return [stride for x in tensors for stride in ((0,) * axes if x is None else x.stride()[:axes])]


# 3.2 launches a compiled kernel with other arguments
_REUSES = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 3)


class Launch:
    """Launches of a kernel on tensors whose dtypes, strides and device stay the same.

    Triton examines every argument of a launch, asks the driver about every pointer and calls the hooks of profilers.
    From the second launch of aligned tensors on, the compiled kernel runs without that; its pointers are integers.

    Args:
        numbers: The kernel's arguments after its tensors.
        options: The numbers of warps and stages; `LAUNCH_OPTIONS` are added.
    """

    __slots__ = ("_compiled", "_first", "_numbers")

    def __init__(self, kernel: Any, grid: tuple[int, ...], numbers: tuple[Any, ...], options: dict[str, int]) -> None:
        self._numbers = numbers
        self._first = (kernel, grid, {**LAUNCH_OPTIONS, **options})
        # Triton's function that launches a compiled kernel; the grid, the kernel and its sizes for it
        self._compiled: tuple[Callable[..., None], tuple[int, ...], Any, Any] | None = None

    def __call__(self, *tensors: Any) -> None:
        """Launch on the device of the first tensor; Triton would take the current one."""
        index = tensors[0].get_device()
        if index >= 0 and index != torch.cuda.current_device():
            with torch.cuda.device(index):
                return self(*tensors)
        pointers = [None if x is None else x.data_ptr() for x in tensors]
        bits = 0
        for pointer in pointers:
            bits |= pointer or 0
        aligned = bits % 16 == 0
        if aligned and self._compiled is not None:
            run, grid, function, sizes = self._compiled
            stream = torch._C._cuda_getCurrentRawStream(index)
            return run(*grid, stream, function, sizes, None, None, None, *pointers, *self._numbers)
        kernel, grid, options = self._first
        compiled = kernel[grid](*tensors, *self._numbers, **options)
        # the interpreter compiles nothing
        if aligned and compiled is not None and _REUSES:
            self._compiled = (compiled.run, (*grid, 1, 1)[:3], compiled.function, compiled.packed_metadata)
        return None


_launches: dict[tuple[Any, ...], Launch] = {}
_MOST_LAUNCHES = 4096


def launch(kernel: Any, grid: tuple[int, ...], tensors: Sequence[Tensor | None], *others: Any) -> None:
    """Launch a kernel on tensors; the other arguments are those of `prepare`."""
    prepare(kernel, grid, tensors, *others)(*tensors)


def prepare(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float],
    constants: dict[str, Any],
    options: dict[str, int],
) -> Launch:
    """The `Launch` of earlier calls with the same arguments, or a new one; constants are the last arguments."""
    first = tensors[0]
    assert first is not None
    dtypes = tuple([None if x is None else x.dtype for x in tensors])
    arguments = (*numbers, *constants.values())
    key = (id(kernel), first.get_device(), grid, dtypes, arguments, *options.values())
    if key not in _launches:
        assert kernel.arg_names[-len(constants) :] == list(constants)
        if len(_launches) == _MOST_LAUNCHES:
            _launches.clear()
        _launches[key] = Launch(kernel, grid, arguments, options)
    return _launches[key]


@triton.jit
def pick(place, a, b, c):
    """The number or pointer at an index below three."""
    return tl.where(place == 0, a, tl.where(place == 1, b, c))


@triton.jit
def load_tile(pointer, b, h, rows, limit, stride_b, stride_n, stride_h, width, WIDTH: tl.constexpr):
    """Rows of one head, (rows, WIDTH); zeros outside."""
    columns = tl.arange(0, WIDTH)
    start = pointer + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h
    places = rows.to(tl.int64)[:, None] * stride_n + columns[None, :]
    return tl.load(start + places, mask=(rows[:, None] < limit) & (columns[None, :] < width), other=0.0)


@triton.jit
def store_tile(pointer, value, b, h, rows, limit, stride_b, stride_n, stride_h, width, WIDTH: tl.constexpr):
    """Write rows of one head."""
    columns = tl.arange(0, WIDTH)
    start = pointer + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h
    places = rows.to(tl.int64)[:, None] * stride_n + columns[None, :]
    inside = (rows[:, None] < limit) & (columns[None, :] < width)
    tl.store(start + places, value.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def dropout_factors(seed, head, rows, columns, p):
    """The dropout factors of a tile, 0 or 1 / (1 - p); one of `rows` and `columns` is a column vector, one a row.

    A draw depends on seed, head, row and column only. Each is a counter of its own: sums of two would give the same
    draws to different places, such as heads of neighbouring seeds.
    """
    drawn, _, _, _ = tl.philox(seed, rows, columns, head, head * 0)
    return tl.where(tl.uint_to_uniform_float(drawn) >= p, 1.0 / (1.0 - p), 0.0)


@triton.jit
def softplus(x, scale, PRECISION: tl.constexpr):
    """log(1 + eʸ) / scale of y = scale x, exact for very negative y too, and its derivative; scale > 0.

    If products are rounded to ten bits or fewer, log(1 + s) / s is a polynomial that interpolates it over [0, 1] at
    Chebyshev points, with an error below 7e-5, and 1 / t is a squared rsqrt. The gate costs more than the scores: exp2
    and rsqrt are one instruction each; a logarithm, exp or division takes several. The scale is part of constants that
    are there anyway, so it costs nothing.
    """
    small = tl.exp2(tl.abs(x) * (scale * -1.4426950408889634))
    total = 1.0 + small
    part = 1.0 / scale
    if PRECISION == "ieee":
        # log(1 + s) = log(t) s / (t - 1) with t = 1 + s as rounded
        log1p = tl.where(total == 1.0, small, tl.log(total) * (small / tl.where(total == 1.0, 1.0, total - 1.0)))
        log1p *= part
        share = 1.0 / total
    else:
        ratio = 0.305399977 * part + small * (-0.156029527 * part + small * (0.040663438 * part))
        log1p = small * (0.999936822 * part + small * (-0.496788748 * part + small * ratio))
        root = tl.rsqrt(total)
        share = root * root
    return tl.maximum(x, 0.0) + log1p, tl.where(x >= 0.0, share, small * share)
