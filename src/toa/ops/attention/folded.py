"""Operator attention by the identity Q Kᵀ S1 = Q (S1ᵀ K)ᵀ and act(·) S2 V = act(·) (S2 V).

S1 mixes the keys and S2 the values, once, before an ordinary attention: no N x N x N product is left, and the
N x N scores are formed a block of queries at a time, and kept for backward only where they are few. The derivation is
in this folder's README.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width.
"""

from collections.abc import Iterator
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from toa.ops.attention.definitions import (
    SOFTPLUS_LINEAR,
    Activation,
    GateNorm,
    RowNorms,
    ScoreNorm,
    l2_factor,
    masked_scores,
    rms_factor,
    visible_keys,
)
from toa.ops.attention.score_block import ScoreBlock, form_scores, times
from toa.ops.dropout import draw_bits, dropout, keep_factors
from toa.ops.operators import Dense, Operator

# in which the identity of an operator and the norm of a row lose nothing
_EXACT = (torch.float32, torch.float64)

# scores held at a time, in elements: about a core's cache on a CPU, enough to fill the chip on an accelerator
_BLOCK_ELEMENTS = {"cpu": 1 << 19}
_BLOCK_ELEMENTS_DEFAULT = 1 << 27

# up to so many keys, scores are kept for backward: a token's share of memory does not grow with more
_KEPT_KEYS = 64


