"""Sliding windows: the series stays on the training device, and one gather picks a batch by index.

Alphabet: B batch, L look-back or window length, P horizon, C channels, F time marks, T rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from toa._checks import ArgumentError, check_at_least
from toa.data.splits import Segment

# larger than any benchmark series; PEMS07, the widest, takes 0.1 GiB
DEFAULT_BUDGET = 2 << 30


class WindowBatch(NamedTuple):
    """Inputs x (B, L, C) and targets y (B, P, C), with time marks (B, L, F) and (B, P, F) or None."""

    x: Tensor
    y: Tensor
    x_marks: Tensor | None
    y_marks: Tensor | None


def epoch_order(count: int, seed: int, epoch: int) -> Int[Tensor, " n"]:
    """A random permutation on the CPU. It depends only on seed and epoch, so an interrupted run can resume."""
    check_at_least("seed", seed, 0)
    check_at_least("epoch", epoch, 0)
    # hashed together: seed 0, epoch 1 differs from seed 1, epoch 0
    mixed = int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0])
    return torch.randperm(count, generator=Generator().manual_seed(mixed & (2**63 - 1)))


class Windows:
    """Windows of `lookback` + `horizon` rows in a segment of a series.

    Window i starts at row segment.start + i unless `starts` is given. A series of at most `budget_bytes` in float32 is
    held on `device`; several Windows share a tensor that is already there. Batches of a larger series are copied there.

    Args:
        segment: Rows [start, stop) that windows lie in.
        starts: First row of each window, relative to the segment; None for every window at stride 1.
    """

    _least_horizon = 1

    def __init__(
        self,
        series: Float[Tensor, "t c"] | Float[np.ndarray, "t c"],
        marks: Float[Tensor, "t f"] | Float[np.ndarray, "t f"] | None,
        segment: Segment | tuple[int, int],
        lookback: int,
        horizon: int,
        *,
        starts: Int[Tensor, " n"] | None = None,
        device: str | torch.device = "cpu",
        budget_bytes: int = DEFAULT_BUDGET,
    ) -> None:
        check_at_least("lookback", lookback, 1)
        check_at_least("horizon", horizon, self._least_horizon)
        self.segment = Segment(*segment)
        self.lookback = lookback
        self.horizon = horizon
        self.device = torch.device(device)
        rows = len(series)
        if not 0 <= self.segment.start <= self.segment.stop <= rows:
            raise ArgumentError("segment", f"lie within the {rows} rows of the series", tuple(self.segment))
        if self.segment.rows < lookback + horizon:
            raise ArgumentError(
                "segment",
                f"have at least lookback + horizon = {lookback + horizon} rows",
                self.segment.rows,
                "shorten the look-back or the horizon",
            )
        if marks is not None and len(marks) != rows:
            raise ArgumentError("marks", f"have a row for each of the {rows} rows of the series", len(marks))
        self.channels = int(series.shape[1])
        tables = [place_series(series, device=self.device, budget_bytes=budget_bytes)]
        # where the values are, so that one index fits both
        tables += [] if marks is None else [torch.as_tensor(marks).to(tables[0])]
        # all windows at stride 1 as one view (N, (L + P) * C): each is a contiguous piece of memory
        flat = ((table[self.segment.start : self.segment.stop].contiguous(), table.shape[1]) for table in tables)
        views = [rows.view(-1).unfold(0, (lookback + horizon) * width, width) for rows, width in flat]
        self._values = views[0]
        self._marks = views[1] if len(views) > 1 else None
        self._starts = None if starts is None else starts.to(self._values.device)

    def __len__(self) -> int:
        return len(self._values if self._starts is None else self._starts)

    def batch(self, index: Int[Tensor, " b"]) -> WindowBatch:
        """The windows with these indices. An index on the CPU is checked; one on a GPU is not, to avoid waiting."""
        if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise ArgumentError("index", "be integers of shape (B,)", f"{index.dtype} of {tuple(index.shape)}")
        if index.device.type == "cpu" and len(index):
            low, high = (int(end) for end in index.aminmax())
            if low < 0 or high >= len(self):
                wrong = low if low < 0 else high
                raise IndexError(f"index must lie in [0, {len(self)}), the number of windows, got {wrong}.")
        index = index.to(self._values.device)
        if self._starts is not None:
            index = self._starts[index]
        length = self.lookback + self.horizon
        parts = list[Tensor]()
        for windows in (self._values,) if self._marks is None else (self._values, self._marks):
            picked = windows.index_select(0, index).view(len(index), length, windows.shape[1] // length)
            if picked.device.type == "cpu" and self.device.type == "cuda":
                picked = picked.pin_memory()
            picked = picked.to(self.device, non_blocking=True)  # (B, L + P, C or F)
            parts += [picked[:, : self.lookback], picked[:, self.lookback :]]
        marks: Sequence[Tensor | None] = parts[2:] or (None, None)
        return WindowBatch(*parts[:2], *marks)

    def epoch_order(self, seed: int, epoch: int) -> Int[Tensor, " n"]:
        """The random order of an epoch; see `toa.data.windows.epoch_order`."""
        return epoch_order(len(self), seed, epoch).to(self._values.device)


class SeriesWindows(Windows):
    """Windows of L rows of one or more series, gathered by index. No window spans two series.

    Args:
        series: Values (T, C) on a device, or a sequence of them, each with at least L rows.
        whole: Whether to cover all rows: if the stride leaves rows at the end of a series, one more window covers them.
            These windows come after the `regular` ones of all series.
    """

    _least_horizon = 0

    def __init__(self, series: Tensor | Sequence[Tensor], length: int, *, stride: int = 1, whole: bool = False) -> None:
        check_at_least("length", length, 1)
        check_at_least("stride", stride, 1)
        parts = [series] if isinstance(series, Tensor) else list(series)
        starts = list[int]()
        ends = list[int]()
        begin = 0
        for part in parts:
            last = len(part) - length
            if last < 0:
                raise ArgumentError("series", f"have a window of {length} rows", len(part), "shorten the window")
            starts += range(begin, begin + last + 1, stride)
            if whole and last % stride:
                ends.append(begin + last)
            begin += len(part)
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        self.length = length
        self.rows = begin
        self.regular = len(starts)
        self.starts: Int[Tensor, " n"] = torch.tensor(starts + ends).to(joined.device)
        super().__init__(joined, None, (0, begin), length, 0, starts=self.starts, device=joined.device)

    def batch(self, index: Int[Tensor, " b"]) -> Float[Tensor, "b l c"]:  # type: ignore[override]
        """The windows with these indices."""
        return super().batch(index).x


def place_series(
    values: Float[Tensor, "t c"] | Float[np.ndarray, "t c"],
    *,
    device: str | torch.device = "cpu",
    budget_bytes: int = DEFAULT_BUDGET,
) -> Float[Tensor, "t c"]:
    """Float32 values (T, C) on `device` if they are there or take at most `budget_bytes`, else on the CPU."""
    check_at_least("budget_bytes", budget_bytes, 0)
    if values.ndim != 2:
        raise ArgumentError("values", "have 2 axes (T, C)", f"shape {tuple(values.shape)}")
    if isinstance(values, np.ndarray):
        # a copy, so that later changes of the array have no effect
        values = torch.from_numpy(np.array(values, dtype=np.float32, order="C"))
    there = torch.device(device)
    kept = values.device.type == there.type or values.numel() * 4 <= budget_bytes
    return values.to(there if kept else "cpu", torch.float32)
