"""Alarms as users meet them: a detector per machine, channel or file, its scores and its flags, beside simple ones.

evaluate("MSL", "toa")        # {"vus_pr": …, "f1": …, "best_f1": …, "of_best": …, "share": …, …}

Every method is a `toa.AnomalyDetector` with its default threshold: "toa" with the default methods, the others with one
simple score. No threshold sees a label. `best_f1` is the best F1 that any one threshold on the same scores of a part
reaches; it is chosen with the labels. F1, precision and recall count each row once, without point adjustment. Metrics
are means over the parts of a set; those with "pooled" take all rows of the set together.

The rule of the decision, written before the runs on MSL and SMAP: the threshold, and all its numbers, are chosen with
the labels of SMD and SKAB, and with anomalies and shifts of level that were injected into second halves of train rows
(benchmarks/alarm_thresholds.py has the earlier part of it). MSL and SMAP are evaluated once, channel by channel,
because each channel has its own train rows, and a detector that is fitted to all channels joined can only tell the
channels apart. The aim is a mean of 0.6 over the five sets of F1 / best F1, and no share of flagged rows above three
times the expected one without a warning. Nothing changes because of MSL and SMAP.

Alphabet: T rows.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from toa._checks import check_choice
from toa.estimators import AnomalyDetector
from toa.training.detection import point_metrics, undefined, vus_metrics
from toa_bench import detection_parts
from toa_bench.detection_parts import MACHINES, OF_CHANNELS, SKAB, Part, read_parts
from toa_bench.tsb_ad import BUFFER

SETS = (*MACHINES, *OF_CHANNELS, SKAB)
KNOWN = detection_parts.SETS
# methods by name: the model of the detector
MODELS = {"toa": "auto", "z-score": "z-score", "pca mean": "pca mean"}
METHODS = tuple(MODELS)
LIMITED = METHODS[:1]
# methods that only other packages have
RIVALS: tuple[str, ...] = ()
TITLES = {
    "vus_pr": "VUS-PR",
    "anomalies": "anomalies",
    "best_f1": "best F1",
    "of_best": "F1 / best",
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "share": "flagged",
    "warned": "warned",
}
# a score tells little if its average precision is less than this many times the share of anomalies
INFORMATIVE = 1.5
# text of the warning of far too many flagged rows
_WARNING = "of the rows are flagged"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Flagged:
    """Scores and flags of the test rows of a part.

    Attributes:
        warned: Whether a warning named the share of flagged rows.
    """

    labels: Bool[np.ndarray, " t"]
    scores: Float64[np.ndarray, " t"]
    flags: Bool[np.ndarray, " t"]
    warned: bool


def evaluate(dataset: str, method: str, *, data_dir: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Fit a detector to each part of a set, and compare its scores and flags with the labels.

    Args:
        options: Arguments of `toa.AnomalyDetector`.
    """
    check_choice("dataset", dataset, KNOWN)
    check_choice("method", method, METHODS)
    begin = time.process_time()
    found = [flag(part, model=MODELS[method], **options) for part in read_parts(dataset, data_dir)]
    seconds = round(time.process_time() - begin, 1)
    return {**summarise(found), "cpu_seconds": seconds}


def flag(part: Part, **options: Any) -> Flagged:
    """Fit to the train rows, and flag the test rows; `options` are arguments of the detector."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector = AnomalyDetector(device="cpu", **options).fit(pd.DataFrame(part.train))
        table = detector.predict(pd.DataFrame(part.test))
    return Flagged(
        labels=part.labels,
        scores=table["score"].to_numpy(),
        flags=table["anomaly"].to_numpy() == 1,
        warned=any(_WARNING in str(entry.message) for entry in caught),
    )


def summarise(found: Sequence[Flagged]) -> dict[str, Any]:
    """Means over the parts with anomalies and normal rows, and metrics of all rows together.

    `of_best` is the ratio of the mean F1 to the mean best F1, `flag_all_f1` the F1 of flagging every row, and
    `uninformative` the share of parts whose scores hardly tell anomalies from other rows.
    """
    scored = [part for part in found if undefined(part.labels) is None]
    metrics = [_measure(part) for part in scored]
    means = {name: float(np.mean([part[name] for part in metrics])) for name in metrics[0]}
    together = Flagged(
        labels=np.concatenate([part.labels for part in scored]),
        scores=np.concatenate([part.scores for part in scored]),
        flags=np.concatenate([part.flags for part in scored]),
        warned=all(part.warned for part in scored),
    )
    pooled = _measure(together) if len(scored) > 1 else metrics[0]
    values = {
        **means,
        "of_best": means["f1"] / means["best_f1"],
        "largest_unwarned_share": max((float(part.flags.mean()) for part in found if not part.warned), default=0.0),
        "pooled_anomalies": pooled["anomalies"],
        "pooled_vus_pr": pooled["vus_pr"],
        "pooled_f1": pooled["f1"],
        "pooled_best_f1": pooled["best_f1"],
        "pooled_share": pooled["share"],
        "pooled_of_best": pooled["f1"] / pooled["best_f1"],
    }
    rounded = {name: round(value, 4) for name, value in values.items()}
    return {"parts": len(found), "rows": sum(len(part.labels) for part in found), **rounded}


def _measure(part: Flagged) -> dict[str, float]:
    """Metrics of the scores and flags of a part."""
    # loaded on use: scikit-learn's metrics take half a second
    from sklearn.metrics import average_precision_score

    base = float(part.labels.mean())
    precision = float(average_precision_score(part.labels, part.scores))
    surface = vus_metrics(part.labels, part.scores, max_buffer=BUFFER, rules="tsb-ad")
    points = point_metrics(part.labels, part.flags)
    return {
        "anomalies": base,
        "vus_pr": surface["vus_pr"] or 0.0,
        "average_precision": precision,
        "uninformative": float(precision < INFORMATIVE * base),
        "best_f1": best_f1(part.labels, part.scores),
        "flag_all_f1": 2.0 * base / (1.0 + base),
        **{name: points[name] or 0.0 for name in ("f1", "precision", "recall")},
        "share": float(part.flags.mean()),
        "warned": float(part.warned),
    }


def best_f1(labels: Bool[np.ndarray, " t"], scores: Float64[np.ndarray, " t"]) -> float:
    """The best F1 of rows above any threshold."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    # rows with equal scores are flagged together
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    return float((2 * hits[ends] / (ends + 1 + labels.sum())).max())
