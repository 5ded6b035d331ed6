"""Encoder and decoder blocks around any attention of the library."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least, check_fraction
from toa.nn.attention import Attended, Attention, ScoreFactors
from toa.nn.layers import ChannelDropout, Dropout, LayerNorm, Linear, Norm, make_norm, normalise_tokens


class FeedForward(nn.Sequential):
    """Linear, GELU, dropout, linear, dropout."""

    def __init__(self, embed_dim: int, ff_dim: int, *, dropout: float = 0.0, bias: bool = True) -> None:
        check_at_least("ff_dim", ff_dim, 1)
        check_fraction("dropout", dropout)
        first, second = Linear(embed_dim, ff_dim, bias=bias), Linear(ff_dim, embed_dim, bias=bias)
        super().__init__(first, nn.GELU(), Dropout(dropout), second, Dropout(dropout))


class EncoderBlock(nn.Module):
    """Attention and feed-forward, each with a residual connection.

    norm_first:  x ← x + attention(norm(x)); x ← x + ff(norm(x))
    otherwise:   x ← norm(x + attention(x)); x ← norm(x + ff(x))

    Args:
        attention: Any attention of the library; it sets the block's `embed_dim`.
        dropout: Dropout rate inside and after the feed-forward network.
        attention_dropout: Dropout rate on the output of the attention; `dropout` if None. Dropout on the activated
            scores is an option of the attention.
        norm: "layer" or "batch"; see `toa.nn.make_norm`.
        norm_first: Whether to normalise before each sub-layer (pre-norm) instead of after the addition (post-norm).
    """

    def __init__(
        self,
        attention: Attention,
        ff_dim: int,
        *,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        norm: Norm = "layer",
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        attention_dropout = dropout if attention_dropout is None else attention_dropout
        check_fraction("attention_dropout", attention_dropout)
        self.norm_first = norm_first
        self.attention = attention
        self.attention_norm = make_norm(norm, attention.embed_dim)
        self.attention_dropout: nn.Module = Dropout(attention_dropout)
        self.ff = FeedForward(attention.embed_dim, ff_dim, dropout=dropout)
        self.ff_norm = make_norm(norm, attention.embed_dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Encode tokens (B, N, E)."""
        return self.encode(x, key_padding_mask)[0]

    def encode(self, x: Tensor, key_padding_mask: Tensor | None = None, **options: Any) -> tuple[Tensor, ScoreFactors]:
        """Encode tokens (B, N, E), with the factors of the scores; `options` are those of `Attention.attend`."""
        h = normalise_tokens(self.attention_norm, x, key_padding_mask) if self.norm_first else x
        attended, _, factors = self._attend(h, key_padding_mask, **options)
        if self.norm_first:
            x = x + self.attention_dropout(attended)
            x = x + self.ff(normalise_tokens(self.ff_norm, x, key_padding_mask))
        else:
            added = (attended, self.attention_dropout)
            x = normalise_tokens(self.attention_norm, x, key_padding_mask, add=added)
            first, gelu, dropout, second, last = self.ff
            added = (second(dropout(gelu(first(x)))), last)
            x = normalise_tokens(self.ff_norm, x, key_padding_mask, add=added)
        return x, factors

    def _attend(self, h: Tensor, padding: Tensor | None, **options: Any) -> Attended:
        return self.attention.attend(h, h, h, padding, **options)


class ChannelBlock(EncoderBlock):
    """Attention between channels that have tokens at G positions (B, C, G, E): one matrix of weights for all positions.

    Queries and keys are of the mean of a channel's tokens over positions; values are of every token.

    Args:
        channel_dropout: Rate at which a channel receives nothing from the others, in training.

    The other arguments are those of `EncoderBlock`.
    """

    def __init__(
        self, attention: Attention, ff_dim: int, *, dropout: float = 0.0, channel_dropout: float = 0.0
    ) -> None:
        super().__init__(attention, ff_dim, dropout=dropout)
        self.attention_dropout = nn.Sequential(Dropout(dropout), ChannelDropout(channel_dropout))

    def _attend(self, h: Tensor, padding: Tensor | None, **options: Any) -> Attended:
        """Attend; `padding` (B, G) is True at positions that hold only padding."""
        if padding is None:
            mean = h.mean(2)  # (B, C, E)
        else:
            shares = (~padding).to(h.dtype) / (~padding).sum(1, keepdim=True)
            mean = torch.einsum("bcge,bg->bce", h, shares)
        return self.attention.attend(mean, mean, h, **options)


class EncoderStack(nn.ModuleList):
    """A sequence of encoder blocks.

    Args:
        residual_scores: Whether each block adds the scores of all earlier blocks to its own before S1 and the
            activation (He et al., 2020).
    """

    def __init__(self, blocks: Iterable[EncoderBlock], *, residual_scores: bool = False) -> None:
        super().__init__(blocks)
        self.residual_scores = residual_scores

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, pair_mask: Tensor | None = None) -> Tensor:
        """Encode tokens (B, N, E); arguments as in `Attention.attend`."""
        factors: ScoreFactors | None = None
        for block in self:
            assert isinstance(block, EncoderBlock)
            x, scores = block.encode(x, key_padding_mask, previous=factors, pair_mask=pair_mask)
            factors = scores if self.residual_scores else None
        return x


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention to encoded tokens, and feed-forward, each with a residual connection.

    norm_first:  x ← x + layer(norm(x)), for each of the three
    otherwise:   x ← norm(x + layer(x))

    Args:
        own: Self-attention; causal if a token must not attend to later ones.
        cross: Attention from the block's tokens to the encoded tokens, which are the keys.
        dropout: Dropout rate inside and after the feed-forward network, and on the outputs of the attentions.
        norm_first: Whether to normalise before each sub-layer (pre-norm) instead of after the addition (post-norm).
    """

    def __init__(
        self, own: Attention, cross: Attention, ff_dim: int, *, dropout: float = 0.0, norm_first: bool = True
    ) -> None:
        super().__init__()
        if own.embed_dim != cross.embed_dim:
            raise ArgumentError(
                "cross", f"have embed_dim={own.embed_dim} as own has", cross.embed_dim, "use the same for both"
            )
        self.norm_first = norm_first
        self.own = own
        self.cross = cross
        self.dropout = Dropout(dropout)
        self.ff = FeedForward(own.embed_dim, ff_dim, dropout=dropout)
        self.own_norm, self.cross_norm, self.ff_norm = (LayerNorm(own.embed_dim) for _ in range(3))

    def forward(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Decode tokens (B, M, E) that attend to encoded tokens (B, N, E)."""
        x = self._residual(x, self.own_norm, lambda h: self.dropout(self.own(h, h, h)[0]))
        x = self._residual(x, self.cross_norm, lambda h: self.dropout(self.cross(h, encoded, encoded)[0]))
        return self._residual(x, self.ff_norm, self.ff)

    def _residual(self, x: Tensor, norm: nn.Module, layer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + layer(norm(x)) if self.norm_first else norm(x + layer(x))
