import warnings

import pytest
import torch
from torch import Tensor, nn

from tests.support import message
from toa.training.step import GraphedStep


class FakeGraphedStep(GraphedStep):
    """Runs and replays a step on a CPU, and fails to capture it if it has a reason to."""

    def __init__(self, step, reason: str | None = None) -> None:
        super().__init__(step)
        self.reason = reason
        self.done: list[str] = []

    def _run(self, batch):
        self.done.append("run")
        return self._step(*batch)

    def _capture(self):
        self.done.append("capture")
        if self.reason is not None:
            try:
                raise RuntimeError(f"{self.reason}\nlong advice")
            finally:
                # as PyTorch ends a capture that is broken
                raise RuntimeError("operation failed due to a previous error during capture")
        loss = torch.zeros(())

        def replay() -> None:
            self.done.append("replay")
            loss.copy_(self._step(*self._inputs))

        return replay, loss


def total(x: Tensor) -> Tensor:
    return x.sum()


def test_a_step_is_captured_after_three_and_replayed_on_new_numbers():
    step = FakeGraphedStep(total)
    assert [step(torch.full((2,), float(i))).item() for i in range(6)] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert step.done == ["run"] * 3 + ["capture"] + ["replay"] * 3
    assert step.failure is None


def test_a_batch_of_another_shape_runs_eagerly():
    step = FakeGraphedStep(total)
    for _ in range(4):
        step(torch.ones(4))
    assert step(torch.ones(3)).item() == 3.0
    assert step(torch.ones(4)).item() == 4.0
    assert step.done[-3:] == ["replay", "run", "replay"]


def test_a_step_that_cannot_be_captured_runs_eagerly_with_one_warning():
    step = FakeGraphedStep(total, "operation not permitted when stream is capturing")
    for _ in range(3):
        step(torch.ones(2))
    with pytest.warns(RuntimeWarning, match=message("CUDA graph", "not permitted when")) as said:
        assert step(torch.full((2,), 5.0)).item() == 10.0
    assert len(said) == 1
    assert step.failure == "operation not permitted when stream is capturing"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step(torch.ones(2)).item() == 2.0
    # the failing capture was tried once, and its batch done once
    assert step.done == ["run"] * 3 + ["capture"] + ["run"] * 2


def test_an_error_of_the_step_itself_is_not_taken_for_a_failed_capture():
    def wrong(x: Tensor) -> Tensor:
        raise ValueError("bad batch")

    step = FakeGraphedStep(wrong)
    with pytest.raises(ValueError, match="bad batch"):
        step(torch.ones(2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_continues_unchanged_after_a_failed_capture():
    own = torch.Generator(device="cuda")

    def losses(*, waits: bool, graphed: bool) -> list[float]:
        torch.manual_seed(3)
        own.manual_seed(4)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True, capturable=True)

        def plain(x: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            noise = torch.rand(x.shape, device="cuda", generator=own)
            loss = model(x + noise).square().mean()
            if waits:
                loss.item()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = GraphedStep(plain, [own]) if graphed else plain
        x = torch.ones(16, 8, device="cuda")
        found = [step(x).item() for _ in range(8)]
        assert not isinstance(step, GraphedStep) or (step.failure is not None) == waits
        return found

    expected = losses(waits=True, graphed=False)
    with pytest.warns(RuntimeWarning, match="CUDA graph"):
        assert losses(waits=True, graphed=True) == pytest.approx(expected, rel=1e-5)
    # nothing of the failed capture is left: stream, allocator, generators, and the next capture
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.empty_cache()
    assert torch.rand(4, device="cuda").isfinite().all()
    assert torch.tensor(losses(waits=False, graphed=True)).isfinite().all()
