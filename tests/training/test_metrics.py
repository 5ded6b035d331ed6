import pytest
import torch

from toa.training.metrics import FORECAST_METRICS, mean_metrics


def test_means_over_uneven_batches_are_means_over_all_entries():
    estimate, target = torch.randn(2, 10, 4, 3)
    found = mean_metrics(FORECAST_METRICS, zip(estimate.split(4), target.split(4), strict=True))
    assert found["mse"] == pytest.approx((estimate - target).square().double().mean().item(), rel=1e-6)
    assert found["mae"] == pytest.approx((estimate - target).abs().double().mean().item(), rel=1e-6)


def test_low_precision_forecasts_are_compared_in_float32():
    pair = torch.ones(4, dtype=torch.bfloat16), torch.full((4,), 1.001)
    assert mean_metrics(FORECAST_METRICS, [pair])["mae"] == pytest.approx(0.001, rel=1e-3)


def test_means_without_entries_raise_an_error():
    with pytest.raises(ValueError, match="at least one entry"):
        mean_metrics(FORECAST_METRICS, [])
