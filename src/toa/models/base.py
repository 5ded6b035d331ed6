"""What a task may ask of a backbone, and the checks that backbones share."""

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from toa._checks import check_at_least, check_shape

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Backbone(nn.Module, ABC):
    """A series (B, L, C) in, tokens of each channel (B, C, N, E) out. It never learns its task: the task brings a head.

    Args:
        lookback: Length L of the series.
        embed_dim: Width E of a token.
        num_tokens: Tokens N of a channel that come out.
        channels: The number of channels C, if the model is bound to one.
        num_marks: Time features F that it takes beside the series, (B, L, F).
    """

    # whether the model can make use of time marks at all
    uses_marks: ClassVar[bool]

    def __init__(
        self, *, lookback: int, embed_dim: int, num_tokens: int, channels: int | None = None, num_marks: int = 0
    ) -> None:
        super().__init__()
        self.lookback = lookback
        self.embed_dim = embed_dim
        self.num_tokens = num_tokens
        self.channels = channels
        self.num_marks = num_marks

    def forward(self, series: Tensor, marks: Tensor | None = None) -> Tensor:
        """Tokens of each channel."""
        return self.encode(series, marks)[0]

    def encode(
        self, series: Tensor, marks: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Tokens of each channel; with `need_weights`, each layer's mixing operators (..., H, tokens, tokens) too."""
        self.check_inputs(series, marks)
        return self._encode(series, marks, need_weights)

    @abstractmethod
    def _encode(self, series: Tensor, marks: Tensor | None, need_weights: bool) -> tuple[Tensor, list[Tensor]]:
        """`encode`, inputs checked."""

    def check_inputs(self, series: Tensor, marks: Tensor | None) -> None:
        """Refuse a series or marks that the model was not built for."""
        check_shape("series", series, "(B, L, C)", (None, None, None))
        batch, steps, channels = series.shape
        if steps != self.lookback:
            raise ValueError(
                f"series must have lookback={self.lookback} steps, got {steps}: shape {tuple(series.shape)}; "
                f"pass its last {self.lookback}, or build the model with lookback={steps}."
            )
        if self.channels is not None and channels != self.channels:
            raise ValueError(
                f"series must have channels={self.channels}, got {channels}: shape {tuple(series.shape)}; "
                f"build the model with channels={channels}."
            )
        if marks is None:
            if self.num_marks:
                raise ValueError(
                    f"marks must be given to a model with num_marks={self.num_marks}, got None; "
                    f"pass them as (B, L, {self.num_marks}), or build the model with num_marks=0."
                )
        elif not self.num_marks:
            or_build = f", or build the model with num_marks={marks.shape[-1]}" if self.uses_marks else ""
            raise ValueError(
                f"marks must be None for a model with num_marks=0, got shape {tuple(marks.shape)}; "
                f"leave them out{or_build}."
            )
        else:
            check_shape("marks", marks, "(B, L, F)", (batch, steps, self.num_marks))


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
