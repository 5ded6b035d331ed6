"""Encoder of the past, decoder of the forecast steps: Transformer, Informer and Autoformer, and their common frame."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_most
from toa.models.base import ForecastModel, ModelConfig, encoder_stack
from toa.models.registry import register_backbone
from toa.nn import (
    Attention,
    AttentionSpec,
    AutoCorrelation,
    DecoderBlock,
    Dropout,
    EncoderBlock,
    FeedForward,
    LayerNorm,
    Linear,
    PointEmbedding,
    PointPositions,
    ProbSparseAttention,
    ReversibleInstanceNorm,
    SeriesDecomposition,
    check_kernel,
)


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

    def _decode(self, series: Tensor, encoded: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        """Forecast (B, P, C) from the tokens of the encoder (B, N, E)."""
        encoded = self.encoder_norm(encoded)
        x = self._decoder_input(series, marks, future_marks)  # (B, label_len + P, E)
        for block in self.decoder_blocks:
            x = block(x, encoded)
        return self.projection(self.decoder_norm(x[:, -self.horizon :]))

    def _after_label(self, past: Tensor, rest: Tensor) -> Tensor:
        """The last label_len steps of (B, L, C), followed by (B, P, C): shape (B, label_len + P, C)."""
        return torch.cat((past[:, past.shape[1] - self.config.label_len :], rest), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig(EncoderDecoderConfig):
    """Sizes of a `Transformer`; operators act on lookback tokens, in the decoder on label_len + horizon.

    Attributes:
        causal: Whether a step of the decoder sees only itself and earlier steps.
        instance_norm: Whether to standardise each series over time, and to undo this in its forecast.
    """

    attention: AttentionSpec
    num_heads: int = 8
    causal: bool = True
    instance_norm: bool = False


@register_backbone("transformer", TransformerConfig, "forecast")
class Transformer(EncoderDecoder[TransformerConfig]):
    """`EncoderDecoder` with one choice of attention everywhere (Vaswani et al., 2017).

    Layer norm follows each sub-layer and both stacks.

    Compared with thuml/Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients, softmax
    attention.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.norm = ReversibleInstanceNorm(detach_std=False) if config.instance_norm else None

    def _attention(self, tokens: int, causal: bool = False) -> Attention:
        config = self.config
        return config.attention.build(config.embed_dim, config.num_heads, tokens, dropout=config.dropout, causal=causal)

    def _add_encoder(self) -> None:
        self.blocks = encoder_stack(self.config, self.config.lookback)

    def _decoder_block(self) -> DecoderBlock:
        config = self.config
        own = self._attention(config.decoder_tokens, config.causal)
        cross = self._attention(config.lookback)
        return DecoderBlock(own, cross, config.ff_dim, dropout=config.dropout, norm_first=False)

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        statistics: Any = None
        if self.norm is not None:
            series, statistics = self.norm.normalise(series)
        forecast = self._decode(series, self.blocks(self.embed(series, marks)), marks, future_marks)
        return forecast if self.norm is None else self.norm.denormalise(forecast, statistics)


@dataclass(frozen=True, kw_only=True, slots=True)
class InformerConfig(EncoderDecoderConfig):
    """Sizes of an `Informer`.

    Attributes:
        factor: Of n queries, the factor · ceil(ln n) most informative ones attend; as many sampled keys measure this.
        distil: Whether a convolution with pooling halves the tokens between layers of the encoder.
        mix_heads: Whether heads are joined in the order of Time-Series-Library; see `ProbSparseAttention`.
    """

    num_heads: int = 8
    factor: int = 3
    distil: bool = True
    mix_heads: bool = True

    def __post_init__(self) -> None:
        EncoderDecoderConfig.__post_init__(self)
        if self.distil and self.num_layers > 1 and self.lookback < 2:
            raise ArgumentError("lookback", "be at least 2 with distil=True", self.lookback, "set distil=False")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens in each layer of the encoder."""
        lengths = [self.lookback]
        for _ in range(self.num_layers - 1):
            lengths.append(DistillingConv.length(lengths[-1]) if self.distil else lengths[-1])
        return tuple(lengths)


class DistillingConv(nn.Module):
    """Convolution, batch norm, ELU and max-pooling of stride 2: tokens (B, N, E) to (B, floor((N + 1) / 2) + 1, E).

    The convolution is circular with padding 2, as in Time-Series-Library, and so gives N + 2 tokens.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(embed_dim, embed_dim, 3, padding=2, padding_mode="circular")
        self.norm = nn.BatchNorm1d(embed_dim)

    @staticmethod
    def length(tokens: int) -> int:
        """Number of output tokens."""
        return (tokens + 1) // 2 + 1

    def forward(self, x: Tensor) -> Tensor:
        """Halve the number of tokens."""
        x = nn.functional.elu(self.norm(self.conv(x.mT)))  # (B, E, N + 2)
        return nn.functional.max_pool1d(x, 3, stride=2, padding=1).mT


