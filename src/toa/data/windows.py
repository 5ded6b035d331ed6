"""Sliding windows as one gather: the series lives on the training device, a batch is picked by start index.

Alphabet: B batch, L look-back, P horizon, C channels, F time marks, T rows.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from toa._checks import check_at_least, check_generator
from toa.data.splits import Segment
from toa.data.storage import DEFAULT_BUDGET, place_series


class WindowBatch(NamedTuple):
    """Inputs x (B, L, C) and targets y (B, P, C), with their time marks (B, L, F) and (B, P, F) if there are any."""

    x: Tensor
    y: Tensor
    x_marks: Tensor | None
    y_marks: Tensor | None


def epoch_order(count: int, seed: int, epoch: int) -> Int[Tensor, " n"]:
    """A random order of so many things, on the CPU: it depends on seed and epoch alone, so a stopped run finds it."""
    check_at_least("seed", seed, 0)
    check_at_least("epoch", epoch, 0)
    # hashed together: seed 0 of epoch 1 is not seed 1 of epoch 0
    mixed = int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0])
    return torch.randperm(count, generator=Generator().manual_seed(mixed & (2**63 - 1)))


class Windows:
    """Every window of `lookback` + `horizon` rows inside a segment of a series, at stride 1.

    Window i starts at row segment.start + i. A tensor or array of at most `budget_bytes` in float32 is held on
    `device`; several Windows share one tensor that is there already. A larger array is written to a memory-mapped
    file, and a memory-mapped file is read where it is: each batch is then copied to the device.
    """

    def __init__(
        self,
        series: Float[Tensor, "t c"] | Float[np.ndarray, "t c"],
        marks: Float[Tensor, "t f"] | Float[np.ndarray, "t f"] | None,
        segment: Segment | tuple[int, int],
        lookback: int,
        horizon: int,
        *,
        device: str | torch.device = "cpu",
        budget_bytes: int = DEFAULT_BUDGET,
    ) -> None:
        check_at_least("lookback", lookback, 1)
        check_at_least("horizon", horizon, 1)
        self.segment = Segment(*segment)
        self.lookback, self.horizon = lookback, horizon
        self.device = torch.device(device)
        rows = len(series)
        if not 0 <= self.segment.start <= self.segment.stop <= rows:
            raise ValueError(f"segment must lie within the {rows} rows of the series, got {tuple(self.segment)}.")
        if self.segment.rows < lookback + horizon:
            raise ValueError(
                f"segment must have at least lookback + horizon = {lookback + horizon} rows, got {self.segment.rows}; "
                "shorten the look-back or the horizon."
            )
        if marks is not None and len(marks) != rows:
            raise ValueError(f"marks must have a row for each of the {rows} rows of the series, got {len(marks)}.")
        self.channels = int(series.shape[1])
        if isinstance(series, np.ndarray) and not isinstance(series, np.memmap):
            series = place_series(series, device=self.device, budget_bytes=budget_bytes)
        self._values = self._windows_of(series)
        self._marks = None if marks is None else self._windows_of(torch.as_tensor(marks))

    def __len__(self) -> int:
        return self.segment.windows(self.lookback, self.horizon)

    @property
    def streams(self) -> bool:
        """Whether batches come from a memory-mapped file rather than from the device."""
        return isinstance(self._values, np.ndarray)

    def batch(self, index: Int[Tensor, " b"]) -> WindowBatch:
        """The windows at these places; an index on the CPU is checked, one on a GPU is not waited for.

        Raises:
            IndexError: If an index on the CPU lies outside [0, len(self)).
        """
        if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(f"index must be whole numbers of shape (B,), got {index.dtype} of {tuple(index.shape)}.")
        if index.device.type == "cpu" and len(index):
            low, high = (int(end) for end in index.aminmax())
            if low < 0 or high >= len(self):
                wrong = low if low < 0 else high
                raise IndexError(f"index must lie in [0, {len(self)}), the number of windows, got {wrong}.")
        values = self._gather(self._values, index)  # (B, L + P, C)
        x, y = values[:, : self.lookback], values[:, self.lookback :]
        if self._marks is None:
            return WindowBatch(x, y, None, None)
        marks = self._gather(self._marks, index)  # (B, L + P, F)
        return WindowBatch(x, y, marks[:, : self.lookback], marks[:, self.lookback :])

    def shuffled(self, generator: Generator) -> Int[Tensor, " n"]:
        """A random order of all windows, drawn from a generator on the CPU so that every device has the same."""
        check_generator(generator, torch.device("cpu"))
        return self._placed(torch.randperm(len(self), generator=generator))

    def epoch_order(self, seed: int, epoch: int) -> Int[Tensor, " n"]:
        """The random order of an epoch: it depends on seed and epoch alone, so a stopped run finds it again."""
        return self._placed(epoch_order(len(self), seed, epoch))

    def _placed(self, order: Tensor) -> Tensor:
        return order if self.streams else order.to(self.device)

    def _windows_of(self, table: Tensor | np.ndarray) -> Tensor | np.ndarray:
        """All windows (N, (L + P) * C) as one view: a window is an unbroken stretch of memory."""
        start, stop = self.segment
        channels = int(table.shape[1])
        size = (self.lookback + self.horizon) * channels
        if isinstance(table, Tensor):
            table = table.to(self.device, torch.float32).contiguous()
            return table[start:stop].view(-1).unfold(0, size, channels)
        if table.dtype != np.float32 or not table.flags.c_contiguous:
            raise ValueError(f"a mapped series must be float32 in C order, got {table.dtype}; use write_mapped.")
        flat = np.asarray(table)[start:stop].reshape(-1)
        shape, strides = (len(self), size), (4 * channels, 4)
        return np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)

    def _gather(self, windows: Tensor | np.ndarray, index: Tensor) -> Tensor:
        length = self.lookback + self.horizon
        shape = (len(index), length, windows.shape[1] // length)
        if isinstance(windows, Tensor):
            return windows.index_select(0, index.to(windows.device)).view(shape)
        picked = torch.from_numpy(windows[index.cpu().numpy()])
        if self.device.type == "cuda":
            picked = picked.pin_memory()
        return picked.to(self.device, non_blocking=True).view(shape)
