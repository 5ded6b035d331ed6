"""Basic layers: linear map, dropout, decomposition of a series, and the head that maps tokens to a series."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_fraction, check_shape
from toa.ops.dropout import dropout
from toa.ops.row_functions import linear


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


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer only computes x Wᵀ + b, so that its weight and bias can be used directly."""
    return type(layer) in (nn.Linear, Linear)


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, computed by `toa.ops.dropout`, which draws random numbers faster on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries in training."""
        return dropout(x, self.rate)

    @property
    def rate(self) -> float:
        """Current drop rate: zero in evaluation."""
        return self.p if self.training else 0.0


class ChannelDropout(Dropout):
    """Sets all features (B, C, ...) of a channel to zero in training, at rate p, and scales the others up."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop channels in training."""
        return x * super().forward(x.new_ones(*x.shape[:2], *(1,) * (x.dim() - 2))) if self.rate else x


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
        raise ValueError(f"{name} must be odd, so that it has a middle, got {kernel}; use {kernel + 1}, for instance.")
    if length is not None and kernel > length:
        raise ValueError(
            f"{name} must be at most the length of the series, {length}, got {kernel}; "
            "use a shorter window or a longer series."
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
        self.num_tokens, self.embed_dim, self.horizon = num_tokens, embed_dim, horizon
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
