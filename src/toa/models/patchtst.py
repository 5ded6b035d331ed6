"""PatchTST: each channel on its own, its patches the tokens (Nie et al., 2023)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from toa._checks import check_choice, check_divisible, check_fraction
from toa.models.base import Backbone, check_sizes, check_types
from toa.nn import (
    AttentionSpec,
    EncoderBlock,
    EncoderStack,
    PatchEmbedding,
    TokenBatchNorm,
    build_attention,
    count_patches,
    normalise_tokens,
)

Style = Literal["official", "tslib"]
STYLES = ("official", "tslib")


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchTSTConfig:
    """Sizes and style of a `PatchTST`.

    Attributes:
        style: "official", as the authors publish it, or "tslib", as Time-Series-Library has it; see `PatchTST`.
        residual_scores: Whether a layer adds the scores of those before it to its own. None is what is published: on
            for softmax attention in the official style, off in the other. Off by default for any other attention as
            well, whose S1 mixes scores already; if on, earlier scores are added before this layer's S1.
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

    def __post_init__(self) -> None:
        check_types(self)
        check_sizes(self, "lookback", "num_layers", "ff_dim")
        count_patches(self.lookback, self.patch_len, self.stride)
        check_divisible("embed_dim", self.embed_dim, "num_heads", self.num_heads)
        check_fraction("dropout", self.dropout)
        check_choice("style", self.style, STYLES)
        if not (self.residual_scores is None or isinstance(self.residual_scores, bool)):
            raise ValueError(f"residual_scores must be True, False or None, got {self.residual_scores!r}.")

    @property
    def num_patches(self) -> int:
        """Tokens of a channel."""
        return count_patches(self.lookback, self.patch_len, self.stride)

    @property
    def adds_scores(self) -> bool:
        """`residual_scores`, None settled."""
        if self.residual_scores is not None:
            return self.residual_scores
        return self.style == "official" and self.attention.name == "softmax"


class PatchTST(Backbone):
    """Channel-independent encoder of patches: (B, L, C) to (B, C, N, E), N = floor((L - patch_len) / stride) + 2.

    | style                | official                              | tslib                  |
    | -------------------- | ------------------------------------- | ---------------------- |
    | projection, position | bias; learned                         | no bias; sinusoidal    |
    | after a sub-layer    | batch norm                            | layer norm             |
    | after the stack      | nothing                               | batch norm             |
    | scores               | those of earlier layers added         | a layer's own          |
    | dropout              | none on attention weights, twice on   | on attention weights,  |
    |                      | the attention's output                | once on the output     |

    Compared, softmax attention, outputs and gradients, with yuqinie98/PatchTST at
    204c21efe0b39603ad6e2ca640ef5896646ab1a9 and thuml/Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e. Their heads flatten (E, N); ours (N, E).
    """

    uses_marks: ClassVar[bool] = False

    def __init__(self, config: PatchTSTConfig) -> None:
        super().__init__(lookback=config.lookback, embed_dim=config.embed_dim, num_tokens=config.num_patches)
        self.config = config
        official = config.style == "official"
        width, p = config.embed_dim, config.dropout
        self.embed = PatchEmbedding(
            config.lookback,
            width,
            patch_len=config.patch_len,
            stride=config.stride,
            positions="learned" if official else "sinusoidal",
            bias=official,
            dropout=p,
        )
        self.blocks = EncoderStack(
            (
                EncoderBlock(
                    build_attention(
                        config.attention, width, config.num_heads, config.num_patches, dropout=0.0 if official else p
                    ),
                    config.ff_dim,
                    dropout=p,
                    # two dropouts in a row, each of rate p, are one of this rate
                    attention_dropout=1.0 - (1.0 - p) ** 2 if official else p,
                    norm="batch" if official else "layer",
                    norm_first=False,
                )
                for _ in range(config.num_layers)
            ),
            residual_scores=config.adds_scores,
        )
        self.norm = nn.Identity() if official else TokenBatchNorm(width)

    def valid_tokens(self, mask: Tensor) -> Tensor:
        """Patches with a real step; the steps that prolong a series are as real as its last."""
        longer = torch.cat((mask, mask[:, -1:].expand(-1, self.embed.stride)), 1)  # (B, L + stride)
        return longer.unfold(1, self.embed.patch_len, self.embed.stride).any(-1)  # (B, N)

    def _fill(self, series: Tensor, mask: Tensor) -> Tensor:
        """The last real value instead of padding, as a whole series is prolonged at its end."""
        steps = torch.arange(self.lookback, device=series.device)
        last = torch.where(mask, steps, 0).amax(1).view(-1, 1, 1)  # (B, 1, 1)
        values = series.gather(1, last.expand(-1, 1, series.shape[2]))  # (B, 1, C)
        return torch.where(mask.unsqueeze(-1), series, values)

    def _encode(
        self, series: Tensor, marks: Tensor | None, need_weights: bool, padding: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        split = (series.shape[0], series.shape[2])
        if padding is not None:
            padding = padding.repeat_interleave(series.shape[2], 0)  # (B*C, N)
        x = self.embed(series)  # (B, C, N, E)
        x, operators = self.blocks.encode(x.flatten(0, 1), padding, need_weights)  # (B*C, N, E)
        x = normalise_tokens(self.norm, x, padding).unflatten(0, split)  # (B, C, N, E)
        return x, [operator.unflatten(0, split) for operator in operators]  # each (B, C, H, N, N)
