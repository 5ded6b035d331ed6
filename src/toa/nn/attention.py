"""Attention layers behind one call: softmax attention and temporal operator attention.

Alphabet: B batch, M queries, N keys, E embedding, H heads, D head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor, nn

from toa import ops
from toa._checks import (
    check_at_least,
    check_choice,
    check_divisible,
    check_fraction,
    check_shape,
    check_tokens,
)
from toa.nn.linear import Linear, is_plain
from toa.nn.operator import OperatorInit, SequenceOperator, Structure, make_operator
from toa.nn.regularization import Sharing, StochasticOperatorRegularization
from toa.ops.linear import linear
from toa.ops.split import split

Variant = Literal["softmax", "relu", "gated"]

# "bounded" is "rms" without the division by the number of keys
ScoreNorm = ops.ScoreNorm | Literal["bounded"]
SCORE_NORMS = (*ops.SCORE_NORMS, "bounded")

# linear in the values (B, N, H, D), with the dropout of its kernel
Mixing = Callable[[Tensor, float], Tensor]


class ScoreFactors(NamedTuple):
    """Queries (B, M, H, D) and keys (B, N, H, D) whose products are a layer's scores, and those of its gate."""

    q: Tensor
    k: Tensor
    gate_q: Tensor | None = None
    gate_k: Tensor | None = None

    def plus(self, other: "ScoreFactors") -> "ScoreFactors":
        """Factors of the sum of two layers' scores: [q, q'] [k, k']ᵀ = q kᵀ + q' k'ᵀ, without forming either."""
        return ScoreFactors(
            torch.cat((self.q, other.q), -1),
            torch.cat((self.k, other.k), -1),
            _join(self.gate_q, other.gate_q),
            _join(self.gate_k, other.gate_k),
        )


