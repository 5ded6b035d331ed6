"""Triton kernels of act(Q Kᵀ) V for ReLU and gated attention; scores exist only in registers, one tile at a time.

A program owns one head of one batch entry and one block of queries (or, for the gradients of keys and values, one block
of keys) and loops over the other axis. Tokens beyond the end are read as zeros: a zero key has score 0, which ReLU
drops, so blocks that are not full need no mask. Backward forms the scores again.

A tile that is scaled before its first product stays in registers, where Hopper's products run one after the other.
Scales are therefore applied to the accumulated sum, which is valid because ReLU(a x) = a ReLU(x) for a > 0, or are part
of the gate's constants (`unit`). In float16, unscaled scores could overflow, so there they are scaled one by one.

Rows of scores may be multiplied by gain / sqrt(share ‖row‖² + floor). This factor passes through ReLU and is applied to
the output; the gate's factor must be known before softplus, which takes another loop over the keys. Backward of a
factor needs the sum of gradient times score for each row. For the scores it is gradient times output. For the gate the
kernel of queries computes it, and the kernel of keys, which runs afterwards, reads it. Norms need scaled scores. A gain
may be small, so the kernel of keys applies it to the sum.

Alphabet: M queries, N keys, D query and key width, E value width, G width of the gate's queries and keys; widths are
padded to a power of two.
"""

# kernels have many arguments: pointers, three strides per tensor, sizes, block sizes
# mypy: ignore-errors

import functools
from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl

from toa.ops.triton_helpers import ROW_UNIT, SMALLEST, dropout_factors, load_tile, padded, softplus, store_tile

# bytes of shared memory of Hopper, on which the tiles below were timed; Ampere has 163 KiB, cards for desktops 99
HOPPER = 227 * 1024
# bytes that a tile which was not timed may fill
_LARGEST = 128 * 1024
# numbers that a thread of a tile which was not timed may sum up: more may not fit its registers, and a kernel was ten
# times slower then
_SUMS = 96
# as many without tensor cores, where a thread holds its factors too
_EXACT_SUMS = 48

Kernel = Literal["forward", "keys", "queries"]


class Blocks(NamedTuple):
    """Tile of a kernel, and its numbers of warps and pipeline stages."""

    queries: int
    keys: int
    warps: int
    stages: int


# fastest of the tiles timed on an H200 with 4,096 tokens in bfloat16 and 866 in TF32; `benchmarks/tiles.py` times them
# keys: kernel, bytes per number, width, whether gated
_TUNED: dict[tuple[Kernel, int, int, bool], Blocks] = {
    ("forward", 2, 32, False): Blocks(128, 64, 4, 3),
    ("forward", 2, 32, True): Blocks(128, 64, 4, 3),
    ("keys", 2, 32, False): Blocks(64, 64, 4, 3),
    ("keys", 2, 32, True): Blocks(32, 128, 4, 3),
    ("queries", 2, 32, False): Blocks(128, 32, 4, 3),
    ("queries", 2, 32, True): Blocks(128, 32, 4, 3),
    ("forward", 2, 64, False): Blocks(128, 64, 4, 3),
    ("forward", 2, 64, True): Blocks(128, 64, 4, 3),
    ("keys", 2, 64, False): Blocks(32, 128, 4, 3),
    ("keys", 2, 64, True): Blocks(64, 64, 4, 3),
    ("queries", 2, 64, False): Blocks(128, 64, 4, 3),
    ("queries", 2, 64, True): Blocks(128, 64, 8, 3),
    ("forward", 2, 128, False): Blocks(128, 64, 8, 3),
    ("forward", 2, 128, True): Blocks(128, 64, 8, 3),
    ("keys", 2, 128, False): Blocks(64, 128, 8, 3),
    ("keys", 2, 128, True): Blocks(32, 128, 8, 2),
    ("queries", 2, 128, False): Blocks(128, 64, 8, 3),
    ("queries", 2, 128, True): Blocks(64, 32, 4, 2),
    ("forward", 2, 256, False): Blocks(128, 64, 8, 1),
    ("forward", 2, 256, True): Blocks(128, 32, 8, 2),
    ("keys", 2, 256, False): Blocks(64, 64, 8, 2),
    ("keys", 2, 256, True): Blocks(64, 32, 8, 2),
    ("queries", 2, 256, False): Blocks(128, 64, 8, 1),
    ("queries", 2, 256, True): Blocks(32, 32, 4, 2),
    ("forward", 4, 64, False): Blocks(128, 64, 8, 1),
    ("forward", 4, 64, True): Blocks(128, 64, 8, 3),
    ("keys", 4, 64, False): Blocks(64, 128, 8, 2),
    ("queries", 4, 64, False): Blocks(128, 32, 4, 2),
    ("keys", 4, 64, True): Blocks(32, 128, 8, 1),
    ("queries", 4, 64, True): Blocks(128, 32, 8, 1),
}


