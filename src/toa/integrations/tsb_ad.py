"""TSB-AD: a detector with its interface, and the detectors of `toa` on data sets by its VUS-PR.

    detector = TSBDetector(model="auto").fit(train)
    detector.decision_scores_                             # scores of the rows of fit: TSB-AD's unsupervised track
    detector.decision_function(test)                      # scores of other rows: its semi-supervised track
    evaluate("SMD-machine-2-1", "toa")                    # VUS-PR, times and the methods with a weight

The class has the attributes of TSB-AD's `BaseDetector` and needs nothing of that package.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from toa._checks import check_choice
from toa.data import ANOMALY_SETS, load_anomaly
from toa.estimators import AnomalyDetector
from toa.estimators.detector import MODELS
from toa.tasks.detection import undefined, vus_metrics

METHODS = ("toa", "toa-network", *MODELS[2:])
SETS = ("SMD-machine-1-6", "SMD-machine-2-1", "MSL", "SMAP")
# rows of the buffer around anomalies, the default of TSB-AD's `get_metrics`
BUFFER = 100


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
        self.contamination, self.options = contamination, options

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
            raise ValueError("a TSBDetector must be fitted before it scores rows, got an unfitted one; call fit.")
        return np.asarray(self.detector_.scores(_rows(X)))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """0 and 1 per row, 1 for an anomaly."""
        return (self.decision_function(X) > self.threshold_).astype(int)


def evaluate(dataset: str, method: str, *, data_dir: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Fit to the train rows of a data set, score its test rows, and compare with the labels.

    Args:
        dataset: A name of `toa.data.ANOMALY_SETS`.
        method: "toa", the default detector; "toa-network", its network alone; or a baseline.
        data_dir: First folder to search for the data.
        options: Arguments of `toa.AnomalyDetector`.

    Returns:
        "vus_pr" and "vus_roc" by the rules of TSB-AD, "checksum" of the data, "fit_seconds", "score_seconds",
        "cpu_seconds", and for "toa" the "weights" and the "precision" on injected anomalies.
    """
    check_choice("dataset", dataset, ANOMALY_SETS)
    check_choice("method", method, METHODS)
    model = {"toa": "auto", "toa-network": "toa"}.get(method, method)
    data = load_anomaly(dataset, length=1, data_dir=data_dir, allow_constant=True)
    reason = undefined(data.labels)
    if reason is not None:
        raise ValueError(f"{dataset} must have anomalies and normal rows, but {reason}.")
    begin, cpu = time.monotonic(), time.process_time()
    detector = AnomalyDetector(model=model, device="cpu", **options).fit(data.train.numpy().astype(np.float64))
    fitted = time.monotonic()
    score = detector.scores(data.test.numpy().astype(np.float64))
    result: dict[str, Any] = {
        "fit_seconds": fitted - begin,
        "score_seconds": time.monotonic() - fitted,
        "cpu_seconds": time.process_time() - cpu,
        "checksum": data.checksum,
        "network": detector.architecture_["backbone"],
        **vus_metrics(data.labels, score, max_buffer=BUFFER, rules="tsb-ad"),
    }
    if detector.choice_ is not None:
        result |= {"weights": detector.choice_.weights, "precision": dict(detector.choice_.precision)}
    return result


def _rows(X: Any) -> np.ndarray:
    values = np.asarray(X, dtype=np.float64)
    if values.ndim not in (1, 2):
        raise ValueError(f"X must have the shape (T, C), got {values.shape}.")
    return values.reshape(len(values), -1)
