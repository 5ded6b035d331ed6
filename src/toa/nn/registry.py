"""Attention layers by name: what a backbone's `attention=` may be."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from toa import ops
from toa._config import ADDED_LATER, is_added_later
from toa._registry import Registry
from toa.nn.attention import Attention, ScoreNorm, SoftmaxAttention, TemporalOperatorAttention
from toa.nn.hyperglu import HyperGLUAttention
from toa.nn.operator import OperatorInit, Structure
from toa.nn.regularization import Sharing
from toa.nn.signed_attention import (
    CogAttention,
    DifferentialAttention,
    OutputGatedAttention,
    ReLUAttention,
    SigmoidAttention,
)

_COMMON = ("qk_dim", "bias", "dropout", "backend")
_OPERATORS = (
    "score_norm",
    "scale",
    "structure",
    "rank",
    "operator_std",
    "sor",
    "sor_sharing",
    "sor_max_rate",
    "sor_hold",
    "bandwidth",
    "operator_init",
    "output_gain",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionEntry:
    """A named kind of attention: its class, what the name fixes, and which fields of `AttentionSpec` it takes."""

    layer: type[Attention]
    options: tuple[str, ...]
    fixed: Mapping[str, str] = field(default_factory=dict)


ATTENTIONS: Registry[AttentionEntry] = Registry("attention")
ATTENTIONS.register("softmax")(AttentionEntry(layer=SoftmaxAttention, options=_COMMON))
for _variant in ops.ACTIVATIONS:
    ATTENTIONS.register(f"toa-{_variant}")(
        AttentionEntry(
            layer=TemporalOperatorAttention,
            options=_COMMON + _OPERATORS + (("gate_norm",) if _variant == "gated" else ()),
            fixed={"variant": _variant},
        )
    )
_COMPARED: dict[str, type[Attention]] = {
    "relu": ReLUAttention,
    "output-gated": OutputGatedAttention,
    "differential": DifferentialAttention,
    "sigmoid": SigmoidAttention,
    "cog": CogAttention,
}
for _name, _layer in _COMPARED.items():
    # the last two have no kernel to choose
    _options = _COMMON[:-1] if _name in ("sigmoid", "cog") else _COMMON
    ATTENTIONS.register(_name)(AttentionEntry(layer=_layer, options=_options))
ATTENTIONS.register("hyperglu")(AttentionEntry(layer=HyperGLUAttention, options=(*_COMMON, "rank", "operator_std")))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """An attention layer without its sizes, as data: a name, and where it departs from that layer's defaults.

    Fields are explained in `TemporalOperatorAttention`; None is the layer's own default, for `dropout` the backbone's.
    A field that the named layer does not have is refused.
    """

    name: str
    score_norm: ScoreNorm | None = None
    gate_norm: ops.GateNorm | None = None
    scale: float | None = None
    structure: Structure | None = None
    rank: int | None = None
    operator_std: float | None = None
    sor: bool | None = None
    sor_sharing: Sharing | None = None
    sor_max_rate: float | None = None
    qk_dim: int | None = None
    bias: bool | None = None
    dropout: float | None = None
    backend: str | None = None
    sor_hold: int | None = field(default=None, metadata=ADDED_LATER)
    bandwidth: int | None = field(default=None, metadata=ADDED_LATER)
    operator_init: OperatorInit | None = field(default=None, metadata=ADDED_LATER)
    output_gain: float | None = field(default=None, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        known = ATTENTIONS[self.name].options
        for name in self.options():
            if name not in known:
                raise ValueError(
                    f"{name} is not an option of attention {self.name!r}, got {getattr(self, name)!r}; "
                    f"its options: {', '.join(known)}."
                )

    def options(self) -> dict[str, object]:
        """The fields that are set, but for the name."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "name")
        return {name: value for name, value in pairs if value is not None}

    def resolved(self) -> "AttentionSpec":
        """The same spec with the layer's present defaults written out, for records that outlive a change of them."""
        entry = ATTENTIONS[self.name]
        signatures = (inspect.signature(kind.__init__).parameters for kind in (Attention, entry.layer))
        defaults = {name: parameter for parameters in signatures for name, parameter in parameters.items()}
        kept = [name for name in entry.options if name != "dropout" and not is_added_later(self, name)]
        present = {name: defaults[name].default for name in kept}
        return replace(self, **present | self.options())

    def build(
        self,
        embed_dim: int,
        num_heads: int,
        num_tokens: int,
        *,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> Attention:
        """The layer, in the sizes that a backbone gives it."""
        entry = ATTENTIONS[self.name]
        return entry.layer(
            embed_dim,
            num_heads,
            num_tokens,
            causal=causal,
            **entry.fixed,  # type: ignore[arg-type]
            **{"dropout": dropout} | self.options(),  # type: ignore[arg-type]
        )


def build_attention(
    attention: str | AttentionSpec,
    embed_dim: int,
    num_heads: int,
    num_tokens: int,
    *,
    dropout: float = 0.0,
    causal: bool = False,
) -> Attention:
    """An attention layer by name ("softmax", "toa-softmax", "toa-relu", "toa-gated", "hyperglu") or by spec."""
    spec = AttentionSpec(name=attention) if isinstance(attention, str) else attention
    return spec.build(embed_dim, num_heads, num_tokens, dropout=dropout, causal=causal)
