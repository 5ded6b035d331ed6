"""Base classes of backbones and forecasting networks, and the checks of their configs and inputs.

Alphabet: B batch, L look-back, P horizon, C channels, F time marks, N tokens, E embedding.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least, check_divisible, check_fraction, check_shape
from toa._limits import shorten
from toa.nn import EncoderBlock, EncoderStack, PatchEmbedding, count_patches
from toa.nn.embedding import Positions
from toa.nn.layers import Norm
from toa.nn.registry import check_literals


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Base class of configs, which checks all numbers, flags and named choices.

    A settings file may hold any type, so types are checked. Integers are sizes, at least 1 (`num_marks` and `label_len`
    at least 0); other numbers are dropout rates in [0, 1); `num_heads` divides `embed_dim`.
    """

    def settings(self) -> dict[str, Any]:
        """All values by name; a subclass replaces a None that stands for a rule by what the rule gives."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __post_init__(self) -> None:
        values = ModelConfig.settings(self)
        for field in fields(self):
            name = field.name
            kind = field.type
            value = values[field.name]
            if kind not in (int, float, bool):
                continue
            assert isinstance(kind, type)
            if type(value) is not kind and (kind, type(value)) != (float, int):
                raise ArgumentError(name, f"be of type {kind.__name__}", shorten(value), "convert it first")
            if kind is int:
                check_at_least(name, value, 0 if name in ("num_marks", "label_len") else 1)
            elif kind is float:
                check_fraction(name, value)
        check_literals(self)
        if "num_heads" in values:
            check_divisible("embed_dim", values["embed_dim"], "num_heads", values["num_heads"])


class SeriesModel(nn.Module):
    """A network for series (B, L, C).

    Args:
        channels: Number of channels C; None accepts any number.
        num_marks: Number of time features F per step, passed together with the series as (B, L, F).
    """

    # whether the network can be built with time marks, and whether forecasts need those of the forecast steps
    uses_marks: bool = False
    uses_future_marks: bool = False

    def __init__(
        self, *, lookback: int, channels: int | None = None, num_marks: int = 0, horizon: int | None = None
    ) -> None:
        super().__init__()
        self.lookback = lookback
        self.channels = channels
        self.num_marks = num_marks
        if horizon is not None:
            self.horizon = horizon

    def check_inputs(self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None) -> None:
        """Raise ValueError if the network was not built for this length, number of channels, or these marks."""
        check_shape("series", series, "(B, L, C)", (None, None, None))
        _, length, channels = series.shape
        if length != self.lookback:
            raise ArgumentError(
                "series",
                f"have lookback={self.lookback} steps",
                f"{length}: shape {tuple(series.shape)}",
                f"pass its last {self.lookback}, or build the model with lookback={length}",
            )
        if self.channels is not None and channels != self.channels:
            raise ArgumentError(
                "series",
                f"have channels={self.channels}",
                f"{channels}: shape {tuple(series.shape)}",
                f"build the model with channels={channels}",
            )

        count = self.num_marks
        inputs = [("marks", marks, "(B, L, F)", self.lookback)]
        if future_marks is not None or self.uses_future_marks:
            inputs.append(("future_marks", future_marks, "(B, P, F)", self.horizon))
        for name, tensor, axes, steps in inputs:
            if tensor is None and count:
                raise ArgumentError(
                    name,
                    f"be given to a model with num_marks={count}",
                    "None",
                    f"pass them as {axes.replace('F', str(count))}, or build the model with num_marks=0",
                )
            if tensor is not None and not count:
                or_build = f", or build the model with num_marks={tensor.shape[-1]}" if self.uses_marks else ""
                raise ArgumentError(
                    name,
                    "be None for a model with num_marks=0",
                    f"shape {tuple(tensor.shape)}",
                    f"leave them out{or_build}",
                )
            if tensor is not None:
                check_shape(name, tensor, axes, (series.shape[0], steps, count))


class Backbone(SeriesModel, ABC):
    """A series (B, L, C) in, tokens per channel (B, C, N, E) out. The task adds a head; see `toa.models.heads`.

    If each token covers all channels, the output is (B, 1, N, E) and `mixes_channels` is True.
    """

    mixes_channels: ClassVar[bool] = False

    def __init__(
        self, *, lookback: int, embed_dim: int, num_tokens: int, channels: int | None = None, num_marks: int = 0
    ) -> None:
        super().__init__(lookback=lookback, channels=channels, num_marks=num_marks)
        self.embed_dim = embed_dim
        self.num_tokens = num_tokens

    def forward(self, series: Tensor, marks: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Tokens per channel.

        Args:
            mask: (B, L), True where a step is real; padding follows the real steps. None means no padding. Values in
                the padding are never read, and tokens that hold only padding are hidden from the others.
        """
        self.check_inputs(series, marks)
        if mask is None:
            return self._encode(series, marks, None)
        check_mask(mask, series)
        valid = self.valid_tokens(mask)
        return self._encode(self._fill(series, mask), marks, None if valid is None else ~valid)

    @abstractmethod
    def _encode(self, series: Tensor, marks: Tensor | None, padding: Tensor | None) -> Tensor:
        """Tokens of checked inputs with filled padding; `padding` (B, N) is True where a token holds only padding."""

    def valid_tokens(self, mask: Tensor) -> Tensor | None:
        """Which tokens (B, N) hold a real step; None if every token always does."""
        return None

    def _fill(self, series: Tensor, mask: Tensor) -> Tensor:
        """Fill the padding with zeros, the mean of standardised data."""
        return series.masked_fill(~mask.unsqueeze(-1), 0.0)


