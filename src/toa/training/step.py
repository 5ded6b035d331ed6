"""One training step: its batches, their gradients, an update of the weights, and all of it as one CUDA graph."""

import contextlib
import itertools
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Generator, Tensor, nn

from toa._checks import ArgumentError, check_at_least
from toa.data.classification import Cases, FoldCases
from toa.data.windows import SeriesWindows, Windows
from toa.nn import own_generators
from toa.training.distributed import Batch, share_batch
from toa.training.optimization import TrainingConfig, make_optimizer, set_rates

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Step = Callable[..., Tensor]


class Batches(Protocol):
    """Training batches. A batch depends only on epoch and step, so a resumed run sees the same batches."""

    steps_per_epoch: int

    def at(self, epoch: int, step: int) -> tuple[Tensor, ...]:
        """The tensors of a step, on the training device."""
        ...


class ShuffledBatches:
    """Shuffled windows or cases; a batch depends only on the seed, the epoch and the step."""

    def __init__(
        self,
        source: Cases | FoldCases | SeriesWindows | Windows,
        batch_size: int,
        *,
        seed: int,
        drop_last: bool = False,
    ) -> None:
        check_at_least("batch_size", batch_size, 1)
        self._source = source
        self._size = batch_size
        self._seed = seed
        self._order: tuple[int, Tensor] | None = None
        full, rest = divmod(len(source), self._size)
        self.steps_per_epoch = full + bool(rest and not drop_last)
        if self.steps_per_epoch == 0:
            raise ArgumentError(
                "batch_size",
                f"be at most the number of training windows, {len(source)}, where the last batch is dropped",
                self._size,
                "lower it, or set drop_last=false",
            )

    def at(self, epoch: int, step: int) -> tuple[Tensor, ...]:
        """The tensors of a step."""
        return self.tensors(self.indices(epoch, step))

    def tensors(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The tensors of some windows or cases: inputs, targets and, if any, marks or a mask."""
        batch = self._source.batch(indices)
        return (batch,) if isinstance(batch, Tensor) else tuple(part for part in batch if part is not None)

    def indices(self, epoch: int, step: int) -> Tensor:
        """Indices of a step's windows or cases, on the device of the source."""
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._source.epoch_order(self._seed, epoch))
        return self._order[1][step * self._size : (step + 1) * self._size]


