import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.data.files import values
from tests.support import message
from toa.data import Segment, WindowBatch, Windows, place_series

TABLE = values(60, 3)
MARKS = values(60, 2, seed=1)


def naive(table: np.ndarray, start: int, lookback: int, horizon: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.as_tensor(table, dtype=torch.float32)
    return rows[start : start + lookback], rows[start + lookback : start + lookback + horizon]


def assert_same(got: WindowBatch, want: WindowBatch) -> None:
    for a, b in zip(got, want, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


@st.composite
def problems(draw):
    rows, channels = draw(st.integers(2, 40)), draw(st.integers(1, 5))
    start = draw(st.integers(0, rows - 2))
    stop = draw(st.integers(start + 2, rows))
    lookback = draw(st.integers(1, stop - start - 1))
    horizon = draw(st.integers(1, stop - start - lookback))
    count = stop - start - lookback - horizon + 1
    index = draw(st.lists(st.integers(0, count - 1), max_size=6))
    return rows, channels, (start, stop), lookback, horizon, count, index


@given(problem=problems(), marked=st.booleans())
def test_a_batch_equals_slicing_window_by_window(problem, marked):
    rows, channels, segment, lookback, horizon, count, index = problem
    table = values(rows, channels)
    marks = values(rows, 2, seed=1) if marked else None
    windows = Windows(table, marks, segment, lookback, horizon)
    assert len(windows) == count
    batch = windows.batch(torch.tensor(index, dtype=torch.int64))
    assert batch.x.shape == (len(index), lookback, channels)
    assert batch.y.shape == (len(index), horizon, channels)
    for place, i in enumerate(index):
        x, y = naive(table, segment[0] + i, lookback, horizon)
        assert torch.equal(batch.x[place], x)
        assert torch.equal(batch.y[place], y)
        if marks is not None:
            x, y = naive(marks, segment[0] + i, lookback, horizon)
            assert batch.x_marks is not None
            assert batch.y_marks is not None
            assert torch.equal(batch.x_marks[place], x)
            assert torch.equal(batch.y_marks[place], y)
    assert marked or (batch.x_marks is None and batch.y_marks is None)


def test_a_series_above_the_budget_stays_on_the_cpu():
    for series in (TABLE, torch.from_numpy(TABLE)):
        assert place_series(series, device="meta", budget_bytes=TABLE.size * 4).is_meta
        assert place_series(series, device="meta", budget_bytes=TABLE.size * 4 - 1).device.type == "cpu"


def test_three_splits_share_one_tensor():
    series = place_series(TABLE)
    assert isinstance(series, torch.Tensor)
    splits = [Windows(series, None, segment, 8, 4) for segment in ((0, 30), (22, 45), (37, 60))]
    series.zero_()
    assert all(windows.batch(torch.tensor([2])).x.eq(0).all() for windows in splits)


def test_changing_the_callers_array_does_not_change_the_windows():
    table = TABLE.astype(np.float32)
    windows = Windows(table, None, (0, 60), 8, 4)
    before = windows.batch(torch.tensor([3])).x.clone()
    table[:] = 0
    assert torch.equal(windows.batch(torch.tensor([3])).x, before)


def test_the_order_of_an_epoch_depends_on_seed_and_epoch_alone():
    windows = Windows(TABLE, None, (0, 60), 8, 4)
    orders = {(seed, epoch): windows.epoch_order(seed, epoch) for seed in range(3) for epoch in range(3)}
    assert len({tuple(order.tolist()) for order in orders.values()}) == 9
    torch.manual_seed(99)
    for (seed, epoch), order in orders.items():
        assert sorted(order.tolist()) == list(range(len(windows)))
        assert torch.equal(Windows(TABLE + 1, None, (0, 60), 8, 4).epoch_order(seed, epoch), order)


@pytest.mark.parametrize("wrong", [-1, 49, 10**9])
def test_an_index_out_of_range_raises(wrong):
    windows = Windows(TABLE, None, Segment(0, 60), 8, 4)
    with pytest.raises(IndexError, match=message("index must lie in [0, 49)", f"got {wrong}")):
        windows.batch(torch.tensor([0, wrong]))


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: Windows(TABLE, None, (0, 61), 8, 4), ("within the 60 rows", "(0, 61)")),
        (lambda: Windows(TABLE, None, (-1, 60), 8, 4), ("within the 60 rows", "(-1, 60)")),
        (lambda: Windows(TABLE, None, (0, 11), 8, 4), ("lookback + horizon = 12 rows", "got 11", "shorten")),
        (lambda: Windows(TABLE, MARKS[:9], (0, 60), 8, 4), ("each of the 60 rows", "got 9")),
        (lambda: Windows(TABLE, None, (0, 60), 0, 4), ("lookback must be at least 1",)),
        (lambda: Windows(TABLE, None, (0, 60), 8, 0), ("horizon must be at least 1",)),
        (lambda: Windows(TABLE, None, (0, 60), 8, 4, budget_bytes=-1), ("budget_bytes must be at least 0",)),
        (lambda: place_series(TABLE[0]), ("2 axes (T, C)", "(3,)")),
        (lambda: Windows(TABLE, None, (0, 60), 8, 4).batch(torch.zeros(1)), ("integers", "torch.float32")),
        (lambda: Windows(TABLE, None, (0, 60), 8, 4).batch(torch.tensor(1)), ("shape (B,)", "()")),
        (lambda: Windows(TABLE, None, (0, 60), 8, 4).epoch_order(-1, 0), ("seed must be at least 0",)),
    ],
)
def test_invalid_windows_raise(call, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("budget", [0, 10**6])
def test_batches_on_the_gpu_equal_those_on_the_cpu(budget):
    cpu, gpu = (Windows(TABLE, MARKS, (5, 60), 8, 4, device=device, budget_bytes=budget) for device in ("cpu", "cuda"))
    # a series above the budget stays on the CPU, and so does the order of its batches
    assert gpu.epoch_order(1, 2).is_cuda == bool(budget)
    assert torch.equal(gpu.epoch_order(1, 2).cpu(), cpu.epoch_order(1, 2))
    for index in (cpu.epoch_order(1, 2), gpu.epoch_order(1, 2), cpu.epoch_order(1, 2).cuda()):
        batch = gpu.batch(index)
        assert all(part is not None and part.is_cuda for part in batch)
        assert_same(WindowBatch(*(part.cpu() for part in batch)), cpu.batch(cpu.epoch_order(1, 2)))  # type: ignore[union-attr]
