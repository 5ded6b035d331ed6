"""What both backends must agree on: names, the norm's floor, and which key a query sees."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Activation = Literal["softmax", "relu", "gated"]
ScoreNorm = Literal["none", "l2", "mean"]
GateNorm = Literal["none", "l2"]

# added to a row's squared L2 norm: a row of zeros stays zero, and no gradient grows more than a thousandfold
L2_FLOOR = 1e-6

# above this, softplus(x) = x holds to float64's last bit (e^-40 = 4e-18)
SOFTPLUS_LINEAR = 40.0


def l2_factor(squared_norm: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 / sqrt(‖row‖² + floor): what a score row is multiplied by to have unit L2 norm."""
    return (squared_norm + L2_FLOOR).rsqrt()


def visible_keys(
    q: Float[Tensor, "b m h d"],
    k: Float[Tensor, "b n h d"],
    key_padding_mask: Bool[Tensor, "b n"] | None,
    causal: bool,
) -> Bool[Tensor, "_b 1 m n"]:
    """Which key each query may use, shape (B or 1, 1, M, N); causal is aligned at the first token."""
    m, n = q.shape[1], k.shape[1]
    visible = torch.ones(1, 1, m, n, dtype=torch.bool, device=q.device)
    if causal:
        visible = visible.tril()
    if key_padding_mask is not None:
        visible = visible & ~key_padding_mask[:, None, None, :]
    return visible
