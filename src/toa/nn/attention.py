"""The attention interface, and softmax attention.

Alphabet: B batch, M queries, N keys, E embedding, H heads, D head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from toa import ops
from toa._checks import (
    ArgumentError,
    check_at_least,
    check_choice,
    check_divisible,
    check_fraction,
    check_shape,
    check_tokens,
)
from toa.nn.layers import PLAIN, Layer, Linear
from toa.nn.operator import SequenceOperator
from toa.ops.attention.sequences import Lengths, nested_parts
from toa.ops.row_functions import linear

# values (B, N, H, D) and a dropout rate to mixed values (B, M, H, D); linear in the values
ValueMixing = Callable[[Tensor, float], Tensor]


class ScoreFactors(NamedTuple):
    """Queries (B, M, H, D) and keys (B, N, H, D) whose products are the scores, and those of the gate."""

    q: Tensor
    k: Tensor
    gate_q: Tensor | None = None
    gate_k: Tensor | None = None

    def plus(self, other: "ScoreFactors") -> "ScoreFactors":
        """Factors of the sum of two score matrices: [q, q'] [k, k']ᵀ = q kᵀ + q' k'ᵀ, without forming either."""
        pairs = zip(self, other, strict=True)
        return ScoreFactors(*(None if a is None or b is None else torch.cat((a, b), -1) for a, b in pairs))  # type: ignore[arg-type]


# the factors, and the values (B, N, H, D) or (B, N, G, H, D), split into heads
Projected = tuple[ScoreFactors, Tensor]


class Masks(NamedTuple):
    """Padding (B, N), pair factors (B or 1, M, N), causality and cache of one call; see `Attention.attend`."""

    padding: Tensor | None
    pair: Tensor | None
    causal: bool
    cache: ops.AttentionCache | None = None


class Attended(NamedTuple):
    """Result of `Attention.attend`: output (B, M, E), W_mix (B, H, M, N) if requested, and the score factors."""

    output: Tensor
    mixing: Tensor | None
    factors: ScoreFactors


class Attention(Layer, ABC):
    """Base class of attention layers; called like `nn.MultiheadAttention` with `batch_first=True`.

    A subclass implements `_mixing`. It may override other steps of `attend`: `_project`, `_output`.

    Args:
        embed_dim: Width E of queries and outputs.
        num_heads: Number of heads H.
        num_tokens: Maximum number of keys.
        qk_dim: Width of queries and keys per head; embed_dim / num_heads if None.
        kdim: Width of the input keys; embed_dim if None.
        vdim: Width of the input values; embed_dim if None.
        bias: Whether the projections have a bias.
        dropout: Dropout rate on the activated scores.
        causal: Whether a token attends only to itself and earlier tokens.
        num_kv_heads: Number of heads of keys, values and operators, each shared by as many neighbouring query heads;
            num_heads if None. Only for `toa.nn.SoftmaxAttention` and layers derived from it, and TOA.
        window: Query m sees keys n with |m - n| < window; None for no window. Only for the same layers.
        rotary_base: Turns queries and keys by their positions before the operators mix the keys, with the slowest turn
            1 / rotary_base per position, customarily 10,000; None for no positions. Only for the same layers.
        backend: A name of `toa.ops.BACKENDS`, or "auto".
    """

    shown: ClassVar[tuple[str, ...]] = ("embed_dim", "num_heads", "num_tokens")
    # activation passed to `toa.ops.operator_attention`
    activation: ops.Activation = "softmax"
    # sets of queries and keys per head; the second set belongs to a gate
    _qk_groups = 1
    # whether `_mixing` is one call of `toa.ops.operator_attention`, which has shared heads, windows and caches
    _is_one_call = False

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
        num_kv_heads: int | None = None,
        window: int | None = None,
        rotary_base: float | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_divisible("embed_dim", embed_dim, "num_heads", num_heads)
        check_at_least("num_tokens", num_tokens, 1)
        check_fraction("dropout", dropout)
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
        self.window = window
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_divisible("num_heads", num_heads, "num_kv_heads", self.num_kv_heads)
        shared = num_heads // self.num_kv_heads
        if window is not None:
            check_at_least("window", window, 1)
        self.rotary_base = rotary_base
        one_call_only = {
            "num_kv_heads": self.num_kv_heads if shared > 1 else None,
            "window": window,
            "rotary_base": rotary_base,
        }
        for name, value in one_call_only.items():
            if value is not None and not self._is_one_call:
                raise ArgumentError(name, f"be None for {type(self).__name__}", value, "use a TOA layer")
        if rotary_base is not None and self.qk_dim % 2:
            raise ArgumentError("qk_dim", "be even with rotary_base", self.qk_dim, "use another qk_dim")
        qk_width = self._qk_groups * num_heads * self.qk_dim
        self.q_proj: nn.Linear = Linear(embed_dim, qk_width, bias=bias)
        self.k_proj: nn.Linear = Linear(self.kdim, qk_width // shared, bias=bias)
        self.v_proj: nn.Linear = Linear(self.vdim, embed_dim // shared, bias=bias)
        self.out_proj: nn.Linear = Linear(embed_dim, embed_dim, bias=bias)

    def chosen_backend(self) -> str:
        """Return the name of the backend that a call would use on the current device and dtype."""
        weight = self.v_proj.weight
        return ops.choose_backend(
            self.backend,
            activation=self.activation,
            device=weight.device,
            dtype=weight.dtype,
            width=max(self.qk_dim, self.embed_dim // self.num_heads),
        )

    @abstractmethod
    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> ValueMixing:
        """Return the function that mixes the values; random draws happen here, not when it is called."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        cache: ops.AttentionCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output (B, M, E), and W_mix (B, H, M, N) or None; arguments as in `attend`."""
        if query.is_nested or key.is_nested:
            return self._attend_nested(query, key, value, need_weights, key_padding_mask=key_padding_mask, cache=cache)
        attended = self.attend(query, key, value, key_padding_mask, need_weights=need_weights, cache=cache)
        return attended.output, attended.mixing

    def _attend_nested(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool, **refused: object
    ) -> tuple[Tensor, Tensor | None]:
        """`forward` of nested tensors (B, j, E): pad, attend, and pack; W_mix has zeros after the end of sequences."""
        for name, given in refused.items():
            if given is not None:
                raise ArgumentError(name, "be None with nested tensors", "one", "pad the sequences")
        parts = [nested_parts("query", query), nested_parts("key", key), nested_parts("value", value, key)]
        lengths = [Lengths.of("offsets", offsets, len(packed)) for packed, offsets in parts]
        q, k, v = (one.pad(packed) for one, (packed, _) in zip(lengths, parts, strict=True))
        if query is key and key is value:
            k = v = q  # one product projects it
        output, mixing, _ = self.attend(q, k, v, lengths[1].padding, need_weights=need_weights)
        output = torch.nested.nested_tensor_from_jagged(lengths[0].pack(output), parts[0][1])
        return output, None if mixing is None else mixing.masked_fill(lengths[0].padding[:, None, :, None], 0.0)

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
        cache: ops.AttentionCache | None = None,
        positions: tuple[Tensor, Tensor] | None = None,
    ) -> Attended:
        """Attend with all options.

        Args:
            query: (B, M, E).
            key: (B, N, kdim), N ≤ num_tokens.
            value: (B, N, vdim), or (B, N, G, vdim) for tokens with values at G positions, which all get the same
                weights; the output is then (B, M, G, E).
            key_padding_mask: (B, N), True where a key is padding.
            need_weights: Whether to also return the effective mixing operator W_mix (B, H, M, N): the matrix that acts
                on the values, signed for TOA, the attention weights for softmax. It needs N x N memory per head, so
                the default is False, unlike in `nn.MultiheadAttention`.
            previous: `factors` returned by the previous layer, whose scores are added before S1 and the activation
                (residual attention). That layer must have the same class and sizes: this layer's scale and normaliser
                apply to the sum.
            pair_mask: (B or 1, M, N), a differentiable factor in [0, 1] per query and (mixed) key; see
                `toa.ops.operator_attention`.
            causal: Overrides the layer's `causal` for this call.
            cache: Keys and values of earlier calls of this layer, in evaluation and causal: query, key and value hold
                new tokens only, and the queries see all tokens so far; see `toa.ops.AttentionCache`.
            positions: Rotary positions of the queries (M,) and of the keys (N,), for a layer with `rotary_base`; by
                default tokens are counted from the first one.
        """
        check_shape("query", query, "(B, M, E)", (None, None, self.embed_dim))
        check_shape("key", key, "(B, N, E)", (query.shape[0], None, self.kdim))
        several = value.dim() == 4
        axes, sizes = ("(B, N, G, E)", (None,)) if several else ("(B, N, E)", ())
        check_shape("value", value, axes, (query.shape[0], key.shape[1], *sizes, self.vdim))
        check_tokens(type(self).__name__, self.num_tokens, key.shape[1] + (0 if cache is None else len(cache)))
        if cache is not None:
            self._check_cache(cache, need_weights)
        factors, values = self._project(query, key, value, key_padding_mask)
        factors = self._turned(factors, positions, 0 if cache is None else len(cache))
        if previous is not None:
            factors = factors.plus(previous)
        masks = Masks(key_padding_mask, pair_mask, self.causal if causal is None else causal, cache)
        mix = self._mixing(query, factors, masks)
        if several:
            values = values.transpose(2, 3).flatten(3)  # (B, N, H, G*D)
        mixed = mix(values, self.dropout if self.training else 0.0)
        mixing: Tensor | None = None
        if need_weights:
            # the mixing applied to the identity
            eye = torch.eye(key.shape[1], dtype=mixed.dtype, device=mixed.device)
            eye = eye[None, :, None, :].expand(mixed.shape[0], -1, self.num_kv_heads, -1)  # (B, N, H, N)
            mixing = mix(eye, 0.0).transpose(1, 2)  # (B, H, M, N)
        if several:
            mixed = mixed.unflatten(-1, (value.shape[2], -1)).transpose(2, 3)  # (B, M, G, H, D)
            query = query.unsqueeze(2)
        return Attended(self._output(query, mixed.flatten(-2)), mixing, factors)

    def resize(self, num_tokens: int) -> "Attention":
        """Change the maximum number of keys in place; operators are interpolated."""
        check_at_least("num_tokens", num_tokens, 1)
        for module in self.modules():
            if isinstance(module, SequenceOperator):
                module.resize(num_tokens)
        self.num_tokens = num_tokens
        return self

    def _project(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Projected:
        """Project and split; self-attention uses one product for queries, keys and values, to read the tokens once."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        groups = self._qk_groups
        # a projection that the user replaced must be called: its weight may not be all it does
        same_form = len({(type(layer) in PLAIN, layer.bias is None) for layer in layers}) == 1
        if query is not key or key is not value or not same_form or type(self.q_proj) not in PLAIN:
            q = self.q_proj(query)
            k = self.k_proj(key)
            v = self.v_proj(value)
            # a group alone is not cut, which would copy its gradient
            parts = [q, k] if groups == 1 else [*q.chunk(groups, -1), *k.chunk(groups, -1)]
        else:
            weight = torch.cat([layer.weight for layer in layers])
            bias = None if self.q_proj.bias is None else torch.cat([layer.bias for layer in layers])
            widths = [layer.out_features // groups for layer in layers[:2] for _ in range(groups)]
            *parts, v = linear(query, weight, bias).split([*widths, self.v_proj.out_features], -1)
        heads = (self.num_heads, self.num_kv_heads)
        # queries and keys of each group; the second group belongs to the gate
        pairs = [zip(parts[group::groups], heads, strict=True) for group in range(groups)]
        split = [x.unflatten(-1, (n, -1)) for pair in pairs for x, n in pair]
        return ScoreFactors(*split), v.unflatten(-1, (self.num_kv_heads, -1))

    def _turned(self, factors: ScoreFactors, positions: tuple[Tensor, Tensor] | None, start: int) -> ScoreFactors:
        """Queries and keys turned by their positions, before those of an earlier layer are joined to them."""
        if self.rotary_base is None:
            if positions is not None:
                raise ValueError("positions require a layer with rotary_base, got rotary_base=None; leave them out.")
            return factors
        if positions is None:
            counted = (torch.arange(start, start + x.shape[1], device=x.device) for x in (factors.q, factors.k))
            queries, keys = counted
        else:
            queries, keys = positions
        return ScoreFactors(*ops.Rotary(queries, keys, self.rotary_base).turn(*factors))

    def _operator_attention(
        self, factors: ScoreFactors, masks: Masks, values: Tensor, dropout_p: float, **options: Any
    ) -> Tensor:
        """Mix the values by `toa.ops.operator_attention`; with the first two arguments bound it is a `ValueMixing`."""
        return ops.operator_attention(
            factors.q,
            factors.k,
            values,
            activation=self.activation,
            gate_q=factors.gate_q,
            gate_k=factors.gate_k,
            key_padding_mask=masks.padding,
            pair_mask=masks.pair,
            causal=masks.causal,
            window=self.window,
            cache=masks.cache,
            dropout_p=dropout_p,
            backend=self.backend,
            **options,
        )

    def _output(self, query: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's output from the concatenated heads."""
        return self.out_proj(mixed)

    def _check_cache(self, cache: ops.AttentionCache, need_weights: bool) -> None:
        if not self._is_one_call:
            raise ArgumentError("cache", f"be None for {type(self).__name__}", "one", "use a TOA layer")
        if self.training or need_weights:
            found = "training mode" if self.training else "need_weights=True"
            raise ValueError(f"cache requires evaluation without need_weights, got {found}; call eval() first.")
        cache.claim(self)


class SoftmaxAttention(Attention):
    """softmax(Q Kᵀ / sqrt(D)) V: the baseline of every TOA variant.

    It has no operators; `num_tokens` only limits the length. Arguments as in `Attention`.
    """

    _score_norm: ops.ScoreNorm = "none"
    _is_one_call = True

    def _mixing(self, query: Tensor, factors: ScoreFactors, masks: Masks) -> ValueMixing:
        options = {"score_norm": self._score_norm, "scale": self.qk_dim**-0.5}
        return partial(self._operator_attention, factors, masks, **options)


@contextmanager
def intercepted(
    model: nn.Module, change: Callable[[str, Tensor, Attended], Attended], **options: Any
) -> Iterator[None]:
    """Apply `change` to the name, the query and the result of every attention layer inside the context.

    `options` are further arguments of every call of `Attention.attend`.
    """

    def changed(name: str, attend: Callable[..., Attended]) -> Any:
        return lambda query, *inputs, **given: change(name, query, attend(query, *inputs, **given | options))

    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    try:
        for name, layer in layers.items():
            layer.attend = changed(name, layer.attend)  # type: ignore[method-assign]
        yield
    finally:
        for layer in layers.values():
            # removes the instance attribute, so that the method of the class is used again
            del layer.attend


def mixing_operators(model: nn.Module, run: Callable[[], object]) -> dict[str, Tensor]:
    """W_mix (B, H, M, N) of every attention layer by name, from its last call inside `run`, which calls the model."""
    found: dict[str, Tensor] = {}

    def keep(name: str, query: Tensor, attended: Attended) -> Attended:
        assert attended.mixing is not None
        found[name] = attended.mixing
        return attended

    with intercepted(model, keep, need_weights=True):
        run()
    return found
