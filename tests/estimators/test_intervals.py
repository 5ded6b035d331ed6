from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.support import assert_near
from toa.data.windows import Windows
from toa.estimators.network import window_starts
from toa.estimators.units import UnitsModel, join_batches, spread
from toa.models import ForecastModel, build_forecaster
from toa.training.distributed import make_fabric
from toa.training.forecast import HorizonForecasting, HorizonModel
from toa.training.metrics import pinball_error


class Ramp(ForecastModel):
    """The last value, plus 0, 1, 2, …"""

    def __init__(self, lookback: int, horizon: int) -> None:
        super().__init__(lookback=lookback, horizon=horizon)
        self.weight = torch.nn.Parameter(torch.ones(()))

    def _forecast(self, series: Tensor, marks: Tensor | None, future_marks: Tensor | None) -> Tensor:
        return series[:, -1:] + self.weight * torch.arange(float(self.horizon)).view(1, -1, 1)


def test_pinball_error_by_hand() -> None:
    estimate = torch.tensor([[[[1.0], [1.0]]]])  # (1, 1, 2, 1)
    levels = torch.tensor([0.1, 0.9])
    # too low by 2: 0.1 * 2 and 0.9 * 2; too high by 2: 0.9 * 2 and 0.1 * 2
    assert_near(pinball_error(estimate, torch.tensor([[[3.0]]]), levels).flatten(), torch.tensor([0.2, 1.8]), 1e-6)
    assert_near(pinball_error(estimate, torch.tensor([[[-1.0]]]), levels).flatten(), torch.tensor([1.8, 0.2]), 1e-6)


@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.5, 0.8]))
def test_the_quantile_has_the_least_pinball_error(seed, level) -> None:
    y = torch.randn(201, generator=torch.Generator().manual_seed(seed))
    best = y.quantile(level)
    levels = torch.tensor([level])

    def loss(guess: Tensor) -> float:
        return pinball_error(guess.expand(201, 1, 1, 1), y.view(201, 1, 1), levels).mean().item()

    assert all(loss(best) <= loss(best + shift) + 1e-6 for shift in (-0.5, -0.05, 0.05, 0.5))


def test_levels_of_a_step_are_adjacent() -> None:
    model = HorizonModel(Ramp(2, 6), levels=3, features=0, channels=1)
    assert model(torch.zeros(1, 2, 1))[0, :, :, 0].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_features_start_without_effect_and_act_on_past_and_future() -> None:
    model = HorizonModel(Ramp(2, 2), levels=1, features=1, channels=1)
    series = torch.ones(1, 2, 1)
    marks = torch.zeros(1, 2, 1)
    future = torch.ones(1, 2, 1)
    assert model(series, marks, future).flatten().tolist() == [1.0, 2.0]
    # g(m) = 3 m: nothing comes off a past of zeros, 3 is added to a future of ones
    model.effect = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.effect.weight, 3.0)
    assert model(series, marks, future).flatten().tolist() == [4.0, 5.0]
    assert model(series, future, marks).flatten().tolist() == [-2.0, -1.0]
    forecast, penalty = model.forecast_and_penalty(series, marks, future)
    assert (forecast.flatten().tolist(), penalty.item()) == ([4.0, 5.0], 0.0)


def test_the_penalty_of_a_model_is_in_the_loss() -> None:
    settings = {"embed_dim": 8, "moving_average": 5}
    inner = build_forecaster("duet", lookback=16, horizon=4, channels=2, attention="softmax", settings=settings)
    model = HorizonModel(inner.train(), levels=1, features=0, channels=2)
    x = torch.randn(3, 16, 2)
    y = torch.randn(3, 4, 2)
    torch.manual_seed(0)
    config: Any = SimpleNamespace(levels=(), loss="mae")
    loss = HorizonForecasting().loss(config, make_fabric(torch.device("cpu")))(model, x, y)
    torch.manual_seed(0)
    forecast, penalty = inner.forecast_and_penalty(x)  # type: ignore[operator]
    assert penalty.item() > 0
    assert_near(loss, (forecast - y).abs().mean() + penalty, 1e-6)


