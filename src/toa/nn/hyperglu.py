"""HyperGLU: the low-rank, input-conditioned sequence mixer that TOA's dense operators are compared with.

Alphabet: B batch, M queries, N keys, E embedding, H heads, D head width, R rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa import ops
from toa._checks import check_at_least, check_padding_mask
from toa.nn.attention import Attention, Mixing, ScoreFactors
from toa.nn.linear import Linear
from toa.nn.operator import DiagonalLowRankOperator


class HyperGLUAttention(Attention):
    """Gated attention mixed by diagonal-plus-low-rank operators whose ranks the query switches (Lu & Yang, 2026).

    o_m = (softplus(r_m) ⊙ ReLU(l_m / ‖l_m‖)) T2(x_m) V, where l_m = q_m Kᵀ T1(x_m), r_m likewise with weights of its
    own, and T(x) = I + diag(d) + L diag(sigmoid(W x)) Rᵀ. Queries and the output are gated by sigmoids; keys and values
    come from a short depthwise causal convolution of the tokens; there is no 1 / sqrt(D).

    T(x_m) differs from query to query, yet needs no N x N matrix: q_m Kᵀ T1(x_m) is the product of a query and keys
    that are R wider, and T2(x_m) V a product of values that are R wider. So it runs through `operator_attention` like
    the rest. W_mix, returned on request, acts on the convolved and projected values, before the output gate.

    Args:
        embed_dim: Width E of queries, keys, values and outputs.
        num_heads: Number of heads H.
        num_tokens: Longest sequence of keys. `resize` changes it.
        rank: Rank R of the mixers.
        conv_size: Width of the depthwise convolution.
        qk_dim: Width of a head's queries and keys; if None, a quarter of a head's share of embed_dim, at least 1.
        operator_std: Standard deviation of the entries of the mixers' offsets at the start.
        bias: Whether the projections have one.
        dropout: Dropout on the activated scores.
        backend: A name of `toa.ops.BACKENDS`, or "auto".
    """

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
            # start as a pass-through: all weight on the present token
            self.conv.weight.zero_()
            self.conv.weight[..., -1] = 1.0
        self.q_gate = Linear(embed_dim, self._qk_groups * num_heads * self.qk_dim, bias=bias)
        self.out_gate = Linear(embed_dim, embed_dim, bias=bias)
        self.score_mixer, self.gate_mixer, self.value_mixer = (
            DiagonalLowRankOperator(num_heads, num_tokens, rank=rank, init_std=operator_std) for _ in range(3)
        )
        self.rank_gates = Linear(embed_dim, 3 * num_heads * rank, bias=bias)

    @property
    def activation(self) -> ops.Activation:
        """Gated."""
        return "gated"

    @property
    def _qk_groups(self) -> int:
        return 2

    def _sources(self, key: Tensor, value: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if key_padding_mask is not None:
            check_padding_mask(key_padding_mask, (key.shape[0], key.shape[1]))
        convolved = self._convolve(key, key_padding_mask)
        return convolved, convolved if value is key else self._convolve(value, key_padding_mask)

    def _convolve(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
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

    def _mixing(
        self,
        query: Tensor,
        factors: ScoreFactors,
        key_padding_mask: Tensor | None,
        pair_mask: Tensor | None,
        causal: bool,
    ) -> Mixing:
        _check_not_causal(causal)
        assert factors.gate_q is not None
        assert factors.gate_k is not None
        switches = self.rank_gates(query).sigmoid().chunk(3, -1)
        score_switch, gate_switch, value_switch = (self._heads(s) for s in switches)  # (B, M, H, R)
        q, k = self._widen(self.score_mixer, factors.q, factors.k, score_switch, key_padding_mask)
        gate_q, gate_k = self._widen(self.gate_mixer, factors.gate_q, factors.gate_k, gate_switch, key_padding_mask)
        diagonal, left, right = _parts(self.value_mixer, k.shape[1], q.dtype)

        def mix(values: Tensor, dropout_p: float) -> Tensor:
            if key_padding_mask is not None:
                values = values.masked_fill(key_padding_mask[:, :, None, None], 0.0)
            wide = torch.cat((diagonal * values, left.expand(values.shape[0], -1, -1, -1)), -1)
            out = ops.operator_attention(
                q,
                k,
                wide,
                activation="gated",
                gate_q=gate_q,
                gate_k=gate_k,
                score_norm="l2",
                key_padding_mask=key_padding_mask,
                pair_mask=pair_mask,
                dropout_p=dropout_p,
                backend=self.backend,
            )
            direct, ranks = out.split((values.shape[-1], self.rank), -1)
            low_rank = torch.einsum("nhr,bnhd->bhrd", right[0], values)  # Rᵀ V
            return direct + torch.einsum("bmhr,bhrd->bmhd", ranks * value_switch, low_rank)

        return mix

    def _widen(
        self,
        mixer: DiagonalLowRankOperator,
        q: Tensor,
        k: Tensor,
        switch: Tensor,
        key_padding_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys whose product is q_m Kᵀ T1(x_m): [q, (q Kᵀ L) ⊙ switch] and [(1 + d) K, R]."""
        if key_padding_mask is not None:
            k = k.masked_fill(key_padding_mask[:, :, None, None], 0.0)
        diagonal, left, right = _parts(mixer, k.shape[1], k.dtype)
        inner = torch.einsum("bnhd,nhr->bhdr", k, left[0])  # Kᵀ L
        ranks = torch.einsum("bmhd,bhdr->bmhr", q, inner) * switch
        return torch.cat((q, ranks), -1), torch.cat((diagonal * k, right.expand(k.shape[0], -1, -1, -1)), -1)


def _check_not_causal(causal: bool) -> None:
    if causal:
        raise ValueError(
            "causal must be False for hyperglu: a triangle of its low-rank mixers is not of low rank; "
            "use a TOA variant for causal attention."
        )


def _parts(mixer: DiagonalLowRankOperator, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """1 + d, L and R of a mixer for n tokens, as (1, N, H, 1 or R)."""
    parts = (1.0 + mixer.diagonal.unsqueeze(-1), mixer.left, mixer.right)
    diagonal, left, right = (x[:, :n].transpose(0, 1).unsqueeze(0).to(dtype) for x in parts)
    return diagonal, left, right
