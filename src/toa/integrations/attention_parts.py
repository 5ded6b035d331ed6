"""Attention modules that `convert` can replace, and adapters that give layers of `toa` their call signatures.

`nn.MultiheadAttention`, softmax attention of `toa`, and modules with projections of queries, keys, values and output
under common names can be replaced. A call on random tokens tests whether the last kind is plain softmax attention.

Operators mix keys before a query is compared with them. A mask can therefore hide whole keys and the future, but not
single pairs of a query and a key. Masks are read on the host to tell these cases apart.
Alphabet: B batch, M queries, N keys, H heads, E embedding.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError
from toa.nn import Attention, SoftmaxAttention, TemporalOperatorAttention

# names of the projections of queries, keys, values and of the output; None if a parent module has the last one
_NAMES = (("q_proj", "k_proj", "v_proj", ("out_proj", "o_proj")), ("query", "key", "value", (None,)))
_HEADS = ("num_heads", "num_attention_heads", "n_heads")
_SCALES = ("scaling", "scale")
_DROPOUTS = ("dropout", "attention_dropout", "attn_dropout", "attn_drop")
# allowed error of the test call, relative to the largest output
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
_TOLERANCE_LOW = 2e-2


class UnsuitableError(Exception):
    """Why a module is not replaced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionParts:
    """Parts and options of an attention module.

    Attributes:
        q: Projection of queries; `k`, `v` and `out` are the others. The module's own layers where it has them.
        scale: Factor of the scores; None is 1 / sqrt(head width).
        causal: Whether it is causal without a mask.
        window: A query sees keys nearer than this; None for all.
        adapt: Gives a layer the call signature of the module that it replaces.
    """

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    out: nn.Linear | nn.Identity
    num_heads: int
    dropout: float
    scale: float | None = None
    causal: bool = False
    window: int | None = None
    adapt: Callable[..., nn.Module] = lambda layer: layer

    @property
    def embed_dim(self) -> int:
        """Width of queries and outputs."""
        return self.q.in_features


def read_parts(module: nn.Module) -> AttentionParts | None:
    """The parts of an attention module; None for any other module."""
    parts: AttentionParts | None
    if isinstance(module, nn.MultiheadAttention):
        parts = _read_multihead(module)
    elif isinstance(module, Attention):
        parts = _read_toa(module)
    else:
        parts = _read_projections(module)
    if parts is None:
        return None
    _check_sizes(parts)
    if any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)):
        raise UnsuitableError("it has hooks, which a new module would lose")
    return parts if isinstance(module, nn.MultiheadAttention | Attention) else _probe(module, parts)


def _read_multihead(module: nn.MultiheadAttention) -> AttentionParts:
    if type(module) is not nn.MultiheadAttention:
        raise UnsuitableError(f"{type(module).__name__} is a subclass of nn.MultiheadAttention and may differ from it")
    for option, is_set in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
        if is_set:
            raise UnsuitableError(f"{option}=True adds a key that is not a token; operators act on tokens only")
    bias = module.in_proj_bias
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    bias_learns = bias is not None and bias.requires_grad
    if module._qkv_same_embed_dim:
        weights = list(module.in_proj_weight.chunk(3))
        learns = [module.in_proj_weight.requires_grad] * 3
    else:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
        learns = [weight.requires_grad for weight in weights]
    q, k, v = (_linear(w, b, flag, bias_learns) for w, b, flag in zip(weights, biases, learns, strict=True))
    out = _linear(module.out_proj.weight, module.out_proj.bias)
    # the same parameters, because other modules may share them
    out.weight = module.out_proj.weight
    out.bias = module.out_proj.bias
    adapt = partial(MultiheadAdapter, batch_first=module.batch_first)
    return AttentionParts(q=q, k=k, v=v, out=out, num_heads=module.num_heads, dropout=module.dropout, adapt=adapt)


def _linear(weight: Tensor, bias: Tensor | None, learns: bool = True, bias_learns: bool = True) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=learns)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias_learns)
    return layer


def _read_toa(module: Attention) -> AttentionParts:
    if type(module) is not SoftmaxAttention:
        raise UnsuitableError("it is not softmax attention")
    if module.qk_dim != module.embed_dim // module.num_heads:
        raise UnsuitableError(f"its queries have width {module.qk_dim} per head, its values another")
    layers: dict[str, Any] = {"q": module.q_proj, "k": module.k_proj, "v": module.v_proj, "out": module.out_proj}
    options: dict[str, Any] = {"dropout": module.dropout, "causal": module.causal, "window": module.window}
    return AttentionParts(**layers, num_heads=module.num_heads, **options)


