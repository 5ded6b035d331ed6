"""Operators that only average: their rows lie in the simplex, entries ≥ 0 and row sums 1, as those of softmax do.

Alphabet: T outputs, N inputs.
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
    """Distance to the nearest operator of one softmax head: min ‖K - T‖ over K ≥ 0, K 1 = 1, in the Frobenius norm.

    One head on tokens with positions comes arbitrarily close to this distance.
    """
    return torch.linalg.matrix_norm(operator - simplex_projection(operator))
