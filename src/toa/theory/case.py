"""A case of the paper: an optimal operator, or a family of them, and what its lemma claims.

Alphabet: Z regimes, T output positions, N input positions, F features of a token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from toa._checks import check_at_least, check_at_most, check_finite, check_shape
from toa.theory.simplex import in_simplex

# float64 leaves errors of about 1e-15 in the sums below
_TOLERANCE = 1e-9


def _diagonal(operators: Tensor) -> Tensor:
    return operators.diagonal(dim1=-2, dim2=-1)


def _negative(operators: Tensor) -> Tensor:
    return operators < -_TOLERANCE


def _is_projector(operators: Tensor) -> bool:
    squares, transposes = operators @ operators, operators.mT
    return all(torch.allclose(x, operators, rtol=0.0, atol=_TOLERANCE) for x in (squares, transposes))


def _rows_have_negatives(operators: Tensor) -> bool:
    zero = (operators.abs() < _TOLERANCE).all(-1)
    return bool((zero | _negative(operators).any(-1)).all())


def _off_diagonal_is_negative(operators: Tensor) -> bool:
    eye = torch.eye(operators.shape[-1], dtype=torch.bool)
    return bool(torch.where(eye, operators > 0.0, operators < 0.0).all())


# properties of operators (Z, T, N) that lemmas claim; each holds for every operator of a family
CLAIMS: Mapping[str, Callable[[Tensor], bool]] = {
    "every row sums to zero": lambda s: bool((s.sum(-1).abs() < _TOLERANCE).all()),
    "no row sums to one": lambda s: bool(((s.sum(-1) - 1.0).abs() > _TOLERANCE).all()),
    "every row has a negative entry": _rows_have_negatives,
    "every row that is not zero has a negative entry": _rows_have_negatives,
    "every row leaves the simplex": lambda s: not bool(in_simplex(s).any()),
    "some row leaves the simplex": lambda s: bool((~in_simplex(s)).any(-1).all()),
    "some row subtracts": lambda s: bool(((_diagonal(s) > _TOLERANCE) & _negative(s).any(-1)).any(-1).all()),
    "an orthogonal projector": _is_projector,
    "orthogonal projectors": _is_projector,
    "diagonal strictly between zero and one": lambda s: bool(
        ((_diagonal(s) > _TOLERANCE) & (_diagonal(s) < 1.0 - _TOLERANCE)).all()
    ),
    "negative off the diagonal": _off_diagonal_is_negative,
}


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Case:
    """An optimal sequence operator T*, one per regime of the signal.

    Args:
        operators: (Z, T, N) in float64, with one row per output; a static case has Z = 1.
        features: Numbers per token: 1 for a sample, otherwise the length of a patch or a series.
        claims: Names in `CLAIMS` of the properties that the lemma states.
    """

    name: str
    title: str
    operators: Float[Tensor, "z t n"]
    features: int
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_shape("operators", self.operators, "(Z, T, N)", (None, None, None))
        check_finite("operators", self.operators)
        check_at_least("features", self.features, 1)
        z, t, n = self.operators.shape
        check_at_least("Z", z, 1)
        check_at_most("T", t, "N", n, "use at most as many outputs as keys")
        if z > 1 and t < n:
            raise ValueError(f"operators of {z} regimes must be square, got T={t} and N={n}; give one operator.")

    @property
    def adaptive(self) -> bool:
        """Whether the operator depends on the regime of the signal."""
        return len(self.operators) > 1

    @property
    def row_sums(self) -> Float[Tensor, "z t"]:
        """T* 1, the output for a constant input. Equal to 1 in the simplex."""
        return self.operators.sum(-1)

    @property
    def negative_share(self) -> float:
        """Share of negative entries, except rounding errors. Zero in the simplex."""
        return float(_negative(self.operators).double().mean())

    @property
    def facts(self) -> dict[str, bool]:
        """Whether each claim of the lemma holds."""
        return {claim: CLAIMS[claim](self.operators) for claim in self.claims}
