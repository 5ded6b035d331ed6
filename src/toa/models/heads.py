"""Heads: what each task puts around a backbone to turn its tokens into forecasts, reconstructions or classes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least
from toa.models.base import Backbone, ForecastModel, ModelConfig, SeriesModel, check_mask
from toa.nn import Dropout, FlattenHead, Linear, ReversibleInstanceNorm

Start = Literal["mean", "last", "ridge"]

# penalty of the fitted shortcut, relative to the mean square of a step; like the next constant from short trials on
# the validation splits of ETTh1 and Exchange, which are not recorded
_RIDGE = 0.1
# scale of the tokens beside a shortcut
_TOKEN_SCALE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastHeadConfig(ModelConfig):
    """Parts of a `BackboneForecaster` around its backbone.

    Attributes:
        channels: Number of channels C, used by `affine` and `individual`.
        instance_norm: Whether to standardise each series over time, and to undo this in its forecast.
        affine: Whether the instance norm has a learnable scale and shift per channel.
        detach_std: Whether gradients to the series stop at its standard deviation.
        individual: Whether each channel has its own linear map.
        head_dropout: Dropout on the forecasts, before the instance norm is undone.
        pooled: Whether the linear map reads the mean of a channel's tokens instead of all of them; then only the
            backbone mixes its tokens.
        shortcut: Whether to add a linear map of the (normalised) look-back, shared by channels. The map of the tokens
            then starts at zero: the model starts as a linear one. It reads tokens times 0.1, so that its first steps
            do not undo this start.
        shortcut_start: What that map starts as: the "mean" of the look-back; its "last" value; or "ridge", which is the
            last value until `BackboneForecaster.fit_shortcut` is called. Tasks call it with training windows.
    """

    horizon: int
    channels: int
    instance_norm: bool = True
    affine: bool = False
    detach_std: bool = True
    individual: bool = False
    head_dropout: float = 0.0
    pooled: bool = False
    shortcut: bool = False
    shortcut_start: Start = "mean"

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        if self.affine and not self.instance_norm:
            raise ArgumentError("affine", "be False without instance_norm", "True", "set instance_norm=True")


class BackboneForecaster(ForecastModel):
    """Series (B, L, C) to its next P values (B, P, C): instance norm, backbone, linear map, inverse instance norm."""

    def __init__(self, backbone: Backbone, config: ForecastHeadConfig) -> None:
        _check_channels(backbone, config.channels)
        super().__init__(
            lookback=backbone.lookback,
            horizon=config.horizon,
            channels=config.channels if config.affine or config.individual else backbone.channels,
            num_marks=backbone.num_marks,
        )
        self.uses_marks = backbone.uses_marks
        self.config = config
        self.norm = (
            ReversibleInstanceNorm(config.channels if config.affine else None, detach_std=config.detach_std)
            if config.instance_norm
            else None
        )
        self.backbone = backbone
        self.head = FlattenHead(
            1 if config.pooled else backbone.num_tokens,
            backbone.embed_dim,
            config.horizon,
            individual_channels=config.channels if config.individual else None,
            dropout=config.head_dropout,
        )
        self.shortcut = Linear(backbone.lookback, config.horizon) if config.shortcut else None
        if self.shortcut is not None:
            for parameter in (self.shortcut.weight, self.shortcut.bias, self.head.weight, self.head.bias):
                nn.init.zeros_(parameter)
            steps = backbone.lookback if config.shortcut_start == "mean" else 1
            nn.init.constant_(self.shortcut.weight[:, -steps:], 1.0 / steps)

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        statistics: Any = None
        if self.norm is not None:
            series, statistics = self.norm.normalise(series)
        tokens = self.backbone(series, marks)
        if self.config.pooled:
            tokens = tokens.mean(2, keepdim=True)
        if self.shortcut is None:
            forecast = self.head(tokens)  # (B, P, C)
        else:
            forecast = self.head(_TOKEN_SCALE * tokens) + self.shortcut(series.mT).mT
        return forecast if self.norm is None else self.norm.denormalise(forecast, statistics)

    @torch.no_grad()
    def fit_shortcut(self, windows: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Set the shortcut to the ridge regression of the horizon on the look-back; the penalty is 0 at the last value.

        Does nothing unless the shortcut starts so.

        Args:
            windows: Batches of series (B, L, C) and their next values (B, P, C). Errors are those of the forecasts,
                after the instance norm is undone.
        """
        if self.shortcut is None or self.config.shortcut_start != "ridge":
            return
        products: list[Tensor] = []
        for series, target in windows:
            scale = torch.ones_like(series[:, :1])
            if self.norm is not None:
                # without learned parts, which change nothing at the start and may lie on another device
                series, (mean, scale) = ReversibleInstanceNorm().normalise(series)
                target = target - mean
            inputs = torch.cat((series, torch.ones_like(scale)), 1) * scale  # (B, L + 1, C)
            x, y = (part.mT.flatten(0, 1).double() for part in (inputs, target))
            new = [x.mT @ x, x.mT @ y]
            products = [old + more for old, more in zip(products, new, strict=True)] if products else new
        gram, right = products
        # windows of zeros need a penalty too; without one the system has many solutions
        penalty = (_RIDGE * gram.diagonal()[:-1].mean()).clamp(min=torch.finfo(gram.dtype).eps)
        gram.diagonal()[:-1].add_(penalty)
        right[-2] += penalty
        solution = torch.linalg.solve(gram, right)  # (L + 1, P)
        self.shortcut.weight.copy_(solution[:-1].mT)
        self.shortcut.bias.copy_(solution[-1])


