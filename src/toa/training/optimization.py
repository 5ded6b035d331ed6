"""Optimizers and learning-rate schedules by name.

Schedules are functions of the step alone, so a resumed run needs no scheduler state.

`PiecewiseAdam` and `PiecewiseAdamW` spread small models evenly over a GPU: PyTorch's fused kernels give 2¹⁶ numbers to
each block of threads, so a model of a million weights uses a tenth of a large GPU. Cut into pieces, its weights are
updated by as many blocks as there are processors. Results, state and file format are those of PyTorch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least, check_positive
from toa.nn import SequenceOperator
from toa.nn.registry import ADDED_LATER, check_literals

OptimizerName = Literal["adamw", "adam", "radam"]
OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "radam": torch.optim.RAdam}
Schedule = Literal["constant", "type1", "type3", "cosine", "onecycle", "warmup-cosine"]

# one-cycle schedule: initial rate, in units of the largest one
_FIRST_RATE = 1.0 / 25.0
# one-cycle schedule: final rate, in units of the largest one
_LAST_RATE = 1.0 / (25.0 * 1e4)

# keys of a parameter group: whether it holds the operators, and the last rate written to the device
_OPERATORS = "operators"
_LAST = "last_rate"

# numbers per block in PyTorch's fused kernels, and blocks per one or two launches
_BLOCK = 2**16
_PIECES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Training options that do not depend on the task.

    Args:
        epochs: Maximum number of passes over the data.
        learning_rate: Highest rate of the schedule.
        weight_decay: Decoupled for adamw, added to the gradient for the others.
        operator_weight_decay: Weight decay of the operators' offsets M; `weight_decay` if None.
        operator_rate: Factor of the operators' learning rate.
        schedule: "constant"; "type1", halved in each epoch after the second; "type3", times 0.9 in each epoch after the
            fourth; "cosine", half a cosine to zero by epoch; "onecycle", up to the rate and down again by step;
            "warmup-cosine", a linear rise and then half a cosine to zero by step.
        pct_start: Fraction of the steps in which "onecycle" rises.
        warmup: Number of steps in which "warmup-cosine" rises.
        accumulate: Number of batches per optimizer step.
        clip_norm: Maximum norm of the gradient; None for no clipping.
        patience: Number of epochs without a better validation loss before training stops; None to never stop early.
        compile: Whether to use torch.compile. The first step needs up to a minute; later ones can be faster, on a CPU
            also slower. Random draws differ from those of eager mode. A CPU needs a C++ compiler.
        least_loss: Mean training loss of an epoch, at or below which training stops.
        validate_start: Whether the weights before the first epoch also count as a result, for a model that starts well.
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
    least_loss: float | None = field(default=None, metadata=ADDED_LATER)
    validate_start: bool = field(default=False, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        least = {"weight_decay": 0.0, "operator_weight_decay": 0.0, "warmup": 0, "least_loss": 0.0}
        for name, value in (least | {"epochs": 1, "accumulate": 1, "patience": 1}).items():
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), value)
        for name in ("learning_rate", "operator_rate", "clip_norm"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_literals(self)
        if not 0.0 < self.pct_start < 1.0:
            raise ArgumentError("pct_start", "lie in (0, 1)", self.pct_start)

    def rate(self, step: int, steps_per_epoch: int, *, operators: bool = False) -> float:
        """Return the learning rate of a step, counted from 0 over all epochs; of the operators if asked."""
        highest = self.learning_rate * (self.operator_rate if operators else 1.0)
        epoch = step // steps_per_epoch
        total = self.epochs * steps_per_epoch
        match self.schedule:
            case "type1":
                return highest * 0.5 ** max(0, epoch - 1)
            case "type3":
                return highest * 0.9 ** max(0, epoch - 3)
            case "cosine":
                return highest * _fall(epoch / self.epochs)
            case "onecycle":
                top = self.pct_start * total - 1.0
                if step < top:
                    return highest * (_FIRST_RATE + (1.0 - _FIRST_RATE) * (1.0 - _fall(step / top)))
                return highest * (_LAST_RATE + (1.0 - _LAST_RATE) * _fall((step - top) / max(total - 1.0 - top, 1e-12)))
            case "warmup-cosine":
                if step < self.warmup:
                    return highest * ((step + 1) / self.warmup)
                return highest * _fall((step - self.warmup) / max(1, total - self.warmup))
            case _:
                return highest


def _fall(share: float) -> float:
    """Return half a cosine from 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * share))


