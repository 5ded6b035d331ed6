"""Temporal operator attention (TOA).

Alphabet: B batch, M queries, N keys, E embedding, H heads, D head width.
"""

from functools import partial

import torch
from torch import Generator, Tensor

from toa import ops
from toa._checks import check_choice
from toa.nn.attention import Attention, Masks, Projected, ScoreFactors, ValueMixing
from toa.nn.layers import PLAIN
from toa.nn.operator import OperatorInit, Structure, make_operator
from toa.nn.regularization import Sharing, StochasticOperatorRegularization

Variant = ops.Activation


class TemporalOperatorAttention(Attention):
    """Attention with learnable, signed operators before and after its activation (TOA).

    O = act(Q Kᵀ S1) S2 V per head, S = I + M; heads are concatenated and projected. The gated variant has a second set
    of queries, keys and S1: softplus(R S1') ⊙ ReLU(L S1).

    Args:
        num_tokens: Maximum number of keys, which is the size of the operators; `resize` changes it.
        variant: A name of `toa.ops.ACTIVATIONS`: "softmax", "relu" or "gated".
        score_norm: A name of `toa.ops.SCORE_NORMS`, see `toa.ops.operator_attention`; "none" as printed in the paper.
        gate_norm: A name of `toa.ops.GATE_NORMS`, for a gated variant.
        scale: Factor of the scores; 1 / sqrt(qk_dim) if None. The paper's formula has 1.
        structure: "dense" as in the paper, "dplr", "toeplitz" or "banded".
        rank: Rank of the "dplr" structure, 16 if None.
        operator_std: Initial standard deviation of the entries of M. 0 makes the operators identities.
        sor: Whether to use stochastic operator regularization (in training only).
        sor_sharing: "pass" or "operator"; see `StochasticOperatorRegularization`.
        sor_max_rate: Upper limit of its drop rate, 1 in the paper.
        bandwidth: Bandwidth of the "banded" structure, 4 if None.
        operator_init: Initial S2: "identity" as in the paper, "difference", "smoothing", "centering" or "filters", see
            `toa.nn.operator.initial_taps`. S1 starts as the identity.
        generator: Random generator of SOR, on the layer's device; the one of this thread or device if None.

    The other arguments are those of `Attention`. If `causal`, the operators do not mix later tokens in either.
    """

    shown = (*Attention.shown, "variant", "score_norm")
    _is_one_call = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_tokens: int,
        variant: Variant = "gated",
        *,
        score_norm: ops.ScoreNorm = "none",
        gate_norm: ops.GateNorm = "none",
        scale: float | None = None,
        structure: Structure = "dense",
        rank: int | None = None,
        operator_std: float = 1e-3,
        sor: bool = True,
        sor_sharing: Sharing = "pass",
        sor_max_rate: float = 1.0,
        bandwidth: int | None = None,
        operator_init: OperatorInit = "identity",
        qk_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
        num_kv_heads: int | None = None,
        window: int | None = None,
        rotary_base: float | None = None,
        backend: str = "auto",
        generator: Generator | None = None,
    ) -> None:
        check_choice("variant", variant, ops.ACTIVATIONS)
        check_choice("score_norm", score_norm, ops.SCORE_NORMS)
        check_choice("gate_norm", gate_norm, ops.GATE_NORMS)
        if gate_norm != "none" and not ops.ACTIVATIONS[variant].gated:
            raise ValueError(f"gate_norm requires variant='gated', got variant={variant!r}; leave gate_norm out.")
        self.variant = self.activation = variant
        self._qk_groups = 2 if ops.ACTIVATIONS[variant].gated else 1
        super().__init__(
            embed_dim,
            num_heads,
            num_tokens,
            qk_dim=qk_dim,
            kdim=kdim,
            vdim=vdim,
            bias=bias,
            dropout=dropout,
            causal=causal,
            num_kv_heads=num_kv_heads,
            window=window,
            rotary_base=rotary_base,
            backend=backend,
        )
        heads = self.num_kv_heads
        self.score_norm = score_norm
        self.gate_norm = gate_norm
        self.scale = self.qk_dim**-0.5 if scale is None else scale

        operator = partial(
            make_operator, structure, heads, num_tokens, init_std=operator_std, rank=rank, bandwidth=bandwidth
        )
        self.s1 = operator()
        self.s2 = operator(init=operator_init)
        self.gate_s1 = operator() if self._qk_groups == 2 else None
        self.sor: StochasticOperatorRegularization | None = None
        if sor:
            self.sor = StochasticOperatorRegularization(sharing=sor_sharing, max_rate=sor_max_rate, generator=generator)

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> ValueMixing:
        rates = self.sor.rates(self.num_kv_heads, query.device) if self.sor is not None and self.training else None
        return partial(
            self._operator_attention,
            factors,
            masks,
            s1=self.s1.operator(rates),
            s2=self.s2.operator(rates),
            gate_s1=None if self.gate_s1 is None else self.gate_s1.operator(rates),
            scale=self.scale,
            score_norm=self.score_norm,
            gate_norm=self.gate_norm,
        )

    def _project(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Projected:
        # training on a CPU is faster if queries, keys and values lie in memory as (E, B, N)
        features_first = (
            torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not ops.ACTIVATIONS[self.variant].softmax
            and query.device.type == "cpu"
            and not ops.runs_kernels(query)
            and all(type(layer) in PLAIN for layer in (self.q_proj, self.k_proj, self.v_proj))
        )
        if not features_first:
            return super()._project(query, key, value, padding)
        found: list[list[Tensor]] = []
        groups, shared = self._qk_groups, self.num_kv_heads
        sources = ((query, self.q_proj, groups, self.num_heads), (key, self.k_proj, groups, shared))
        for x, layer, parts, heads in (*sources, (value, self.v_proj, 1, shared)):
            if x.dim() == 4:
                found.append([layer(x).unflatten(-1, (heads, -1))])  # (B, N, G, H, D)
                continue
            # through (W, B, N), so that the gradients of the heads are joined in that layout too
            tokens = x.flatten(0, 1).mT  # (E, B*N)
            bias = layer.bias
            out = layer.weight @ tokens if bias is None else torch.addmm(bias.unsqueeze(1), layer.weight, tokens)
            out = out.unflatten(1, x.shape[:2])  # (W, B, N)
            split = [out.unflatten(0, (heads, -1))] if parts == 1 else out.unflatten(0, (2, heads, -1)).unbind()
            found.append([part.permute(2, 3, 0, 1) for part in split])  # (B, N, H, D)
        q, k, v = found
        return ScoreFactors(*(x for pair in zip(q, k, strict=True) for x in pair)), v[0]
