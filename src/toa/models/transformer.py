"""Transformer for forecasting (Vaswani et al., 2017)."""

from dataclasses import dataclass

from torch import Tensor

from toa.models.base import encoder_stack
from toa.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from toa.models.registry import register_backbone
from toa.nn import Attention, AttentionSpec, DecoderBlock, ReversibleInstanceNorm, build_attention


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
    """`EncoderDecoder` with one choice of attention everywhere, layer norm after each sub-layer and after both stacks.

    Compared with thuml/Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients, softmax
    attention.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.norm = ReversibleInstanceNorm(detach_std=False) if config.instance_norm else None

    def _attention(self, tokens: int, causal: bool = False) -> Attention:
        config = self.config
        return build_attention(
            config.attention, config.embed_dim, config.num_heads, tokens, dropout=config.dropout, causal=causal
        )

    def _add_encoder(self) -> None:
        self.blocks = encoder_stack(self.config, self.config.lookback)

    def _decoder_block(self) -> DecoderBlock:
        config = self.config
        own, cross = self._attention(config.decoder_tokens, config.causal), self._attention(config.lookback)
        return DecoderBlock(own, cross, config.ff_dim, dropout=config.dropout, norm_first=False)

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

        T = label_len + P. The arguments are those of `forward`.
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
        x = self._decoder_input(series, marks, future_marks)  # (B, T, E)
        for block in self.decoder_blocks:
            assert isinstance(block, DecoderBlock)
            x, own, cross = block.decode(x, encoded, need_weights)
            if own is not None and cross is not None:
                found["decoder"].append(own)
                found["cross"].append(cross)
        x = self.decoder_norm(x[:, -self.horizon :])  # (B, P, E)
        return self.projection(x), found
