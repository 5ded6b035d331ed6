import os
import signal
from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.support import message
from toa.nn import TemporalOperatorAttention
from toa.tasks import TrainingConfig, TrainingStopped, train


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.attention = TemporalOperatorAttention(8, 2, 6)
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.attention(x, x, x)[0])


def batch_at(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(4, 6, 8, generator=generator)
    return x, x.sum(-1, keepdim=True)


def run(model: Small, steps: int = 20, **options) -> Small:
    torch.manual_seed(1)
    train(
        model,
        options.pop("batch_at", batch_at),
        lambda x, y: (model(x) - y).square().mean(),
        TrainingConfig(steps=steps, warmup=5),
        key=options.pop("key", "run"),
        **options,
    )
    return model


def assert_same_weights(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def test_training_lowers_the_loss():
    losses: list[float] = []
    model = Small()
    model.attention.sor = None
    run(model, steps=200, observe=lambda done, loss: losses.append(loss))
    assert len(losses) == 20
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])


@pytest.mark.parametrize("stop_after", [1, 7, 19])
def test_a_run_stopped_by_a_signal_and_resumed_ends_with_the_same_weights(tmp_path, stop_after):
    whole = run(Small())

    def interrupting(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if step == stop_after - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch_at(step)

    path = tmp_path / "c.safetensors"
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TrainingStopped, match=f"after {stop_after} of 20"):
        run(Small(), checkpoint=path, batch_at=interrupting)
    assert signal.getsignal(signal.SIGTERM) == before
    # other weights and random state on purpose: all must come from the checkpoint
    resumed = Small()
    nn.init.zeros_(resumed.head.weight)
    assert_same_weights(run(resumed, checkpoint=path), whole)


def test_a_run_that_dies_between_checkpoints_ends_with_the_same_weights(tmp_path):
    whole = run(Small())
    path = tmp_path / "c.safetensors"

    def dying(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if step == 13:
            raise RuntimeError("killed")
        return batch_at(step)

    with pytest.raises(RuntimeError, match="killed"):
        run(Small(), checkpoint=path, batch_at=dying, save_every=4)
    assert_same_weights(run(Small(), checkpoint=path), whole)


def test_a_finished_run_is_not_trained_again(tmp_path):
    path = tmp_path / "c.safetensors"
    done = run(Small(), checkpoint=path)

    def forbidden(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("a finished run asked for a batch")

    assert_same_weights(run(Small(), checkpoint=path, batch_at=forbidden), done)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    run(Small(), steps=2, checkpoint=path, key="one")
    with pytest.raises(ValueError, match=message("must be a checkpoint of this run", "'two'", "'one'", "delete it")):
        run(Small(), steps=2, checkpoint=path, key="two")


def test_a_loss_that_is_not_finite_stops_the_run():
    model = Small()
    nn.init.constant_(model.head.bias, float("nan"))
    with pytest.raises(FloatingPointError, match=message("loss must be finite", "nan", "10 steps", "learning rate")):
        run(model)


def test_rate_warms_up_then_falls_to_zero():
    config = TrainingConfig(steps=100, learning_rate=1.0, warmup=10)
    rates = [config.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert rates[-1] < 1e-3
    assert TrainingConfig(steps=100, warmup=0, schedule="constant", learning_rate=0.5).rate(99) == 0.5


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"steps": 0}, ("steps must be at least 1, got 0",)),
        ({"learning_rate": 0.0}, ("learning_rate must be positive, got 0.0",)),
        ({"learning_rate": float("nan")}, ("learning_rate must be positive, got nan",)),
        ({"schedule": "linear"}, ("unknown schedule 'linear'", "constant, cosine")),
        ({"clip_norm": -1.0}, ("clip_norm must be positive, got -1.0",)),
    ],
)
def test_wrong_settings_are_refused(change, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        TrainingConfig(**{"steps": 5, **change})


@pytest.mark.gpu
def test_a_captured_step_trains_like_an_eager_one():
    def losses(cuda_graph: bool) -> list[float]:
        found: list[float] = []
        model = Small().cuda()
        model.attention.sor = None
        train(
            model,
            lambda step: tuple(x.cuda() for x in batch_at(step)),
            lambda x, y: (model(x) - y).square().mean(),
            TrainingConfig(steps=40, warmup=5),
            key="run",
            observe=lambda done, loss: found.append(loss),
            observe_every=1,
            cuda_graph=cuda_graph,
        )
        return found

    assert losses(True) == pytest.approx(losses(False), rel=1e-3)
