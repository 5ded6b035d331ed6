"""Pretraining in pieces: one command that is repeated until all steps are done.

    run = Pretraining(PretrainedForecaster(model_config), config, draw)
    train_piece(run, folder, seconds=1200)     # resumes the checkpoint of the folder, and leaves another one

The series of a step depend on the seed and the step alone, and the state in memory has the precision in which it is
saved: a resumed run equals one that was not stopped, bit by bit, on a device whose kernels are deterministic. Seconds
decide when a piece stops, never what is computed. The rate rises, stays, and falls to zero over the last steps, so a
run that is still at its highest rate may get more steps later.

Alphabet: B batch, L context, P horizon, W weights.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toa._checks import (
    ArgumentError,
    check_at_least,
    check_at_most,
    check_choice,
    check_fraction,
    check_positive,
    check_seed,
)
from toa._files import check_writable, write_atomically
from toa.models.pretrained import (
    LARGEST,
    PretrainedForecaster,
    model_to_fill,
    pinball_loss,
    scale_context,
    scale_target,
    step_weights,
)
from toa.training.flat_adam import AdamConfig, FlatAdam
from toa.training.loop import stop_signals
from toa.training.parts import check_checkpoint_size, has_parts, load_parts, save_parts
from toa.training.step import GraphedStep

# series of a step: a function of the step, with (B, L + P) values, NaN where missing
Draw = Callable[[int], Tensor]
# called with steps done, mean loss since the last call, and steps per second
PieceObserver = Callable[[int, float, float], None]

# folder of the finished model, and file of the record, in the folder of a run
MODEL_FOLDER = "model"
RECORD_FILE = "record.json"
# fields that a run at its highest rate may change
_END = ("steps", "decay", "mean_span", "mean_every")


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainingConfig:
    """How a model is pretrained.

    Args:
        steps: Steps of the whole run.
        batch_size: Series per step.
        learning_rate: Highest rate.
        warmup: Steps in which the rate rises; also after a restart from weights.
        decay: Steps at the end in which the rate falls to zero, linearly.
        mean_span: The result is the mean of the weights over this many last steps; 0 takes the last weights.
        mean_every: Steps between two weights of that mean.
        least_context: Shortest context that is drawn.
        full_share: Share of series with the whole context; the others have lengths that are uniform in logarithms.
        horizon_exponent: A block of future steps counts (number of the block)^-horizon_exponent in the loss.
        precision: Of products; "bfloat16" on GPUs.
        log_every: Steps between two entries of the loss curve.
    """

    steps: int
    batch_size: int
    learning_rate: float = 1e-3
    warmup: int = 500
    decay: int = 0
    mean_span: int = 0
    mean_every: int = 100
    least_context: int = 32
    full_share: float = 0.5
    horizon_exponent: float = 0.5
    precision: str = "bfloat16"
    log_every: int = 50
    seed: int = 0
    adam: AdamConfig = field(default_factory=AdamConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "mean_every", "least_context", "log_every"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("warmup", "decay", "mean_span", "horizon_exponent"):
            check_at_least(name, getattr(self, name), 0)
        for name in ("decay", "mean_span"):
            check_at_most(name, getattr(self, name), "steps", self.steps, "train for more steps")
        check_positive("learning_rate", self.learning_rate)
        check_fraction("full_share", self.full_share)
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        check_seed(self.seed)

    def rate(self, step: int, restart: int = 0) -> float:
        """Learning rate of a step, counted from 0; `restart` is the step of the last restart from weights."""
        rise = min(1.0, (step - restart + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, (self.steps - step) / self.decay) if self.decay else 1.0
        return self.learning_rate * min(rise, fall)

    def averages_after(self, step: int) -> bool:
        """Whether the weights after this number of steps are part of the mean."""
        left = self.steps - step
        return left < self.mean_span and left % self.mean_every == 0

    def averaged(self, step: int) -> int:
        """Number of weights in the mean after this number of steps."""
        return sum(self.averages_after(each) for each in range(max(1, self.steps - self.mean_span), step + 1))


@dataclass(kw_only=True, slots=True)
class PieceState:
    """Position and history of a run.

    Attributes:
        step: Steps done.
        restart: Step of the last restart from weights, 0 without one.
        seconds: Time of all pieces.
        loss_sum: Sum of the losses since the last entry of the curve.
        curve: Entries of step, mean loss, rate and seconds.
        restarts: Restarts from weights, with the step and the reason.
    """

    step: int = 0
    restart: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)
    restarts: list[dict[str, Any]] = field(default_factory=list)


class Pretraining:
    """A run in memory: the model, its weights and moments, and its position.

    Args:
        draw: Series of a step.
        facts: What is to be stored with the weights, as JSON values; "synthetic" states which series are drawn, and
            must stay the same when a run is resumed.
        graph: Whether a step on a GPU is one CUDA graph.
    """

    def __init__(
        self,
        model: PretrainedForecaster,
        config: PretrainingConfig,
        draw: Draw,
        *,
        facts: Mapping[str, Any] | None = None,
        graph: bool = True,
    ) -> None:
        self.model = model.train()
        self.config = config
        self.facts = dict(facts or {})
        self.state = PieceState()
        self.adam = FlatAdam(model, config.adam)
        self.device = self.adam.weights.device
        self.mean = torch.zeros_like(self.adam.weights, dtype=torch.float16)
        check_checkpoint_size(self.vectors())
        check_at_most("least_context", config.least_context, "context", model.config.context, "lower it")
        self._draw = draw
        self._loss_sum = torch.zeros((), device=self.device)
        self._levels = torch.tensor(model.config.quantiles, device=self.device)
        self._step_weights = step_weights(model.config.blocks, model.config.patch_len, config.horizon_exponent).to(
            self.device
        )
        self._call: Callable[..., Tensor] = self._step
        if graph and self.device.type == "cuda":
            self._call = GraphedStep(self._step)

    def vectors(self) -> dict[str, Tensor]:
        """What a checkpoint holds at most, vectors (W,)."""
        return self.adam.state() | {"mean": self.mean}

    def run_step(self) -> None:
        """One step; its loss stays on the device."""
        state = self.state
        numbers = self.adam.numbers(self.config.rate(state.step, state.restart), state.step - state.restart + 1)
        batch = self._batch(state.step)
        loss = self._call(*batch, torch.tensor(numbers).to(self.device, non_blocking=True))
        self._loss_sum += loss
        state.step += 1
        if self.config.averages_after(state.step):
            count = self.config.averaged(state.step)
            mean = self.mean.float()
            self.mean.copy_(mean.lerp_(self.adam.weights, 1.0 / count))

    def _batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled contexts (B, L), whether each value is observed, and scaled targets (B, P) of a step."""
        config = self.model.config
        series = self._draw(step)
        wanted = (self.config.batch_size, config.context + config.horizon)
        if tuple(series.shape) != wanted:
            raise ArgumentError("series", f"have shape (batch_size, context + horizon)={wanted}", series.shape)
        series = series.to(self.device, torch.float32)
        context, target = series.split([config.context, config.horizon], 1)
        lengths = self._context_lengths(step).to(self.device, non_blocking=True)
        before = torch.arange(config.context, device=self.device) < config.context - lengths.unsqueeze(1)
        scaled = scale_context(context.masked_fill(before, float("nan")))
        return scaled.values, scaled.observed, scale_target(target, scaled).clamp(-LARGEST, LARGEST)

    def _context_lengths(self, step: int) -> Tensor:
        """Length of each context (B,), from the seed and the step alone."""
        generator = torch.Generator().manual_seed((self.config.seed * 1_000_003 + step) % 2**63)
        whole, place = torch.rand(2, self.config.batch_size, generator=generator)
        longest = self.model.config.context
        shortest = math.log(self.config.least_context)
        drawn = (shortest + place * (math.log(longest) - shortest)).exp().round().long()
        return torch.where(whole < self.config.full_share, longest, drawn)

    def _step(self, values: Tensor, observed: Tensor, target: Tensor, numbers: Tensor) -> Tensor:
        """Gradients and update; as a CUDA graph on a GPU."""
        with self._precision():
            quantiles = self.model.forecast_scaled(values, observed, self.model.config.blocks)
        loss = pinball_loss(quantiles, target, self._levels, self._step_weights)
        loss.backward()
        self.adam.update(numbers)
        return loss.detach()

    def _precision(self) -> AbstractContextManager[None]:
        if self.config.precision == "float32":
            return nullcontext()
        # weights in 16 bits that are kept between steps would be those of the capture
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def log(self, seconds: float) -> dict[str, Any]:
        """Add the mean loss since the last entry to the curve; waits for the device."""
        state = self.state
        last = state.curve[-1]["step"] if state.curve else 0
        loss = float(self._loss_sum) / (state.step - last)
        self._loss_sum.zero_()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the training loss must be finite, got {loss} after {state.step} steps; lower learning_rate, or set "
                "score_norm of the model."
            )
        rate = self.config.rate(state.step - 1, state.restart)
        state.curve.append({"step": state.step, "loss": loss, "rate": rate, "seconds": seconds})
        return state.curve[-1]

    def save(self, folder: Path) -> None:
        """Write the checkpoint of a run."""
        self.state.loss_sum = float(self._loss_sum)
        facts = {
            "model": self.model.config.to_json(),
            "training": asdict(self.config),
            "synthetic": self.facts.get("synthetic"),
            "state": asdict(self.state),
        }
        # before its first weights the mean would be a fifth of the bytes, all zero
        has_mean = self.config.averaged(self.state.step) > 0
        save_parts(folder, self.vectors() if has_mean else self.adam.state(), facts, self.state.step)

    def resume(self, folder: Path) -> None:
        """Continue from the checkpoint of a folder."""
        vectors, facts = load_parts(folder)
        state = PieceState(**facts["state"])
        if facts["model"] != self.model.config.to_json():
            raise ArgumentError(folder, "be the run of this model", "one of another", "choose another folder")
        series = self.facts.get("synthetic")
        if facts["synthetic"] != series:
            raise ArgumentError(folder, f"be a run on the series {series}", facts["synthetic"], "choose another folder")
        self._check_training(facts["training"], state.step, folder)
        self.adam.load(vectors)
        self.mean.zero_()
        if "mean" in vectors:
            self.mean.copy_(vectors["mean"])
        self.state = state
        self._loss_sum.fill_(state.loss_sum)

    def _check_training(self, before: Mapping[str, Any], step: int, folder: Path) -> None:
        """Raise ValueError if a run was trained differently so far."""
        now = json.loads(json.dumps(asdict(self.config)))
        changed = [name for name in now if before.get(name) != now[name]]
        ends = [entry["steps"] - max(entry["decay"], entry["mean_span"]) for entry in (before, now)]
        if set(changed) <= set(_END) and (not changed or step <= min(ends)):
            return
        name = next((name for name in changed if name not in _END), changed[0])
        late = f" after step {min(ends)}, where its end began," if name in _END else ""
        raise ValueError(
            f"{name} must be {before.get(name)!r}, as in the run of {folder},{late} got {now[name]!r}; choose another "
            "folder, or the settings of the run."
        )

    def restart(self, weights: PretrainedForecaster, reason: str) -> None:
        """Continue from weights alone, with a warm-up and moments of zero; the record states it."""
        if weights.config != self.model.config:
            raise ArgumentError("weights", "be those of this model", "those of another config", "choose its arm")
        self.model.load_state_dict(weights.state_dict())
        step = int(weights.facts.get("step", 0))
        check_at_most("step of the weights", step, "steps", self.config.steps, "train for more steps")
        loss = weights.facts.get("loss")
        self.state = PieceState(step=step, restart=step, seconds=float(weights.facts.get("seconds", 0.0)))
        self.state.restarts = [*weights.facts.get("restarts", []), {"step": step, "loss": loss, "reason": reason}]
        self.state.curve = [{"step": step, "loss": loss, "rate": 0.0, "seconds": self.state.seconds}] if step else []

    def result(self) -> PretrainedForecaster:
        """The model so far, on the CPU: the mean of the last weights, if there are any, or the weights."""
        model = model_to_fill(self.model.config, facts=self.weights_facts())
        model.load_state_dict(self.model.state_dict())
        if self.config.averaged(self.state.step):
            vector = FlatAdam(model, self.config.adam)
            vector.weights.copy_(self.mean)
        for parameter in model.parameters():
            parameter.grad = None
        return model.eval()

    def weights_facts(self) -> dict[str, Any]:
        """What is stored with the weights."""
        state = self.state
        last = state.curve[-1]["loss"] if state.curve else None
        return {
            **self.facts,
            "step": state.step,
            "series": state.step * self.config.batch_size,
            "seconds": round(state.seconds, 1),
            "loss": last,
            "restarts": state.restarts,
            "averaged": self.config.averaged(state.step),
            "training": asdict(self.config),
        }


