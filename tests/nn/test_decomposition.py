import pytest
import torch

from tests.support import assert_near, message
from toa.nn import SeriesDecomposition


def test_trend_is_the_moving_average_with_repeated_end_values():
    series = torch.tensor([1.0, 4.0, 7.0, 10.0]).reshape(1, 4, 1)
    seasonal, trend = SeriesDecomposition(3)(series)
    assert trend.flatten().tolist() == [2.0, 4.0, 7.0, 9.0]
    assert seasonal.flatten().tolist() == [-1.0, 0.0, 0.0, 1.0]


def test_parts_sum_to_the_series_channel_by_channel():
    series = torch.randn(2, 9, 3, dtype=torch.float64)
    seasonal, trend = SeriesDecomposition(5)(series)
    assert_near(seasonal + trend, series)
    assert_near(SeriesDecomposition(5)(series[..., 1:2])[1], trend[..., 1:2])


def test_trend_of_window_one_is_the_series():
    series = torch.randn(2, 4, 3)
    assert torch.equal(SeriesDecomposition(1)(series)[1], series)


def test_bad_windows_raise():
    with pytest.raises(ValueError, match=message("kernel must be odd", "got 24; use 25")):
        SeriesDecomposition(24)
    with pytest.raises(ValueError, match=message("kernel must be at least 1, got -1")):
        SeriesDecomposition(-1)
    with pytest.raises(ValueError, match=message("kernel must be at most the length of the series, 4, got 5; use a")):
        SeriesDecomposition(5)(torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match=message("series must have 3 axes (B, L, C), got 2")):
        SeriesDecomposition(3)(torch.zeros(4, 3))
