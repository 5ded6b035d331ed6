"""Embeddings: a series cut into patches, or turned into one token a variate."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_fraction, check_shape

Positions = Literal["learned", "sinusoidal"]
POSITIONS = ("learned", "sinusoidal")


def count_patches(lookback: int, patch_len: int, stride: int) -> int:
    """Patches of a series that is prolonged by `stride` values: floor((L - patch_len) / stride) + 2."""
    check_at_least("patch_len", patch_len, 1)
    check_at_least("stride", stride, 1)
    if lookback < patch_len:
        raise ValueError(
            f"lookback must be at least patch_len={patch_len}, got {lookback}; use shorter patches or a longer series."
        )
    return (lookback - patch_len) // stride + 2


def sinusoidal_positions(num_tokens: int, embed_dim: int) -> Tensor:
    """Sines in even, cosines in odd columns, of wavelengths from 2π to 10000 · 2π: shape (N, E)."""
    frequency = torch.exp(torch.arange(0, embed_dim, 2) * (-math.log(10000.0) / embed_dim))
    angle = torch.arange(num_tokens).unsqueeze(1) * frequency  # (N, ceil(E / 2))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, :embed_dim]  # (N, E)


class PatchEmbedding(nn.Module):
    """Overlapping patches of each channel, projected, with their positions added: (B, L, C) to (B, C, N, E).

    The series is prolonged by its last value, `stride` times, so that its end is in a patch of its own.

    Args:
        lookback: Length L of the series.
        embed_dim: Width E of a token.
        patch_len: Values in a patch.
        stride: Steps from one patch to the next.
        positions: "learned", from U(-0.02, 0.02), or "sinusoidal", fixed.
        bias: Whether the projection has one.
        dropout: Dropout on the tokens.
    """

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
        check_choice("positions", positions, POSITIONS)
        check_fraction("dropout", dropout)
        self.lookback = lookback
        self.patch_len = patch_len
        self.stride = stride
        self.num_patches = count_patches(lookback, patch_len, stride)
        self.projection = nn.Linear(patch_len, embed_dim, bias=bias)
        if positions == "learned":
            self.position = nn.Parameter(torch.empty(self.num_patches, embed_dim).uniform_(-0.02, 0.02))
        else:
            self.register_buffer("position", sinusoidal_positions(self.num_patches, embed_dim), persistent=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, series: Tensor) -> Tensor:
        """Tokens of each channel."""
        check_shape("series", series, "(B, L, C)", (None, self.lookback, None))
        x = series.mT  # (B, C, L)
        # not F.pad: its backward pass has no deterministic kernel on a GPU
        x = torch.cat((x, x[..., -1:].expand(-1, -1, self.stride)), -1)  # (B, C, L + stride)
        x = self.projection(x.unfold(-1, self.patch_len, self.stride))  # (B, C, N, E)
        return self.dropout(x + self.position)

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"lookback={self.lookback}, patch_len={self.patch_len}, stride={self.stride}"


class VariateEmbedding(nn.Module):
    """One token for the whole past of each variate, and of each time mark: (B, L, C) and (B, L, F) to (B, C + F, E).

    Args:
        lookback: Length L of the series.
        embed_dim: Width E of a token.
        dropout: Dropout on the tokens.
    """

    def __init__(self, lookback: int, embed_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_at_least("lookback", lookback, 1)
        check_at_least("embed_dim", embed_dim, 1)
        check_fraction("dropout", dropout)
        self.lookback = lookback
        self.projection = nn.Linear(lookback, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, series: Tensor, marks: Tensor | None = None) -> Tensor:
        """Tokens, those of the marks last."""
        check_shape("series", series, "(B, L, C)", (None, self.lookback, None))
        if marks is not None:
            check_shape("marks", marks, "(B, L, F)", (series.shape[0], self.lookback, None))
            series = torch.cat((series, marks), -1)  # (B, L, C + F)
        return self.dropout(self.projection(series.mT))  # (B, C + F, E)
