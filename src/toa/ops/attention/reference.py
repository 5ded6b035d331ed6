"""Operator attention as the paper prints it, with its N x N products: the definition of correct.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from toa.ops.attention.definitions import SOFTPLUS_LINEAR
from toa.ops.attention.inputs import AttentionInputs, Branch
from toa.ops.dropout import dropout


def reference_attention(x: AttentionInputs) -> Float[Tensor, "b m h e"]:
    """O = act(Q Kᵀ S1) S2 V, accumulated in at least float32, returned in the dtype of `v`."""
    exact = torch.promote_types(x.v.dtype, torch.float32)
    n = x.k.shape[1]
    visible = x.visible_keys()  # (B or 1, 1, M, N)
    count = visible.sum(-1, keepdim=True).clamp(min=1)  # (B or 1, 1, M, 1)

    def normalised_scores(branch: Branch) -> Tensor:
        keys = x.without_padding(branch.k.to(exact))
        a = x.scale * torch.einsum("bmhd,bnhd->bhmn", branch.q.to(exact), keys)
        if branch.operator is not None:
            matrix = branch.operator.dense(n).to(exact)
            a = a @ (matrix.triu() if x.causal else matrix)
        a = a.masked_fill(~visible, 0.0)
        if branch.norm.floor is not None:
            a = a * branch.norm.row_factor(a.square().sum(-1, keepdim=True), count)
        return a / count if branch.norm.per_key else a

    a = normalised_scores(x.scores)
    if x.running_max:
        # a query that sees no key gets zeros, not NaN
        w = x.softmax_scores(a).masked_fill(~visible, float("-inf")).softmax(-1).masked_fill(~visible, 0.0)
    else:
        w = a.relu()
    if x.gate is not None:
        w = w * F.softplus(normalised_scores(x.gate), threshold=SOFTPLUS_LINEAR)
    if x.pair_mask is not None and not x.running_max:
        w = w * x.pair_mask.unsqueeze(1).to(exact)
    w = dropout(w, x.dropout_p)
    if x.s2 is not None:
        matrix = x.s2.dense(n).to(exact)
        w = w @ (matrix.tril() if x.causal else matrix)
    return torch.einsum("bhmn,bnhe->bmhe", w, x.without_padding(x.v.to(exact))).to(x.v.dtype)
