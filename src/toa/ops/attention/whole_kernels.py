"""Triton kernels of a whole attention for short sequences: one tile holds all tokens of a head.

Forward mixes keys and values by the operators, normalises rows, activates and sums in one program a head; nothing
between inputs and output touches memory. Backward does all of it again and writes the gradients of the mixed keys and
values as well, of which a second kernel, walking over the batch, makes those of the operators.

Inputs of 16 bits are widened as they are read: launches and traffic are what short sequences cost, not products, and
what lies between two products is then not rounded to 16 bits. (Triton 3.6 also compiles chains of 16-bit products of
64 tokens wrongly.)

Alphabet: M queries, N keys, D query and key width, E value width, G gate width; all padded to powers of two.
"""

# a kernel's arguments are many: pointers, three strides a tensor, sizes, block sizes
# mypy: ignore-errors

import triton
import triton.language as tl

from toa.ops.attention import kernels
from toa.ops.attention.kernels import _keep, _put, _softplus


@triton.jit
def _tile(pointer, b, h, rows, limit, stride_b, stride_n, stride_h, width, WIDTH: tl.constexpr):
    """Rows of one head in float32, (rows, WIDTH); zeros outside."""
    return kernels._tile(pointer, b, h, rows, limit, stride_b, stride_n, stride_h, width, WIDTH).to(tl.float32)


