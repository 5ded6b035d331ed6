"""Forecasts in the units of the data: scaling, counts and intervals around a network.

Alphabet: B batch, L look-back, P horizon, C channels, F features, Q levels, S series, W windows.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from toa._checks import Argument, ArgumentError, Phrase
from toa.data.panel import Panel

# "forecast" (B, P, C), and if there are any its "quantiles" (B, P, Q, C) and the bounds "lower" and "upper" (B, P, C)
Prediction = dict[str, Tensor]

# smallest spread of a look-back, in standard deviations of the column: keeps intervals of a flat series open
_LEAST_SPREAD = 0.1


def join_batches(parts: Sequence[Prediction]) -> Prediction:
    """Predictions of several batches as one; it lacks what one of them lacks."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0] if all(name in part for part in parts)}


class MeanModel(nn.Module):
    """The mean of the forecasts (B, P, Q, C) of networks that were trained with different seeds."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, *inputs: Tensor | None) -> Tensor:
        """Forecast at all levels."""
        return torch.stack([model(*inputs) for model in self.models]).mean(0)


class UnitsModel(nn.Module):
    """Forecast in the units of the data: scaling and intervals around a network, in float64.

    Quantiles that cross are sorted. The interval is forecast ± width * spread, where spread is the standard deviation
    of the look-back.

    Args:
        model: A `toa.training.forecast.HorizonModel`, or the mean of several.
        mean: Mean of each series and channel (S, C).
        point: Index of the level that is the forecast itself.
        shown: Indices of the levels to return as quantiles.
        width: Width of the interval (P, C), in spreads; None for no interval.
        counts: Mask (C,) of channels whose forecasts are at least 0, see `find_counts`; None for none.
    """

    def __init__(
        self,
        model: nn.Module,
        mean: Tensor,
        std: Tensor,
        *,
        point: int,
        shown: tuple[int, ...] = (),
        width: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.point = point
        self.shown = shown
        self.mean: Tensor
        self.std: Tensor
        self.width: Tensor | None
        self.floor: Tensor | None
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.register_buffer("width", width)
        floor = None if counts is None or not counts.any() else mean.new_zeros(1).where(counts.bool(), -math.inf)
        self.register_buffer("floor", floor)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what a call returns, as in a `Prediction`."""
        quantiles = ("quantiles",) if self.shown else ()
        bounds = () if self.width is None else ("lower", "upper")
        return ("forecast", *quantiles, *bounds)

    def forward(
        self,
        series: Tensor,
        which: Tensor | None = None,
        marks: Tensor | None = None,
        future_marks: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """The fields that `outputs` names.

        Args:
            series: Look-backs (B, L, C) in float64, or in float32, as the results then are.
            which: Index of the series (B,) of each look-back; None for one series.
            marks: Features of the look-back (B, L, F) in float32.
            future_marks: Features of the forecast steps (B, P, F).
        """
        indices = slice(0, 1) if which is None else which
        mean = self.mean[indices].unsqueeze(1)  # (B, 1, C)
        std = self.std[indices].unsqueeze(1)
        exact = (series - mean) / std
        scaled = exact.float()
        levels = self.model(scaled, marks, future_marks).double()  # (B, P, Q, C)
        if levels.shape[2] > 1:
            levels = levels.sort(2).values
        if series.shape[1] > 1:
            # a column that never changed in fit, whose std is 1, keeps the value of a flat look-back
            flat = (std == 1.0) & ((series - series[:, :1]).abs().amax(1, keepdim=True) == 0.0)  # (B, 1, C)
            levels = torch.where(flat.unsqueeze(1), exact[:, -1:].unsqueeze(1), levels)
        forecast = levels[:, :, self.point]  # (B, P, C)
        parts: tuple[Tensor, ...] = (forecast * std + mean,)
        if self.shown:
            parts += (levels[:, :, list(self.shown)] * std.unsqueeze(1) + mean.unsqueeze(1),)
        if self.width is not None:
            half = self.width * spread(scaled).double()  # (B, P, C)
            parts += ((forecast - half) * std + mean, (forecast + half) * std + mean)
        if self.floor is not None:
            parts = tuple(part.maximum(self.floor) for part in parts)
        return tuple(part.to(series.dtype) for part in parts)

    @torch.no_grad()
    def predict(self, *inputs: Tensor | None) -> Prediction:
        """Apply the model to the arguments of `forward`; results are on the CPU."""
        parts = self(*(None if x is None else x.to(self.mean.device) for x in inputs))
        return {name: part.cpu() for name, part in zip(self.outputs, parts, strict=True)}


def find_counts(panel: Panel, columns: Sequence[str]) -> Bool[np.ndarray, " c"]:
    """Which columns hold only counts, 0, 1, 2, …: their forecasts are at least 0."""
    whole = [(part >= 0).all(0) & (part == np.round(part)).all(0) for part in panel.take(columns)]
    return np.asarray(np.all(whole, axis=0))


def spread(series: Tensor) -> Tensor:
    """Standard deviation of a standardised look-back (B, L, C), at least about 0.1: (B, 1, C)."""
    return (series.var(1, correction=0, keepdim=True) + _LEAST_SPREAD**2).sqrt()


def conformal_width(scores: Tensor, level: float) -> Tensor:
    """Split-conformal width (P, C) from calibration scores |error| / spread (N, P, C).

    This is the ceil((N + 1) level)-th smallest score of each step and channel. A new score that is exchangeable with
    these is at most the width with probability `level` or more.
    """
    check_windows(len(scores), level)
    return scores.kthvalue(math.ceil((len(scores) + 1) * level), 0).values


def check_windows(count: int, level: float) -> None:
    """Raise ValueError if an interval of this probability needs more windows than these to calibrate on."""
    if math.ceil((count + 1) * level) > count:
        least = math.ceil(round(level / (1.0 - level), 6))
        raise ArgumentError(
            Argument("interval", level),
            f"have at least {least} windows to calibrate on",
            count,
            Phrase("raise ", Argument("validation_share")),
            "use a longer series or a smaller interval",
        )


def check_forecast(prediction: Prediction, columns: Sequence[str]) -> None:
    """Raise ValueError for a forecast that is not finite."""
    for name, part in prediction.items():
        wrong = ~part.isfinite()
        if wrong.any():
            window, step, *_, column = wrong.nonzero()[0].tolist()
            raise ArgumentError(
                f"the {name} of column {columns[column]!r}",
                "be finite",
                f"another number at step {step + 1} of window {window + 1}",
                "check the units of its rows, or fit again",
            )
