"""The detectors of `toa` on data sets of the catalogue, by the VUS-PR of TSB-AD.

evaluate("SMD-machine-2-1", "toa")        # VUS-PR, times and the methods with a weight
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toa._checks import check_choice
from toa.data import ANOMALY_SETS as KNOWN
from toa.data import load_anomaly
from toa.estimators import AnomalyDetector
from toa.estimators.detector import MODELS
from toa.training.detection import undefined, vus_metrics

METHODS = ("toa", "toa-network", *MODELS[2:])
# methods with a time limit, and scores to print
LIMITED = METHODS[:2]
# methods that only other packages have
RIVALS: tuple[str, ...] = ()
TITLES = {"vus_pr": "VUS-PR", "vus_roc": "VUS-ROC"}
SETS = ("SMD-machine-1-6", "SMD-machine-2-1", "MSL", "SMAP")
# rows of the buffer around anomalies, the default of TSB-AD's `get_metrics`
BUFFER = 100


def evaluate(dataset: str, method: str, *, data_dir: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Fit to the train rows of a data set, score its test rows, and compare with the labels.

    Args:
        dataset: A name of `toa.data.ANOMALY_SETS`.
        method: "toa", the default detector; "toa-network", its network alone; or a baseline.
        data_dir: First folder to search for the data.
        options: Arguments of `toa.AnomalyDetector`.

    Returns:
        "vus_pr" and "vus_roc" by the rules of TSB-AD, "run_vus_pr" by those of `toa run`, "checksum" of the data,
        "fit_seconds", "score_seconds", "cpu_seconds", and for "toa" the "weights" and the "precision" on injected
        anomalies.
    """
    check_choice("dataset", dataset, KNOWN)
    check_choice("method", method, METHODS)
    model = {"toa": "auto", "toa-network": "toa"}.get(method, method)
    data = load_anomaly(dataset, length=1, data_dir=data_dir, allow_constant=True)
    reason = undefined(data.labels)
    if reason is not None:
        raise ValueError(f"{dataset} must have anomalies and normal rows, but {reason}.")
    begin = time.monotonic()
    cpu = time.process_time()
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
        "run_vus_pr": vus_metrics(data.labels, score)["vus_pr"],
    }
    if detector.choice_ is not None:
        result |= {"weights": detector.choice_.weights, "precision": dict(detector.choice_.precision)}
    return result


def tsb_ad_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of `toa bench anomaly` as a row of what a run of TSB-AD saves; it has two of its nine scores.

    The sets are those of the catalogue: TSB-AD has other cuts of them.
    """
    return {
        "file": record["dataset"],
        "Time": record["fit_seconds"] + record["score_seconds"],
        "VUS-PR": record["vus_pr"],
        "VUS-ROC": record["vus_roc"],
    }
