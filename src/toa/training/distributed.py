"""Devices, and distributed training: several processes (ranks) share each batch of one model.

The batch of a step is the same for any number of ranks. Shares may differ in size: losses are weighted so that their
mean over ranks, and with DDP the mean of the gradients, is that of the whole batch. Batch norms use the statistics of
the whole batch. Other statistics of a batch (DUET's penalty on its experts, Autoformer's delays in training) are
computed per rank.

Dropout and SOR draw separately on each rank, so a step has one SOR rate and mask per rank.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn

# the base class of batch norms has no public name
from torch.nn.modules.batchnorm import _BatchNorm

from toa._checks import Argument, ArgumentError, Phrase, check_at_least, check_seed
from toa.nn import TokenBatchNorm
from toa.nn.layers import normalise_batch
from toa.ops.dropout import random_numbers, thread_generator

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Batch = tuple[Tensor, ...]

# distance between the seeds of two ranks
_SEED_STEP = 1_000_003


def resolve_device(name: str) -> torch.device:
    """Find a device by name; "auto" is CUDA if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())) or name.endswith(":"):
        raise ArgumentError("device", "be auto, cpu, cuda or cuda:N", repr(name))
    if kind == "cuda" and not torch.cuda.is_available():
        remedy = Phrase("use ", Argument("device", "cpu"))
        raise ArgumentError(f"device {name!r}", "be present", "a machine without CUDA", remedy)
    if index and int(index) >= torch.cuda.device_count():
        raise ArgumentError(f"device {name!r}", "be present", f"{torch.cuda.device_count()} CUDA devices")
    return torch.device(name)


# held by a fit that draws from the global generators, or changes global settings
_GLOBAL_STATE = threading.RLock()


@contextmanager
def seeded(seed: int, device: torch.device, *, compiled: bool = False) -> Iterator[None]:
    """Give a fit random numbers that depend only on the seed; the global random state does not change.

    On a CPU the fit draws from a generator of its own, so fits run in several threads at a time. CUDA kernels and
    compiled models draw from the global generators: such fits of one process wait for one another.
    """
    check_seed(seed)
    if device.type == "cpu" and not compiled:
        with random_numbers(torch.Generator().manual_seed(seed)):
            yield
        return
    with _GLOBAL_STATE, torch.random.fork_rng([device] if device.type == "cuda" else []), random_numbers(None):
        # torch.manual_seed also seeds GPUs that are not restored
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.set_rng_state(torch.Generator(device).manual_seed(seed).get_state(), device)
        yield


@contextmanager
def numerics(device: torch.device, *, tf32: bool, deterministic: bool = False) -> Iterator[None]:
    """Set inside the context how a device computes; other threads wait, because the settings are those of the process.

    Args:
        tf32: Let CUDA round factors of float32 products to TF32; other devices never do.
        deterministic: Raise an error on operations whose result may vary between runs, and use one thread on a CPU,
            because the order of sums depends on the number of threads.
    """
    with _GLOBAL_STATE:
        before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
        threads = torch.get_num_threads()
        torch.set_float32_matmul_precision("high" if tf32 and device.type == "cuda" else "highest")
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its start
            torch.use_deterministic_algorithms(True)
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.use_deterministic_algorithms(before[1])
            torch.set_num_threads(threads)