@functools.cache
def choose_blocks(
    kernel: Kernel,
    m: int,
    n: int,
    width: int,
    dtype: torch.dtype,
    *,
    gated: bool,
    exact: bool = False,
    shared: int = HOPPER,
) -> Blocks:
    """The tile for a problem with m queries, n keys and heads of at most `width`.

    `exact` means that float32 products may not be rounded, so tensor cores cannot be used. `shared` is the shared
    memory of the GPU in bytes.
    """
    row = padded(width) * dtype.itemsize
    # some kernels compiled for Ampere and Hopper take a fifth more than the estimate
    limit = shared * 4 // 5
    tuned = None if exact else _TUNED.get((kernel, dtype.itemsize, padded(width), gated))
    fits = tuned is not None and (shared >= HOPPER or _memory(kernel, tuned, row, gated) <= limit)
    if fits and m >= tuned.queries and n >= tuned.keys:
        return tuned
    side = 128 if dtype.itemsize == 2 and width <= 64 and kernel == "forward" else 64
    if exact:
        side = 32
    stages = 2
    per_warp = 32 * (_EXACT_SUMS if exact else _SUMS)
    while (side, stages) > (SMALLEST, 1):
        blocks = Blocks(side, min(side, 64), 8, stages)
        fits = _memory(kernel, blocks, row, gated) <= min(_LARGEST, limit)
        if fits and _sums(kernel, blocks, width, gated) <= blocks.warps * per_warp:
            break
        side, stages = (side, 1) if stages > 1 else (side // 2, 2)
    queries = min(side, padded(m))
    keys = min(64, side, padded(n))
    sums = _sums(kernel, Blocks(queries, keys, 8, stages), width, gated)
    warps = max(triton.cdiv(sums, per_warp), max(queries, keys) // (8 if exact else 16))
    return Blocks(queries, keys, min(8, triton.next_power_of_2(warps)), stages)


def _memory(kernel: Kernel, blocks: Blocks, row: int, gated: bool) -> int:
    """Estimate of a kernel's shared memory, for rows of some bytes."""
    own, others = (blocks.keys, blocks.queries) if kernel == "keys" else (blocks.queries, blocks.keys)
    # a program holds queries, or keys and values, of its own block, and both of the blocks it loops over
    held = (1 if kernel == "forward" else 2) + gated
    return row * (held * own + (2 + gated) * blocks.stages * others)


def _sums(kernel: Kernel, blocks: Blocks, width: int, gated: bool) -> int:
    """Numbers that a program sums up: outputs, or the gradients of its queries, or those of its keys and values."""
    own = blocks.keys if kernel == "keys" else blocks.queries
    return own * padded(width) * {"forward": 1, "queries": 1 + gated, "keys": 2 + gated}[kernel]


# numbers of heads, queries and keys, and the band: one compiled kernel serves all problems that take the same tile
SIZES = ["H", "M", "N", "low", "high"]


@triton.jit
def _span(first, count, low, high, limit, BLOCK: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Range of the tokens that lie from `low` to `high` of any of `count` tokens from `first`; begins with a block."""
    begin = tl.maximum(first + low, 0) // BLOCK * BLOCK if LOW else 0
    end = tl.minimum(first + count + high, limit) if HIGH else limit
    return begin, end


@triton.jit
def _in_band(weights, queries, keys, low, high, BAND: tl.constexpr):
    """Weights of pairs with low ≤ key - query ≤ high, else zeros; BAND is 0 for no band and 1 for no lower bound."""
    if BAND > 0:
        weights = tl.where(keys - queries <= high, weights, 0.0)
    if BAND > 1:
        weights = tl.where(keys - queries >= low, weights, 0.0)
    return weights


@triton.jit
def _row_squares(scores, scale):
    """Sums of squares of the rows of `ROW_UNIT` times scaled scores, which do not overflow."""
    small = scores * (scale * ROW_UNIT)
    return tl.sum(small * small, 1)


@triton.jit
def _store_factor(factors, places, rows, M, squares, share, floor, gain):
    """Store and return the factors of scaled rows of scores, from their `_row_squares`."""
    norm = (gain * ROW_UNIT) * tl.rsqrt(share * squares + floor * (ROW_UNIT * ROW_UNIT))
    tl.store(factors + places, norm, mask=rows < M)
    return norm


@triton.jit
def _row_factor(
    factors, places, rows, M, query, k, b, h, k_b, k_n, k_h, N, d, low, high, scale, share, floor, gain,
    D: tl.constexpr, BAND: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`_store_factor` of a block of queries, by its own loop over the keys."""
    squares = tl.zeros((query.shape[0],), tl.float32)
    for first in range(0, N, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        key = load_tile(k, b, h, columns, N, k_b, k_n, k_h, d, D)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        scores = _in_band(scores, rows[:, None], columns[None, :], low, high, BAND)
        squares += _row_squares(scores, scale)
    return _store_factor(factors, places, rows, M, squares, share, floor, gain)


@triton.jit
def _gate_tile(
    query, k, b, h, columns, N, k_b, k_n, k_h, g, factor, unit,
    G: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gate of a tile."""
    key = load_tile(k, b, h, columns, N, k_b, k_n, k_h, g, G)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if SCALED:
        scores *= factor[:, None]
    gate, _ = softplus(scores, unit, PRECISION)
    return gate


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    q, k, v, gate_q, gate_k, out, factors, gate_factors, seed,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, o_b, o_n, o_h,
    H, M, N, d, e, g, low, high, dropout_p, scale, share, floor, gain, gate_scale, gate_share, gate_floor,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, GATED: tl.constexpr, BAND: tl.constexpr,
    DROPOUT: tl.constexpr, NORM: tl.constexpr, GATE_NORM: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """O of a block of queries, and the factors of its rows."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    places = bh.to(tl.int64) * M + rows
    query = load_tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
    HALF: tl.constexpr = query.dtype == tl.float16
    GATE_SCALED: tl.constexpr = HALF or GATE_NORM or not GATED
    unit = 1.0 if GATE_SCALED else gate_scale
    factor = tl.zeros((BLOCK_M,), tl.float32) + scale * unit
    squares = tl.zeros((BLOCK_M,), tl.float32)
    if NORM and HALF:
        factor *= _row_factor(
            factors, places, rows, M, query, k, b, h, k_b, k_n, k_h, N, d, low, high, scale, share, floor, gain,
            D, BAND, PRECISION, BLOCK_N,
        )  # fmt: skip
    if GATED:
        gate_query = load_tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G)
        gate_factor = tl.zeros((BLOCK_M,), tl.float32) + gate_scale
        if GATE_NORM:
            gate_factor *= _row_factor(
                gate_factors, places, rows, M, gate_query, gate_k, b, h, gk_b, gk_n, gk_h, N, g, low, high,
                gate_scale, gate_share, gate_floor, 1.0, G, BAND, PRECISION, BLOCK_N,
            )  # fmt: skip
    drop_seed = tl.load(seed) if DROPOUT else 0
    total = tl.zeros((BLOCK_M, E), tl.float32)
    begin, end = _span(tl.program_id(1) * BLOCK_M, BLOCK_M, low, high, N, BLOCK_N, BAND > 1, BAND > 0)
    for first in range(begin, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        key = load_tile(k, b, h, columns, N, k_b, k_n, k_h, d, D)
        value = load_tile(v, b, h, columns, N, v_b, v_n, v_h, e, E)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if NORM and not HALF:
            scores = _in_band(scores, rows[:, None], columns[None, :], low, high, BAND)
            squares += _row_squares(scores, scale)
        weights = tl.maximum(scores, 0.0)
        if HALF:
            weights *= factor[:, None]
        if GATED:
            weights *= _gate_tile(
                gate_query, gate_k, b, h, columns, N, gk_b, gk_n, gk_h, g, gate_factor, unit, G, GATE_SCALED, PRECISION
            )
        weights = _in_band(weights, rows[:, None], columns[None, :], low, high, BAND)
        if DROPOUT:
            weights *= dropout_factors(drop_seed, bh, rows[:, None], columns[None, :], dropout_p)
        total += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
    if NORM and not HALF:
        factor *= _store_factor(factors, places, rows, M, squares, share, floor, gain)
    if not HALF:
        total *= factor[:, None]
    store_tile(out, total, b, h, rows, M, o_b, o_n, o_h, e, E)


@triton.jit
def _pair_gradients(
    row, column, row_value, column_value, row_gate, column_gate, factor, gate_factor, unit, queries, keys, low, high,
    bh, drop_seed, dropout_p, GATED: tl.constexpr, BAND: tl.constexpr, DROPOUT: tl.constexpr, NORM: tl.constexpr,
    GATE_NORM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For a tile of pairs: weights, scores, gate scores, and the gradients of both kinds of scores.

    The gate scores are not multiplied by `unit` yet, so weights and the gradient of scores are too small by it. Rows of
    the tile are queries, with the gradient of their output as value, in the kernel of queries, and keys with their
    values in the kernel of keys, which thereby gets the transposed tile that its products need.
    """
    left = tl.dot(row, tl.trans(column), input_precision=PRECISION) * factor
    if NORM:
        # the gradient of a row's size is that of all its scores
        left = _in_band(left, queries, keys, low, high, BAND)
    grad_weights = tl.dot(row_value, tl.trans(column_value), input_precision=PRECISION)
    weights = tl.maximum(left, 0.0)
    weights = _in_band(weights, queries, keys, low, high, BAND)
    if DROPOUT:
        keep = dropout_factors(drop_seed, bh, queries, keys, dropout_p)
        grad_weights *= keep
    if GATED:
        right = tl.dot(row_gate, tl.trans(column_gate), input_precision=PRECISION) * gate_factor
        if GATE_NORM:
            right = _in_band(right, queries, keys, low, high, BAND)
        gate, slope = softplus(right, unit, PRECISION)
        grad_right = weights * grad_weights * slope
        # computed here, not above: a mask that is kept takes registers
        grad_left = grad_weights * tl.where(weights > 0.0, gate, 0.0)
        weights *= gate
    else:
        grad_left = tl.where((weights if BAND > 0 else left) > 0.0, grad_weights, 0.0)
        right, grad_right = left, grad_left
    if DROPOUT:
        weights *= keep
    return weights, left, right, grad_left, grad_right


@triton.jit(do_not_specialize=SIZES)
def backward_queries_kernel(
    q, k, v, gate_q, gate_k, grad_out, out, factors, gate_factors, alongs, gate_alongs, seed, grad_q, grad_gate_q,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, go_b, go_n, go_h, o_b, o_n, o_h,
    dq_b, dq_n, dq_h, dgq_b, dgq_n, dgq_h,
    H, M, N, d, e, g, low, high, dropout_p, scale, share, floor, gain, gate_scale, gate_share, gate_floor,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, GATED: tl.constexpr, BAND: tl.constexpr,
    DROPOUT: tl.constexpr, NORM: tl.constexpr, GATE_NORM: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries; for normalised rows also the sums that the kernel of keys reads."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    places = bh.to(tl.int64) * M + rows
    query = load_tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
    grad = load_tile(grad_out, b, h, rows, M, go_b, go_n, go_h, e, E)
    factor = tl.zeros((BLOCK_M,), tl.float32) + scale
    if NORM:
        factor *= tl.load(factors + places, mask=rows < M, other=0.0)
        result = load_tile(out, b, h, rows, M, o_b, o_n, o_h, e, E)
        along = tl.sum(grad.to(tl.float32) * result.to(tl.float32), 1) * (share / (gain * gain))
        tl.store(alongs + places, along, mask=rows < M)
    HALF: tl.constexpr = query.dtype == tl.float16
    GATE_SCALED: tl.constexpr = HALF or GATE_NORM or not GATED
    inner = factor[:, None] if HALF else 1.0
    outer = 1.0 if HALF else factor
    unit = 1.0 if GATE_SCALED else gate_scale
    gate_query = load_tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G) if GATED else query
    gate_factor = tl.zeros((BLOCK_M,), tl.float32) + gate_scale
    if GATE_NORM:
        gate_factor *= tl.load(gate_factors + places, mask=rows < M, other=0.0)
    total_gate, total_scores = tl.zeros((BLOCK_M, G), tl.float32), tl.zeros((BLOCK_M, G), tl.float32)
    gate_inner = gate_factor[:, None] if GATED and GATE_SCALED else 1.0
    drop_seed = tl.load(seed) if DROPOUT else 0
    total, gate_along = tl.zeros((BLOCK_M, D), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    begin, end = _span(tl.program_id(1) * BLOCK_M, BLOCK_M, low, high, N, BLOCK_N, BAND > 1, BAND > 0)
    for first in range(begin, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        key = load_tile(k, b, h, columns, N, k_b, k_n, k_h, d, D)
        value = load_tile(v, b, h, columns, N, v_b, v_n, v_h, e, E)
        gate_key = load_tile(gate_k, b, h, columns, N, gk_b, gk_n, gk_h, g, G) if GATED else key
        _, left, right, grad_left, grad_right = _pair_gradients(
            query, key, grad, value, gate_query, gate_key, inner, gate_inner, unit, rows[:, None], columns[None, :],
            low, high, bh, drop_seed, dropout_p, GATED, BAND, DROPOUT, NORM, GATE_NORM, PRECISION,
        )  # fmt: skip
        if NORM:
            grad_left -= left * (along * outer / unit)[:, None]
        total += tl.dot(grad_left.to(key.dtype), key, input_precision=PRECISION)
        if GATED:
            total_gate += tl.dot(grad_right.to(key.dtype), gate_key, input_precision=PRECISION)
        if GATE_NORM:
            gate_along += tl.sum(grad_right * right, 1)
            total_scores += tl.dot(right.to(key.dtype), gate_key, input_precision=PRECISION)
    store_tile(grad_q, total * (factor * unit)[:, None], b, h, rows, M, dq_b, dq_n, dq_h, d, D)
    if GATED:
        if GATE_NORM:
            gate_along *= gate_share
            tl.store(gate_alongs + places, gate_along * outer, mask=rows < M)
            total_gate -= total_scores * gate_along[:, None]
        # one after the other: both may be so small that their product underflows
        total_gate *= (tl.zeros((BLOCK_M,), tl.float32) + outer)[:, None]
        store_tile(grad_gate_q, total_gate * gate_factor[:, None], b, h, rows, M, dgq_b, dgq_n, dgq_h, g, G)


@triton.jit
def _load_row(pointer, places, rows, M):
    """One number per query, as a row of a tile."""
    return tl.load(pointer + places, mask=rows < M, other=0.0)[None, :]


@triton.jit
def _scaled_rows(pointer, places, rows, M, scale, NORM: tl.constexpr):
    """`scale` times the row factors, and the row factors, as a row of a tile; `scale` and 1 without a norm."""
    factor = scale
    norm = 1.0
    if NORM:
        norm = _load_row(pointer, places, rows, M)
        factor = scale * norm
    return factor, norm


@triton.jit(do_not_specialize=SIZES)
def backward_keys_kernel(
    q, k, v, gate_q, gate_k, grad_out, factors, gate_factors, alongs, gate_alongs, seed,
    grad_q, grad_k, grad_v, grad_gate_q, grad_gate_k,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, go_b, go_n, go_h,
    dq_b, dq_n, dq_h, dk_b, dk_n, dk_h, dv_b, dv_n, dv_h, dgq_b, dgq_n, dgq_h, dgk_b, dgk_n, dgk_h,
    H, M, N, d, e, g, low, high, dropout_p, scale, share, floor, gain, gate_scale, gate_share, gate_floor,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, GATED: tl.constexpr, BAND: tl.constexpr,
    DROPOUT: tl.constexpr, NORM: tl.constexpr, GATE_NORM: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and their values; if one tile holds all pairs, of the queries as well."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    key = load_tile(k, b, h, columns, N, k_b, k_n, k_h, d, D)
    value = load_tile(v, b, h, columns, N, v_b, v_n, v_h, e, E)
    HALF: tl.constexpr = key.dtype == tl.float16
    SCALED: tl.constexpr = HALF or NORM or GATE_NORM
    GATE_SCALED: tl.constexpr = HALF or GATE_NORM or not GATED
    inner, outer = scale if SCALED else 1.0, 1.0 if SCALED else scale
    gate_inner = gate_scale if GATE_SCALED else 1.0
    unit = 1.0 if GATE_SCALED else gate_scale
    gate_key = load_tile(gate_k, b, h, columns, N, gk_b, gk_n, gk_h, g, G) if GATED else key
    drop_seed = tl.load(seed) if DROPOUT else 0
    total_key, total_gate = tl.zeros((BLOCK_N, D), tl.float32), tl.zeros((BLOCK_N, G), tl.float32)
    total_value = tl.zeros((BLOCK_N, E), tl.float32)
    begin, end = _span(tl.program_id(1) * BLOCK_N, BLOCK_N, -high, -low, M, BLOCK_M, BAND > 0, BAND > 1)
    for first in range(begin, end, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        places = bh.to(tl.int64) * M + rows
        query = load_tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
        grad = load_tile(grad_out, b, h, rows, M, go_b, go_n, go_h, e, E)
        factor, norm = _scaled_rows(factors, places, rows, M, inner, NORM)
        gate_query = load_tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G) if GATED else query
        gate_factor, gate_norm = _scaled_rows(gate_factors, places, rows, M, gate_inner, GATE_NORM)
        weights, left, right, grad_left, grad_right = _pair_gradients(
            key, query, value, grad, gate_key, gate_query, factor, gate_factor, unit, rows[None, :], columns[:, None],
            low, high, bh, drop_seed, dropout_p, GATED, BAND, DROPOUT, NORM, GATE_NORM, PRECISION,
        )  # fmt: skip
        if NORM:
            grad_left = (grad_left - left * (_load_row(alongs, places, rows, M) / unit)) * (norm / gain)
        grad_left = grad_left.to(key.dtype)
        total_value += tl.dot(weights.to(grad.dtype), grad, input_precision=PRECISION)
        total_key += tl.dot(grad_left, query, input_precision=PRECISION)
        if GATE_NORM:
            grad_right = (grad_right - right * _load_row(gate_alongs, places, rows, M)) * gate_norm
        if GATED:
            grad_right = grad_right.to(key.dtype)
            total_gate += tl.dot(grad_right, gate_query, input_precision=PRECISION)
        if ONE_TILE:
            grad_query = tl.dot(tl.trans(grad_left), key, input_precision=PRECISION) * (scale * unit)
            store_tile(grad_q, grad_query, b, h, rows, M, dq_b, dq_n, dq_h, d, D)
            if GATED:
                grad_query = tl.dot(tl.trans(grad_right), gate_key, input_precision=PRECISION) * (gate_scale * outer)
                store_tile(grad_gate_q, grad_query, b, h, rows, M, dgq_b, dgq_n, dgq_h, g, G)
    store_tile(grad_k, total_key * (scale * gain * unit), b, h, columns, N, dk_b, dk_n, dk_h, d, D)
    store_tile(grad_v, total_value * (outer * unit), b, h, columns, N, dv_b, dv_n, dv_h, e, E)
    if GATED:
        store_tile(grad_gate_k, total_gate * (gate_scale * outer), b, h, columns, N, dgk_b, dgk_n, dgk_h, g, G)