def _read_projections(module: nn.Module) -> AttentionParts | None:
    children: dict[str, Any] = dict(module.named_children())
    for *names, outputs in _NAMES:
        output = next((name for name in outputs if name is None or name in children), "")
        if output == "" or not all(name in children for name in names):
            continue
        used = [*names, *([] if output is None else [output])]
        layers = {name: children.pop(name) for name in used}
        others = [name for name, child in children.items() if not (isinstance(child, nn.Dropout) and name in _DROPOUTS)]
        if others or next(module.parameters(recurse=False), None) is not None:
            raise UnsuitableError(f"it has parts besides its projections: {', '.join(others) or 'other parameters'}")
        for name, layer in layers.items():
            if not isinstance(layer, nn.Linear):
                raise UnsuitableError(f"{name} is not an nn.Linear but {type(layer).__name__}")
        q, k, v, *out = layers.values()
        heads = _first_attribute(module, _HEADS, int)
        if heads is None:
            raise UnsuitableError(f"it has no number of heads under any of the names {', '.join(_HEADS)}")
        dropout = _first_attribute(module, _DROPOUTS, nn.Dropout | float | int) or 0.0
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(module.forward).parameters
        arguments = tuple(name for name, parameter in parameters.items() if parameter.kind in positional)
        if not arguments:
            raise UnsuitableError("its forward has no named argument")
        return AttentionParts(
            q=q,
            k=k,
            v=v,
            out=out[0] if out else nn.Identity(),
            num_heads=heads,
            dropout=dropout.p if isinstance(dropout, nn.Dropout) else float(dropout),
            scale=_first_attribute(module, _SCALES, float),
            adapt=partial(ProjectionAdapter, arguments=arguments),
        )
    return None


def _first_attribute(module: nn.Module, names: tuple[str, ...], kind: Any) -> Any:
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if isinstance(value, kind)), None)


def _check_sizes(parts: AttentionParts) -> None:
    sizes = {"queries": parts.q.out_features, "values": parts.v.out_features}
    if isinstance(parts.out, nn.Linear):
        sizes |= {"outputs": parts.out.out_features, "joined heads": parts.out.in_features}
    odd = [f"{name} {size}" for name, size in sizes.items() if size != parts.embed_dim]
    if odd:
        raise UnsuitableError(f"its tokens have width {parts.embed_dim}, but {', '.join(odd)}")
    if parts.k.out_features != parts.q.out_features:
        raise UnsuitableError(f"its keys have width {parts.k.out_features}, its queries {parts.q.out_features}")
    if parts.embed_dim % parts.num_heads:
        raise UnsuitableError(f"its width {parts.embed_dim} is not a multiple of its {parts.num_heads} heads")


@torch.no_grad()
def _probe(module: nn.Module, parts: AttentionParts) -> AttentionParts:
    """Add what calls on random tokens show: whether the module is causal, also with a mask, and how many results."""
    weight = parts.q.weight
    if weight.is_meta:
        raise UnsuitableError("its weights are on the meta device, so it cannot be called")
    tokens = torch.randn(2, 5, parts.embed_dim, generator=torch.Generator().manual_seed(0)).to(weight)
    modes = {part: part.training for part in module.modules()}
    masked: Any = None
    try:
        result = module.eval()(tokens)
        if "attention_mask" in parts.adapt.keywords["arguments"]:  # type: ignore[attr-defined]
            # a mask that hides nothing
            with suppress(Exception):
                masked = module(tokens, attention_mask=tokens.new_zeros(2, 1, 5, 5))
    except Exception as error:
        raise UnsuitableError(f"it cannot be called with tokens alone: {type(error).__name__}: {error}") from error
    finally:
        for part, mode in modes.items():
            part.training = mode
    results, masked = (found if isinstance(found, tuple) else (found,) for found in (result, masked))
    plain: Any = TemporalOperatorAttention(
        parts.embed_dim, parts.num_heads, 5, "softmax", scale=parts.scale, operator_std=0.0, kdim=parts.k.in_features
    )
    plain = plain.to(weight).eval()
    plain.q_proj = parts.q
    plain.k_proj = parts.k
    plain.v_proj = parts.v
    plain.out_proj = parts.out
    errors = []
    for causal in (False, True):
        expected = plain.attend(tokens, tokens, tokens, causal=causal).output
        if not isinstance(results[0], Tensor) or results[0].shape != expected.shape:
            raise UnsuitableError("its first result does not have the shape of its tokens")
        errors.append(((results[0] - expected).abs().max() / expected.abs().max()).item())
        if errors[-1] <= _TOLERANCE.get(weight.dtype, _TOLERANCE_LOW):
            num_results = len(results) if isinstance(result, tuple) else 0
            same = partial(torch.allclose, atol=(expected.abs().max() * errors[-1]).item(), rtol=1e-4)
            always = causal and isinstance(masked[0], Tensor) and same(masked[0], results[0])
            adapt = partial(parts.adapt, num_results=num_results, always_causal=always)
            return replace(parts, causal=causal, adapt=adapt)
    raise UnsuitableError(f"its output differs from softmax attention by {min(errors):.1e}")


