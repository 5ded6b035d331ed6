"""Models without attention: DLinear (Zeng et al., 2023) and TSMixer (Chen et al., 2023)."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from toa.models.base import ForecastModel, ModelConfig
from toa.models.registry import register_backbone
from toa.nn import Dropout, FlattenHead, Linear, ReversibleInstanceNorm, SeriesDecomposition, check_kernel


class MapOfSeries(ForecastModel):
    """A map of the series, with or without an instance norm around it.

    Args:
        instance_norm: Whether to standardise each series over time, and to undo this in its forecast.
    """

    def __init__(self, *, lookback: int, horizon: int, channels: int | None, instance_norm: bool) -> None:
        super().__init__(lookback=lookback, horizon=horizon, channels=channels)
        self.norm = ReversibleInstanceNorm() if instance_norm else None

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        if self.norm is None:
            return self._map(series)
        normalised, statistics = self.norm.normalise(series)
        return self.norm.denormalise(self._map(normalised), statistics)

    @abstractmethod
    def _map(self, series: Tensor) -> Tensor:
        """Series (B, L, C) to its next values (B, P, C)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DLinearConfig(ModelConfig):
    """Sizes of a `DLinear`.

    Attributes:
        moving_average: Steps of the moving average that is the trend; odd.
        individual: Whether each channel has its own maps.
        instance_norm: See `MapOfSeries`; the published model has none.
    """

    lookback: int
    horizon: int
    channels: int
    moving_average: int = 25
    individual: bool = False
    instance_norm: bool = False

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        check_kernel("moving_average", self.moving_average, self.lookback)


@register_backbone("dlinear", DLinearConfig, "forecast")
class DLinear(MapOfSeries):
    """Two linear maps along time, (B, L, C) to (B, P, C): y = A seasonal + a + B trend + b, series = seasonal + trend.

    Weights start at 1 / L, so that the first forecast is the mean of the past plus the biases.

    Compared with thuml/Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients.
    """

    def __init__(self, config: DLinearConfig) -> None:
        super().__init__(
            lookback=config.lookback,
            horizon=config.horizon,
            channels=config.channels if config.individual else None,
            instance_norm=config.instance_norm,
        )
        self.config = config
        self.decompose = SeriesDecomposition(config.moving_average)
        self.seasonal, self.trend = (
            FlattenHead(1, config.lookback, config.horizon, individual_channels=self.channels) for _ in range(2)
        )
        for part in (self.seasonal, self.trend):
            nn.init.constant_(part.weight, 1.0 / config.lookback)

    def _map(self, series: Tensor) -> Tensor:
        # the head reads the whole past of a channel as one token
        seasonal, trend = (part.mT.unsqueeze(2) for part in self.decompose(series))  # (B, C, 1, L)
        return self.seasonal(seasonal) + self.trend(trend)  # (B, P, C)


@dataclass(frozen=True, kw_only=True, slots=True)
class TSMixerConfig(ModelConfig):
    """Sizes of a `TSMixer`.

    Attributes:
        embed_dim: Hidden width of its perceptrons.
        instance_norm: See `MapOfSeries`; the published model has none.
    """

    lookback: int
    horizon: int
    channels: int
    embed_dim: int = 512
    num_layers: int = 2
    dropout: float = 0.1
    instance_norm: bool = False


class MixerBlock(nn.Module):
    """x ← x + (perceptron along time of x); x ← x + (perceptron across channels of x); x (B, C, L)."""

    def __init__(self, lookback: int, channels: int, embed_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.temporal, self.channel = (
            nn.Sequential(Linear(size, embed_dim), nn.ReLU(), Linear(embed_dim, size)) for size in (lookback, channels)
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens; the shape stays the same."""
        x = x + self.dropout(self.temporal(x))
        return x + self.dropout(self.channel(x.mT).mT)


@register_backbone("tsmixer", TSMixerConfig, "forecast")
class TSMixer(MapOfSeries):
    """Blocks that mix time and channels, then one linear map along time: (B, L, C) to (B, P, C).

    Compared with thuml/Time-Series-Library at 4e938a1767106324dd753b2a44832bf870a0252e: outputs and gradients.
    """

    def __init__(self, config: TSMixerConfig) -> None:
        super().__init__(
            lookback=config.lookback,
            horizon=config.horizon,
            channels=config.channels,
            instance_norm=config.instance_norm,
        )
        self.config = config
        self.blocks = nn.Sequential(
            *(
                MixerBlock(config.lookback, config.channels, config.embed_dim, dropout=config.dropout)
                for _ in range(config.num_layers)
            )
        )
        self.projection = Linear(config.lookback, config.horizon)

    def _map(self, series: Tensor) -> Tensor:
        return self.projection(self.blocks(series.mT)).mT  # (B, P, C)
