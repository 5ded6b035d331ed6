"""Informer: a Transformer with ProbSparse attention whose encoder halves its tokens (Zhou et al., 2021)."""

from dataclasses import dataclass

from torch import Tensor, nn

from toa.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from toa.models.registry import register_backbone
from toa.nn import DecoderBlock, EncoderBlock, ProbSparseAttention


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
            raise ValueError(f"lookback must be at least 2 with distil=True, got {self.lookback}; set distil=False.")

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
    """`EncoderDecoder` in which every attention is ProbSparse, without dropout on its weights.

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
        own, cross = self._attention(config.decoder_tokens, causal=True), self._attention(config.lengths[-1])
        return DecoderBlock(own, cross, config.ff_dim, dropout=config.dropout, norm_first=False)

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        encoded = self.blocks[0](self.embed(series, marks))  # (B, L, E)
        for shorten, block in zip(self.shorten, self.blocks[1:], strict=True):
            encoded = block(shorten(encoded))  # (B, N, E)
        encoded = self.encoder_norm(encoded)
        x = self._decoder_input(series, marks, future_marks)  # (B, label_len + P, E)
        for block in self.decoder_blocks:
            x = block(x, encoded)
        return self.projection(self.decoder_norm(x[:, -self.horizon :]))  # (B, P, C)
