"""TSB-AD: a detector with its interface; `toa bench anomaly` measures it.

    detector = TSBDetector(model="auto").fit(train)
    detector.decision_scores_                             # scores of the rows of fit: TSB-AD's unsupervised track
    detector.decision_function(test)                      # scores of other rows: its semi-supervised track

The class has the attributes of TSB-AD's `BaseDetector` and needs nothing of that package.
"""

from typing import Any

import numpy as np

from toa._checks import ArgumentError
from toa.estimators import AnomalyDetector


class TSBDetector:
    """A detector of `toa` with the interface of TSB-AD.

    Args:
        contamination: Largest share of the rows of `fit` with `labels_` 1.
        options: Further arguments of `toa.AnomalyDetector`, such as `model="pca"`.

    Attributes:
        decision_scores_: Scores of the rows of `fit` (T,), higher for less usual rows.
        threshold_: Rows with a higher score have the label 1.
        labels_: 0 and 1 per row of `fit`.
        detector_: The fitted `toa.AnomalyDetector`.
    """

    def __init__(self, contamination: float = 0.1, **options: Any) -> None:
        self.contamination = contamination
        self.options = options

    def fit(self, X: np.ndarray, y: Any = None) -> "TSBDetector":
        """Fit to rows (T, C), which may contain anomalies; `y` is ignored."""
        self.detector_ = AnomalyDetector(contamination=self.contamination, **self.options).fit(_rows(X))
        self.decision_scores_ = self.decision_function(X)
        self.threshold_ = self.detector_.threshold_
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(int)
        return self

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Scores (T,) of rows (T, C)."""
        if not hasattr(self, "detector_"):
            raise ArgumentError("a TSBDetector", "be fitted before it scores rows", "an unfitted one", "call fit")
        return np.asarray(self.detector_.scores(_rows(X)))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """0 and 1 per row, 1 for an anomaly."""
        return (self.decision_function(X) > self.threshold_).astype(int)


def _rows(X: Any) -> np.ndarray:
    values = np.asarray(X, dtype=np.float64)
    if values.ndim not in (1, 2):
        raise ArgumentError("X", "have the shape (T, C)", values.shape)
    return values.reshape(len(values), -1)