def train_piece(
    run: Pretraining,
    folder: Path,
    *,
    seconds: float | None = None,
    most_steps: int | None = None,
    save_every: int = 2000,
    weights: PretrainedForecaster | None = None,
    observe: PieceObserver | None = None,
) -> bool:
    """Train until the run is done, or this piece ends; return whether it is done.

    A folder with a checkpoint is resumed. The finished model lies in the folder "model", in bfloat16; record.json has
    the settings, throughput and loss curve of all pieces.

    Args:
        seconds: The piece ends at the first entry of the loss curve after this time.
        most_steps: The piece ends after this number of steps.
        save_every: Steps between two checkpoints; the end of a piece also writes one.
        weights: Where to continue if the folder has no checkpoint.
    """
    check_writable(folder)
    if has_parts(folder):
        run.resume(folder)
    elif weights is not None:
        run.restart(weights, "the checkpoint was lost")
    begin = time.perf_counter()
    before = run.state.seconds
    first = run.state.step
    last = min(run.config.steps, first + (run.config.steps if most_steps is None else most_steps))
    on_device = torch.cuda.device(run.device) if run.device.type == "cuda" else nullcontext()
    with on_device, stop_signals() as stop:
        while run.state.step < last:
            run.run_step()
            step = run.state.step
            if step % run.config.log_every and step < run.config.steps:
                if step % save_every == 0:
                    run.save(folder)
                continue
            passed = time.perf_counter() - begin
            run.state.seconds = before + passed
            entry = run.log(run.state.seconds)
            if observe is not None:
                observe(step, entry["loss"], (step - first) / passed)
            if stop.is_set() or (seconds is not None and passed >= seconds):
                break
            if step % save_every == 0:
                run.save(folder)
    run.state.seconds = before + time.perf_counter() - begin
    run.save(folder)
    write_run_record(run, folder)
    done = run.state.step == run.config.steps
    if done:
        run.result().save_pretrained(folder / MODEL_FOLDER, dtype=torch.bfloat16)
    return done


def write_run_record(run: Pretraining, folder: Path) -> None:
    """Write record.json: what was trained, on what, how fast, with which loss."""
    state = run.state
    on_gpu = run.device.type == "cuda"
    content = {
        "model": run.model.config.to_json(),
        "weights": sum(parameter.numel() for parameter in run.model.parameters()),
        **run.weights_facts(),
        "steps_per_second": _steps_per_second(state.curve),
        "device": torch.cuda.get_device_name(run.device) if on_gpu else "CPU",
        "torch": torch.__version__,
        "curve": state.curve,
    }
    write_atomically(folder / RECORD_FILE, (json.dumps(content, indent=1) + "\n").encode())


def _steps_per_second(curve: list[dict[str, Any]]) -> float | None:
    """Steps per second between the first and the last entry of the loss curve."""
    if len(curve) < 2:
        return None
    seconds = curve[-1]["seconds"] - curve[0]["seconds"]
    return (curve[-1]["step"] - curve[0]["step"]) / seconds if seconds > 0 else None
