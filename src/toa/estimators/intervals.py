"""Forecasts in the units of the data, with their intervals.

Alphabet: B batch, L look-back, P horizon, C channels, F features, Q levels, S series.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from toa.tasks.forecast import HorizonModel

# smallest spread of a look-back, in standard deviations of the column: keeps intervals of a flat series open
_LEAST_SPREAD = 0.1


class Prediction(NamedTuple):
    """A forecast (B, P, C), its quantiles (B, P, Q, C) and the bounds of its interval (B, P, C), or None."""

    forecast: Tensor
    quantiles: Tensor | None = None
    lower: Tensor | None = None
    upper: Tensor | None = None

    @classmethod
    def join(cls, parts: Sequence["Prediction"]) -> "Prediction":
        """Predictions of several batches as one; a field that a part lacks is None."""
        fields: Any = zip(*parts, strict=True)
        joined: Any = (None if any(one is None for one in found) else torch.cat(found) for found in fields)
        return cls(*joined)


class UnitsModel(nn.Module):
    """Forecast in the units of the data: scaling and intervals around a `HorizonModel`, in float64.

    Quantiles that cross are sorted. The interval is forecast ± width * spread, where spread is the standard deviation
    of the look-back.

    Args:
        mean: Mean of each series and channel (S, C).
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
            series: Look-backs (B, L, C) in float64, or in float32, as the results then are.
            which: Index of the series (B,) of each look-back; None for one series.
            marks: Features of the look-back (B, L, F) in float32.
            future_marks: Features of the forecast steps (B, P, F).
        """
        indices = slice(0, 1) if which is None else which
        mean, std = self.mean[indices].unsqueeze(1), self.std[indices].unsqueeze(1)  # (B, 1, C)
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
        found: tuple[Tensor, ...] = (forecast * std + mean,)
        if self.shown:
            found += (levels[:, :, list(self.shown)] * std.unsqueeze(1) + mean.unsqueeze(1),)
        if self.width is not None:
            half = self.width * spread(scaled).double()  # (B, P, C)
            found += ((forecast - half) * std + mean, (forecast + half) * std + mean)
        return tuple(part.to(series.dtype) for part in found)

    @torch.no_grad()
    def predict(self, batches: Iterable[tuple[Tensor | None, ...]]) -> Prediction:
        """Apply the model to the arguments of `forward`, batch by batch; results are on the CPU."""
        device = self.mean.device
        parts = []
        for inputs in batches:
            found = self(*(None if x is None else x.to(device) for x in inputs))
            parts.append(Prediction(**{name: part.cpu() for name, part in zip(self.outputs, found, strict=True)}))
        return parts[0] if len(parts) == 1 else Prediction.join(parts)


def spread(series: Tensor) -> Tensor:
    """Standard deviation of a standardised look-back (B, L, C), at least about 0.1: (B, 1, C)."""
    return (series.var(1, correction=0, keepdim=True) + _LEAST_SPREAD**2).sqrt()


def conformal_width(scores: Tensor, level: float) -> Tensor:
    """Split-conformal width (P, C) from calibration scores |error| / spread (N, P, C).

    This is the ceil((N + 1) level)-th smallest score of each step and channel. A new score that is exchangeable with
    these is at most the width with probability `level` or more.
    """
    count = len(scores)
    rank = -int(-(count + 1) * level // 1)
    if rank > count:
        least = -int(-round(level / (1.0 - level), 6) // 1)
        raise ValueError(
            f"interval={level} must have at least {least} windows to calibrate on, got {count}; raise "
            "validation_share, or use a longer series or a smaller interval."
        )
    return scores.kthvalue(rank, 0).values


def check_finite(found: Prediction, columns: Sequence[str]) -> None:
    """Raise ValueError for a forecast that is not finite."""
    for name, part in found._asdict().items():
        wrong = None if part is None else ~part.isfinite()
        if wrong is not None and wrong.any():
            window, step, *_, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"the {name} of column {columns[column]!r} must be finite, got another number at step {step + 1} of "
                f"window {window + 1}; check the units of its rows, or fit again."
            )
