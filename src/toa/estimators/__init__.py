"""Estimators for users' own data, with the interface of scikit-learn.

They load on first use: torch takes long to import, and the checks of a command do not need it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toa.estimators.classifier import Classifier
    from toa.estimators.detector import AnomalyDetector
    from toa.estimators.forecaster import Forecaster
    from toa.estimators.zero_shot_tables import fine_tune, zero_shot

_MODULES = {
    "AnomalyDetector": "detector",
    "Classifier": "classifier",
    "Forecaster": "forecaster",
    "fine_tune": "zero_shot_tables",
    "zero_shot": "zero_shot_tables",
}

__all__ = ["AnomalyDetector", "Classifier", "Forecaster", "fine_tune", "zero_shot"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"toa.estimators.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'toa.estimators' has no attribute {name!r}")
