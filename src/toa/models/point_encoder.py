"""Encoder on point tokens: one token a time step, with an output a token or as a backbone."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from toa._checks import check_at_least
from toa.models.base import Backbone
from toa.nn import (
    AttentionSpec,
    EncoderBlock,
    EncoderStack,
    LayerNorm,
    Linear,
    PointEmbedding,
    PointPositions,
    PointValues,
    build_attention,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PointEncoderConfig:
    """Sizes of a `PointEncoder`; `values` and `positions` are those of `PointEmbedding`."""

    num_tokens: int
    attention: AttentionSpec
    channels: int = 1
    embed_dim: int = 64
    num_heads: int = 2
    num_layers: int = 2
    ff_dim: int = 128
    dropout: float = 0.0
    values: PointValues = "linear"
    positions: PointPositions = "learned"
    norm_first: bool = True

    def __post_init__(self) -> None:
        for name in ("num_tokens", "channels", "embed_dim", "num_heads", "num_layers", "ff_dim"):
            check_at_least(name, getattr(self, name), 1)


class PointEncoder(nn.Module):
    """Series (B, L, C) in, series (B, L, C) out, through attention along time.

    With values="conv", positions="sinusoidal" and norm_first=False it is the Transformer that Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e reconstructs series with; compared, softmax attention, with that.
    """

    def __init__(self, config: PointEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed, self.blocks = _parts(config)
        self.norm = LayerNorm(config.embed_dim)
        self.head = Linear(config.embed_dim, config.channels)

    def forward(self, series: Tensor) -> Tensor:
        """Map a series to a series of the same length."""
        return self.encode(series)[0]

    def encode(self, series: Tensor, need_weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Map a series; with `need_weights`, return each layer's mixing operators (B, H, L, L) as well."""
        x = self.embed(series)  # (B, L, E)
        x, operators = self.blocks.encode(x, need_weights=need_weights)
        return self.head(self.norm(x)), operators


class PointBackbone(Backbone):
    """The tokens of a `PointEncoder` without its outputs: (B, L, C) to (B, 1, L, E), each of all channels.

    With values="conv", positions="sinusoidal" and norm_first=False it is the encoder that Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e classifies series with; see `Classifier`.
    """

    uses_marks: ClassVar[bool] = False
    mixes_channels: ClassVar[bool] = True

    def __init__(self, config: PointEncoderConfig) -> None:
        super().__init__(
            lookback=config.num_tokens,
            embed_dim=config.embed_dim,
            num_tokens=config.num_tokens,
            channels=config.channels,
        )
        self.config = config
        self.embed, self.blocks = _parts(config)
        self.norm = LayerNorm(config.embed_dim)

    def valid_tokens(self, mask: Tensor) -> Tensor:
        """A token is a step."""
        return mask

    def _encode(
        self, series: Tensor, marks: Tensor | None, need_weights: bool, padding: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        x = self.embed(series)  # (B, L, E)
        x, operators = self.blocks.encode(x, padding, need_weights)
        return self.norm(x).unsqueeze(1), operators  # (B, 1, L, E)


def _parts(config: PointEncoderConfig) -> tuple[PointEmbedding, EncoderStack]:
    """Embedding and blocks; weights are drawn in this order."""
    width, p = config.embed_dim, config.dropout
    embed = PointEmbedding(
        config.channels,
        width,
        config.num_tokens,
        values=config.values,
        positions=config.positions,
        dropout=p,
    )
    blocks = EncoderStack(
        EncoderBlock(
            build_attention(config.attention, width, config.num_heads, config.num_tokens, dropout=p),
            config.ff_dim,
            dropout=p,
            norm_first=config.norm_first,
        )
        for _ in range(config.num_layers)
    )
    return embed, blocks
