"""Embeddings: one token per patch, per variate or per time step of a series."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least, check_choice, check_fraction, check_shape
from toa.nn.layers import Dropout, Layer, Linear

Positions = Literal["learned", "sinusoidal"]
PointPositions = Literal["learned", "sinusoidal", "none"]
PointValues = Literal["conv", "linear"]


def count_patches(lookback: int, patch_len: int, stride: int) -> int:
    """Return the number of patches of a series padded by `stride` values: floor((L - patch_len) / stride) + 2."""
    check_at_least("patch_len", patch_len, 1)
    check_at_least("stride", stride, 1)
    if lookback < patch_len:
        raise ArgumentError(
            "lookback", f"be at least patch_len={patch_len}", lookback, "use shorter patches or a longer series"
        )
    return (lookback - patch_len) // stride + 2


def sinusoidal_positions(num_tokens: int, embed_dim: int) -> Tensor:
    """Return sines in even and cosines in odd columns, with wavelengths from 2π to 10000 · 2π: (N, E)."""
    frequency = torch.exp(torch.arange(0, embed_dim, 2) * (-math.log(10000.0) / embed_dim))
    angle = torch.arange(num_tokens).unsqueeze(1) * frequency  # (N, ceil(E / 2))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, :embed_dim]  # (N, E)


class PatchEmbedding(Layer):
    """Projects overlapping patches of each channel and adds positions: (B, L, C) to (B, C, N, E).

    The series is padded with `stride` copies of its last value.

    Args:
        positions: "learned", initially U(-0.02, 0.02), or "sinusoidal", fixed.
    """

    shown = ("lookback", "patch_len", "stride")

    position: Tensor

    def __init__(
        self,
        lookback: int,
        embed_dim: int,
        *,
        patch_len: int = 16,
        stride: int = 8,
        positions: Positions = "learned",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_at_least("embed_dim", embed_dim, 1)
        check_choice("positions", positions, get_args(Positions))
        check_fraction("dropout", dropout)
        self.lookback = lookback
        self.patch_len = patch_len
        self.stride = stride
        self.num_patches = count_patches(lookback, patch_len, stride)
        self.projection = Linear(patch_len, embed_dim, bias=bias)
        if positions == "learned":
            self.position = nn.Parameter(torch.empty(self.num_patches, embed_dim).uniform_(-0.02, 0.02))
        else:
            self.register_buffer("position", sinusoidal_positions(self.num_patches, embed_dim), persistent=False)
        self.dropout = Dropout(dropout)

    def forward(self, series: Tensor) -> Tensor:
        """Return the tokens of each channel."""
        check_shape("series", series, "(B, L, C)", (None, self.lookback, None))
        x = series.mT  # (B, C, L)
        # not F.pad: its backward pass has no deterministic kernel on a GPU
        x = torch.cat((x, x[..., -1:].expand(-1, -1, self.stride)), -1)  # (B, C, L + stride)
        x = self.projection(x.unfold(-1, self.patch_len, self.stride))  # (B, C, N, E)
        return self.dropout(x + self.position)


class VariateEmbedding(nn.Module):
    """Maps each variate and each time mark to one token: (B, L, C) and (B, L, F) to (B, C + F, E), with dropout."""

    def __init__(self, lookback: int, embed_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_at_least("lookback", lookback, 1)
        check_at_least("embed_dim", embed_dim, 1)
        check_fraction("dropout", dropout)
        self.lookback = lookback
        self.projection = Linear(lookback, embed_dim)
        self.dropout = Dropout(dropout)

    def forward(self, series: Tensor, marks: Tensor | None = None) -> Tensor:
        """Return the tokens of the variates, then those of the marks."""
        check_shape("series", series, "(B, L, C)", (None, self.lookback, None))
        variates = series.mT  # (B, C, L)
        if marks is not None:
            check_shape("marks", marks, "(B, L, F)", (series.shape[0], self.lookback, None))
            variates = torch.cat((variates, marks.mT), 1)  # (B, C + F, L)
        return self.dropout(self.projection(variates))  # (B, C + F, E)


class PointEmbedding(Layer):
    """Maps each time step to one token from values, position and marks: (B, L, C) and (B, L, F) to (B, L, E).

    Args:
        num_tokens: Maximum length of the series, if tokens have positions.
        num_marks: Number of time features F per step, added through a linear map without bias; 0 for none.
        values: "conv", a circular convolution without bias over a step and its two neighbours, or "linear", a map of
            each step.
        positions: "sinusoidal", fixed, "learned", initially N(0, 0.02²), or "none".
    """

    shown = ("channels", "num_tokens", "num_marks")

    position: Tensor | None

    def __init__(
        self,
        channels: int,
        embed_dim: int,
        num_tokens: int,
        *,
        num_marks: int = 0,
        values: PointValues = "conv",
        positions: PointPositions = "sinusoidal",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, size in (("channels", channels), ("embed_dim", embed_dim), ("num_tokens", num_tokens)):
            check_at_least(name, size, 1)
        check_at_least("num_marks", num_marks, 0)
        check_choice("values", values, get_args(PointValues))
        check_choice("positions", positions, get_args(PointPositions))
        check_fraction("dropout", dropout)
        self.channels = channels
        self.num_tokens = num_tokens
        self.num_marks = num_marks
        self.projection: nn.Conv1d | nn.Linear
        if values == "conv":
            self.projection = nn.Conv1d(channels, embed_dim, 3, padding=1, padding_mode="circular", bias=False)
            nn.init.kaiming_normal_(self.projection.weight)
        else:
            self.projection = Linear(channels, embed_dim)
        if positions == "learned":
            self.position = nn.Parameter(torch.empty(num_tokens, embed_dim).normal_(std=0.02))
        else:
            fixed = sinusoidal_positions(num_tokens, embed_dim) if positions == "sinusoidal" else None
            self.register_buffer("position", fixed, persistent=False)
        self.marks = nn.Linear(num_marks, embed_dim, bias=False) if num_marks else None
        self.dropout = Dropout(dropout)

    def forward(self, series: Tensor, marks: Tensor | None = None) -> Tensor:
        """Return the tokens; a series may be shorter than `num_tokens`."""
        check_shape("series", series, "(B, L, C)", (None, None, self.channels))
        batch, steps, _ = series.shape
        x = self.projection(series.mT).mT if isinstance(self.projection, nn.Conv1d) else self.projection(series)
        if self.position is not None:
            if steps > self.num_tokens:
                raise ArgumentError(
                    "series",
                    f"have at most num_tokens={self.num_tokens} steps",
                    steps,
                    "cut it, or increase num_tokens",
                )
            x = x + self.position[:steps]  # (B, L, E)
        if (marks is None) != (self.marks is None):
            found = "None" if marks is None else f"shape {tuple(marks.shape)}"
            raise ArgumentError(
                "marks",
                f"be {'given' if marks is None else 'None'} if num_marks={self.num_marks}",
                found,
                "set num_marks to the number of marks",
            )
        if marks is not None and self.marks is not None:
            check_shape("marks", marks, "(B, L, F)", (batch, steps, self.num_marks))
            x = x + self.marks(marks)
        return self.dropout(x)
