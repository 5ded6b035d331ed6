"""A backbone with what makes forecasts of its tokens."""

from dataclasses import dataclass

from torch import Tensor

from toa._checks import check_fraction
from toa.models.base import Backbone, ForecastModel, check_sizes, check_types
from toa.nn import FlattenHead, ReversibleInstanceNorm


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecasterConfig:
    """What a `Forecaster` puts around its backbone.

    Attributes:
        horizon: Length P of the forecast.
        channels: Number of channels C, for what is kept for each: `affine` and `individual`.
        instance_norm: Whether each series is normalised over time before, and its forecast taken back after.
        affine: Whether that normalisation has a learnable scale and shift for each channel.
        detach_std: Whether gradients to the series stop at its standard deviation.
        individual: Whether each channel has a head of its own.
        head_dropout: Dropout on the forecasts themselves, before they are taken back.
    """

    horizon: int
    channels: int
    instance_norm: bool = True
    affine: bool = False
    detach_std: bool = True
    individual: bool = False
    head_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        check_sizes(self, "horizon", "channels")
        check_fraction("head_dropout", self.head_dropout)
        if self.affine and not self.instance_norm:
            raise ValueError("affine goes with instance_norm=True, got instance_norm=False; drop affine.")


class Forecaster(ForecastModel):
    """Series (B, L, C) to its next P values (B, P, C): instance norm, backbone, linear head, and back."""

    def __init__(self, backbone: Backbone, config: ForecasterConfig) -> None:
        super().__init__(
            lookback=backbone.lookback,
            horizon=config.horizon,
            channels=backbone.channels,
            num_marks=backbone.num_marks,
        )
        if backbone.channels not in (None, config.channels):
            raise ValueError(
                f"channels must be {backbone.channels}, the backbone's, got {config.channels}; build both alike."
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
            backbone.num_tokens,
            backbone.embed_dim,
            config.horizon,
            individual_channels=config.channels if config.individual else None,
            dropout=config.head_dropout,
        )

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        if self.norm is None:
            return self.head(self.backbone(series, marks))
        series, statistics = self.norm.normalise(series)
        return self.norm.denormalise(self.head(self.backbone(series, marks)), statistics)

    def check_inputs(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> None:
        """Refuse a series or marks that the backbone or the head was not built for."""
        super().check_inputs(series, marks, future_marks)
        channels = series.shape[2]
        if (self.config.affine or self.config.individual) and channels != self.config.channels:
            raise ValueError(
                f"series must have channels={self.config.channels}, got {channels}: shape {tuple(series.shape)}; "
                f"build the model with channels={channels}, or without affine and individual."
            )
