"""Encoder with one token per time step: the Transformer of the reconstruction, classification and demixing tasks."""

from dataclasses import dataclass

from torch import Tensor

from toa.models.base import Backbone, ModelConfig, SeriesModel, encoder_stack
from toa.models.registry import register_backbone
from toa.nn import AttentionSpec, LayerNorm, Linear, PointEmbedding, PointPositions, PointValues


@dataclass(frozen=True, kw_only=True, slots=True)
class PointEncoderConfig(ModelConfig):
    """Sizes of a `PointEncoder`; `values` and `positions` are those of `PointEmbedding`."""

    lookback: int
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


# the form of Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e, which both networks were compared with
_PUBLISHED = {"values": "conv", "positions": "sinusoidal", "norm_first": False}


@register_backbone("transformer", PointEncoderConfig, "reconstruct", settings=_PUBLISHED)
class PointEncoder(SeriesModel):
    """Series (B, L, C) to a series (B, L, C), by attention along time. It also takes series shorter than lookback."""

    def __init__(self, config: PointEncoderConfig) -> None:
        super().__init__(lookback=config.lookback, channels=config.channels)
        self.config = config
        self.embed = _embedding(config)
        self.blocks = encoder_stack(config, config.lookback, norm_first=config.norm_first)
        self.norm = LayerNorm(config.embed_dim)
        self.head = Linear(config.embed_dim, config.channels)

    def forward(self, series: Tensor) -> Tensor:
        """Map a series to a series of the same length."""
        return self.head(self.norm(self.blocks(self.embed(series))))


@register_backbone(
    "transformer", PointEncoderConfig, "classify", settings=_PUBLISHED, head=lambda one: {"head_dropout": one.dropout}
)
class PointBackbone(Backbone):
    """The tokens of a `PointEncoder`: (B, L, C) to (B, 1, L, E), each of all channels."""

    mixes_channels = True

    def __init__(self, config: PointEncoderConfig) -> None:
        super().__init__(
            lookback=config.lookback, embed_dim=config.embed_dim, num_tokens=config.lookback, channels=config.channels
        )
        self.config = config
        self.embed = _embedding(config)
        self.blocks = encoder_stack(config, config.lookback, norm_first=config.norm_first)
        self.norm = LayerNorm(config.embed_dim)

    def valid_tokens(self, mask: Tensor) -> Tensor:
        """A token is a step."""
        return mask

    def _encode(self, series: Tensor, marks: Tensor | None, padding: Tensor | None) -> Tensor:
        return self.norm(self.blocks(self.embed(series), padding)).unsqueeze(1)  # (B, 1, L, E)


def _embedding(config: PointEncoderConfig) -> PointEmbedding:
    return PointEmbedding(
        config.channels,
        config.embed_dim,
        config.lookback,
        values=config.values,
        positions=config.positions,
        dropout=config.dropout,
    )
