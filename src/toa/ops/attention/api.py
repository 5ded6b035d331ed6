"""The public function: check, choose a backend, call it."""

import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toa._checks import ArgumentError, check_choice, check_fraction, check_padding_mask, check_shape, check_tokens
from toa._registry import Registry
from toa.ops._backend import PLAIN, Problem, is_observed, kernel_objection
from toa.ops.attention.definitions import (
    ACTIVATIONS,
    GATE_NORMS,
    SCORE_NORMS,
    Activation,
    AttentionInputs,
    GateNorm,
    ScoreNorm,
)
from toa.ops.attention.folded import folded_attention, softmax_attention
from toa.ops.attention.reference import reference_attention
from toa.ops.attention.sequences import AttentionCache, attend_lengths
from toa.ops.operators import Dense, Operator
from toa.ops.rotary import Rotary

AUTO = "auto"
MAX_FUSED_WIDTH = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionBackend:
    """One implementation of operator attention.

    Args:
        run: The function.
        objection: Returns the reason why it cannot run a problem, or None if it can.
        automatic: Device types on which "auto" may choose it; None is every type.
    """

    run: Callable[[AttentionInputs], Tensor]
    objection: Callable[[Problem], str | None] = lambda problem: None
    automatic: tuple[str, ...] | None = None


def _triton_objection(problem: Problem) -> str | None:
    if not ACTIVATIONS[problem.activation].fused:
        return f"it has no kernel for {problem.activation!r}"
    if problem.width > MAX_FUSED_WIDTH:
        return f"its kernels take heads of width up to {MAX_FUSED_WIDTH}, not {problem.width}"
    if problem.pair_mask:
        return "its kernels take no pair_mask"
    return kernel_objection(problem.device, problem.dtype)


def _triton_attention(x: AttentionInputs) -> Tensor:
    """Short sequences in one kernel, longer ones in tiles; softmax of longer ones is PyTorch's."""
    # importing the kernels imports Triton
    from toa.ops.attention import short_sequences, tiles

    if short_sequences.fits(x):
        return short_sequences.short_sequence_attention(x)
    return softmax_attention(x) if x.softmax else tiles.tiled_attention(x)


# in the order in which "auto" prefers them
BACKENDS: Registry[AttentionBackend] = Registry("backend")
BACKENDS.register("triton")(AttentionBackend(run=_triton_attention, objection=_triton_objection, automatic=("cuda",)))
BACKENDS.register("folded")(AttentionBackend(run=folded_attention))
BACKENDS.register("reference")(AttentionBackend(run=reference_attention, automatic=()))

# reasons given so far why "auto" chose a slower backend: training would repeat them for every layer of every step
_WARNED: set[str] = set()


def choose_backend(
    backend: str = AUTO,
    *,
    activation: Activation = "softmax",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    width: int = 0,
    pair_mask: bool = False,
) -> str:
    """Name the backend that a call would use.

    "auto" is the backend that the environment variable TOA_BACKEND names, or else the first one that can run. If that
    is not the one meant for the device, a warning gives the reason once. Softmax over more tokens than one tile holds
    is PyTorch's fused attention on mixed keys and values, in "triton" and in "folded". The argument `backend` selects
    the attention only; other functions with kernels, such as mixing by dense operators, follow TOA_BACKEND.

    Args:
        backend: A name of `BACKENDS`, or "auto".
        width: The largest width of queries, values and gate; 0 if unknown.
    """
    where = torch.device(device)
    problem = Problem(activation=activation, device=where, dtype=dtype, width=width, pair_mask=pair_mask)
    if backend == AUTO:
        backend = os.environ.get("TOA_BACKEND") or AUTO
    objection = None
    if backend != AUTO:
        if backend not in BACKENDS:
            check_choice("backend", backend, (AUTO, *BACKENDS))
        objection = BACKENDS[backend].objection(problem)
        if objection is None:
            return backend
    meant = [name for name, entry in BACKENDS.items() if entry.automatic is None or where.type in entry.automatic]
    chosen = next(name for name in meant if BACKENDS[name].objection(problem) is None)
    if objection is not None:
        raise ValueError(
            f"backend {backend!r} cannot run here: {objection}; use backend='auto', which would choose {chosen!r}."
        )
    # pair masks have no faster backend, and a compiler cannot trace a warning
    if not pair_mask and not torch.compiler.is_compiling():
        for name in meant[: meant.index(chosen)]:
            reason = BACKENDS[name].objection(problem)
            if BACKENDS[name].automatic and reason is not None and reason not in _WARNED:
                _WARNED.add(reason)
                text = f"backend {chosen!r} runs instead of {name!r}, which is faster: {reason}."
                warnings.warn(text, RuntimeWarning, stacklevel=3)
    return chosen


