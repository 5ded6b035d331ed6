"""Triton kernels of attention on short sequences: one program holds all tokens of a head.

Forward mixes keys and values by the operators, normalises rows, activates and sums in one program per head; nothing
between inputs and output is written to memory. Backward repeats all of it and writes the gradients of the mixed keys
and values. A second kernel, which loops over the batch, computes from these the gradients of the unmixed ones and of
the operators.

Registers are scarce: an operator is read a few columns at a time, so no more of it is held than is used.

16-bit inputs are widened as they are read: short sequences cost launches and memory traffic, not products, and numbers
between two products are then not rounded to 16 bits. (Triton 3.6 also compiles chains of 16-bit products of 64 tokens
wrongly.)

Alphabet: M queries, N keys, D query and key width, E value width, G gate width; all padded to powers of two.
"""

# kernels have many arguments: pointers, three strides per tensor, sizes, block sizes
# mypy: ignore-errors

import triton
import triton.language as tl

from toa.ops.triton_helpers import ROW_UNIT, dropout_factors, load_tile, pick, softplus, store_tile


@triton.jit
def _tile(pointer, b, h, rows, limit, stride_b, stride_n, stride_h, width, WIDTH: tl.constexpr):
    """Rows of one head in float32, (rows, WIDTH); zeros outside."""
    return load_tile(pointer, b, h, rows, limit, stride_b, stride_n, stride_h, width, WIDTH).to(tl.float32)