def test_inputs_and_outputs_are_in_units_of_the_data() -> None:
    inner = HorizonModel(Ramp(2, 2), levels=1, features=0, channels=1)
    mean = torch.tensor([[10.0], [100.0]]).double()
    std = torch.tensor([[2.0], [20.0]]).double()
    width = torch.tensor([[1.0], [2.0]]).double()
    model = UnitsModel(inner, mean, std, point=0, width=width)
    series = torch.tensor([[[12.0], [10.0]], [[100.0], [120.0]]]).double()
    forecast = join_batches([model.predict(series[index : index + 1], torch.tensor([index])) for index in range(2)])
    # standardised: (1, 0) and (0, 1), both of deviation 1/2
    assert forecast["forecast"][:, :, 0].tolist() == [[10.0, 12.0], [120.0, 140.0]]
    half = (0.25 + 0.01) ** 0.5
    expected = torch.tensor([[2.0 * half, 4.0 * half], [20.0 * half, 40.0 * half]]).double()
    assert_near(forecast["upper"][:, :, 0] - forecast["forecast"][:, :, 0], expected, 1e-6)
    assert_near(forecast["forecast"][:, :, 0] - forecast["lower"][:, :, 0], expected, 1e-6)
    assert model.outputs == tuple(forecast) == ("forecast", "lower", "upper")


def test_quantiles_that_cross_are_put_in_order() -> None:
    inner = HorizonModel(Ramp(1, 3), levels=3, features=0, channels=1)
    inner.model.weight.data.fill_(-1.0)  # type: ignore[operator]
    unit = torch.ones(1, 1).double()
    model = UnitsModel(inner, 0 * unit, unit, point=1, shown=(0, 2))
    forecast, quantiles = model(torch.zeros(1, 1, 1).double())
    assert forecast.flatten().tolist() == [-1.0]
    assert quantiles.flatten().tolist() == [-2.0, 0.0]


def test_a_flat_look_back_keeps_a_wide_interval() -> None:
    assert spread(torch.zeros(1, 5, 1)).item() == pytest.approx(0.1)


@given(
    st.lists(st.integers(6, 20), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 6),
)
def test_windows_stay_within_their_series_and_their_targets(lengths, lookback, horizon, first) -> None:
    series = [np.stack([np.full(rows, place), np.arange(rows)], 1).astype(float) for place, rows in enumerate(lengths)]
    firsts = [min(first, rows - horizon) for rows in lengths]
    starts = window_starts(lengths, firsts, lengths, lookback, horizon)
    rows = sum(lengths)
    windows = Windows(np.concatenate(series), None, (0, rows), lookback, horizon, starts=starts)
    x, y, *_ = windows.batch(torch.arange(len(windows)))
    owners = x[:, 0, 0]
    assert (x[:, :, 0] == owners.view(-1, 1)).all()
    assert (y[:, :, 0] == owners.view(-1, 1)).all()
    assert (y[:, 0, 1] == x[:, -1, 1] + 1).all()
    for place, (begin, rows) in enumerate(zip(firsts, lengths, strict=True)):
        targets = y[owners == place, :, 1]
        assert targets[:, 0].tolist() == list(range(max(begin, lookback), rows - horizon + 1))


def test_the_order_of_an_epoch_is_of_all_windows() -> None:
    starts = window_starts([9, 8], [0, 0], [9, 8], 2, 1)
    windows = Windows(np.zeros((17, 1)), None, (0, 17), 2, 1, starts=starts)
    assert sorted(windows.epoch_order(0, 1).tolist()) == list(range(13))
    assert windows.epoch_order(0, 1).tolist() != windows.epoch_order(0, 2).tolist()
