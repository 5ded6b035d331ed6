"""A training step as one CUDA graph."""

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

Batch = tuple[Tensor, ...]


class GraphedStep:
    """Runs a step as it is a few times, and from then on as one CUDA graph wherever the shapes are those captured.

    Small models are bound by launches; a graph has one. A batch of another shape, an epoch's last one, runs as it is:
    weights and optimizer state are the same tensors either way.

    Args:
        step: From a batch's tensors to a loss that needs no gradient any more. It must not wait for the device.
        generators: Sources of randomness in it, besides the device's default one.
    """

    # cuBLAS, autograd and the optimizer allocate on their first calls, which a capture must not
    _EAGER = 3

    def __init__(self, step: Callable[..., Tensor], generators: Sequence[Generator] = ()) -> None:
        self._step = step
        self._generators = generators
        self._calls = 0
        self._stream = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: Batch = ()
        self._loss = torch.empty(())

    def __call__(self, *batch: Tensor) -> Tensor:
        """Do one step."""
        if self._graph is None:
            if self._calls < self._EAGER:
                self._calls += 1
                return self._run_eagerly(batch)
            self._capture(batch)
        if [tensor.shape for tensor in batch] != [place.shape for place in self._inputs]:
            return self._run_eagerly(batch)
        assert self._graph is not None
        for place, tensor in zip(self._inputs, batch, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._loss

    def _run_eagerly(self, batch: Batch) -> Tensor:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._step(*batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _capture(self, batch: Batch) -> None:
        self._inputs = tuple(tensor.clone() for tensor in batch)
        self._graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            self._graph.register_generator_state(generator)
        with torch.cuda.graph(self._graph):
            self._loss = self._step(*self._inputs)
