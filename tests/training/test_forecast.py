from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn

from tests.support import message
from toa.data.windows import Windows
from toa.experiments import resolve
from toa.training import TrainingConfig, train
from toa.training.forecast import FORECASTING, ForecastWindows, evaluate_forecaster, forecast_loss
from toa.training.step import ShuffledBatches


def windows(rows: int = 50) -> Windows:
    series = torch.arange(rows * 2.0).reshape(rows, 2)
    return Windows(series, None, (0, rows), 6, 3)


class Persistence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None) -> Tensor:
        return self.weight * x[:, -1:].expand(-1, 3, -1)


class Penalised(Persistence):
    def forecast_and_penalty(
        self, x: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return self(x, marks, future_marks), 7.0 * self.weight


def test_every_epoch_has_every_window_once_in_another_order():
    batches = ShuffledBatches(windows(), 8, seed=1)
    assert batches.steps_per_epoch == 6

    def epoch(number: int) -> list[float]:
        return [float(x[0, 0]) for step in range(6) for x in batches.at(number, step)[0]]

    assert sorted(epoch(0)) == sorted(epoch(1)) == [2.0 * i for i in range(42)]
    assert epoch(0) != epoch(1)
    assert epoch(0) == epoch(0)


def test_a_last_smaller_batch_is_kept_or_dropped():
    assert len(ShuffledBatches(windows(), 8, seed=1).at(0, 5)[0]) == 2
    assert ShuffledBatches(windows(), 8, seed=1, drop_last=True).steps_per_epoch == 5


def test_a_batch_larger_than_the_data_raises_an_error():
    with pytest.raises(ValueError, match=message("batch_size", "42", "got 64", "drop_last=false")):
        ShuffledBatches(windows(), 64, seed=1, drop_last=True)


def test_a_model_with_a_fitted_shortcut_starts_as_a_ridge_regression_on_training_windows():
    steps = torch.arange(300.0)
    series = torch.stack((torch.sin(steps / 3.0), torch.cos(steps / 5.0)), 1)
    train_windows = Windows(series, None, (0, 300), 32, 4)
    config = resolve("forecast", "two-axis", dataset="own.csv", backbone="two-axis", horizon=4, changes=["lookback=32"])
    data = ForecastWindows(channels=2, train=train_windows)
    errors = []
    for start in ("mean", "ridge"):
        config = replace(config, model={**config.model, "shortcut_start": start})
        errors.append(evaluate_forecaster(FORECASTING.build(config, data), train_windows)["mse"])
    # two frequencies that a linear map continues exactly, up to the penalty
    assert errors[1] < 0.05 * errors[0]


def test_evaluation_uses_every_window_and_keeps_the_mode():
    model = Persistence().train()
    metrics = evaluate_forecaster(model, windows(), batch_size=5)
    # the series grows by 2 a step: persistence is wrong by 2, 4 and 6
    assert metrics == {"mse": pytest.approx((4 + 16 + 36) / 3), "mae": pytest.approx(4.0)}
    assert model.training


def test_batches_carry_the_marks_of_past_and_future():
    marks = torch.arange(50.0).unsqueeze(1)
    marked = Windows(torch.zeros(50, 2), marks, (0, 50), 6, 3)
    x, y, past, future = ShuffledBatches(marked, 4, seed=1).at(0, 0)
    assert (x.shape, y.shape, past.shape, future.shape) == ((4, 6, 2), (4, 3, 2), (4, 6, 1), (4, 3, 1))
    assert torch.equal(future[:, 0], past[:, -1] + 1.0)


def test_a_penalty_is_added_only_in_training():
    model = Penalised()
    batch = ShuffledBatches(windows(), 4, seed=1).at(0, 0)
    loss = forecast_loss(model, *batch, error=F.l1_loss)
    assert loss.item() == pytest.approx(4.0 + 7.0)
    assert evaluate_forecaster(model, windows())["mae"] == pytest.approx(4.0)


def test_a_penalty_goes_through_the_wrapper_of_several_processes():
    fabric = Fabric(accelerator="cpu", devices=1, strategy="ddp")
    fabric.launch()
    try:
        model = Penalised()
        config = TrainingConfig(epochs=1, learning_rate=1e-2)
        batches = ShuffledBatches(windows(), 42, seed=1)
        state = train(
            model,
            batches,
            partial(forecast_loss, error=F.l1_loss, autocast=fabric.autocast),
            config,
            fabric=fabric,
            key="x",
        )
    finally:
        torch.distributed.destroy_process_group()
    assert state.history[0]["train"] == pytest.approx(4.0 + 7.0)
    assert model.weight.item() != 1.0


def test_a_penalty_is_computed_in_the_given_precision():
    seen = []

    class Watched(Penalised):
        def forward(self, x: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None) -> Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(x)

    batch = ShuffledBatches(windows(), 4, seed=1).at(0, 0)
    forecast_loss(Watched(), *batch, autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    assert seen == [True]


def test_losses_are_the_metrics_means():
    x, y = ShuffledBatches(windows(), 4, seed=1).at(0, 0)
    assert forecast_loss(Persistence(), x, y).item() == pytest.approx((4 + 16 + 36) / 3)
    assert forecast_loss(Persistence(), x, y, error=F.l1_loss).item() == pytest.approx(4.0)
