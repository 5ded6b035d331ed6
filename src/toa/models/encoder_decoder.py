"""The common frame of Transformer, Informer and Autoformer: an encoder of the past, a decoder of the forecast steps."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from toa._checks import check_at_most
from toa.models.base import ForecastModel, ModelConfig
from toa.nn import LayerNorm, Linear, PointEmbedding, PointPositions


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoderConfig(ModelConfig):
    """Sizes of an `EncoderDecoder`.

    Attributes:
        label_len: Number of steps at the end of the past that the decoder starts with.
    """

    lookback: int
    horizon: int
    channels: int
    label_len: int
    num_marks: int = 0
    embed_dim: int = 512
    num_layers: int = 2
    decoder_layers: int = 1
    ff_dim: int = 2048
    dropout: float = 0.1

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        remedy = f"use {self.lookback // 2}, for instance"
        check_at_most("label_len", self.label_len, "lookback", self.lookback, remedy)

    @property
    def decoder_tokens(self) -> int:
        """Number of tokens in the decoder."""
        return self.label_len + self.horizon


ConfigT = TypeVar("ConfigT", bound=EncoderDecoderConfig)


class EncoderDecoder(ForecastModel, Generic[ConfigT]):
    """Encoder and decoder with one token per step: (B, L, C) and marks (B, L, F), (B, P, F) to (B, P, C).

    The decoder gets the last label_len steps of the past, then P zeros, with their marks, and forecasts all P steps in
    one pass.
    """

    uses_marks = True
    uses_future_marks = True
    positions: ClassVar[PointPositions] = "sinusoidal"
    stack_norm: ClassVar[type[LayerNorm]] = LayerNorm

    def __init__(self, config: ConfigT) -> None:
        super().__init__(
            lookback=config.lookback, horizon=config.horizon, channels=config.channels, num_marks=config.num_marks
        )
        self.config = config
        # this order decides which random numbers each weight gets, and the order of weights in files
        self.embed = self._embedding(config.lookback)
        self._add_encoder()
        self.encoder_norm = self.stack_norm(config.embed_dim)
        self.decoder_embed = self._embedding(config.decoder_tokens)
        self.decoder_blocks = nn.ModuleList(self._decoder_block() for _ in range(config.decoder_layers))
        self.decoder_norm = self.stack_norm(config.embed_dim)
        self.projection = Linear(config.embed_dim, config.channels)

    def _embedding(self, tokens: int) -> PointEmbedding:
        config = self.config
        return PointEmbedding(
            config.channels,
            config.embed_dim,
            tokens,
            num_marks=config.num_marks,
            positions=self.positions,
            dropout=config.dropout,
        )

    @abstractmethod
    def _add_encoder(self) -> None:
        """Add the encoder's layers as `blocks`."""

    @abstractmethod
    def _decoder_block(self) -> nn.Module:
        """One layer of the decoder."""

    def _decoder_input(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        """Embedded tokens (B, label_len + P, E) that the decoder starts with."""
        zeros = series.new_zeros(series.shape[0], self.horizon, series.shape[2])
        both = None if marks is None or future_marks is None else self._after_label(marks, future_marks)
        return self.decoder_embed(self._after_label(series, zeros), both)

    def _after_label(self, past: Tensor, rest: Tensor) -> Tensor:
        """The last label_len steps of (B, L, C), followed by (B, P, C): shape (B, label_len + P, C)."""
        return torch.cat((past[:, past.shape[1] - self.config.label_len :], rest), 1)