@triton.jit
def _matrix(pointer, h, stride_h, stride_n, N, BLOCK_N: tl.constexpr):
    """The leading N x N block of a head's matrix; zeros outside."""
    rows = tl.arange(0, BLOCK_N)
    inside = (rows[:, None] < N) & (rows[None, :] < N)
    places = h * stride_h + rows[:, None] * stride_n + rows[None, :]
    return tl.load(pointer + places, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _mixed(x, matrix, PRECISION: tl.constexpr):
    """(I + matrix) x; the identity stays exact."""
    return x + tl.dot(matrix, x, input_precision=PRECISION)


@triton.jit
def _scores(query, key, scale, share, floor, gain, NORM: tl.constexpr, PRECISION: tl.constexpr):
    """Scores s, rows multiplied by gain / sqrt(share ‖s‖² + floor) if so wanted, and that factor."""
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
    factor = tl.zeros((scores.shape[0],), tl.float32) + 1.0
    if NORM:
        factor = gain * tl.rsqrt(share * tl.sum(scores * scores, 1) + floor)
        scores *= factor[:, None]
    return scores, factor


@triton.jit
def _through_norm(grad, scores, factor, scale, share, gain, NORM: tl.constexpr):
    """Gradient of the products from that of the scores made of them."""
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
def whole_forward_kernel(
    q, k, v, gate_q, gate_k, m1, m2, gate_m1, out, seed,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, o_b, o_n, o_h,
    m1_h, m1_n, m2_h, m2_n, gm1_h, gm1_n,
    H, M, N, d, e, g, scale, share, floor, gain, gate_scale, gate_share, gate_floor, dropout_p,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr,
    GATE_NORM: tl.constexpr, HAS_M1: tl.constexpr, HAS_M2: tl.constexpr, HAS_GATE_M1: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """All of a head's output."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    query = _tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
    key = _tile(k, b, h, columns, N, k_b, k_n, k_h, d, D)
    value = _tile(v, b, h, columns, N, v_b, v_n, v_h, e, E)
    if HAS_M1:
        key = _mixed(key, tl.trans(_matrix(m1, h, m1_h, m1_n, N, BLOCK_N)), PRECISION)
    if HAS_M2:
        value = _mixed(value, _matrix(m2, h, m2_h, m2_n, N, BLOCK_N), PRECISION)
    scores, _ = _scores(query, key, scale, share, floor, gain, NORM, PRECISION)
    weights = _softmax(scores, columns, N) if ACTIVATION == "softmax" else tl.maximum(scores, 0.0)
    if ACTIVATION == "gated":
        gate_query = _tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G)
        gate_key = _tile(gate_k, b, h, columns, N, gk_b, gk_n, gk_h, g, G)
        if HAS_GATE_M1:
            gate_key = _mixed(gate_key, tl.trans(_matrix(gate_m1, h, gm1_h, gm1_n, N, BLOCK_N)), PRECISION)
        gate_scores, _ = _scores(gate_query, gate_key, gate_scale, gate_share, gate_floor, 1.0, GATE_NORM, PRECISION)
        gate, _ = _softplus(gate_scores, PRECISION)
        weights *= gate
    if DROPOUT:
        weights *= _keep(tl.load(seed), bh, rows[:, None], columns[None, :], N, dropout_p)
    total = tl.dot(weights, value, input_precision=PRECISION)
    _put(out, total, b, h, rows, M, o_b, o_n, o_h, e, E)


@triton.jit
def whole_backward_kernel(
    q, k, v, gate_q, gate_k, m1, m2, gate_m1, grad_out, seed,
    grad_q, grad_k, grad_v, grad_gate_q, grad_gate_k, mixed_k, mixed_v, mixed_gate_k,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, o_b, o_n, o_h,
    dq_b, dq_n, dq_h, dk_b, dk_n, dk_h, dv_b, dv_n, dv_h, dgq_b, dgq_n, dgq_h, dgk_b, dgk_n, dgk_h,
    m1_h, m1_n, m2_h, m2_n, gm1_h, gm1_n,
    H, M, N, d, e, g, scale, share, floor, gain, gate_scale, gate_share, gate_floor, dropout_p,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr,
    GATE_NORM: tl.constexpr, HAS_M1: tl.constexpr, HAS_M2: tl.constexpr, HAS_GATE_M1: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """All gradients of a head but the operators'; those of mixed keys and values lie as the plain ones do."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    query = _tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
    key = _tile(k, b, h, columns, N, k_b, k_n, k_h, d, D)
    value = _tile(v, b, h, columns, N, v_b, v_n, v_h, e, E)
    grad = _tile(grad_out, b, h, rows, M, o_b, o_n, o_h, e, E)
    if HAS_M1:
        key = _mixed(key, tl.trans(_matrix(m1, h, m1_h, m1_n, N, BLOCK_N)), PRECISION)
    if HAS_M2:
        value = _mixed(value, _matrix(m2, h, m2_h, m2_n, N, BLOCK_N), PRECISION)
    scores, factor = _scores(query, key, scale, share, floor, gain, NORM, PRECISION)
    weights = _softmax(scores, columns, N) if ACTIVATION == "softmax" else tl.maximum(scores, 0.0)
    grad_weights = tl.dot(grad, tl.trans(value), input_precision=PRECISION)
    keep = 1.0
    if DROPOUT:
        keep = _keep(tl.load(seed), bh, rows[:, None], columns[None, :], N, dropout_p)
        grad_weights *= keep
    if ACTIVATION == "softmax":
        grad_scores = weights * (grad_weights - tl.sum(grad_weights * weights, 1)[:, None])
    else:
        grad_scores = tl.where(scores > 0.0, grad_weights, 0.0)
    if ACTIVATION == "gated":
        gate_query = _tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G)
        gate_key = _tile(gate_k, b, h, columns, N, gk_b, gk_n, gk_h, g, G)
        if HAS_GATE_M1:
            gate_key = _mixed(gate_key, tl.trans(_matrix(gate_m1, h, gm1_h, gm1_n, N, BLOCK_N)), PRECISION)
        gate_scores, gate_factor = _scores(
            gate_query, gate_key, gate_scale, gate_share, gate_floor, 1.0, GATE_NORM, PRECISION
        )
        gate, slope = _softplus(gate_scores, PRECISION)
        grad_gate = grad_weights * weights * slope
        grad_gate = _through_norm(grad_gate, gate_scores, gate_factor, gate_scale, gate_share, 1.0, GATE_NORM)
        total_gate_query = tl.dot(grad_gate, gate_key, input_precision=PRECISION)
        _put(grad_gate_q, total_gate_query, b, h, rows, M, dgq_b, dgq_n, dgq_h, g, G)
        total_gate_key = tl.dot(tl.trans(grad_gate), gate_query, input_precision=PRECISION)
        if HAS_GATE_M1:
            _put(mixed_gate_k, total_gate_key, b, h, columns, N, dgk_b, dgk_n, dgk_h, g, G)
            total_gate_key = _mixed(total_gate_key, _matrix(gate_m1, h, gm1_h, gm1_n, N, BLOCK_N), PRECISION)
        _put(grad_gate_k, total_gate_key, b, h, columns, N, dgk_b, dgk_n, dgk_h, g, G)
        grad_scores *= gate
        weights *= gate
    weights *= keep
    total_value = tl.dot(tl.trans(weights), grad, input_precision=PRECISION)
    if HAS_M2:
        _put(mixed_v, total_value, b, h, columns, N, dv_b, dv_n, dv_h, e, E)
        total_value = _mixed(total_value, tl.trans(_matrix(m2, h, m2_h, m2_n, N, BLOCK_N)), PRECISION)
    _put(grad_v, total_value, b, h, columns, N, dv_b, dv_n, dv_h, e, E)
    grad_scores = _through_norm(grad_scores, scores, factor, scale, share, gain, NORM)
    total_query = tl.dot(grad_scores, key, input_precision=PRECISION)
    _put(grad_q, total_query, b, h, rows, M, dq_b, dq_n, dq_h, d, D)
    total_key = tl.dot(tl.trans(grad_scores), query, input_precision=PRECISION)
    if HAS_M1:
        _put(mixed_k, total_key, b, h, columns, N, dk_b, dk_n, dk_h, d, D)
        total_key = _mixed(total_key, _matrix(m1, h, m1_h, m1_n, N, BLOCK_N), PRECISION)
    _put(grad_k, total_key, b, h, columns, N, dk_b, dk_n, dk_h, d, D)


@triton.jit
def outer_sum_kernel(
    left, right, out,
    l_b, l_n, l_h, r_b, r_n, r_h,
    B, H, N, d, parts,
    D: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sum of left rightᵀ over every parts-th batch entry of one head, into (parts, H, N, N)."""
    part, h = tl.program_id(0) // H, tl.program_id(0) % H
    columns = tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_N, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(B - part, parts)):
        b = part + step * parts
        one = _tile(left, b, h, columns, N, l_b, l_n, l_h, d, D)
        other = _tile(right, b, h, columns, N, r_b, r_n, r_h, d, D)
        total += tl.dot(one, tl.trans(other), input_precision=PRECISION)
    inside = (columns[:, None] < N) & (columns[None, :] < N)
    start = out + tl.program_id(0).to(tl.int64) * N * N
    tl.store(start + columns[:, None] * N + columns[None, :], total, mask=inside)
