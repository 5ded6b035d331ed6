from typing import Any

import pytest
import torch

from tests.support import assert_near, message
from toa.models import DLinear, build_forecaster
from toa.nn import SeriesDecomposition


def build(**settings: Any) -> DLinear:
    model = build_forecaster(
        "dlinear", lookback=9, horizon=4, channels=3, settings={"moving_average": 5, **settings}
    ).double()
    assert isinstance(model, DLinear)
    return model


@pytest.mark.parametrize("individual", [False, True])
def test_the_first_forecast_is_the_mean_of_the_past_and_the_biases(individual):
    model = build(individual=individual)
    series = torch.randn(2, 9, 3, dtype=torch.float64)
    biases = (model.seasonal.bias + model.trend.bias).detach().expand(3, 4).mT
    # 1 / L is a float32 number
    assert_near(model(series), series.mean(1, keepdim=True) + biases, 1e-7)


def test_forecast_is_a_linear_map_of_each_part():
    model = build()
    torch.nn.init.normal_(model.seasonal.weight)
    torch.nn.init.normal_(model.trend.weight)
    series = torch.randn(2, 9, 3, dtype=torch.float64)
    seasonal, trend = SeriesDecomposition(5)(series)
    expected = torch.einsum("pl,blc->bpc", model.seasonal.weight, seasonal)
    expected = expected + torch.einsum("pl,blc->bpc", model.trend.weight, trend)
    expected = expected + (model.seasonal.bias + model.trend.bias)[:, None]
    assert_near(model(series), expected)


def test_channels_do_not_mix_and_may_have_individual_maps():
    shared = build()
    own = build(individual=True)
    assert own.trend.weight.shape == (3, 4, 9)
    assert shared(torch.randn(2, 9, 8, dtype=torch.float64)).shape == (2, 4, 8)
    with torch.no_grad():
        own.trend.weight[1].normal_()
    series = torch.randn(2, 9, 3, dtype=torch.float64)
    other = series.clone()
    other[..., 1] += 1.0
    moved = (own(series) - own(other)).abs().amax((0, 1))
    assert moved[1] > 0
    assert moved[[0, 2]].max() == 0
    with pytest.raises(ValueError, match=message("series must have channels=3, got 4", "with channels=4.")):
        own(torch.zeros(2, 9, 4, dtype=torch.float64))


BAD: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"moving_average": 11}, ("moving_average must be at most the length of the series, 9, got 11; use a shorter",)),
    ({"moving_average": 4}, ("moving_average must be odd", "got 4; use 5")),
    (
        {"embed_dim": 8},
        ("unknown setting 'embed_dim' of model 'dlinear'; known: moving_average, individual, instance_norm.",),
    ),
]


@pytest.mark.parametrize(("settings", "parts"), BAD, ids=str)
def test_bad_settings_raise(settings, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        build(**settings)


@pytest.mark.parametrize("name", ["dlinear", "tsmixer"])
def test_with_instance_norm_a_forecast_follows_level_and_scale_of_its_series(name):
    settings = {"instance_norm": True} | ({"moving_average": 5} if name == "dlinear" else {})
    model = build_forecaster(name, lookback=9, horizon=4, channels=3, settings=settings).double().eval()
    series = torch.randn(2, 9, 3, dtype=torch.float64)
    assert_near(model(5.0 * series + 7.0), 5.0 * model(series) + 7.0, 1e-4)
