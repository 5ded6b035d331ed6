import pytest
import torch

from toa.tasks.metrics import FORECAST_METRICS, RunningMeans


def test_means_over_uneven_batches_are_means_over_all_entries():
    estimate, target = torch.randn(2, 10, 4, 3)
    means = RunningMeans(FORECAST_METRICS, torch.device("cpu"))
    for a, b in zip(estimate.split(4), target.split(4), strict=True):
        means.add(a, b)
    assert means.means()["mse"] == pytest.approx((estimate - target).square().double().mean().item(), rel=1e-6)
    assert means.means()["mae"] == pytest.approx((estimate - target).abs().double().mean().item(), rel=1e-6)


def test_low_precision_forecasts_are_compared_in_float32():
    target = torch.full((4,), 1.001)
    means = RunningMeans(FORECAST_METRICS, torch.device("cpu"))
    means.add(torch.ones(4, dtype=torch.bfloat16), target)
    assert means.means()["mae"] == pytest.approx(0.001, rel=1e-3)


def test_means_without_entries_raise_an_error():
    with pytest.raises(ValueError, match="at least one entry"):
        RunningMeans(FORECAST_METRICS, torch.device("cpu")).means()
