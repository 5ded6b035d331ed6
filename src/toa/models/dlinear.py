"""DLinear: one linear map of the trend and one of the seasonal part (Zeng et al., 2023)."""

from dataclasses import dataclass

from torch import Tensor, nn

from toa.models.base import ForecastModel, ModelConfig
from toa.models.registry import register_backbone
from toa.nn import FlattenHead, SeriesDecomposition, check_kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class DLinearConfig(ModelConfig):
    """Sizes of a `DLinear`.

    Attributes:
        moving_average: Steps of the moving average that is the trend; odd.
        individual: Whether each channel has its own maps.
    """

    lookback: int
    horizon: int
    channels: int
    moving_average: int = 25
    individual: bool = False

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        check_kernel("moving_average", self.moving_average, self.lookback)


@register_backbone("dlinear", DLinearConfig, "forecast")
class DLinear(ForecastModel):
    """Two linear maps along time, (B, L, C) to (B, P, C): y = A seasonal + a + B trend + b, series = seasonal + trend.

    Weights start at 1 / L, so that the first forecast is the mean of the past plus the biases. No normalisation.

    Compared with thuml/Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients.
    """

    def __init__(self, config: DLinearConfig) -> None:
        super().__init__(
            lookback=config.lookback, horizon=config.horizon, channels=config.channels if config.individual else None
        )
        self.config = config
        self.decompose = SeriesDecomposition(config.moving_average)
        self.seasonal, self.trend = (
            FlattenHead(1, config.lookback, config.horizon, individual_channels=self.channels) for _ in range(2)
        )
        for part in (self.seasonal, self.trend):
            nn.init.constant_(part.weight, 1.0 / config.lookback)

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        # the head reads the whole past of a channel as one token
        seasonal, trend = (part.mT.unsqueeze(2) for part in self.decompose(series))  # (B, C, 1, L)
        return self.seasonal(seasonal) + self.trend(trend)  # (B, P, C)
