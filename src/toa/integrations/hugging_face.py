"""Operator attention in models of Hugging Face transformers, selected by name; their code does not change.

    from toa.integrations import hugging_face

    model = LlamaForCausalLM(LlamaConfig(..., attn_implementation="toa-gated"))
    hugging_face.add_operators(model, {"input_ids": tokens}, num_tokens=256)

Importing this module registers `toa-` and the name of each activation with transformers. Needs the extra `toa[hf]`.

Alphabet: B batch, M queries, N keys, H heads, D head width.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from toa import ops
from toa._checks import ArgumentError, check_at_least, check_choice
from toa.nn import Structure, make_operator

try:
    from transformers import AttentionInterface, AttentionMaskInterface
except ImportError as error:
    raise ImportError(f"{error.name} must be installed for toa.integrations.hugging_face; install toa[hf].") from error

__all__ = ["AttentionOperators", "add_operators"]

_SLOT = "toa_operators"
# arguments of other attention functions that change scores
_UNSUPPORTED = ("softcap", "position_bias", "s_aux", "head_mask")
# heads, key heads and head width of the attention modules that a probing call reaches; None outside of one
_probed: dict[nn.Module, tuple[int, int, int]] | None = None


class AttentionOperators(nn.Module):
    """The operators of one attention module, and the maps from its queries and keys to those of a gate.

    transformers passes queries and keys to an attention function, not tokens: the gate's are linear maps of them.
    """

    def __init__(
        self,
        variant: str,
        heads: int,
        kv_heads: int,
        width: int,
        num_tokens: int,
        *,
        structure: Structure = "dense",
        operator_std: float = 1e-3,
        score_norm: ops.ScoreNorm = "none",
        gate_norm: ops.GateNorm = "none",
    ) -> None:
        super().__init__()
        operator = partial(make_operator, structure, kv_heads, num_tokens, init_std=operator_std)
        gated = ops.ACTIVATIONS[variant].gated
        self.variant = variant
        self.score_norm = score_norm
        self.gate_norm = gate_norm if gated else "none"
        self.s1 = operator()
        self.s2 = operator()
        self.gate_s1 = operator() if gated else None
        self.gate_q = nn.Parameter(torch.randn(heads, width, width) * width**-0.5) if gated else None
        self.gate_k = nn.Parameter(torch.randn(kv_heads, width, width) * width**-0.5) if gated else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend with queries (B, M, H, D), keys and values (B, N, heads, D); options of `operator_attention`."""
        if self.gate_q is not None and self.gate_k is not None and self.gate_s1 is not None:
            options |= {
                name: torch.einsum("bnhd,hdg->bnhg", x, weight.to(x.dtype))
                for name, x, weight in (("gate_q", q, self.gate_q), ("gate_k", k, self.gate_k))
            }
            options |= {"gate_s1": self.gate_s1.operator(), "gate_norm": self.gate_norm}
        s1, s2 = self.s1.operator(), self.s2.operator()
        return ops.operator_attention(q, k, v, s1, s2, activation=self.variant, score_norm=self.score_norm, **options)


def add_operators(model: nn.Module, inputs: Mapping[str, Any], *, num_tokens: int, **options: Any) -> nn.Module:
    """Add operators to every attention of a model that uses one of our names; returns the model.

    Call it before creating the optimizer or loading weights that were saved with operators.

    Args:
        model: A transformers model with `attn_implementation="toa-…"`, or after `model.set_attn_implementation`.
        inputs: Arguments of one call of the model, which finds its attention modules; few tokens suffice.
        options: Options of `AttentionOperators`: structure, operator_std, score_norm, gate_norm.

    Raises:
        ValueError: If no attention of the model uses one of our names, or it has operators already.
    """
    global _probed
    check_at_least("num_tokens", num_tokens, 1)
    name = str(getattr(getattr(model, "config", None), "_attn_implementation", None))
    check_choice("attn_implementation", name, [f"toa-{activation}" for activation in ops.ACTIVATIONS])
    training = model.training
    _probed = {}
    try:
        with torch.no_grad():
            model.eval()(**inputs)
        probed = _probed
    finally:
        _probed = None
        model.train(training)
    if not probed:
        raise ArgumentError("model", "have attention that can be selected by name", f"none in {type(model).__name__}")
    for module, (heads, kv_heads, width) in probed.items():
        if hasattr(module, _SLOT):
            raise ArgumentError("model", "have no operators yet", f"some in {type(module).__name__}", "add them once")
        operators = AttentionOperators(name.removeprefix("toa-"), heads, kv_heads, width, num_tokens, **options)
        like = next(module.parameters())
        module.add_module(_SLOT, operators.to(like.device, like.dtype))
    return model