@register_backbone("informer", InformerConfig, "forecast")
class Informer(EncoderDecoder[InformerConfig]):
    """`EncoderDecoder` with ProbSparse attention, without dropout on its weights (Zhou et al., 2021).

    As in Time-Series-Library, this includes the attention from the decoder to the encoder. Layer norm follows each
    sub-layer and both stacks. In training each layer samples the keys that measure its queries; in evaluation these
    keys are fixed, so that equal inputs have equal forecasts.

    Compared with thuml/Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients, with the
    same sampled keys.
    """

    def _attention(self, tokens: int, causal: bool = False) -> ProbSparseAttention:
        config = self.config
        return ProbSparseAttention(
            config.embed_dim, config.num_heads, tokens, factor=config.factor, mix_heads=config.mix_heads, causal=causal
        )

    def _add_encoder(self) -> None:
        config = self.config
        self.blocks = nn.ModuleList(
            EncoderBlock(self._attention(tokens), config.ff_dim, dropout=config.dropout, norm_first=False)
            for tokens in config.lengths
        )
        self.shorten = nn.ModuleList(
            DistillingConv(config.embed_dim) if config.distil else nn.Identity() for _ in config.lengths[1:]
        )

    def _decoder_block(self) -> DecoderBlock:
        config = self.config
        own = self._attention(config.decoder_tokens, causal=True)
        cross = self._attention(config.lengths[-1])
        return DecoderBlock(own, cross, config.ff_dim, dropout=config.dropout, norm_first=False)

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        encoded = self.blocks[0](self.embed(series, marks))  # (B, L, E)
        for shorten, block in zip(self.shorten, self.blocks[1:], strict=True):
            encoded = block(shorten(encoded))  # (B, N, E)
        return self._decode(series, encoded, marks, future_marks)


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoformerConfig(EncoderDecoderConfig):
    """Sizes of an `Autoformer`. It has no number of heads, which has no effect; see `AutoCorrelation`.

    Attributes:
        factor: Of n delays, the floor(factor · ln n) with the largest correlation are kept.
        moving_average: Steps of the moving average that is the trend; odd, at most lookback and label_len + horizon.
    """

    factor: int = 3
    moving_average: int = 25

    def __post_init__(self) -> None:
        EncoderDecoderConfig.__post_init__(self)
        check_kernel("moving_average", self.moving_average, min(self.lookback, self.decoder_tokens))


class SeasonalNorm(LayerNorm):
    """Layer norm of tokens (B, N, E), followed by subtracting their mean over time: a seasonal part has mean zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise tokens."""
        x = super().forward(x)
        return x - x.mean(1, keepdim=True)


class _SeasonalBlock(nn.Module):
    """Common parts of encoder and decoder blocks: auto-correlation, feed-forward without biases, decomposition."""

    def __init__(self, config: AutoformerConfig) -> None:
        super().__init__()
        width, p = config.embed_dim, config.dropout
        self.own = AutoCorrelation(width, factor=config.factor)
        self.ff = FeedForward(width, config.ff_dim, dropout=p, bias=False)
        self.dropout = Dropout(p)
        self.decompose = SeriesDecomposition(config.moving_average)


class SeasonalEncoderBlock(_SeasonalBlock):
    """Auto-correlation and feed-forward with residual paths; only the seasonal part of each sum is passed on.

    x ← seasonal(x + correlate(x)); x ← seasonal(x + ff(x))
    """

    def forward(self, x: Tensor) -> Tensor:
        """Encode tokens (B, N, E)."""
        x, _ = self.decompose(x + self.dropout(self.own(x, x)))
        x, _ = self.decompose(x + self.ff(x))
        return x


class SeasonalDecoderBlock(_SeasonalBlock):
    """`SeasonalEncoderBlock` with auto-correlation to encoded tokens in between; it also returns the removed trends.

    A circular convolution over three steps maps the sum of the three trends (B, M, E) to (B, M, C).
    """

    def __init__(self, config: AutoformerConfig) -> None:
        super().__init__(config)
        self.cross = AutoCorrelation(config.embed_dim, factor=config.factor)
        self.trend = nn.Conv1d(config.embed_dim, config.channels, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Seasonal part (B, M, E) and trend (B, M, C) of tokens (B, M, E) that see the encoded ones (B, N, E)."""
        x, first = self.decompose(x + self.dropout(self.own(x, x)))
        x, second = self.decompose(x + self.dropout(self.cross(x, encoded)))
        x, third = self.decompose(x + self.ff(x))
        return x, self.trend((first + second + third).mT).mT


@register_backbone("autoformer", AutoformerConfig, "forecast")
class Autoformer(EncoderDecoder[AutoformerConfig]):
    """`EncoderDecoder` with auto-correlation, and a trend removed in every block (Wu et al., 2021).

    The decoder's tokens start from the seasonal part of the past. Its trend starts from the trend of the past, followed
    by the mean of the past P times; every block adds its trend. The forecast is the sum of this trend and the projected
    tokens.

    In training the delays are those of the whole batch, in evaluation those of each sample; see `AutoCorrelation`.

    Compared with thuml/Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients, in
    training and evaluation. There, series with an odd number of steps lose a delay.
    """

    positions = "none"
    stack_norm = SeasonalNorm

    def __init__(self, config: AutoformerConfig) -> None:
        super().__init__(config)
        self.decompose = SeriesDecomposition(config.moving_average)

    def _add_encoder(self) -> None:
        self.blocks = nn.ModuleList(SeasonalEncoderBlock(self.config) for _ in range(self.config.num_layers))

    def _decoder_block(self) -> SeasonalDecoderBlock:
        return SeasonalDecoderBlock(self.config)

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        encoded = self.embed(series, marks)  # (B, L, E)
        for block in self.blocks:
            encoded = block(encoded)
        encoded = self.encoder_norm(encoded)
        mean = series.mean(1, keepdim=True).expand(-1, self.horizon, -1)  # (B, P, C)
        seasonal, trend = self.decompose(series)
        trend = self._after_label(trend, mean)  # (B, label_len + P, C)
        x = self._decoder_input(seasonal, marks, future_marks)  # (B, label_len + P, E)
        for block in self.decoder_blocks:
            x, more = block(x, encoded)
            trend = trend + more
        forecast = trend + self.projection(self.decoder_norm(x))  # (B, label_len + P, C)
        return forecast[:, -self.horizon :]