class MultiheadAdapter(nn.Module):
    """An attention layer with the call signature of `nn.MultiheadAttention`, including its masks and layouts.

    PyTorch's Transformer layers have a fast path that computes softmax attention from the weights of an
    `nn.MultiheadAttention` without calling it. They take this path only if `in_proj_bias` is a tensor. It is None here,
    so they call this module.

    Args:
        batch_first: Whether tensors are (B, N, E), not (N, B, E).
    """

    in_proj_weight: None = None
    in_proj_bias: None = None
    _qkv_same_embed_dim: bool = False

    def __init__(self, attention: Attention, *, batch_first: bool) -> None:
        super().__init__()
        self.attention = attention
        self.batch_first = batch_first
        self.embed_dim = attention.embed_dim
        self.num_heads = attention.num_heads

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: (B, M, E) or (M, B, E); (M, E) without a batch.
            key: (B, N, kdim) or (N, B, kdim); (N, kdim) without a batch.
            value: (B, N, vdim) or (N, B, vdim); (N, vdim) without a batch.
            key_padding_mask: (B, N), True or -inf where a key is padding.
            need_weights: Whether to return the signed mixing operators W_mix. If S1 and S2 are identities, these are
                the attention weights.
            attn_mask: None or the causal mask, (M, N) or (B H, M, N), bool or with values 0 and -inf.
            average_attn_weights: Whether W_mix is averaged over heads, (B, M, N), or returned per head, (B, H, M, N).
            is_causal: A hint that `attn_mask` is causal. Used only in a compiled graph, where the mask cannot be read.
        """
        if attn_mask is None and is_causal:
            raise ArgumentError(
                "attn_mask",
                "be given with is_causal=True",
                "None",
                "pass nn.Transformer.generate_square_subsequent_mask(num_tokens)",
            )
        causal = is_causal and torch.compiler.is_compiling()
        if attn_mask is not None and not causal:
            hidden = _hidden("attn_mask", attn_mask)
            causal = _hides_future("attn_mask", hidden, torch.zeros_like(hidden))
        padding = None if key_padding_mask is None else _hidden("key_padding_mask", key_padding_mask)
        batched = query.dim() == 3
        if not batched:
            query, key, value = _map_once(lambda x: x.unsqueeze(0), query, key, value)
            padding = None if padding is None else padding.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = _map_once(lambda x: x.transpose(0, 1), query, key, value)
        pairs = (query.shape[1], key.shape[1])
        shapes = (pairs, (query.shape[0] * self.num_heads, *pairs))
        if attn_mask is not None and tuple(attn_mask.shape) not in shapes:
            raise ArgumentError("attn_mask", f"have shape {shapes[0]} or {shapes[1]}", tuple(attn_mask.shape))
        out, weights, _ = self.attention.attend(query, key, value, padding, need_weights=need_weights, causal=causal)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)  # (B, M, N)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), weights


class ProjectionAdapter(nn.Module):
    """An attention layer with the call signature of modules in Hugging Face models: tokens (B, N, E) in, a tuple out.

    Args:
        arguments: Names of the positional arguments of the replaced module; the first is the tokens.
        num_results: Length of the tuple that it returned; 0 for the output alone. The second result is W_mix if
            `output_attentions` is set. All further results are None.
        always_causal: Whether the replaced module also hid the future with a mask that does not hide it.
    """

    # names of the tokens that give keys and values in cross attention
    SOURCES = ("key_value_states", "encoder_hidden_states")

    def __init__(
        self, attention: Attention, *, arguments: tuple[str, ...], num_results: int, always_causal: bool = False
    ) -> None:
        super().__init__()
        self.attention = attention
        self.arguments = arguments
        self.num_results = num_results
        self.always_causal = always_causal
        self.embed_dim = attention.embed_dim
        self.num_heads = attention.num_heads

    def forward(self, *args: object, **kwargs: object) -> Tensor | tuple[Tensor | None, ...]:
        """Attend.

        The arguments are those of the replaced module. `attention_mask` (B or 1, 1, M or 1, N) may hide padding and
        the future: 0 and -inf, or bool, False where hidden. All arguments other than the mask, tokens and
        `output_attentions` must be None or False.
        """
        arguments = dict(zip(self.arguments, args, strict=False)) | kwargs
        tokens = arguments.pop(self.arguments[0])
        assert isinstance(tokens, Tensor)
        sources = [s for name in self.SOURCES if isinstance(s := arguments.pop(name, None), Tensor)]
        source = sources[0] if sources else tokens
        mask = arguments.pop("attention_mask", None)
        asked = bool(arguments.pop("output_attentions", False))
        # `use_cache` alone changes nothing; a cache itself raises below
        arguments.pop("use_cache", None)
        for name, value in arguments.items():
            if value is not None and value is not False:
                raise ArgumentError(
                    name,
                    "be None for a converted layer",
                    type(value).__name__,
                    "leave it out, or do not convert this layer",
                )
        padding = None
        causal = self.attention.causal
        if isinstance(mask, Tensor):
            padding, causal = _split_attention_mask(mask, tokens.shape[0], tokens.shape[1])
            causal = causal or self.always_causal
        out, weights, _ = self.attention.attend(tokens, source, source, padding, need_weights=asked, causal=causal)
        if self.num_results == 0:
            return out
        return (out, weights, *(None,) * self.num_results)[: self.num_results]


def _map_once(change: Callable[[Tensor], Tensor], query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """Change each distinct tensor once, because attention layers recognise self-attention by identity."""
    new_query = change(query)
    new_key = new_query if key is query else change(key)
    return [new_query, new_key, new_key if value is key else change(value)]


def _hidden(name: str, mask: Tensor) -> Tensor:
    """A mask as bool, True where hidden. In an additive mask -inf and the lowest numbers of its dtype hide."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ArgumentError(name, "be bool or floating point", mask.dtype, "cast it with .bool()")
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if not (torch.compiler.is_compiling() or (mask.is_cuda and torch.cuda.is_current_stream_capturing())):
        bias = ~hidden & (mask != 0)
        if bias.any():
            raise ArgumentError(
                name,
                "hold only 0 and -inf",
                f"{int(bias.sum())} other values such as {mask[bias][0].item():g}",
                "leave the bias out, or do not convert this layer",
            )
    return hidden