def _attend(
    variant: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function: (B, H, M, D) to (B, M, H, D); `attention_mask` is that of `_padding`."""
    _, heads, m, width = query.shape
    kv_heads = key.shape[1]
    n = key.shape[2]
    if _probed is not None:
        _probed[module] = (heads, kv_heads, width)
        return query.new_zeros(*query.transpose(1, 2).shape[:3], value.shape[3]), None
    unsupported = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if unsupported:
        raise ArgumentError(unsupported[0], "be None for operator attention", "a value", "use another attention")
    operators = getattr(module, _SLOT, None)
    if operators is None or operators.variant != variant:
        present = "none" if operators is None else f"those of toa-{operators.variant}"
        raise ArgumentError(
            type(module).__name__,
            f"have operators for toa-{variant}",
            present,
            "call add_operators(model, inputs, num_tokens=…) of toa.integrations.hugging_face after building the model",
        )
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    out = operators(
        *(x.transpose(1, 2) for x in (query, key, value)),
        scale=width**-0.5 if scaling is None else scaling,
        key_padding_mask=None if attention_mask is None else ~attention_mask,
        causal=causal,
        window=sliding_window,
        # queries are the last tokens: a cache holds the others
        query_start=n - m if causal or sliding_window is not None else 0,
        dropout_p=dropout,
    )
    return out, None


def _padding(
    batch_size: int,
    q_length: int = 0,
    kv_length: int = 0,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    cache_position: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """The mask function: True for real keys (B, N), or None; raises ValueError for patterns that are not ours.

    Some versions of transformers pass `cache_position`, the positions of the queries, in place of their offset.
    """
    if int(kv_offset):
        raise ArgumentError(
            "the cache",
            "keep all tokens, because operators mix them",
            f"one that has dropped the first {int(kv_offset)}",
            "pass past_key_values=DynamicCache(), or use_cache=False",
        )
    if cache_position is not None:
        q_length = len(cache_position)
        q_offset = int(cache_position[0])
    rows = torch.arange(q_length) + int(q_offset)
    keys = torch.arange(kv_length)
    if mask_function is not None:
        batch = torch.arange(batch_size)[:, None, None, None]
        head = torch.zeros(1, dtype=torch.long)
        visible = torch.as_tensor(mask_function(batch, head, rows[:, None], keys)).cpu()
        visible = visible.broadcast_to(batch_size, 1, q_length, kv_length)
        lag = rows[:, None] - keys
        # the last query sees a whole window
        causal = (lag >= 0) & (lag < int(visible[0, 0, -1].sum()))
        # a cache that is longer than the tokens so far would be read as tokens
        ends = int(rows[-1]) == int(keys[-1])
        if not (bool(visible.all()) or (ends and torch.equal(visible, causal.expand_as(visible)))):
            raise ArgumentError(
                "the mask",
                "be full, causal or a causal window up to the last key",
                f"another pattern for queries {int(rows[0])} to {int(rows[-1])} and {kv_length} keys",
                "use a dynamic cache and no packed sequences",
            )
    if attention_mask is None:
        return None
    real = attention_mask[:, -kv_length:].bool()
    if bool(real.all()):
        return None
    if bool((real[:, 1:] & ~real[:, :-1]).any()):
        raise ArgumentError(
            "attention_mask",
            "pad at the end, because operators act on positions",
            "padding before real tokens",
            "set tokenizer.padding_side='right'",
        )
    return real


for _name in ops.ACTIVATIONS:
    AttentionInterface.register(f"toa-{_name}", partial(_attend, _name))
    AttentionMaskInterface.register(f"toa-{_name}", _padding)
