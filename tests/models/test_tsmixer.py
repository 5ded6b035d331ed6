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


def test_forecast_is_a_map_of_what_blocks_add_to_the_series():
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


BAD: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"embed_dim": 0}, ("embed_dim must be at least 1, got 0",)),
    ({"num_layers": 0}, ("num_layers must be at least 1, got 0",)),
    ({"dropout": 1.0}, ("dropout must lie in [0, 1), got 1.0",)),
]


@pytest.mark.parametrize(("settings", "parts"), BAD, ids=str)
def test_bad_settings_are_refused(settings, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        build(**settings)


def test_a_series_of_other_channels_is_refused():
    with pytest.raises(ValueError, match=message("series must have channels=3, got 4", "with channels=4.")):
        build()(torch.zeros(2, 9, 4, dtype=torch.float64))
