"""What both backends must agree on: names, the norm's floor, and which key a query sees."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Activation = Literal["softmax", "relu", "gated"]
ScoreNorm = Literal["none", "l2", "mean", "rms"]
GateNorm = Literal["none", "l2", "rms"]

# added to a row's squared L2 norm: a row of zeros stays zero, and no gradient grows more than a thousandfold
L2_FLOOR = 1e-6

# above this, softplus(x) = x holds to float64's last bit (e^-40 = 4e-18)
SOFTPLUS_LINEAR = 40.0

# what the score of a masked pair becomes before softmax and before `scale` (Qiu et al., 2025)
MASKED_SCORE = -math.log(1e10)


def l2_factor(squared_norm: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 / sqrt(‖row‖² + floor): what a score row is multiplied by to have unit L2 norm."""
    return (squared_norm + L2_FLOOR).rsqrt()


def rms_factor(squared_norm: Float[Tensor, "..."], count: Tensor | int) -> Float[Tensor, "..."]:
    """1 / sqrt(1 + ‖row‖² / count): leaves a row of small scores as it is, and lets none grow past sqrt(count)."""
    return (1.0 + squared_norm / count).rsqrt()


class RowNorm(NamedTuple):
    """A row of scores times gain / sqrt(share ‖row‖² + floor)."""

    share: float
    floor: float
    gain: float

    def factor(self, scores: Tensor) -> Tensor:
        """What each row is multiplied by."""
        return self.gain * (self.share * scores.square().sum(-1, keepdim=True) + self.floor).rsqrt()

    def backward(self, grad: Tensor, scores: Tensor, factor: Tensor) -> Tensor:
        """The gradient of the scores, from that of the normalised ones."""
        along = (grad * scores).sum(-1, keepdim=True)
        return grad * factor - scores * (factor**3 * along * (self.share / self.gain**2))


class RowNorms(NamedTuple):
    """Norms of the scores and of the gate's that are taken where the scores are formed."""

    left: RowNorm | None = None
    right: RowNorm | None = None

    @classmethod
    def of(cls, score_norm: str, gate_norm: str, n: int) -> "RowNorms":
        """Norms by name, over n keys."""
        l2, rms = RowNorm(1.0, L2_FLOOR, 1.0), RowNorm(1.0 / n, 1.0, 1.0)
        left = {"l2": l2, "rms": rms._replace(gain=1.0 / n)}.get(score_norm)
        return cls(left, {"l2": l2, "rms": rms}.get(gate_norm))


def masked_scores(
    scores: Float[Tensor, "b h m n"], pair_mask: Float[Tensor, "_b m n"] | None, scale: float
) -> Float[Tensor, "b h m n"]:
    """Scores as softmax sees them: times the mask, and where it is zero those of a masked pair."""
    if pair_mask is None:
        return scores
    mask = pair_mask.unsqueeze(1)  # (B or 1, 1, M, N)
    shift = (mask == 0).to(scores.dtype) * (scale * MASKED_SCORE)
    return scores * mask.to(scores.dtype) + shift


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
