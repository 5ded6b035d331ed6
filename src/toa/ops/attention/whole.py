"""Attention of short sequences in one kernel each way, operators and normalisers included, as a function of tensors.

Importing this file imports Triton.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width, G gate width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from toa.ops.attention import whole_kernels
from toa.ops.attention.definitions import L2_FLOOR, Activation, GateNorm, ScoreNorm
from toa.ops.attention.fused import SMALLEST, needs_exact_products, padded, rows_by_one, strides_of
from toa.ops.dropout import draw_seeds
from toa.ops.operators import Dense, Operator

# a tile of scores, and those of queries, keys and values, are held on the chip
MAX_TOKENS = 64
MAX_ELEMENTS = 64 * 64

# enough programs to fill the largest chips, each with some batch entries to sum over
_PROGRAMS = 528

# those that need a row's sum of squares; "mean" is a scale
_ROW_NORMS = ("l2", "rms")

# with eight, Triton 3.6 compiles products that read past shared memory
_WARPS = 4

# columns of an operator that are read at a time
_CHUNK = 32

# entries of an operator, and parts of a sum of operators, that a program takes at a time
_ENTRIES = 64
_PARTS = 32


def fits(q: Tensor, k: Tensor, v: Tensor, gate_q: Tensor | None, *operators: Operator | None) -> bool:
    """Whether all tokens of a head fit a tile, with operators that are offsets from the identity.

    Exact float32 products are no work for tensor cores and are left to smaller tiles on a GPU; so is float32 in what is
    being compiled, which may not ask how exact.
    """
    single_on_gpu = q.device.type == "cuda" and q.dtype == torch.float32
    if single_on_gpu and (torch.compiler.is_compiling() or needs_exact_products(q.dtype)):
        return False
    width = max(x.shape[3] for x in (q, v, gate_q) if x is not None)
    tokens = max(q.shape[1], k.shape[1])
    small = tokens <= MAX_TOKENS and padded(tokens) * padded(width) <= MAX_ELEMENTS
    return small and all(s is None or (isinstance(s, Dense) and s.residual) for s in operators)


def whole_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s1: Operator | None,
    s2: Operator | None,
    *,
    activation: Activation,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    gate_s1: Operator | None,
    scale: float,
    score_norm: ScoreNorm,
    gate_norm: GateNorm,
    dropout_p: float,
) -> Tensor:
    """act(Q Kᵀ S1) S2 V of sequences that `fits` allows, without masks."""
    n = k.shape[1]
    operators = [s if isinstance(s, Dense) else None for s in (s1, s2, gate_s1)]
    drops = [s.drop for s in operators if s is not None and s.drop is not None]
    # of some alone they are dropped before
    together = len(drops) == sum(s is not None for s in operators)
    offsets = [None if s is None else (s.weight if together else s.offset)[:, :n, :n] for s in operators]
    (seed,) = draw_seeds(q, 1) if dropout_p else (None,)
    out, _ = _forward(
        *(q, k, v, gate_q, gate_k, *offsets, seed),
        [drop.seed for drop in drops if together],
        [drop.rate for drop in drops if together],
        activation,
        scale / n if score_norm == "mean" else scale,
        scale,
        score_norm,
        gate_norm,
        dropout_p,
    )
    return out


def _row_settings(n: int, scale: float, gate_scale: float, norm: str, gate_norm: str) -> tuple[float, ...]:
    """Of the scores: scale, and share, floor and gain of gain / sqrt(share ‖row‖² + floor); of the gate, no gain."""

    def row(name: str) -> tuple[float, float]:
        return (1.0 / n, 1.0) if name == "rms" else (1.0, L2_FLOOR)

    return (scale, *row(norm), 1.0 / n if norm == "rms" else 1.0, gate_scale, *row(gate_norm))


@torch.library.custom_op("toa::whole_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    m1: Tensor | None,
    m2: Tensor | None,
    gate_m1: Tensor | None,
    seed: Tensor | None,
    drop_seeds: list[Tensor],
    drop_rates: list[Tensor],
    activation: str,
    scale: float,
    gate_scale: float,
    norm: str,
    gate_norm: str,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """The output, and the operators with entries dropped, (operators, H, N, N), if any are."""
    (b, m, h, d), (n, e) = q.shape, (v.shape[1], v.shape[3])
    out, dropped = _empty_results(q, v, drop_seeds)
    if out.numel() == 0:
        return out, dropped
    inputs = tuple(rows_by_one(x) for x in (q, k, v, gate_q, gate_k))
    matrices = tuple(rows_by_one(x) for x in (m1, m2, gate_m1))
    if drop_seeds:
        _drop_sum([x[None] for x in matrices if x is not None], dropped, drop_seeds, drop_rates)
        matrices = _in_place_of(matrices, dropped)
    g = 0 if gate_q is None else gate_q.shape[3]
    # Triton launches on the current device, wherever the tensors are
    with torch.cuda.device_of(q):
        whole_kernels.whole_forward_kernel[(b * h,)](
            *inputs,
            *matrices,
            *(out, seed),
            *strides_of(3, *inputs, out),
            *strides_of(2, *matrices),
            *(h, m, n, d, e, g, *_row_settings(n, scale, gate_scale, norm, gate_norm), dropout_p),
            **_constants(m, n, d, e, g, activation, norm, gate_norm, matrices, dropout_p, q.dtype),
            num_warps=_WARPS,
        )
    return out, dropped


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _empty_results(q, v, rest[6])


def _empty_results(q: Tensor, v: Tensor, drop_seeds: list[Tensor]) -> tuple[Tensor, Tensor]:
    b, m, h, _ = q.shape
    _, n, _, e = v.shape
    return v.new_empty(b, m, h, e), q.new_empty((len(drop_seeds), h, n, n), dtype=torch.float32)


def _in_place_of(matrices: tuple[Any, ...], dropped: Tensor) -> tuple[Any, ...]:
    """Dropped operators where the plain ones were."""
    found = iter(dropped)
    return tuple(None if x is None else next(found) for x in matrices)


def _drop_sum(parts: list[Tensor], out: Tensor, seeds: list[Tensor], rates: list[Tensor]) -> None:
    """Write up to three operators, each a sum of parts (P, H, N, N), their entries dropped if there are seeds."""
    count, h, n, _ = out.shape
    if not seeds:
        seeds = rates = [None] * count  # type: ignore[list-item]
    entries = min(_ENTRIES, padded(n * n))
    whole_kernels.drop_sum_kernel[(-(-n * n // entries), h, count)](
        *(*_three(parts), out, *_three(seeds), *_three(rates)),
        *strides_of(3, *_three(parts)),
        *(0 if x is None or x.dim() == 0 else x.stride(0) for x in _three(rates)),
        *(h, n, len(parts[0])),
        DROP=seeds[0] is not None,
        PARTS=min(_PARTS, padded(len(parts[0]))) if len(parts[0]) > 1 else 1,
        ENTRIES=entries,
        num_warps=_WARPS,
    )


def _three(found: Sequence[Any]) -> tuple[Any, ...]:
    """Three of up to three: a kernel for so many reads none of the others."""
    return (*found, *(found[0] for _ in range(3 - len(found))))


@torch.library.custom_op("toa::whole_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    dropped: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    m1: Tensor | None,
    m2: Tensor | None,
    gate_m1: Tensor | None,
    seed: Tensor | None,
    drop_seeds: list[Tensor],
    drop_rates: list[Tensor],
    activation: str,
    scale: float,
    gate_scale: float,
    norm: str,
    gate_norm: str,
    dropout_p: float,
) -> list[Tensor]:
    """Gradients of queries, keys and values, side by side if they can be, and of operators, (operators, H, N, N)."""
    (b, m, h, d), (n, e) = q.shape, (v.shape[1], v.shape[3])
    results = _empty_gradients(q, k, v, gate_q, gate_k, m1, m2, gate_m1)
    if grad.numel() == 0:
        return [x.zero_() for x in results]
    given = (q, k, v, gate_q, gate_k)
    grads = _unpacked(results[:-1], given)
    inputs = tuple(rows_by_one(x) for x in (*given, grad))
    matrices = tuple(rows_by_one(x) for x in (m1, m2, gate_m1))
    if drop_seeds:
        matrices = _in_place_of(matrices, dropped)
    # gradients of keys and values as the scores see them; through an operator they are on their way to the final ones
    mixed = {place: x for place, x in zip((1, 2, 4), matrices, strict=True) if x is not None}
    outputs = [
        x if x is None or place not in mixed else x.new_empty(x.shape, dtype=torch.float32)
        for place, x in enumerate(grads)
    ]
    g = 0 if gate_q is None else gate_q.shape[3]
    constants = _constants(m, n, d, e, g, activation, norm, gate_norm, matrices, dropout_p, q.dtype)
    with torch.cuda.device_of(q):
        whole_kernels.whole_backward_kernel[(b * h,)](
            *inputs[:5],
            *matrices,
            *(inputs[5], seed),
            *outputs,
            *strides_of(3, *inputs, *outputs),
            *strides_of(2, *matrices),
            *(h, m, n, d, e, g, *_row_settings(n, scale, gate_scale, norm, gate_norm), dropout_p),
            **constants,
            num_warps=_WARPS,
        )
        if mixed:
            shares = _through_operators(
                [inputs[place] for place in mixed],
                [outputs[place] for place in mixed],
                [grads[place] for place in mixed],
                list(mixed.values()),
                values=list(mixed).index(2) if 2 in mixed else -1,
                precision=constants["PRECISION"],
                block=constants["BLOCK_N"],
            )
            _drop_sum(list(shares.unbind(1)), results[-1], drop_seeds, drop_rates)
    return results


def _through_operators(
    plain: list[Any],
    mixed: list[Any],
    grads: list[Any],
    matrices: list[Any],
    *,
    values: int,
    precision: str,
    block: int,
) -> Tensor:
    """Write the gradients of tokens (B, N, H, D), and return shares (parts, operators, H, N, N) in the operators'.

    K' = S1ᵀ K and V' = S2 V: of K the gradient is S1 dK', of V it is S2ᵀ dV', of S1 K dK'ᵀ and of S2 dV' Vᵀ.
    """
    b, n, h, _ = plain[0].shape
    count = len(plain)
    parts = min(b, max(1, _PROGRAMS // (h * count)))
    shares: Tensor = plain[0].new_empty((parts, count, h, n, n), dtype=torch.float32)
    whole_kernels.operators_backward_kernel[(parts, h, count)](
        *(*_three(plain), *_three(mixed), *_three(matrices), *_three(grads), shares),
        *strides_of(3, *_three(plain), *_three(grads)),
        *strides_of(2, *_three(matrices)),
        *(b, h, n, *(x.shape[3] for x in _three(plain)), parts, values),
        D=max(padded(x.shape[3]) for x in plain),
        PRECISION=precision,
        BLOCK_N=block,
        num_warps=_WARPS,
        num_stages=1,
    )
    return shares


@_backward.register_fake
def _(grad: Tensor, dropped: Tensor, *rest: Any) -> list[Tensor]:
    return _empty_gradients(*rest[:8])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, (seeds, rates) = inputs[:9], inputs[9:11]
    ctx.mark_non_differentiable(output[1])
    # nor zeros in place of its gradient
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], *tensors, *seeds, *rates)
    ctx.settings, ctx.drops = inputs[11:], len(seeds)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    dropped, *tensors = ctx.saved_tensors
    given, drops = tensors[:9], tensors[9:]
    *packed, of_operators = _backward(grad, dropped, *given, drops[: ctx.drops], drops[ctx.drops :], *ctx.settings)
    found = iter(of_operators)
    matrices = (None if x is None else next(found) for x in given[5:8])
    nothing = [None] * ctx.drops
    return (*_unpacked(packed, given[:5]), *matrices, None, nothing, nothing, *(None for _ in ctx.settings))


_forward.register_autograd(_gradients, setup_context=_setup_context)

# queries, those of the gate, keys, those of the gate, values: as layers project tokens to them
_ORDER = (0, 3, 1, 4, 2)


def _empty_gradients(q: Tensor, k: Tensor, *rest: Tensor | None) -> list[Tensor]:
    """Room for the gradients of tokens, one tensor if queries are as many as keys, and for those of operators."""
    b, n, h, _ = k.shape
    tokens = (q, k, *rest[:3])
    operators = [x for x in rest[3:] if x is not None]
    like = operators[0] if operators else q
    room = like.new_empty((len(operators), h, n, n))
    if q.shape[1] == n:
        return [q.new_empty(b, n, sum(h * x.shape[3] for x in tokens if x is not None)), room]
    return [*(q.new_empty(0) if x is None else x.new_empty(x.shape) for x in tokens), room]


def _unpacked(grads: Sequence[Tensor], given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradients of tokens (B, N, H, D), each a part of one tensor (B, N, W) if there is one."""
    if len(grads) > 1:
        return [None if x is None else grad for grad, x in zip(grads, given, strict=True)]
    found: list[Tensor | None] = [None] * len(given)
    start = 0
    for place in _ORDER:
        x = given[place]
        if x is not None:
            _, _, h, d = x.shape
            found[place] = grads[0][..., start : start + h * d].unflatten(-1, (h, d))
            start += h * d
    return found


def _constants(
    m: int,
    n: int,
    d: int,
    e: int,
    g: int,
    activation: str,
    norm: str,
    gate_norm: str,
    matrices: tuple[Tensor | None, ...],
    dropout_p: float,
    dtype: torch.dtype,
) -> dict[str, Any]:
    has_m1, has_m2, has_gate_m1 = (x is not None for x in matrices)
    return {
        "D": padded(d),
        "E": padded(e),
        "G": padded(g) if g else SMALLEST,
        "ACTIVATION": activation,
        "NORM": norm in _ROW_NORMS,
        "GATE_NORM": gate_norm in _ROW_NORMS,
        "HAS_M1": has_m1,
        "HAS_M2": has_m2,
        "HAS_GATE_M1": has_gate_m1,
        "DROPOUT": dropout_p > 0.0,
        "PRECISION": "ieee" if needs_exact_products(dtype) else "tf32",
        "BLOCK_M": padded(m),
        "BLOCK_N": padded(n),
        "CHUNK": min(_CHUNK, padded(n)),
        "num_stages": 1,
    }
