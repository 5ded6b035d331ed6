"""Models around a model: quantiles and known features beside it, units and intervals around it.

Alphabet: B batch, L look-back, P horizon, C channels, F features, Q levels, S series.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from toa.models import ForecastModel
from toa.tasks.metrics import FORECAST_METRICS, pinball_error

# width of the network from known features to their effect
_FEATURE_WIDTH = 32
# of a look-back that hardly moves, in standard deviations of the column: keeps its band from closing
_LEAST_SPREAD = 0.1


class HorizonModel(nn.Module):
    """A series (B, L, C) to its next P values at each of Q levels: (B, P, Q, C).

    The model inside forecasts P * Q values a channel, the levels of a step side by side. What known features (calendar,
    covariates) do to a series is learned by a network g of their own, taken off the past and put onto the forecast, so
    that it serves every model: f(x - g(past)) + g(future). It starts as zero.

    Args:
        model: Of P * Q steps.
        levels: Number of levels Q; 1 for forecasts without quantiles.
        features: Number of known features F; 0 for none.
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
        return self._levelled(self.model(self._without_effect(series, marks)), future_marks)

    def forecast_and_penalty(
        self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Forecast at all levels, and the auxiliary loss of the model inside, zero if it has none."""
        inner = getattr(self.model, "forecast_and_penalty", None)
        if inner is None:
            return self(series, marks, future_marks), series.new_zeros(())
        forecast, penalty = inner(self._without_effect(series, marks))
        return self._levelled(forecast, future_marks), penalty

    def _without_effect(self, series: Tensor, marks: Tensor | None) -> Tensor:
        return series if self.effect is None else series - self.effect(marks)

    def _levelled(self, forecast: Tensor, future_marks: Tensor | None) -> Tensor:
        levelled = forecast.unflatten(1, (-1, self.levels))  # (B, P, Q, C)
        return levelled if self.effect is None else levelled + self.effect(future_marks).unsqueeze(2)


def horizon_error(loss: str, levels: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Error of a forecast (B, P, Q, C) against (B, P, C), entry by entry: pinball at levels, else a metric by name.

    Levels are on the training device: a step must not wait for what is elsewhere.
    """
    if levels is not None:
        return lambda forecast, y: pinball_error(forecast, y, levels)
    metric = FORECAST_METRICS[loss]
    return lambda forecast, y: metric(forecast.squeeze(2), y)


def horizon_loss(error: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The mean of an error as a training loss of a `HorizonModel`, its penalty added."""

    def loss_of(
        model: nn.Module, x: Tensor, y: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None
    ) -> Tensor:
        forecast, penalty = model.forecast_and_penalty(x, marks, future_marks)  # type: ignore[operator]
        return error(forecast, y).mean() + penalty

    return loss_of


class Outcome(NamedTuple):
    """A forecast (B, P, C); its quantiles (B, P, Q, C) and the ends of its interval (B, P, C), if there are any."""

    forecast: Tensor
    quantiles: Tensor | None = None
    lower: Tensor | None = None
    upper: Tensor | None = None


class UnitsModel(nn.Module):
    """From a series in its own units to its forecast in them, scaling and intervals inside; all in float64.

    Quantiles are put in order where they cross. An interval is the forecast more and less `width` times the spread of
    the look-back, whose standard deviation says how much a series moves at present.

    Args:
        model: From standardised values to forecasts at the levels.
        mean: Of each series and channel (S, C).
        std: Likewise.
        point: Which level is the forecast itself.
        shown: Which levels are asked for as quantiles.
        width: Of the interval (P, C), in spreads; None for no interval.
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
        """Fields of an `Outcome` that a call returns."""
        quantiles = ("quantiles",) if self.shown else ()
        return ("forecast", *quantiles, *(() if self.width is None else ("lower", "upper")))

    def forward(
        self,
        series: Tensor,
        which: Tensor | None = None,
        marks: Tensor | None = None,
        future_marks: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """What `outputs` names.

        Args:
            series: (B, L, C), in float64.
            which: Number of the series (B,) that each is the end of; None if there is one.
            marks: Known features of the past (B, L, F), in float32.
            future_marks: Those of the steps to forecast (B, P, F).
        """
        places = slice(0, 1) if which is None else which
        mean, std = self.mean[places].unsqueeze(1), self.std[places].unsqueeze(1)  # (B, 1, C)
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


def spread(series: Tensor) -> Tensor:
    """How much a standardised look-back (B, L, C) moves: (B, 1, C)."""
    return (series.var(1, correction=0, keepdim=True) + _LEAST_SPREAD**2).sqrt()


def conformal_width(scores: Tensor, level: float) -> Tensor:
    """Split-conformal width (P, C) of calibration scores |error| / spread (N, P, C).

    The ceil((N + 1) level)-th smallest of each step and channel: a new score that is exchangeable with these is not
    larger with a probability of at least `level`.

    Raises:
        ValueError: If there are too few.
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


@torch.no_grad()
def apply_in_batches(model: UnitsModel, inputs: tuple[Tensor | None, ...], batch_size: int = 512) -> Outcome:
    """All rows of the inputs, so many at a time, results on the CPU."""
    device = next(model.parameters()).device
    count = next(x.shape[0] for x in inputs if x is not None)
    parts = []
    for start in range(0, count, batch_size):
        piece = (None if x is None else x[start : start + batch_size].to(device) for x in inputs)
        named = zip(model.outputs, model(*piece), strict=True)
        parts.append(Outcome(**{name: found.cpu() for name, found in named}))
    return join_outcomes(parts)


def join_outcomes(parts: Sequence[Outcome]) -> Outcome:
    """Outcomes of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    forecast, *others = zip(*parts, strict=True)
    return Outcome(torch.cat(forecast), *(None if part[0] is None else torch.cat(part) for part in others))
