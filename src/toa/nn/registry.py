"""Attention layers by name: the values of a backbone's `attention=`.

To add an attention, write a subclass of `Attention` and add one `_register` line below. Its options are the fields of
`AttentionSpec` that its `__init__` accepts.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from toa import ops
from toa._checks import ArgumentError, check_choice
from toa._limits import shorten
from toa._registry import Registry
from toa.nn.attention import Attention, SoftmaxAttention
from toa.nn.baseline_attention import (
    CogAttention,
    DifferentialAttention,
    GatedAttention,
    HyperGLUAttention,
    OutputGatedAttention,
    ReLUAttention,
    SigmoidAttention,
)
from toa.nn.operator import OperatorInit, Structure
from toa.nn.operator_attention import TemporalOperatorAttention
from toa.nn.regularization import Sharing

# metadata of a config field added after runs were stored: its default never changes, and leaves the hash as it was
ADDED_LATER = {"added_later": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionEntry:
    """A named attention: its class, the arguments that the name fixes, and its options with their defaults."""

    layer: type[Attention]
    fixed: Mapping[str, str]
    options: Mapping[str, Any]


ATTENTIONS: Registry[AttentionEntry] = Registry("attention")

_TYPES: dict[Any, type] = {bool: bool, int: Integral, float: Real, str: str}


def check_literals(config: Any) -> None:
    """Raise ValueError if a field of a config that is annotated as a Literal has another value."""
    for item in fields(config):
        value = getattr(config, item.name)
        kinds = (item.type, *get_args(item.type))
        choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        if choices and not (value is None and NoneType in kinds):
            check_choice(item.name, value, choices)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """An attention layer as data, without its sizes: a name and options.

    Fields are described in `TemporalOperatorAttention`. None means the layer's default, for `dropout` the backbone's.
    A field that the named layer does not have raises ValueError.
    """

    name: str
    score_norm: ops.ScoreNorm | None = None
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
    bandwidth: int | None = field(default=None, metadata=ADDED_LATER)
    operator_init: OperatorInit | None = field(default=None, metadata=ADDED_LATER)
    rotary_base: float | None = field(default=None, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        known = ATTENTIONS[self.name].options
        check_literals(self)
        kinds = {f.name: get_args(f.type)[0] for f in fields(self) if f.name != "name"}
        for name, value in self.options().items():
            # a settings file may hold any value
            wanted = kinds[name]
            fits = wanted not in _TYPES or isinstance(value, _TYPES[wanted])
            if not fits or isinstance(value, bool) != (wanted is bool):
                raise ArgumentError(name, f"be of type {wanted.__name__}", shorten(value), "convert it first")
            if name not in known:
                raise ValueError(
                    f"{name} is not an option of attention {self.name!r}, got {shorten(value)}; "
                    f"its options: {', '.join(known)}."
                )

    def options(self) -> dict[str, object]:
        """Return the options that are set."""
        return {f.name: v for f in fields(self) if f.name != "name" and (v := getattr(self, f.name)) is not None}

    def resolved(self) -> "AttentionSpec":
        """Return the spec with the layer's current defaults filled in; records keep it in case the defaults change."""
        left_out = {"dropout", *(f.name for f in fields(self) if f.metadata == ADDED_LATER)}
        kept = {name: value for name, value in ATTENTIONS[self.name].options.items() if name not in left_out}
        return replace(self, **kept | self.options())

    def build(
        self, embed_dim: int, num_heads: int, num_tokens: int, *, dropout: float = 0.0, causal: bool = False
    ) -> Attention:
        """Build the layer in the sizes of a backbone."""
        entry = ATTENTIONS[self.name]
        options: dict[str, Any] = {"dropout": dropout, "causal": causal, **entry.fixed, **self.options()}
        return entry.layer(embed_dim, num_heads, num_tokens, **options)


def _register(name: str, layer: type[Attention], *, unused: tuple[str, ...] = (), **fixed: str) -> None:
    """Register an attention; its options are the fields of `AttentionSpec` that the layer has, but not `unused`."""
    arguments = dict(inspect.signature(layer).parameters)
    if any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values()):
        arguments = {**inspect.signature(Attention).parameters, **arguments}
    if not layer._is_one_call:
        unused = (*unused, "rotary_base")
    names = [f.name for f in fields(AttentionSpec) if f.name in arguments and f.name not in unused]
    options = {name: arguments[name].default for name in names}
    ATTENTIONS.register(name)(AttentionEntry(layer=layer, fixed=fixed, options=options))


_register("softmax", SoftmaxAttention)
for _name, _entry in ops.ACTIVATIONS.items():
    _register(f"toa-{_name}", TemporalOperatorAttention, variant=_name, unused=() if _entry.gated else ("gate_norm",))
_register("relu", ReLUAttention)
_register("gated", GatedAttention)
_register("output-gated", OutputGatedAttention)
_register("differential", DifferentialAttention)
_register("sigmoid", SigmoidAttention, unused=("backend",))
_register("cog", CogAttention, unused=("backend",))
_register("hyperglu", HyperGLUAttention)


def build_attention(attention: str | AttentionSpec, *sizes: int, **options: Any) -> Attention:
    """Build an attention layer from a name of `ATTENTIONS` or from a spec; arguments as in `AttentionSpec.build`."""
    spec = AttentionSpec(name=attention) if isinstance(attention, str) else attention
    return spec.build(*sizes, **options)
