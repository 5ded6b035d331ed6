"""Triton kernels of act(Q Kᵀ) V for ReLU and gated attention: scores live in registers, tile by tile, and nowhere else.

A program owns one head of one batch entry and one block of queries (or, for the gradients of keys and values, one block
of keys) and walks over the other axis. Tokens beyond the end are read as zeros: a zero key has score 0, which ReLU
drops, so that no mask is needed for ragged blocks. Backward forms the scores again.

A tile that is scaled before its first product lies in registers, from where Hopper's products run one after the other.
Scales therefore wait for the sums over scores, which ReLU lets them, or are part of the gate's constants.

Rows of scores may be multiplied by gain / sqrt(share ‖row‖² + floor). ReLU lets the factor of its row through, so that
it is applied to the output; the gate's has to be known before, which takes a walk of its own. Backward of a factor
needs for each row the sum of gradient times score: of the scores that is gradient times output, of the gate's a sum
that the program of queries takes and that of keys, which comes after, reads.

Alphabet: M queries, N keys, D query and key width, E value width, G width of the gate's queries and keys; widths are
padded to a power of two.
"""

# a kernel's arguments are many: pointers, three strides a tensor, sizes, block sizes
# mypy: ignore-errors

import triton
import triton.language as tl

from toa.ops.triton_helpers import dropout_factors, load_tile, softplus, store_tile

# numbers of heads, queries and keys: a kernel is compiled once for all that take the same tile
SIZES = ["H", "M", "N"]


@triton.jit
def _norm(squares, scale, share, floor, gain):
    """What scaled rows of scores are multiplied by, from the sums of squares of those that are not scaled yet."""
    return gain * tl.rsqrt(share * (scale * scale * squares) + floor)