class ReconstructModel(SeriesModel):
    """Series (B, L, C) to its reconstruction (B, L, C).

    Compared with PatchTST, iTransformer and Transformer for anomaly detection in thuml/Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients, softmax attention.

    Args:
        body: A network from series to series: a `BackboneForecaster` with horizon L, or a `PointEncoder`.
    """

    def __init__(self, body: SeriesModel) -> None:
        super().__init__(lookback=body.lookback, channels=body.channels)
        self.body = body

    def forward(self, series: Tensor) -> Tensor:
        """Reconstruct a series."""
        self.check_inputs(series)
        return self.body(series)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyHeadConfig(ModelConfig):
    """Parts of a `ClassifyModel` around its backbone.

    Attributes:
        instance_norm: Whether to standardise each series over its real steps.
        pooled: Whether the linear map reads the mean of a channel's tokens instead of all of them; tokens of padding do
            not count.
    """

    num_classes: int
    channels: int
    instance_norm: bool = False
    gelu: bool = True
    head_dropout: float = 0.0
    pooled: bool = False

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        check_at_least("num_classes", self.num_classes, 2)


class ClassifyModel(SeriesModel):
    """Series (B, L, C) and a mask (B, L) to logits (B, K): backbone, dropout, a linear map of all tokens or their mean.

    Series shorter than L are padded at the end, and the mask marks their real steps. Padding is never read: the
    instance norm covers real steps only; tokens that hold only padding are hidden from attention and zero in the head.
    In a patch with the end of a series, the last value fills the padding; other backbones read zeros there. So neither
    the values in the padding nor the other samples of the batch change a prediction.

    Compared with PatchTST, iTransformer and Transformer for classification in thuml/Time-Series-Library at
    4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients, softmax attention, series without padding. Its
    PatchTST flattens (C, E, N), ours (C, N, E); except in Transformer's head it ignores the mask.
    """

    def __init__(self, backbone: Backbone, config: ClassifyHeadConfig) -> None:
        _check_channels(backbone, config.channels)
        super().__init__(lookback=backbone.lookback, channels=config.channels)
        self.config = config
        self.norm = ReversibleInstanceNorm(detach_std=False) if config.instance_norm else None
        self.backbone = backbone
        self.dropout = Dropout(config.head_dropout)
        groups = 1 if backbone.mixes_channels else config.channels
        tokens = 1 if config.pooled else backbone.num_tokens
        self.head = Linear(groups * tokens * backbone.embed_dim, config.num_classes)

    def forward(self, series: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits per class.

        Args:
            series: (B, L, C), finite at its real steps.
            mask: (B, L), True where a step is real, at least once per series; None means no padding.
        """
        self.check_inputs(series)
        if mask is not None:
            check_mask(mask, series)
        if self.norm is not None:
            series, _ = self.norm.normalise(series, mask)
        tokens = self.backbone(series, mask=mask)  # (B, C or 1, N, E)
        if self.config.gelu:
            tokens = F.gelu(tokens)
        tokens = self.dropout(tokens)
        valid = None if mask is None else self.backbone.valid_tokens(mask)  # (B, N)
        if valid is not None:
            tokens = tokens.masked_fill(~valid[:, None, :, None], 0.0)
        if self.config.pooled:
            count = tokens.shape[2] if valid is None else valid.sum(1)[:, None, None]
            tokens = tokens.sum(2) / count
        return self.head(tokens.flatten(1))  # (B, K)


def _check_channels(backbone: Backbone, channels: int) -> None:
    if backbone.channels not in (None, channels):
        raise ArgumentError(
            "channels", f"be {backbone.channels}, as in the backbone", channels, "use one number for both"
        )
