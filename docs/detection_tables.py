"""Tables of anomaly detection: the runs of the paper's sets, and the detector on other sets."""

import json
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from performance_tables import table
from stored_results import RESULTS, grouped, mean_of, published, stored_records, variant_of
from toa.report.tables import number

ANOMALY_METRICS = ("tslib-pa/pa_f1", "tslib-pa/random_pa_f1", "strict/f1", "strict/vus_pr")


def anomaly_table(dataset: str) -> str:
    """Means over seeds, both sets of rules side by side."""
    records = [r for r in stored_records("anomaly/toa-paper.jsonl") if r["config"]["dataset"] == dataset]
    theirs = {key[:4]: value for key, value in published("anomaly").items()}
    rows = []
    for (backbone, variant), runs in sorted(
        grouped(records, lambda r: (r["config"]["backbone"], variant_of(r))).items()
    ):
        ours = [f"{mean_of(runs, metric):.3f}" for metric in ANOMALY_METRICS]
        shown = number(theirs.get((dataset, "", backbone, variant)), ".3f")
        rows.append([f"{backbone}/{variant}", str(len(runs)), ours[0], shown, *ours[1:]])
    titles = ["system", "seeds", "PA-F1", "published", "PA-F1 of a random score", "strict F1", "strict VUS-PR"]
    return table(titles, rows)


DETECTION_SETS = ("SMD-machine-1-6", "SMD-machine-2-1", "MSL", "SMAP")


def detector_table() -> str:
    """VUS-PR of every detector, the means over SMD and MSL and over all sets, and the CPU time of all sets."""
    rows = []
    for method, records in grouped(stored_records("anomaly/detectors.jsonl"), lambda record: record["method"]).items():
        scores = {record["dataset"]: record["vus_pr"] for record in records}
        for names in (DETECTION_SETS[:3], DETECTION_SETS):
            if all(name in scores for name in names):
                scores[f"mean of {len(names)}"] = statistics.mean(scores[name] for name in names)
        shown = (*DETECTION_SETS, "mean of 3", "mean of 4")
        cells = [f"{scores[name]:.3f}" if name in scores else "-" for name in shown]
        rows.append([method, *cells, f"{sum(record['cpu_seconds'] for record in records):.0f}"])
    return table(["method", *DETECTION_SETS, "mean of SMD and MSL", "mean", "CPU s"], rows, left=1)


def detector_choices() -> str:
    """The methods in the combination, their average precision on injected anomalies, and times per set."""
    rows = []
    for record in stored_records("anomaly/detectors.jsonl"):
        if record["method"] == "toa":
            precisions = [f"{name} {record['precision'][name]:.3f}" for name in record["weights"]]
            times = [f"{record[name]:.0f}" for name in ("fit_seconds", "score_seconds", "cpu_seconds")]
            rows.append([record["dataset"], ", ".join(precisions), f"{record['precision']['combination']:.3f}", *times])
    return table(["dataset", "methods", "combination", "fit, s", "scores, s", "CPU s"], rows, left=2)


def threshold_table() -> str:
    """Flags of the default threshold and of a fixed one, beside the best threshold of the same scores."""
    records = {
        name: json.loads((RESULTS / "anomaly" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("alarm_thresholds", "alarm_thresholds_skab")
    }
    sets = dict(records["alarm_thresholds"]["sets"])
    sets["SKAB, filled up"] = records["alarm_thresholds_skab"]["sets"]["SKAB"]
    rows = []
    for name, found in sets.items():
        for rule in ("adaptive", "quantile"):
            values = [found[rule][key] for key in ("of_best", "f1", "precision", "recall", "share")]
            facts = [found["role"], f"{found['anomalies']:.3f}", f"{found['best_f1']:.3f}"]
            rows.append([name, rule, *facts, *(f"{value:.3f}" for value in values)])
    titles = ["set", "threshold", "role", "anomalies", "best F1", "F1 / best", "F1", "precision", "recall", "flagged"]
    return table(titles, rows, left=3)


# what a set of alarms was used for
ROLES = {
    "SMD-machine-1-6": "development",
    "SMD-machine-2-1": "earlier development",
    "MSL": "test",
    "SMAP": "test",
    "SKAB": "development",
}


def user_alarms() -> list[dict[str, Any]]:
    """Records of alarms as users meet them, in the order of the sets."""
    records = stored_records("leaderboards/user-detection.jsonl")
    return sorted(records, key=lambda record: list(ROLES).index(record["dataset"]))


def alarm_table() -> str:
    """Scores and flags of a detector per machine, channel or file: means over these parts, then over the sets."""
    metrics = ("vus_pr", "best_f1", "of_best", "f1", "precision", "recall", "share", "warned", "largest_unwarned_share")
    records = user_alarms()
    rows = []
    for record in records:
        facts = [record["dataset"], record["method"], ROLES[record["dataset"]], str(record["parts"])]
        rows.append([*facts, *(f"{record[name]:.3f}" for name in ("anomalies", *metrics))])
    for method, group in grouped(records, lambda record: record["method"]).items():
        # a mean over a part of the sets would not compare
        if len(group) == len(ROLES):
            means = [f"{statistics.mean(record[name] for record in group):.3f}" for name in metrics]
            rows.append(["mean", method, "", "", "", *means])
    titles = ["set", "score", "role", "parts", "anomalies", "VUS-PR", "best F1", "F1 / best", "F1", "precision"]
    return table([*titles, "recall", "flagged", "warned", "largest share without a warning"], rows, left=3)


def pooled_alarm_table() -> str:
    """The same with all rows of a set together, and how much the scores can tell at all."""
    metrics = ("pooled_vus_pr", "pooled_best_f1", "pooled_of_best", "pooled_f1", "pooled_share")
    rows = []
    for record in user_alarms():
        numbers = (*metrics, "average_precision", "flag_all_f1", "uninformative")
        rows.append([record["dataset"], record["method"], *(f"{record[name]:.3f}" for name in numbers)])
    titles = ["set", "score", "VUS-PR", "best F1", "F1 / best", "F1", "flagged"]
    means = ["mean average precision", "mean F1 of flagging all rows", "parts with a score that tells little"]
    return table([*titles, *means], rows, left=2)


TABLES: Mapping[str, Callable[[], str]] = {
    "user-alarms": alarm_table,
    "user-alarms-pooled": pooled_alarm_table,
    **{f"anomaly-{dataset}": partial(anomaly_table, dataset) for dataset in DETECTION_SETS},
    "detectors": detector_table,
    "detector-choices": detector_choices,
    "alarm-thresholds": threshold_table,
}
