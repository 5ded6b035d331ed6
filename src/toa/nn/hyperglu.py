"""HyperGLU: a low-rank, input-dependent sequence mixer, the comparison for TOA's dense operators.

Alphabet: B batch, M queries, N keys, E embedding, H heads, D head width, R rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa import ops
from toa._checks import check_at_least, check_padding_mask
from toa.nn.attention import Attention, Masks, Mixing, ScoreFactors
from toa.nn.linear import Linear
from toa.nn.operator import DiagonalLowRankOperator


class HyperGLUAttention(Attention):
    """Gated attention with diagonal-plus-low-rank operators whose ranks are gated by the query (Lu & Yang, 2026).

    o_m = (softplus(r_m) ⊙ ReLU(l_m / ‖l_m‖)) T2(x_m) V, where l_m = q_m Kᵀ T1(x_m), r_m is the same with separate
    weights, and T(x) = I + diag(d) + L diag(sigmoid(W x)) Rᵀ. Queries and output are gated by sigmoids; keys and values
    come from a short depthwise causal convolution of the tokens; there is no 1 / sqrt(D).

    T(x_m) depends on the query, but needs no N x N matrix: q_m Kᵀ T1(x_m) is a product of queries and keys with R more
    columns, and T2(x_m) V one with R more columns of values. So `operator_attention` computes it. W_mix acts on the
    convolved and projected values, before the output gate.

    Args:
        embed_dim: Width E of queries, keys, values and outputs.
        num_heads: Number of heads H.
        num_tokens: Maximum number of keys; `resize` changes it.
        rank: Rank R of the mixers.
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
        dropout: float = 0.0,
        causal: bool = False,
        backend: str = "auto",
    ) -> None:
        _check_not_causal(causal)
        check_at_least("conv_size", conv_size, 1)
        super().__init__(
            embed_dim,
            num_heads,
            num_tokens,
            qk_dim=max(1, embed_dim // (4 * max(1, num_heads))) if qk_dim is None else qk_dim,
            bias=bias,
            dropout=dropout,
            backend=backend,
        )
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

    def _sources(self, key: Tensor, value: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if key_padding_mask is not None:
            check_padding_mask(key_padding_mask, (key.shape[0], key.shape[1]))
        convolved = self._convolve(key, key_padding_mask)
        return convolved, convolved if value is key else self._convolve(value, key_padding_mask)

    def _convolve(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if x.dim() == 4:
            positions = [self._convolve(part, key_padding_mask) for part in x.unbind(2)]
            return torch.stack(positions, 2)
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        return self.conv(F.pad(x.mT, (self.conv.kernel_size[0] - 1, 0))).mT

    def _output(self, query: Tensor, mixed: Tensor) -> Tensor:
        return self.out_proj(mixed * self.out_gate(query).sigmoid())

    def _factors(self, query: Tensor, q: Tensor, k: Tensor) -> ScoreFactors:
        q, k, gate_q, gate_k = super()._factors(query, q, k)
        assert gate_q is not None
        gate, gate_of_gate = (self._heads(x) for x in self.q_gate(query).sigmoid().chunk(2, -1))
        return ScoreFactors(q * gate, k, gate_q * gate_of_gate, gate_k)

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> Mixing:
        _check_not_causal(masks.causal)
        padding = masks.padding
        assert factors.gate_q is not None
        assert factors.gate_k is not None
        switches = self.rank_gates(query).sigmoid().chunk(3, -1)
        score_switch, gate_switch, value_switch = (self._heads(s) for s in switches)  # (B, M, H, R)
        q, k = _widen(self.score_mixer, factors.q, factors.k, score_switch, padding)
        gate_q, gate_k = _widen(self.gate_mixer, factors.gate_q, factors.gate_k, gate_switch, padding)
        attend = self._operator_attention(ScoreFactors(q, k, gate_q, gate_k), masks, score_norm="l2")
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
        raise ValueError(
            "causal must be False for hyperglu, got True: a causal part of its mixers is not of low rank; "
            "use a TOA variant for causal attention."
        )


def _parts(mixer: DiagonalLowRankOperator, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1 + d, L and R of a mixer for n tokens, as (1, N, H, 1 or R)."""
    parts = (1.0 + mixer.diagonal.unsqueeze(-1), mixer.left, mixer.right)
    diagonal, left, right = (x[:, :n].transpose(0, 1).unsqueeze(0).to(dtype) for x in parts)
    return diagonal, left, right
