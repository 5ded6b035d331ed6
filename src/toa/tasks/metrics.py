"""Metrics as pure functions of tensors, and their exact means over batches."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def squared_error(estimate: Tensor, target: Tensor) -> Tensor:
    """(ŷ - y)², entry by entry."""
    return (estimate - target).square()


def absolute_error(estimate: Tensor, target: Tensor) -> Tensor:
    """|ŷ - y|, entry by entry."""
    return (estimate - target).abs()


FORECAST_METRICS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": squared_error, "mae": absolute_error}


class RunningMeans:
    """Means of several metrics over all entries of all batches, summed in float64 on the device."""

    def __init__(self, metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]], device: torch.device) -> None:
        self._metrics = metrics
        self._sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in metrics}
        self._count = 0

    def add(self, estimate: Tensor, target: Tensor) -> None:
        """Take in a batch; nothing waits for the device."""
        for name, metric in self._metrics.items():
            self._sums[name] += metric(estimate.float(), target.float()).sum(dtype=torch.float64)
        self._count += target.numel()

    def means(self) -> dict[str, float]:
        """The means so far.

        Raises:
            ValueError: If nothing was added.
        """
        if self._count == 0:
            raise ValueError("means need at least one entry, got none; the split has no window.")
        return {name: float(total) / self._count for name, total in self._sums.items()}
