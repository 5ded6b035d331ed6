"""Proposition 1 as code: softmax attention on a small input is an average."""

import torch
from jaxtyping import Float
from torch import Tensor

from toa import ops
from toa._checks import check_positive, check_shape


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


def random_head(
    num_tokens: int, width: int, generator: torch.Generator
) -> tuple[Float[Tensor, "n e"], Float[Tensor, "e e"], Float[Tensor, "e e"]]:
    """Tokens, W_Q and W_K with independent normal entries, in float64."""
    tokens = torch.randn(num_tokens, width, generator=generator, dtype=torch.float64)
    w_q, w_k = torch.randn(2, width, width, generator=generator, dtype=torch.float64)
    return tokens, w_q, w_k