def _join(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None else torch.cat((a, b), -1)


class Attended(NamedTuple):
    """What `Attention.attend` gives: the output (B, M, E), W_mix (B, H, M, N) if asked for, and the score factors."""

    output: Tensor
    mixing: Tensor | None
    factors: ScoreFactors


class Attention(nn.Module, ABC):
    """What a backbone may ask of an attention layer; called like `nn.MultiheadAttention`, batch first.

    Args:
        embed_dim: Width E of queries and outputs.
        num_heads: Number of heads H.
        num_tokens: Longest sequence of keys.
        qk_dim: Width of a head's queries and keys; embed_dim / num_heads if None.
        kdim: Width of the keys that come in; embed_dim if None.
        vdim: Width of the values that come in; embed_dim if None.
        bias: Whether the projections have one.
        dropout: Dropout on the activated scores.
        causal: Whether a token sees only itself and what is before it.
        backend: A name of `toa.ops.BACKENDS`, or "auto".
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_tokens: int,
        *,
        qk_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_divisible("embed_dim", embed_dim, "num_heads", num_heads)
        check_at_least("num_tokens", num_tokens, 1)
        check_fraction("dropout", dropout)
        if backend not in ops.BACKENDS:
            check_choice("backend", backend, ("auto", *ops.BACKENDS))
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_tokens = num_tokens
        self.qk_dim = embed_dim // num_heads if qk_dim is None else qk_dim
        check_at_least("qk_dim", self.qk_dim, 1)
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout = dropout
        self.causal = causal
        self.backend = backend
        qk_width = self._qk_groups * num_heads * self.qk_dim
        self.q_proj: nn.Linear = Linear(embed_dim, qk_width, bias=bias)
        self.k_proj: nn.Linear = Linear(self.kdim, qk_width, bias=bias)
        self.v_proj: nn.Linear = Linear(self.vdim, embed_dim, bias=bias)
        self.out_proj: nn.Linear = Linear(embed_dim, embed_dim, bias=bias)

    @property
    def _qk_groups(self) -> int:
        """How many sets of queries and keys a head has."""
        return 1

    @property
    @abstractmethod
    def activation(self) -> ops.Activation:
        """The activation that `toa.ops.operator_attention` is called with."""

    def chosen_backend(self) -> str:
        """Name the backend that a call would use where the layer is now."""
        weight = self.v_proj.weight
        return ops.choose_backend(
            self.backend,
            activation=self.activation,
            device=weight.device,
            dtype=weight.dtype,
            width=max(self.qk_dim, self.embed_dim // self.num_heads),
        )

    @abstractmethod
    def _mixing(
        self,
        query: Tensor,
        factors: ScoreFactors,
        key_padding_mask: Tensor | None,
        pair_mask: Tensor | None,
        causal: bool,
    ) -> Mixing:
        """What acts on the values, settled by queries and keys."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: (B, M, E).
            key: (B, N, kdim), N ≤ num_tokens.
            value: (B, N, vdim).
            key_padding_mask: (B, N), True where a key is padding.
            need_weights: Whether to return the effective mixing operator W_mix of each head as well, (B, H, M, N):
                the matrix that acts on the values, signed for TOA, the attention weights for softmax. Unlike in
                `nn.MultiheadAttention` it is off unless asked for: it costs N x N a head.

        Returns:
            The output (B, M, E), and W_mix or None.
        """
        attended = self.attend(query, key, value, key_padding_mask, need_weights)
        return attended.output, attended.mixing

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        previous: ScoreFactors | None = None,
        pair_mask: Tensor | None = None,
        causal: bool | None = None,
    ) -> Attended:
        """Attend, with the scores of earlier layers added to this one's before S1 and the activation.

        Args:
            query: (B, M, E).
            key: (B, N, kdim), N ≤ num_tokens.
            value: (B, N, vdim).
            key_padding_mask: (B, N), True where a key is padding.
            need_weights: Whether to return W_mix.
            previous: What the layer before returned as `factors`; residual attention. It must be of the same kind and
                sizes, since its scale and normaliser are those of this layer.
            pair_mask: (B or 1, M, N), a factor in [0, 1] for each query and (mixed) key, differentiable: on activated
                scores before S2 for ReLU and gated, as DUET has it for softmax; see `toa.ops.operator_attention`.
            causal: Whether this call is causal; None is what the layer was built as.
        """
        check_shape("query", query, "(B, M, E)", (None, None, self.embed_dim))
        check_shape("key", key, "(B, N, E)", (query.shape[0], None, self.kdim))
        check_shape("value", value, "(B, N, E)", (query.shape[0], key.shape[1], self.vdim))
        check_tokens(type(self).__name__, self.num_tokens, key.shape[1])
        key, value = self._sources(key, value, key_padding_mask)
        q, k, v = self._project(query, key, value)
        factors = self._factors(query, q, k)
        if previous is not None:
            factors = factors.plus(previous)
        mix = self._mixing(query, factors, key_padding_mask, pair_mask, self.causal if causal is None else causal)
        mixed = mix(self._heads(v), self.dropout if self.training else 0.0)
        mixing = self._mixing_operator(mix, mixed, key.shape[1]) if need_weights else None
        return Attended(self._output(query, mixed.flatten(2)), mixing, factors)

    def resize(self, num_tokens: int) -> "Attention":
        """Move to another maximal length of the keys, in place; operators are interpolated."""
        check_at_least("num_tokens", num_tokens, 1)
        for module in self.modules():
            if isinstance(module, SequenceOperator):
                module.resize(num_tokens)
        self.num_tokens = num_tokens
        return self

    def _sources(self, key: Tensor, value: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """What keys and values are projected from."""
        return key, value

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; in self-attention by one product, which reads the tokens once."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        # a layer that someone has put in place of a plain one is called, not taken apart
        alike = len({(is_plain(layer), layer.bias is None) for layer in layers}) == 1
        if query is not key or key is not value or not alike or not is_plain(self.q_proj):
            return self.q_proj(query), self.k_proj(key), self.v_proj(value)
        weight = torch.cat([layer.weight for layer in layers])
        bias = None if self.q_proj.bias is None else torch.cat([layer.bias for layer in layers])
        q, k, v = split(linear(query, weight, bias), [layer.out_features for layer in layers])
        return q, k, v

    def _factors(self, query: Tensor, q: Tensor, k: Tensor) -> ScoreFactors:
        """This layer's own queries and keys in heads; of two groups the second is the gate's."""
        if self._qk_groups == 1:
            return ScoreFactors(self._heads(q), self._heads(k))
        (q, gate_q), (k, gate_k) = (split(x, [x.shape[-1] // 2] * 2) for x in (q, k))
        return ScoreFactors(*(self._heads(x) for x in (q, k, gate_q, gate_k)))

    def _output(self, query: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output from the concatenated heads."""
        return self.out_proj(mixed)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1))  # (B, N, H, D)

    def _mixing_operator(self, mix: Mixing, like: Tensor, num_keys: int) -> Tensor:
        """W_mix is what the mixing makes of the identity."""
        eye = torch.eye(num_keys, dtype=like.dtype, device=like.device)
        eye = eye[None, :, None, :].expand(like.shape[0], -1, self.num_heads, -1)  # (B, N, H, N)
        return mix(eye, 0.0).transpose(1, 2)  # (B, H, M, N)

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, num_tokens={self.num_tokens}"


