import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import ROOT, message
from toa.nn import StochasticOperatorRegularization, TemporalOperatorAttention
from toa.training import TrainingConfig, TrainingState, TrainingStopped, make_fabric, time_steps, train
from toa.training.checkpoint import load_checkpoint
from toa.training.step import TrainingStep


class Small(nn.Module):
    state: TrainingState

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.attention = TemporalOperatorAttention(8, 2, 6)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attention(x, x, x)[0]
        return self.head(self.dropout(self.norm(mixed.mT).mT))


class Numbers:
    """Four batches per epoch, the last one shorter; `before` may interfere with a step."""

    def __init__(self, before=None, device: str = "cpu") -> None:
        self.before = before
        self.device = device
        self.steps_per_epoch = 4

    def at(self, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        if self.before is not None:
            self.before(epoch * 4 + step)
        generator = torch.Generator().manual_seed(epoch * 100 + step)
        x = torch.randn(2 if step == 3 else 4, 6, 8, generator=generator)
        return x.to(self.device), x.sum(-1, keepdim=True).to(self.device)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def validate(model: nn.Module) -> float:
    x, y = Numbers().at(99, 0)
    return float(loss_of(model, x, y))


def run(model: Small, before=None, *, config: TrainingConfig | None = None, **options) -> Small:
    torch.manual_seed(1)
    config = TrainingConfig(epochs=5, learning_rate=3e-3, schedule="type3") if config is None else config
    options = {"key": "run", "validate": validate, **options}
    fabric = make_fabric(torch.device("cpu"))
    model.state = train(model, Numbers(before), loss_of, config, fabric=fabric, **options)
    return model


def assert_same_weights(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def at_step(wanted: int, act):
    return lambda step: act() if step == wanted else None


def test_training_lowers_the_loss():
    model = Small(dropout=0.0)
    model.attention.sor = None
    run(model, config=TrainingConfig(epochs=40, learning_rate=1e-2))
    losses = [entry["train"] for entry in model.state.history]
    assert len(losses) == 40
    assert losses[-1] < 0.3 * losses[0]


def test_the_steps_that_are_timed_are_those_of_training():
    config = TrainingConfig(epochs=5, learning_rate=3e-3, schedule="type3")
    trained = run(Small(), config=config, validate=None)
    timed = Small()
    torch.manual_seed(1)
    seconds = time_steps(timed, Numbers(), loss_of, config, fabric=make_fabric(torch.device("cpu")), steps=17, warmup=3)
    assert_same_weights(timed, trained)
    assert len(seconds) == 17
    assert min(seconds) > 0.0


def test_a_failed_step_leaves_no_gradients_to_the_next(monkeypatch):
    def refuse() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    def gradients(breaks: bool) -> list[Tensor]:
        model = Small(dropout=0.0)
        config = TrainingConfig(epochs=1)
        fabric = make_fabric(torch.device("cpu"))
        taken = TrainingStep(model, Numbers(), loss_of, config, fabric)
        found: list[Tensor] = []
        if breaks:
            monkeypatch.setattr(taken.optimizer, "step", refuse)
            with pytest.raises(RuntimeError, match="not permitted"):
                taken.run(0)
        monkeypatch.setattr(
            taken.optimizer, "step", lambda: found.extend(x.grad for x in model.parameters() if x.grad is not None)
        )
        torch.manual_seed(1)
        taken.run(1)
        return found

    broken, plain = gradients(True), gradients(False)
    assert plain
    assert all(torch.equal(one, other) for one, other in zip(broken, plain, strict=True))


def test_timing_no_steps_raises_an_error():
    fabric = make_fabric(torch.device("cpu"))
    with pytest.raises(ValueError, match=message("steps must be at least 1, got 0")):
        time_steps(Small(), Numbers(), loss_of, TrainingConfig(), fabric=fabric, steps=0, warmup=0)


@pytest.mark.parametrize("stop_at", [0, 3, 6, 18])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_by_a_signal_and_resumed_ends_with_the_same_weights(tmp_path, stop_at, number):
    whole = run(Small())
    path = tmp_path / "c.safetensors"
    handler = signal.getsignal(number)
    with pytest.raises(TrainingStopped, match=f"after {stop_at + 1} of 20"):
        run(Small(), at_step(stop_at, lambda: os.kill(os.getpid(), number)), checkpoint=path)
    assert signal.getsignal(number) == handler
    # other weights and random state on purpose: all must come from the checkpoint
    resumed = Small()
    nn.init.zeros_(resumed.head.weight)
    run(resumed, checkpoint=path)
    assert_same_weights(resumed, whole)
    assert [{**e} for e in resumed.state.history] == whole.state.history


def test_a_run_that_dies_between_checkpoints_ends_with_the_same_weights(tmp_path):
    whole = run(Small())
    path = tmp_path / "c.safetensors"

    def die() -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run(Small(), at_step(13, die), checkpoint=path, save_every=3, save_share=1.0)
    facts: Any = load_checkpoint(path).facts
    assert facts["state"]["step"] == 12
    assert_same_weights(run(Small(), checkpoint=path), whole)


def test_checkpoints_take_no_more_than_their_share_of_the_time(tmp_path, monkeypatch):
    clock = [0.0]
    saved = []

    def save(path: Path, tensors, facts) -> None:
        saved.append((facts["state"]["step"], clock[0]))
        clock[0] += 4.0

    monkeypatch.setattr("toa.training.loop.save_checkpoint", save)
    monkeypatch.setattr("toa.training.loop.time.perf_counter", lambda: clock[0])

    def tick(step: int) -> None:
        clock[0] += 1.0

    run(Small(), tick, checkpoint=tmp_path / "c", save_every=1, save_share=0.4)
    # after the first step, from 6 s after each on, and at the end
    assert saved == [(1, 1.0), (7, 11.0), (13, 21.0), (19, 31.0), (20, 36.0)]


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_of_the_time_outside_of_its_bounds_raises_an_error(share):
    with pytest.raises(ValueError, match=message("save_share", "above 0", "at most 1", str(share))):
        run(Small(), save_share=share)


def test_a_layers_own_generator_is_resumed_too(tmp_path):
    def model() -> Small:
        small = Small()
        small.attention.sor = StochasticOperatorRegularization(generator=torch.Generator().manual_seed(8))
        return small

    whole = run(model())
    path = tmp_path / "c.safetensors"
    with pytest.raises(TrainingStopped):
        run(model(), at_step(6, lambda: os.kill(os.getpid(), signal.SIGTERM)), checkpoint=path)
    assert_same_weights(run(model(), checkpoint=path), whole)


def test_a_checkpoint_of_other_weights_raises_an_error(tmp_path):
    path = tmp_path / "c.safetensors"
    run(Small(), checkpoint=path)
    other = Small()
    other.head = nn.Linear(8, 2)
    with pytest.raises(ValueError, match=message("must hold the weights of this model", "head.weight", "delete it")):
        run(other, checkpoint=path)


def test_a_finished_run_is_not_trained_again(tmp_path):
    path = tmp_path / "c.safetensors"
    done = run(Small(), checkpoint=path)

    def forbidden(step: int) -> None:
        raise AssertionError("a finished run asked for a batch")

    assert_same_weights(run(Small(), forbidden, checkpoint=path), done)


def test_the_best_weights_by_validation_are_kept():
    losses = iter([3.0, 1.0, 2.0, 1.5, 4.0])
    seen: list[dict[str, Tensor]] = []

    def scripted(model: nn.Module) -> float:
        seen.append({n: v.clone() for n, v in model.state_dict().items()})
        return next(losses)

    model = run(Small(), validate=scripted)
    assert model.state.best == 1.0
    assert model.state.best_epoch == 2
    for name, value in model.state_dict().items():
        assert torch.equal(value, seen[1][name]), name


@pytest.mark.parametrize("validate_start", [True, False])
def test_the_weights_before_the_first_epoch_count_if_asked(tmp_path, validate_start):
    start = {name: value.clone() for name, value in Small().state_dict().items()}
    losses = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    config = TrainingConfig(epochs=5, patience=3, validate_start=validate_start)
    model = run(Small(), config=config, validate=lambda model: next(losses), checkpoint=tmp_path / "checkpoint")
    assert (model.state.best, model.state.best_epoch) == (1.0, 0 if validate_start else 1)
    assert len(model.state.history) == (3 if validate_start else 4)
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items()) == validate_start
    again = run(Small(), config=config, validate=lambda model: 0.0, checkpoint=tmp_path / "checkpoint")
    assert again.state == model.state


def test_a_tie_counts_as_an_improvement_and_patience_ends_the_run():
    losses = iter([1.0, 1.0, 2.0, 2.0, 0.0])
    config = TrainingConfig(epochs=5, patience=2)
    model = run(Small(), config=config, validate=lambda model: next(losses))
    assert model.state.best_epoch == 2
    assert len(model.state.history) == 4


def test_patience_does_not_end_a_run_without_validation():
    model = run(Small(), config=TrainingConfig(epochs=5, patience=2), validate=None)
    assert len(model.state.history) == 5


def test_training_ends_when_its_loss_is_low_enough():
    whole = run(Small(), config=TrainingConfig(epochs=4, learning_rate=1e-2)).state
    losses = [entry["train"] for entry in whole.history]
    config = TrainingConfig(epochs=4, learning_rate=1e-2, least_loss=max(losses[1:3]))
    assert len(run(Small(), config=config).state.history) == 2
    with pytest.raises(ValueError, match="least_loss must be at least 0"):
        TrainingConfig(least_loss=-1.0)


def test_validation_sees_evaluation_mode_and_no_gradients():
    modes = []

    def spying(model: nn.Module) -> float:
        modes.append((model.training, torch.is_grad_enabled()))
        return 0.0

    model = run(Small(), validate=spying)
    assert set(modes) == {(False, False)}
    assert model.training


def test_accumulated_batches_make_the_step_of_their_mean():
    plain, gathered = Small(dropout=0.0), Small(dropout=0.0)
    for model in (plain, gathered):
        model.attention.sor = None
        # statistics of a batch differ from those of its parts
        model.norm = nn.Identity()  # type: ignore[assignment]

    class Whole:
        steps_per_epoch = 1

        def at(self, epoch: int, step: int) -> tuple[Tensor, Tensor]:
            parts = [Numbers().at(epoch, i) for i in range(2)]
            return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    class Parts:
        steps_per_epoch = 2

        def at(self, epoch: int, step: int) -> tuple[Tensor, Tensor]:
            return Numbers().at(epoch, step)

    fabric = make_fabric(torch.device("cpu"))
    train(plain, Whole(), loss_of, TrainingConfig(epochs=3), fabric=fabric, key="a")
    train(gathered, Parts(), loss_of, TrainingConfig(epochs=3, accumulate=2), fabric=fabric, key="b")
    for x, y in zip(plain.parameters(), gathered.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_of_another_run_raises_an_error(tmp_path):
    path = tmp_path / "c.safetensors"
    run(Small(), checkpoint=path, key="one")
    with pytest.raises(ValueError, match=message("must be a checkpoint of this run", "'two'", "'one'", "delete")):
        run(Small(), checkpoint=path, key="two")


def test_a_loss_that_is_not_finite_stops_the_run():
    model = Small()
    nn.init.constant_(model.head.bias, float("nan"))
    with pytest.raises(FloatingPointError, match=message("loss must be finite", "nan", "learning rate")):
        run(model)


PROGRAM = """
import sys, torch
from pathlib import Path
from tests.training.test_loop import Small, run
from toa.training import TrainingConfig
torch.set_num_threads(1)
model = run(Small(), config=TrainingConfig(epochs=500, learning_rate=3e-3), checkpoint=Path(sys.argv[1]), save_every=2,
            save_share=1.0)
"""


def start(path: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TOA_NO_SHAPE_CHECKS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], cwd=ROOT, env=environment)


def written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.slow
def test_a_run_killed_at_twenty_moments_resumes_to_the_same_weights(tmp_path):
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    assert start(whole).wait() == 0
    chance = random.Random(0)
    for _ in range(20):
        process = start(killed)
        before = written(killed)
        while written(killed) == before:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.001)
        # a few steps and checkpoints later, at any point of either
        time.sleep(chance.uniform(0.0, 0.1))
        process.kill()
        process.wait()
        load_checkpoint(killed)
    assert start(killed).wait() == 0
    expected, got = load_checkpoint(whole).tensors, load_checkpoint(killed).tensors
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        assert torch.equal(value, got[name]), name


@pytest.mark.gpu
def test_a_captured_step_trains_like_an_eager_one():
    def losses(cuda_graph: bool) -> list[float]:
        model = Small(dropout=0.0)
        model.attention.sor = None
        state = train(
            model,
            Numbers(device="cuda"),
            loss_of,
            TrainingConfig(epochs=10, learning_rate=1e-2),
            fabric=make_fabric(torch.device("cuda")),
            key="run",
            cuda_graph=cuda_graph,
        )
        return [entry["train"] for entry in state.history]

    assert losses(True) == pytest.approx(losses(False), rel=1e-3)


@pytest.mark.gpu
def test_a_captured_run_can_be_stopped_and_resumed(tmp_path):
    path = tmp_path / "c.safetensors"

    def go(before=None) -> list[float]:
        model = Small()
        state = train(
            model,
            Numbers(before, device="cuda"),
            loss_of,
            TrainingConfig(epochs=10, learning_rate=1e-2),
            fabric=make_fabric(torch.device("cuda")),
            key="run",
            checkpoint=path,
        )
        return [entry["train"] for entry in state.history]

    with pytest.raises(TrainingStopped):
        go(at_step(21, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert len(go()) == 10
