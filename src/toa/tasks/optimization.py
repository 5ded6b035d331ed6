"""Optimizers and learning-rate schedules by name.

Schedules are functions of the step alone, so a resumed run needs no scheduler state.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_positive
from toa._config import ADDED_LATER
from toa.nn import SequenceOperator
from toa.tasks.muon import WithMuon
from toa.tasks.piecewise import PiecewiseAdam, PiecewiseAdamW

OptimizerName = Literal["adamw", "adam", "radam"]
OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "radam": torch.optim.RAdam}
_FUSED = {"adamw": PiecewiseAdamW, "adam": PiecewiseAdam}
OperatorOptimizer = Literal["muon"]
Schedule = Literal["constant", "type1", "type3", "cosine", "onecycle", "warmup-cosine"]
SCHEDULES = ("constant", "type1", "type3", "cosine", "onecycle", "warmup-cosine")

# one-cycle schedule: the initial rate is max / 25, the final rate max / 250000
_FIRST_DIVISOR = 25.0
_LAST_DIVISOR = 25.0 * 1e4

# key that marks the parameter group of the operators
_OPERATORS = "operators"

# key of the last value written to a learning rate on the device
_LAST = "last_rate"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Training options that do not depend on the task.

    Args:
        epochs: Maximum number of passes over the data.
        optimizer: "adamw", "adam" or "radam".
        learning_rate: Highest rate of the schedule.
        betas: Decay rates of the optimizer's moments.
        weight_decay: Decoupled for adamw, added to the gradient for the others.
        operator_weight_decay: Weight decay of the operators' offsets M; `weight_decay` if None.
        operator_rate: Factor of the operators' learning rate.
        operator_warmup: Number of steps over which the operators' rate rises linearly from zero.
        operator_schedule: Schedule of the operators' rate; `schedule` if None.
        operator_optimizer: "muon" for orthogonalised momentum (dense operators only); `optimizer` if None.
        schedule: "constant"; "type1", halved in each epoch after the second; "type3", times 0.9 in each epoch after the
            fourth; "cosine", half a cosine to zero by epoch; "onecycle", up to the rate and down again by step;
            "warmup-cosine", a linear rise and then half a cosine to zero by step.
        pct_start: Fraction of the steps in which "onecycle" rises.
        warmup: Number of steps in which "warmup-cosine" rises.
        accumulate: Number of batches per optimizer step.
        clip_norm: Maximum norm of the gradient; None for no clipping.
        patience: Number of epochs without a better validation loss before training stops; None to never stop early.
        compile: Whether to use torch.compile. The first step needs up to a minute; later ones are faster, on a CPU by
            at most a quarter. Random draws differ from those of eager mode. A CPU needs a C++ compiler.
    """

    epochs: int = 10
    optimizer: OptimizerName = "adamw"
    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    operator_weight_decay: float | None = None
    operator_rate: float = 1.0
    schedule: Schedule = "constant"
    pct_start: float = 0.3
    warmup: int = 0
    accumulate: int = 1
    clip_norm: float | None = None
    patience: int | None = None
    compile: bool = False
    operator_warmup: int = field(default=0, metadata=ADDED_LATER)
    operator_schedule: Schedule | None = field(default=None, metadata=ADDED_LATER)
    operator_optimizer: OperatorOptimizer | None = field(default=None, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        check_at_least("epochs", self.epochs, 1)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_positive("learning_rate", self.learning_rate)
        check_at_least("weight_decay", self.weight_decay, 0.0)
        if self.operator_weight_decay is not None:
            check_at_least("operator_weight_decay", self.operator_weight_decay, 0.0)
        check_positive("operator_rate", self.operator_rate)
        check_choice("schedule", self.schedule, SCHEDULES)
        if not 0.0 < self.pct_start < 1.0:
            raise ValueError(f"pct_start must lie in (0, 1), got {self.pct_start}.")
        check_at_least("warmup", self.warmup, 0)
        check_at_least("accumulate", self.accumulate, 1)
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)
        if self.patience is not None:
            check_at_least("patience", self.patience, 1)
        check_at_least("operator_warmup", self.operator_warmup, 0)
        if self.operator_schedule is not None:
            check_choice("operator_schedule", self.operator_schedule, SCHEDULES)
        if self.operator_optimizer is not None:
            check_choice("operator_optimizer", self.operator_optimizer, ("muon",))

    @property
    def separates_operators(self) -> bool:
        """Whether the operators need a separate parameter group."""
        options = (self.operator_weight_decay, self.operator_schedule, self.operator_optimizer)
        return self.operator_rate != 1.0 or self.operator_warmup > 0 or any(value is not None for value in options)

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of a step, counted from 0 over all epochs."""
        return self.learning_rate * self._factor(self.schedule, step, steps_per_epoch)

    def operator_learning_rate(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of the operators at a step."""
        rise = min(1.0, (step + 1) / self.operator_warmup) if self.operator_warmup else 1.0
        factor = self._factor(self.operator_schedule or self.schedule, step, steps_per_epoch)
        return self.learning_rate * self.operator_rate * rise * factor

    def _factor(self, schedule: Schedule, step: int, steps_per_epoch: int) -> float:
        epoch, total = step // steps_per_epoch, self.epochs * steps_per_epoch
        match schedule:
            case "type1":
                return 0.5 ** max(0, epoch - 1)
            case "type3":
                return 0.9 ** max(0, epoch - 3)
            case "cosine":
                return _fall(epoch / self.epochs)
            case "onecycle":
                return self._one_cycle(step, total)
            case "warmup-cosine":
                if step < self.warmup:
                    return (step + 1) / self.warmup
                return _fall((step - self.warmup) / max(1, total - self.warmup))
            case _:
                return 1.0

    def _one_cycle(self, step: int, total: int) -> float:
        first, last = 1.0 / _FIRST_DIVISOR, 1.0 / _LAST_DIVISOR
        top = self.pct_start * total - 1.0
        if step <= top:
            return first + (1.0 - first) * (1.0 - _fall(step / top))
        return last + (1.0 - last) * _fall((step - top) / max(total - 1.0 - top, 1e-12))


