"""Optimizers and learning-rate schedules by name.

Schedules are functions of the step alone, so a resumed run needs no scheduler state.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_positive
from toa.nn import SequenceOperator
from toa.tasks.piecewise import PiecewiseAdam, PiecewiseAdamW

OptimizerName = Literal["adamw", "adam", "radam"]
OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "radam": torch.optim.RAdam}
_FUSED = {"adamw": PiecewiseAdamW, "adam": PiecewiseAdam}
Schedule = Literal["constant", "type1", "type3", "cosine", "onecycle", "warmup-cosine"]
SCHEDULES = ("constant", "type1", "type3", "cosine", "onecycle", "warmup-cosine")

# of the one-cycle schedule: the first rate is max / 25, the last max / 250000
_FIRST_DIVISOR = 25.0
_LAST_DIVISOR = 25.0 * 1e4

# in a group of parameters, what its rate is multiplied by
_FACTOR = "rate_factor"

# in a group of parameters, what a rate that lives on the device was last set to
_LAST = "last_rate"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How a model is trained, whatever it is trained on.

    Args:
        epochs: Passes over the data, at most.
        optimizer: "adamw", "adam" or "radam".
        learning_rate: The schedule's highest rate.
        betas: Decay of the optimizer's moments.
        weight_decay: Decoupled for adamw, added to the gradient for the others.
        operator_weight_decay: That of the operators' offsets M; `weight_decay` if None.
        operator_rate: What their learning rate is multiplied by.
        schedule: "constant"; "type1", halved each epoch after the second; "type3", times 0.9 each epoch after the
            fourth; "cosine", from epoch to epoch down to zero; "onecycle", from step to step up to the rate and down;
            "warmup-cosine", from step to step, linear up and half a cosine down.
        pct_start: Share of the steps in which "onecycle" rises.
        warmup: Steps in which "warmup-cosine" rises.
        accumulate: Batches whose gradients make one step.
        clip_norm: Largest norm of the gradient; None clips nothing.
        patience: Epochs without a better validation loss after which training ends; None is never.
        compile: Whether torch.compile fuses what lies between matrix products: up to a minute to begin, then quicker
            steps, on a CPU by a quarter at best. Random numbers are drawn in another way. A CPU needs a C++ compiler.
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

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """Learning rate of a step, counted from 0 over all epochs."""
        total = self.epochs * steps_per_epoch
        return self.learning_rate * self._factor(step, step // steps_per_epoch, total)

    def _factor(self, step: int, epoch: int, total: int) -> float:
        match self.schedule:
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
    """Half a cosine from 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * share))


def make_optimizer(model: nn.Module, config: TrainingConfig, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer of a config; on CUDA it can be captured in a graph, its rate read from the device."""
    on_cuda = device.type == "cuda"
    settings: dict[str, object] = {"betas": config.betas, "weight_decay": config.weight_decay, "capturable": on_cuda}
    if config.optimizer != "radam":
        settings["fused"] = on_cuda

    def rate(factor: float) -> Tensor | float:
        value = config.learning_rate * factor
        return torch.tensor(value, device=device) if on_cuda else value

    parameters: Any = model.parameters()
    if config.operator_weight_decay is not None or config.operator_rate != 1.0:
        offsets = {p for m in model.modules() if isinstance(m, SequenceOperator) for p in m.parameters()}
        own: dict[str, object] = {"lr": rate(config.operator_rate), _FACTOR: config.operator_rate}
        if config.operator_weight_decay is not None:
            own["weight_decay"] = config.operator_weight_decay
        groups = (
            {"params": [p for p in model.parameters() if p not in offsets]},
            {"params": [p for p in model.parameters() if p in offsets], **own},
        )
        parameters = [group for group in groups if group["params"]]
    kinds = OPTIMIZERS | _FUSED if on_cuda else OPTIMIZERS
    return kinds[config.optimizer](parameters, lr=rate(1.0), **settings)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters, in place where it lives on the device and is another than before."""
    for group in optimizer.param_groups:
        own = rate * group.get(_FACTOR, 1.0)
        if not isinstance(group["lr"], Tensor):
            group["lr"] = own
        elif group.get(_LAST) != own:
            group["lr"].fill_(own)
            group[_LAST] = own
