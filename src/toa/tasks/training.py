"""The training loop: steps of an optimizer on a loss, which can be stopped at any moment and resumed.

What a run needs to go on is in its checkpoint: weights, optimizer, random state, step. A run that was stopped and
resumed ends, on a CPU, with the same weights as one left alone.
"""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_positive
from toa.tasks.checkpoint import load_checkpoint, save_checkpoint

Schedule = Literal["constant", "cosine"]
SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """AdamW with linear warm-up, then a constant rate or half a cosine down to zero."""

    steps: int
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    schedule: Schedule = "cosine"
    warmup: int = 100
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps, 1)
        check_positive("learning_rate", self.learning_rate)
        check_at_least("weight_decay", self.weight_decay, 0.0)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_at_least("warmup", self.warmup, 0)
        check_positive("clip_norm", self.clip_norm)

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))


Batch = tuple[Tensor, ...]


class TrainingStopped(KeyboardInterrupt):
    """Training was asked to stop and has saved where it stands."""


def train(
    model: nn.Module,
    batch_at: Callable[[int], Batch],
    loss_of: Callable[..., Tensor],
    config: TrainingConfig,
    *,
    key: str,
    checkpoint: Path | None = None,
    save_every: int = 500,
    observe: Callable[[int, float], None] | None = None,
    observe_every: int = 10,
    cuda_graph: bool = True,
) -> None:
    """Train a model in place.

    Args:
        model: What is trained; its parameters say where.
        batch_at: The tensors of a step, of the same shapes each time. They must depend on the step alone, so that a
            resumed run sees what one left alone would.
        loss_of: The loss of a batch's tensors.
        config: The optimizer's settings.
        key: Names the run; a checkpoint of another key is refused.
        checkpoint: Where the run's state is kept; an existing one is resumed. None keeps nothing.
        save_every: Steps between two checkpoints.
        observe: Told the number of steps done and the loss, every `observe_every` steps and at the end.
        observe_every: Steps between two observations. Each waits for the device.
        cuda_graph: Whether to capture a step as one CUDA graph, on CUDA; small models are bound by launches.

    Raises:
        TrainingStopped: After SIGINT or SIGTERM, with a checkpoint written if there is a place for it.
        ValueError: If the checkpoint belongs to another run.
        FloatingPointError: If the loss is not finite.
    """
    device = next(model.parameters()).device
    optimizer = _optimizer(model, config, device)
    first = 0
    if checkpoint is not None and checkpoint.exists():
        first = _resume(checkpoint, key, model, optimizer, device)
    model.train()

    def step(*batch: Tensor) -> Tensor:
        loss = loss_of(*batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        return loss.detach()

    run = _GraphedStep(step) if cuda_graph and device.type == "cuda" else step
    with _stop_signals() as stop:
        for index in range(first, config.steps):
            _set_rate(optimizer, config.rate(index))
            loss = run(*batch_at(index))
            done = index + 1
            if done % observe_every == 0 or done == config.steps:
                _observe(done, loss, observe)
            if checkpoint is not None and (done % save_every == 0 or done == config.steps or stop.is_set()):
                _save(checkpoint, key, done, model, optimizer, device)
            if stop.is_set():
                raise TrainingStopped(f"stopped after {done} of {config.steps} steps")


class _GraphedStep:
    """A training step that runs a few times as it is and from then on as one CUDA graph."""

    # cuBLAS, autograd and the optimizer allocate on their first calls, which a capture must not
    _EAGER = 3

    def __init__(self, step: Callable[..., Tensor]) -> None:
        self._step = step
        self._calls = 0
        self._stream = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: Batch = ()
        self._loss = torch.empty(())

    def __call__(self, *batch: Tensor) -> Tensor:
        self._calls += 1
        if self._calls <= self._EAGER:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                loss = self._step(*batch)
            torch.cuda.current_stream().wait_stream(self._stream)
            return loss
        if self._graph is None:
            self._inputs = tuple(tensor.clone() for tensor in batch)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._loss = self._step(*self._inputs)
        for place, tensor in zip(self._inputs, batch, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._loss


def _optimizer(model: nn.Module, config: TrainingConfig, device: torch.device) -> torch.optim.Optimizer:
    on_cuda = device.type == "cuda"
    # a captured step reads its rate from the device
    rate = torch.tensor(config.learning_rate, device=device) if on_cuda else config.learning_rate
    return torch.optim.AdamW(
        model.parameters(),
        lr=rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=on_cuda,
        capturable=on_cuda,
    )


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _observe(done: int, loss: Tensor, observe: Callable[[int, float], None] | None) -> None:
    value = float(loss)
    if not math.isfinite(value):
        raise FloatingPointError(
            f"the loss must be finite, got {value} after {done} steps; lower the learning rate, or choose a "
            "normaliser of the scores (score_norm, gate_norm)."
        )
    if observe is not None:
        observe(done, value)


def _save(
    path: Path, key: str, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    save_checkpoint(path, tensors, {"key": key, "step": step})


def _resume(path: Path, key: str, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    saved = load_checkpoint(path)
    if saved.facts.get("key") != key:
        raise ValueError(
            f"{path} must be a checkpoint of this run, {key!r}, got one of {saved.facts.get('key')!r}; "
            "choose another output folder, or delete it to start again."
        )
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "random": {}}
    for name, value in saved.tensors.items():
        group, rest = name.split(".", 1)
        groups[group][rest] = value
    model.load_state_dict(groups["model"])
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in groups["optimizer"].items():
        index, field = name.split(".", 1)
        states.setdefault(int(index), {})[field] = value
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    torch.set_rng_state(groups["random"]["cpu"])
    if device.type == "cuda" and "cuda" in groups["random"]:
        torch.cuda.set_rng_state(groups["random"]["cuda"], device)
    step = saved.facts["step"]
    assert isinstance(step, int)
    return step


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
