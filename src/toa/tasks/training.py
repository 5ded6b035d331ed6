"""The training loop: epochs of steps, validation, early stopping; it can be stopped at any moment and resumed.

What a run needs to go on is in its checkpoint: weights, optimizer, best weights so far, random state, position. A run
that was stopped or killed and resumed ends, on a CPU, with the same weights as one left alone.

Several processes may train one model together (`toa.tasks.ranks`): they share each batch, the first of them validates
and writes the checkpoint, and a signal to any of them stops all at the next observation.
"""

import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from inspect import signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from toa._checks import check_at_least
from toa.nn import own_generators
from toa.tasks.batches import ShuffledBatches
from toa.tasks.checkpoint import load_checkpoint, save_checkpoint
from toa.tasks.graph import Batch, GraphedStep
from toa.tasks.optimization import TrainingConfig, make_optimizer, set_rates
from toa.tasks.ranks import Ranks, joint_statistics

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class Batches(Protocol):
    """What a model is trained on. A batch depends on epoch and step alone, so that a resumed run sees the same."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        ...

    def at(self, epoch: int, step: int) -> Batch:
        """The tensors of a step, on the training device."""
        ...


class Observer(Protocol):
    """Told how training goes."""

    def __call__(self, done: int, total: int, loss: float, validation: float | None, /) -> None:
        """So many steps of all are done; the last validation loss is None before the first."""
        ...


@dataclass(kw_only=True, slots=True)
class TrainingState:
    """Where a run stands, and what it has seen.

    Args:
        step: Steps done over all epochs.
        best: Lowest validation loss; None before the first.
        best_epoch: Its epoch, counted from 1; 0 before the first.
        seconds: Time spent, resumed runs included.
        history: For each epoch its mean training loss, validation loss and learning rate.
    """

    step: int = 0
    best: float | None = None
    best_epoch: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class TrainingStopped(KeyboardInterrupt):
    """Training was asked to stop and has saved where it stands."""


def make_fabric(device: torch.device, *, precision: str = "32-true", devices: int = 1, num_nodes: int = 1) -> "Fabric":
    """Lightning Fabric on a device: placement and precision; on several devices, a process each, that train together.

    Args:
        device: Where; without a number if there are several.
        precision: As Fabric names it.
        devices: How many of a machine; see `toa.tasks.ranks.settle_devices`.
        num_nodes: How many machines.

    Raises:
        ValueError: If there are not as many.
    """
    from lightning.fabric import Fabric
    from lightning.fabric.strategies.ddp import DDPStrategy

    number: int | None = device.index
    if devices * num_nodes == 1:
        where: Any = 1 if device.type != "cuda" or number is None else [number]
        return Fabric(accelerator=device.type, devices=where, precision=precision)  # type: ignore[arg-type]
    if number is not None:
        raise ValueError(f"device must be {device.type}, without a number, where several train together, got {device}.")
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise ValueError(f"devices must be at most {torch.cuda.device_count()}, the GPUs that are here, got {devices}.")
    # statistics of batch norms are joint ones already, and the first rank validates alone; older torch has another name
    names = signature(nn.parallel.DistributedDataParallel).parameters
    buffers: dict[str, Any] = {
        "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False
    }
    fabric = Fabric(
        accelerator=device.type,
        strategy=DDPStrategy(**buffers),
        devices=devices,
        num_nodes=num_nodes,
        precision=precision,  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric


def train(
    model: nn.Module,
    batches: Batches,
    loss_of: Callable[..., Tensor],
    config: TrainingConfig,
    *,
    fabric: "Fabric",
    key: str,
    validate: Callable[[nn.Module], float] | None = None,
    checkpoint: Path | None = None,
    save_every: int = 500,
    save_share: float = 0.1,
    observe: Observer | None = None,
    observe_every: int = 10,
    cuda_graph: bool = True,
) -> TrainingState:
    """Train a model in place; with validation, it ends with its best weights.

    Args:
        model: What is trained, moved to the fabric's device.
        batches: What it is trained on.
        loss_of: The loss, from the model and a batch's tensors.
        config: Optimizer, schedule, length.
        fabric: Device and precision; see `make_fabric`.
        key: Names the run; a checkpoint of another key is refused.
        validate: Validation loss of the model, asked for after each epoch, in evaluation mode without gradients.
        checkpoint: Where the run's state is kept; an existing one is resumed. None keeps nothing.
        save_every: Steps between two checkpoints within an epoch; one more follows each epoch.
        save_share: Most of the time that checkpoints may take: where epochs are too short for that, some get none. The
            first, the last and that of a run that is stopped are written always.
        observe: Told of progress every `observe_every` steps and after each epoch.
        observe_every: Steps between two observations. Each waits for the device, and for all ranks.
        cuda_graph: Whether to capture a step as one CUDA graph, on one CUDA device.

    Raises:
        TrainingStopped: After SIGINT or SIGTERM, with a checkpoint written if there is a place for it.
        ValueError: If the checkpoint belongs to another run.
        FloatingPointError: If a loss is not finite.
    """
    if not 0.0 < save_share <= 1.0:
        raise ValueError(f"save_share must be above 0 and at most 1, got {save_share}.")
    run = _Run(
        model=model,
        batches=batches,
        loss_of=loss_of,
        config=config,
        fabric=fabric,
        key=key,
        validate=validate,
        checkpoint=checkpoint,
        save_every=save_every,
        save_share=save_share,
        observe=observe,
        observe_every=observe_every,
    )
    run.resume()
    with _on(fabric.device), joint_statistics(model, run.ranks), _stop_signals() as stop:
        run.go(stop, cuda_graph)
    return run.state


def time_steps(
    model: nn.Module,
    batches: Batches,
    loss_of: Callable[..., Tensor],
    config: TrainingConfig,
    *,
    fabric: "Fabric",
    steps: int,
    warmup: int,
    cuda_graph: bool = True,
) -> list[float]:
    """Seconds of each of `steps` steps as `train` takes them, after `warmup` of them that are not counted.

    The device is waited for before and after each step; arguments are those of `train`.
    """
    check_at_least("steps", steps, 1)
    check_at_least("warmup", warmup, 0)
    run = _Run(model=model, batches=batches, loss_of=loss_of, config=config, fabric=fabric)
    seconds = []
    with _on(fabric.device):
        step = run.stepper(cuda_graph)
        run.wrapped.train()
        for _ in range(warmup + steps):
            begin = settled_time(fabric.device)
            run.advance(step)
            seconds.append(settled_time(fabric.device) - begin)
    return seconds[warmup:]


def _compiled(model: nn.Module, device: torch.device) -> nn.Module:
    """A model that is compiled when it is first called.

    Raises:
        ValueError: If the device is a CPU and there is no C++ compiler.
    """
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    if device.type == "cpu" and not any(map(shutil.which, filter(None, names))):
        raise ValueError(
            "training.compile must be false on a CPU without a C++ compiler, got true; install g++, name another in "
            "CXX, or leave it out."
        )
    return cast(nn.Module, torch.compile(model))


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Streams and graphs belong to the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def settled_time(device: torch.device) -> float:
    """Seconds on the clock once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass(kw_only=True)
