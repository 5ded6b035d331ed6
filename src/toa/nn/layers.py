"""Basic layers: linear map, dropout, norms of series and tokens, decomposition, and the head from tokens to series."""

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

# the base class of batch norms has no public name
from torch.nn.modules.batchnorm import _BatchNorm

from toa._checks import ArgumentError, check_at_least, check_choice, check_fraction, check_positive, check_shape
from toa.ops import runs_kernels
from toa.ops.dropout import dropout
from toa.ops.row_functions import add_norm, layer_norm, linear

Norm = Literal["layer", "batch"]
NORMS = ("layer", "batch")


class Layer(nn.Module):
    """A module whose repr shows the attributes that `shown` names."""

    shown: ClassVar[tuple[str, ...]] = ()

    def extra_repr(self) -> str:
        """Options shown in the module's repr."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `toa.ops.row_functions.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis."""
        return linear(x, self.weight, self.bias)


# layers that only compute x Wᵀ + b, so that their weight and bias can be used directly; a subclass may do more
PLAIN = (nn.Linear, Linear)


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, computed by `toa.ops.dropout`, which draws random numbers faster on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries in training."""
        return dropout(x, self.p if self.training else 0.0)


class ChannelDropout(Dropout):
    """Sets all features (B, C, ...) of a channel to zero in training, at rate p, and scales the others up."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop channels in training."""
        if not self.training or not self.p:
            return x
        return x * super().forward(x.new_ones(*x.shape[:2], *(1,) * (x.dim() - 2)))


class SeriesDecomposition(Layer):
    """Splits a series (B, L, C) into seasonal part and trend, both (B, L, C), whose sum is the series.

    trend[t] = mean of series[t - k .. t + k], k = (kernel - 1) / 2; the first and last values extend the series.

    Args:
        kernel: Window of the moving average in steps; odd and at most L.
    """

    shown = ("kernel",)

    def __init__(self, kernel: int) -> None:
        super().__init__()
        check_kernel("kernel", kernel)
        self.kernel = kernel

    def forward(self, series: Tensor) -> tuple[Tensor, Tensor]:
        """Return the seasonal part and the trend."""
        check_shape("series", series, "(B, L, C)", (None, None, None))
        check_kernel("kernel", self.kernel, series.shape[1])
        x = series.mT  # (B, C, L)
        extra = (self.kernel - 1) // 2
        # not F.pad: its backward pass has no deterministic kernel on a GPU
        ends = (x[..., :1].expand(-1, -1, extra), x, x[..., -1:].expand(-1, -1, extra))
        trend = nn.functional.avg_pool1d(torch.cat(ends, -1), self.kernel, stride=1).mT  # (B, L, C)
        return series - trend, trend


def check_kernel(name: str, kernel: int, length: int | None = None) -> None:
    """Check that the window of a moving average is odd and at most as long as the series."""
    check_at_least(name, kernel, 1)
    if kernel % 2 == 0:
        raise ArgumentError(name, "be odd, so that it has a middle", kernel, f"use {kernel + 1}, for instance")
    if length is not None and kernel > length:
        raise ArgumentError(
            name, f"be at most the length of the series, {length}", kernel, "use a shorter window or a longer series"
        )


