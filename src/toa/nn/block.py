"""Encoder block: any attention of the library, and a feed-forward network that it leaves untouched."""

from torch import Tensor, nn

from toa.nn.attention import Attention


class FeedForward(nn.Sequential):
    """Linear, GELU, dropout, linear, dropout."""

    def __init__(self, embed_dim: int, ff_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__(
            nn.Linear(embed_dim, ff_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(ff_dim, embed_dim),
            nn.Dropout(dropout),
        )


class EncoderBlock(nn.Module):
    """Attention and feed-forward, each on a residual path that is normalised where it branches off.

    x ← x + attention(norm(x)); x ← x + ff(norm(x))
    """

    def __init__(self, attention: Attention, ff_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(attention.embed_dim)
        self.attention_dropout = nn.Dropout(dropout)
        self.ff = FeedForward(attention.embed_dim, ff_dim, dropout=dropout)
        self.ff_norm = nn.LayerNorm(attention.embed_dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Encode tokens (B, N, E)."""
        return self.encode(x, key_padding_mask)[0]

    def encode(
        self, x: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Encode tokens; with `need_weights`, return the mixing operator (B, H, N, N) as well."""
        h = self.attention_norm(x)
        mixed, operator = self.attention(h, h, h, key_padding_mask, need_weights)
        x = x + self.attention_dropout(mixed)
        return x + self.ff(self.ff_norm(x)), operator
