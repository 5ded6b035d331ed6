"""The arguments of one call, as every backend takes them.

Alphabet: B batch, M queries, N keys, H heads, D query and key width, E value width, G gate width.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from toa.ops.attention.definitions import (
    ACTIVATIONS,
    GATE_NORMS,
    MASKED_SCORE,
    SCORE_NORMS,
    Activation,
    GateNorm,
    Normaliser,
    RowNorms,
    ScoreNorm,
)
from toa.ops.operators import Operator


class Branch(NamedTuple):
    """One set of scores Q Kᵀ S and their normaliser: those of the attention itself, or those of its gate."""

    q: Tensor
    k: Tensor
    operator: Operator | None
    norm: Normaliser


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionInputs:
    """Checked arguments of `operator_attention`, which documents them; raw tensors are operators here."""

    q: Float[Tensor, "b m h d"]
    k: Float[Tensor, "b n h d"]
    v: Float[Tensor, "b n h e"]
    s1: Operator | None = None
    s2: Operator | None = None
    activation: Activation = "softmax"
    gate_q: Float[Tensor, "b m h g"] | None = None
    gate_k: Float[Tensor, "b n h g"] | None = None
    gate_s1: Operator | None = None
    scale: float = 1.0
    score_norm: ScoreNorm = "none"
    gate_norm: GateNorm = "none"
    key_padding_mask: Bool[Tensor, "b n"] | None = None
    pair_mask: Float[Tensor, "_b m n"] | None = None
    causal: bool = False
    dropout_p: float = 0.0

    @property
    def scores(self) -> Branch:
        """The scores that the activation is applied to."""
        return Branch(self.q, self.k, self.s1, SCORE_NORMS[self.score_norm])

    @property
    def gate(self) -> Branch | None:
        """The scores of the gate; None without one."""
        if not ACTIVATIONS[self.activation].gated:
            return None
        assert self.gate_q is not None
        assert self.gate_k is not None
        return Branch(self.gate_q, self.gate_k, self.gate_s1, GATE_NORMS[self.gate_norm])

    @property
    def running_max(self) -> bool:
        """Whether the activation is a softmax."""
        return ACTIVATIONS[self.activation].running_max

    @property
    def unmasked(self) -> bool:
        """Whether every query sees every key in full."""
        return self.key_padding_mask is None and self.pair_mask is None and not self.causal

    @property
    def scales(self) -> tuple[float, float]:
        """Scales of both branches, with a normaliser that does not depend on the scores; only if `unmasked`."""
        norm = self.scores.norm
        return (self.scale / self.k.shape[1] if norm.per_key and norm.floor is None else self.scale), self.scale

    @property
    def row_norms(self) -> RowNorms:
        """Normalisers that depend on the scores, as numbers; only if `unmasked`."""
        n, gate = self.k.shape[1], self.gate
        return RowNorms(self.scores.norm.row_norm(n), None if gate is None else gate.norm.row_norm(n))

    def visible_keys(self) -> Bool[Tensor, "_b 1 m n"]:
        """Which keys each query may use, (B or 1, 1, M, N); a causal mask is aligned at the first token."""
        m, n = self.q.shape[1], self.k.shape[1]
        visible = torch.ones(1, 1, m, n, dtype=torch.bool, device=self.q.device)
        if self.causal:
            visible = visible.tril()
        if self.key_padding_mask is not None:
            visible = visible & ~self.key_padding_mask[:, None, None, :]
        return visible

    def without_padding(self, tokens: Float[Tensor, "b n h _d"]) -> Float[Tensor, "b n h _d"]:
        """Keys or values with zeros for padding."""
        if self.key_padding_mask is None:
            return tokens
        return tokens.masked_fill(self.key_padding_mask[:, :, None, None], 0.0)

    def softmax_scores(self, scores: Float[Tensor, "b h m n"]) -> Float[Tensor, "b h m n"]:
        """Scaled scores times the pair mask; where it is zero, the score of a masked pair."""
        if self.pair_mask is None:
            return scores
        mask = self.pair_mask.unsqueeze(1)  # (B or 1, 1, M, N)
        shift = (mask == 0).to(scores.dtype) * (self.scale * MASKED_SCORE)
        return scores * mask.to(scores.dtype) + shift
