"""Estimators for users' own data, with the interface of scikit-learn."""

from toa.estimators.classifier import Classifier
from toa.estimators.detector import AnomalyDetector
from toa.estimators.forecaster import Forecaster
from toa.estimators.zero_shot_tables import fine_tune, zero_shot

__all__ = ["AnomalyDetector", "Classifier", "Forecaster", "fine_tune", "zero_shot"]