def _split_attention_mask(mask: Tensor, batch: int, num_queries: int) -> tuple[Tensor | None, bool]:
    """The keys that an `attention_mask` hides from all queries, (B, N) or None, and whether it hides the future too."""
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2] not in (1, num_queries):
        raise ArgumentError(
            "attention_mask",
            f"have shape (B, 1, M, N) with M={num_queries} queries",
            tuple(mask.shape),
            "masks that differ by head are not supported",
        )
    # bool masks of these modules are True where a key is visible
    hidden = ~mask if mask.dtype == torch.bool else _hidden("attention_mask", mask)
    hidden = hidden.squeeze(1).expand(batch, -1, -1)  # (B, M, N)
    # causal or not, the last query sees every key that is not padding
    padding = hidden[:, -1]  # (B, N)
    causal = _hides_future("attention_mask", hidden, padding.unsqueeze(1).expand_as(hidden))
    return (padding if padding.any() else None), causal


def _hides_future(name: str, hidden: Tensor, keys: Tensor) -> bool:
    """Whether a mask hides the future besides whole keys, both of its shape; raises ValueError for other pairs."""
    future = torch.ones(hidden.shape[-2:], dtype=torch.bool, device=hidden.device).triu(1)
    for causal in (False, True):
        if torch.equal(hidden, keys | future if causal else keys):
            return causal
    raise ArgumentError(
        name,
        "be the causal mask, or hide whole keys",
        f"another mask, which hides {int(hidden.sum())} of {hidden.numel()} pairs",
        "operators mix keys, so leave it out, or do not convert this layer",
    )
