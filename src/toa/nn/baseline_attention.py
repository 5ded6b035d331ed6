"""Attentions from other papers that operator attention is compared with.

Alphabet: B batch, M queries, N keys, E embedding, H heads, D head width, R rank.
"""

from abc import abstractmethod
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa import ops
from toa._checks import ArgumentError, check_at_least, check_choice, check_padding_mask, check_shape
from toa.nn.attention import Attention, Masks, Projected, ScoreFactors, SoftmaxAttention, ValueMixing
from toa.nn.layers import Linear
from toa.nn.operator import DiagonalLowRankOperator
from toa.ops.dropout import plain_dropout


class ReLUAttention(SoftmaxAttention):
    """ReLU(Q Kᵀ / sqrt(D)) / N V: TOA-ReLU without operators (Wortsman et al., 2023).

    Args:
        score_norm: A name of `toa.ops.SCORE_NORMS`; None for "mean", which is the division by N.

    The other arguments are those of `Attention`.
    """

    activation: ops.Activation = "relu"
    _score_norm: ops.ScoreNorm = "mean"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_tokens: int,
        *,
        score_norm: ops.ScoreNorm | None = None,
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, num_tokens, **options)
        if score_norm is not None:
            check_choice("score_norm", score_norm, ops.SCORE_NORMS)
            self._score_norm = score_norm