@runtime_checkable
class KernelAttention(Protocol):
    """act(Q Kᵀ) V, ReLU or, where a gate is given, gated."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate_q: Tensor | None,
        gate_k: Tensor | None,
        *,
        scales: tuple[float, float],
        rows: RowNorms,
        causal: bool,
        dropout_p: float,
    ) -> Tensor:
        """Attend; every tensor is (B, M or N, H, width).

        Scores and the gate's are multiplied by their scale, then rows are normalised, which none are where causal.
        """
        ...


def folded_operator_attention(
    q: Float[Tensor, "b m h d"],
    k: Float[Tensor, "b n h d"],
    v: Float[Tensor, "b n h e"],
    s1: Operator | None = None,
    s2: Operator | None = None,
    *,
    activation: Activation = "softmax",
    gate_q: Float[Tensor, "b m h g"] | None = None,
    gate_k: Float[Tensor, "b n h g"] | None = None,
    gate_s1: Operator | None = None,
    scale: float = 1.0,
    score_norm: ScoreNorm = "none",
    gate_norm: GateNorm = "none",
    key_padding_mask: Bool[Tensor, "b n"] | None = None,
    pair_mask: Float[Tensor, "_b m n"] | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
    kernel: KernelAttention | None = None,
) -> Float[Tensor, "b m h e"]:
    """O = act(Q (S1ᵀ K)ᵀ) (S2 V), in the dtype of `v`; `kernel` is what computes act(·) · where it is no softmax."""
    padding = None if key_padding_mask is None else key_padding_mask[:, :, None, None]
    # where the scores are formed anyway, their rows' norms are read off them
    plain = padding is None and pair_mask is None and not causal and activation != "softmax"
    formed = plain and (kernel is not None or q.dtype in _EXACT)
    rows = RowNorms.of(score_norm, gate_norm, k.shape[1]) if formed else RowNorms()
    blocked = kernel is None and pair_mask is None and activation != "softmax" and q.dtype in _EXACT
    # in training, where the time goes; a compiler does better without
    blocked = blocked and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    # and a kernel scales them, which spares a copy of the queries
    inside = kernel is not None and formed

    def at_once(s: Operator | None) -> TypeGuard[Dense]:
        return blocked and isinstance(s, Dense) and s.weight.dtype == q.dtype

    def clear(x: Tensor) -> Tensor:
        return x if padding is None else x.masked_fill(padding, 0.0)

    def prepare(left: Tensor, right: Tensor, s: Operator | None, norm: str) -> tuple[Tensor, Tensor]:
        right = clear(right)
        # mixing fills padded rows again; cleared, they add nothing to a row's norm and ReLU drops them
        if at_once(s):
            right = clear(_mix_features_first(s, right, transpose=True, causal=causal, scale=scale))
        elif s is not None:
            right = clear(s.mix(right, transpose=True, causal=causal))
        if not inside and not at_once(s):
            left = left * scale
        if norm in ("l2", "rms") and not formed:
            squared = _squared_row_norms(left, right, causal, key_padding_mask is not None)
            factor = l2_factor(squared) if norm == "l2" else rms_factor(squared, count)
            left = (left * factor).to(left.dtype)
        return left, right

    count: Tensor | int = k.shape[1]
    if causal or padding is not None:
        seen = visible_keys(q, k, key_padding_mask, causal).sum(-1)  # (B or 1, 1, M)
        count = seen.clamp(min=1).mT.unsqueeze(-1).to(q.dtype)  # (B or 1, M, 1, 1)
    query, key = prepare(q, k, s1, score_norm)
    if (score_norm == "mean" and not inside) or (score_norm == "rms" and not formed):
        query = query / count
    value = clear(v)
    if at_once(s2):
        value = _mix_features_first(s2, value, transpose=False, causal=causal)
    elif s2 is not None:
        value = s2.mix(value, causal=causal)

    if activation == "softmax" and pair_mask is None:
        return _softmax_attention(query, key, value, key_padding_mask, causal=causal, dropout_p=dropout_p)

    gate_query = gate_key = None
    if activation == "gated":
        assert gate_q is not None
        assert gate_k is not None
        gate_query, gate_key = prepare(gate_q, gate_k, gate_s1, gate_norm)
    if pair_mask is not None:
        out = _pair_masked_attention(
            _heads_first(query),
            _heads_first(key),
            _heads_first(value),
            None if gate_query is None else _heads_first(gate_query),
            None if gate_key is None else _heads_first(gate_key),
            visible_keys(q, k, key_padding_mask, causal),
            pair_mask,
            softmax=activation == "softmax",
            scale=scale,
            dropout_p=dropout_p,
        )
        return out.transpose(1, 2)
    if kernel is not None:
        scales = (scale / k.shape[1] if score_norm == "mean" else scale, scale) if inside else (1.0, 1.0)
        return kernel(
            query, key, value, gate_query, gate_key, scales=scales, rows=rows, causal=causal, dropout_p=dropout_p
        )
    return _blocked_kernel_attention(query, key, value, gate_query, gate_key, rows, causal=causal, dropout_p=dropout_p)


def _softmax_attention(
    q: Float[Tensor, "b m h d"],
    k: Float[Tensor, "b n h d"],
    v: Float[Tensor, "b n h e"],
    key_padding_mask: Bool[Tensor, "b n"] | None,
    *,
    causal: bool,
    dropout_p: float,
) -> Float[Tensor, "b m h e"]:
    query, key, value = (_heads_first(x) for x in (q, k, v))
    by_hand = dropout_p > 0.0 and q.device.type == "cpu"
    masked = key_padding_mask is not None or (causal and by_hand)
    visible = visible_keys(q, k, key_padding_mask, causal) if masked else None
    if not by_hand:
        out = F.scaled_dot_product_attention(
            query, key, value, visible, dropout_p=dropout_p, is_causal=causal and visible is None, scale=1.0
        )
        return out.transpose(1, 2)
    # PyTorch would form the weights as well, and draw a number for each
    scores = query @ key.mT
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(-1)
    if visible is not None:
        # a query that sees no key at all gets zeros, not NaN
        weights = weights.masked_fill(~visible, 0.0)
    return (dropout(weights, dropout_p) @ value).transpose(1, 2)


def _heads_first(x: Float[Tensor, "b n h d"]) -> Float[Tensor, "b h n d"]:
    return x.transpose(1, 2).contiguous()


def _pair_masked_attention(
    q: Float[Tensor, "b h m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    gate_q: Float[Tensor, "b h m g"] | None,
    gate_k: Float[Tensor, "b h n g"] | None,
    visible: Bool[Tensor, "_b 1 m n"],
    pair_mask: Float[Tensor, "_c m n"],
    *,
    softmax: bool,
    scale: float,
    dropout_p: float,
) -> Float[Tensor, "b h m e"]:
    """Attention with its weights formed in whole, like the mask and its gradient: no fused kernel multiplies scores."""
    if softmax:
        exact = torch.promote_types(q.dtype, torch.float32)
        scores = masked_scores((q @ k.mT).to(exact), pair_mask, scale).masked_fill(~visible, float("-inf"))
        weights = scores.softmax(-1).masked_fill(~visible, 0.0).to(v.dtype)
    else:
        gate_query, gate_key = (None if x is None else x.mT for x in (gate_q, gate_k))
        weights = _kernel(q.mT, k.mT, gate_query, gate_key, None, RowNorms()).masked_fill(~visible, 0.0)
        weights = weights * pair_mask.unsqueeze(1).to(weights.dtype)
    return dropout(weights, dropout_p) @ v


def _squared_row_norms(
    q: Float[Tensor, "b m h d"], k: Float[Tensor, "b n h d"], causal: bool, padded: bool
) -> Float[Tensor, "b m h 1"]:
    """‖row m of Q Kᵀ‖² over the keys it sees.

    Without a mask the norm is q (KᵀK) qᵀ, a D x D matrix instead of N x N scores. That loses digits where keys span
    fewer than D dimensions, as the few keys that padding may leave do.
    """
    if not causal and not padded and k.shape[1] > k.shape[3]:
        # a norm far below |q| ‖K‖ is a difference of large numbers: float32 would lose it, TF32 all the more
        exact = torch.float32 if q.device.type == "mps" else torch.float64
        q, k = q.to(exact), k.to(exact)
        gram = torch.einsum("bnhd,bnhe->bhde", k, k)
        return (torch.einsum("bmhd,bhde->bmhe", q, gram) * q).sum(-1, keepdim=True).clamp(min=0.0)
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = torch.einsum("bmhd,bnhd->bhmn", q.to(exact), k.to(exact))
    if causal:
        scores = scores.tril()
    return scores.square().sum(-1).transpose(1, 2).unsqueeze(-1)


def _features_first(x: Float[Tensor, "b n h d"]) -> Float[Tensor, "h b d n"]:
    return x.permute(2, 0, 3, 1).contiguous()


def _mix_features_first(
    s: Dense, x: Float[Tensor, "b n h d"], *, transpose: bool, causal: bool, scale: float = 1.0
) -> Float[Tensor, "b n h d"]:
    """`scale` times what `s.mix` gives, laid out as `_features_first` does, which makes a product a head of it."""
    matrix = s.dense(x.shape[1])
    matrix = matrix.mT if transpose else matrix
    matrix = matrix.tril() if causal else matrix
    rows = _features_first(x).flatten(1, 2)  # (H, B*D, N)
    mixed = rows @ (matrix if scale == 1.0 else matrix * scale).mT
    return mixed.unflatten(1, (x.shape[0], x.shape[3])).permute(1, 3, 0, 2)


def _blocked_kernel_attention(
    q: Float[Tensor, "b m h d"],
    k: Float[Tensor, "b n h d"],
    v: Float[Tensor, "b n h e"],
    gate_q: Float[Tensor, "b m h g"] | None,
    gate_k: Float[Tensor, "b n h g"] | None,
    rows: RowNorms,
    *,
    causal: bool,
    dropout_p: float,
) -> Float[Tensor, "b m h e"]:
    """act(Q Kᵀ) V by matrix products, a block of scores at a time."""
    if torch.compiler.is_compiling() or (dropout_p and q.device.type != "cpu"):
        # a compiler fuses and recomputes by itself, for any size; on other devices dropout has no mask to keep
        query, key = (_heads_first(x).mT for x in (q, k))
        gate_query, gate_key = (None if x is None else _heads_first(x).mT for x in (gate_q, gate_k))
        kernel = _kernel(query, key, gate_query, gate_key, 0 if causal else None, rows)
        return (dropout(kernel, dropout_p) @ _heads_first(v)).transpose(1, 2)
    flat = [None if x is None else _features_first(x).flatten(0, 1) for x in (q, k, v, gate_q, gate_k)]
    bits = _drawn_bits(q, k) if dropout_p else None
    kept = torch.is_grad_enabled() and k.shape[1] <= _KEPT_KEYS
    out, *_ = _BlockedKernelAttention.apply(*flat, bits, causal, dropout_p, rows, kept)
    return out.unflatten(0, (q.shape[2], q.shape[0])).permute(1, 3, 0, 2)


def _drawn_bits(q: Float[Tensor, "b m h d"], k: Float[Tensor, "b n h d"]) -> Tensor:
    drawn = draw_bits(torch.Size((q.shape[0], q.shape[2], q.shape[1], k.shape[1])))  # (B, H, M, N), as elsewhere
    return drawn.transpose(0, 1).flatten(0, 1)


def _kernel(
    q: Tensor, k: Tensor, gate_q: Tensor | None, gate_k: Tensor | None, first_row: int | None, rows: RowNorms
) -> Float[Tensor, "*heads m n"]:
    left = form_scores(q, k, first_row)
    kernel = left.relu()
    if rows.left is not None:
        kernel = times(kernel, rows.left.factor(left))
    if gate_q is not None and gate_k is not None:
        # where the left scores are masked the product is zero, whatever the gate says
        right = gate_q.mT @ gate_k
        if rows.right is not None:
            right = times(right, rows.right.factor(right))
        kernel = times(kernel, F.softplus(right, threshold=SOFTPLUS_LINEAR))
    return kernel


class _BlockedKernelAttention(torch.autograd.Function):
    """act(Q Kᵀ) V, some heads or queries at a time.

    Tensors are (heads of all batch entries, width, tokens). Also returned is what `kept` keeps for backward, which
    forms it again otherwise. Of dropout, `bits` for each score are kept. Backward is made of differentiable tensor
    functions, and from the inputs where it is to be differentiated, so second derivatives work.
    """

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate_q: Tensor | None,
        gate_k: Tensor | None,
        bits: Tensor | None,
        causal: bool,
        dropout_p: float,
        rows: RowNorms,
        kept: bool,
    ) -> tuple[Tensor | None, ...]:
        out = v.new_empty(q.shape[0], v.shape[1], q.shape[2])
        blocks: list[Tensor | None] = []
        for heads, some in _blocks(q, k):
            block = _form_block(q, k, gate_q, gate_k, bits, heads, some, causal, dropout_p, rows)
            out[heads, :, some] = block.attend(v[heads])
            if kept:
                blocks += block
        return out, *blocks

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        *tensors, causal, dropout_p, rows, _ = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(*(x for x in output[1:] if x is not None))
        ctx.set_materialize_grads(False)
        ctx.settings = causal, dropout_p, rows

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        q, k, v, gate_q, gate_k, bits, out, *kept = ctx.saved_tensors
        if grad_out is None:
            return (None,) * 10
        causal, dropout_p, rows = ctx.settings
        grads = [None if x is None else torch.empty_like(x) for x in (q, k, v, gate_q, gate_k)]
        for index, (heads, some) in enumerate(_blocks(q, k)):
            if kept and not torch.is_grad_enabled():
                block = ScoreBlock(*kept[index * len(ScoreBlock._fields) :][: len(ScoreBlock._fields)])
            else:
                block = _form_block(q, k, gate_q, gate_k, bits, heads, some, causal, dropout_p, rows)
            found = block.gradients(
                q[heads, :, some],
                k[heads],
                v[heads],
                None if gate_q is None else gate_q[heads, :, some],
                None if gate_k is None else gate_k[heads],
                out[heads, :, some],
                grad_out[heads, :, some],
                rows,
            )
            for whole, part, of_queries in zip(grads, found, (True, False, False, True, False), strict=True):
                if whole is None or part is None:
                    continue
                if of_queries:
                    whole[heads, :, some] = part
                elif some.start == 0:
                    whole[heads] = part
                else:
                    whole[heads] += part
        return (*grads, *(None,) * 5)


def _form_block(
    q: Tensor,
    k: Tensor,
    gate_q: Tensor | None,
    gate_k: Tensor | None,
    bits: Tensor | None,
    heads: slice,
    some: slice,
    causal: bool,
    dropout_p: float,
    rows: RowNorms,
) -> ScoreBlock:
    return ScoreBlock.form(
        q[heads, :, some],
        k[heads],
        None if gate_q is None else gate_q[heads, :, some],
        None if gate_k is None else gate_k[heads],
        None if bits is None else keep_factors(bits[heads, some], dropout_p, q.dtype),
        # the least number is always kept
        None if bits is None else keep_factors(bits.new_full((1, 1, 1), -(2**15)), dropout_p, q.dtype),
        some.start if causal else None,
        rows,
    )


def _blocks(q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Whole heads while they fit the budget, else one head and some of its queries."""
    (heads, _, m), n = q.shape, k.shape[2]
    budget = _BLOCK_ELEMENTS.get(q.device.type, _BLOCK_ELEMENTS_DEFAULT)
    head_step = max(1, budget // max(1, m * n))
    if heads:
        # no small one at the end
        head_step = -(-heads // -(-heads // head_step))
    row_step = max(1, m if head_step > 1 else budget // n)
    for head in range(0, heads, head_step):
        for row in range(0, m, row_step):
            yield slice(head, min(head + head_step, heads)), slice(row, min(row + row_step, m))
