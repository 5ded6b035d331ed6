"""Surgery: attention inside a trained model, replaced by a layer of `toa` with the same weights."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from toa._checks import check_at_least
from toa.integrations.forms import Form, UnsuitableError, read_form
from toa.nn import ATTENTIONS, Attention, AttentionSpec, SoftmaxAttention, TemporalOperatorAttention
from toa.nn.linear import is_plain

# told by the module that is replaced
_CARRIED = ("qk_dim", "bias")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """An attention module that was left as it was: its place in the model, its class, and why."""

    path: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or '(the model)'} ({self.kind}): {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Replaced:
    """An attention module that was replaced: its place in the model, its class, and its new attention."""

    path: str
    kind: str
    variant: str

    def __str__(self) -> str:
        return f"{self.path or '(the model)'} ({self.kind}): {self.variant}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """What `convert` did; printed, a line for each attention module.

    Attributes:
        model: The model, changed in place; a new module only where the model itself was an attention module.
        replaced: What was replaced.
        kept: What was not, and why.
        unchanged: Whether the model computes what it did before, until it is trained on.
    """

    model: nn.Module
    replaced: tuple[Replaced, ...]
    kept: tuple[Kept, ...]
    unchanged: bool

    def __str__(self) -> str:
        outputs = "as before" if self.unchanged else "new: train the model on"
        lines = [f"replaced {len(self.replaced)} of {len(self.replaced) + len(self.kept)}; outputs are {outputs}"]
        lines += [f"  replaced {entry}" for entry in self.replaced]
        return "\n".join(lines + [f"  kept {entry}" for entry in self.kept])


def convert(model: nn.Module, variant: str | AttentionSpec = "toa-softmax", *, num_tokens: int) -> Conversion:
    """Replace the attention inside a trained model by operator attention with the same weights, in place.

    act(Q Kᵀ S1) S2 V, with S1 = S2 = I at first: for "toa-softmax" outputs are what they were, and training the model
    on learns the operators. Replaced are `nn.MultiheadAttention`, alone or inside PyTorch's Transformer layers, softmax
    attention of `toa`, and modules that project by q, k, v and an output under the usual names, such as those of
    Hugging Face's PatchTST and BERT, where a trial call shows that they do plain softmax attention.

    Projections, dropout, dtype, device, mode and `requires_grad` are carried over; operators always learn. ReLU and
    gated attention take the projections all the same, but are another function. The gate's queries and keys are new, so
    that the gated variant's q_proj and k_proj learn even where they did not. Make the optimizer after the conversion. A
    module that a model calls on several kinds of sequences has one pair of operators for all of them.

    Args:
        model: Any module.
        variant: "toa-softmax", "toa-relu", "toa-gated" or "softmax", or a spec of one. Unlike elsewhere a spec's
            `operator_std` is 0 unless it is set, and its `dropout` that of the replaced module.
        num_tokens: Longest sequence of keys, and size of the operators.

    Raises:
        ValueError: If the variant has another form than the weights, or nothing in the model can be replaced. The model
            is then as it was.
    """
    check_at_least("num_tokens", num_tokens, 1)
    spec = _checked_spec(variant)
    plans: dict[int, nn.Module] = {}
    reasons: dict[int, str] = {}
    modules = list(model.named_modules(remove_duplicate=False))
    owners = _owners(model)
    for _, module in modules:
        if id(module) in plans or id(module) in reasons:
            continue
        try:
            form = read_form(module)
            if form is not None:
                _check_owned(module, owners)
                plans[id(module)] = form.adapt(_make_layer(form, spec, num_tokens)).train(module.training)
        except UnsuitableError as error:
            reasons[id(module)] = str(error)
    kept = _kept(modules, plans, reasons)
    if not plans:
        found = "; ".join(map(str, kept)) or "no module of it is attention"
        raise ValueError(f"model must have attention that can be replaced, got a {type(model).__name__}: {found}.")
    replaced = [(path, module) for path, module in modules if id(module) in plans]
    for path, module in replaced:
        if path:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, plans[id(module)])
    _close_fast_paths(model)
    return Conversion(
        model=plans.get(id(model), model),
        replaced=tuple(Replaced(path=p, kind=type(m).__name__, variant=spec.name) for p, m in replaced),
        kept=kept,
        unchanged=spec.name == "softmax" or (spec.name == "toa-softmax" and _starts_plain(spec)),
    )


def _checked_spec(variant: str | AttentionSpec) -> AttentionSpec:
    spec = AttentionSpec(name=variant) if isinstance(variant, str) else variant
    entry = ATTENTIONS[spec.name]
    if entry.layer not in (SoftmaxAttention, TemporalOperatorAttention):
        raise ValueError(
            f"variant must be made of q, k, v and an output as the model's attention is, got {spec.name!r}; "
            "use toa-softmax, toa-relu or toa-gated."
        )
    for name in _CARRIED:
        if getattr(spec, name) is not None:
            raise ValueError(
                f"{name} must be left out of the variant's spec, since the weights tell it, "
                f"got {getattr(spec, name)!r}; drop it."
            )
    if "operator_std" in entry.options and spec.operator_std is None:
        return replace(spec, operator_std=0.0)
    return spec


def _starts_plain(spec: AttentionSpec) -> bool:
    return spec.operator_std == 0.0 and spec.scale is None and spec.score_norm in (None, "none")


def _make_layer(form: Form, spec: AttentionSpec, num_tokens: int) -> Attention:
    entry = ATTENTIONS[spec.name]
    options = {"dropout": form.dropout, **spec.options()}
    if form.scale is not None and "scale" in entry.options:
        options = {"scale": form.scale, **options}
    elif form.scale is not None and abs(form.scale * (form.embed_dim // form.num_heads) ** 0.5 - 1.0) > 1e-6:
        raise UnsuitableError(f"its scores are multiplied by {form.scale:g}, for which {spec.name} has no setting")
    layer = entry.layer(
        form.embed_dim,
        form.num_heads,
        num_tokens,
        kdim=form.k.in_features,
        vdim=form.v.in_features,
        bias=_has_bias(form.q) or _has_bias(form.k),
        causal=form.causal,
        **entry.fixed,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )
    layer = layer.to(device=form.q.weight.device, dtype=form.q.weight.dtype)
    if layer.q_proj.out_features == form.q.out_features:
        layer.q_proj, layer.k_proj = form.q, form.k
    else:
        _copy_into(layer.q_proj, form.q)
        _copy_into(layer.k_proj, form.k)
    layer.v_proj = form.v
    layer.out_proj = form.out  # type: ignore[assignment]
    return layer


@torch.no_grad()
def _copy_into(wide: nn.Linear, narrow: nn.Linear) -> None:
    """The scores' half of a projection that has the gate's as well, which stays as it was drawn."""
    if not is_plain(narrow):
        raise UnsuitableError(f"a gate cannot be joined to a projection of type {type(narrow).__name__}")
    wide.weight[: narrow.out_features] = narrow.weight
    if _has_bias(wide):
        wide.bias[: narrow.out_features] = narrow.bias if _has_bias(narrow) else 0.0


def _has_bias(layer: nn.Linear) -> bool:
    return layer.bias is not None


def _owners(model: nn.Module) -> dict[int, set[int]]:
    """For each parameter, the modules that hold it."""
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
    return owners


def _check_owned(module: nn.Module, owners: dict[int, set[int]]) -> None:
    # a packed weight is taken apart; what else holds it would go on with the old one
    for name, parameter in module.named_parameters(recurse=False):
        if len(owners[id(parameter)]) > 1:
            raise UnsuitableError(f"its {name} is shared with another module")


def _kept(
    modules: list[tuple[str, nn.Module]], plans: dict[int, nn.Module], reasons: dict[int, str]
) -> tuple[Kept, ...]:
    """Modules that are attention by form or by name, innermost ones only, and are not replaced."""

    def is_candidate(module: nn.Module) -> bool:
        name = type(module).__name__.lower()
        return id(module) in plans or id(module) in reasons or "attention" in name or "attn" in name

    kept = []
    for path, module in modules:
        inner = (part for part in module.modules() if part is not module)
        if id(module) in plans or not is_candidate(module) or any(map(is_candidate, inner)):
            continue
        reason = reasons.get(id(module), "it is of no form that is known")
        kept.append(Kept(path=path, kind=type(module).__name__, reason=reason))
    return tuple(kept)


def _close_fast_paths(model: nn.Module) -> None:
    # with a padding mask, in evaluation, an encoder hands its layers nested tensors, which only PyTorch's fused
    # attention takes
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(m, Attention) for m in module.modules()):
            module.use_nested_tensor = False
