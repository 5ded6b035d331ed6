"""Tests of compiled training; run by test_compile.py in a process without shape checks."""

import pytest
import torch

from tests.training.test_loop import Small, assert_same_weights, at_step, run
from toa.nn import TemporalOperatorAttention
from toa.ops.dropout import dropout
from toa.training import TrainingConfig, TrainingStopped

COMPILED = TrainingConfig(epochs=5, learning_rate=3e-3, schedule="type3", compile=True)


def without_randomness() -> Small:
    model = Small(dropout=0.0)
    torch.manual_seed(5)
    model.attention = TemporalOperatorAttention(8, 2, 6, sor=False)
    return model


def test_a_compiled_run_trains_like_another() -> None:
    eager = run(without_randomness())
    compiled = run(without_randomness(), config=COMPILED)
    assert list(eager.state_dict()) == list(compiled.state_dict())
    for one, other in zip(eager.state.history, compiled.state.history, strict=True):
        assert one["train"] == pytest.approx(other["train"], rel=1e-4)
        # the bias before a batch norm has rounding for a gradient, which Adam makes steps of
        assert one["validation"] == pytest.approx(other["validation"], rel=1e-2)


def test_a_compiled_run_stopped_and_resumed_ends_with_the_same_weights(tmp_path) -> None:
    whole = run(Small(), config=COMPILED)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, TrainingStopped)):
        run(Small(), at_step(9, stop), config=COMPILED, checkpoint=tmp_path / "c.safetensors")
    torch.manual_seed(77)
    assert_same_weights(run(Small(), config=COMPILED, checkpoint=tmp_path / "c.safetensors"), whole)


def test_compiled_dropout_keeps_the_same_share_and_scales_it() -> None:
    x = torch.ones(40, 8, 6, 7, requires_grad=True)
    found = torch.compile(dropout, fullgraph=True)(x, 0.25)
    kept = found != 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(found, kept / 0.75)
    (grad,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(grad, found.detach())