def resolve_devices(devices: int | None, num_nodes: int | None) -> tuple[int, int]:
    """Number of devices per node and number of nodes: as given, or as torchrun started them."""
    given = {name: value for name, value in (("devices", devices), ("num_nodes", num_nodes)) if value is not None}
    for name, value in given.items():
        check_at_least(name, value, 1)
    if "LOCAL_WORLD_SIZE" not in os.environ:
        if (num_nodes or 1) > 1 and not {"MASTER_ADDR", "NODE_RANK"} <= os.environ.keys():
            raise ArgumentError(
                "MASTER_ADDR and NODE_RANK",
                Phrase("be set on each of ", Argument("num_nodes", num_nodes), " machines"),
                "a machine without them",
                "start the command with torchrun, which sets them",
            )
        return devices or 1, num_nodes or 1
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    started = {"devices": local, "num_nodes": int(os.environ["WORLD_SIZE"]) // local}
    for name, value in given.items():
        if value != started[name]:
            raise ArgumentError(name, f"be {started[name]}, as started by torchrun", value, "leave it out")
    return started["devices"], started["num_nodes"]


def make_fabric(
    device: torch.device | str, *, precision: str = "32-true", devices: int = 1, num_nodes: int = 1
) -> "Fabric":
    """Set up Lightning Fabric: device, precision and, for several devices, one process each.

    Args:
        device: The device, or a name of `resolve_device`; without an index if several train together.
        devices: Devices per node; see `resolve_devices`.
    """
    from lightning.fabric import Fabric
    from lightning.fabric.strategies.ddp import DDPStrategy

    device = resolve_device(device) if isinstance(device, str) else device
    index: int | None = device.index
    if devices * num_nodes == 1:
        chosen: Any = 1 if device.type != "cuda" or index is None else [index]
        return Fabric(accelerator=device.type, devices=chosen, precision=precision)  # type: ignore[arg-type]
    if index is not None:
        raise ArgumentError("device", f"be {device.type}, without an index if several train together", device)
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise ArgumentError("devices", f"be at most {torch.cuda.device_count()}, the number of GPUs", devices)
    # batch norms already share their statistics, and only the first rank validates; older torch names it differently
    known = "forward_sync_buffers" in signature(nn.parallel.DistributedDataParallel).parameters
    buffers: dict[str, Any] = {"forward_sync_buffers" if known else "broadcast_buffers": False}
    fabric = Fabric(
        accelerator=device.type,
        strategy=DDPStrategy(**buffers),
        devices=devices,
        num_nodes=num_nodes,
        precision=precision,  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric


def share_batch(fabric: "Fabric", batch: Batch) -> tuple[Batch, float, int]:
    """This rank's part of a batch, the weight of its loss in the mean over ranks, and how many ranks have these rows.

    A batch with fewer rows than ranks is copied to each.
    """
    rows = len(batch[0])
    rank = fabric.global_rank
    count = fabric.world_size
    if count == 1 or rows < count:
        return batch, 1.0, count
    first = rank * rows // count
    last = (rank + 1) * rows // count
    return tuple(tensor[first:last] for tensor in batch), (last - first) * count / rows, 1


def gather(fabric: "Fabric", tensor: Tensor) -> list[Tensor]:
    """Collect a tensor of one shape from every rank; Fabric's own function gives a warning of PyTorch."""
    here = tensor.to(fabric.device)
    parts = [torch.empty_like(here) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(parts, here)
    return parts


def check_same(fabric: "Fabric", step: int, where: Path | None) -> None:
    """Raise ValueError if ranks are at different steps."""
    steps = [int(number) for number in gather(fabric, torch.tensor(step))]
    if len(set(steps)) > 1:
        raise ArgumentError(
            where or "the checkpoint",
            "be the same file for all ranks",
            f"steps {', '.join(map(str, steps))}",
            "choose an output folder that all machines share",
        )


def separate_seeds(fabric: "Fabric", generators: Sequence[Generator], step: int) -> None:
    """Give a rank other than the first its own random numbers."""
    shift = fabric.global_rank * _SEED_STEP + step
    own = thread_generator(fabric.device)
    if own is None:
        torch.manual_seed((torch.initial_seed() + shift) % 2**63)
    for generator in (*generators, *(() if own is None else (own,))):
        generator.manual_seed((generator.initial_seed() + shift) % 2**63)


@contextmanager
def joint_statistics(model: nn.Module, copies: Callable[[], int]) -> Iterator[None]:
    """Let batch norms in training use the statistics of all ranks, inside the context.

    `copies` returns the number of ranks that compute on the same rows now.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.forward = partial(_normalise, norm, copies)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


class _Sum(torch.autograd.Function):
    """Sum over ranks; its gradient is that of the sum of the losses of all ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _Sum.apply(grads[0])


def _normalise(norm: _BatchNorm, copies: Callable[[], int], x: Tensor, *padding: Tensor | None) -> Tensor:
    """Forward pass of a batch norm, with mean and variance over all ranks."""
    if not norm.training:
        return type(norm).forward(norm, x, *padding)
    rows = x if isinstance(norm, TokenBatchNorm) else x.movedim(1, -1)  # features last
    out = normalise_batch(norm, rows, *padding, total=_Sum.apply, copies=copies())
    return out if rows is x else out.movedim(-1, 1)
