from typing import Any

import pytest
import torch

from tests.support import assert_near, message
from toa.models import TSMixer, build_forecaster


def build(**settings: Any) -> TSMixer:
    given = {"embed_dim": 6, "num_layers": 2, **settings}
    model = build_forecaster("tsmixer", lookback=9, horizon=4, channels=3, settings=given).double().eval()
    assert isinstance(model, TSMixer)
    return model


def test_forecast_equals_its_formula():
    model: Any = build(num_layers=1)
    series = torch.randn(2, 9, 3, dtype=torch.float64)
    (block,) = model.blocks
    first, _, second = block.temporal
    hidden = (torch.einsum("el,blc->bec", first.weight, series) + first.bias[:, None]).relu()
    x = series + torch.einsum("le,bec->blc", second.weight, hidden) + second.bias[:, None]
    first, _, second = block.channel
    x = x + (x @ first.weight.mT + first.bias).relu() @ second.weight.mT + second.bias
    expected = torch.einsum("pl,blc->bpc", model.projection.weight, x) + model.projection.bias[:, None]
    assert_near(model(series), expected)


def test_channels_mix():
    model = build()
    series = torch.randn(2, 9, 3, dtype=torch.float64)
    other = series.clone()
    other[..., 1] += 1.0
    assert ((model(series) - model(other)).abs().amax((0, 1)) > 0).all()


def test_a_series_of_other_channels_raises():
    with pytest.raises(ValueError, match=message("series must have channels=3, got 4", "with channels=4.")):
        build()(torch.zeros(2, 9, 4, dtype=torch.float64))
