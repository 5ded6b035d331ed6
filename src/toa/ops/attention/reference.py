"""Operator attention as the paper prints it, with its N x N products: the definition of correct.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from toa.ops.attention.definitions import AttentionInputs, Branch, row_size
from toa.ops.dropout import dropout
from toa.ops.operators import Operator


def reference_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """O = act(Q Kᵀ S1) S2 V, accumulated in at least float32, returned in the dtype of `v`."""
    exact = torch.promote_types(x.v.dtype, torch.float32)
    n = x.k.shape[1]
    visible = x.visible_keys()  # (B or 1, 1, M, N)
    count = visible.sum(-1, keepdim=True).clamp(min=1)  # (B or 1, 1, M, 1)

    def matrix_of(operator: Operator, *, upper: bool = False, lower: bool = False) -> Tensor:
        matrix = operator.dense(n).to(exact).repeat_interleave(x.q.shape[2] // operator.num_heads, 0)
        if upper:
            return matrix.triu()
        return matrix.tril() if lower else matrix

    def normalised_scores(branch: Branch) -> Tensor:
        keys = x.per_query_head(x.without_padding(branch.k.to(exact)))
        a = x.scale * torch.einsum("bmhd,bnhd->bhmn", branch.q.to(exact), keys)
        if branch.operator is not None:
            a = a @ matrix_of(branch.operator, upper=x.causal)
        a = a.masked_fill(~visible, 0.0)
        return branch.norm.divide(a, partial(row_size, a), count)

    w = x.weights(normalised_scores(x.scores), None if x.gate is None else normalised_scores(x.gate), visible)
    w = dropout(w, x.dropout_p)
    if x.s2 is not None:
        w = w @ matrix_of(x.s2, lower=x.causal)
    values = x.per_query_head(x.without_padding(x.v.to(exact)))
    return torch.einsum("bhmn,bnhe->bmhe", w, values).to(x.v.dtype)