class GatedAttention(SoftmaxAttention):
    """softplus(R) ⊙ ReLU(L) V with two sets of queries and keys, R and L as Q Kᵀ / sqrt(D): TOA-Gated without M.

    With the same weights it equals TOA-Gated with M = 0, in outputs and in all other gradients.

    Args:
        score_norm: A name of `toa.ops.SCORE_NORMS`, for L.
        gate_norm: A name of `toa.ops.GATE_NORMS`, for R.

    The other arguments are those of `Attention`.
    """

    activation: ops.Activation = "gated"
    _qk_groups = 2

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_tokens: int,
        *,
        score_norm: ops.ScoreNorm = "none",
        gate_norm: ops.GateNorm = "none",
        **options: Any,
    ) -> None:
        check_choice("score_norm", score_norm, ops.SCORE_NORMS)
        check_choice("gate_norm", gate_norm, ops.GATE_NORMS)
        super().__init__(embed_dim, num_heads, num_tokens, **options)
        self._score_norm = score_norm
        self.gate_norm = gate_norm

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> ValueMixing:
        options = {"score_norm": self._score_norm, "gate_norm": self.gate_norm, "scale": self.qk_dim**-0.5}
        return partial(self._operator_attention, factors, masks, **options)


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
    _is_one_call = False
    _FIRST_LAMBDA = 0.8

    def __init__(self, embed_dim: int, num_heads: int, num_tokens: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, num_tokens, **options)
        self.lambdas = nn.Parameter(torch.empty(4, self.qk_dim))
        nn.init.normal_(self.lambdas, std=0.1)
        self.head_gain = nn.Parameter(torch.ones(embed_dim // num_heads))

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> ValueMixing:
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
        heads = mixed.unflatten(-1, (self.num_heads, -1))
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

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> ValueMixing:
        scores = torch.einsum("bmhd,bnhd->bhmn", factors.q, factors.k) * self.qk_dim**-0.5
        padding, pair_mask = masks.padding, masks.pair
        visible = torch.ones(1, 1, *scores.shape[-2:], dtype=torch.bool, device=scores.device)
        if masks.causal:
            visible = visible.tril()
        if padding is not None:
            check_padding_mask(padding, (scores.shape[0], scores.shape[-1]))
            visible = visible & ~padding[:, None, None, :]
        weights = self._weights(scores, visible)
        if pair_mask is not None:
            batch = 1 if pair_mask.shape[0] == 1 else scores.shape[0]
            check_shape("pair_mask", pair_mask, "(B or 1, M, N)", (batch, *scores.shape[-2:]))
            weights = weights * pair_mask.unsqueeze(1).to(weights.dtype)

        def mix(values: Tensor, dropout_p: float) -> Tensor:
            if padding is not None:
                values = values.masked_fill(padding[:, :, None, None], 0.0)
            return torch.einsum("bhmn,bnhd->bmhd", plain_dropout(weights, dropout_p), values)

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


class HyperGLUAttention(Attention):
    """Gated attention with diagonal-plus-low-rank operators whose ranks are gated by the query (Lu & Yang, 2026).

    o_m = (softplus(r_m) ⊙ ReLU(l_m / ‖l_m‖)) T2(x_m) V, where l_m = q_m Kᵀ T1(x_m), r_m is the same with separate
    weights, and T(x) = I + diag(d) + L diag(sigmoid(W x)) Rᵀ. Queries and output are gated by sigmoids; keys and values
    come from a short depthwise causal convolution of the tokens; there is no 1 / sqrt(D).

    T(x_m) depends on the query, but needs no N x N matrix: q_m Kᵀ T1(x_m) is a product of queries and keys with R more
    columns, and T2(x_m) V one with R more columns of values. So `operator_attention` computes it. W_mix acts on the
    convolved and projected values, before the output gate.

    Args:
        num_tokens: Maximum number of keys; `resize` changes it.
        conv_size: Width of the depthwise convolution.
        qk_dim: Width of queries and keys per head; embed_dim / (4 num_heads), but at least 1, if None.
        operator_std: Initial standard deviation of the entries of the mixers' offsets.
        causal: Must be False.

    The other arguments are those of `Attention`.
    """

    activation: ops.Activation = "gated"
    _qk_groups = 2

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_tokens: int,
        *,
        rank: int = 16,
        conv_size: int = 4,
        qk_dim: int | None = None,
        operator_std: float = 1e-3,
        bias: bool = True,
        causal: bool = False,
        **options: Any,
    ) -> None:
        _check_not_causal(causal)
        check_at_least("conv_size", conv_size, 1)
        qk_dim = max(1, embed_dim // (4 * max(1, num_heads))) if qk_dim is None else qk_dim
        super().__init__(embed_dim, num_heads, num_tokens, qk_dim=qk_dim, bias=bias, **options)
        self.rank = rank
        self.conv = nn.Conv1d(embed_dim, embed_dim, conv_size, groups=embed_dim, bias=False)
        with torch.no_grad():
            # initially the identity: all weight on the current token
            self.conv.weight.zero_()
            self.conv.weight[..., -1] = 1.0
        self.q_gate = Linear(embed_dim, self._qk_groups * num_heads * self.qk_dim, bias=bias)
        self.out_gate = Linear(embed_dim, embed_dim, bias=bias)
        self.score_mixer, self.gate_mixer, self.value_mixer = (
            DiagonalLowRankOperator(num_heads, num_tokens, rank=rank, init_std=operator_std) for _ in range(3)
        )
        self.rank_gates = Linear(embed_dim, 3 * num_heads * rank, bias=bias)

    def _project(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Projected:
        if padding is not None:
            check_padding_mask(padding, (key.shape[0], key.shape[1]))
        convolved = self._convolve(key, padding)
        source = convolved if value is key else self._convolve(value, padding)
        (q, k, gate_q, gate_k), values = super()._project(query, convolved, source, padding)
        assert gate_q is not None
        gates = self.q_gate(query).sigmoid().chunk(2, -1)
        gate, gate_of_gate = (x.unflatten(-1, (self.num_heads, -1)) for x in gates)
        return ScoreFactors(q * gate, k, gate_q * gate_of_gate, gate_k), values

    def _convolve(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if x.dim() == 4:
            positions = [self._convolve(part, key_padding_mask) for part in x.unbind(2)]
            return torch.stack(positions, 2)
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        return self.conv(F.pad(x.mT, (self.conv.kernel_size[0] - 1, 0))).mT

    def _output(self, query: Tensor, mixed: Tensor) -> Tensor:
        return self.out_proj(mixed * self.out_gate(query).sigmoid())

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> ValueMixing:
        _check_not_causal(masks.causal)
        padding = masks.padding
        assert factors.gate_q is not None
        assert factors.gate_k is not None
        switches = self.rank_gates(query).sigmoid().chunk(3, -1)
        heads = (self.num_heads, self.rank)
        score_switch, gate_switch, value_switch = (s.unflatten(-1, heads) for s in switches)  # (B, M, H, R)
        q, k = _widen(self.score_mixer, factors.q, factors.k, score_switch, padding)
        gate_q, gate_k = _widen(self.gate_mixer, factors.gate_q, factors.gate_k, gate_switch, padding)
        factors = ScoreFactors(q, k, gate_q, gate_k)
        attend = partial(self._operator_attention, factors, masks, score_norm="l2")
        diagonal, left, right = _parts(self.value_mixer, k.shape[1], q.dtype)

        def mix(values: Tensor, dropout_p: float) -> Tensor:
            if padding is not None:
                values = values.masked_fill(padding[:, :, None, None], 0.0)
            wide = torch.cat((diagonal * values, left.expand(values.shape[0], -1, -1, -1)), -1)
            direct, ranks = attend(wide, dropout_p).split((values.shape[-1], self.rank), -1)
            low_rank = torch.einsum("nhr,bnhd->bhrd", right[0], values)  # Rᵀ V
            return direct + torch.einsum("bmhr,bhrd->bmhd", ranks * value_switch, low_rank)

        return mix


def _widen(
    mixer: DiagonalLowRankOperator, q: Tensor, k: Tensor, switch: Tensor, padding: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return queries and keys whose product is q_m Kᵀ T1(x_m): [q, (q Kᵀ L) ⊙ switch] and [(1 + d) K, R]."""
    if padding is not None:
        k = k.masked_fill(padding[:, :, None, None], 0.0)
    diagonal, left, right = _parts(mixer, k.shape[1], k.dtype)
    inner = torch.einsum("bnhd,nhr->bhdr", k, left[0])  # Kᵀ L
    ranks = torch.einsum("bmhd,bhdr->bmhr", q, inner) * switch
    return torch.cat((q, ranks), -1), torch.cat((diagonal * k, right.expand(k.shape[0], -1, -1, -1)), -1)


def _check_not_causal(causal: bool) -> None:
    if causal:
        raise ArgumentError(
            "causal",
            "be False for hyperglu",
            "True: a causal part of its mixers is not of low rank",
            "use a TOA variant for causal attention",
        )


def _parts(mixer: DiagonalLowRankOperator, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1 + d, L and R of a mixer for n tokens, as (1, N, H, 1 or R)."""
    parts = (1.0 + mixer.diagonal.unsqueeze(-1), mixer.left, mixer.right)
    diagonal, left, right = (x[:, :n].transpose(0, 1).unsqueeze(0).to(dtype) for x in parts)
    return diagonal, left, right
