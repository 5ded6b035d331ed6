"""A training step as one CUDA graph."""

import contextlib
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

Batch = tuple[Tensor, ...]
Step = Callable[..., Tensor]


class CudaCapturer:
    """Streams and graphs of the current device."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def run(self, step: Step, batch: Batch) -> Tensor:
        """Run a step eagerly on a side stream, so that a capture may follow."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = step(*batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def capture(self, step: Step, inputs: Batch, generators: Sequence[Generator]) -> tuple[Callable[[], None], Tensor]:
        """Return a function that replays the step on these inputs, and the tensor of its loss.

        Raises:
            RuntimeError: If the step cannot be captured; nothing has changed then.
        """
        before, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        # tens of MiB per stream; the graph has its own, and eager steps allocate theirs again when needed
        free_workspaces()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                loss = step(*inputs)
        except RuntimeError:
            torch.cuda.set_stream(before)
            _undo_capture(before.device, pool, generators)
            raise
        return graph.replay, loss


class GraphedStep:
    """Run a few steps eagerly, and all later steps of the same shapes as one CUDA graph.

    Small models are bound by kernel launches, and a graph needs one launch. A batch of another shape, such as the last
    of an epoch, runs eagerly on the same weights and optimizer state. If the capture fails, every batch runs eagerly
    and a warning gives the reason.

    Args:
        step: Maps the tensors of a batch to a loss without gradient. It must not synchronise with the device.
        generators: Random generators that it uses, beside the default one of the device.
        capturer: Streams and graphs; those of the current device if None.

    Attributes:
        failure: The reason why there is no graph; None if there is one or none was tried yet.
    """

    # cuBLAS, autograd and the optimizer allocate on their first calls, which a capture forbids
    _EAGER = 3

    def __init__(
        self, step: Step, generators: Sequence[Generator] = (), *, capturer: CudaCapturer | None = None
    ) -> None:
        self._step = step
        self._generators = generators
        self._capturer = CudaCapturer() if capturer is None else capturer
        self._calls = 0
        self._replay: Callable[[], None] | None = None
        self._inputs: Batch = ()
        self._loss = torch.empty(())
        self.failure: str | None = None

    def __call__(self, *batch: Tensor) -> Tensor:
        """Run one step."""
        if self._replay is None and self.failure is None:
            if self._calls == self._EAGER:
                self._capture(batch)
            self._calls += 1
        if self._replay is None or [x.shape for x in batch] != [static.shape for static in self._inputs]:
            return self._capturer.run(self._step, batch)
        for static, tensor in zip(self._inputs, batch, strict=True):
            static.copy_(tensor)
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
            # outside of the handler, which would keep the tensors of the failed capture alive
            warnings.warn(
                f"the training step cannot be a CUDA graph and runs eagerly, slower if it is small: {self.failure}",
                RuntimeWarning,
                stacklevel=3,
            )


def _first_cause(error: BaseException) -> str:
    """The first line of the first error: ending a failed capture raises another, meaningless one."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def free_workspaces() -> None:
    """Free the memory that cuBLAS keeps per stream, as PyTorch does for graphs of compiled code."""
    with contextlib.suppress(AttributeError):
        torch._C._cuda_clearCublasWorkspaces()


def _undo_capture(device: torch.device, pool: tuple[int, int], generators: Sequence[Generator]) -> None:
    """Clean up after a failed capture.

    Ending a capture releases the allocator and the generators, but ending a failed one raises before it does: the
    allocator could not empty its cache and the generators could not draw another number. The graph itself frees its
    pool when it is deleted.
    """
    with contextlib.suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(device.index, pool)
    for generator in (torch.cuda.default_generators[device.index], *generators):
        # a copied state belongs to no capture
        generator.graphsafe_set_state(generator.clone_state())