class PatchBackbone(Backbone):
    """A backbone whose tokens are the patches of its `PatchEmbedding`, to which `positions` and `bias` belong."""

    def __init__(
        self, config: Any, *, channels: int | None = None, positions: Positions = "learned", bias: bool = True
    ) -> None:
        lookback, width, patch_len, stride = config.lookback, config.embed_dim, config.patch_len, config.stride
        patches = count_patches(lookback, patch_len, stride)
        super().__init__(lookback=lookback, embed_dim=width, num_tokens=patches, channels=channels)
        self.config = config
        self.embed = PatchEmbedding(
            lookback, width, patch_len=patch_len, stride=stride, positions=positions, bias=bias, dropout=config.dropout
        )

    def valid_tokens(self, mask: Tensor) -> Tensor:
        """Patches with a real step; the values appended to a series count as real if its last step does."""
        longer = torch.cat((mask, mask[:, -1:].expand(-1, self.embed.stride)), 1)  # (B, L + stride)
        return longer.unfold(1, self.embed.patch_len, self.embed.stride).any(-1)  # (B, N)

    def _fill(self, series: Tensor, mask: Tensor) -> Tensor:
        """Fill the padding with the last real value, which `PatchEmbedding` also appends to a full series."""
        steps = torch.arange(self.lookback, device=series.device)
        last = torch.where(mask, steps, 0).amax(1).view(-1, 1, 1)  # (B, 1, 1)
        values = series.gather(1, last.expand(-1, 1, series.shape[2]))  # (B, 1, C)
        return torch.where(mask.unsqueeze(-1), series, values)


class ForecastModel(SeriesModel, ABC):
    """A series (B, L, C) in, its next P values (B, P, C) out.

    A model with an auxiliary loss also has a method `forecast_and_penalty` with the arguments of `forward`. It returns
    the forecast and a scalar that training adds to the loss.
    """

    horizon: int

    def forward(self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None) -> Tensor:
        """Forecast.

        Args:
            marks: Time features of the past (B, L, F) for a model with `num_marks` = F, otherwise None.
            future_marks: Time features of the forecast steps (B, P, F). Optional unless `uses_future_marks`.
        """
        self.check_inputs(series, marks, future_marks)
        return self._forecast(series, marks, future_marks)

    @abstractmethod
    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        """`forward` of checked inputs."""


def encoder_stack(
    config: Any,
    tokens: int,
    *,
    score_dropout: float | None = None,
    attention_dropout: float | None = None,
    residual_scores: bool = False,
    norm: Norm = "layer",
    norm_first: bool = False,
) -> EncoderStack:
    """Encoder blocks with the attention and sizes of a config, on sequences of `tokens` tokens.

    Dropout on the activated scores and on the attention's output has the rate of the config unless given.
    """
    p = config.dropout if score_dropout is None else score_dropout
    blocks = (
        EncoderBlock(
            config.attention.build(config.embed_dim, config.num_heads, tokens, dropout=p),
            config.ff_dim,
            dropout=config.dropout,
            attention_dropout=attention_dropout,
            norm=norm,
            norm_first=norm_first,
        )
        for _ in range(config.num_layers)
    )
    return EncoderStack(blocks, residual_scores=residual_scores)


def check_mask(mask: Tensor, series: Tensor) -> None:
    """Raise ValueError if a mask is not bool (B, L) for a series (B, L, C)."""
    check_shape("mask", mask, "(B, L)", tuple(series.shape[:2]))
    if mask.dtype != torch.bool:
        raise ArgumentError("mask", "be bool, True where a step is real", mask.dtype, "cast it with .bool()")
