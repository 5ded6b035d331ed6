"""PatchTST: each channel by itself, with its patches as tokens (Nie et al., 2023)."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from toa._checks import ArgumentError
from toa.models.base import ModelConfig, PatchBackbone, encoder_stack
from toa.models.registry import register_backbone
from toa.nn import AttentionSpec, TokenBatchNorm, count_patches, normalise_tokens

Style = Literal["official", "tslib"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchTSTConfig(ModelConfig):
    """Sizes and style of a `PatchTST`.

    Attributes:
        style: "official", the authors' own form, or "tslib", that of Time-Series-Library; see `PatchTST`.
        residual_scores: Whether a layer adds the scores of earlier layers to its own, before S1. None means the
            published form: True for softmax attention in the official style. False for any other attention, whose S1
            already mixes scores.
    """

    lookback: int
    attention: AttentionSpec
    patch_len: int = 16
    stride: int = 8
    embed_dim: int = 128
    num_heads: int = 16
    num_layers: int = 3
    ff_dim: int = 256
    dropout: float = 0.2
    style: Style = "official"
    residual_scores: bool | None = None

    @property
    def adds_scores(self) -> bool:
        """Whether a layer adds the scores of earlier layers to its own."""
        if self.residual_scores is None:
            return self.style == "official" and self.attention.name == "softmax"
        return self.residual_scores

    def settings(self) -> dict[str, Any]:
        """All values by name."""
        return ModelConfig.settings(self) | {"residual_scores": self.adds_scores}

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        count_patches(self.lookback, self.patch_len, self.stride)
        if not (self.residual_scores is None or isinstance(self.residual_scores, bool)):
            raise ArgumentError("residual_scores", "be True, False or None", repr(self.residual_scores))


def _forecast_head(config: PatchTSTConfig) -> dict[str, object]:
    if config.style == "official":
        return {"detach_std": True, "head_dropout": 0.0}
    return {"detach_std": False, "head_dropout": config.dropout}


@register_backbone("patchtst", PatchTSTConfig, "forecast", head=_forecast_head)
@register_backbone("patchtst", PatchTSTConfig, "reconstruct", settings={"style": "tslib"}, head=_forecast_head)
@register_backbone(
    "patchtst",
    PatchTSTConfig,
    "classify",
    settings={"style": "tslib"},
    head=lambda config: {"instance_norm": True, "gelu": False, "head_dropout": config.dropout},
)
class PatchTST(PatchBackbone):
    """Channel-independent encoder of patches: (B, L, C) to (B, C, N, E), N = floor((L - patch_len) / stride) + 2.

    | style                | official                              | tslib                  |
    | -------------------- | ------------------------------------- | ---------------------- |
    | projection, position | bias; learned                         | no bias; sinusoidal    |
    | after a sub-layer    | batch norm                            | layer norm             |
    | after the stack      | nothing                               | batch norm             |
    | scores               | with those of earlier layers added    | of each layer alone    |
    | dropout              | none on attention weights, twice on   | on attention weights,  |
    |                      | the attention's output                | once on the output     |

    Compared with yuqinie98/PatchTST at 204c21efe0b39603ad6e2ca640ef5896646ab1a9 and thuml/Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients, softmax attention. Their heads flatten (E, N),
    ours (N, E).
    """

    def __init__(self, config: PatchTSTConfig) -> None:
        official = config.style == "official"
        super().__init__(config, positions="learned" if official else "sinusoidal", bias=official)
        self.blocks = encoder_stack(
            config,
            self.num_tokens,
            score_dropout=0.0 if official else None,
            residual_scores=config.adds_scores,
            # equal to two dropouts of the config's rate in a row
            attention_dropout=1.0 - (1.0 - config.dropout) ** 2 if official else None,
            norm="batch" if official else "layer",
        )
        self.norm = nn.Identity() if official else TokenBatchNorm(config.embed_dim)

    def _encode(self, series: Tensor, marks: Tensor | None, padding: Tensor | None) -> Tensor:
        split = (series.shape[0], series.shape[2])
        if padding is not None:
            padding = padding.repeat_interleave(series.shape[2], 0)  # (B*C, N)
        x = self.embed(series)  # (B, C, N, E)
        x = self.blocks(x.flatten(0, 1), padding)  # (B*C, N, E)
        return normalise_tokens(self.norm, x, padding).unflatten(0, split)  # (B, C, N, E)
