"""Operator attention on time series.

Softmax attention can only average its inputs. `toa` puts learnable, signed operators around the attention
activation, O = act(A S1) S2 V with S = I + M, and holds what stands on that: layers, models, training, estimators.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PACKAGES = ("data", "estimators", "experiments", "integrations", "models", "nn", "ops", "report", "training")
# names that are reachable as toa.NAME, with the package that defines each
_NAMES = {
    "AnomalyDetector": "estimators",
    "Classifier": "estimators",
    "Forecaster": "estimators",
    "convert": "integrations",
    "fine_tune": "estimators",
    "zero_shot": "estimators",
}

__all__ = ["__version__", *_PACKAGES, *_NAMES]


def __getattr__(name: str) -> Any:
    # packages load on first use: `import toa` does not import torch
    if name in _PACKAGES:
        return importlib.import_module(f"toa.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"toa.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'toa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PACKAGES, *_NAMES])