@triton.jit
def _mixed(
    x, matrix, b, h, x_b, x_n, x_h, matrix_h, down, right, N, width,
    HAS_MATRIX: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(I + matrix) x of a head, (BLOCK_N, WIDTH), with an exact identity; x if there is no matrix.

    `down` and `right` are the matrix's strides.
    """
    rows = tl.arange(0, BLOCK_N)
    total = _tile(x, b, h, rows, N, x_b, x_n, x_h, width, WIDTH)
    if HAS_MATRIX:
        own = matrix + h.to(tl.int64) * matrix_h
        for start in range(0, N, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            inside = (rows[:, None] < N) & (columns[None, :] < N)
            places = rows[:, None] * down + columns[None, :] * right
            part = tl.load(own + places, mask=inside, other=0.0).to(tl.float32)
            other = _tile(x, b, h, columns, N, x_b, x_n, x_h, width, WIDTH)
            total += tl.dot(part, other, input_precision=PRECISION)
    return total


@triton.jit
def _scores(query, key, scale, share, floor, gain, NORM: tl.constexpr, PRECISION: tl.constexpr):
    """Scores s, with NORM each row multiplied by gain / sqrt(share ‖s‖² + floor), and that factor."""
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
    factor = tl.zeros((scores.shape[0],), tl.float32) + 1.0
    if NORM:
        small = scores * ROW_UNIT
        factor = (gain * ROW_UNIT) * tl.rsqrt(share * tl.sum(small * small, 1) + floor * (ROW_UNIT * ROW_UNIT))
        scores *= factor[:, None]
    return scores, factor


@triton.jit
def _through_norm(grad, scores, factor, scale, share, gain, NORM: tl.constexpr):
    """Gradient of the products Q Kᵀ, from the gradient of the normalised scores."""
    if NORM:
        along = tl.sum(grad * scores, 1) * (share / (gain * gain))
        grad = (grad - scores * along[:, None]) * factor[:, None]
    return grad * scale


@triton.jit
def _softmax(scores, columns, N):
    scores = tl.where(columns[None, :] < N, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def forward_kernel(
    q, k, v, gate_q, gate_k, m1, m2, gate_m1, out, seed,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, o_b, o_n, o_h,
    m1_h, m1_n, m2_h, m2_n, gm1_h, gm1_n,
    H, M, N, d, e, g, scale, share, floor, gain, gate_scale, gate_share, gate_floor, dropout_p,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr,
    GATE_NORM: tl.constexpr, HAS_M1: tl.constexpr, HAS_M2: tl.constexpr, HAS_GATE_M1: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The output of a head."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    query = _tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
    key = _mixed(k, m1, b, h, k_b, k_n, k_h, m1_h, 1, m1_n, N, d, HAS_M1, D, BLOCK_N, CHUNK, PRECISION)
    value = _mixed(v, m2, b, h, v_b, v_n, v_h, m2_h, m2_n, 1, N, e, HAS_M2, E, BLOCK_N, CHUNK, PRECISION)
    scores, _ = _scores(query, key, scale, share, floor, gain, NORM, PRECISION)
    weights = _softmax(scores, columns, N) if ACTIVATION == "softmax" else tl.maximum(scores, 0.0)
    if ACTIVATION == "gated":
        gate_query = _tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G)
        gate_key = _mixed(
            gate_k, gate_m1, b, h, gk_b, gk_n, gk_h, gm1_h, 1, gm1_n, N, g, HAS_GATE_M1, G, BLOCK_N, CHUNK, PRECISION
        )
        gate_scores, _ = _scores(gate_query, gate_key, gate_scale, gate_share, gate_floor, 1.0, GATE_NORM, PRECISION)
        gate, _ = softplus(gate_scores, 1.0, PRECISION)
        weights *= gate
    if DROPOUT:
        weights *= dropout_factors(tl.load(seed), bh, rows[:, None], columns[None, :], dropout_p)
    total = tl.dot(weights, value, input_precision=PRECISION)
    store_tile(out, total, b, h, rows, M, o_b, o_n, o_h, e, E)


@triton.jit
def backward_kernel(
    q, k, v, gate_q, gate_k, m1, m2, gate_m1, grad_out, seed,
    grad_q, grad_k, grad_v, grad_gate_q, grad_gate_k,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, o_b, o_n, o_h,
    dq_b, dq_n, dq_h, dk_b, dk_n, dk_h, dv_b, dv_n, dv_h, dgq_b, dgq_n, dgq_h, dgk_b, dgk_n, dgk_h,
    m1_h, m1_n, m2_h, m2_n, gm1_h, gm1_n,
    H, M, N, d, e, g, scale, share, floor, gain, gate_scale, gate_share, gate_floor, dropout_p,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr,
    GATE_NORM: tl.constexpr, HAS_M1: tl.constexpr, HAS_M2: tl.constexpr, HAS_GATE_M1: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients of a head's queries, and of its mixed keys and values."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    query = _tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
    key = _mixed(k, m1, b, h, k_b, k_n, k_h, m1_h, 1, m1_n, N, d, HAS_M1, D, BLOCK_N, CHUNK, PRECISION)
    value = _mixed(v, m2, b, h, v_b, v_n, v_h, m2_h, m2_n, 1, N, e, HAS_M2, E, BLOCK_N, CHUNK, PRECISION)
    grad = _tile(grad_out, b, h, rows, M, o_b, o_n, o_h, e, E)
    scores, factor = _scores(query, key, scale, share, floor, gain, NORM, PRECISION)
    weights = _softmax(scores, columns, N) if ACTIVATION == "softmax" else tl.maximum(scores, 0.0)
    grad_weights = tl.dot(grad, tl.trans(value), input_precision=PRECISION)
    keep = 1.0
    if DROPOUT:
        keep = dropout_factors(tl.load(seed), bh, rows[:, None], columns[None, :], dropout_p)
        grad_weights *= keep
    if ACTIVATION == "softmax":
        grad_scores = weights * (grad_weights - tl.sum(grad_weights * weights, 1)[:, None])
    else:
        grad_scores = tl.where(scores > 0.0, grad_weights, 0.0)
    if ACTIVATION == "gated":
        gate_query = _tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G)
        gate_key = _mixed(
            gate_k, gate_m1, b, h, gk_b, gk_n, gk_h, gm1_h, 1, gm1_n, N, g, HAS_GATE_M1, G, BLOCK_N, CHUNK, PRECISION
        )
        gate_scores, gate_factor = _scores(
            gate_query, gate_key, gate_scale, gate_share, gate_floor, 1.0, GATE_NORM, PRECISION
        )
        gate, slope = softplus(gate_scores, 1.0, PRECISION)
        grad_gate = grad_weights * weights * slope
        grad_gate = _through_norm(grad_gate, gate_scores, gate_factor, gate_scale, gate_share, 1.0, GATE_NORM)
        total_gate_query = tl.dot(grad_gate, gate_key, input_precision=PRECISION)
        store_tile(grad_gate_q, total_gate_query, b, h, rows, M, dgq_b, dgq_n, dgq_h, g, G)
        total_gate_key = tl.dot(tl.trans(grad_gate), gate_query, input_precision=PRECISION)
        store_tile(grad_gate_k, total_gate_key, b, h, columns, N, dgk_b, dgk_n, dgk_h, g, G)
        grad_scores *= gate
        weights *= gate
    weights *= keep
    total_value = tl.dot(tl.trans(weights), grad, input_precision=PRECISION)
    store_tile(grad_v, total_value, b, h, columns, N, dv_b, dv_n, dv_h, e, E)
    grad_scores = _through_norm(grad_scores, scores, factor, scale, share, gain, NORM)
    total_query = tl.dot(grad_scores, key, input_precision=PRECISION)
    store_tile(grad_q, total_query, b, h, rows, M, dq_b, dq_n, dq_h, d, D)
    total_key = tl.dot(tl.trans(grad_scores), query, input_precision=PRECISION)
    store_tile(grad_k, total_key, b, h, columns, N, dk_b, dk_n, dk_h, d, D)


@triton.jit
def operators_backward_kernel(
    plain_0, plain_1, plain_2, mixed_0, mixed_1, mixed_2, matrix_0, matrix_1, matrix_2, grad_0, grad_1, grad_2, out,
    p0_b, p0_n, p0_h, p1_b, p1_n, p1_h, p2_b, p2_n, p2_h, g0_b, g0_n, g0_h, g1_b, g1_n, g1_h, g2_b, g2_n, g2_h,
    m0_h, m0_n, m1_h, m1_n, m2_h, m2_n, B, H, N, d0, d1, d2, parts, values,
    D: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of tokens and of the operator that mixed them, over every `parts`-th batch entry of one head.

    `plain` are the tokens and `mixed` the gradients of the mixed tokens, of up to three operators; `values` is the
    index of the one that mixes values. Written are the gradients of the tokens, mixed + matrix mixed, and into (parts,
    operators, H, N, N) the sums of plain mixedᵀ; for values, both are transposed.
    """
    part, h, place = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = tl.arange(0, BLOCK_N)
    inside = (columns[:, None] < N) & (columns[None, :] < N)
    plain, mixed = pick(place, plain_0, plain_1, plain_2), pick(place, mixed_0, mixed_1, mixed_2)
    matrix, grad = pick(place, matrix_0, matrix_1, matrix_2), pick(place, grad_0, grad_1, grad_2)
    p_b, p_n, p_h = pick(place, p0_b, p1_b, p2_b), pick(place, p0_n, p1_n, p2_n), pick(place, p0_h, p1_h, p2_h)
    g_b, g_n, g_h = pick(place, g0_b, g1_b, g2_b), pick(place, g0_n, g1_n, g2_n), pick(place, g0_h, g1_h, g2_h)
    m_h, m_n, d = pick(place, m0_h, m1_h, m2_h), pick(place, m0_n, m1_n, m2_n), pick(place, d0, d1, d2)
    down, right = tl.where(place == values, 1, m_n), tl.where(place == values, m_n, 1)
    places = columns[:, None] * down + columns[None, :] * right
    offset = tl.load(matrix + h.to(tl.int64) * m_h + places, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_N, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(B - part, parts)):
        b = part + step * parts
        x = _tile(plain, b, h, columns, N, p_b, p_n, p_h, d, D)
        y = _tile(mixed, b, h, columns, N, N * H * d, H * d, d, d, D)
        total += tl.dot(x, tl.trans(y), input_precision=PRECISION)
        store_tile(grad, y + tl.dot(offset, y, input_precision=PRECISION), b, h, columns, N, g_b, g_n, g_h, d, D)
    start = out + ((part * tl.num_programs(2) + place) * H + h).to(tl.int64) * N * N
    down, right = tl.where(place == values, 1, N), tl.where(place == values, N, 1)
    tl.store(start + columns[:, None] * down + columns[None, :] * right, total, mask=inside)


@triton.jit
def drop_sum_kernel(
    x_0, x_1, x_2, out, seed_0, seed_1, seed_2, rate_0, rate_1, rate_2,
    x0_p, x0_h, x0_n, x1_p, x1_h, x1_n, x2_p, x2_h, x2_n, r0_h, r1_h, r2_h, H, N, parts,
    DROP: tl.constexpr, PARTS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Up to three operators (H, N, N), each the sum of its parts, with DROP some entries set to zero."""
    h, place = tl.program_id(1), tl.program_id(2)
    entries = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    rows, columns = entries // N, entries % N
    x = pick(place, x_0, x_1, x_2) + h.to(tl.int64) * pick(place, x0_h, x1_h, x2_h)
    x_p, x_n = pick(place, x0_p, x1_p, x2_p), pick(place, x0_n, x1_n, x2_n)
    total = tl.zeros((ENTRIES,), tl.float32)
    for first in range(0, parts, PARTS):
        some = (first + tl.arange(0, PARTS)).to(tl.int64)
        inside = (some[:, None] < parts) & (rows[None, :] < N)
        found = tl.load(x + some[:, None] * x_p + (rows * x_n + columns)[None, :], mask=inside, other=0.0)
        total += tl.sum(found.to(tl.float32), 0)
    if DROP:
        rate = tl.load(pick(place, rate_0, rate_1, rate_2) + h * pick(place, r0_h, r1_h, r2_h))
        total *= dropout_factors(tl.load(pick(place, seed_0, seed_1, seed_2)), h, rows, columns, rate)
    place_out = out + (place * H + h).to(tl.int64) * N * N + entries
    tl.store(place_out, total.to(out.dtype.element_ty), mask=rows < N)
