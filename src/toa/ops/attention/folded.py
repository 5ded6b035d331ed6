"""Operator attention by the identity Q Kᵀ S1 = Q (S1ᵀ K)ᵀ and act(·) S2 V = act(·) (S2 V).

S1 mixes the keys and S2 mixes the values once, before an ordinary attention, so no N x N x N product is left. The
README of this folder has the derivation. `folded_attention` chooses between four strategies, each a function below.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from toa.ops.attention.blocked import Factors, attend_in_blocks, attention_weights
from toa.ops.attention.definitions import (
    ACTIVATIONS,
    ROW_UNIT,
    AttentionInputs,
    Band,
    Branch,
    RowNorm,
    RowNorms,
    row_size,
)
from toa.ops.dropout import dropout
from toa.ops.operators import Dense, Operator

# dtypes in which the identity inside an operator and the norm of a row lose nothing
_EXACT = (torch.float32, torch.float64)


def folded_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """O = act(Q (S1ᵀ K)ᵀ) (S2 V) in the dtype of `v`, by the first strategy whose rule holds.

    1. A pair mask multiplies all M x N weights, and an activation that is not fused needs them: form them all.
    2. Softmax is PyTorch's fused attention on mixed keys and values.
    3. A compiler fuses and recomputes by itself, and off the CPU dropout keeps no bits: form all weights.
    4. Otherwise form the weights block by block, and form them again in backward.
    """
    if x.pair_mask is not None or not ACTIVATIONS[x.activation].fused:
        return formed_attention(x)
    if x.softmax:
        return softmax_attention(x)
    if torch.compiler.is_compiling() or (x.dropout_p and x.q.device.type != "cpu"):
        return unblocked_attention(x)
    return blocked_attention(x)


def formed_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """All weights at once by the activation's formula, times the pair mask, which needs a gradient of the same size."""
    q, k, v, gate_q, gate_k = fold(x).map(_heads_first)
    exact = torch.promote_types(q.dtype, torch.float32)
    gate_scores = None if gate_q is None or gate_k is None else (gate_q @ gate_k.mT).to(exact)
    weights = x.weights((q @ k.mT).to(exact), gate_scores, x.visible_keys()).to(v.dtype)
    return (dropout(weights, x.dropout_p) @ v).transpose(1, 2)


def softmax_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """softmax(Q K'ᵀ) V' by `scaled_dot_product_attention`, or by its formula for dropout on a CPU."""
    on_cpu = x.q.device.type == "cpu"
    by_formula = x.dropout_p > 0.0 and on_cpu
    # on a CPU, PyTorch's function reads any strides as fast
    q, k, v, _, _ = fold(x).map(_heads_first if by_formula or not on_cpu else lambda x: x.transpose(1, 2))
    # PyTorch's function has a causal mask of its own
    is_causal = x.band == Band(highest=0) and x.key_padding_mask is None and not by_formula
    outputs = []
    for queries, keys in x.band.chunks(q.shape[2], k.shape[2]):
        visible = None if x.unmasked or is_causal else x.visible_keys(queries, keys)
        each, key, value = q[:, :, queries], k[:, :, keys], v[:, :, keys]
        if by_formula:
            outputs.append(_softmax_by_formula(each, key, value, visible, x.dropout_p))
            continue
        masks = {"dropout_p": x.dropout_p, "is_causal": is_causal, "scale": 1.0}
        fused = _exact_softmax if _slow_in_half_precision(each) else F.scaled_dot_product_attention
        outputs.append(fused(each, key, value, visible, **masks))  # type: ignore[arg-type]
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)).transpose(1, 2)


def _slow_in_half_precision(q: Tensor) -> bool:
    """Whether to leave the dtype: in 16 bits, backward of PyTorch's function on a CPU takes ten times as long."""
    return q.device.type == "cpu" and q.dtype not in _EXACT and torch.is_grad_enabled()


