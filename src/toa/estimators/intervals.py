"""The models around a forecasting model: quantiles and covariates inside, scaling and intervals outside.

Alphabet: B batch, L look-back, P horizon, C channels, F features, Q levels, S series.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from toa.models import ForecastModel
from toa.tasks.forecast import Forecasting, ForecastRun, evaluation_batches, forecast_loss
from toa.tasks.metrics import FORECAST_METRICS, pinball_error
from toa.tasks.step import ShuffledBatches

# width of the network from features to their effect
_FEATURE_WIDTH = 32
# smallest spread of a look-back, in standard deviations of the column: keeps intervals of a flat series open
_LEAST_SPREAD = 0.1


class HorizonModel(nn.Module):
    """Forecast the next P values of a series (B, L, C) at each of Q quantile levels: (B, P, Q, C).

    The inner model f forecasts P * Q values per channel, the levels of a step next to each other. A network g learns
    the effect of the features (calendar, covariates): f(x - g(past features)) + g(future features), initially g = 0.

    Args:
        model: Forecasting model with horizon P * Q.
        levels: Number of levels Q; 1 without quantiles.
        features: Number of features F; 0 for none.
        channels: Number of channels C.
    """

    def __init__(self, model: ForecastModel, *, levels: int, features: int, channels: int) -> None:
        super().__init__()
        self.model = model
        self.levels = levels
        self.effect: nn.Module | None = None
        if features:
            last = nn.Linear(_FEATURE_WIDTH, channels)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.effect = nn.Sequential(nn.Linear(features, _FEATURE_WIDTH), nn.GELU(), last)

    def forward(self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None) -> Tensor:
        """Forecast at all levels."""
        return self._split_levels(self.model(self._without_effect(series, marks)), future_marks)

    def forecast_and_penalty(
        self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Forecast at all levels, and the auxiliary loss of the inner model, zero if it has none."""
        inner = getattr(self.model, "forecast_and_penalty", None)
        if inner is None:
            return self(series, marks, future_marks), series.new_zeros(())
        forecast, penalty = inner(self._without_effect(series, marks))
        return self._split_levels(forecast, future_marks), penalty

    def _without_effect(self, series: Tensor, marks: Tensor | None) -> Tensor:
        return series if self.effect is None else series - self.effect(marks)

    def _split_levels(self, forecast: Tensor, future_marks: Tensor | None) -> Tensor:
        split = forecast.unflatten(1, (-1, self.levels))  # (B, P, Q, C)
        return split if self.effect is None else split + self.effect(future_marks).unsqueeze(2)


@dataclass(frozen=True, kw_only=True, slots=True)
class HorizonRun(ForecastRun):
    """Config of a `HorizonModel`.

    Args:
        levels: Quantile levels, trained with the pinball loss; none trains with `loss`.
        features: Number of features F.
        steps: Batches per epoch, which may use only a part of the windows.
    """

    levels: tuple[float, ...] = ()
    features: int = 0
    steps: int = 1


class HorizonForecasting(Forecasting):
    """The task of `HorizonModel`: forecasting with quantiles and features."""

    config = HorizonRun

    def build(self, config: Any, data: Any) -> nn.Module:
        """The untrained model."""
        levels = max(1, len(config.levels))
        model: Any = super().build(replace(config, horizon=config.horizon * levels), data)
        return HorizonModel(model, levels=levels, features=config.features, channels=data.channels)

    def batches(self, config: Any, data: Any, device: torch.device) -> ShuffledBatches:
        """Training batches, as many per epoch as the config has steps."""
        batches = super().batches(config, data, device)
        batches.steps_per_epoch = config.steps
        return batches

    def loss(self, config: Any, fabric: Any) -> Callable[..., Tensor]:
        """The mean error plus the penalty of the model."""
        error = _error_of(config, fabric.device)
        return partial(forecast_loss, error=lambda forecast, y: error(forecast, y).mean(), autocast=fabric.autocast)

    def validate(self, config: Any, data: Any) -> Callable[[nn.Module], float]:
        """The mean error over the held-out windows."""
        error = _error_of(config, data.val.device)

        def validate(model: nn.Module) -> float:
            total = torch.zeros((), dtype=torch.float64)
            for x, y, *marks in evaluation_batches(data.val):
                total += error(model(x, *marks), y).mean(dtype=torch.float64).cpu() * len(x)
            return float(total) / len(data.val)

        return validate


