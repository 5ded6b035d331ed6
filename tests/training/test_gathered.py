"""A step that gathers its batches from indices, as in a CUDA graph."""

import pytest
import torch
from torch import Tensor, nn

from toa.training import TrainingConfig
from toa.training.distributed import make_fabric
from toa.training.step import ShuffledBatches, TrainingStep


class Rows:
    """Training rows with a random order per epoch."""

    def __init__(self) -> None:
        self.x = torch.randn(14, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.x)

    def epoch_order(self, seed: int, epoch: int) -> Tensor:
        return torch.randperm(14, generator=torch.Generator().manual_seed(seed + epoch))

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[index], self.x[index].sum(-1, True)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def learn(*, accumulate: int, gathers: bool) -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(0)
    rows = Rows()
    model = nn.Linear(4, 1)
    batches = ShuffledBatches(rows, 4, seed=3)  # type: ignore[arg-type]
    config = TrainingConfig(epochs=2, learning_rate=0.05, accumulate=accumulate)
    step = TrainingStep(model, batches, loss_of, config, make_fabric(torch.device("cpu")))
    step._gathered = batches if gathers else None
    for number in range(config.epochs * step.per_epoch):
        step.run(number)
    return model, step.loss_sum


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_that_gathers_its_batches_learns_the_same(accumulate):
    (found, loss), (expected, wanted) = (learn(accumulate=accumulate, gathers=gathers) for gathers in (True, False))
    assert torch.equal(found.weight, expected.weight)
    assert torch.equal(loss, wanted)
    assert float(loss) > 0.0


def test_a_batch_holds_the_rows_of_its_indices():
    rows = Rows()
    batches = ShuffledBatches(rows, 4, seed=3)  # type: ignore[arg-type]
    for step in range(4):
        assert torch.equal(batches.at(1, step)[0], rows.x[batches.indices(1, step)])