def _exact_softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, **masks: Any) -> Tensor:
    """PyTorch's function in float32, whatever autocast asks for; the result has the dtype of `v`."""
    with torch.autocast(q.device.type, enabled=False):
        output = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), visible, **masks)
    return output.to(v.dtype)


def _softmax_by_formula(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, dropout_p: float) -> Tensor:
    """Softmax attention with dropout on a CPU: PyTorch would form the weights too, and draw a number for each."""
    scores = q @ k.mT
    if visible is None:
        weights = scores.softmax(-1)
    else:
        # a query that sees no key gets zeros, not NaN
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1).masked_fill(~visible, 0.0)
    return dropout(weights, dropout_p) @ v


def unblocked_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """ReLU and gated attention with all weights at once, by differentiable functions."""
    factors, norms = _factors_and_norms(x)
    weights = attention_weights(factors.map(_heads_first).map(lambda x: x.mT), norms, x.band)
    return (dropout(weights, x.dropout_p) @ _heads_first(factors.v)).transpose(1, 2)


def blocked_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """ReLU and gated attention, one block of weights at a time."""
    factors, norms = _factors_and_norms(x)
    return attend_in_blocks(factors, norms, x.band, dropout_p=x.dropout_p)


def _factors_and_norms(x: AttentionInputs) -> tuple[Factors, RowNorms]:
    """Mixed factors, and normalisers that are computed from the scores themselves, which loses digits in 16 bits.

    Mixing features first pays in training on full precision; a compiler does better without.
    """
    exact = x.q.dtype in _EXACT
    features_first = exact and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    norms = x.row_norms if exact else RowNorms()
    return fold(x, features_first=features_first, later=norms, unit=ROW_UNIT), norms.in_row_units()


_NONE_LATER = RowNorms()


def fold(
    x: AttentionInputs,
    *,
    scaled: bool = True,
    features_first: bool = False,
    later: RowNorms = _NONE_LATER,
    unit: float = 1.0,
) -> Factors:
    """K' = S1ᵀ K, V' = S2 V and the gate's keys likewise.

    Args:
        x: The inputs.
        scaled: Multiply queries, or the operator where that is cheaper, by the scale, and divide queries by the
            normalisers of their rows: a factor of a row of scores is a factor of its query.
        features_first: Mix dense operators in the memory layout that `attend_in_blocks` reads.
        later: Normalisers that are left to the function that forms their scores.
        unit: What the scores of these normalisers are multiplied by, beside the scale.
    """
    scale = x.scale if scaled else 1.0
    padded = x.key_padding_mask is not None
    band = x.band
    count: Tensor | int = x.k.shape[1]
    if scaled and (padded or band != Band()):
        count = x.visible_count().clamp(min=1)[:, :, None, None].to(x.q.dtype)  # (B or 1, M, 1, 1)

    def mix(tokens: Tensor, s: Operator | None, *, transpose: bool = False, scale: float = 1.0) -> tuple[Tensor, bool]:
        """Tokens without padding, mixed, and whether the operator was multiplied by the scale."""
        tokens = x.without_padding(tokens)
        if s is None:
            return tokens, False
        # an operator with a matrix per query head needs the tokens of each
        tokens = tokens if s.num_heads == tokens.shape[2] else x.per_query_head(tokens)
        if not (features_first and isinstance(s, Dense) and s.weight.dtype == x.q.dtype):
            return s.mix(tokens, transpose=transpose, causal=x.causal), False
        return _mix_features_first(s, tokens, transpose=transpose, causal=x.causal, scale=scale), True

    def fold_branch(branch: Branch, norm_later: RowNorm | None) -> tuple[Tensor, Tensor]:
        factor = scale if norm_later is None else scale * unit
        k, has_scale = mix(branch.k, branch.operator, transpose=True, scale=factor)
        # mixing fills padded keys again; as zeros they add nothing to a row's norm, and ReLU drops them
        k = x.per_query_head(k if branch.operator is None else x.without_padding(k))
        q = branch.q if has_scale or factor == 1.0 else branch.q * factor
        if scaled and norm_later is None:
            return branch.norm.divide(q, partial(_row_size, q, k, band, padded), count), k
        return q, k

    value, _ = mix(x.v, x.s2)
    query, key = fold_branch(x.scores, later.scores)
    gate = (None, None) if x.gate is None else fold_branch(x.gate, later.gate)
    return Factors(query, key, x.per_query_head(value), *gate)


