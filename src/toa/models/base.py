"""What a task may ask of a backbone or of a whole forecasting model, and the checks that they share."""

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_shape

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Bound(Protocol):
    """A model for series of one length and, where it is bound to one, one number of channels."""

    lookback: int
    channels: int | None


class Backbone(nn.Module, ABC):
    """A series (B, L, C) in, tokens of each channel (B, C, N, E) out. It never learns its task: the task brings a head.

    A model whose tokens each hold all channels gives (B, 1, N, E), and says so by `mixes_channels`.

    Args:
        lookback: Length L of the series.
        embed_dim: Width E of a token.
        num_tokens: Tokens N of a channel that come out.
        channels: The number of channels C, if the model is bound to one.
        num_marks: Time features F that it takes beside the series, (B, L, F).
    """

    # whether the model can make use of time marks at all
    uses_marks: ClassVar[bool]
    # whether a token is of all channels, so that there is one group of tokens and not one a channel
    mixes_channels: ClassVar[bool] = False

    def __init__(
        self, *, lookback: int, embed_dim: int, num_tokens: int, channels: int | None = None, num_marks: int = 0
    ) -> None:
        super().__init__()
        self.lookback = lookback
        self.embed_dim = embed_dim
        self.num_tokens = num_tokens
        self.channels = channels
        self.num_marks = num_marks

    def forward(self, series: Tensor, marks: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Tokens of each channel."""
        return self.encode(series, marks, mask=mask)[0]

    def encode(
        self,
        series: Tensor,
        marks: Tensor | None = None,
        need_weights: bool = False,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Tokens of each channel; with `need_weights`, each layer's mixing operators (..., H, tokens, tokens) too.

        Args:
            series: (B, L, C).
            marks: Time features (B, L, F), if the model takes any.
            need_weights: Whether to return the mixing operators.
            mask: (B, L), True where a step is real, padding behind; None if all are. What stands in the padding is
                never read, and no other token sees those of padding alone; see `valid_tokens`.
        """
        self.check_inputs(series, marks)
        if mask is None:
            return self._encode(series, marks, need_weights, None)
        check_mask(mask, series)
        valid = self.valid_tokens(mask)
        padding = None if valid is None else ~valid
        return self._encode(self._fill(series, mask), marks, need_weights, padding)

    @abstractmethod
    def _encode(
        self, series: Tensor, marks: Tensor | None, need_weights: bool, padding: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """`encode`, inputs checked and padding filled; `padding` (B, N) is True where a token is padding alone."""

    def valid_tokens(self, mask: Tensor) -> Tensor | None:
        """Which tokens (B, N) hold a real step; None where all do, whatever the mask."""
        return None

    def _fill(self, series: Tensor, mask: Tensor) -> Tensor:
        """The series with its padding replaced: by zeros, the level of standardised data."""
        return series.masked_fill(~mask.unsqueeze(-1), 0.0)

    def check_inputs(self, series: Tensor, marks: Tensor | None) -> None:
        """Refuse a series or marks that the model was not built for."""
        check_series(self, series)
        _check_marks("marks", marks, "(B, L, F)", (series.shape[0], self.lookback), self)


class ForecastModel(nn.Module, ABC):
    """A series (B, L, C) in, its next P values (B, P, C) out.

    A model with an auxiliary loss has a method `forecast_and_penalty` of the same arguments as `forward`: what that
    returns, and a scalar that is added to the loss in training.

    Args:
        lookback: Length L of the series.
        horizon: Length P of the forecast.
        channels: The number of channels C, if the model is bound to one.
        num_marks: Time features F that it takes beside the series, (B, L, F).
    """

    # whether the model can make use of time marks at all, and of those of the steps to forecast
    uses_marks: bool = False
    uses_future_marks: bool = False

    def __init__(self, *, lookback: int, horizon: int, channels: int | None = None, num_marks: int = 0) -> None:
        super().__init__()
        self.lookback = lookback
        self.horizon = horizon
        self.channels = channels
        self.num_marks = num_marks

    def forward(self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None) -> Tensor:
        """Forecast.

        Args:
            series: The past (B, L, C).
            marks: Time features of the past (B, L, F) for a model with `num_marks` = F; None for one without.
            future_marks: Those of the steps to forecast (B, P, F). A model with marks that does not use these takes
                them all the same.
        """
        self.check_inputs(series, marks, future_marks)
        return self._forecast(series, marks, future_marks)

    @abstractmethod
    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        """`forward`, inputs checked."""

    def check_inputs(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> None:
        """Refuse a series or marks that the model was not built for."""
        check_series(self, series)
        batch = series.shape[0]
        _check_marks("marks", marks, "(B, L, F)", (batch, self.lookback), self)
        if future_marks is not None or self.uses_future_marks:
            _check_marks("future_marks", future_marks, "(B, P, F)", (batch, self.horizon), self)


def check_series(model: Bound, series: Tensor) -> None:
    """Refuse a series that a model was not built for."""
    check_shape("series", series, "(B, L, C)", (None, None, None))
    _, steps, channels = series.shape
    if steps != model.lookback:
        raise ValueError(
            f"series must have lookback={model.lookback} steps, got {steps}: shape {tuple(series.shape)}; "
            f"pass its last {model.lookback}, or build the model with lookback={steps}."
        )
    if model.channels is not None and channels != model.channels:
        raise ValueError(
            f"series must have channels={model.channels}, got {channels}: shape {tuple(series.shape)}; "
            f"build the model with channels={channels}."
        )


def check_mask(mask: Tensor, series: Tensor) -> None:
    """Refuse a mask that does not say of each step whether it is real."""
    check_shape("mask", mask, "(B, L)", tuple(series.shape[:2]))
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, True where a step is real, got {mask.dtype}; cast it with .bool().")


def _check_marks(
    name: str, marks: Tensor | None, axes: str, sizes: tuple[int, int], model: Backbone | ForecastModel
) -> None:
    count = model.num_marks
    if marks is None:
        if count:
            raise ValueError(
                f"{name} must be given to a model with num_marks={count}, got None; "
                f"pass them as {axes.replace('F', str(count))}, or build the model with num_marks=0."
            )
    elif not count:
        or_build = f", or build the model with num_marks={marks.shape[-1]}" if model.uses_marks else ""
        raise ValueError(
            f"{name} must be None for a model with num_marks=0, got shape {tuple(marks.shape)}; "
            f"leave them out{or_build}."
        )
    else:
        check_shape(name, marks, axes, (*sizes, count))


def check_types(config: "DataclassInstance") -> None:
    """Refuse a number or a flag of another type, as an unchecked settings file might bring."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type in (int, float, bool) and type(value) is not field.type:
            if field.type is float and type(value) is int:
                continue
            assert isinstance(field.type, type)
            raise ValueError(f"{field.name} must be of type {field.type.__name__}, got {value!r}; convert it first.")


def check_sizes(config: object, *names: str) -> None:
    """Refuse sizes below one."""
    for name in names:
        check_at_least(name, getattr(config, name), 1)