def _fall(share: float) -> float:
    """Return half a cosine from 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * share))


def make_optimizer(model: nn.Module, config: TrainingConfig, device: torch.device) -> torch.optim.Optimizer:
    """Build the optimizer. On CUDA it can be captured in a graph and reads its learning rates from the device."""
    on_cuda = device.type == "cuda"
    settings: dict[str, Any] = {"betas": config.betas, "weight_decay": config.weight_decay, "capturable": on_cuda}
    if config.optimizer != "radam":
        settings["fused"] = on_cuda

    def rate(value: float) -> Tensor | float:
        return torch.tensor(value, device=device) if on_cuda else value

    kind = (OPTIMIZERS | _FUSED if on_cuda else OPTIMIZERS)[config.optimizer]
    offsets = {p for m in model.modules() if isinstance(m, SequenceOperator) for p in m.parameters()}
    if not offsets or not config.separates_operators:
        return kind(model.parameters(), lr=rate(config.learning_rate), **settings)
    decay = config.weight_decay if config.operator_weight_decay is None else config.operator_weight_decay
    operators: dict[str, Any] = {
        "params": [p for p in model.parameters() if p in offsets],
        "lr": rate(config.learning_rate * config.operator_rate),
        "weight_decay": decay,
        _OPERATORS: True,
    }
    others = {"params": [p for p in model.parameters() if p not in offsets]}
    if config.operator_optimizer == "muon":
        if any(p.dim() != 3 or p.shape[-1] != p.shape[-2] for p in offsets):
            raise ValueError("operator_optimizer must be None for operators that are not dense, got 'muon'.")
        return WithMuon(kind([others], lr=rate(config.learning_rate), **settings), [operators])
    return kind([group for group in (others, operators) if group["params"]], lr=rate(config.learning_rate), **settings)


def set_rates(optimizer: torch.optim.Optimizer, config: TrainingConfig, step: int, steps_per_epoch: int) -> None:
    """Set the learning rates of a step; rates on the device are changed in place, and only if they differ."""
    for group in optimizer.param_groups:
        rate_of = config.operator_learning_rate if group.get(_OPERATORS) else config.rate
        rate = rate_of(step, steps_per_epoch)
        if not isinstance(group["lr"], Tensor):
            group["lr"] = rate
        elif group.get(_LAST) != rate:
            group["lr"].fill_(rate)
            group[_LAST] = rate
