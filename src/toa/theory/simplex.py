"""What softmax attention can represent: distances of an operator from three sets, and Proposition 1.

The rows of a softmax kernel lie in the simplex: entries ≥ 0, row sums 1. All distances are Frobenius norms. For white
noise v of unit variance the squared distance is the smallest mean squared error E ‖(K - T) v‖². Proposition 1: softmax
attention on a small input is an average.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from toa import ops
from toa._checks import check_at_least, check_finite, check_positive, check_shape


def simplex_projection(rows: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The nearest point of the simplex to each row.

    p = max(row - θ, 0), where θ makes p sum to one; found by sorting (Held, Wolfe & Crowder, 1974).
    """
    check_at_least("the length of a row", rows.shape[-1], 1)
    check_finite("rows", rows)
    # the projection ignores a constant added to a row; without the maximum, large entries do not round the 1 away
    rows = rows - rows.amax(-1, keepdim=True)
    ordered = rows.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1.0
    count = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)
    # true for the leading entries, which stay positive
    support = (ordered * count > excess).sum(-1, keepdim=True)
    threshold = excess.gather(-1, support - 1) / support
    return (rows - threshold).clamp(min=0.0)


def in_simplex(rows: Float[Tensor, "*batch n"], tolerance: float = 1e-9) -> Bool[Tensor, "*batch"]:
    """Whether each row has entries ≥ 0 and sums to one."""
    return (rows >= -tolerance).all(-1) & ((rows.sum(-1) - 1.0).abs() <= tolerance)


def simplex_distance(operator: Float[Tensor, "*batch t n"]) -> Float[Tensor, "*batch"]:
    """Distance to the nearest operator of one softmax head: min ‖K - T‖ over K ≥ 0, K 1 = 1.

    One head on tokens with positions comes arbitrarily close to this distance.
    """
    return torch.linalg.matrix_norm(operator - simplex_projection(operator))


def uniform_distance(operator: Float[Tensor, "*batch t n"]) -> Float[Tensor, "*batch"]:
    """Distance to the uniform kernel, ‖T - 1 1ᵀ / N‖: Proposition 1, one softmax head without biases and positions.

    For small inputs such a head becomes an average, so the average is the only T that it realises for all inputs. At
    least `simplex_distance`.
    """
    return torch.linalg.matrix_norm(operator - 1.0 / operator.shape[-1])


def multihead_distance(operator: Float[Tensor, "*batch t n"]) -> Float[Tensor, "*batch"]:
    """Distance to the nearest signed sum of any number of softmax heads: ‖s - mean(s)‖ / sqrt(N) for the row sums s.

    Since K_h 1 = 1, all row sums of Σ c_h K_h are equal. This is the only restriction: if T 1 = s 1, two heads suffice,
    T = (s + b) P - b 1 1ᵀ / N, where P lies in the simplex for large b.
    """
    sums = operator.sum(-1)
    return torch.linalg.vector_norm(sums - sums.mean(-1, keepdim=True), dim=-1) / operator.shape[-1] ** 0.5


def scaled_outputs(
    tokens: Float[Tensor, "n e"], w_q: Float[Tensor, "d e"], w_k: Float[Tensor, "d e"], scales: Float[Tensor, " s"]
) -> Float[Tensor, "s n"]:
    """Outputs of one softmax head on scaled tokens, divided by the scale α: o(αH) / α.

    o(H) = softmax(H W_Qᵀ W_K Hᵀ / sqrt(D)) v with the values v_n = h_n⁽¹⁾. If o(H) = T v(H) for all H, the result does
    not depend on α.
    """
    check_shape("tokens", tokens, "(N, E)", (None, None))
    for name, weight in (("w_q", w_q), ("w_k", w_k)):
        check_shape(name, weight, "(D, E)", (w_q.shape[0], tokens.shape[1]))
    check_positive("the smallest of scales", float(scales.min()))
    shrunk = scales[:, None, None] * tokens  # (S, N, E)
    q, k, v = shrunk @ w_q.mT, shrunk @ w_k.mT, shrunk[..., :1]
    out = ops.operator_attention(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), scale=w_q.shape[0] ** -0.5)
    return out[:, :, 0, 0] / scales[:, None]


def uniform_gap(
    tokens: Float[Tensor, "n e"], w_q: Float[Tensor, "d e"], w_k: Float[Tensor, "d e"], scales: Float[Tensor, " s"]
) -> Float[Tensor, " s"]:
    """Distance of o(αH) / α from the mean of the values: max_m |o_m(αH) / α - mean(v)|.

    Scores shrink as α² and softmax(0) is uniform, so the gap goes to zero as α². If one such head realises T for all H,
    every row of T is therefore 1ᵀ / N; see `uniform_distance`.
    """
    outputs = scaled_outputs(tokens, w_q, w_k, scales)
    return (outputs - tokens[:, 0].mean()).abs().amax(-1)
