"""Cost of a training step: time, memory and parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from toa._limits import peak_bytes
from toa.experiments.protocols import load_protocol, resolve
from toa.nn import Attention
from toa.training.distributed import make_fabric
from toa.training.forecast import FORECASTING, ForecastRun, ForecastWindows
from toa.training.loop import time_steps
from toa.training.step import ShuffledBatches

# with fewer steps the median of millisecond steps is not reliable
MIN_CUDA_STEPS = 50


HORIZON = 96


def step_config(protocol: str, *, dataset: str, backbone: str, attention: str | None, **seed: int) -> ForecastRun:
    """A forecasting run with the sizes of a protocol and, if it covers the backbone, the attention of `toa-paper`."""
    names = {"dataset": dataset, "horizon": HORIZON, "backbone": backbone, "attention": attention, **seed}
    config = resolve("forecast", protocol, **names)
    if attention is None or backbone not in load_protocol("forecast", "toa-paper").tables:
        return config
    return replace(config, attention=resolve("forecast", "toa-paper", **names).attention)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """Cost of a training step of a model.

    Args:
        milliseconds: Median over steps.
        tenth, ninetieth: 10 % and 90 % quantiles, in milliseconds.
        peak_memory: Peak bytes of training, weights and optimizer included; None if the system does not report it.
        parameters: Number of parameters.
        backend: Backend of the attention; None for a model without our attention.
    """

    milliseconds: float
    tenth: float
    ninetieth: float
    peak_memory: int | None
    parameters: int
    backend: str | None = None

    @classmethod
    def of(cls, model: nn.Module, seconds: Sequence[float], memory: "PeakMemory") -> "StepCost":
        """Summarize the steps of a model."""
        low, median, high = np.quantile(seconds, (0.1, 0.5, 0.9)).tolist()
        return cls(
            milliseconds=1e3 * median,
            tenth=1e3 * low,
            ninetieth=1e3 * high,
            peak_memory=memory.peak(),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            backend=next((m.chosen_backend() for m in model.modules() if isinstance(m, Attention)), None),
        )


class OwnSystem:
    """One of our models in our training loop.

    Args:
        config: Run whose steps are timed.
        make_batches: Makes the training batches; what it allocates counts as memory of the system.
        channels: Number of channels of the series.
        device: Device to train on.
    """

    def __init__(
        self, config: ForecastRun, make_batches: Callable[[], ShuffledBatches], channels: int, device: torch.device
    ) -> None:
        self._config = config
        self._fabric = make_fabric(device, precision=config.precision)
        self._memory = PeakMemory(device)
        self._batches = make_batches()
        self._model = FORECASTING.build(config, ForecastWindows(channels=channels))

    def time_steps(self, steps: int, warmup: int) -> list[float]:
        """Seconds of each of `steps` steps, after `warmup` steps that do not count."""
        loss = FORECASTING.loss(self._config, self._fabric)
        return time_steps(
            self._model,
            self._batches,
            loss,
            self._config.training,
            fabric=self._fabric,
            steps=steps,
            warmup=warmup,
        )

    def cost(self, seconds: Sequence[float]) -> StepCost:
        """Cost of the steps that took `seconds`."""
        return StepCost.of(self._model, seconds, self._memory)


class PeakMemory:
    """Peak memory since construction: allocated by PyTorch on CUDA, growth of the process elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: int | None = 0
        if device.type == "cuda":
            # statistics cannot be reset before CUDA is initialized
            torch.cuda.init()
            torch.cuda.reset_peak_memory_stats(device)
        else:
            self._before = _reset_peak()

    def peak(self) -> int | None:
        """Bytes; None if the operating system does not report them."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return None if self._before is None else peak_bytes() - self._before


# Linux only
_CLEAR = Path("/proc/self/clear_refs")


def _reset_peak() -> int | None:
    """Reset the high-water mark of the process and return its new value in bytes; None off Linux."""
    try:
        _CLEAR.write_text("5", encoding="ascii")
        return peak_bytes()
    except OSError:
        return None
