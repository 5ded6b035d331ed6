"""Effort: how much work a fit may take, counted in windows, columns and steps.

No clock decides what is fitted: data, settings, seed and number of threads give one result on any machine, however busy
it is. `Ceiling` is the one exception, and only if the user sets `time_limit`: it leaves whole methods out, and names
them.
"""

import time
import warnings
from dataclasses import dataclass, field
from typing import Any

from toa._checks import Argument, ArgumentWarning
from toa._registry import Registry


def _limit(text: str) -> Any:
    """A field with its meaning, which the documentation prints."""
    return field(metadata={"limits": text})


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Limits on the counted work of a fit. An interval of a high probability may need more origins."""

    histories: int = _limit("forecaster: windows times columns at the rolling origins")
    origins: int = _limit("forecaster: windows that each column has there nevertheless")
    linear_windows: int = _limit("forecaster: windows that each linear model is fitted to")
    tree_windows: int = _limit("forecaster: windows that boosted trees are fitted to")
    network_steps: int = _limit("training steps of a network")
    network_windows: int = _limit("forecaster: windows times columns that a network sees in training")
    channel_windows: int = _limit("forecaster: windows times columns that a network of all columns sees in training")
    detector_windows: int = _limit("detector: windows times columns that the network sees in training")
    networks: int = _limit("forecaster: networks of further seeds that are averaged, and kinds that are compared")
    trees: int = _limit("forecaster: boosted trees")
    kernels: int = _limit("classifier: kernels of MultiRocket")
    kernel_groups: int = _limit("classifier: groups of kernels of Hydra")
    kernel_values: int = _limit("classifier: values (cases times channels times steps) for which all kernels are used")
    candidates: int = _limit("classifier: networks that are compared")

    @property
    def has_networks(self) -> bool:
        """Whether networks are trained at all."""
        return self.network_windows > 0


EFFORTS: Registry[Effort] = Registry("effort")

EFFORTS.register("quick")(
    Effort(
        histories=1_500,
        origins=8,
        linear_windows=20_000,
        tree_windows=8_000,
        network_steps=200,
        network_windows=30_000,
        channel_windows=0,
        detector_windows=150_000,
        networks=1,
        trees=200,
        kernels=6_250,
        kernel_groups=64,
        kernel_values=2_000_000,
        candidates=1,
    )
)
EFFORTS.register("thorough")(
    Effort(
        histories=4_000,
        origins=40,
        linear_windows=40_000,
        tree_windows=40_000,
        network_steps=4_000,
        network_windows=1_500_000,
        channel_windows=4_000_000,
        detector_windows=10_000_000,
        networks=3,
        trees=200,
        kernels=6_250,
        kernel_groups=64,
        kernel_values=100_000_000,
        candidates=3,
    )
)
DEFAULT_EFFORT = "quick"


@dataclass(slots=True)
class Ceiling:
    """The optional largest number of seconds of a fit, and the methods that it left out.

    A method begins only if it is expected to end in time; one that runs is not stopped.
    """

    seconds: float | None
    begin: float = field(default_factory=lambda: time.monotonic())
    left_out: list[str] = field(default_factory=list)

    @property
    def passed(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.begin

    @property
    def left(self) -> float:
        """Seconds until the end; negative after it, and infinite without a limit."""
        return float("inf") if self.seconds is None else self.seconds - self.passed

    def allows(self, method: str, expected: float = 0.0) -> bool:
        """Whether a method that takes about `expected` seconds may begin; one that may not is noted."""
        if self.left > expected:
            return True
        if method not in self.left_out:
            self.left_out.append(method)
        return False

    def warn(self, stacklevel: int = 3) -> None:
        """Name what was left out, if anything was."""
        if self.left_out:
            methods = ", ".join(self.left_out)
            text = f" of {self.seconds:g} s left out: {methods}; raise it, or leave it out for all methods."
            warnings.warn(ArgumentWarning(Argument("time_limit"), text), stacklevel=stacklevel)
