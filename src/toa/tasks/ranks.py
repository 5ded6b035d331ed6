"""Processes that train one model together, its ranks: shares of a batch, and sums over all ranks.

The batch of a step is the protocol's, however many ranks share it. Shares need not be equal: losses are weighted, so
that their mean over ranks is the mean over the batch, and so are, by DDP's averaging, the gradients. Batch norms see
the statistics of the whole batch. What a model computes from a batch beyond that (DUET's penalty on its experts,
Autoformer's delays in training) it computes from each rank's share.

Dropout and SOR draw on each rank for itself: a step has as many draws of SOR's rate and mask as there are ranks.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

# the class of all batch norms has no public name
from torch.nn.modules.batchnorm import _BatchNorm

from toa._checks import check_at_least
from toa.nn import TokenBatchNorm
from toa.tasks.graph import Batch

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# between the seeds of two ranks
_APART = 1_000_003


def settle_devices(devices: int | None, num_nodes: int | None) -> tuple[int, int]:
    """How many devices on each of how many machines train together: as asked for, or as torchrun has started them.

    Raises:
        ValueError: If torchrun has started another number, or machines cannot find one another.
    """
    for name, value in (("devices", devices), ("num_nodes", num_nodes)):
        if value is not None:
            check_at_least(name, value, 1)
    if "LOCAL_WORLD_SIZE" not in os.environ:
        if (num_nodes or 1) > 1 and not {"MASTER_ADDR", "NODE_RANK"} <= os.environ.keys():
            raise ValueError(
                f"MASTER_ADDR and NODE_RANK must be set on each of num_nodes={num_nodes} machines, got a machine "
                "without; start the command by torchrun, which sets them."
            )
        return devices or 1, num_nodes or 1
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    started = {"devices": local, "num_nodes": int(os.environ["WORLD_SIZE"]) // local}
    for name, value in (("devices", devices), ("num_nodes", num_nodes)):
        if value is not None and value != started[name]:
            raise ValueError(f"{name} must be {started[name]}, as torchrun has started it, got {value}; leave it out.")
    return started["devices"], started["num_nodes"]


class Share(NamedTuple):
    """What a rank gets of a batch.

    Attributes:
        weight: Of its loss in the mean over ranks.
        copies: How many ranks have the same rows.
    """

    tensors: Batch
    weight: float
    copies: int


class Ranks:
    """The ranks of a fabric, seen from one of them. Where there is one alone, everything is what it was.

    Attributes:
        alone: Whether there is no other.
        first: Whether this is the first.
        copies: How many ranks have the rows that are computed on now.
    """

    def __init__(self, fabric: "Fabric") -> None:
        self._fabric = fabric
        self._rank, self._count = fabric.global_rank, fabric.world_size
        self.alone = self._count == 1
        self.first = self._rank == 0
        self.copies = 1

    def share(self, batch: Batch) -> Share:
        """This rank's part of a batch; one of fewer rows than there are ranks goes whole to each."""
        rows = len(batch[0])
        if self.alone or rows < self._count:
            return Share(batch, 1.0, self._count)
        first, last = self._rank * rows // self._count, (self._rank + 1) * rows // self._count
        part = tuple(tensor[first:last] for tensor in batch)
        return Share(part, (last - first) * self._count / rows, 1)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over ranks."""
        return value if self.alone else _total(value) / self._count

    def agree(self, flag: bool, *, ask: bool) -> bool:
        """Whether a flag is set on any rank; of several, none knows of the others' unless all `ask`."""
        if self.alone:
            return flag
        return ask and bool(_total(torch.tensor(float(flag), device=self._fabric.device)))

    def by_first(self, compute: Callable[[], float]) -> float:
        """What the first rank computes; the others wait for it."""
        if self.alone:
            return compute()
        value = compute() if self.first else 0.0
        return float(_total(torch.tensor(value, dtype=torch.float64, device=self._fabric.device)))

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Tensors of every rank, which have the same shapes, on the CPU."""
        if self.alone:
            return [dict(tensors)]
        found: list[dict[str, Tensor]] = [{} for _ in range(self._count)]
        for name, value in tensors.items():
            here = value.to(self._fabric.device)
            parts = [torch.empty_like(here) for _ in found]
            torch.distributed.all_gather(parts, here)
            for one, part in zip(found, parts, strict=True):
                one[name] = part.cpu()
        return found

    def check_same(self, step: int, where: object) -> None:
        """Refuse ranks that stand at different steps."""
        found = [int(one["step"]) for one in self.gather({"step": torch.tensor(step)})]
        if len(set(found)) > 1:
            raise ValueError(
                f"{where} must be the same file for all ranks, got steps {', '.join(map(str, found))}; choose an "
                "output folder that all machines share."
            )

    def draw_apart(self, generators: Sequence[Generator], step: int) -> None:
        """Let the randomness of ranks but the first be their own."""
        if self.first:
            return
        shift = self._rank * _APART + step
        torch.manual_seed((torch.initial_seed() + shift) % 2**63)
        for generator in generators:
            generator.manual_seed((generator.initial_seed() + shift) % 2**63)

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if not self.alone:
            self._fabric.barrier()


@contextmanager
def joint_statistics(model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Let batch norms in training see the whole batch of all ranks, while the block runs."""
    norms = [] if ranks.alone else [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.forward = partial(_normalise, norm, ranks)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


class _Sum(torch.autograd.Function):
    """The sum over ranks; a gradient is that of the sum of all ranks' losses."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return _total(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _total(grads[0])


def _total(value: Tensor) -> Tensor:
    total = value.detach().clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(total)
    return total


def _normalise(norm: _BatchNorm, ranks: Ranks, x: Tensor, *padding: Tensor | None) -> Tensor:
    """A batch norm's forward, with mean and variance over all ranks."""
    if not norm.training:
        return type(norm).forward(norm, x, *padding)
    rows = x if isinstance(norm, TokenBatchNorm) else x.movedim(1, -1)  # features last
    wide = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    mask = padding[0] if padding else None
    kept = torch.ones_like(wide[..., :1]) if mask is None else (~mask).unsqueeze(-1).to(wide)
    axes = tuple(range(wide.ndim - 1))
    sums = _Sum.apply(torch.cat([(wide * kept).sum(axes), kept.sum().view(1)]))
    count = sums[-1].detach()
    mean = sums[:-1] / count
    centred = wide - mean
    variance = _Sum.apply((centred.square() * kept).sum(axes)) / count
    rows_once = count / ranks.copies
    _track(norm, mean.detach(), variance.detach() * rows_once / (rows_once - 1.0).clamp(min=1.0))
    out = centred * (variance + norm.eps).rsqrt()
    if norm.affine:
        out = out * norm.weight + norm.bias
    return (out if rows is x else out.movedim(-1, 1)).to(x.dtype)


def _track(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Running statistics, as a batch norm keeps them."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked += 1
    share = 1.0 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), share)
