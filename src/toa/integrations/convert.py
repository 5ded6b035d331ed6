"""`convert`: replace the attention inside a trained model by layers of `toa` with the same weights."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from toa._checks import ArgumentError, check_at_least
from toa.integrations.attention_parts import AttentionParts, UnsuitableError, read_parts
from toa.nn import ATTENTIONS, Attention, AttentionSpec, SoftmaxAttention, TemporalOperatorAttention
from toa.nn.layers import PLAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """An attention module that was not replaced: its path in the model, its class, and the reason."""

    path: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or '(the model)'} ({self.kind}): {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Replaced:
    """An attention module that was replaced: its path in the model, its class, and its new attention."""

    path: str
    kind: str
    variant: str

    def __str__(self) -> str:
        return f"{self.path or '(the model)'} ({self.kind}): {self.variant}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """The result of `convert`; its text has one line per attention module.

    Attributes:
        model: The model, changed in place; a new module only if the model itself was an attention module.
        unchanged: Whether the model's outputs are the same as before, until it is trained further.
    """

    model: nn.Module
    replaced: tuple[Replaced, ...]
    kept: tuple[Kept, ...]
    unchanged: bool

    def __str__(self) -> str:
        outputs = "as before" if self.unchanged else "new: train the model further"
        lines = [f"replaced {len(self.replaced)} of {len(self.replaced) + len(self.kept)}; outputs are {outputs}"]
        lines += [f"  replaced {entry}" for entry in self.replaced]
        return "\n".join(lines + [f"  kept {entry}" for entry in self.kept])


def convert(model: nn.Module, variant: str | AttentionSpec = "toa-softmax", *, num_tokens: int) -> Conversion:
    """Replace the attention inside a trained model by operator attention with the same weights, in place.

    act(Q Kᵀ S1) S2 V, where S1 = S2 = I at first. With "toa-softmax" the outputs stay the same, and further training
    learns the operators. It replaces `nn.MultiheadAttention`, alone or inside PyTorch's Transformer layers; softmax
    attention of `toa`; and modules with projections q, k, v and output under common names, such as Hugging Face's
    PatchTST and BERT, if a test call shows that they compute plain softmax attention.

    The new layers keep projections, dropout, dtype, device, mode and `requires_grad`; operators always learn. ReLU and
    gated attention keep the projections too, but compute another function. The gate's queries and keys are new, so
    q_proj and k_proj of the gated variant always learn. Create the optimizer after the conversion. A module that the
    model calls on several kinds of sequences has one pair of operators for all of them.

    Args:
        variant: "toa-softmax", "toa-relu", "toa-gated" or "softmax", or a spec of one. Here the default of a spec's
            `operator_std` is 0, and that of its `dropout` is the dropout of the replaced module.
        num_tokens: Length of the longest sequence of keys, and size of the operators.

    Raises:
        ValueError: If the weights do not fit the variant, or no module can be replaced. The model is then unchanged.
    """
    check_at_least("num_tokens", num_tokens, 1)
    spec = _checked_spec(variant)
    modules = list(model.named_modules(remove_duplicate=False))
    new, reasons = _make_layers(model, modules, spec, num_tokens)
    kept = _kept(modules, new, reasons)
    if not new:
        listed = "; ".join(map(str, kept)) or "it has no attention module"
        raise ArgumentError("model", "have attention that can be replaced", f"a {type(model).__name__}: {listed}")
    replaced = [(path, module) for path, module in modules if id(module) in new]
    _insert(model, {path: new[id(module)] for path, module in replaced})
    starts_plain = spec.operator_std == 0.0 and spec.scale is None and spec.score_norm in (None, "none")
    return Conversion(
        model=new.get(id(model), model),
        replaced=tuple(Replaced(path=p, kind=type(m).__name__, variant=spec.name) for p, m in replaced),
        kept=kept,
        unchanged=spec.name == "softmax" or (spec.name == "toa-softmax" and starts_plain),
    )


def _make_layers(
    model: nn.Module, modules: list[tuple[str, nn.Module]], spec: AttentionSpec, num_tokens: int
) -> tuple[dict[int, nn.Module], dict[int, str]]:
    """The new layer of each attention module, or the reason why it stays, both by the id of the module."""
    # the modules that hold each parameter
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
    new: dict[int, nn.Module] = {}
    reasons: dict[int, str] = {}
    for _, module in modules:
        if id(module) in new or id(module) in reasons:
            continue
        try:
            parts = read_parts(module)
            if parts is not None:
                # a packed weight is split into copies, so another module that shares it would keep the old one
                for name, parameter in module.named_parameters(recurse=False):
                    if len(owners[id(parameter)]) > 1:
                        raise UnsuitableError(f"its {name} is shared with another module")
                new[id(module)] = parts.adapt(_make_layer(parts, spec, num_tokens)).train(module.training)
        except UnsuitableError as error:
            reasons[id(module)] = str(error)
    return new, reasons


def _insert(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Put layers in place of the modules at these paths; the model itself, path "", is not replaced."""
    for path, layer in layers.items():
        if path:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, layer)
    # in evaluation with a padding mask, an encoder passes nested tensors, which only PyTorch's own attention takes
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(m, Attention) for m in module.modules()):
            module.use_nested_tensor = False


