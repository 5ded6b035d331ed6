"""iTransformer: attention between variates; the whole past of each is one token (Liu et al., 2024)."""

from dataclasses import dataclass

from torch import Tensor

from toa.models.base import Backbone, ModelConfig, encoder_stack
from toa.models.registry import register_backbone
from toa.nn import AttentionSpec, LayerNorm, VariateEmbedding


@dataclass(frozen=True, kw_only=True, slots=True)
class ITransformerConfig(ModelConfig):
    """Sizes of an `ITransformer`; operators act on channels + num_marks tokens."""

    lookback: int
    channels: int
    attention: AttentionSpec
    num_marks: int = 0
    embed_dim: int = 512
    num_heads: int = 8
    num_layers: int = 3
    ff_dim: int = 512
    dropout: float = 0.1


@register_backbone(
    "itransformer", ITransformerConfig, "forecast", "reconstruct", head=lambda config: {"detach_std": False}
)
@register_backbone("itransformer", ITransformerConfig, "classify", head=lambda config: {"head_dropout": config.dropout})
class ITransformer(Backbone):
    """Encoder with one token per variate: (B, L, C) and marks (B, L, F) to (B, C, 1, E).

    Time marks are tokens too: they take part in attention and are dropped at the end. Layer norm follows each
    sub-layer and the stack.

    Compared with thuml/iTransformer at c2426e68ca13f74aaec08045c5c724d8ad328124 and thuml/Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients, softmax attention.
    """

    uses_marks = True

    def __init__(self, config: ITransformerConfig) -> None:
        super().__init__(
            lookback=config.lookback,
            embed_dim=config.embed_dim,
            num_tokens=1,
            channels=config.channels,
            num_marks=config.num_marks,
        )
        self.config = config
        self.embed = VariateEmbedding(config.lookback, config.embed_dim, dropout=config.dropout)
        self.blocks = encoder_stack(config, config.channels + config.num_marks)
        self.norm = LayerNorm(config.embed_dim)

    def _encode(self, series: Tensor, marks: Tensor | None, padding: Tensor | None) -> Tensor:
        # a token is a whole variate, so no token holds only padding
        x = self.blocks(self.embed(series, marks))  # (B, C + F, E)
        return self.norm(x)[:, : series.shape[2]].unsqueeze(2)  # (B, C, 1, E)
