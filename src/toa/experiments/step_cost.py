"""What a training step costs: time, memory, parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from toa.nn import Attention


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """The cost of a model's training step.

    Args:
        milliseconds: Median of all steps.
        tenth, ninetieth: Quantiles of the steps' times at 10 and 90 percent, in milliseconds.
        peak_memory: Most bytes that training has held, weights and optimizer included; None where it is not measured.
        parameters: How many the model has.
        backend: That of its attention; None if it has none of ours.
    """

    milliseconds: float
    tenth: float
    ninetieth: float
    peak_memory: int | None
    parameters: int
    backend: str | None = None

    @classmethod
    def of(cls, model: nn.Module, seconds: Sequence[float], memory: "PeakMemory") -> "StepCost":
        """What the steps of a model came to."""
        low, median, high = np.quantile(seconds, (0.1, 0.5, 0.9)).tolist()
        return cls(
            milliseconds=1e3 * median,
            tenth=1e3 * low,
            ninetieth=1e3 * high,
            peak_memory=memory.peak(),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            backend=next((m.chosen_backend() for m in model.modules() if isinstance(m, Attention)), None),
        )


class PeakMemory:
    """Most memory held since this was made: on CUDA what PyTorch allots, else what the process has grown by."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: int | None = 0
        if device.type == "cuda":
            # before CUDA has started there are no numbers to reset
            torch.cuda.init()
            torch.cuda.reset_peak_memory_stats(device)
        else:
            self._before = _reset_high_water()

    def peak(self) -> int | None:
        """In bytes; None where the system does not say."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return None if self._before is None else _high_water() - self._before


# what Linux tells a process about itself
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def _reset_high_water() -> int | None:
    """Forget what the process held before, and say what it holds now, in bytes; None on other systems."""
    try:
        _CLEAR.write_text("5", encoding="ascii")
        return _high_water()
    except OSError:
        return None


def _high_water() -> int:
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