class FlattenHead(Layer):
    """Flattens the tokens of each channel and maps them linearly to `horizon` values: (B, C, N, E) to (B, P, C).

    Args:
        individual_channels: Number of channels C for one map per channel; None for one shared map.
        dropout: Dropout rate on the output, as in PatchTST.
    """

    shown = ("num_tokens", "embed_dim", "horizon", "individual_channels")

    def __init__(
        self,
        num_tokens: int,
        embed_dim: int,
        horizon: int,
        *,
        individual_channels: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, size in (("num_tokens", num_tokens), ("embed_dim", embed_dim), ("horizon", horizon)):
            check_at_least(name, size, 1)
        check_fraction("dropout", dropout)
        if individual_channels is not None:
            check_at_least("individual_channels", individual_channels, 1)
        self.num_tokens = num_tokens
        self.embed_dim = embed_dim
        self.horizon = horizon
        self.individual_channels = individual_channels
        maps = () if individual_channels is None else (individual_channels,)
        self.weight = nn.Parameter(torch.empty(*maps, horizon, num_tokens * embed_dim))
        self.bias = nn.Parameter(torch.empty(*maps, horizon))
        self.dropout = Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from U(-b, b) with b = 1 / sqrt(N E), as in `nn.Linear`."""
        bound = self.weight.shape[-1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the series (B, P, C)."""
        shape = (None, self.individual_channels, self.num_tokens, self.embed_dim)
        check_shape("tokens", tokens, "(B, C, N, E)", shape)
        x = tokens.flatten(2)  # (B, C, N*E)
        if self.individual_channels is None:
            x = linear(x, self.weight, self.bias)  # (B, C, P)
        else:
            x = torch.einsum("bcf,cpf->bcp", x, self.weight) + self.bias  # (B, C, P)
        return self.dropout(x).mT  # (B, P, C)


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
        self.affine_channels = affine_channels
        self.eps = eps
        self.detach_std = detach_std
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
        if mask is None and series.dtype == torch.float32 and not series.requires_grad and runs_kernels(series):
            # fewer kernels: the norm of a row, whose statistics PyTorch returns
            rows, mean, inverse = torch.native_layer_norm(series.mT, series.shape[1:2], None, None, self.eps)
            return self._scaled(rows.mT), Statistics(mean.mT, inverse.reciprocal().mT)
        if mask is None:
            mean = series.mean(1, keepdim=True)  # (B, 1, C)
            mean = mean.detach() if self.detach_mean else mean
            var = series.var(1, correction=0, keepdim=True)
        else:
            check_shape("mask", mask, "(B, L)", (series.shape[0], series.shape[1]))
            padding = ~mask.unsqueeze(-1)  # (B, L, 1)
            count = mask.sum(1).view(-1, 1, 1)
            mean = series.masked_fill(padding, 0.0).sum(1, keepdim=True) / count  # (B, 1, C)
            mean = mean.detach() if self.detach_mean else mean
            # padding set to the mean adds nothing to the variance and becomes zero
            series = torch.where(padding, mean, series)
            var = (series - mean).square().sum(1, keepdim=True) / count
        std = (var + self.eps).sqrt()  # (B, 1, C)
        if self.detach_std:
            std = std.detach()
        return self._scaled((series - mean) / std), Statistics(mean, std)

    def _scaled(self, series: Tensor) -> Tensor:
        return series if self.weight is None or self.bias is None else series * self.weight + self.bias

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
        return normalise_batch(self, x, padding)


def normalise_batch(
    norm: _BatchNorm,
    x: Tensor,
    padding: Tensor | None = None,
    *,
    total: Callable[[Tensor], Tensor] = lambda part: part,
    copies: int = 1,
) -> Tensor:
    """Batch norm in training of x (..., E); statistics exclude entries where `padding` (...) is True.

    `total` sums over the processes that share a batch, of which `copies` have the same rows.
    """
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    # a weighted mean, not a selection of tokens: shapes must not depend on the mask
    kept = torch.ones_like(wide[..., :1]) if padding is None else (~padding).unsqueeze(-1).to(wide)
    axes = tuple(range(wide.ndim - 1))
    sums = total(torch.cat([(wide * kept).sum(axes), kept.sum().view(1)]))
    count = sums[-1].detach()
    mean = sums[:-1] / count  # (E,)
    var = total(((wide - mean).square() * kept).sum(axes)) / count  # (E,)
    rows = count / copies
    unbiased = var.detach() * rows / (rows - 1.0).clamp(min=1.0)
    if norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        share = 1.0 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean.detach().to(norm.running_mean.dtype), share)
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share)
    out = (wide - mean) / (var + norm.eps).sqrt()
    return (out * norm.weight + norm.bias if norm.affine else out).to(x.dtype)


def normalise_tokens(
    norm: nn.Module, x: Tensor, padding: Tensor | None, *, add: tuple[Tensor, nn.Module] | None = None
) -> Tensor:
    """Apply a norm of `make_norm`; only batch norm uses padding (B, N).

    `add` = (y, dropout) returns norm(x + dropout(y)), in one kernel where possible.
    """
    if add is not None:
        y, dropout = add
        # modules that the user replaced must be called
        if type(norm) is LayerNorm and type(dropout) is Dropout and norm.has_kernel and runs_kernels(x):
            rate = dropout.p if dropout.training else 0.0
            return add_norm(x, y, norm.weight, norm.bias, p=rate, eps=norm.eps)
        x = x + dropout(y)
    return norm(x, padding) if isinstance(norm, TokenBatchNorm) else norm(x)


def make_norm(norm: Norm, embed_dim: int) -> nn.Module:
    """Build a normalisation of tokens (B, N, E): "layer", per token, or "batch", per feature."""
    check_choice("norm", norm, NORMS)
    return LayerNorm(embed_dim) if norm == "layer" else TokenBatchNorm(embed_dim)
