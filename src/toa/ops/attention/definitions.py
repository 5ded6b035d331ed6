"""Names and formulas that all backends share: the table of activations and the table of normalisers.

To add a normaliser, add one entry to `SCORE_NORMS` or `GATE_NORMS` and its name to the type beside it: every backend,
check and help text reads these tables.

To add an activation, add one entry to `ACTIVATIONS` and its name to `Activation`. Then write its formula in
`reference.py`, the weights with their gradient in `blocked.py` (`attention_weights`, `ScoreBlock`), and either the same
in the kernels or an objection in `toa/ops/_backend.py` (`triton_objection`). A line in `toa/nn/registry.py` names the
layer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import Tensor

Activation = Literal["softmax", "relu", "gated"]
ScoreNorm = Literal["none", "l2", "mean", "rms"]
GateNorm = Literal["none", "l2", "rms"]

# added to a row's squared L2 norm: a row of zeros stays zero, and no gradient grows more than a thousandfold
L2_FLOOR = 1e-6

# above this, softplus(x) = x holds to float64's last bit (e^-40 = 4e-18)
SOFTPLUS_LINEAR = 40.0

# score of a masked pair before softmax and before `scale` (Qiu et al., 2025)
MASKED_SCORE = -math.log(1e10)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationEntry:
    """One activation.

    Args:
        formula: The weights that multiply S2 V.
        gated: Whether it takes gate_q, gate_k, gate_s1 and gate_norm.
        running_max: Whether its rows are normalised by a sum of exponentials, so that a fused kernel has to track the
            largest score of a row. Without it, act(a x) = a act(x) for a > 0.
    """

    formula: str
    gated: bool = False
    running_max: bool = False


ACTIVATIONS: Mapping[str, ActivationEntry] = {
    "softmax": ActivationEntry(formula="softmax(Q Kᵀ S1)", running_max=True),
    "relu": ActivationEntry(formula="ReLU(Q Kᵀ S1)"),
    "gated": ActivationEntry(formula="softplus(Qg Kgᵀ Sg) ⊙ ReLU(Q Kᵀ S1)", gated=True),
}


class RowNorm(NamedTuple):
    """A normaliser as numbers: a row of scores is multiplied by gain / sqrt(share ‖row‖² + floor)."""

    share: float
    floor: float
    gain: float

    def factor(self, scores: Tensor) -> Tensor:
        """Factor of each row, from its scores (or from its L2 norm alone)."""
        return self.gain * (self.share * scores.square().sum(-1, keepdim=True) + self.floor).rsqrt()


class RowNorms(NamedTuple):
    """Row norms of the scores and of the gate's scores; None where there is nothing to normalise."""

    scores: RowNorm | None = None
    gate: RowNorm | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Normaliser:
    """What a row of scores over n visible keys is divided by before the activation.

    Args:
        formula: The divisor, for help texts.
        floor: The divisor has the factor sqrt(‖row‖² + floor); None if it does not depend on the scores.
        mean_square: Whether ‖row‖² / n takes the place of ‖row‖² in that factor.
        per_key: Whether the divisor has the factor n.
    """

    formula: str
    floor: float | None = None
    mean_square: bool = False
    per_key: bool = False

    def row_factor(self, squares: Tensor, n: Tensor | int) -> Tensor:
        """1 / sqrt(‖row‖² + floor), or its mean-square form, from the row's sum of squares; without `per_key`."""
        assert self.floor is not None
        return ((squares / n if self.mean_square else squares) + self.floor).rsqrt()

    def row_norm(self, n: int) -> RowNorm | None:
        """The normaliser as numbers, where all n keys are visible; None if it does not depend on the scores."""
        if self.floor is None:
            return None
        share = 1.0 / n if self.mean_square else 1.0
        return RowNorm(share=share, floor=self.floor, gain=1.0 / n if self.per_key else 1.0)


_NONE = Normaliser(formula="1")
_L2 = Normaliser(formula="‖row‖", floor=L2_FLOOR)
_RMS = Normaliser(formula="sqrt(1 + ‖row‖² / n)", floor=1.0, mean_square=True)
SCORE_NORMS: Mapping[str, Normaliser] = {
    "none": _NONE,
    "l2": _L2,
    "mean": Normaliser(formula="n", per_key=True),
    "rms": replace(_RMS, formula="n sqrt(1 + ‖row‖² / n)", per_key=True),
}
GATE_NORMS: Mapping[str, Normaliser] = {"none": _NONE, "l2": _L2, "rms": _RMS}


def describe(entries: Mapping[str, ActivationEntry] | Mapping[str, Normaliser]) -> str:
    """The names of a table with their formulas, for help texts."""
    return "; ".join(f"{name}: {entry.formula}" for name, entry in entries.items())