def _checked_spec(variant: str | AttentionSpec) -> AttentionSpec:
    spec = AttentionSpec(name=variant) if isinstance(variant, str) else variant
    entry = ATTENTIONS[spec.name]
    if entry.layer not in (SoftmaxAttention, TemporalOperatorAttention):
        raise ArgumentError(
            "variant",
            "have projections q, k, v and output like the model's attention",
            repr(spec.name),
            "use toa-softmax, toa-relu or toa-gated",
        )
    for name in ("qk_dim", "bias"):
        if getattr(spec, name) is not None:
            raise ArgumentError(
                name, "be None in the variant's spec", repr(getattr(spec, name)), "the model's weights set it"
            )
    if "operator_std" in entry.options and spec.operator_std is None:
        return replace(spec, operator_std=0.0)
    return spec


def _make_layer(parts: AttentionParts, spec: AttentionSpec, num_tokens: int) -> Attention:
    entry = ATTENTIONS[spec.name]
    options = {"dropout": parts.dropout, **spec.options()}
    if parts.scale is not None and "scale" in entry.options:
        options = {"scale": parts.scale, **options}
    elif parts.scale is not None and abs(parts.scale * (parts.embed_dim // parts.num_heads) ** 0.5 - 1.0) > 1e-6:
        raise UnsuitableError(f"its scores have the factor {parts.scale:g}, which {spec.name} does not support")
    layer = entry.layer(
        parts.embed_dim,
        parts.num_heads,
        num_tokens,
        kdim=parts.k.in_features,
        vdim=parts.v.in_features,
        bias=_has_bias(parts.q) or _has_bias(parts.k),
        causal=parts.causal,
        window=parts.window,
        **entry.fixed,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )
    layer = layer.to(device=parts.q.weight.device, dtype=parts.q.weight.dtype)
    if layer.q_proj.out_features == parts.q.out_features:
        layer.q_proj = parts.q
        layer.k_proj = parts.k
    else:
        _copy_into(layer.q_proj, parts.q)
        _copy_into(layer.k_proj, parts.k)
    layer.v_proj = parts.v
    layer.out_proj = parts.out  # type: ignore[assignment]
    return layer


@torch.no_grad()
def _copy_into(wide: nn.Linear, narrow: nn.Linear) -> None:
    """Copy a projection into the first half of one that also has the gate's half, which keeps its random start."""
    if type(narrow) not in PLAIN:
        raise UnsuitableError(f"a gate cannot be added to a projection of type {type(narrow).__name__}")
    wide.weight[: narrow.out_features] = narrow.weight
    if _has_bias(wide):
        wide.bias[: narrow.out_features] = narrow.bias if _has_bias(narrow) else 0.0


def _has_bias(layer: nn.Linear) -> bool:
    return layer.bias is not None


def _kept(modules: list[tuple[str, nn.Module]], new: dict[int, nn.Module], reasons: dict[int, str]) -> tuple[Kept, ...]:
    """Innermost modules that are attention by their parts or their name, and are not replaced."""

    def is_candidate(module: nn.Module) -> bool:
        name = type(module).__name__.lower()
        return id(module) in new or id(module) in reasons or "attention" in name or "attn" in name

    kept = []
    for path, module in modules:
        inner = (part for part in module.modules() if part is not module)
        if id(module) in new or not is_candidate(module) or any(map(is_candidate, inner)):
            continue
        reason = reasons.get(id(module), "its structure is unknown")
        kept.append(Kept(path=path, kind=type(module).__name__, reason=reason))
    return tuple(kept)
