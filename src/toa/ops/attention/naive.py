"""Operator attention as the paper prints it, N x N products and all: the definition of correct.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from toa.ops.attention.definitions import (
    SOFTPLUS_LINEAR,
    Activation,
    GateNorm,
    ScoreNorm,
    l2_factor,
    masked_scores,
    rms_factor,
    visible_keys,
)
from toa.ops.dropout import dropout
from toa.ops.operators import Operator


def naive_operator_attention(
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
) -> Float[Tensor, "b m h e"]:
    """O = act(Q Kᵀ S1) S2 V, accumulated in at least float32, returned in the dtype of `v`."""
    exact = torch.promote_types(v.dtype, torch.float32)
    visible = visible_keys(q, k, key_padding_mask, causal)  # (B or 1, 1, M, N)
    count = visible.sum(-1, keepdim=True).clamp(min=1)  # (B or 1, 1, M, 1)

    def scores(left: Tensor, right: Tensor, s: Operator | None, norm: str) -> Tensor:
        right = _without_padding(right.to(exact), key_padding_mask)
        a = scale * torch.einsum("bmhd,bnhd->bhmn", left.to(exact), right)
        if s is not None:
            matrix = s.dense(k.shape[1]).to(exact)
            a = a @ (matrix.triu() if causal else matrix)
        a = a.masked_fill(~visible, 0.0)
        if norm == "l2":
            a = a * l2_factor(a.square().sum(-1, keepdim=True))
        elif norm == "rms":
            a = a * rms_factor(a.square().sum(-1, keepdim=True), count)
        return a

    a = scores(q, k, s1, score_norm)
    if score_norm in ("mean", "rms"):
        a = a / count
    if activation == "softmax":
        a = masked_scores(a, pair_mask, scale)
        # a query that sees no key at all gets zeros, not NaN
        w = a.masked_fill(~visible, float("-inf")).softmax(-1).masked_fill(~visible, 0.0)
    else:
        w = a.relu()
    if activation == "gated":
        assert gate_q is not None
        assert gate_k is not None
        w = w * F.softplus(scores(gate_q, gate_k, gate_s1, gate_norm), threshold=SOFTPLUS_LINEAR)
    if pair_mask is not None and activation != "softmax":
        w = w * pair_mask.unsqueeze(1).to(exact)
    w = dropout(w, dropout_p)
    if s2 is not None:
        matrix = s2.dense(k.shape[1]).to(exact)
        w = w @ (matrix.tril() if causal else matrix)
    values = _without_padding(v.to(exact), key_padding_mask)
    return torch.einsum("bhmn,bnhe->bmhe", w, values).to(v.dtype)


def _without_padding(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    if key_padding_mask is None:
        return x
    return x.masked_fill(key_padding_mask[:, :, None, None], 0.0)
