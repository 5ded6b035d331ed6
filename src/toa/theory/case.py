"""What a case of the paper is: an optimal operator, or a family of them, and what its lemma claims.

Alphabet: Z regimes, T output positions, N input positions, F features of a token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from toa._checks import check_at_least, check_finite, check_shape
from toa.theory.simplex import in_simplex

Claim = Callable[[Tensor], bool]

# float64 leaves about 1e-15 in the sums below
_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Case:
    """An optimal sequence operator T*, one for each regime of the signal.

    Args:
        name: Its name in `CASES`.
        title: What it does, in a few words.
        operators: (Z, T, N) in float64; a static case has Z = 1. Rows index outputs.
        features: Numbers that a token carries through the operator: 1 for a sample, a patch's length, a series' length.
        claims: What the lemma says of every operator of the family, as predicates on (Z, T, N).
    """

    name: str
    title: str
    operators: Float[Tensor, "z t n"]
    features: int
    claims: Mapping[str, Claim]

    def __post_init__(self) -> None:
        check_shape("operators", self.operators, "(Z, T, N)", (None, None, None))
        check_finite("operators", self.operators)
        check_at_least("features", self.features, 1)
        z, t, n = self.operators.shape
        check_at_least("Z", z, 1)
        if t > n:
            raise ValueError(f"T must be at most N={n}, got {t}; an operator on the keys has no more rows than keys.")
        if z > 1 and t < n:
            raise ValueError(f"a family of {z} operators must be square, got T={t} and N={n}; give one operator.")

    @property
    def adaptive(self) -> bool:
        """Whether the operator depends on the signal's regime."""
        return len(self.operators) > 1

    @property
    def row_sums(self) -> Float[Tensor, "z t"]:
        """T* 1: the answer to a constant. One in the simplex."""
        return self.operators.sum(-1)

    @property
    def negative_share(self) -> float:
        """Share of entries below zero, rounding aside. Zero in the simplex."""
        return float((self.operators < -_TOLERANCE).double().mean())

    @property
    def facts(self) -> dict[str, bool]:
        """Each claim of the lemma, and whether it holds here."""
        return {text: holds(self.operators) for text, holds in self.claims.items()}


def zero_row_sums(operators: Tensor) -> bool:
    """T 1 = 0."""
    return bool((operators.sum(-1).abs() < _TOLERANCE).all())


def no_unit_row_sum(operators: Tensor) -> bool:
    """No row sums to one."""
    return bool(((operators.sum(-1) - 1.0).abs() > _TOLERANCE).all())


def negative_in_every_row(operators: Tensor) -> bool:
    """Each row that is not zero has an entry below zero."""
    zero = (operators.abs() < _TOLERANCE).all(-1)
    return bool((zero | (operators < -_TOLERANCE).any(-1)).all())


def some_row_outside(operators: Tensor) -> bool:
    """Each operator has a row outside the simplex: the premise of Proposition 1."""
    return bool((~in_simplex(operators)).any(-1).all())


def every_row_outside(operators: Tensor) -> bool:
    """No row lies in the simplex."""
    return not bool(in_simplex(operators).any())


def projectors(operators: Tensor) -> bool:
    """T T = T = Tᵀ."""
    idempotent = torch.allclose(operators @ operators, operators, rtol=0.0, atol=_TOLERANCE)
    return idempotent and torch.allclose(operators.mT, operators, rtol=0.0, atol=_TOLERANCE)


def diagonal_within(operators: Tensor) -> bool:
    """Diagonal entries lie strictly between zero and one."""
    diagonal = operators.diagonal(dim1=-2, dim2=-1)
    return bool(((diagonal > _TOLERANCE) & (diagonal < 1.0 - _TOLERANCE)).all())


def subtracts(operators: Tensor) -> bool:
    """Some row m has T[m, m] > 0 and T[m, k] < 0."""
    positive = operators.diagonal(dim1=-2, dim2=-1) > _TOLERANCE
    return bool((positive & (operators < -_TOLERANCE).any(-1)).any(-1).all())


def negative_off_diagonal(operators: Tensor) -> bool:
    """Positive on the diagonal, negative everywhere else."""
    eye = torch.eye(operators.shape[-1], dtype=torch.bool)
    return bool(torch.where(eye, operators > 0.0, operators < 0.0).all())
