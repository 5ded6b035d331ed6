"""One training step: gradients of one or more batches, and an update of the weights."""

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from toa.nn import own_generators
from toa.tasks.batches import Batches, ShuffledBatches
from toa.tasks.distributed import Ranks
from toa.tasks.graph import Batch, GraphedStep
from toa.tasks.optimization import TrainingConfig, make_optimizer, set_rates

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class TrainingStep:
    """The steps of one training run; the arguments are those of `toa.tasks.train`.

    Attributes:
        model, config, fabric: As given.
        wrapped: The model as Fabric runs it, compiled if the config asks for it.
        per_epoch: Steps per epoch.
        optimizer: The optimizer.
        ranks: The processes that train together.
        generators: Random generators of the model's layers.
        loss_sum: Sum of the losses of this epoch, on the device.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        loss_of: Callable[..., Tensor],
        config: TrainingConfig,
        fabric: "Fabric",
    ) -> None:
        self.model, self._batches, self._loss_of = model, batches, loss_of
        self.config, self.fabric = config, fabric
        self.wrapped = fabric.setup_module(_compiled(model, fabric.device) if config.compile else model)
        if hasattr(model, "forecast_and_penalty"):
            self.wrapped.mark_forward_method("forecast_and_penalty")
        # the last step of an epoch may accumulate fewer batches
        self.per_epoch = -(-batches.steps_per_epoch // config.accumulate)
        self.optimizer = make_optimizer(model, config, fabric.device)
        self.ranks = Ranks(fabric)
        self.generators = own_generators(model)
        self.loss_sum = torch.zeros((), device=fabric.device)
        self._one = torch.ones((), device=fabric.device)
        self._width, self._parts = 1, [(1.0, 1)]
        # batches that the step gathers itself, from indices
        self._gathered: ShuffledBatches | None = None
        self._call: Callable[..., Tensor] = self.eager

    def use_graph(self) -> None:
        """Run the next steps as one CUDA graph, if there is one CUDA device, which must be the current one."""
        if self.fabric.device.type != "cuda" or not self.ranks.alone:
            return
        if isinstance(self._batches, ShuffledBatches) and self._batches.indices(0, 0).device.type == "cuda":
            self._gathered = self._batches
        self._call = GraphedStep(self.eager, self.generators)

    def run(self, step: int) -> Tensor:
        """Run a step, counted over all epochs; its loss stays on the device."""
        set_rates(self.optimizer, self.config, step, self.per_epoch)
        return self._call(*self._inputs(*divmod(step, self.per_epoch)))

    def _inputs(self, epoch: int, step: int) -> Batch:
        """This rank's tensors of all batches of a step, concatenated; or their indices if the step gathers them."""
        first = step * self.config.accumulate
        indices = range(first, min(first + self.config.accumulate, self._batches.steps_per_epoch))
        if self._gathered is not None:
            self._parts = [(1.0, 1)] * len(indices)
            return tuple(self._gathered.indices(epoch, index) for index in indices)
        shares = [self.ranks.share(self._batches.at(epoch, index)) for index in indices]
        self._width = len(shares[0].tensors)
        self._parts = [(share.weight, share.copies) for share in shares]
        return tuple(tensor for share in shares for tensor in share.tensors)

    def _split(self, inputs: Batch) -> list[Batch]:
        """The batches of a step, from the result of `_inputs`."""
        if self._gathered is not None:
            return [self._gathered.tensors(indices) for indices in inputs]
        return [inputs[i : i + self._width] for i in range(0, len(inputs), self._width)]

    def eager(self, *inputs: Tensor) -> Tensor:
        """Gradients of one or more batches, and a step of the optimizer."""
        # a failed capture leaves gradients behind
        self.optimizer.zero_grad(set_to_none=True)
        parts, losses = self._split(inputs), list[Tensor]()
        for number, (part, (weight, copies)) in enumerate(zip(parts, self._parts, strict=True), 1):
            self.ranks.copies = copies
            # ranks exchange gradients once, with the last part
            local = not self.ranks.alone and number < len(parts)
            with self.fabric.no_backward_sync(self.wrapped) if local else nullcontext():
                loss = self._loss_of(self.wrapped, *part)
                if weight != len(parts):
                    loss = loss * (weight / len(parts))
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
    """Compile a model at its first call.

    Raises:
        ValueError: If the device is a CPU and there is no C++ compiler.
    """
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    if device.type == "cpu" and not any(map(shutil.which, filter(None, names))):
        raise ValueError(
            "training.compile must be false on a CPU without a C++ compiler, got true; install g++, set CXX "
            "to another one, or leave it out."
        )
    return cast(nn.Module, torch.compile(model))