def _mix_features_first(
    s: Dense, x: Float[Tensor, "b n h d"], *, transpose: bool, causal: bool, scale: float = 1.0
) -> Float[Tensor, "b n h d"]:
    """`scale` times `s.mix(x)`, by one product per head with tokens in memory as (H, B, D, N)."""
    matrix = s.dense(x.shape[1])
    matrix = matrix.mT if transpose else matrix
    matrix = matrix.tril() if causal else matrix
    rows = x.permute(2, 0, 3, 1).contiguous().flatten(1, 2)  # (H, B*D, N)
    mixed = rows @ (matrix if scale == 1.0 else matrix * scale).mT
    return mixed.unflatten(1, (x.shape[0], x.shape[3])).permute(1, 3, 0, 2)


def _row_size(
    q: Float[Tensor, "b m h d"],
    k: Float[Tensor, "b n h d"],
    band: Band,
    padded: bool,
    floor: float,
    count: Tensor | float | int,
) -> tuple[Float[Tensor, "b m h 1"], Float[Tensor, "b m h 1"]]:
    """`row_size` of the rows of Q Kᵀ over the keys that each query sees.

    Without a mask, ‖row m‖² is q (KᵀK) qᵀ, with a D x D matrix instead of N x N scores. That loses digits where keys
    span fewer than D dimensions, as the few keys that padding leaves may.
    """
    # a norm far below |q| ‖K‖ is a difference of large numbers: float32 loses it, and TF32 even more
    if band == Band() and not padded and k.shape[1] > k.shape[3] and q.device.type != "mps":
        q, k = q.double(), k.double()
        gram = torch.einsum("bnhd,bnhe->bhde", k, k)
        squares = (torch.einsum("bmhd,bhde->bmhe", q, gram) * q).sum(-1, keepdim=True).clamp(min=0.0)
        return torch.ones_like(squares), (squares / count + floor).rsqrt()
    exact = torch.promote_types(q.dtype, torch.float32)
    q = q.to(exact)
    k = k.to(exact)
    # without gradients, in one pass over the scores
    in_units = not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad))
    if in_units:
        q = q * ROW_UNIT
        floor = floor * ROW_UNIT**2
    counts = count.transpose(1, 2) if isinstance(count, Tensor) else count  # (B or 1, 1, M, 1)
    units = []
    inverses = []
    for queries, keys in band.chunks(q.shape[1], k.shape[1]):
        scores = torch.einsum("bmhd,bnhd->bhmn", q[:, queries], k[:, keys])
        scores = band.block(queries.start, keys.start).cut(scores)
        chunk_counts = counts[:, :, queries] if isinstance(counts, Tensor) else counts
        if in_units:
            norms = torch.linalg.vector_norm(scores, dim=-1, keepdim=True)
            unit = torch.full_like(norms, 1.0 / ROW_UNIT)
            inverse = (norms.square() / chunk_counts + floor).rsqrt()
        else:
            unit, inverse = row_size(scores, floor, chunk_counts)
        units.append(unit)
        inverses.append(inverse)
    return torch.cat(units, 2).transpose(1, 2), torch.cat(inverses, 2).transpose(1, 2)


def _heads_first(x: Float[Tensor, "b n h d"]) -> Float[Tensor, "b h n d"]:
    return x.transpose(1, 2).contiguous()
