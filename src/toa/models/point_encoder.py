"""Encoder on point tokens: one token a time step, one output a token."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_shape
from toa.nn import AttentionSpec, EncoderBlock, EncoderStack, build_attention


@dataclass(frozen=True, kw_only=True, slots=True)
class PointEncoderConfig:
    """Sizes of a `PointEncoder`."""

    num_tokens: int
    attention: AttentionSpec
    channels: int = 1
    embed_dim: int = 64
    num_heads: int = 2
    num_layers: int = 2
    ff_dim: int = 128
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_tokens", "channels", "embed_dim", "num_heads", "num_layers", "ff_dim"):
            check_at_least(name, getattr(self, name), 1)


class PointEncoder(nn.Module):
    """Series (B, L, C) in, series (B, L, C) out, through attention along time."""

    def __init__(self, config: PointEncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.embed_dim
        self.embed = nn.Linear(config.channels, width)
        self.position = nn.Parameter(torch.empty(config.num_tokens, width))
        nn.init.normal_(self.position, std=0.02)
        self.blocks = EncoderStack(
            EncoderBlock(
                build_attention(config.attention, width, config.num_heads, config.num_tokens, dropout=config.dropout),
                config.ff_dim,
                dropout=config.dropout,
            )
            for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.channels)

    def forward(self, series: Tensor) -> Tensor:
        """Map a series to a series of the same length."""
        return self.encode(series)[0]

    def encode(self, series: Tensor, need_weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Map a series; with `need_weights`, return each layer's mixing operators (B, H, L, L) as well."""
        check_shape("series", series, "(B, L, C)", (None, None, self.config.channels))
        if series.shape[1] > self.config.num_tokens:
            raise ValueError(
                f"series must have at most num_tokens={self.config.num_tokens} steps, got {series.shape[1]}; "
                "cut it, or build the model with more."
            )
        x = self.embed(series) + self.position[: series.shape[1]]  # (B, L, E)
        x, operators = self.blocks.encode(x, need_weights=need_weights)
        return self.head(self.norm(x)), operators