# plans of checked calls, by `_call_key`
_PLANS: dict[Any, Any] = {}
_MOST_PLANS = 1024
# types of options that tell calls apart: others may change while they compare as equal
_SIMPLE = frozenset({type(None), bool, int, float, str})


def _call_key(tokens: tuple[Any, ...], operators: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What decides how a call runs, beside the numbers in its tensors; None if every such call is checked.

    Such are calls in autocast, calls that more than autograd observes, and other operators than tensors and `Dense`.
    """
    q = tokens[0]
    # meta tensors have no autocast
    if is_observed() or q.is_meta or torch.is_autocast_enabled(q.device.type):
        return None
    if not _SIMPLE.issuperset(map(type, options)):
        return None
    key: list[Any] = [options, os.environ.get("TOA_BACKEND"), torch.get_float32_matmul_precision()]
    for s in operators:
        # a tensor and a `Dense` of equal shapes differ, in each place
        key.append(type(s) is Dense and (s.residual, s.drop is not None))
        if type(s) is Dense:
            tokens += (s.weight, *(s.drop or ()))
        else:
            tokens += (s,)
    for x in tokens:
        if x is None:
            key.append(None)
        elif type(x) in PLAIN and x.layout is torch.strided:
            key += (x.shape, x.stride(), x.dtype, x.device)
        else:
            return None
    return tuple(key)


def _make_plan(key: Any, x: AttentionInputs) -> bool:
    """Whether calls like this one need no more checks, because there now is a plan of them."""
    from toa.ops.attention import short_sequences, tiles

    plan = None if short_sequences.fits(x) else tiles.TilePlan.of(x)
    if plan is not None:
        if len(_PLANS) == _MOST_PLANS:
            _PLANS.clear()
        _PLANS[key] = plan
    return plan is not None


def operator_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s1: Tensor | Operator | None = None,
    s2: Tensor | Operator | None = None,
    *,
    activation: Activation = "softmax",
    gate_q: Tensor | None = None,
    gate_k: Tensor | None = None,
    gate_s1: Tensor | Operator | None = None,
    scale: float = 1.0,
    score_norm: ScoreNorm = "none",
    gate_norm: GateNorm = "none",
    key_padding_mask: Tensor | None = None,
    pair_mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    query_start: int = 0,
    rotary: Rotary | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    cache: AttentionCache | None = None,
    dropout_p: float = 0.0,
    backend: str = AUTO,
) -> Tensor:
    """Attention with a signed operator on either side of its activation.

    O = act(Q Kᵀ S1) S2 V, with act = softmax, ReLU, or, gated, softplus(Qg Kgᵀ Sg) ⊙ ReLU(Q Kᵀ S1).

    Args:
        q: Queries (B, M, H, D); M may differ from N.
        k: Keys (B, N, H, D), or with fewer heads, each of which is shared by H / heads neighbouring query heads.
        v: Values (B, N, H, E), with as many heads as the keys; the result (B, M, H, E) has their dtype.
        s1: Operator on the key axis of the scores: a tensor (H, N', N') with N' ≥ N, or an operator of
            `toa.ops.operators`, with one matrix per head of the keys or of the queries. A shorter sequence uses its
            leading block. None is the identity.
        s2: Operator between the activation and the values, likewise.
        activation: A name of `ACTIVATIONS`.
        gate_q: Queries of the gate (B, M, H, G); only with a gated activation.
        gate_k: Keys of the gate (B, N, H, G).
        gate_s1: Operator of the gate.
        scale: Multiplies the scores of both branches. The paper's formula has 1; 1/sqrt(D) is customary.
        score_norm: A name of `SCORE_NORMS`. "none" leaves the scores unchanged; "l2" divides each row of scores by its
            L2 norm; "mean" by the number n of keys that the query sees; "rms" by n sqrt(1 + ‖row‖² / n), which equals
            "mean" for small scores and stays bounded for large ones.
        gate_norm: A name of `GATE_NORMS`, for the gate's scores before softplus: "none", "l2", or "rms", which divides
            by sqrt(1 + ‖row‖² / n).
        key_padding_mask: (B, N), True where a key is padding. Padding never changes the other outputs.
        pair_mask: A factor in [0, 1] for each query m and mixed key n, (B or 1, M, N), the same for all heads;
            differentiable. ReLU and gated weights are multiplied by it, so a masked pair passes nothing to S2. Softmax
            follows DUET's authors: scores are multiplied by it, and where it is zero they become -ln(1e10) times
            `scale`, so a masked pair keeps a weight, which is small only if `scale` is near 1. It is applied after the
            normalisers, which ignore it.
        causal: Query m sees keys n ≤ m, counted from the first token. Only the upper triangle of S1 and the lower
            triangle of S2 are used, so no operator moves the future into the past.
        window: Query m sees mixed keys n with |m - n| < window, both sides unless causal. Operators are not cut: a
            mixed key may contain keys outside the window, unless the operator is banded.
        query_start: Position of the first query among the keys, for `causal` and `window`.
        rotary: Positions by which queries and keys, also those of the gate, are turned before S1 mixes the keys, so
            that scores depend on distances; widths must be even. Packed sequences have as many positions as the
            longest one, and a cache takes those of the new tokens.
        cu_seqlens: Sequences of different lengths, packed as q (T, H, D) without a batch axis: their boundaries
            (B + 1,), from 0 to T. Each sequence uses the leading block of the operators. Nested tensors (B, j, H, D)
            of layout torch.jagged work without it. Both are padded here, and the result has the form of q.
        cu_seqlens_k: Boundaries of keys and values, if they differ from those of the queries.
        cache: Keys and values of earlier calls, with `causal=True`: k and v hold new tokens only, are appended, and
            the queries, as many, continue the sequence.
        dropout_p: Dropout rate of the activated scores, before S2.
        backend: "auto", or a name of `BACKENDS`; see `choose_backend`. A named backend runs or raises.

    Raises:
        ValueError: If a shape, name or mask is wrong, or the named backend cannot run here.
    """
    check_choice("activation", activation, ACTIVATIONS)
    check_choice("score_norm", score_norm, SCORE_NORMS)
    check_choice("gate_norm", gate_norm, GATE_NORMS)
    check_fraction("dropout_p", dropout_p)
    if q.is_nested or k.is_nested or cu_seqlens is not None or cu_seqlens_k is not None:
        return attend_lengths(operator_attention, **locals())
    if rotary is not None:
        # once for all backends; a cache keeps turned keys
        q, k, gate_q, gate_k = rotary.turn(q, k, gate_q, gate_k)
    call = ((q, k, v, gate_q, gate_k), (s1, s2, gate_s1))
    options: dict[str, Any] = {"activation": activation, "scale": scale, "score_norm": score_norm}
    options |= {"gate_norm": gate_norm, "causal": causal, "window": window, "dropout_p": dropout_p}
    masked = key_padding_mask is not None or pair_mask is not None or cache is not None
    key = None
    if not masked and not torch.compiler.is_compiling():
        key = _call_key(*call, (backend, query_start, *options.values()))
    if key is not None and key in _PLANS:
        return _PLANS[key].attend(*call)
    _check_tokens(q, k, v, gate_q, gate_k, gate_s1, gate_norm, activation)
    _check_masks(q, k, causal, window, query_start, key_padding_mask, pair_mask, cache)
    length = k.shape[1] + (0 if cache is None else len(cache))
    named = (("s1", s1), ("s2", s2), ("gate_s1", gate_s1))
    operators: dict[str, Any] = {name: _as_operator(name, s, q, k, length) for name, s in named}
    tokens: dict[str, Any] = {"q": q, "k": k, "v": v}
    tokens |= {} if gate_q is None else {"gate_q": gate_q, "gate_k": gate_k}
    if cache is not None:
        query_start = len(cache)
        by_token = {"k": operators["s1"], "v": operators["s2"], "gate_k": operators["gate_s1"]}
        kept = cache.extended({name: tokens[name] for name in by_token if name in tokens}, by_token)
        tokens |= kept[0] | kept[1]
        operators = dict.fromkeys(operators)
    else:
        operators = {name: None if s is None else s.for_length(length) for name, s in operators.items()}
    # meta tensors have no autocast; torch.amp.is_autocast_available, which tells, cannot be traced by a compiler
    in_autocast = q.device.type != "meta" and torch.is_autocast_enabled(q.device.type)
    # like PyTorch's own functions, autocast leaves float64 unchanged
    dtype = torch.get_autocast_dtype(q.device.type) if in_autocast and q.dtype != torch.float64 else q.dtype
    inputs = AttentionInputs(
        **(tokens if dtype == q.dtype else {name: x.to(dtype) for name, x in tokens.items()}),
        **operators,
        **options,
        key_padding_mask=key_padding_mask,
        pair_mask=pair_mask,
        query_start=query_start,
    )
    name = choose_backend(
        backend,
        activation=activation,
        device=q.device,
        dtype=dtype,
        width=max(x.shape[3] for x in tokens.values()),
        pair_mask=pair_mask is not None,
    )
    if key is not None and name == "triton" and _make_plan(key, inputs):
        return _PLANS[key].attend(*call)
    with torch.autocast(q.device.type, enabled=False) if in_autocast else nullcontext():
        out = BACKENDS[name].run(inputs)
    if cache is not None:
        cache.keep(kept)
    return out


def _check_tokens(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    gate_s1: object,
    gate_norm: str,
    activation: str,
) -> None:
    check_shape("q", q, "(B, M, H, D)", (None, None, None, None))
    b, m, h, d = q.shape
    check_shape("k", k, "(B, N, H, D)", (b, None, None, d))
    check_shape("v", v, "(B, N, H, E)", (b, k.shape[1], k.shape[2], None))
    if k.shape[2] == 0 or h % k.shape[2]:
        raise ArgumentError(
            "k",
            f"have a number of heads that divides that of q, H={h}",
            f"{k.shape[2]}: shape {tuple(k.shape)}",
            "each head of keys and values is shared by as many query heads",
        )
    if k.shape[1] == 0:
        raise ArgumentError("k", "hold at least one token", "0", "drop empty sequences before attention")
    if not ACTIVATIONS[activation].gated:
        norm = None if gate_norm == "none" else gate_norm
        gate = {"gate_q": gate_q, "gate_k": gate_k, "gate_s1": gate_s1, "gate_norm": norm}
        given = [name for name, x in gate.items() if x is not None]
        if given:
            raise ValueError(f"{given[0]} goes with activation='gated', got activation={activation!r}; drop it.")
    elif gate_q is None or gate_k is None:
        raise ValueError(f"activation={activation!r} needs gate_q and gate_k, got None; or use activation='relu'.")
    else:
        check_shape("gate_q", gate_q, "(B, M, H, G)", (b, m, h, None))
        check_shape("gate_k", gate_k, "(B, N, H, G)", (b, k.shape[1], k.shape[2], gate_q.shape[3]))
    for name, x in (("k", k), ("v", v), ("gate_q", gate_q), ("gate_k", gate_k)):
        if x is not None:
            _check_device(name, x.device, q.device)
        if x is not None and x.dtype != q.dtype:
            raise ArgumentError(name, f"have the dtype of q, {q.dtype}", x.dtype, "cast it with .to(q.dtype)")
    if not q.is_floating_point():
        raise ArgumentError("q, k and v", "be floating point", q.dtype, "cast them with .float()")


def _check_device(name: str, found: torch.device, wanted: torch.device) -> None:
    if found != wanted:
        raise ArgumentError(name, f"be on the device of q, {wanted}", found, "move it with .to(q.device)")


def _check_masks(
    q: Tensor,
    k: Tensor,
    causal: bool,
    window: int | None,
    query_start: int,
    key_padding_mask: Tensor | None,
    pair_mask: Tensor | None,
    cache: AttentionCache | None,
) -> None:
    if window is not None and window < 1:
        raise ArgumentError("window", "be at least 1, the query's own position", window, "None is no window")
    if query_start < 0:
        raise ArgumentError("query_start", "be at least 0", query_start, "it counts from the first key")
    if query_start and not causal and window is None:
        raise ValueError(f"query_start requires causal=True or a window, got {query_start}; leave it out.")
    if key_padding_mask is not None:
        check_padding_mask(key_padding_mask, (k.shape[0], k.shape[1]))
    if pair_mask is not None:
        batch = None if pair_mask.dim() == 3 and pair_mask.shape[0] == 1 else q.shape[0]
        check_shape("pair_mask", pair_mask, "(B or 1, M, N)", (batch, q.shape[1], k.shape[1]))
        _check_device("pair_mask", pair_mask.device, q.device)
        if not pair_mask.is_floating_point():
            raise ArgumentError(
                "pair_mask", "be floating point, 1 where a pair is kept", pair_mask.dtype, "cast it with .float()"
            )
    if cache is not None:
        _check_cached(q, k, causal, query_start, key_padding_mask, pair_mask)


def _check_cached(
    q: Tensor, k: Tensor, causal: bool, query_start: int, key_padding_mask: Tensor | None, pair_mask: Tensor | None
) -> None:
    if not causal:
        raise ValueError("cache requires causal=True, got False: later tokens would change earlier results.")
    if q.shape[1] != k.shape[1] or query_start:
        raise ValueError(
            f"cache requires the same new tokens as queries and keys, got {q.shape[1]} and {k.shape[1]} with "
            f"query_start={query_start}; pass the new tokens only, and leave query_start out."
        )
    for name, mask in (("key_padding_mask", key_padding_mask), ("pair_mask", pair_mask)):
        if mask is not None:
            raise ArgumentError(name, "be None with a cache", f"shape {tuple(mask.shape)}", "decode without it")


def _as_operator(name: str, s: Tensor | Operator | None, q: Tensor, k: Tensor, length: int) -> Operator | None:
    """Check an operator on `length` tokens, with a matrix per head of the queries or of the keys."""
    if s is None:
        return None
    heads = q.shape[2]
    if not isinstance(s, Tensor | Operator):
        raise ArgumentError(
            name,
            "be a tensor (H, N, N) or an operator of toa.ops",
            type(s).__name__,
            "for an operator layer of toa.nn, pass .operator()",
        )
    if isinstance(s, Tensor):
        if not s.is_floating_point():
            raise ArgumentError(name, "be floating point", s.dtype, "cast it with .float()")
        check_shape(name, s, "(H, N, N)", (heads if len(s.shape) != 3 or len(s) != k.shape[2] else None, None, None))
        if s.shape[1] != s.shape[2]:
            raise ArgumentError(name, "be square in its last two axes (H, N, N)", tuple(s.shape))
        s = Dense(s, residual=False)
    if s.num_heads not in (heads, k.shape[2]):
        shared = "" if k.shape[2] == heads else f", or per head of k, {k.shape[2]}"
        raise ArgumentError(name, f"have one matrix per head, H={heads}{shared}", s.num_heads)
    check_tokens(name, s.num_tokens, length)
    _check_device(name, s.device, k.device)
    return s
