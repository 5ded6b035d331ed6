"""The training loop: epochs, validation, early stopping, checkpoints.

A checkpoint holds all that a run needs to resume: weights, optimizer, best weights so far, random state, position. On a
CPU, a run that was interrupted and resumed ends with the same weights as an uninterrupted one.

Several processes may train one model together (`toa.training.distributed`). They share each batch; the first one
validates and writes checkpoints; a signal to any of them stops all at the next observation.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least
from toa._limits import shorten
from toa.ops.dropout import thread_generator
from toa.training.checkpoint import UNREADABLE, Checkpoint, load_checkpoint, save_checkpoint
from toa.training.distributed import check_same, gather, joint_statistics, separate_seeds
from toa.training.optimization import TrainingConfig
from toa.training.step import Batches, TrainingStep

if TYPE_CHECKING:
    from lightning.fabric import Fabric


# called with finished steps, all steps, the loss, and the last validation loss; None before the first validation
Observer = Callable[[int, int, float, float | None], None]


@dataclass(kw_only=True, slots=True)
class TrainingState:
    """Position and history of a run.

    Args:
        step: Steps done over all epochs.
        best: Lowest validation loss; None before the first validation.
        best_epoch: Its epoch, counted from 1; 0 before training.
        seconds: Time spent, including the time before a resume.
        history: Mean training loss, validation loss and learning rate per epoch.
    """

    step: int = 0
    best: float | None = None
    best_epoch: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class TrainingStopped(KeyboardInterrupt):
    """Training was stopped by a signal and has saved a checkpoint.

    Attributes:
        model: The model with its best weights so far; None before the first validation.
        best: Its validation loss.
    """

    def __init__(self, message: str = "", model: nn.Module | None = None, best: float = math.inf) -> None:
        super().__init__(message)
        self.model = model
        self.best = best


def train(
    model: nn.Module,
    batches: Batches,
    loss_of: Callable[..., Tensor],
    config: TrainingConfig,
    *,
    fabric: "Fabric",
    cuda_graph: bool = True,
    **options: Any,
) -> TrainingState:
    """Train a model in place; with validation, it ends with its best weights.

    Args:
        loss_of: The loss, a function of the model and the tensors of a batch.
        fabric: Device and precision; see `toa.training.distributed.make_fabric`.
        cuda_graph: Capture a step as one CUDA graph, if there is one CUDA device.
        options: Arguments of `TrainingRun`, from `key` on.

    Raises:
        TrainingStopped: After SIGINT or SIGTERM; the checkpoint, if any, is up to date.
        ValueError: If the checkpoint belongs to another run or to other data.
        FloatingPointError: If a loss is not finite.
    """
    step = TrainingStep(model, batches, loss_of, config, fabric)
    run = TrainingRun(step=step, **options)
    # the checkpoint may be of another number of ranks
    if run.checkpoint is not None and run.checkpoint.exists():
        run.resume(run.checkpoint)
    elif not fabric.is_global_zero:
        separate_seeds(fabric, step.generators, 0)
    if not step.alone:
        check_same(fabric, run.state.step, run.checkpoint)
    statistics = nullcontext() if step.alone else joint_statistics(model, lambda: step.copies)
    with step.on_device(graph=cuda_graph), statistics, stop_signals() as stop:
        run.loop(stop)
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
) -> list[float]:
    """Seconds of each of `steps` training steps, after `warmup` steps that are not counted.

    Synchronises with the device before and after each step. The other arguments are those of `train`.
    """
    check_at_least("steps", steps, 1)
    check_at_least("warmup", warmup, 0)
    step = TrainingStep(model, batches, loss_of, config, fabric)
    seconds = []
    with step.on_device():
        step.wrapped.train()
        for number in range(warmup + steps):
            begin = synchronized_time(fabric.device)
            step.run(number)
            seconds.append(synchronized_time(fabric.device) - begin)
    return seconds[warmup:]


def synchronized_time(device: torch.device) -> float:
    """Clock in seconds, after the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass(kw_only=True)
