"""Attention of short sequences in one kernel each way, operators and normalisers included, as a function of tensors.

Importing this file imports Triton.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width, G gate width.
"""

from typing import Any

import torch
from torch import Tensor

from toa.ops.attention import whole_kernels
from toa.ops.attention.definitions import L2_FLOOR, Activation, GateNorm, ScoreNorm
from toa.ops.attention.fused import SMALLEST, needs_exact_products, padded, rows_by_one, strides_of
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


def fits(q: Tensor, k: Tensor, v: Tensor, gate_q: Tensor | None, *operators: Operator | None) -> bool:
    """Whether all tokens of a head fit a tile, with operators that are offsets from the identity.

    Exact float32 products are no work for tensor cores: matrix products of their own are quicker then.
    """
    if needs_exact_products(q.dtype) and q.device.type == "cuda":
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
    offsets = [s.offset[:, :n, :n] if isinstance(s, Dense) else None for s in (s1, s2, gate_s1)]
    seed = torch.randint(2**31, (1,), device=q.device, dtype=torch.int32) if dropout_p else None
    return _forward(
        *(q, k, v, gate_q, gate_k, *offsets, seed),
        activation,
        scale / n if score_norm == "mean" else scale,
        scale,
        score_norm,
        gate_norm,
        dropout_p,
        needs_exact_products(q.dtype),
    )


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
    activation: str,
    scale: float,
    gate_scale: float,
    norm: str,
    gate_norm: str,
    dropout_p: float,
    exact: bool,
) -> Tensor:
    (b, m, h, d), (n, e) = q.shape, (v.shape[1], v.shape[3])
    out = v.new_empty(b, m, h, e)
    if out.numel() == 0:
        return out
    inputs = tuple(rows_by_one(x) for x in (q, k, v, gate_q, gate_k))
    matrices = tuple(rows_by_one(x) for x in (m1, m2, gate_m1))
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
            **_constants(m, n, d, e, g, activation, norm, gate_norm, matrices, dropout_p, exact),
            num_warps=_WARPS,
        )
    return out


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return v.new_empty(*q.shape[:3], v.shape[3])


@torch.library.custom_op("toa::whole_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    m1: Tensor | None,
    m2: Tensor | None,
    gate_m1: Tensor | None,
    seed: Tensor | None,
    activation: str,
    scale: float,
    gate_scale: float,
    norm: str,
    gate_norm: str,
    dropout_p: float,
    exact: bool,
) -> list[Tensor]:
    (b, m, h, d), (n, e) = q.shape, (v.shape[1], v.shape[3])
    grads = _empty_gradients(q, k, v, gate_q, gate_k, m1, m2, gate_m1)
    if grad.numel() == 0:
        return [x.zero_() for x in grads]
    inputs = tuple(rows_by_one(x) for x in (q, k, v, gate_q, gate_k, grad))
    matrices = tuple(rows_by_one(x) for x in (m1, m2, gate_m1))
    # gradients of keys and values as the scores see them; through an operator they are on their way to the final ones
    mixed = dict(zip((1, 2, 4), matrices, strict=True))
    outputs = [
        None if x.numel() == 0 else torch.empty_like(x, dtype=torch.float32) if mixed.get(place) is not None else x
        for place, x in enumerate(grads[:5])
    ]
    g = 0 if gate_q is None else gate_q.shape[3]
    constants = _constants(m, n, d, e, g, activation, norm, gate_norm, matrices, dropout_p, exact)
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
        for (place, matrix), grad_matrix in zip(mixed.items(), grads[5:], strict=True):
            if matrix is not None:
                _through_operator(
                    *(inputs[place], outputs[place], matrix, grads[place], grad_matrix),
                    values=place == 2,
                    precision=constants["PRECISION"],
                    block=constants["BLOCK_N"],
                )
    return grads


def _through_operator(
    plain: Any, mixed: Any, matrix: Any, grad: Tensor, grad_matrix: Tensor, *, values: bool, precision: str, block: int
) -> None:
    """Write the gradients of tokens (B, N, H, D) and of the operator (H, N, N) that mixed them.

    K' = S1ᵀ K and V' = S2 V: of K the gradient is S1 dK', of V it is S2ᵀ dV', of S1 K dK'ᵀ and of S2 dV' Vᵀ.
    """
    b, n, h, d = plain.shape
    parts = min(b, max(1, _PROGRAMS // h))
    shares = plain.new_empty((parts, h, n, n), dtype=torch.float32)
    down, right = matrix.stride(1), 1
    whole_kernels.operator_backward_kernel[(parts * h,)](
        *(plain, mixed, matrix, grad, shares),
        *strides_of(3, plain, mixed, grad),
        *(matrix.stride(0), *((right, down) if values else (down, right))),
        *(b, h, n, d, parts),
        D=padded(d),
        VALUES=values,
        PRECISION=precision,
        BLOCK_N=block,
        num_warps=_WARPS,
        num_stages=1,
    )
    grad_matrix.copy_(shares.sum(0))


@_backward.register_fake
def _(grad: Tensor, *rest: Any) -> list[Tensor]:
    return _empty_gradients(*rest[:8])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:9])
    ctx.settings = inputs[9:]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    grads = _backward(grad, *tensors, *ctx.settings)
    kept = [x if given is not None else None for x, given in zip(grads, tensors[:8], strict=True)]
    return (*kept, None, *(None for _ in ctx.settings))


_forward.register_autograd(_gradients, setup_context=_setup_context)


def _empty_gradients(*tensors: Tensor | None) -> list[Tensor]:
    """Room for every gradient; an operator cannot leave one out, so that of nothing is empty."""
    like = next(x for x in tensors if x is not None)
    return [like.new_empty(0) if x is None else x.new_empty(x.shape) for x in tensors]


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
    exact: bool,
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
        "PRECISION": "ieee" if exact else "tf32",
        "BLOCK_M": padded(m),
        "BLOCK_N": padded(n),
        "CHUNK": min(_CHUNK, padded(n)),
        "num_stages": 1,
    }