def make_optimizer(model: nn.Module, config: TrainingConfig, device: torch.device) -> torch.optim.Optimizer:
    """Build the optimizer. On CUDA it can be captured in a graph and reads its learning rates from the device."""
    on_cuda = device.type == "cuda"
    settings: dict[str, Any] = {"betas": config.betas, "weight_decay": config.weight_decay, "capturable": on_cuda}
    if config.optimizer != "radam":
        settings["fused"] = device.type in ("cpu", "cuda")
    rates = (config.learning_rate, config.learning_rate * config.operator_rate)
    rate, operator_rate = (torch.tensor(value, device=device) if on_cuda else value for value in rates)
    fused = {"adamw": PiecewiseAdamW, "adam": PiecewiseAdam}
    kind = (OPTIMIZERS | fused if on_cuda else OPTIMIZERS)[config.optimizer]
    offsets = {p for m in model.modules() if isinstance(m, SequenceOperator) for p in m.parameters()}
    if not offsets or (config.operator_rate == 1.0 and config.operator_weight_decay is None):
        return kind(model.parameters(), lr=rate, **settings)
    operators: dict[str, Any] = {
        "params": [p for p in model.parameters() if p in offsets],
        "lr": operator_rate,
        "weight_decay": config.weight_decay if config.operator_weight_decay is None else config.operator_weight_decay,
        _OPERATORS: True,
    }
    others = {"params": [p for p in model.parameters() if p not in offsets]}
    return kind([group for group in (others, operators) if group["params"]], lr=rate, **settings)


def set_rates(optimizer: torch.optim.Optimizer, config: TrainingConfig, step: int, steps_per_epoch: int) -> None:
    """Set the learning rates of a step; rates on the device are changed in place, and only if they differ."""
    for group in optimizer.param_groups:
        rate = config.rate(step, steps_per_epoch, operators=bool(group.get(_OPERATORS)))
        if not isinstance(group["lr"], Tensor):
            group["lr"] = rate
        elif group.get(_LAST) != rate:
            group["lr"].fill_(rate)
            group[_LAST] = rate


class _Piecewise(torch.optim.Optimizer):
    """A step of Adam or AdamW with tensors cut into pieces.

    Attributes:
        least_piece: Smallest number of entries of a piece.
        alignment: The number of entries of a piece is a multiple of this, for vectorised reads.
    """

    least_piece = 2**14
    alignment = 1024

    _update: Callable[..., None]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        total = sum(p.numel() for group in self.param_groups for p in group["params"])
        size = max(self.least_piece, -(-total // (_PIECES * self.alignment)) * self.alignment)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            states: list[dict[str, Tensor]] = [self.state[p] for p in params]
            for p, state in zip(params, states, strict=True):
                if not state:
                    # as in PyTorch
                    state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
                    state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            rows = [
                piece
                for p, state in zip(params, states, strict=True)
                for piece in _pieces((p, p.grad, state["exp_avg"], state["exp_avg_sq"]), state["step"], size)
            ]
            values, grads, firsts, seconds, counts = map(list, zip(*rows, strict=True))
            type(self)._update(
                *(values, grads, firsts, seconds, [], counts),
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
        return loss


class PiecewiseAdam(_Piecewise, torch.optim.Adam):
    """`torch.optim.Adam`, fused."""

    _update = torch._fused_adam_


class PiecewiseAdamW(_Piecewise, torch.optim.AdamW):
    """`torch.optim.AdamW`, fused."""

    _update = torch._fused_adamw_


def _pieces(tensors: tuple[Tensor, ...], step: Tensor, size: int) -> list[tuple[Tensor, ...]]:
    """Cut tensors of one shape into equal pieces, each with the step count."""
    if size >= _BLOCK or tensors[0].numel() <= size or not all(x.is_contiguous() for x in tensors):
        return [(*tensors, step)]
    cut = (x.view(-1).split(size) for x in tensors)
    return [(*pieces, step) for pieces in zip(*cut, strict=True)]
