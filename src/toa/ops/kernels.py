"""Triton kernels beside the attention: rows of a matrix (layer norm, sums), dense operators.

A program owns blocks of rows, or of rows and columns, and writes each result once. There are no atomic sums, so results
are deterministic.

Alphabet: B batch, N tokens, H heads, D width.
"""


# kernels have many arguments: pointers, strides, sizes, block sizes
# mypy: ignore-errors

import triton
import triton.language as tl

from toa.ops.triton_helpers import dropout_factors, load_tile, pick


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
    values = _load_rows(x, rows, limit, x_stride, columns, width)
    if y is not None:
        added = _load_rows(y, rows, limit, y_stride, columns, width)
        if seed is not None:
            added *= _kept_rows(seed, index, columns, p, ROWS)
        # rounded as backward reads it
        values = (values + added).to(total.dtype.element_ty)
        _store_rows(total, values, rows, limit, columns, width)
        values = values.to(tl.float32)
    normal, _ = _normalised(values, columns, width, eps)
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
    values = tl.load(start + places, mask=inside, other=0.0)
    if DROP:
        values = values * _kept(seed, rate, h, rate_h, rows, columns)
    place = out + h.to(tl.int64) * o_h
    values = values.to(out.dtype.element_ty)
    inside = (rows[:, None] < size) & (columns[None, :] < size)
    tl.store(place + rows.to(tl.int64)[:, None] * o_n + columns[None, :], values, mask=inside)


@triton.jit
def _mixed_tile(
    matrix, x, m_n, x_n, rows, N, place, inside,
    TRANSPOSED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows of a matrix, or of its transpose, times the columns of tokens at `place`."""
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, N, BLOCK_K):
        steps = (first + tl.arange(0, BLOCK_K)).to(tl.int64)
        tokens = tl.load(
            x + steps[:, None] * x_n + place[None, :], mask=(steps[:, None] < N) & inside[None, :], other=0.0
        )
        if TRANSPOSED:
            in_matrix = (steps[:, None] < N) & (rows[None, :] < N)
            block = tl.load(matrix + steps[:, None] * m_n + rows[None, :], mask=in_matrix, other=0.0)
            block = tl.trans(block.to(tokens.dtype))
        else:
            in_matrix = (rows[:, None] < N) & (steps[None, :] < N)
            block = tl.load(matrix + rows[:, None] * m_n + steps[None, :], mask=in_matrix, other=0.0).to(tokens.dtype)
        total += tl.dot(block, tokens)
    return total


@triton.jit
def mix_kernel(
    x_0, x_1, x_2, matrix_0, matrix_1, matrix_2, out_0, out_1, out_2,
    x0_b, x0_n, x0_h, x1_b, x1_n, x1_h, x2_b, x2_n, x2_h, m0_h, m0_n, m1_h, m1_n, m2_h, m2_n,
    o0_b, o0_n, o0_h, o1_b, o1_n, o1_h, o2_b, o2_n, o2_h, B, N, d0, d1, d2, residual_0, residual_1, residual_2,
    plain_0, plain_1, plain_2,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A block of tokens of several batch entries of a head, mixed by one of up to three operators.

    `plain` tells which matrices are not transposed, `residual` to which the identity is added. A block of columns
    holds the padded widths of its entries, one after the other.
    """
    h, which = tl.program_id(1), tl.program_id(2)
    blocks = tl.cdiv(N, BLOCK_M)
    rows = (tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = tl.program_id(0) // blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    entries, within = (columns // WIDTH).to(tl.int64), columns % WIDTH
    inside = (entries < B) & (within < pick(which, d0, d1, d2))
    x_n, m_n, head = pick(which, x0_n, x1_n, x2_n), pick(which, m0_n, m1_n, m2_n), h.to(tl.int64)
    x = pick(which, x_0, x_1, x_2) + head * pick(which, x0_h, x1_h, x2_h)
    matrix = pick(which, matrix_0, matrix_1, matrix_2) + head * pick(which, m0_h, m1_h, m2_h)
    place = entries * pick(which, x0_b, x1_b, x2_b) + within
    if pick(which, plain_0, plain_1, plain_2) != 0:
        total = _mixed_tile(matrix, x, m_n, x_n, rows, N, place, inside, False, BLOCK_M, BLOCK_N, BLOCK_K)
    else:
        total = _mixed_tile(matrix, x, m_n, x_n, rows, N, place, inside, True, BLOCK_M, BLOCK_N, BLOCK_K)
    in_sequence = (rows[:, None] < N) & inside[None, :]
    tokens_itself = tl.load(x + rows[:, None] * x_n + place[None, :], mask=in_sequence, other=0.0).to(tl.float32)
    total += tokens_itself * pick(which, residual_0, residual_1, residual_2)
    out = pick(which, out_0, out_1, out_2) + head * pick(which, o0_h, o1_h, o2_h)
    place = entries * pick(which, o0_b, o1_b, o2_b) + within
    places = rows[:, None] * pick(which, o0_n, o1_n, o2_n) + place[None, :]
    tl.store(out + places, total.to(out_0.dtype.element_ty), mask=in_sequence)


@triton.jit
def outer_kernel(
    left_0, left_1, left_2, right_0, right_1, right_2, out_0, out_1, out_2, seed, rate,
    l0_b, l0_n, l0_h, l1_b, l1_n, l1_h, l2_b, l2_n, l2_h, r0_b, r0_n, r0_h, r1_b, r1_n, r1_h, r2_b, r2_n, r2_h,
    rate_h, B, N, d0, d1, d2,
    DROP: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of the sum over the batch of a head's left rightᵀ, of up to three pairs; with DROP some entries are zero.

    Exact products are summed per batch entry first: one chain of B d float32 additions has several times the error.
    """
    h, which = tl.program_id(1), tl.program_id(2)
    left, right, d = (
        pick(which, left_0, left_1, left_2),
        pick(which, right_0, right_1, right_2),
        pick(which, d0, d1, d2),
    )
    l_b, l_n, l_h = pick(which, l0_b, l1_b, l2_b), pick(which, l0_n, l1_n, l2_n), pick(which, l0_h, l1_h, l2_h)
    r_b, r_n, r_h = pick(which, r0_b, r1_b, r2_b), pick(which, r0_n, r1_n, r2_n), pick(which, r0_h, r1_h, r2_h)
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
    out = pick(which, out_0, out_1, out_2) + h.to(tl.int64) * N * N
    tl.store(out + rows.to(tl.int64)[:, None] * N + columns[None, :], total.to(out_0.dtype.element_ty), mask=inside)
