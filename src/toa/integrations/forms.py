"""Attention modules that can be replaced: what `toa` has to know of each, read from the module.

Three forms are known: `nn.MultiheadAttention`, softmax attention of `toa` itself, and modules that project by q, k, v
and an output, under the usual names. Of the last, which may do anything between, one call on random tokens tells
whether they do plain softmax attention.
"""

import inspect
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from toa.integrations.adapters import MultiheadAdapter, ProjectionAdapter
from toa.nn import Attention, SoftmaxAttention, TemporalOperatorAttention

Number = TypeVar("Number", int, float)

# names of the projections of queries, keys, values and of the output; None where a parent module has the last
_NAMES = (("q_proj", "k_proj", "v_proj", ("out_proj", "o_proj")), ("query", "key", "value", (None,)))
_HEADS = ("num_heads", "num_attention_heads", "n_heads")
_SCALES = ("scaling", "scale")
_DROPOUTS = ("dropout", "attention_dropout", "attn_dropout", "attn_drop")
# of one call in the dtype of the weights, relative to the largest output
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
_TOLERANCE_LOW = 2e-2


class UnsuitableError(Exception):
    """Why a module is left as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What an attention module is made of.

    Attributes:
        q: Projection of queries; k, v, out likewise. These are the module's own where it has them.
        num_heads: Number of heads.
        dropout: Dropout on the weights.
        scale: What scores are multiplied by; None is 1 / sqrt(head width).
        causal: Whether it is causal when no mask says so.
        batch_first: The layout of an `nn.MultiheadAttention`; None for others.
        arguments: What a module outside of PyTorch and `toa` is called with, by name; empty for others.
        num_results: How many results that one gives in a tuple; 0 for an output alone.
    """

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    out: nn.Linear | nn.Identity
    num_heads: int
    dropout: float
    scale: float | None = None
    causal: bool = False
    batch_first: bool | None = None
    arguments: tuple[str, ...] = ()
    num_results: int = 0

    @property
    def embed_dim(self) -> int:
        """Width of queries and outputs."""
        return self.q.in_features

    def adapt(self, layer: Attention) -> nn.Module:
        """The layer behind the call of the module that it replaces."""
        if self.batch_first is not None:
            return MultiheadAdapter(layer, batch_first=self.batch_first)
        if self.arguments:
            return ProjectionAdapter(layer, arguments=self.arguments, num_results=self.num_results)
        return layer


def read_form(module: nn.Module) -> Form | None:
    """The form of a module, None if it has none of those known.

    Raises:
        UnsuitableError: If it has one, yet cannot be replaced.
    """
    if isinstance(module, nn.MultiheadAttention):
        form = _read_multihead(module)
    elif isinstance(module, Attention):
        form = _read_own(module)
    else:
        found = _read_projections(module)
        if found is None:
            return None
        form = found
    _check_sizes(form)
    if any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)):
        raise UnsuitableError("hooks hang on it, which a new module would lose")
    return form if not form.arguments else _probed(module, form)


def _read_multihead(module: nn.MultiheadAttention) -> Form:
    if type(module) is not nn.MultiheadAttention:
        raise UnsuitableError(
            f"{type(module).__name__} is a subclass of nn.MultiheadAttention and may compute otherwise"
        )
    if module.bias_k is not None or module.bias_v is not None:
        raise UnsuitableError("add_bias_kv=True adds a key and a value that are no tokens; operators act on tokens")
    if module.add_zero_attn:
        raise UnsuitableError("add_zero_attn=True adds a key and a value that are no tokens; operators act on tokens")
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    weights = separate if module.in_proj_weight is None else module.in_proj_weight.chunk(3)
    packed = module.in_proj_weight is not None
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    learns = [module.in_proj_weight.requires_grad] * 3 if packed else [w.requires_grad for w in separate]
    bias_learns = module.in_proj_bias is not None and module.in_proj_bias.requires_grad
    q, k, v = (
        _linear(weight, bias, flag, bias_learns) for weight, bias, flag in zip(weights, biases, learns, strict=True)
    )
    out = _linear(module.out_proj.weight, module.out_proj.bias)
    # the very parameters, for what else refers to them
    out.weight, out.bias = module.out_proj.weight, module.out_proj.bias
    return Form(
        q=q,
        k=k,
        v=v,
        out=out,
        num_heads=module.num_heads,
        dropout=module.dropout,
        batch_first=module.batch_first,
    )


def _linear(weight: Tensor, bias: Tensor | None, learns: bool = True, bias_learns: bool = True) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=learns)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias_learns)
    return layer


def _read_own(module: Attention) -> Form:
    if type(module) is not SoftmaxAttention:
        raise UnsuitableError("it is no softmax attention")
    if module.qk_dim != module.embed_dim // module.num_heads:
        raise UnsuitableError(f"its queries are {module.qk_dim} wide a head, its values not")
    return Form(
        q=module.q_proj,
        k=module.k_proj,
        v=module.v_proj,
        out=module.out_proj,
        num_heads=module.num_heads,
        dropout=module.dropout,
        causal=module.causal,
    )