class TrainingRun:
    """One call of `train`.

    Args:
        key: Identifies the run; a checkpoint with another key raises an error.
        data_checksum: Checksum of the data; a checkpoint of other data raises an error.
        validate: Validation loss, computed after each epoch in evaluation mode without gradients.
        checkpoint: File of the run's state; an existing one is resumed. None keeps nothing.
        save_every: Steps between two checkpoints within an epoch; each epoch also ends with one.
        save_share: Largest share of the time for checkpoints; if epochs are too short, some checkpoints are skipped.
            The first, the last and the one of a stopped run are always written.
        observe: Called with the progress every `observe_every` steps and after each epoch.
        observe_every: Steps between two observations. Each one synchronises with the device and all ranks.
    """

    step: TrainingStep
    key: str
    data_checksum: str | None = None
    validate: Callable[[nn.Module], float] | None = None
    checkpoint: Path | None = None
    save_every: int = 500
    save_share: float = 0.1
    observe: Observer | None = None
    observe_every: int = 10

    def __post_init__(self) -> None:
        if not 0.0 < self.save_share <= 1.0:
            raise ArgumentError("save_share", "be above 0 and at most 1", self.save_share)
        self.model = self.step.model
        self.config = self.step.config
        self.fabric = self.step.fabric
        self.total = self.config.epochs * self.step.per_epoch
        self.state = TrainingState()
        self.best_weights: dict[str, Tensor] = {}
        # earliest time of the next checkpoint
        self.save_from = -math.inf
        self.generator = thread_generator(self.fabric.device) or torch.default_generator

    def loop(self, stop: threading.Event) -> None:
        """Train to the end, or until `stop` is set."""
        begin = time.perf_counter() - self.state.seconds
        per_epoch = self.step.per_epoch
        self.step.wrapped.train()
        if self.config.validate_start and self.validate is not None and self.state.best is None:
            self._validate(self.validate)
        while not self._done():
            loss = self.step.run(self.state.step)
            self.state.step += 1
            self.state.seconds = time.perf_counter() - begin
            ends = self.state.step % per_epoch == 0
            observed = self.state.step % self.observe_every == 0
            if ends or observed:
                value = self._mean_loss(self.step.loss_sum if ends else loss, per_epoch if ends else 1)
            if ends:
                self._end_epoch(value)
                self.state.seconds = time.perf_counter() - begin
            if (ends or observed) and self.observe is not None:
                last = self.state.history[-1] if self.state.history else {}
                self.observe(self.state.step, self.total, value, last.get("validation"))
            halt = stop.is_set()
            if not self.step.alone:
                # a signal to any rank stops all; they exchange it only here
                halt = (ends or observed) and bool(self.fabric.all_reduce(float(halt), reduce_op="sum"))  # type: ignore[arg-type]
            due = ends or self.state.step % self.save_every == 0
            # checkpoints have used less than their share of the time, by the clock of the first rank
            if halt or self._done() or (due and self.fabric.broadcast(time.perf_counter() >= self.save_from)):
                self._save()
            if halt:
                self._stop()
        if self.best_weights:
            self.model.load_state_dict(self.best_weights)

    def _mean_loss(self, loss_sum: Tensor, batches: int) -> float:
        """The training loss per batch, mean over ranks, from its sum over batches."""
        # a copy, because the mean over ranks replaces its argument
        mean: Any = self.fabric.all_reduce(loss_sum.clone(), reduce_op="mean")
        value = float(mean) / batches
        self._check_finite("training", value)
        return value

    def _end_epoch(self, loss: float) -> None:
        """Validate, and add the losses of the epoch to the history."""
        per_epoch = self.step.per_epoch
        self.step.loss_sum.zero_()
        entry = {"train": loss, "rate": self.config.rate(self.state.step - per_epoch, per_epoch)}
        if self.validate is not None:
            entry["validation"] = self._validate(self.validate)
        self.state.history.append(entry)

    def _stop(self) -> NoReturn:
        """Raise TrainingStopped, with the best weights if there are any."""
        self.fabric.barrier()
        message = f"stopped after {self.state.step} of {self.total} steps"
        if self.state.best is None:
            raise TrainingStopped(message)
        self.model.load_state_dict(self.best_weights)
        raise TrainingStopped(message, self.model, self.state.best)

    def _done(self) -> bool:
        """Whether all steps are done, the loss is low enough, or validation has not improved for `patience` epochs."""
        least = self.config.least_loss
        last = self.state.history[-1:]
        if least is not None and last and last[0]["train"] <= least:
            return True
        patience = None if self.validate is None else self.config.patience
        idle = len(self.state.history) - self.state.best_epoch
        return self.state.step >= self.total or (patience is not None and idle >= patience)

    def _validate(self, validate: Callable[[nn.Module], float]) -> float:
        """Return the validation loss, and keep the weights if it is the lowest so far."""
        self.step.wrapped.eval()
        # not worth compiling again for evaluation mode and other batch sizes
        stance = torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext()
        with torch.no_grad(), stance:
            # the others wait for the first rank
            loss = self.fabric.broadcast(validate(self.step.wrapped) if self.fabric.is_global_zero else 0.0)
        self.step.wrapped.train()
        self._check_finite("validation", loss)
        # a tie counts as an improvement, as in the peer libraries
        if self.state.best is None or loss <= self.state.best:
            self.state.best = loss
            self.state.best_epoch = self.state.step // self.step.per_epoch
            self.best_weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return loss

    def _check_finite(self, name: str, loss: float) -> None:
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the {name} loss must be finite, got {loss} after {self.state.step} steps; lower the learning rate, "
                "or choose a normaliser of the scores (score_norm, gate_norm)."
            )

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        begin = time.perf_counter()
        random = {"cpu": self.generator.get_state()}
        if self.fabric.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.fabric.device)
        random |= {f"own.{i}": generator.get_state() for i, generator in enumerate(self.step.generators)}
        states = [random]
        if not self.step.alone:
            gathered = [gather(self.fabric, value) for value in random.values()]
            states = [dict(zip(random, values, strict=True)) for values in zip(*gathered, strict=True)]
        loss_sum: Any = self.fabric.all_reduce(self.step.loss_sum.clone(), reduce_op="mean")
        if not self.fabric.is_global_zero:
            return
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best_weights.items()}
        for index, state in self.step.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
        for rank, state in enumerate(states):
            group = f"random-{rank}" if rank else "random"
            tensors |= {f"{group}.{name}": value for name, value in state.items()}
        tensors["loss_sum"] = loss_sum
        save_checkpoint(
            self.checkpoint,
            tensors,
            {"key": self.key, "data_checksum": self.data_checksum, "state": asdict(self.state)},
        )
        now = time.perf_counter()
        self.save_from = now + (now - begin) * (1.0 / self.save_share - 1.0)

    def resume(self, path: Path) -> None:
        """Resume from a checkpoint."""
        saved = load_checkpoint(path)
        if saved.facts.get("key") != self.key:
            raise ArgumentError(
                path,
                f"be a checkpoint of this run, {self.key!r}",
                f"one of {shorten(saved.facts.get('key'))}",
                "choose another output folder, or delete the file to start again",
            )
        # a checkpoint of an older version names no data
        trained_on = saved.facts.get("data_checksum")
        if None not in (trained_on, self.data_checksum) and trained_on != self.data_checksum:
            raise ArgumentError(
                path,
                f"be a checkpoint of the data of this run, sha256 {self.data_checksum}",
                f"one of other data, {trained_on}: the data have changed since the run began",
                "restore them, or delete the checkpoint to start again",
            )
        try:
            self._restore(saved)
        except UNREADABLE as error:
            reason = shorten(" ".join(str(error).split()))
            raise ArgumentError(
                path,
                "hold the weights of this model and the state of this run",
                f"others ({type(error).__name__}: {reason})",
                "delete it to start again",
            ) from None

    def _restore(self, saved: Checkpoint) -> None:
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in saved.tensors.items():
            group, _, rest = name.partition(".")
            groups.setdefault(group, {})[rest] = value
        self.model.load_state_dict(groups["model"])
        self.best_weights = {name: value.to(self.fabric.device) for name, value in groups.get("best", {}).items()}
        best, last = ({n: x.shape for n, x in part.items()} for part in (self.best_weights, groups["model"]))
        if best and best != last:
            raise ValueError("the best weights are those of another model")
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in groups["optimizer"].items():
            index, _, entry = name.partition(".")
            states.setdefault(int(index), {})[entry] = value
        _check_optimizer(self.step.optimizer, states)
        self.step.optimizer.load_state_dict(
            {"state": states, "param_groups": self.step.optimizer.state_dict()["param_groups"]}
        )
        self.step.loss_sum.copy_(groups["loss_sum"][""])
        self.state = self._read_state(saved.facts["state"])
        rank = self.fabric.global_rank
        random = groups.get(f"random-{rank}" if rank else "random")
        if random is None:
            if not self.fabric.is_global_zero:
                separate_seeds(self.fabric, self.step.generators, self.state.step)
            return
        self.generator.set_state(random["cpu"])
        if self.fabric.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], self.fabric.device)
        for number, generator in enumerate(self.step.generators):
            generator.set_state(random[f"own.{number}"])

    def _read_state(self, facts: Any) -> TrainingState:
        """The state in a checkpoint; raises for values that no run writes."""
        state = TrainingState(**facts)
        counts = (state.step, state.best_epoch)
        numbers = (0.0 if state.best is None else state.best, state.seconds)
        if not all(type(count) is int and count >= 0 for count in counts) or state.step > self.total:
            raise ValueError(f"steps {state.step!r} of {self.total} and best epoch {state.best_epoch!r}")
        if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
            raise ValueError(f"a best loss {state.best!r} and seconds {state.seconds!r}")
        entries = [value for entry in state.history for value in {"rate": 0.0, **entry}.values()]
        if not all(type(value) in (int, float) for value in entries) or state.best_epoch > len(state.history):
            raise ValueError(f"a history of {len(state.history)} epochs with other entries than numbers")
        return state


def _check_optimizer(optimizer: torch.optim.Optimizer, states: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Raise ValueError for entries of other parameters; PyTorch accepts any shape."""
    shapes = [tuple(parameter.shape) for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in states.items():
        for name, tensor in entries.items():
            if not 0 <= index < len(shapes) or tuple(tensor.shape) not in ((), shapes[index]):
                raise ValueError(f"an optimizer entry {name!r} of shape {tuple(tensor.shape)} for parameter {index}")


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that the current step is finished; a second signal stops at once."""
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
