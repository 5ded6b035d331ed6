"""How far an operator is from what softmax can make: three sets, three distances.

A softmax kernel has its rows in the simplex: entries ≥ 0, row sums 1. All distances are Frobenius norms, so for white
noise v of unit variance the squared distance is the least mean squared error E ‖(K - T) v‖².
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from toa._checks import check_at_least, check_finite


def simplex_projection(rows: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The point of the simplex nearest to each row.

    p = max(row - θ, 0), with θ such that p sums to one; found by sorting (Held, Wolfe & Crowder, 1974).

    Raises:
        ValueError: If a row is empty or not finite.
    """
    check_at_least("the length of a row", rows.shape[-1], 1)
    check_finite("rows", rows)
    # the projection ignores a constant added to a row; without the maximum, large entries cannot swallow the 1
    rows = rows - rows.amax(-1, keepdim=True)
    ordered = rows.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1.0
    count = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)
    # true on a prefix: the entries that stay positive
    support = (ordered * count > excess).sum(-1, keepdim=True)
    threshold = excess.gather(-1, support - 1) / support
    return (rows - threshold).clamp(min=0.0)


def in_simplex(rows: Float[Tensor, "*batch n"], tolerance: float = 1e-9) -> Bool[Tensor, "*batch"]:
    """Whether each row has entries ≥ 0 and sums to one."""
    return (rows >= -tolerance).all(-1) & ((rows.sum(-1) - 1.0).abs() <= tolerance)


def simplex_distance(operator: Float[Tensor, "*batch t n"]) -> Float[Tensor, "*batch"]:
    """Distance to the nearest operator that one softmax head can make, whatever its scores.

    min ‖K - T‖ over K ≥ 0, K 1 = 1. One head on tokens with positions comes as close as one likes, and no closer.
    """
    return torch.linalg.matrix_norm(operator - simplex_projection(operator))


def uniform_distance(operator: Float[Tensor, "*batch t n"]) -> Float[Tensor, "*batch"]:
    """Distance to the uniform kernel: what Proposition 1 leaves to one softmax head without biases and positions.

    ‖T - 1 1ᵀ / N‖. Such a head turns into an average as its input grows small, so a T that it realises for all
    inputs is the average. Never below `simplex_distance`.
    """
    return torch.linalg.matrix_norm(operator - 1.0 / operator.shape[-1])


def multihead_distance(operator: Float[Tensor, "*batch t n"]) -> Float[Tensor, "*batch"]:
    """Distance to the nearest operator that any number of softmax heads can make, added up with signed weights.

    With K_h 1 = 1 the sum Σ c_h K_h has all its row sums equal, and that is its only limit: if T 1 = s 1, then
    T = (s + b) P - b 1 1ᵀ / N with P in the simplex for b large, which is two heads. So the distance is
    ‖s - mean(s)‖ / sqrt(N) for the row sums s. Proposition 1 speaks of one head; this is what is left of it for many.
    """
    sums = operator.sum(-1)
    return torch.linalg.vector_norm(sums - sums.mean(-1, keepdim=True), dim=-1) / operator.shape[-1] ** 0.5
