"""Operator attention on time series.

Softmax attention can only average its inputs. `toa` puts learnable, signed operators around the attention
activation, O = act(A S1) S2 V with S = I + M, and holds what stands on that: layers, models, tasks, theory.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = ("data", "estimators", "experiments", "integrations", "models", "nn", "ops", "report", "tasks", "theory")
# names of rooms that are the package's own too
_NAMES = {
    "AnomalyDetector": "estimators",
    "Classifier": "estimators",
    "Forecaster": "estimators",
    "convert": "integrations",
}

__all__ = ["__version__", *_ROOMS, *_NAMES]


def __getattr__(name: str) -> Any:
    # rooms load on first use, so that `import toa` does not pay for torch
    if name in _ROOMS:
        return importlib.import_module(f"toa.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"toa.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'toa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS, *_NAMES])
