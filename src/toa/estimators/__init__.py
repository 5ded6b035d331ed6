"""Estimators for a person's own data, with scikit-learn's habits."""

from toa.estimators.classifier import Classifier
from toa.estimators.detector import AnomalyDetector
from toa.estimators.forecaster import Forecaster

__all__ = ["AnomalyDetector", "Classifier", "Forecaster"]
