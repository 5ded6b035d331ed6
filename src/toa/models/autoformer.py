"""Autoformer: auto-correlation instead of attention, and a trend removed in every block (Wu et al., 2021)."""

from dataclasses import dataclass

from torch import Tensor, nn

from toa.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from toa.models.registry import register_backbone
from toa.nn import AutoCorrelation, Dropout, LayerNorm, SeriesDecomposition, check_kernel


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

    def forward(self, x: Tensor, leading: int | None = None) -> Tensor:
        """Normalise all tokens, or only the `leading` first ones."""
        x = super().forward(x, leading)
        return x - x.mean(1, keepdim=True)


class _SeasonalBlock(nn.Module):
    """Common parts of encoder and decoder blocks: auto-correlation, feed-forward without biases, decomposition."""

    def __init__(self, config: AutoformerConfig) -> None:
        super().__init__()
        width, p = config.embed_dim, config.dropout
        self.own = AutoCorrelation(width, factor=config.factor)
        self.ff = nn.Sequential(
            nn.Linear(width, config.ff_dim, bias=False),
            nn.GELU(),
            Dropout(p),
            nn.Linear(config.ff_dim, width, bias=False),
            Dropout(p),
        )
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
    """`EncoderDecoder` of seasonal parts and trends, without positions.

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
