"""Triton kernels around the products of dense operators: dropped entries, and sums of outer products.

Alphabet: B batch, N tokens, H heads, D width.
"""

# kernels have many arguments: pointers, strides, sizes, block sizes
# mypy: ignore-errors

import triton
import triton.language as tl

from toa.ops.triton_helpers import dropout_factors, load_tile


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
    """A tile of the sum over the batch of a head's left rightᵀ, with DROP some entries set to zero."""
    h = tl.program_id(1)
    blocks = tl.cdiv(N, BLOCK)
    rows = tl.program_id(0) // blocks * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    shares = tl.cdiv(d, BLOCK_K)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(B * shares):
        b, first = step // shares, step % shares * BLOCK_K
        one = load_tile(left + first, b, h, rows, N, l_b, l_n, l_h, d - first, BLOCK_K)
        other = load_tile(right + first, b, h, columns, N, r_b, r_n, r_h, d - first, BLOCK_K)
        total += tl.dot(one, tl.trans(other), input_precision=PRECISION)
    if DROP:
        total *= _kept(seed, rate, h, rate_h, rows, columns)
    inside = (rows[:, None] < N) & (columns[None, :] < N)
    place = out + h.to(tl.int64) * N * N + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=inside)
