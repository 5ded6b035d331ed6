"""Windows of several series of unequal lengths, none of which reaches from one into the next.

Alphabet: S series, T rows, L look-back, P horizon, C channels, F features.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from toa.data.storage import place_series
from toa.data.windows import WindowBatch, Windows, epoch_order


class PanelWindows:
    """Windows of one table at chosen places; a source of shuffled batches.

    Args:
        table: The windows of all series, one series after another.
        starts: Rows of the table at which windows start.
    """

    def __init__(self, table: Windows, starts: Tensor) -> None:
        self._table = table
        self._starts = starts if table.streams else starts.to(table.device)

    def __len__(self) -> int:
        return len(self._starts)

    def batch(self, index: Tensor) -> WindowBatch:
        """The windows at these places."""
        return self._table.batch(self._starts[index.to(self._starts.device)])

    def epoch_order(self, seed: int, epoch: int) -> Tensor:
        """The random order of an epoch, which depends on seed and epoch alone."""
        return epoch_order(len(self), seed, epoch).to(self._starts.device)


def join(
    series: Sequence[np.ndarray],
    features: Sequence[np.ndarray] | None,
    lookback: int,
    horizon: int,
    device: torch.device,
) -> Windows:
    """All series (T, C), standardised, and their features (T, F) as one table of windows on the device."""
    values = place_series(np.concatenate(list(series)), device=device)
    marks = None if features is None else torch.from_numpy(np.concatenate(list(features))).float().to(device)
    return Windows(values, marks, (0, len(values)), lookback, horizon, device=device)


def window_starts(
    lengths: Sequence[int], targets: Sequence[tuple[int, int]], lookback: int, horizon: int, *, stride: int = 1
) -> tuple[Tensor, Tensor]:
    """Where windows start in the joined table, and the series that each is of.

    Args:
        lengths: Rows of each series.
        targets: Of each series the rows [first, stop) within which all that is forecast lies.
        lookback: Rows L seen before it.
        horizon: Rows P of it.
        stride: Rows between the starts of two windows.
    """
    starts, owners = [], []
    begin = 0
    for place, (length, (first, stop)) in enumerate(zip(lengths, targets, strict=True)):
        own = torch.arange(begin + max(0, first - lookback), begin + stop - lookback - horizon + 1, stride)
        starts.append(own)
        owners.append(torch.full_like(own, place))
        begin += length
    return torch.cat(starts), torch.cat(owners)


def cut(table: Tensor, starts: Tensor, lookback: int, horizon: int) -> tuple[Tensor, Tensor]:
    """Look-backs (B, L, ·) and what follows them (B, P, ·), of windows that start at these rows of a table (T, ·)."""
    picked = table[starts.view(-1, 1) + torch.arange(lookback + horizon)]  # (B, L + P, ·)
    return picked[:, :lookback], picked[:, lookback:]
