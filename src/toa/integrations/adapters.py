"""Layers of `toa` behind the calls of the modules that they replace."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from toa.integrations.masks import hidden_by, is_causal_mask, split_hidden
from toa.nn import Attention


class MultiheadAdapter(nn.Module):
    """An attention layer called like `nn.MultiheadAttention`, masks, layouts and all.

    PyTorch's Transformer layers have a fast path that reads the weights of `nn.MultiheadAttention` and computes softmax
    attention from them, past any module in its place. They take it only where `in_proj_bias` is a tensor: here it is
    None, so they call this module.

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
            need_weights: Whether to return the mixing operators W_mix: signed, and the attention weights where the
                operators are identities.
            attn_mask: None or the causal mask, bool or of 0 and -inf; see `toa.integrations.masks`.
            average_attn_weights: Whether W_mix is averaged over heads, (B, M, N), or kept apart, (B, H, M, N).
            is_causal: A hint that `attn_mask` is causal, trusted only where the mask cannot be read: in a compiled
                graph.

        Raises:
            ValueError: If a mask is one that operators cannot honour, or `is_causal` comes without one.
        """
        causal = self._is_causal(attn_mask, is_causal)
        padding = None if key_padding_mask is None else hidden_by("key_padding_mask", key_padding_mask)
        batched = query.dim() == 3
        if not batched:
            query, key, value = _each_once(lambda x: x.unsqueeze(0), query, key, value)
            padding = None if padding is None else padding.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = _each_once(lambda x: x.transpose(0, 1), query, key, value)
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
                    "attn_mask must be given with is_causal=True, which only says what it is, got None; "
                    "pass nn.Transformer.generate_square_subsequent_mask(num_tokens)."
                )
            return False
        if hint and torch.compiler.is_compiling():
            return True
        return is_causal_mask("attn_mask", hidden_by("attn_mask", attn_mask))


def _each_once(change: Callable[[Tensor], Tensor], query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """Tensors changed, the same one once, so that self-attention is still known by identity."""
    new_query = change(query)
    new_key = new_query if key is query else change(key)
    return [new_query, new_key, new_key if value is key else change(value)]


class ProjectionAdapter(nn.Module):
    """An attention layer called like the modules of Hugging Face's models: tokens (B, N, E) in, a tuple out.

    Args:
        attention: The layer.
        arguments: Names of the arguments that the replaced module took, in order; the first is the tokens.
        num_results: How many results it gave in a tuple; 0 for the output alone. The second is W_mix where
            `output_attentions` asks for it, and None otherwise, like those after it.
    """

    # the tokens that keys and values are made of, where they are not the queries'
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
        the future: 0 and -inf, or bool, False where hidden. What is neither it, tokens, nor `output_attentions` must
        be None or False.
        """
        given = dict(zip(self.arguments, args, strict=False)) | kwargs
        tokens = given.pop(self.arguments[0])
        assert isinstance(tokens, Tensor)
        sources = [s for name in self.SOURCES if isinstance(s := given.pop(name, None), Tensor)]
        source = sources[0] if sources else tokens
        mask = given.pop("attention_mask", None)
        need_weights = bool(given.pop("output_attentions", False))
        # says what is to be kept of a cache; the cache itself is refused below
        given.pop("use_cache", None)
        for name, value in given.items():
            if value is not None and value is not False:
                raise ValueError(
                    f"{name} must be None for a converted layer, got {type(value).__name__}; "
                    "leave it out, or keep this layer as it was."
                )
        padding, causal = None, self.attention.causal
        if isinstance(mask, Tensor):
            padding, causal = _split_attention_mask(mask, tokens.shape[0], tokens.shape[1])
        out, weights, _ = self.attention.attend(tokens, source, source, padding, need_weights, causal=causal)
        if self.num_results == 0:
            return out
        return (out, weights, *(None,) * self.num_results)[: self.num_results]


def _split_attention_mask(mask: Tensor, batch: int, num_queries: int) -> tuple[Tensor | None, bool]:
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2] not in (1, num_queries):
        raise ValueError(
            f"attention_mask must have shape (B, 1, M, N) with M={num_queries} queries, got {tuple(mask.shape)}; "
            "a mask that differs by head cannot be honoured."
        )
    # bool masks of these modules say what is seen
    hidden = ~mask if mask.dtype == torch.bool else hidden_by("attention_mask", mask)
    return split_hidden("attention_mask", hidden.squeeze(1).expand(batch, -1, -1))
