"""The Transformer for forecasting: an encoder of the past, a decoder of the steps to come (Vaswani et al., 2017)."""

from dataclasses import dataclass

from torch import Tensor, nn

from toa._checks import check_at_least, check_divisible, check_fraction
from toa.models.base import ForecastModel, check_sizes, check_types
from toa.models.decoder_input import check_label_len, decoder_start
from toa.nn import (
    Attention,
    AttentionSpec,
    DecoderBlock,
    EncoderBlock,
    EncoderStack,
    LayerNorm,
    Linear,
    PointEmbedding,
    ReversibleInstanceNorm,
    build_attention,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """Sizes of a `Transformer`; operators act on lookback tokens, in the decoder on label_len + horizon.

    Attributes:
        label_len: Last steps of the past that the decoder starts with.
        num_layers: Layers of the encoder.
        decoder_layers: Layers of the decoder.
        causal: Whether a step of the decoder sees only itself and those before it.
        instance_norm: Whether each series is normalised over time before, and its forecast taken back after.
    """

    lookback: int
    horizon: int
    channels: int
    attention: AttentionSpec
    label_len: int
    num_marks: int = 0
    embed_dim: int = 512
    num_heads: int = 8
    num_layers: int = 2
    decoder_layers: int = 1
    ff_dim: int = 2048
    dropout: float = 0.1
    causal: bool = True
    instance_norm: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_sizes(self, "lookback", "horizon", "channels", "num_layers", "decoder_layers", "ff_dim")
        check_at_least("num_marks", self.num_marks, 0)
        check_divisible("embed_dim", self.embed_dim, "num_heads", self.num_heads)
        check_fraction("dropout", self.dropout)
        check_label_len(self.label_len, self.lookback)


class Transformer(ForecastModel):
    """Encoder and decoder of point tokens: (B, L, C) and marks (B, L, F), (B, P, F) to (B, P, C).

    The decoder gets the last label_len steps of the past, then P zeros, with their marks; its last P outputs are the
    forecast. Layer norm after each sub-layer and after both stacks. The attention is everywhere the one chosen.

    Compared, softmax attention, outputs and gradients, with thuml/Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e.
    """

    uses_marks = True
    uses_future_marks = True

    def __init__(self, config: TransformerConfig) -> None:
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

        def attention(tokens: int, causal: bool = False) -> Attention:
            return build_attention(config.attention, width, config.num_heads, tokens, dropout=p, causal=causal)

        self.norm = ReversibleInstanceNorm(detach_std=False) if config.instance_norm else None
        self.embed = embedding(config.lookback)
        self.blocks = EncoderStack(
            EncoderBlock(attention(config.lookback), config.ff_dim, dropout=p, norm_first=False)
            for _ in range(config.num_layers)
        )
        self.encoder_norm = LayerNorm(width)
        self.decoder_embed = embedding(decoded)
        self.decoder_blocks = nn.ModuleList(
            DecoderBlock(
                attention(decoded, config.causal),
                attention(config.lookback),
                config.ff_dim,
                dropout=p,
                norm_first=False,
            )
            for _ in range(config.decoder_layers)
        )
        self.decoder_norm = LayerNorm(width)
        self.projection = Linear(width, config.channels)

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        if self.norm is None:
            return self._decode(series, marks, future_marks, need_weights=False)[0]
        series, statistics = self.norm.normalise(series)
        forecast, _ = self._decode(series, marks, future_marks, need_weights=False)
        return self.norm.denormalise(forecast, statistics)

    def operators(
        self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None
    ) -> dict[str, list[Tensor]]:
        """Mixing operators of each layer: "encoder" (B, H, L, L), "decoder" (B, H, T, T) and "cross" (B, H, T, L).

        T = label_len + P; arguments are `forward`'s.
        """
        self.check_inputs(series, marks, future_marks)
        if self.norm is not None:
            series, _ = self.norm.normalise(series)
        return self._decode(series, marks, future_marks, need_weights=True)[1]

    def _decode(
        self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        encoded, operators = self.blocks.encode(self.embed(series, marks), need_weights=need_weights)
        encoded = self.encoder_norm(encoded)  # (B, L, E)
        found: dict[str, list[Tensor]] = {"encoder": operators, "decoder": [], "cross": []}
        start = decoder_start(series, marks, future_marks, self.config.label_len, self.horizon)
        x = self.decoder_embed(*start)  # (B, T, E)
        for block in self.decoder_blocks:
            assert isinstance(block, DecoderBlock)
            x, own, cross = block.decode(x, encoded, need_weights)
            if own is not None and cross is not None:
                found["decoder"].append(own)
                found["cross"].append(cross)
        x = self.decoder_norm(x[:, -self.horizon :])  # (B, P, E)
        return self.projection(x), found
