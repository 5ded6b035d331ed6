"""Reversible normalisation of series over time, and layer and batch normalisation of tokens."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_positive, check_shape
from toa.nn.layers import Dropout, Layer
from toa.ops import runs_kernels
from toa.ops.row_functions import add_norm, layer_norm

Norm = Literal["layer", "batch"]
NORMS = ("layer", "batch")


class Statistics(NamedTuple):
    """Mean and standard deviation of a series over time, each (B, 1, C)."""

    mean: Tensor
    std: Tensor


class ReversibleInstanceNorm(Layer):
    """Removes level and scale of each series before a model and restores them in its output (RevIN).

    normalise: (x - mean) / sqrt(var + eps) with statistics over time per series and channel, var without Bessel's
    correction; denormalise is the inverse. The layer returns the statistics and stores nothing.

    Args:
        affine_channels: Number of channels C for a learnable scale and shift after normalising; None for none.
        detach_std: Whether to detach the standard deviation, as the mean is by default. It only affects gradients with
            respect to the series; `detach_mean` is the same for the mean.
    """

    shown = ("affine_channels", "eps", "detach_std")

    def __init__(self, affine_channels: int | None = None, *, eps: float = 1e-5, detach_std: bool = True) -> None:
        super().__init__()
        check_positive("eps", eps)
        if affine_channels is not None:
            check_at_least("affine_channels", affine_channels, 1)
        self.affine_channels, self.eps, self.detach_std = affine_channels, eps, detach_std
        self.detach_mean = True
        self.weight = None if affine_channels is None else nn.Parameter(torch.ones(affine_channels))
        self.bias = None if affine_channels is None else nn.Parameter(torch.zeros(affine_channels))

    def normalise(self, series: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Statistics]:
        """Return the normalised series (B, L, C) and its statistics.

        Args:
            mask: (B, L), True where a step is valid: statistics use only valid steps, and padding becomes zero. Each
                series needs at least one valid step. None if all steps are valid.
        """
        check_shape("series", series, "(B, L, C)", (None, None, self.affine_channels))
        if mask is None:
            mean = self._fixed(series.mean(1, keepdim=True))  # (B, 1, C)
            var = series.var(1, correction=0, keepdim=True)
        else:
            check_shape("mask", mask, "(B, L)", (series.shape[0], series.shape[1]))
            padding = ~mask.unsqueeze(-1)  # (B, L, 1)
            count = mask.sum(1).view(-1, 1, 1)
            mean = self._fixed(series.masked_fill(padding, 0.0).sum(1, keepdim=True) / count)  # (B, 1, C)
            # padding set to the mean adds nothing to the variance and becomes zero
            series = torch.where(padding, mean, series)
            var = (series - mean).square().sum(1, keepdim=True) / count
        std = (var + self.eps).sqrt()  # (B, 1, C)
        if self.detach_std:
            std = std.detach()
        series = (series - mean) / std
        if self.weight is not None and self.bias is not None:
            series = series * self.weight + self.bias
        return series, Statistics(mean, std)

    def _fixed(self, mean: Tensor) -> Tensor:
        return mean.detach() if self.detach_mean else mean

    def denormalise(self, series: Tensor, statistics: Statistics) -> Tensor:
        """Return a series (B, P, C) of any length in the units of the statistics."""
        check_shape("series", series, "(B, P, C)", (statistics.mean.shape[0], None, statistics.mean.shape[2]))
        if self.weight is not None and self.bias is not None:
            # eps² avoids a division by a scale of zero
            series = (series - self.bias) / (self.weight + self.eps**2)
        return torch.addcmul(statistics.mean, series, statistics.std)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm`, computed by `toa.ops.layer_norm` if it has weight and bias over one axis."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axes."""
        return layer_norm(x, self.weight, self.bias, self.eps) if self.has_kernel else super().forward(x)

    @property
    def has_kernel(self) -> bool:
        """Whether `toa.ops.layer_norm` computes it: weight and bias over one axis."""
        return len(self.normalized_shape) == 1 and self.weight is not None and self.bias is not None


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of tokens (B, N, E): per feature, over batch and tokens."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Normalise tokens; statistics exclude those where `padding` (B, N) is True."""
        if padding is None or not self.training:
            return super().forward(x.flatten(0, 1)).view_as(x)
        # a weighted mean, not a selection of tokens: shapes must not depend on the mask
        weight = (~padding).unsqueeze(-1).float()  # (B, N, 1)
        count = weight.sum()
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = (wide * weight).sum((0, 1)) / count  # (E,)
        var = ((wide - mean).square() * weight).sum((0, 1)) / count  # (E,)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        unbiased = var.detach() * count / (count - 1).clamp(min=1.0)
        for running, now in ((self.running_mean, mean.detach()), (self.running_var, unbiased)):
            assert running is not None
            assert self.momentum is not None
            running.lerp_(now.to(running.dtype), self.momentum)
        return ((wide - mean) / (var + self.eps).sqrt() * self.weight + self.bias).to(x.dtype)


def normalise_tokens(norm: nn.Module, x: Tensor, padding: Tensor | None) -> Tensor:
    """Apply a norm of `make_norm`; only batch norm uses padding (B, N)."""
    return norm(x, padding) if isinstance(norm, TokenBatchNorm) else norm(x)


def add_and_normalise(norm: nn.Module, x: Tensor, y: Tensor, dropout: nn.Module, padding: Tensor | None) -> Tensor:
    """Return norm(x + dropout(y)), in one kernel where possible."""
    # modules that the user replaced must be called
    if type(norm) is not LayerNorm or type(dropout) is not Dropout or not (norm.has_kernel and runs_kernels(x)):
        return normalise_tokens(norm, x + dropout(y), padding)
    return add_norm(x, y, norm.weight, norm.bias, p=dropout.rate, eps=norm.eps)


def make_norm(norm: Norm, embed_dim: int) -> nn.Module:
    """Build a normalisation of tokens (B, N, E): "layer", per token, or "batch", per feature."""
    check_choice("norm", norm, NORMS)
    return LayerNorm(embed_dim) if norm == "layer" else TokenBatchNorm(embed_dim)
