"""Normalisation: of a series over time, there and back, and of tokens, each by itself or over the batch."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_positive, check_shape
from toa.nn.dropout import Dropout
from toa.ops import runs_kernels
from toa.ops.rows import add_norm, layer_norm, series_norm, takes_series

Norm = Literal["layer", "batch"]
NORMS = ("layer", "batch")


class Statistics(NamedTuple):
    """What a series was normalised with: its mean and standard deviation over time, each (B, 1, C)."""

    mean: Tensor
    std: Tensor


class ReversibleInstanceNorm(nn.Module):
    """Takes the level and the scale out of each series of a batch, and puts them back into what is made of it (RevIN).

    normalise: (x - mean) / sqrt(var + eps), statistics over time of each series and channel, var without Bessel's
    correction; denormalise is its inverse. The statistics are returned, not kept: one layer may serve many calls.

    Args:
        affine_channels: Number of channels C that get a learnable scale and shift after normalising; None for neither.
        eps: Added to the variance.
        detach_std: Whether gradients stop at the standard deviation, as they always do at the mean. It matters only to
            gradients with respect to the series.
    """

    def __init__(self, affine_channels: int | None = None, *, eps: float = 1e-5, detach_std: bool = True) -> None:
        super().__init__()
        check_positive("eps", eps)
        if affine_channels is not None:
            check_at_least("affine_channels", affine_channels, 1)
        self.affine_channels = affine_channels
        self.eps = eps
        self.detach_std = detach_std
        self.weight = None if affine_channels is None else nn.Parameter(torch.ones(affine_channels))
        self.bias = None if affine_channels is None else nn.Parameter(torch.zeros(affine_channels))

    def normalise(self, series: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Statistics]:
        """The normalised series (B, L, C), and the statistics that take it back.

        Args:
            series: (B, L, C).
            mask: (B, L), True where a step is real: statistics are of those alone, and padding comes out as zeros. A
                row needs one real step. None if all are.
        """
        check_shape("series", series, "(B, L, C)", (None, None, self.affine_channels))
        if mask is None and takes_series(series):
            series, mean, std = series_norm(series, self.eps)
            return self._scaled(series), Statistics(mean, std)
        if mask is None:
            mean = series.mean(1, keepdim=True).detach()  # (B, 1, C)
            var = series.var(1, correction=0, keepdim=True)
        else:
            check_shape("mask", mask, "(B, L)", (series.shape[0], series.shape[1]))
            padding = ~mask.unsqueeze(-1)  # (B, L, 1)
            count = mask.sum(1).view(-1, 1, 1)
            mean = (series.masked_fill(padding, 0.0).sum(1, keepdim=True) / count).detach()  # (B, 1, C)
            # padding at the mean adds nothing to the variance and is zero in the end
            series = torch.where(padding, mean, series)
            var = (series - mean).square().sum(1, keepdim=True) / count
        std = (var + self.eps).sqrt()  # (B, 1, C)
        if self.detach_std:
            std = std.detach()
        return self._scaled((series - mean) / std), Statistics(mean, std)

    def _scaled(self, series: Tensor) -> Tensor:
        return series if self.weight is None or self.bias is None else series * self.weight + self.bias

    def denormalise(self, series: Tensor, statistics: Statistics) -> Tensor:
        """A series (B, P, C) of any length, back in the units that the statistics come from."""
        check_shape("series", series, "(B, P, C)", (statistics.mean.shape[0], None, statistics.mean.shape[2]))
        if self.weight is not None and self.bias is not None:
            # eps² keeps a scale that has reached zero from dividing by it
            series = (series - self.bias) / (self.weight + self.eps**2)
        return torch.addcmul(statistics.mean, series, statistics.std)

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"affine_channels={self.affine_channels}, eps={self.eps}, detach_std={self.detach_std}"


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm`, by `toa.ops.layer_norm` where it has weight and bias over one axis."""

    def forward(self, x: Tensor, leading: int | None = None) -> Tensor:
        """Normalise; the shape stays, but of tokens (B, N, W) the leading ones alone may be asked for."""
        if self.is_of_rows:
            return layer_norm(x, self.weight, self.bias, self.eps, leading=leading)
        return super().forward(x if leading is None else x[:, :leading])

    @property
    def is_of_rows(self) -> bool:
        """Whether it has weight and bias, over one axis."""
        return len(self.normalized_shape) == 1 and self.weight is not None and self.bias is not None


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of each feature of tokens (B, N, E), over batch and tokens."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Normalise tokens; their shape stays. Those that `padding` (B, N) marks are in no statistic."""
        if padding is None or not self.training:
            return super().forward(x.flatten(0, 1)).view_as(x)
        # a weighted mean and not a choice of rows: shapes must not depend on the mask
        weight = (~padding).unsqueeze(-1).float()  # (B, N, 1)
        count = weight.sum()
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = (wide * weight).sum((0, 1)) / count  # (E,)
        var = ((wide - mean).square() * weight).sum((0, 1)) / count  # (E,)
        self._follow(mean.detach(), var.detach() * count / (count - 1).clamp(min=1.0))
        return ((wide - mean) / (var + self.eps).sqrt() * self.weight + self.bias).to(x.dtype)

    def _follow(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics."""
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)


def normalise_tokens(norm: nn.Module, x: Tensor, padding: Tensor | None) -> Tensor:
    """Apply a norm of `make_norm`; only one over the batch has to know of padding (B, N)."""
    return norm(x, padding) if isinstance(norm, TokenBatchNorm) else norm(x)


def add_and_normalise(
    norm: nn.Module,
    x: Tensor,
    y: Tensor,
    dropout: nn.Module,
    padding: Tensor | None,
    seed: Tensor | None = None,
) -> Tensor:
    """Apply a norm to x + dropout(y); in one kernel where kernels run and all is plain, the mask of a seed if given."""
    # a layer that someone has put in place of a plain one is called, not taken apart
    if type(norm) is not LayerNorm or type(dropout) is not Dropout or not (norm.is_of_rows and runs_kernels(x)):
        return normalise_tokens(norm, x + dropout(y), padding)
    return add_norm(x, y, norm.weight, norm.bias, p=dropout.rate, eps=norm.eps, seed=seed)


def make_norm(norm: Norm, embed_dim: int) -> nn.Module:
    """A normalisation of tokens (B, N, E): "layer", each token by itself, or "batch", each feature."""
    check_choice("norm", norm, NORMS)
    return LayerNorm(embed_dim) if norm == "layer" else TokenBatchNorm(embed_dim)
