"""Adapters: layers of `toa` behind the call signatures of the modules that they replace, and the masks they accept.

Operators mix keys before a query is compared with them. A mask can therefore hide whole keys and the future, but not
single pairs of a query and a key. Masks are read on the host to tell these cases apart.
Alphabet: B batch, M queries, N keys, H heads, E embedding.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from toa.nn import Attention


class MultiheadAdapter(nn.Module):
    """An attention layer with the call signature of `nn.MultiheadAttention`, including its masks and layouts.

    PyTorch's Transformer layers have a fast path that computes softmax attention from the weights of an
    `nn.MultiheadAttention` without calling it. They take this path only if `in_proj_bias` is a tensor. It is None here,
    so they call this module.

    Args:
        attention: The layer.
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
            attn_mask: None or the causal mask, bool or with values 0 and -inf.
            average_attn_weights: Whether W_mix is averaged over heads, (B, M, N), or returned per head, (B, H, M, N).
            is_causal: A hint that `attn_mask` is causal. Used only in a compiled graph, where the mask cannot be read.

        Raises:
            ValueError: If operators do not support a mask, or `is_causal` is given without one.
        """
        causal = self._is_causal(attn_mask, is_causal)
        padding = None if key_padding_mask is None else _hidden("key_padding_mask", key_padding_mask)
        batched = query.dim() == 3
        if not batched:
            query, key, value = _map_once(lambda x: x.unsqueeze(0), query, key, value)
            padding = None if padding is None else padding.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = _map_once(lambda x: x.transpose(0, 1), query, key, value)
        out, weights, _ = self.attention.attend(query, key, value, padding, need_weights, causal=causal)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)  # (B, M, N)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _is_causal(self, attn_mask: Tensor | None, hint: bool) -> bool:
        if attn_mask is None:
            if hint:
                raise ValueError(
                    "attn_mask must be given with is_causal=True, got None; "
                    "pass nn.Transformer.generate_square_subsequent_mask(num_tokens)."
                )
            return False
        if hint and torch.compiler.is_compiling():
            return True
        hidden = _hidden("attn_mask", attn_mask)
        if not hidden.any():
            return False
        if not (hidden == _future(hidden)).all():
            raise _pairs_error("attn_mask", hidden)
        return True


class ProjectionAdapter(nn.Module):
    """An attention layer with the call signature of modules in Hugging Face models: tokens (B, N, E) in, a tuple out.

    Args:
        attention: The layer.
        arguments: Names of the positional arguments of the replaced module; the first is the tokens.
        num_results: Length of the tuple that it returned; 0 for the output alone. The second result is W_mix if
            `output_attentions` is set. All further results are None.
    """

    # names of the tokens that give keys and values in cross attention
    SOURCES = ("key_value_states", "encoder_hidden_states")

    def __init__(self, attention: Attention, *, arguments: tuple[str, ...], num_results: int) -> None:
        super().__init__()
        self.attention = attention
        self.arguments = arguments
        self.num_results = num_results
        self.embed_dim = attention.embed_dim
        self.num_heads = attention.num_heads

    def forward(self, *args: object, **kwargs: object) -> Tensor | tuple[Tensor | None, ...]:
        """Attend.

        The arguments are those of the replaced module. `attention_mask` (B or 1, 1, M or 1, N) may hide padding and
        the future: 0 and -inf, or bool, False where hidden. All arguments other than the mask, tokens and
        `output_attentions` must be None or False.
        """
        given = dict(zip(self.arguments, args, strict=False)) | kwargs
        tokens = given.pop(self.arguments[0])
        assert isinstance(tokens, Tensor)
        sources = [s for name in self.SOURCES if isinstance(s := given.pop(name, None), Tensor)]
        source = sources[0] if sources else tokens
        mask = given.pop("attention_mask", None)
        need_weights = bool(given.pop("output_attentions", False))
        # `use_cache` alone changes nothing; a cache itself raises below
        given.pop("use_cache", None)
        for name, value in given.items():
            if value is not None and value is not False:
                raise ValueError(
                    f"{name} must be None for a converted layer, got {type(value).__name__}; "
                    "leave it out, or do not convert this layer."
                )
        padding, causal = None, self.attention.causal
        if isinstance(mask, Tensor):
            padding, causal = _split_attention_mask(mask, tokens.shape[0], tokens.shape[1])
        out, weights, _ = self.attention.attend(tokens, source, source, padding, need_weights, causal=causal)
        if self.num_results == 0:
            return out
        return (out, weights, *(None,) * self.num_results)[: self.num_results]


def _map_once(change: Callable[[Tensor], Tensor], query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """Change each distinct tensor once, because attention layers recognise self-attention by identity."""
    new_query = change(query)
    new_key = new_query if key is query else change(key)
    return [new_query, new_key, new_key if value is key else change(value)]


def _hidden(name: str, mask: Tensor) -> Tensor:
    """A mask as bool, True where hidden. In an additive mask -inf and the lowest numbers of its dtype hide.

    Raises:
        ValueError: If an additive mask holds other values than these and 0: then it is a bias.
    """
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ValueError(f"{name} must be bool or floating point, got {mask.dtype}; cast it with .bool().")
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if not (torch.compiler.is_compiling() or (mask.is_cuda and torch.cuda.is_current_stream_capturing())):
        bias = ~hidden & (mask != 0)
        if bias.any():
            raise ValueError(
                f"{name} must hold only 0 and -inf, got {int(bias.sum())} other values such as "
                f"{mask[bias][0].item():g}; leave the bias out, or do not convert this layer."
            )
    return hidden


def _split_attention_mask(mask: Tensor, batch: int, num_queries: int) -> tuple[Tensor | None, bool]:
    """The keys that an `attention_mask` hides from all queries, (B, N) or None, and whether it hides the future too."""
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2] not in (1, num_queries):
        raise ValueError(
            f"attention_mask must have shape (B, 1, M, N) with M={num_queries} queries, got {tuple(mask.shape)}; "
            "masks that differ by head are not supported."
        )
    # bool masks of these modules are True where a key is visible
    hidden = ~mask if mask.dtype == torch.bool else _hidden("attention_mask", mask)
    hidden = hidden.squeeze(1).expand(batch, -1, -1)  # (B, M, N)
    # causal or not, the last query sees every key that is not padding
    padding = hidden[:, -1]  # (B, N)
    keys = padding.unsqueeze(1).expand_as(hidden)
    for causal in (False, True):
        if torch.equal(hidden, keys | _future(hidden) if causal else keys):
            return (padding if padding.any() else None), causal
    raise _pairs_error("attention_mask", hidden)


def _future(hidden: Tensor) -> Tensor:
    return torch.ones(hidden.shape[-2:], dtype=torch.bool, device=hidden.device).triu(1)


def _pairs_error(name: str, hidden: Tensor) -> ValueError:
    return ValueError(
        f"{name} must be the causal mask, or hide whole keys, got another mask, which hides {int(hidden.sum())} of "
        f"{hidden.numel()} pairs; operators mix keys, so leave it out, or do not convert this layer."
    )
