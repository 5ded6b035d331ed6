"""Autoformer: auto-correlation in attention's place, and trends taken out block by block (Wu et al., 2021)."""

from dataclasses import dataclass

from torch import Tensor, nn

from toa._checks import check_at_least, check_fraction
from toa.models.base import ForecastModel, check_sizes, check_types
from toa.models.decoder_input import check_label_len, decoder_start, last_steps
from toa.nn import AutoCorrelation, Dropout, LayerNorm, Linear, PointEmbedding, SeriesDecomposition, check_kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoformerConfig:
    """Sizes of an `Autoformer`. Heads are not among them: their number has no effect, see `AutoCorrelation`.

    Attributes:
        label_len: Last steps of the past that the decoder starts with.
        num_layers: Layers of the encoder.
        decoder_layers: Layers of the decoder.
        factor: Of n delays the floor(factor · ln n) of largest correlation are kept.
        moving_average: Steps of the moving average that is the trend; odd, at most lookback and label_len + horizon.
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
    factor: int = 3
    moving_average: int = 25

    def __post_init__(self) -> None:
        check_types(self)
        check_sizes(self, "lookback", "horizon", "channels", "embed_dim", "num_layers", "decoder_layers", "ff_dim")
        check_sizes(self, "factor")
        check_at_least("num_marks", self.num_marks, 0)
        check_fraction("dropout", self.dropout)
        check_label_len(self.label_len, self.lookback)
        check_kernel("moving_average", self.moving_average, min(self.lookback, self.label_len + self.horizon))


class SeasonalNorm(LayerNorm):
    """Layer norm of tokens (B, N, E) whose mean over time is then taken out, as a seasonal part has none."""

    def forward(self, x: Tensor, leading: int | None = None) -> Tensor:
        """Normalise tokens; their shape stays, or the leading ones alone are taken."""
        x = super().forward(x, leading)
        return x - x.mean(1, keepdim=True)


class _Mixer(nn.Module):
    """What blocks of encoder and decoder share: auto-correlation, feed-forward without biases, decomposition."""

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


class SeasonalEncoderBlock(_Mixer):
    """Auto-correlation and feed-forward, each beside a residual path; of each sum the seasonal part goes on.

    x ← seasonal(x + correlate(x)); x ← seasonal(x + ff(x))
    """

    def forward(self, x: Tensor) -> Tensor:
        """Encode tokens (B, N, E)."""
        x, _ = self.decompose(x + self.dropout(self.own(x, x)))
        x, _ = self.decompose(x + self.ff(x))
        return x


class SeasonalDecoderBlock(_Mixer):
    """As the encoder's, with auto-correlation to encoded tokens in between; the trends of all three are returned.

    Their sum (B, M, E) is mapped to (B, M, C) by a circular convolution over three steps.
    """

    def __init__(self, config: AutoformerConfig) -> None:
        super().__init__(config)
        self.cross = AutoCorrelation(config.embed_dim, factor=config.factor)
        self.trend = nn.Conv1d(config.embed_dim, config.channels, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Decode tokens (B, M, E) that see the encoded ones (B, N, E); the seasonal part, and the trend (B, M, C)."""
        x, first = self.decompose(x + self.dropout(self.own(x, x)))
        x, second = self.decompose(x + self.dropout(self.cross(x, encoded)))
        x, third = self.decompose(x + self.ff(x))
        return x, self.trend((first + second + third).mT).mT


class Autoformer(ForecastModel):
    """Encoder and decoder of point tokens: (B, L, C) and marks (B, L, F), (B, P, F) to (B, P, C).

    The decoder starts from the past taken apart: of the last label_len steps the seasonal part, then P zeros, are its
    tokens; their trend, then the mean of the past P times, is what its blocks add their trends to. The forecast is the
    last P steps of that sum and of the projected tokens. Tokens have no positions.

    Training takes the delays that the batch has in common, evaluation each sample's own; see `AutoCorrelation`.

    Compared, outputs and gradients, in training and evaluation, with thuml/Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e; there series of an odd number of steps lose a delay.
    """

    uses_marks = True
    uses_future_marks = True

    def __init__(self, config: AutoformerConfig) -> None:
        super().__init__(
            lookback=config.lookback,
            horizon=config.horizon,
            channels=config.channels,
            num_marks=config.num_marks,
        )
        self.config = config
        width = config.embed_dim

        def embedding(tokens: int) -> PointEmbedding:
            return PointEmbedding(
                config.channels,
                width,
                tokens,
                num_marks=config.num_marks,
                positions="none",
                dropout=config.dropout,
            )

        self.decompose = SeriesDecomposition(config.moving_average)
        self.embed = embedding(config.lookback)
        self.blocks = nn.ModuleList(SeasonalEncoderBlock(config) for _ in range(config.num_layers))
        self.encoder_norm = SeasonalNorm(width)
        self.decoder_embed = embedding(config.label_len + config.horizon)
        self.decoder_blocks = nn.ModuleList(SeasonalDecoderBlock(config) for _ in range(config.decoder_layers))
        self.decoder_norm = SeasonalNorm(width)
        self.projection = Linear(width, config.channels)

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        encoded = self.embed(series, marks)  # (B, L, E)
        for block in self.blocks:
            encoded = block(encoded)
        encoded = self.encoder_norm(encoded)
        label_len = self.config.label_len
        mean = series.mean(1, keepdim=True).expand(-1, self.horizon, -1)  # (B, P, C)
        seasonal, trend = self.decompose(series)
        trend = last_steps(trend, label_len, mean)  # (B, label_len + P, C)
        start = decoder_start(seasonal, marks, future_marks, label_len, self.horizon)
        x = self.decoder_embed(*start)  # (B, label_len + P, E)
        for block in self.decoder_blocks:
            x, more = block(x, encoded)
            trend = trend + more
        forecast = trend + self.projection(self.decoder_norm(x))  # (B, label_len + P, C)
        return forecast[:, -self.horizon :]
