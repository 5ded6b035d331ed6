"""Estimators for a person's own data, with scikit-learn's habits."""

from toa.estimators.classifier import Classifier
from toa.estimators.detector import AnomalyDetector

__all__ = ["AnomalyDetector", "Classifier"]
