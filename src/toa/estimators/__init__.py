"""Estimators for users' own data, with the interface of scikit-learn."""

from toa.estimators.classifier import Classifier
from toa.estimators.detector import AnomalyDetector
from toa.estimators.forecaster import Forecaster

__all__ = ["AnomalyDetector", "Classifier", "Forecaster"]
