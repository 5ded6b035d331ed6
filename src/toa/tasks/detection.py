"""From anomaly scores to flags and metrics, under named rules.

Alphabet: N windows, L window length, T steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from toa._checks import check_choice
from toa.tasks.anomaly_metrics import (
    Metric,
    adjusted_metrics,
    pa_k_metrics,
    point_metrics,
    random_adjusted_f1,
    range_metrics,
    undefined,
    vus_metrics,
)

ThresholdSource = Literal["train and test", "train"]
Overlaps = Literal["flattened", "averaged"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scores:
    """Squared errors, averaged over channels.

    Args:
        flat: One score per step of each window at the regular stride, window after window (N * L,).
        steps: One score per step of the series, the mean over the windows that contain it (T,).
        starts: First step of each window at the regular stride (N,).
        length: Window length L.
    """

    flat: Float[np.ndarray, " nl"]
    steps: Float[np.ndarray, " t"]
    starts: np.ndarray
    length: int

    def flatten(self, labels: Bool[np.ndarray, " t"]) -> Bool[np.ndarray, " nl"]:
        """Repeat labels of steps in the layout of `flat`."""
        return np.lib.stride_tricks.sliding_window_view(labels, self.length)[self.starts].ravel()


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionRules:
    """How scores become flags, and which metric is the headline.

    Args:
        name: Name of the rules.
        threshold_source: Scores whose percentile is the threshold.
        overlaps: Count a step in several windows once per window ("flattened"), or once ("averaged").
        point_adjust: The headline is the F1 after point adjustment.
    """

    name: str
    threshold_source: ThresholdSource
    overlaps: Overlaps
    point_adjust: bool

    def __post_init__(self) -> None:
        check_choice("threshold_source", self.threshold_source, ("train and test", "train"))
        check_choice("overlaps", self.overlaps, ("flattened", "averaged"))

    @property
    def headline(self) -> str:
        """Name of the headline metric."""
        return "pa_f1" if self.point_adjust else "f1"


# the rules of Time-Series-Library and the papers based on it, and rules without leaks from the test series
RULES = (
    DetectionRules(name="tslib-pa", threshold_source="train and test", overlaps="flattened", point_adjust=True),
    DetectionRules(name="strict", threshold_source="train", overlaps="averaged", point_adjust=False),
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Detection:
    """Flags and metrics under one set of rules.

    Args:
        rules: The rules.
        threshold: Steps with a higher score are flagged.
        flag_rate: Share of flagged steps, counted as the rules do.
        flags: Whether the score of a step, averaged over windows, exceeds the threshold (T,).
        metrics: Values by name; None if undefined.
        undefined: The reason for each metric that is None.
    """

    rules: DetectionRules
    threshold: float
    flag_rate: float
    flags: Bool[np.ndarray, " t"]
    metrics: dict[str, Metric]
    undefined: dict[str, str]


def detect(
    train: Scores,
    test: Scores,
    labels: Bool[np.ndarray, " t"],
    *,
    anomaly_ratio: float,
    rules: Sequence[DetectionRules] = RULES,
    random_draws: int = 5,
) -> list[Detection]:
    """Flag the steps of a test series and compute the metrics, once per set of rules.

    Metrics of single steps (f1, pa_f1, pa_k_f1, random_pa_f1, …) count steps as the rules do. Metrics of ranges
    (range_f1, vus_pr, vus_roc) need time order and always use each step once, its score averaged over windows.

    Args:
        train: Scores of the train series.
        test: Scores of the test series.
        labels: True labels of the test steps.
        anomaly_ratio: Percentage of scores above the threshold, which is the percentile 100 - ratio.
        rules: Sets of rules; one result each.
        random_draws: Number of draws of the random score for comparison.
    """
    if not 0.0 < anomaly_ratio < 100.0:
        raise ValueError(f"anomaly_ratio must lie in (0, 100), in percent, got {anomaly_ratio}.")
    if len(labels) != len(test.steps):
        raise ValueError(f"labels must be one for each of the {len(test.steps)} test steps, got {len(labels)}.")
    # needs no threshold, so it is the same under all rules
    surface = vus_metrics(labels, test.steps)
    found = []
    for rule in rules:
        flattened = rule.overlaps == "flattened"
        parts = [train] if rule.threshold_source == "train" else [train, test]
        pooled = np.concatenate([part.flat if flattened else part.steps for part in parts])
        threshold = float(np.percentile(pooled, 100.0 - anomaly_ratio))
        steps = test.steps > threshold
        flags = test.flat > threshold if flattened else steps
        counted = test.flatten(labels) if flattened else labels
        rate = float(flags.mean())
        metrics = {
            **point_metrics(counted, flags),
            **adjusted_metrics(counted, flags),
            **pa_k_metrics(counted, flags),
            **random_adjusted_f1(counted, rate, draws=random_draws),
            **range_metrics(labels, steps),
            **surface,
        }
        reasons = {name: _reason(name, counted) for name, value in metrics.items() if value is None}
        found.append(
            Detection(rules=rule, threshold=threshold, flag_rate=rate, flags=steps, metrics=metrics, undefined=reasons)
        )
    return found


def _reason(name: str, labels: Bool[np.ndarray, " t"]) -> str:
    one_kind = undefined(labels)
    if one_kind is not None:
        return one_kind
    return "the score never changes" if name.startswith("vus") else "no step is flagged"