def _read_projections(module: nn.Module) -> Form | None:
    children = dict(module.named_children())
    for *names, outputs in _NAMES:
        output = next((name for name in outputs if name is None or name in children), "")
        if output == "" or not all(name in children for name in names):
            continue
        used = [*names, *([] if output is None else [output])]
        layers = [children.pop(name) for name in used]
        others = [name for name, child in children.items() if not (isinstance(child, nn.Dropout) and name in _DROPOUTS)]
        if others or next(module.parameters(recurse=False), None) is not None:
            raise UnsuitableError(
                f"it has parts besides its projections: {', '.join(others) or 'parameters of its own'}"
            )
        for name, layer in zip(used, layers, strict=True):
            if not isinstance(layer, nn.Linear):
                raise UnsuitableError(f"{name} is no nn.Linear but {type(layer).__name__}")
        q, k, v, *out = layers
        heads = _first_of(module, _HEADS, int)
        if heads is None:
            raise UnsuitableError(f"it does not say how many heads it has, in any of {', '.join(_HEADS)}")
        return Form(
            q=q,  # type: ignore[arg-type]
            k=k,  # type: ignore[arg-type]
            v=v,  # type: ignore[arg-type]
            out=out[0] if out else nn.Identity(),  # type: ignore[arg-type]
            num_heads=heads,
            dropout=_dropout(module),
            scale=_first_of(module, _SCALES, float),
            arguments=_argument_names(module),
        )
    return None


def _argument_names(module: nn.Module) -> tuple[str, ...]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(n for n, p in inspect.signature(module.forward).parameters.items() if p.kind in positional)
    if not names:
        raise UnsuitableError("its forward names no argument")
    return names


def _first_of(module: nn.Module, names: tuple[str, ...], kind: type[Number]) -> Number | None:
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if isinstance(value, kind)), None)


def _dropout(module: nn.Module) -> float:
    for name in _DROPOUTS:
        value = getattr(module, name, None)
        if isinstance(value, nn.Dropout):
            return value.p
        if isinstance(value, float | int):
            return float(value)
    return 0.0


def _check_sizes(form: Form) -> None:
    sizes = {"queries": form.q.out_features, "values": form.v.out_features}
    if isinstance(form.out, nn.Linear):
        sizes |= {"outputs": form.out.out_features, "joined heads": form.out.in_features}
    odd = [f"{name} are {size}" for name, size in sizes.items() if size != form.embed_dim]
    if odd:
        raise UnsuitableError(f"tokens are {form.embed_dim} wide, but {', '.join(odd)}")
    if form.k.out_features != form.q.out_features:
        raise UnsuitableError(f"keys are {form.k.out_features} wide, queries {form.q.out_features}")
    if form.embed_dim % form.num_heads:
        raise UnsuitableError(f"{form.num_heads} heads do not divide a width of {form.embed_dim}")


@torch.no_grad()
def _probed(module: nn.Module, form: Form) -> Form:
    """The form, completed by what a call on random tokens shows: causal or not, and how many results.

    Raises:
        UnsuitableError: If the call fails, or does not give what softmax attention with these projections gives.
    """
    weight = form.q.weight
    if weight.is_meta:
        raise UnsuitableError("its weights are on the meta device, so that it cannot be tried")
    tokens = torch.randn(2, 5, form.embed_dim, generator=torch.Generator().manual_seed(0)).to(weight)
    modes = {part: part.training for part in module.modules()}
    try:
        result = module.eval()(tokens)
    except Exception as error:
        raise UnsuitableError(f"it cannot be called with tokens alone: {type(error).__name__}: {error}") from error
    finally:
        for part, mode in modes.items():
            part.training = mode
    results = result if isinstance(result, tuple) else (result,)
    plain = TemporalOperatorAttention(
        form.embed_dim, form.num_heads, 5, "softmax", scale=form.scale, operator_std=0.0, kdim=form.k.in_features
    )
    plain = plain.to(weight).eval()
    plain.q_proj, plain.k_proj, plain.v_proj, plain.out_proj = form.q, form.k, form.v, form.out  # type: ignore[assignment]
    allowed = _TOLERANCE.get(weight.dtype, _TOLERANCE_LOW)
    errors = []
    for causal in (False, True):
        expected = plain.attend(tokens, tokens, tokens, causal=causal).output
        if not isinstance(results[0], Tensor) or results[0].shape != expected.shape:
            raise UnsuitableError("its first result is not an output of the shape of its tokens")
        errors.append(((results[0] - expected).abs().max() / expected.abs().max()).item())
        if errors[-1] <= allowed:
            return replace(form, causal=causal, num_results=len(results) if isinstance(result, tuple) else 0)
    raise UnsuitableError(f"it does not give what softmax attention gives: its output differs by {min(errors):.1e}")
