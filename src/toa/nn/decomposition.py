"""A series as the sum of a trend and what swings about it."""

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_shape


class SeriesDecomposition(nn.Module):
    """A series (B, L, C) to its seasonal part and its trend, both (B, L, C), whose sum it is.

    trend[t] = mean of series[t - k .. t + k], k = (kernel - 1) / 2; beyond its ends the series has its end values.

    Args:
        kernel: Steps of the moving average; odd, and at most L.
    """

    def __init__(self, kernel: int) -> None:
        super().__init__()
        check_kernel("kernel", kernel)
        self.kernel = kernel

    def forward(self, series: Tensor) -> tuple[Tensor, Tensor]:
        """The seasonal part and the trend."""
        check_shape("series", series, "(B, L, C)", (None, None, None))
        check_kernel("kernel", self.kernel, series.shape[1])
        x = series.mT  # (B, C, L)
        beyond = (self.kernel - 1) // 2
        # not F.pad: its backward pass has no deterministic kernel on a GPU
        ends = (x[..., :1].expand(-1, -1, beyond), x, x[..., -1:].expand(-1, -1, beyond))
        trend = nn.functional.avg_pool1d(torch.cat(ends, -1), self.kernel, stride=1).mT  # (B, L, C)
        return series - trend, trend

    def extra_repr(self) -> str:
        """What the module's repr shows."""
        return f"kernel={self.kernel}"


def check_kernel(name: str, kernel: int, length: int | None = None) -> None:
    """Refuse a window of a moving average that has no middle, or that is longer than the series."""
    check_at_least(name, kernel, 1)
    if kernel % 2 == 0:
        raise ValueError(f"{name} must be odd, so that it has a middle, got {kernel}; use {kernel + 1}, for instance.")
    if length is not None and kernel > length:
        raise ValueError(
            f"{name} must be at most the length of the series, {length}, got {kernel}; "
            "use a shorter window or a longer series."
        )
