"""Informer: a Transformer of ProbSparse attention whose encoder halves its tokens (Zhou et al., 2021)."""

from dataclasses import dataclass

from torch import Tensor, nn

from toa._checks import check_at_least, check_divisible, check_fraction
from toa.models.base import ForecastModel, check_sizes, check_types
from toa.models.decoder_input import check_label_len, decoder_start
from toa.nn import DecoderBlock, EncoderBlock, LayerNorm, Linear, PointEmbedding, ProbSparseAttention


@dataclass(frozen=True, kw_only=True, slots=True)
class InformerConfig:
    """Sizes of an `Informer`.

    Attributes:
        label_len: Last steps of the past that the decoder starts with.
        num_layers: Layers of the encoder.
        decoder_layers: Layers of the decoder.
        factor: Of n tokens, factor · ceil(ln n) queries are attended for, measured by as many keys.
        distil: Whether a convolution with pooling halves the tokens between layers of the encoder.
        mix_heads: Whether heads are joined in the order of Time-Series-Library; see `ProbSparseAttention`.
    """

    lookback: int
    horizon: int
    channels: int
    label_len: int
    num_marks: int = 0
    embed_dim: int = 512
    num_heads: int = 8
    num_layers: int = 2
    decoder_layers: int = 1
    ff_dim: int = 2048
    dropout: float = 0.1
    factor: int = 3
    distil: bool = True
    mix_heads: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        check_sizes(self, "lookback", "horizon", "channels", "num_layers", "decoder_layers", "ff_dim", "factor")
        check_at_least("num_marks", self.num_marks, 0)
        check_divisible("embed_dim", self.embed_dim, "num_heads", self.num_heads)
        check_fraction("dropout", self.dropout)
        check_label_len(self.label_len, self.lookback)
        if self.distil and self.num_layers > 1 and self.lookback < 2:
            raise ValueError(f"lookback must be at least 2 where layers distil, got {self.lookback}; set distil=False.")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens in each layer of the encoder."""
        lengths = [self.lookback]
        for _ in range(self.num_layers - 1):
            lengths.append(DistillingConv.length(lengths[-1]) if self.distil else lengths[-1])
        return tuple(lengths)


class DistillingConv(nn.Module):
    """Convolution, batch norm, ELU and max-pooling of stride 2: tokens (B, N, E) to (B, floor((N + 1) / 2) + 1, E).

    The convolution is circular and, padded by 2 as in Time-Series-Library, gives N + 2 tokens.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(embed_dim, embed_dim, 3, padding=2, padding_mode="circular")
        self.norm = nn.BatchNorm1d(embed_dim)

    @staticmethod
    def length(tokens: int) -> int:
        """Tokens that come out."""
        return (tokens + 1) // 2 + 1

    def forward(self, x: Tensor) -> Tensor:
        """Fewer tokens."""
        x = nn.functional.elu(self.norm(self.conv(x.mT)))  # (B, E, N + 2)
        return nn.functional.max_pool1d(x, 3, stride=2, padding=1).mT


class Informer(ForecastModel):
    """Encoder and decoder of point tokens: (B, L, C) and marks (B, L, F), (B, P, F) to (B, P, C).

    The decoder gets the last label_len steps of the past, then P zeros, with their marks, and forecasts all P steps in
    one pass. Every attention is ProbSparse, also the one from the decoder to the encoder, as Time-Series-Library has
    it; none has dropout on its weights. Layer norm after each sub-layer and after both stacks.

    In training each layer draws the keys that it measures queries by; in evaluation they are fixed, so that a forecast
    does not change from call to call.

    Compared, outputs and gradients, the same keys drawn, with thuml/Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e.
    """

    uses_marks = True
    uses_future_marks = True

    def __init__(self, config: InformerConfig) -> None:
        super().__init__(
            lookback=config.lookback,
            horizon=config.horizon,
            channels=config.channels,
            num_marks=config.num_marks,
        )
        self.config = config
        width, p = config.embed_dim, config.dropout
        decoded = config.label_len + config.horizon

        def embedding(tokens: int) -> PointEmbedding:
            return PointEmbedding(config.channels, width, tokens, num_marks=config.num_marks, dropout=p)

        def attention(tokens: int, causal: bool = False) -> ProbSparseAttention:
            return ProbSparseAttention(
                width, config.num_heads, tokens, factor=config.factor, mix_heads=config.mix_heads, causal=causal
            )

        self.embed = embedding(config.lookback)
        self.blocks = nn.ModuleList(
            EncoderBlock(attention(tokens), config.ff_dim, dropout=p, norm_first=False) for tokens in config.lengths
        )
        self.shorten = nn.ModuleList(
            DistillingConv(width) if config.distil else nn.Identity() for _ in config.lengths[1:]
        )
        self.encoder_norm = LayerNorm(width)
        self.decoder_embed = embedding(decoded)
        self.decoder_blocks = nn.ModuleList(
            DecoderBlock(
                attention(decoded, causal=True),
                attention(config.lengths[-1]),
                config.ff_dim,
                dropout=p,
                norm_first=False,
            )
            for _ in range(config.decoder_layers)
        )
        self.decoder_norm = LayerNorm(width)
        self.projection = Linear(width, config.channels)

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        encoded = self.blocks[0](self.embed(series, marks))  # (B, L, E)
        for shorten, block in zip(self.shorten, self.blocks[1:], strict=True):
            encoded = block(shorten(encoded))  # (B, N, E)
        encoded = self.encoder_norm(encoded)
        start = decoder_start(series, marks, future_marks, self.config.label_len, self.horizon)
        x = self.decoder_embed(*start)  # (B, label_len + P, E)
        for block in self.decoder_blocks:
            x = block(x, encoded)
        return self.projection(self.decoder_norm(x[:, -self.horizon :]))  # (B, P, C)
