"""Attentions from other papers that operator attention is compared with.

Alphabet: B batch, M queries, N keys, E embedding, H heads, D head width.
"""

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa import ops
from toa._checks import check_padding_mask, check_shape
from toa.nn.attention import Attention, Masks, Mixing, ScoreFactors, SoftmaxAttention
from toa.nn.linear import Linear


class ReLUAttention(SoftmaxAttention):
    """ReLU(Q Kᵀ / sqrt(D)) / N V: TOA-ReLU without operators (Wortsman et al., 2023). Arguments as in `Attention`."""

    activation: ops.Activation = "relu"
    _score_norm: ops.ScoreNorm = "mean"


class OutputGatedAttention(SoftmaxAttention):
    """Softmax attention whose concatenated heads are multiplied by sigmoid(W x) of the query token (Qiu et al., 2025).

    Arguments as in `Attention`. W_mix does not include the gate.
    """

    def __init__(self, embed_dim: int, num_heads: int, num_tokens: int, *, bias: bool = True, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, num_tokens, bias=bias, **options)
        self.out_gate = Linear(embed_dim, embed_dim, bias=bias)

    def _output(self, query: Tensor, mixed: Tensor) -> Tensor:
        return self.out_proj(mixed * self.out_gate(query).sigmoid())


class DifferentialAttention(SoftmaxAttention):
    """(softmax(Q Kᵀ / sqrt(D)) - λ softmax(Q' K'ᵀ / sqrt(D))) V with one learned λ (Ye et al., 2024).

    λ = exp(a · b) - exp(c · d) + 0.8 with learned vectors of width D. The output of each head is divided by its root
    mean square and multiplied by 0.2, as in the paper. W_mix does not include that division. Arguments as in
    `Attention`.
    """

    _qk_groups = 2
    _FIRST_LAMBDA = 0.8

    def __init__(self, embed_dim: int, num_heads: int, num_tokens: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, num_tokens, **options)
        self.lambdas = nn.Parameter(torch.empty(4, self.qk_dim))
        nn.init.normal_(self.lambdas, std=0.1)
        self.head_gain = nn.Parameter(torch.ones(embed_dim // num_heads))

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> Mixing:
        assert factors.gate_q is not None
        assert factors.gate_k is not None
        first = super()._mixing(query, ScoreFactors(factors.q, factors.k), masks)
        second = super()._mixing(query, ScoreFactors(factors.gate_q, factors.gate_k), masks)
        a, b, c, d = self.lambdas
        weight = (a @ b).exp() - (c @ d).exp() + self._FIRST_LAMBDA

        def mix(values: Tensor, dropout_p: float) -> Tensor:
            return first(values, dropout_p) - weight.to(values.dtype) * second(values, dropout_p)

        return mix

    def _output(self, query: Tensor, mixed: Tensor) -> Tensor:
        heads = self._heads(mixed)
        heads = F.rms_norm(heads, heads.shape[-1:], eps=1e-5) * self.head_gain.to(heads.dtype)
        return self.out_proj(heads.flatten(-2) * (1.0 - self._FIRST_LAMBDA))


class _ExplicitAttention(Attention):
    """An attention that forms its weights (B, H, M, N) explicitly, in plain PyTorch on every device."""

    def chosen_backend(self) -> str:
        """Always the reference: these weights have no kernel."""
        return "reference"

    @abstractmethod
    def _weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Return the weights from scaled scores (B, H, M, N); `visible` is False where a key is masked."""

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> Mixing:
        scores = torch.einsum("bmhd,bnhd->bhmn", factors.q, factors.k) * self.qk_dim**-0.5
        padding, pair_mask, _ = masks
        if padding is not None:
            check_padding_mask(padding, (scores.shape[0], scores.shape[-1]))
        weights = self._weights(scores, masks.visible(factors))
        if pair_mask is not None:
            batch = 1 if pair_mask.shape[0] == 1 else scores.shape[0]
            check_shape("pair_mask", pair_mask, "(B or 1, M, N)", (batch, *scores.shape[-2:]))
            weights = weights * pair_mask.unsqueeze(1).to(weights.dtype)

        def mix(values: Tensor, dropout_p: float) -> Tensor:
            if padding is not None:
                values = values.masked_fill(padding[:, :, None, None], 0.0)
            return torch.einsum("bhmn,bnhd->bmhd", F.dropout(weights, dropout_p), values)

        return mix


class SigmoidAttention(_ExplicitAttention):
    """sigmoid(Q Kᵀ / sqrt(D) - log N) V, N the number of visible keys (Ramapuram et al., 2024)."""

    def _weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        count = visible.sum(-1, keepdim=True).clamp_min(1).to(scores.dtype)
        return (scores - count.log()).sigmoid().masked_fill(~visible, 0.0)


class CogAttention(_ExplicitAttention):
    """sign(A) ⊙ softmax(|A|) V with A = Q Kᵀ / sqrt(D): weights may be negative (Lv et al., 2024)."""

    def _weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        # a row without visible keys has weights zero, not NaN
        size = scores.abs().masked_fill(~visible, torch.finfo(scores.dtype).min)
        return (size.softmax(-1) * scores.sign()).masked_fill(~visible, 0.0)
