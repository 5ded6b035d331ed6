"""Encoder and decoder blocks: any attention of the library, and a feed-forward network that it leaves untouched."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor, nn

from toa._checks import check_at_least, check_fraction
from toa.nn.attention import Attended, Attention, ScoreFactors
from toa.nn.dropout import Dropout
from toa.nn.linear import Linear
from toa.nn.norm import LayerNorm, Norm, add_and_normalise, make_norm, normalise_tokens
from toa.ops import runs_kernels
from toa.ops.dropout import draw_seeds
from toa.ops.rows import gelu_dropout


class FeedForward(nn.Sequential):
    """Linear, GELU, dropout, linear, dropout."""

    def __init__(self, embed_dim: int, ff_dim: int, *, dropout: float = 0.0) -> None:
        check_at_least("ff_dim", ff_dim, 1)
        check_fraction("dropout", dropout)
        super().__init__(
            Linear(embed_dim, ff_dim),
            nn.GELU(),
            Dropout(dropout),
            Linear(ff_dim, embed_dim),
            Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map each token."""
        return self[-1](self.undropped(x))

    def undropped(self, x: Tensor, seed: Tensor | None = None) -> Tensor:
        """What the last dropout is to be applied to; where kernels run, the mask of the first is of a seed if given."""
        first, gelu, dropout, second, _ = self
        x = first(x)
        # a layer that someone has put in place of a plain one is called, not taken apart
        if type(dropout) is Dropout and type(gelu) is nn.GELU and gelu.approximate == "none" and runs_kernels(x):
            return second(gelu_dropout(x, dropout.rate, seed=seed))
        return second(dropout(gelu(x)))


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
        self.attention_dropout = Dropout(attention_dropout)
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
        h = normalise_tokens(self.attention_norm, x, key_padding_mask) if self.norm_first else x
        attended = self.attention.attend(h, h, h, key_padding_mask, need_weights, previous, pair_mask)
        if self.norm_first:
            x = x + self.attention_dropout(attended.output)
            x = x + self.ff(normalise_tokens(self.ff_norm, x, key_padding_mask))
        else:
            a, b, c = draw_seeds(x, 3) if self.training and runs_kernels(x) else (None,) * 3
            added, dropout = attended.output, self.attention_dropout
            x = add_and_normalise(self.attention_norm, x, added, dropout, key_padding_mask, a)
            x = add_and_normalise(self.ff_norm, x, self.ff.undropped(x, b), self.ff[-1], key_padding_mask, c)
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


class Decoded(NamedTuple):
    """What `DecoderBlock.decode` gives: the tokens (B, M, E), and the mixing operators of both attentions if asked for.

    `own` is (B, H, M, M), `cross` (B, H, M, N).
    """

    output: Tensor
    own: Tensor | None
    cross: Tensor | None


class DecoderBlock(nn.Module):
    """Attention to its own tokens, attention to encoded ones, and feed-forward, each beside a residual path.

    norm_first:  x ← x + layer(norm(x)), for each of the three
    otherwise:   x ← norm(x + layer(x))

    Args:
        own: Attention among the block's tokens; causal, if a token shall not see what follows it.
        cross: Attention from them to the encoded tokens, which are its keys.
        ff_dim: Width inside of the feed-forward network.
        dropout: Dropout inside and after the feed-forward network, and on what the attentions add.
        norm_first: Whether to normalise where a sub-layer branches off, rather than where it comes back.
    """

    def __init__(
        self, own: Attention, cross: Attention, ff_dim: int, *, dropout: float = 0.0, norm_first: bool = True
    ) -> None:
        super().__init__()
        if own.embed_dim != cross.embed_dim:
            raise ValueError(
                f"cross must have embed_dim={own.embed_dim}, that of own, got {cross.embed_dim}; build both alike."
            )
        self.norm_first = norm_first
        self.own = own
        self.cross = cross
        self.dropout = Dropout(dropout)
        self.ff = FeedForward(own.embed_dim, ff_dim, dropout=dropout)
        self.own_norm, self.cross_norm, self.ff_norm = (LayerNorm(own.embed_dim) for _ in range(3))

    def forward(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Decode tokens (B, M, E) that see the encoded ones (B, N, E)."""
        return self.decode(x, encoded).output

    def decode(self, x: Tensor, encoded: Tensor, need_weights: bool = False) -> Decoded:
        """Decode tokens; with `need_weights`, return the mixing operators as well."""
        operators: list[Tensor | None] = []

        def attend(attention: Attention, query: Tensor, key: Tensor) -> Tensor:
            output, operator = attention(query, key, key, need_weights=need_weights)
            operators.append(operator)
            return self.dropout(output)

        x = self._beside(x, self.own_norm, lambda h: attend(self.own, h, h))
        x = self._beside(x, self.cross_norm, lambda h: attend(self.cross, h, encoded))
        x = self._beside(x, self.ff_norm, self.ff)
        return Decoded(x, *operators)

    def _beside(self, x: Tensor, norm: nn.Module, layer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + layer(norm(x)) if self.norm_first else norm(x + layer(x))
