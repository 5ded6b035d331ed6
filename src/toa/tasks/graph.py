"""A training step as one CUDA graph."""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Generator, Tensor

Batch = tuple[Tensor, ...]
Step = Callable[..., Tensor]


class Capturer(Protocol):
    """What of CUDA a graphed step needs."""

    def run(self, step: Step, batch: Batch) -> Tensor:
        """Do a step as it is, in a way that a capture may follow."""
        ...

    def capture(self, step: Step, inputs: Batch, generators: Sequence[Generator]) -> tuple[Callable[[], None], Tensor]:
        """What replays a step on these inputs, and where it leaves its loss.

        Raises:
            RuntimeError: If the step cannot be captured; everything is as it was before.
        """
        ...


class GraphedStep:
    """Runs a step as it is a few times, and from then on as one CUDA graph wherever the shapes are those captured.

    Small models are bound by launches; a graph has one. A batch of another shape, an epoch's last one, runs as it is:
    weights and optimizer state are the same tensors either way. So does every batch where a capture fails, and a
    warning says why.

    Args:
        step: From a batch's tensors to a loss that needs no gradient any more. It must not wait for the device.
        generators: Sources of randomness in it, besides the device's default one.
        capturer: Streams and graphs; those of the current device if None.

    Attributes:
        failure: Why there is no graph; None if there is one, or may be yet.
    """

    # cuBLAS, autograd and the optimizer allocate on their first calls, which a capture must not
    _EAGER = 3

    def __init__(self, step: Step, generators: Sequence[Generator] = (), *, capturer: Capturer | None = None) -> None:
        self._step = step
        self._generators = generators
        self._capturer = CudaCapturer() if capturer is None else capturer
        self._calls = 0
        self._replay: Callable[[], None] | None = None
        self._inputs: Batch = ()
        self._loss = torch.empty(())
        self.failure: str | None = None

    def __call__(self, *batch: Tensor) -> Tensor:
        """Do one step."""
        if self._replay is None and self.failure is None:
            if self._calls == self._EAGER:
                self._capture(batch)
            self._calls += 1
        if self._replay is None or [x.shape for x in batch] != [place.shape for place in self._inputs]:
            return self._capturer.run(self._step, batch)
        for place, tensor in zip(self._inputs, batch, strict=True):
            place.copy_(tensor)
        self._replay()
        return self._loss

    def _capture(self, batch: Batch) -> None:
        self._inputs = tuple(tensor.clone() for tensor in batch)
        try:
            self._replay, self._loss = self._capturer.capture(self._step, self._inputs, self._generators)
        except RuntimeError as error:
            self._inputs = ()
            self.failure = _first_cause(error)
        if self.failure is not None:
            # outside of the handler, which would keep the tensors of the broken capture
            warnings.warn(
                f"the training step cannot be one CUDA graph and runs as it is, slower if it is small: {self.failure}",
                RuntimeWarning,
                stacklevel=3,
            )


def _first_cause(error: BaseException) -> str:
    """The first line of what went wrong first: ending a broken capture fails as well, and says nothing."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class CudaCapturer:
    """Streams and graphs of the current device."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def run(self, step: Step, batch: Batch) -> Tensor:
        """Do a step on a stream beside the current one."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = step(*batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def capture(self, step: Step, inputs: Batch, generators: Sequence[Generator]) -> tuple[Callable[[], None], Tensor]:
        """Capture a step; where that fails, leave nothing behind."""
        before, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        # tens of MiB a stream, and the graph has its own: a stream of eager steps gets them again when it needs them
        forget_workspaces()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                loss = step(*inputs)
        except RuntimeError:
            torch.cuda.set_stream(before)
            _forget_capture(before.device, pool, generators)
            raise
        return graph.replay, loss


def forget_workspaces() -> None:
    """Free the memory that cuBLAS keeps for each stream it has run on, as PyTorch's own graphs of compiled code do."""
    with contextlib.suppress(AttributeError):
        torch._C._cuda_clearCublasWorkspaces()


def _forget_capture(device: torch.device, pool: tuple[int, int], generators: Sequence[Generator]) -> None:
    """Undo what a capture that breaks off leaves half done.

    Ending one tells the allocator and the generators that it is over, but where the capture is broken it raises before:
    the allocator would refuse to empty its cache and the generators to draw another number. The pool itself is given
    back by the graph when it goes.
    """
    with contextlib.suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(device.index, pool)
    for generator in (torch.cuda.default_generators[device.index], *generators):
        # a copy of the state knows of no capture
        generator.graphsafe_set_state(generator.clone_state())