@triton.jit
def _row_factor(
    query, k, b, h, k_b, k_n, k_h, N, d, scale, share, floor, gain,
    D: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`_norm` of a block of queries, by a walk of its own."""
    squares = tl.zeros((query.shape[0],), tl.float32)
    for first in range(0, N, BLOCK_N):
        key = load_tile(k, b, h, first + tl.arange(0, BLOCK_N), N, k_b, k_n, k_h, d, D)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        squares += tl.sum(scores * scores, 1)
    return _norm(squares, scale, share, floor, gain)


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    q, k, v, gate_q, gate_k, out, factors, gate_factors, seed,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, o_b, o_n, o_h,
    H, M, N, d, e, g, dropout_p, scale, share, floor, gain, gate_scale, gate_share, gate_floor,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr, NORM: tl.constexpr, GATE_NORM: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """O of a block of queries, and the factors of its rows."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    places = bh.to(tl.int64) * M + rows
    query = load_tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
    # scales wait for the sums, but what is not scaled yet may be too large for this type
    HALF: tl.constexpr = query.dtype == tl.float16
    GATE_SCALED: tl.constexpr = HALF or GATE_NORM or not GATED
    unit = 1.0 if GATE_SCALED else gate_scale
    factor = tl.zeros((BLOCK_M,), tl.float32) + scale * unit
    squares = tl.zeros((BLOCK_M,), tl.float32)
    if NORM and HALF:
        norm = _row_factor(query, k, b, h, k_b, k_n, k_h, N, d, scale, share, floor, gain, D, PRECISION, BLOCK_N)
        tl.store(factors + places, norm, mask=rows < M)
        factor *= norm
    if GATED:
        gate_query = load_tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G)
        gate_factor = tl.zeros((BLOCK_M,), tl.float32) + gate_scale
        if GATE_NORM:
            norm = _row_factor(
                gate_query, gate_k, b, h, gk_b, gk_n, gk_h, N, g, gate_scale, gate_share, gate_floor, 1.0,
                G, PRECISION, BLOCK_N,
            )  # fmt: skip
            tl.store(gate_factors + places, norm, mask=rows < M)
            gate_factor *= norm
    if DROPOUT:
        key_of_draws = tl.load(seed)
    total = tl.zeros((BLOCK_M, E), tl.float32)
    last = tl.minimum(N, (tl.program_id(1) + 1) * BLOCK_M) if CAUSAL else N
    for first in range(0, last, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        key = load_tile(k, b, h, columns, N, k_b, k_n, k_h, d, D)
        value = load_tile(v, b, h, columns, N, v_b, v_n, v_h, e, E)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if NORM and not HALF:
            squares += tl.sum(scores * scores, 1)
        weights = tl.maximum(scores, 0.0)
        if HALF:
            weights *= factor[:, None]
        if GATED:
            gate_key = load_tile(gate_k, b, h, columns, N, gk_b, gk_n, gk_h, g, G)
            gate_scores = tl.dot(gate_query, tl.trans(gate_key), input_precision=PRECISION)
            if GATE_SCALED:
                gate_scores *= gate_factor[:, None]
            gate, _ = softplus(gate_scores, unit, PRECISION)
            weights *= gate
        if CAUSAL:
            weights = tl.where(rows[:, None] >= columns[None, :], weights, 0.0)
        if DROPOUT:
            weights *= dropout_factors(key_of_draws, bh, rows[:, None], columns[None, :], dropout_p)
        total += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
    if NORM and not HALF:
        norm = _norm(squares, scale, share, floor, gain)
        tl.store(factors + places, norm, mask=rows < M)
        factor *= norm
    if not HALF:
        total *= factor[:, None]
    store_tile(out, total, b, h, rows, M, o_b, o_n, o_h, e, E)


@triton.jit
def _pair_gradients(
    own, other, own_value, other_value, own_gate, other_gate, factor, gate_factor, unit, queries, keys, bh,
    key_of_draws, dropout_p, GATED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of a tile of pairs: weights, scores and gate's scores, and the gradients of these two.

    The gate's scores have another scale to come, the unit, by which weights and the gradient of scores are too small.
    Rows are own tokens: queries on one side, with the gradient of their output as value, and keys with theirs on the
    other, so that the program of keys has the transposed tile, as its own products take it.
    """
    left = tl.dot(own, tl.trans(other), input_precision=PRECISION) * factor
    grad_weights = tl.dot(own_value, tl.trans(other_value), input_precision=PRECISION)
    weights = tl.maximum(left, 0.0)
    if CAUSAL:
        weights = tl.where(queries >= keys, weights, 0.0)
    if DROPOUT:
        keep = dropout_factors(key_of_draws, bh, queries, keys, dropout_p)
        grad_weights *= keep
    if GATED:
        right = tl.dot(own_gate, tl.trans(other_gate), input_precision=PRECISION) * gate_factor
        gate, slope = softplus(right, unit, PRECISION)
        grad_right = weights * grad_weights * slope
        # asked where it is needed: a mask that lives on takes registers
        grad_left = grad_weights * tl.where(weights > 0.0, gate, 0.0)
        weights *= gate
    else:
        grad_left = tl.where((weights if CAUSAL else left) > 0.0, grad_weights, 0.0)
        right, grad_right = left, grad_left
    if DROPOUT:
        weights *= keep
    return weights, left, right, grad_left, grad_right


@triton.jit(do_not_specialize=SIZES)
def backward_queries_kernel(
    q, k, v, gate_q, gate_k, grad_out, out, factors, gate_factors, alongs, gate_alongs, seed, grad_q, grad_gate_q,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, go_b, go_n, go_h, o_b, o_n, o_h,
    dq_b, dq_n, dq_h, dgq_b, dgq_n, dgq_h,
    H, M, N, d, e, g, dropout_p, scale, share, floor, gain, gate_scale, gate_share, gate_floor,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr, NORM: tl.constexpr, GATE_NORM: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries; of normalised rows, what each score takes back from its gradient."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    places = bh.to(tl.int64) * M + rows
    query = load_tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
    grad = load_tile(grad_out, b, h, rows, M, go_b, go_n, go_h, e, E)
    factor = tl.zeros((BLOCK_M,), tl.float32) + scale
    along = tl.zeros((BLOCK_M,), tl.float32)
    if NORM:
        factor *= tl.load(factors + places, mask=rows < M, other=0.0)
        result = load_tile(out, b, h, rows, M, o_b, o_n, o_h, e, E)
        along = tl.sum(grad.to(tl.float32) * result.to(tl.float32), 1) * (share / (gain * gain))
        tl.store(alongs + places, along, mask=rows < M)
    # factors wait for the sums, but what has none yet may be too large for this type
    HALF: tl.constexpr = query.dtype == tl.float16
    GATE_SCALED: tl.constexpr = HALF or GATE_NORM or not GATED
    inner = factor[:, None] if HALF else 1.0
    outer = 1.0 if HALF else factor
    unit = 1.0 if GATE_SCALED else gate_scale
    gate_query = query
    gate_inner = 1.0
    if GATED:
        gate_query = load_tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G)
        gate_factor = tl.zeros((BLOCK_M,), tl.float32) + gate_scale
        if GATE_NORM:
            gate_factor *= tl.load(gate_factors + places, mask=rows < M, other=0.0)
            gate_along = tl.zeros((BLOCK_M,), tl.float32)
            total_scores = tl.zeros((BLOCK_M, G), tl.float32)
        if GATE_SCALED:
            gate_inner = gate_factor[:, None]
        total_gate = tl.zeros((BLOCK_M, G), tl.float32)
    key_of_draws = 0
    if DROPOUT:
        key_of_draws = tl.load(seed)
    total = tl.zeros((BLOCK_M, D), tl.float32)
    last = tl.minimum(N, (tl.program_id(1) + 1) * BLOCK_M) if CAUSAL else N
    for first in range(0, last, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        key = load_tile(k, b, h, columns, N, k_b, k_n, k_h, d, D)
        value = load_tile(v, b, h, columns, N, v_b, v_n, v_h, e, E)
        gate_key = key
        if GATED:
            gate_key = load_tile(gate_k, b, h, columns, N, gk_b, gk_n, gk_h, g, G)
        _, left, right, grad_left, grad_right = _pair_gradients(
            query, key, grad, value, gate_query, gate_key, inner, gate_inner, unit, rows[:, None], columns[None, :],
            bh, key_of_draws, dropout_p, GATED, CAUSAL, DROPOUT, PRECISION,
        )  # fmt: skip
        if NORM:
            grad_left -= left * (along * outer / unit)[:, None]
        total += tl.dot(grad_left.to(key.dtype), key, input_precision=PRECISION)
        if GATED:
            total_gate += tl.dot(grad_right.to(key.dtype), gate_key, input_precision=PRECISION)
        if GATE_NORM:
            # how much of it comes off again is known at the end
            gate_along += tl.sum(grad_right * right, 1)
            total_scores += tl.dot(right.to(key.dtype), gate_key, input_precision=PRECISION)
    store_tile(grad_q, total * (factor * unit)[:, None], b, h, rows, M, dq_b, dq_n, dq_h, d, D)
    if GATED:
        if GATE_NORM:
            gate_along *= gate_share
            tl.store(gate_alongs + places, gate_along * outer, mask=rows < M)
            total_gate -= total_scores * gate_along[:, None]
        store_tile(grad_gate_q, total_gate * (gate_factor * outer)[:, None], b, h, rows, M, dgq_b, dgq_n, dgq_h, g, G)


@triton.jit(do_not_specialize=SIZES)
def backward_keys_kernel(
    q, k, v, gate_q, gate_k, grad_out, factors, gate_factors, alongs, gate_alongs, seed,
    grad_q, grad_k, grad_v, grad_gate_q, grad_gate_k,
    q_b, q_n, q_h, k_b, k_n, k_h, v_b, v_n, v_h, gq_b, gq_n, gq_h, gk_b, gk_n, gk_h, go_b, go_n, go_h,
    dq_b, dq_n, dq_h, dk_b, dk_n, dk_h, dv_b, dv_n, dv_h, dgq_b, dgq_n, dgq_h, dgk_b, dgk_n, dgk_h,
    H, M, N, d, e, g, dropout_p, scale, share, floor, gain, gate_scale, gate_share, gate_floor,
    D: tl.constexpr, E: tl.constexpr, G: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr, NORM: tl.constexpr, GATE_NORM: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and their values; where one tile holds all pairs, of the queries as well."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    key = load_tile(k, b, h, columns, N, k_b, k_n, k_h, d, D)
    value = load_tile(v, b, h, columns, N, v_b, v_n, v_h, e, E)
    # scales wait for the sums, unless norms ask for scores as they are or these may be too large for this type
    HALF: tl.constexpr = key.dtype == tl.float16
    SCALED: tl.constexpr = HALF or NORM or GATE_NORM
    GATE_SCALED: tl.constexpr = HALF or GATE_NORM or not GATED
    inner = scale if SCALED else 1.0
    outer = 1.0 if SCALED else scale
    gate_inner = gate_scale if GATE_SCALED else 1.0
    unit = 1.0 if GATE_SCALED else gate_scale
    gate_key = key
    if GATED:
        gate_key = load_tile(gate_k, b, h, columns, N, gk_b, gk_n, gk_h, g, G)
        total_gate = tl.zeros((BLOCK_N, G), tl.float32)
    key_of_draws = 0
    if DROPOUT:
        key_of_draws = tl.load(seed)
    total_key = tl.zeros((BLOCK_N, D), tl.float32)
    total_value = tl.zeros((BLOCK_N, E), tl.float32)
    # queries before a block of keys do not see it
    begin = (tl.program_id(1) * BLOCK_N) // BLOCK_M * BLOCK_M if CAUSAL else 0
    for first in range(begin, M, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        places = bh.to(tl.int64) * M + rows
        query = load_tile(q, b, h, rows, M, q_b, q_n, q_h, d, D)
        grad = load_tile(grad_out, b, h, rows, M, go_b, go_n, go_h, e, E)
        gate_query = query
        factor = inner
        gate_factor = gate_inner
        if NORM:
            norm = tl.load(factors + places, mask=rows < M, other=0.0)[None, :]
            factor = inner * norm
        if GATED:
            gate_query = load_tile(gate_q, b, h, rows, M, gq_b, gq_n, gq_h, g, G)
            if GATE_NORM:
                gate_norm = tl.load(gate_factors + places, mask=rows < M, other=0.0)[None, :]
                gate_factor = gate_inner * gate_norm
        weights, left, right, grad_left, grad_right = _pair_gradients(
            key, query, value, grad, gate_key, gate_query, factor, gate_factor, unit, rows[None, :], columns[:, None],
            bh, key_of_draws, dropout_p, GATED, CAUSAL, DROPOUT, PRECISION,
        )  # fmt: skip
        if NORM:
            along = tl.load(alongs + places, mask=rows < M, other=0.0)[None, :]
            # a gain may be small: it is left to the end
            grad_left = (grad_left - left * (along / unit)) * (norm / gain)
        grad_left = grad_left.to(key.dtype)
        total_value += tl.dot(weights.to(grad.dtype), grad, input_precision=PRECISION)
        total_key += tl.dot(grad_left, query, input_precision=PRECISION)
        if GATED:
            if GATE_NORM:
                gate_along = tl.load(gate_alongs + places, mask=rows < M, other=0.0)[None, :]
                grad_right = (grad_right - right * gate_along) * gate_norm
            grad_right = grad_right.to(key.dtype)
            total_gate += tl.dot(grad_right, gate_query, input_precision=PRECISION)
        if ONE_TILE:
            total_query = tl.dot(tl.trans(grad_left), key, input_precision=PRECISION)
            store_tile(grad_q, total_query * (scale * unit), b, h, rows, M, dq_b, dq_n, dq_h, d, D)
            if GATED:
                total_gate_query = tl.dot(tl.trans(grad_right), gate_key, input_precision=PRECISION)
                store_tile(
                    grad_gate_q, total_gate_query * (gate_scale * outer), b, h, rows, M, dgq_b, dgq_n, dgq_h, g, G
                )
    store_tile(grad_k, total_key * (scale * gain * unit), b, h, columns, N, dk_b, dk_n, dk_h, d, D)
    store_tile(grad_v, total_value * (outer * unit), b, h, columns, N, dv_b, dv_n, dv_h, e, E)
    if GATED:
        store_tile(grad_gate_k, total_gate * (gate_scale * outer), b, h, columns, N, dgk_b, dgk_n, dgk_h, g, G)
