"""What a forecaster fits by: the parameters of `Forecaster` that are not about reading tables, checked."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toa.estimators.covariates import Covariates
from toa.estimators.effort import Effort

# windows per column at rolling origins, in the fewest that an interval needs
_INTERVAL_WINDOWS = 2
# horizons that are held out for the network alone with an interval, which needs the second half
_HELD_HORIZONS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSpec:
    """What is trained, see the parameters of `toa.Forecaster`.

    Attributes:
        alone: Whether the forecast is the network alone: it is standardised by deviations, has its own interval, and
            the counted work is not limited.
        quantiles: Levels to return.
    """

    horizon: int
    alone: bool
    lookback: int | None
    backbone: str
    attention: str | Mapping[str, Any] | None
    settings: Mapping[str, Any] | None
    quantiles: tuple[float, ...]
    loss: Literal["mse", "mae"]
    epochs: int | None
    batch_size: int | None
    learning_rate: float
    operator_rate: float | None
    patience: int
    device: str
    progress: bool

    @property
    def levels(self) -> tuple[float, ...]:
        """Trained levels: those of `quantiles` and the median; none without quantiles."""
        return tuple(sorted({*self.quantiles, 0.5})) if self.quantiles else ()

    @property
    def point(self) -> int:
        """Place of the forecast itself among the levels."""
        return self.levels.index(0.5) if self.levels else 0

    @property
    def shown(self) -> tuple[int, ...]:
        """Places of `quantiles` among the levels."""
        return tuple(self.levels.index(level) for level in self.quantiles)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastSettings:
    """How a forecaster is fitted.

    Attributes:
        season: Steps of a season; None takes it from the frequency or finds it.
        covariates: Columns and country of the features, not yet fitted.
        calendar: Whether there are calendar features.
    """

    horizon: int
    season: int | None
    interval: float | None
    quantiles: tuple[float, ...]
    validation_share: float
    effort: Effort
    seed: int
    seeds: int | None
    covariates: Covariates
    calendar: bool
    network: NetworkSpec

    @property
    def least_origins(self) -> int:
        """Fewest windows per column at the rolling origins: twice those that an interval needs."""
        if self.interval is None:
            return self.effort.origins
        needed = math.ceil(self.interval / (1.0 - self.interval))
        return max(self.effort.origins, _INTERVAL_WINDOWS * needed)

    @property
    def has_known_features(self) -> bool:
        """Whether some features are known in advance."""
        return bool(self.covariates.covariates or self.covariates.holidays or self.calendar)

    @property
    def has_features(self) -> bool:
        """Whether there are features at all."""
        return bool(self.covariates.columns) or self.has_known_features

    @property
    def halves(self) -> bool:
        """Whether the held-out rows are halved: the first stops training, the second sets the interval."""
        return self.network.alone and self.interval is not None

    def borders(self, lengths: tuple[int, ...]) -> list[int]:
        """Per series the first row that is held out to stop training, and for the interval of the network alone."""
        least = self.horizon * (_HELD_HORIZONS if self.halves else 1)
        return [max(1, rows - max(least, int(rows * self.validation_share))) for rows in lengths]
