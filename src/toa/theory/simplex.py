"""Distances of an operator from three sets of operators that softmax attention can represent.

The rows of a softmax kernel lie in the simplex: entries ≥ 0, row sums 1. All distances are Frobenius norms. For white
noise v of unit variance the squared distance is the smallest mean squared error E ‖(K - T) v‖².
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from toa._checks import check_at_least, check_finite


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
