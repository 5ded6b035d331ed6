"""Forecasting: train a forecaster on windows of a series, choose by validation, measure on every test window.

Alphabet: B batch, L look-back, P horizon, C channels.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa.data.windows import WindowBatch, Windows
from toa.tasks.batches import ShuffledBatches
from toa.tasks.metrics import FORECAST_METRICS, RunningMeans

# windows a batch where no gradient is kept
_EVALUATION_BATCH = 512

# means of `FORECAST_METRICS`, as PyTorch has them with gradients of their own
_LOSSES = {"mse": F.mse_loss, "mae": F.l1_loss}


class WindowBatches(ShuffledBatches):
    """Shuffled windows for training: inputs, targets and, where there are any, marks of both.

    Args:
        windows: Where they come from.
        batch_size: Windows a batch.
        seed: Of the order.
        drop_last: Whether a last, smaller batch is left out.
    """

    def __init__(
        self,
        windows: Windows,
        batch_size: int,
        *,
        seed: int,
        drop_last: bool = False,
    ) -> None:
        super().__init__(
            windows,
            lambda chosen: inputs_and_targets(windows.batch(chosen)),
            batch_size,
            seed=seed,
            drop_last=drop_last,
        )


def inputs_and_targets(batch: WindowBatch) -> tuple[Tensor, ...]:
    """x, y and the marks of both if there are any."""
    if batch.x_marks is None or batch.y_marks is None:
        return batch.x, batch.y
    return batch.x, batch.y, batch.x_marks, batch.y_marks


def forecast_loss(
    metric: str, *, autocast: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Callable[..., Tensor]:
    """The mean of a metric, as a training loss of a model and a batch; a model's own penalty is added.

    Args:
        metric: A name of `FORECAST_METRICS`.
        autocast: The precision that `forecast_and_penalty` runs in; Fabric sees to that of `forward` alone.
    """
    error = _LOSSES[metric]

    def loss_of(
        model: nn.Module, x: Tensor, y: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None
    ) -> Tensor:
        with_penalty = getattr(model, "forecast_and_penalty", None)
        if with_penalty is None:
            return error(model(x, marks, future_marks), y)
        with autocast():
            forecast, penalty = with_penalty(x, marks, future_marks)
        return error(forecast.to(y.dtype), y) + penalty.to(y.dtype)

    return loss_of


@torch.no_grad()
def evaluate_forecaster(model: nn.Module, windows: Windows, *, batch_size: int = _EVALUATION_BATCH) -> dict[str, float]:
    """MSE and MAE over all windows, steps and channels; no window is left out."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    means = RunningMeans(FORECAST_METRICS, device)
    for index in torch.arange(len(windows)).split(batch_size):
        x, y, *marks = inputs_and_targets(windows.batch(index))
        means.add(model(x, *marks), y)
    model.train(was_training)
    return means.means()