class SoftmaxAttention(Attention):
    """softmax(Q Kᵀ / sqrt(D)) V: the attention that every TOA variant is measured against.

    It has no operators: `num_tokens` only bounds the length, as in the other layers. Arguments are `Attention`'s.
    """

    @property
    def activation(self) -> ops.Activation:
        """Softmax."""
        return "softmax"

    @property
    def _score_norm(self) -> ops.ScoreNorm:
        return "none"

    def _mixing(
        self,
        query: Tensor,
        factors: ScoreFactors,
        key_padding_mask: Tensor | None,
        pair_mask: Tensor | None,
        causal: bool,
    ) -> Mixing:
        def mix(values: Tensor, dropout_p: float) -> Tensor:
            return ops.operator_attention(
                factors.q,
                factors.k,
                values,
                activation=self.activation,
                score_norm=self._score_norm,
                scale=self.qk_dim**-0.5,
                key_padding_mask=key_padding_mask,
                pair_mask=pair_mask,
                causal=causal,
                dropout_p=dropout_p,
                backend=self.backend,
            )

        return mix


class TemporalOperatorAttention(Attention):
    """Attention with learnable, signed operators around its activation (TOA).

    O = act(Q Kᵀ S1) S2 V a head, S = I + M, heads concatenated and projected. The gated variant has a second set of
    queries, keys and S1: softplus(R S1') ⊙ ReLU(L S1).

    Args:
        embed_dim: Width E of queries and outputs.
        num_heads: Number of heads H.
        num_tokens: Longest sequence of keys, and size of the operators. `resize` changes it.
        variant: "softmax", "relu" or "gated".
        score_norm: "none" as the paper prints it, "l2", "mean" or "rms", see `toa.ops.operator_attention`;
            "bounded" is "rms" without its division by the number of keys.
        gate_norm: "none", "l2" or "rms", for the gated variant.
        scale: Multiplies the scores; 1 / sqrt(qk_dim) if None. The paper prints none, that is 1.
        structure: "dense" as in the paper, "dplr" or "toeplitz".
        rank: Rank of the "dplr" structure, 16 if None.
        operator_std: Standard deviation of the entries of M at the start. 0 makes the operators identities.
        sor: Whether stochastic operator regularization is on (in training alone).
        sor_sharing: "pass" or "operator"; see `StochasticOperatorRegularization`.
        sor_max_rate: Upper end of its drop rate, 1 in the paper.
        sor_hold: Passes for which a drop rate is kept, 1 in the paper.
        bandwidth: Bandwidth of the "banded" structure, 4 if None.
        operator_init: What S2 starts as: "identity" as in the paper, "difference", "smoothing", "centering" or
            "filters", see `toa.nn.initial_taps`. S1 starts as the identity.
        output_gain: Initial value of a learnable gain per head on the mixed values; None has no gain, as in the paper.
        qk_dim: Width of a head's queries and keys; embed_dim / num_heads if None.
        kdim: Width of the keys that come in; embed_dim if None.
        vdim: Width of the values that come in; embed_dim if None.
        bias: Whether the projections have one.
        dropout: Dropout on the activated scores.
        causal: Whether a token sees only itself and what is before it, through the operators too.
        backend: A name of `toa.ops.BACKENDS`, or "auto".
        generator: Source of SOR's randomness, on the layer's device; None is that device's default one.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_tokens: int,
        variant: Variant = "gated",
        *,
        score_norm: ScoreNorm = "none",
        gate_norm: ops.GateNorm = "none",
        scale: float | None = None,
        structure: Structure = "dense",
        rank: int | None = None,
        operator_std: float = 1e-3,
        sor: bool = True,
        sor_sharing: Sharing = "pass",
        sor_max_rate: float = 1.0,
        sor_hold: int = 1,
        bandwidth: int | None = None,
        operator_init: OperatorInit = "identity",
        output_gain: float | None = None,
        qk_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
        backend: str = "auto",
        generator: Generator | None = None,
    ) -> None:
        check_choice("variant", variant, ops.ACTIVATIONS)
        check_choice("score_norm", score_norm, SCORE_NORMS)
        check_choice("gate_norm", gate_norm, ops.GATE_NORMS)
        if gate_norm != "none" and variant != "gated":
            raise ValueError(f"gate_norm goes with variant='gated', got variant={variant!r}; drop it.")
        self.variant = variant
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
            backend=backend,
        )
        self.score_norm = score_norm
        self.gate_norm = gate_norm
        self.scale = self.qk_dim**-0.5 if scale is None else scale

        def operator(init: OperatorInit) -> SequenceOperator:
            return make_operator(
                structure, num_heads, num_tokens, init_std=operator_std, init=init, rank=rank, bandwidth=bandwidth
            )

        self.s1 = operator("identity")
        self.s2 = operator(operator_init)
        self.gate_s1 = operator("identity") if variant == "gated" else None
        self.sor = (
            StochasticOperatorRegularization(
                sharing=sor_sharing, max_rate=sor_max_rate, hold=sor_hold, generator=generator
            )
            if sor
            else None
        )
        self.gain = None if output_gain is None else nn.Parameter(torch.full((num_heads, 1), float(output_gain)))

    @property
    def activation(self) -> ops.Activation:
        """The variant's."""
        return self.variant

    @property
    def _qk_groups(self) -> int:
        return 2 if self.variant == "gated" else 1

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self._features_first(query):
            return super()._project(query, key, value)
        q, k, v = (
            _features_first_linear(x, layer)
            for x, layer in ((query, self.q_proj), (key, self.k_proj), (value, self.v_proj))
        )
        return q, k, v

    def _features_first(self, x: Tensor) -> bool:
        """Whether queries, keys and values lie in memory as (E, B, N): in training, where the time goes, on a CPU."""
        if self.variant == "softmax" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        if x.device.type != "cpu" or ops.runs_kernels(x):
            return False
        return all(is_plain(layer) for layer in (self.q_proj, self.k_proj, self.v_proj))

    def _heads(self, x: Tensor) -> Tensor:
        if not self._features_first(x):
            return super()._heads(x)
        # by way of (E, B, N): so the gradients of heads are joined in that layout as well
        return x.permute(2, 0, 1).unflatten(0, (self.num_heads, -1)).permute(2, 3, 0, 1)  # (B, N, H, D)

    def _factors(self, query: Tensor, q: Tensor, k: Tensor) -> ScoreFactors:
        if self._qk_groups == 1 or not self._features_first(query):
            return super()._factors(query, q, k)
        groups = (x.permute(2, 0, 1).unflatten(0, (2, self.num_heads, -1)).unbind() for x in (q, k))
        (q, gate_q), (k, gate_k) = ((x.permute(2, 3, 0, 1) for x in group) for group in groups)
        return ScoreFactors(q, k, gate_q, gate_k)

    def _mixing(
        self,
        query: Tensor,
        factors: ScoreFactors,
        key_padding_mask: Tensor | None,
        pair_mask: Tensor | None,
        causal: bool,
    ) -> Mixing:
        rates = self.sor.rates(self.num_heads, query.device) if self.sor is not None and self.training else None
        s1, s2 = self.s1.operator(rates), self.s2.operator(rates)
        gate_s1 = None if self.gate_s1 is None else self.gate_s1.operator(rates)

        score_norm: ops.ScoreNorm = "rms" if self.score_norm == "bounded" else self.score_norm

        def mix(values: Tensor, dropout_p: float) -> Tensor:
            mixed = ops.operator_attention(
                factors.q,
                factors.k,
                values,
                s1,
                s2,
                activation=self.variant,
                gate_q=factors.gate_q,
                gate_k=factors.gate_k,
                gate_s1=gate_s1,
                scale=self.scale,
                score_norm=score_norm,
                gate_norm=self.gate_norm,
                key_padding_mask=key_padding_mask,
                pair_mask=pair_mask,
                causal=causal,
                dropout_p=dropout_p,
                backend=self.backend,
            )
            if self.score_norm == "bounded":
                mixed = mixed * factors.k.shape[1]
            return mixed if self.gain is None else mixed * self.gain

        return mix

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"{super().extra_repr()}, variant={self.variant!r}, score_norm={self.score_norm!r}"


def _features_first_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """What the layer makes of tokens (B, N, E), in memory as (W, B, N)."""
    tokens = x.flatten(0, 1).mT  # (E, B*N)
    rows = layer.weight @ tokens if layer.bias is None else torch.addmm(layer.bias.unsqueeze(1), layer.weight, tokens)
    return rows.unflatten(1, x.shape[:2]).permute(1, 2, 0)  # (B, N, W)