def _error_of(config: HorizonRun, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Elementwise error of a forecast (B, P, Q, C) against (B, P, C): pinball for levels, else the metric `loss`."""
    if not config.levels:
        metric = FORECAST_METRICS[config.loss]
        return lambda forecast, y: metric(forecast.squeeze(2), y)
    # on the training device, so that a step does not wait for a copy
    levels = torch.tensor(config.levels, device=device)
    return lambda forecast, y: pinball_error(forecast, y, levels)


class Prediction(NamedTuple):
    """A forecast (B, P, C), its quantiles (B, P, Q, C) and the bounds of its interval (B, P, C), or None."""

    forecast: Tensor
    quantiles: Tensor | None = None
    lower: Tensor | None = None
    upper: Tensor | None = None


class UnitsModel(nn.Module):
    """Forecast in the units of the data: scaling and intervals around a `HorizonModel`, in float64.

    Quantiles that cross are sorted. The interval is forecast ± width * spread, where spread is the standard deviation
    of the look-back.

    Args:
        model: Model on standardised values.
        mean: Mean of each series and channel (S, C).
        std: Standard deviation (S, C).
        point: Index of the level that is the forecast itself.
        shown: Indices of the levels to return as quantiles.
        width: Width of the interval (P, C), in spreads; None for no interval.
    """

    def __init__(
        self,
        model: HorizonModel,
        mean: Tensor,
        std: Tensor,
        *,
        point: int,
        shown: tuple[int, ...] = (),
        width: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.point = point
        self.shown = shown
        self.mean: Tensor
        self.std: Tensor
        self.width: Tensor | None
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.register_buffer("width", width)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Fields of a `Prediction` that a call returns."""
        quantiles = ("quantiles",) if self.shown else ()
        return ("forecast", *quantiles, *(() if self.width is None else ("lower", "upper")))

    def forward(
        self,
        series: Tensor,
        which: Tensor | None = None,
        marks: Tensor | None = None,
        future_marks: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """The fields that `outputs` names.

        Args:
            series: Look-backs (B, L, C) in float64.
            which: Index of the series (B,) of each look-back; None for one series.
            marks: Features of the look-back (B, L, F) in float32.
            future_marks: Features of the forecast steps (B, P, F).
        """
        indices = slice(0, 1) if which is None else which
        mean, std = self.mean[indices].unsqueeze(1), self.std[indices].unsqueeze(1)  # (B, 1, C)
        scaled = ((series - mean) / std).float()
        levels = self.model(scaled, marks, future_marks).double()  # (B, P, Q, C)
        if levels.shape[2] > 1:
            levels = levels.sort(2).values
        forecast = levels[:, :, self.point]  # (B, P, C)
        found: tuple[Tensor, ...] = (forecast * std + mean,)
        if self.shown:
            found += (levels[:, :, list(self.shown)] * std.unsqueeze(1) + mean.unsqueeze(1),)
        if self.width is not None:
            half = self.width * spread(scaled).double()  # (B, P, C)
            found += ((forecast - half) * std + mean, (forecast + half) * std + mean)
        return found

    @torch.no_grad()
    def predict(self, batches: Iterable[tuple[Tensor | None, ...]]) -> Prediction:
        """Apply the model to the arguments of `forward`, batch by batch; results are on the CPU."""
        device = self.mean.device
        parts = []
        for inputs in batches:
            found = self(*(None if x is None else x.to(device) for x in inputs))
            parts.append([part.cpu() for part in found])
        joined = (found[0] if len(found) == 1 else torch.cat(found) for found in zip(*parts, strict=True))
        return Prediction(**dict(zip(self.outputs, joined, strict=True)))


def spread(series: Tensor) -> Tensor:
    """Standard deviation of a standardised look-back (B, L, C), at least about 0.1: (B, 1, C)."""
    return (series.var(1, correction=0, keepdim=True) + _LEAST_SPREAD**2).sqrt()


def conformal_width(scores: Tensor, level: float) -> Tensor:
    """Split-conformal width (P, C) from calibration scores |error| / spread (N, P, C).

    This is the ceil((N + 1) level)-th smallest score of each step and channel. A new score that is exchangeable with
    these is at most the width with probability `level` or more.

    Raises:
        ValueError: If there are too few scores.
    """
    count = len(scores)
    rank = -int(-(count + 1) * level // 1)
    if rank > count:
        least = -int(-level / (1.0 - level) // 1)
        raise ValueError(
            f"interval={level} must have at least {least} windows to calibrate on, got {count}; raise "
            "validation_share, or use a longer series or a smaller interval."
        )
    return scores.kthvalue(rank, 0).values
