"""Features act on the steps around them in the network, and the ends of a window are repeated."""

import torch

from toa.models import build_forecaster
from toa.training.forecast import HorizonModel, _with_neighbours


def test_each_step_has_the_features_of_its_neighbours() -> None:
    features = torch.arange(4.0).view(1, 4, 1)
    assert _with_neighbours(features, 1)[0].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 3]]
    assert _with_neighbours(features, 0) is features


def test_a_feature_acts_two_steps_around_it_and_no_further() -> None:
    torch.manual_seed(0)
    horizon = 8
    inner = build_forecaster("dlinear", lookback=12, horizon=horizon, channels=1, settings={"moving_average": 5})
    model = HorizonModel(inner, levels=1, features=1, channels=1, around=2).eval()
    assert model.effect is not None
    *_, last = model.effect.children()
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.normal_(last.weight)
    series = torch.randn(1, 12, 1)
    marks = torch.zeros(1, 12, 1)
    ahead = torch.zeros(1, horizon, 1)
    moved = ahead.clone()
    moved[0, 4] = 1.0
    difference = (model(series, marks, moved) - model(series, marks, ahead))[0, :, 0].flatten().abs()
    assert (difference > 1e-6).tolist() == [False, False, True, True, True, True, True, False]