class _Run:
    """One call of `train`: the pieces it is made of, and where it stands."""

    model: nn.Module
    batches: Batches
    loss_of: Callable[..., Tensor]
    config: TrainingConfig
    fabric: "Fabric"
    key: str = ""
    validate: Callable[[nn.Module], float] | None = None
    checkpoint: Path | None = None
    save_every: int = 1
    save_share: float = 1.0
    observe: Observer | None = None
    observe_every: int = 1

    def __post_init__(self) -> None:
        model = _compiled(self.model, self.fabric.device) if self.config.compile else self.model
        self.wrapped = self.fabric.setup_module(model)
        if hasattr(self.model, "forecast_and_penalty"):
            self.wrapped.mark_forward_method("forecast_and_penalty")
        # an epoch's last step may have fewer batches to gather
        self.steps = -(-self.batches.steps_per_epoch // self.config.accumulate)
        self.total = self.config.epochs * self.steps
        self.ranks = Ranks(self.fabric)
        self.width, self.parts = 1, [(1.0, 1)]
        self.optimizer = make_optimizer(self.model, self.config, self.fabric.device)
        self.state = TrainingState()
        self.generators = own_generators(self.model)
        self.best_weights: dict[str, Tensor] = {}
        self.loss_sum = torch.zeros((), device=self.fabric.device)
        self.one = torch.ones((), device=self.fabric.device)
        # batches of which a step is given the places, and gathers what is there itself
        self.gathered: ShuffledBatches | None = None
        # when the next checkpoint may be written
        self.save_from = -math.inf

    def go(self, stop: threading.Event, cuda_graph: bool) -> None:
        """Train to the end, or until asked to stop."""
        step = self.stepper(cuda_graph)
        begin = time.perf_counter() - self.state.seconds
        self.wrapped.train()
        while not self._done():
            epoch, place = divmod(self.state.step, self.steps)
            loss = self.advance(step)
            self.state.seconds = time.perf_counter() - begin
            ends, observed = place + 1 == self.steps, self.state.step % self.observe_every == 0
            if ends:
                self._end_epoch(epoch)
                self.state.seconds = time.perf_counter() - begin
            elif observed:
                self._report(float(self.ranks.mean(loss)))
            halt = self.ranks.agree(stop.is_set(), ask=ends or observed)
            due = ends or self.state.step % self.save_every == 0
            if halt or self._done() or (due and self._may_save()):
                self._save()
            if halt:
                self.ranks.wait()
                raise TrainingStopped(f"stopped after {self.state.step} of {self.total} steps")
        if self.best_weights:
            self.model.load_state_dict(self.best_weights)

    def stepper(self, cuda_graph: bool) -> Callable[..., Tensor]:
        """What does a step: a CUDA graph where one is wanted and can be."""
        if not (cuda_graph and self.fabric.device.type == "cuda" and self.ranks.alone):
            return self._step
        if isinstance(self.batches, ShuffledBatches) and self.batches.places(0, 0).device.type == "cuda":
            self.gathered = self.batches
        return GraphedStep(self._step, self.generators)

    def advance(self, step: Callable[..., Tensor]) -> Tensor:
        """Do the next step; its loss stays on the device."""
        epoch, place = divmod(self.state.step, self.steps)
        set_rates(self.optimizer, self.config, self.state.step, self.steps)
        loss = step(*self._gather(epoch, place))
        self.state.step += 1
        return loss

    def _gather(self, epoch: int, step: int) -> Batch:
        """This rank's tensors of all batches that a step gathers gradients of, one after another, or their places."""
        first = step * self.config.accumulate
        indices = range(first, min(first + self.config.accumulate, self.batches.steps_per_epoch))
        if self.gathered is not None:
            self.parts = [(1.0, 1)] * len(indices)
            return tuple(self.gathered.places(epoch, index) for index in indices)
        shares = [self.ranks.share(self.batches.at(epoch, index)) for index in indices]
        self.width = len(shares[0].tensors)
        self.parts = [(share.weight, share.copies) for share in shares]
        return tuple(tensor for share in shares for tensor in share.tensors)

    def _batches_of(self, given: Batch) -> list[Batch]:
        """The batches of a step, from what `_gather` gives it."""
        if self.gathered is not None:
            return [self.gathered.tensors(places) for places in given]
        return [given[i : i + self.width] for i in range(0, len(given), self.width)]

    def _step(self, *given: Tensor) -> Tensor:
        """Gradients of one or more batches, and a step of the optimizer."""
        # what a step that broke off has left, as a capture that fails does
        self.optimizer.zero_grad(set_to_none=True)
        parts, losses = self._batches_of(given), list[Tensor]()
        for number, (part, (weight, copies)) in enumerate(zip(parts, self.parts, strict=True), 1):
            self.ranks.copies = copies
            # gradients of all parts cross over at once, with the last
            held = not self.ranks.alone and number < len(parts)
            with self.fabric.no_backward_sync(self.wrapped) if held else nullcontext():
                loss = self.loss_of(self.wrapped, *part)
                if weight != len(parts):
                    loss = loss * (weight / len(parts))
                self.fabric.backward(loss, self.one.to(loss.dtype))
            losses.append(loss.detach())
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        # now and not before the next step: a graph would hold those of the last eager one beside its own
        self.optimizer.zero_grad(set_to_none=True)
        total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        self.loss_sum += total
        return total

    def _done(self) -> bool:
        """Whether all steps are, or validation has not improved for as long as patience lasts."""
        patience = self.config.patience
        idle = len(self.state.history) - self.state.best_epoch
        return self.state.step >= self.total or (patience is not None and idle >= patience)

    def _end_epoch(self, epoch: int) -> None:
        mean = float(self.ranks.mean(self.loss_sum)) / self.steps
        self.loss_sum.zero_()
        entry = {"train": mean, "rate": self.config.rate(epoch * self.steps, self.steps)}
        if self.validate is not None:
            self.wrapped.eval()
            # another mode and other batch sizes are not worth compiling for
            stance = torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext()
            with torch.no_grad(), stance:
                entry["validation"] = self.ranks.by_first(partial(self.validate, self.wrapped))
            self.wrapped.train()
            _check_loss("validation", entry["validation"], self.state.step)
            # a tie counts as an improvement, as the peers have it
            if self.state.best is None or entry["validation"] <= self.state.best:
                self.state.best, self.state.best_epoch = entry["validation"], epoch + 1
                self.best_weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.state.history.append(entry)
        self._report(mean)

    def _report(self, loss: float) -> None:
        _check_loss("training", loss, self.state.step)
        if self.observe is not None:
            history = self.state.history
            self.observe(self.state.step, self.total, loss, history[-1].get("validation") if history else None)

    def _may_save(self) -> bool:
        """Whether checkpoints have not had their share of the time yet; the first rank's clock counts."""
        return bool(self.ranks.by_first(lambda: time.perf_counter() >= self.save_from))

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        begin = time.perf_counter()
        states = self.ranks.gather(self._random_state())
        loss_sum = self.ranks.mean(self.loss_sum)
        if not self.ranks.first:
            return
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best_weights.items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
        for rank, state in enumerate(states):
            tensors |= {f"{_random_group(rank)}.{name}": value for name, value in state.items()}
        tensors["loss_sum"] = loss_sum
        save_checkpoint(self.checkpoint, tensors, {"key": self.key, "state": asdict(self.state)})
        now = time.perf_counter()
        self.save_from = now + (now - begin) * (1.0 / self.save_share - 1.0)

    def _random_state(self) -> dict[str, Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if self.fabric.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.fabric.device)
        return state | {f"own.{i}": generator.get_state() for i, generator in enumerate(self.generators)}

    def _set_random_state(self, state: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if self.fabric.device.type == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self.fabric.device)
        for number, generator in enumerate(self.generators):
            generator.set_state(state[f"own.{number}"])

    def resume(self) -> None:
        """Take up where the checkpoint stands, if there is one; it may be one of another number of ranks."""
        if self.checkpoint is not None and self.checkpoint.exists():
            self._load(self.checkpoint)
        else:
            self.ranks.draw_apart(self.generators, 0)
        if not self.ranks.alone:
            self.ranks.check_same(self.state.step, self.checkpoint)

    def _load(self, path: Path) -> None:
        saved = load_checkpoint(path)
        if saved.facts.get("key") != self.key:
            raise ValueError(
                f"{path} must be a checkpoint of this run, {self.key!r}, got one of "
                f"{saved.facts.get('key')!r}; choose another output folder, or delete it to start again."
            )
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in saved.tensors.items():
            group, _, rest = name.partition(".")
            groups.setdefault(group, {})[rest] = value
        try:
            self.model.load_state_dict(groups["model"])
        except (RuntimeError, KeyError) as error:
            raise ValueError(
                f"{path} must hold the weights of this model, got others ({' '.join(str(error).split())}); delete it."
            ) from None
        self.best_weights = {name: value.to(self.fabric.device) for name, value in groups.get("best", {}).items()}
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in groups["optimizer"].items():
            index, _, entry = name.partition(".")
            states.setdefault(int(index), {})[entry] = value
        self.optimizer.load_state_dict({"state": states, "param_groups": self.optimizer.state_dict()["param_groups"]})
        self.loss_sum.copy_(groups["loss_sum"][""])
        facts: Any = saved.facts["state"]
        self.state = TrainingState(**facts)
        own = groups.get(_random_group(self.fabric.global_rank))
        if own is None:
            self.ranks.draw_apart(self.generators, self.state.step)
        else:
            self._set_random_state(own)


def _random_group(rank: int) -> str:
    """Name of a rank's random state in a checkpoint."""
    return "random" if rank == 0 else f"random-{rank}"


def _check_loss(name: str, value: float, step: int) -> None:
    if not math.isfinite(value):
        raise FloatingPointError(
            f"the {name} loss must be finite, got {value} after {step} steps; lower the learning rate, or choose a "
            "normaliser of the scores (score_norm, gate_norm)."
        )


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that a step under way is finished; a second signal ends at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, previous[signal.Signals(number)])

    previous = {caught: signal.signal(caught, handle) for caught in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for caught, old in previous.items():
            signal.signal(caught, old)