class TrainingStep:
    """The steps of one training run; the arguments are those of `toa.training.train`.

    Attributes:
        model, config, fabric: As given.
        wrapped: The model as Fabric runs it, compiled if the config asks for it.
        generators: Random generators of the model's layers.
        loss_sum: Sum of the losses of this epoch, on the device.
        alone: Whether this is the only rank.
        copies: Number of ranks that compute on the same rows now.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        loss_of: Callable[..., Tensor],
        config: TrainingConfig,
        fabric: "Fabric",
    ) -> None:
        self.model = model
        self._batches = batches
        self._loss_of = loss_of
        self.config = config
        self.fabric = fabric
        self.wrapped = fabric.setup_module(_compiled(model, fabric.device) if config.compile else model)
        if hasattr(model, "forecast_and_penalty"):
            self.wrapped.mark_forward_method("forecast_and_penalty")
        # the last step of an epoch may accumulate fewer batches
        self.per_epoch = -(-batches.steps_per_epoch // config.accumulate)
        self.optimizer = make_optimizer(model, config, fabric.device)
        self.alone = fabric.world_size == 1
        self.copies = 1
        self.generators = own_generators(model)
        self.loss_sum = torch.zeros((), device=fabric.device)
        self._one = torch.ones((), device=fabric.device)
        # per batch of the next step: number of tensors, weight of its loss, number of ranks with the same rows
        self._parts: list[tuple[int, float, int]] = []
        # batches that the step gathers itself, from indices
        self._gathered: ShuffledBatches | None = None
        self._call: Callable[..., Tensor] = self.eager

    @contextlib.contextmanager
    def on_device(self, *, graph: bool = True) -> Iterator[None]:
        """Make a CUDA device the current one, which streams and graphs belong to.

        With `graph`, the steps run as one CUDA graph, if there is one CUDA device.
        """
        if self.fabric.device.type != "cuda":
            yield
            return
        with torch.cuda.device(self.fabric.device):
            if graph and self.alone:
                if isinstance(self._batches, ShuffledBatches) and self._batches.indices(0, 0).device.type == "cuda":
                    self._gathered = self._batches
                self._call = GraphedStep(self.eager, self.generators)
            yield

    def run(self, step: int) -> Tensor:
        """Run a step, counted over all epochs; its loss stays on the device."""
        set_rates(self.optimizer, self.config, step, self.per_epoch)
        epoch = step // self.per_epoch
        first = step % self.per_epoch * self.config.accumulate
        indices = range(first, min(first + self.config.accumulate, self._batches.steps_per_epoch))
        gathered = self._gathered
        at = self._batches.at if gathered is None else lambda *place: (gathered.indices(*place),)
        shares = [share_batch(self.fabric, at(epoch, index)) for index in indices]
        self._parts = [(len(batch), weight, copies) for batch, weight, copies in shares]
        return self._call(*(tensor for batch, *_ in shares for tensor in batch))

    def eager(self, *inputs: Tensor) -> Tensor:
        """Gradients of one or more batches, and a step of the optimizer.

        `inputs` are this rank's tensors of all batches, one after another, or their indices if the step gathers them.
        """
        # a failed capture leaves gradients behind
        self.optimizer.zero_grad(set_to_none=True)
        rest = iter(inputs)
        losses = list[Tensor]()
        count = len(self._parts)
        for number, (width, weight, copies) in enumerate(self._parts, 1):
            batch = tuple(itertools.islice(rest, width))
            self.copies = copies
            if self._gathered is not None:
                batch = self._gathered.tensors(*batch)
            # ranks exchange gradients once, with the last batch
            with self.fabric.no_backward_sync(self.wrapped, enabled=number < count):
                loss = self._loss_of(self.wrapped, *batch)
                if weight != count:
                    loss = loss * (weight / count)
                self.fabric.backward(loss, self._one.to(loss.dtype))
            losses.append(loss.detach())
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        # freed here: a graph would otherwise keep the gradients of the last eager step beside its own
        self.optimizer.zero_grad(set_to_none=True)
        total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        self.loss_sum += total
        return total


def _compiled(model: nn.Module, device: torch.device) -> nn.Module:
    """Compile a model at its first call."""
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    if device.type == "cpu" and not any(map(shutil.which, filter(None, names))):
        raise ArgumentError(
            "training.compile",
            "be false on a CPU without a C++ compiler",
            "true",
            "install g++, set CXX to another one, or leave it out",
        )
    return cast(nn.Module, torch.compile(model))


class GraphedStep:
    """Run a few steps eagerly, and all later steps of the same shapes as one CUDA graph.

    Small models are bound by kernel launches, and a graph needs one launch. A batch of another shape, such as the last
    of an epoch, runs eagerly on the same weights and optimizer state. If the capture fails, every batch runs eagerly
    and a warning gives the reason.

    Args:
        step: Maps the tensors of a batch to a loss without gradient. It must not synchronise with the device.
        generators: Random generators that it uses, beside the default one of the device.

    Attributes:
        failure: The reason why there is no graph; None if there is one or none was tried yet.
    """

    # cuBLAS, autograd and the optimizer allocate on their first calls, which a capture forbids
    _EAGER = 3

    def __init__(self, step: Step, generators: Sequence[Generator] = ()) -> None:
        self._step = step
        self._generators = generators
        self._calls = 0
        self._replay: Callable[[], None] | None = None
        self._inputs: Batch = ()
        self._loss = torch.empty(())
        self.failure: str | None = None

    def __call__(self, *batch: Tensor) -> Tensor:
        """Run one step."""
        if self._replay is None and self.failure is None:
            if self._calls == self._EAGER:
                self._try_capture(batch)
            self._calls += 1
        if self._replay is None or [x.shape for x in batch] != [static.shape for static in self._inputs]:
            return self._run(batch)
        for static, tensor in zip(self._inputs, batch, strict=True):
            static.copy_(tensor)
        self._replay()
        return self._loss

    def _try_capture(self, batch: Batch) -> None:
        self._inputs = tuple(tensor.clone() for tensor in batch)
        try:
            self._replay, self._loss = self._capture()
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

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    def _run(self, batch: Batch) -> Tensor:
        """Run a step eagerly on a side stream, so that a capture may follow."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._step(*batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _capture(self) -> tuple[Callable[[], None], Tensor]:
        """Return a function that replays the step on `_inputs`, and the tensor of its loss."""
        before = torch.cuda.current_stream()
        pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        # tens of MiB per stream; the graph has its own, and eager steps allocate theirs again when needed
        free_workspaces()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                loss = self._step(*self._inputs)
        except RuntimeError:
            torch.cuda.set_stream(before)
            _undo_capture(before.device, pool, self._generators)
            raise
        return graph.replay, loss


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
