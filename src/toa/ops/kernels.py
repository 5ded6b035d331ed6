"""Triton kernels beside the attention: rows of a matrix (layer norm, sums), dense operators.

A program owns blocks of rows, or of rows and columns, and writes each result once. There are no atomic sums, so results
are deterministic.

Alphabet: B batch, N tokens, H heads, D width.
"""


# kernels have many arguments: pointers, strides, sizes, block sizes
# mypy: ignore-errors

import triton
import triton.language as tl

from toa.ops.triton_helpers import dropout_factors, load_tile


@triton.jit
def _block(index, ROWS: tl.constexpr):
    """Rows of a block, in 64 bits: offsets in memory may exceed 2³¹."""
    return (index * ROWS + tl.arange(0, ROWS)).to(tl.int64)


@triton.jit
def _load_rows(pointer, rows, limit, stride, columns, width):
    """Entries of rows and columns in float32; zeros outside."""
    inside = (rows[:, None] < limit) & (columns[None, :] < width)
    return tl.load(pointer + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store_rows(pointer, value, rows, limit, columns, width):
    """Write entries of a contiguous matrix."""
    inside = (rows[:, None] < limit) & (columns[None, :] < width)
    tl.store(pointer + rows[:, None] * width + columns[None, :], value.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _vector(pointer, columns, width):
    return tl.load(pointer + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _normalised(x, columns, width, eps):
    """Rows minus their mean, times the inverse of their standard deviation (zeros past the width), and that inverse."""
    centred = tl.where(columns[None, :] < width, x - (tl.sum(x, 1) / width)[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)[:, None]
    return centred * factor, factor


@triton.jit
def _kept_rows(seed, index, columns, p, ROWS: tl.constexpr):
    """Dropout factors of a block of rows; the counters of the draws have 32 bits, as rows have here."""
    rows = index * ROWS + tl.arange(0, ROWS)
    return dropout_factors(tl.load(seed), index * 0, rows[:, None], columns[None, :], p)


# the last batch of an epoch has another number of rows: it must not compile another kernel
@triton.jit(do_not_specialize=["limit"])
def norm_kernel(
    x, y, weight, bias, total, out, seed,
    x_stride, y_stride, limit, width, eps, p,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Layer norm of a block of rows of x, or of x + dropout(y)."""
    index = tl.program_id(0)
    rows = _block(index, ROWS)
    columns = tl.arange(0, WIDTH)
    found = _load_rows(x, rows, limit, x_stride, columns, width)
    if y is not None:
        added = _load_rows(y, rows, limit, y_stride, columns, width)
        if seed is not None:
            added *= _kept_rows(seed, index, columns, p, ROWS)
        # rounded as backward reads it
        found = (found + added).to(total.dtype.element_ty)
        _store_rows(total, found, rows, limit, columns, width)
        found = found.to(tl.float32)
    normal, _ = _normalised(found, columns, width, eps)
    value = normal * _vector(weight, columns, width) + _vector(bias, columns, width)
    _store_rows(out, value, rows, limit, columns, width)


@triton.jit(do_not_specialize=["limit"])
def norm_backward_kernel(
    grad, x, weight, grad_x, grad_y, shares, seed,
    grad_stride, stride, limit, width, eps, p,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of rows, and partial sums of those of weight and bias, (programs, 2, width).

    A program takes every `parts`-th block. The gradient of y in x + dropout(y) is written if `grad_y` is given.
    """
    part, parts = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, WIDTH)
    scale = _vector(weight, columns, width)
    of_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    of_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for block in range(part, tl.cdiv(limit, ROWS), parts):
        rows = _block(block, ROWS)
        above = _load_rows(grad, rows, limit, grad_stride, columns, width)
        # computing the statistics again is cheaper than storing them
        normal, factor = _normalised(_load_rows(x, rows, limit, stride, columns, width), columns, width, eps)
        of_weight += above * normal
        of_bias += above
        above *= scale
        along, mean = tl.sum(above * normal, 1) / width, tl.sum(above, 1) / width
        found = (above - mean[:, None] - normal * along[:, None]) * factor
        _store_rows(grad_x, found, rows, limit, columns, width)
        if grad_y is not None:
            _store_rows(grad_y, found * _kept_rows(seed, block, columns, p, ROWS), rows, limit, columns, width)
    start = shares + part * 2 * width + columns
    tl.store(start, tl.sum(of_weight, 0), mask=columns < width)
    tl.store(start + width, tl.sum(of_bias, 0), mask=columns < width)


@triton.jit(do_not_specialize=["limit"])
def column_sum_kernel(
    x, out,
    stride, limit, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of a block of columns over every `parts`-th block of rows, (parts, width)."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in range(part, tl.cdiv(limit, ROWS), parts):
        rows = _block(block, ROWS)
        total += _load_rows(x, rows, limit, stride, columns, width)
    place = out + part * width + columns
    tl.store(place, tl.sum(total, 0).to(out.dtype.element_ty), mask=columns < width)


@triton.jit
def _kept(seed, rate, h, rate_h, rows, columns):
    """Drop factors of a tile of a head's matrix."""
    return dropout_factors(tl.load(seed), h, rows[:, None], columns[None, :], tl.load(rate + h * rate_h))


@triton.jit
def drop_kernel(
    matrix, out, seed, rate,
    m_h, m_n, m_c, o_h, o_n, rate_h, N, size,
    DROP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Copy a head's matrix, with DROP some entries set to zero, into a larger buffer; zeros beyond the matrix."""
    h = tl.program_id(1)
    blocks = tl.cdiv(size, BLOCK_N)
    rows = tl.program_id(0) // blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows[:, None] < N) & (columns[None, :] < N)
    start = matrix + h.to(tl.int64) * m_h
    places = rows.to(tl.int64)[:, None] * m_n + columns.to(tl.int64)[None, :] * m_c
    found = tl.load(start + places, mask=inside, other=0.0)
    if DROP:
        found = found * _kept(seed, rate, h, rate_h, rows, columns)
    place = out + h.to(tl.int64) * o_h
    found = found.to(out.dtype.element_ty)
    inside = (rows[:, None] < size) & (columns[None, :] < size)
    tl.store(place + rows.to(tl.int64)[:, None] * o_n + columns[None, :], found, mask=inside)


@triton.jit
def outer_kernel(
    left, right, out, seed, rate,
    l_b, l_n, l_h, r_b, r_n, r_h, rate_h, B, N, d,
    DROP: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of the sum over the batch of a head's left rightᵀ, with DROP some entries set to zero.

    Exact products are summed per batch entry first: one chain of B d float32 additions has several times the error.
    """
    h = tl.program_id(1)
    blocks = tl.cdiv(N, BLOCK)
    rows = tl.program_id(0) // blocks * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    shares = tl.cdiv(d, BLOCK_K)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    PARTS: tl.constexpr = PRECISION == "ieee"
    for entry in range(B if PARTS else 1):
        part = tl.zeros((BLOCK, BLOCK), tl.float32)
        for step in range(entry * shares, (entry + 1) * shares if PARTS else B * shares):
            b, first = step // shares, step % shares * BLOCK_K
            one = load_tile(left + first, b, h, rows, N, l_b, l_n, l_h, d - first, BLOCK_K)
            other = load_tile(right + first, b, h, columns, N, r_b, r_n, r_h, d - first, BLOCK_K)
            part += tl.dot(one, tl.trans(other), input_precision=PRECISION)
        total += part
    if DROP:
        total *= _kept(seed, rate, h, rate_h, rows, columns)
    inside = (rows[:, None] < N) & (columns[None, :] < N)
    place = out + h.to(tl.int64) * N * N + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=inside)
