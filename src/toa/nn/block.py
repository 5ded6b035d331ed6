"""Encoder block: any attention of the library, and a feed-forward network that it leaves untouched."""

from collections.abc import Iterable

from torch import Tensor, nn

from toa._checks import check_at_least, check_fraction
from toa.nn.attention import Attended, Attention, ScoreFactors
from toa.nn.norm import Norm, make_norm


class FeedForward(nn.Sequential):
    """Linear, GELU, dropout, linear, dropout."""

    def __init__(self, embed_dim: int, ff_dim: int, *, dropout: float = 0.0) -> None:
        check_at_least("ff_dim", ff_dim, 1)
        check_fraction("dropout", dropout)
        super().__init__(
            nn.Linear(embed_dim, ff_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(ff_dim, embed_dim),
            nn.Dropout(dropout),
        )


class EncoderBlock(nn.Module):
    """Attention and feed-forward, each beside a residual path.

    norm_first:  x ← x + attention(norm(x)); x ← x + ff(norm(x))
    otherwise:   x ← norm(x + attention(x)); x ← norm(x + ff(x))

    Args:
        attention: Any attention of the library; its `embed_dim` is the block's.
        ff_dim: Width inside of the feed-forward network.
        dropout: Dropout inside and after the feed-forward network.
        attention_dropout: Dropout on what the attention adds to the residual path; `dropout` if None. Dropout on its
            activated scores is the attention's own.
        norm: "layer" or "batch"; see `toa.nn.norm.make_norm`.
        norm_first: Whether to normalise where a sub-layer branches off, rather than where it comes back.
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
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.ff = FeedForward(attention.embed_dim, ff_dim, dropout=dropout)
        self.ff_norm = make_norm(norm, attention.embed_dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Encode tokens (B, N, E)."""
        return self.encode(x, key_padding_mask).output

    def encode(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        previous: ScoreFactors | None = None,
        pair_mask: Tensor | None = None,
    ) -> Attended:
        """Encode tokens, and return what the attention gives besides.

        Args:
            x: Tokens (B, N, E).
            key_padding_mask: (B, N), True where a token is padding.
            need_weights: Whether to return the mixing operator (B, H, N, N).
            previous: Score factors of the block before, whose scores are added to this one's.
            pair_mask: (B or 1, N, N), what each pair of tokens is let through with; see `Attention.attend`.
        """
        h = self.attention_norm(x) if self.norm_first else x
        attended = self.attention.attend(h, h, h, key_padding_mask, need_weights, previous, pair_mask)
        x = x + self.attention_dropout(attended.output)
        if self.norm_first:
            x = x + self.ff(self.ff_norm(x))
        else:
            x = self.attention_norm(x)
            x = self.ff_norm(x + self.ff(x))
        return attended._replace(output=x)


class EncoderStack(nn.ModuleList):
    """Blocks, one after another.

    Args:
        blocks: The blocks, first to last.
        residual_scores: Whether each block adds the summed scores of all before it to its own, ahead of S1 and the
            activation (He et al., 2020).
    """

    def __init__(self, blocks: Iterable[EncoderBlock], *, residual_scores: bool = False) -> None:
        super().__init__(blocks)
        self.residual_scores = residual_scores

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Encode tokens (B, N, E)."""
        return self.encode(x, key_padding_mask)[0]

    def encode(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        pair_mask: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Encode tokens; with `need_weights`, return each block's mixing operator (B, H, N, N) as well."""
        operators = []
        factors: ScoreFactors | None = None
        for block in self:
            assert isinstance(block, EncoderBlock)
            x, operator, scores = block.encode(x, key_padding_mask, need_weights, factors, pair_mask)
            factors = scores if self.residual_scores else None
            if operator is not None:
                operators.append(operator)
        return x, operators
