"""From anomaly scores to flags and metrics under named rules; float64 on the CPU.

A run is an unbroken sequence of true labels. An undefined metric is None, never 0, 1 or NaN.

Alphabet: N windows, L window length, T steps.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

Labels = Bool[np.ndarray, " t"]
Metric = float | None
ThresholdSource = Literal["train and test", "train"]
Overlaps = Literal["flattened", "averaged"]
SurfaceRules = Literal["aeon", "tsb-ad"]

# thresholds of a VUS surface, as its authors sample them
_THRESHOLDS = 250


@dataclass(frozen=True, slots=True)
class Runs:
    """Unbroken sequences [start, stop) of true entries."""

    starts: Int[np.ndarray, " r"]
    stops: Int[np.ndarray, " r"]

    @classmethod
    def of(cls, flags: Labels) -> "Runs":
        """Find the runs of a vector."""
        edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
        return cls(edges[::2], edges[1::2])

    @property
    def lengths(self) -> Int[np.ndarray, " r"]:
        """Number of steps per run."""
        return self.stops - self.starts

    def count(self, flags: Labels) -> Int[np.ndarray, " r"]:
        """Number of flagged steps per run."""
        total = np.concatenate(([0], np.cumsum(flags)))
        return total[self.stops] - total[self.starts]

    def overlapping(self, other: "Runs") -> Int[np.ndarray, " r"]:
        """Number of runs of another vector that each run overlaps."""
        return np.searchsorted(other.starts, self.stops) - np.searchsorted(other.stops, self.starts, side="right")

    def widened(self, reach: int, steps: int) -> "Runs":
        """The runs with `reach` steps more on both sides, as far as there are `steps`; runs that overlap become one."""
        starts = self.starts - reach
        stops = self.stops + reach
        apart = np.flatnonzero(stops[:-1] <= starts[1:]) + 1
        first = np.concatenate(([0], apart))
        last = np.concatenate((apart, [len(starts)])) - 1
        return Runs(np.maximum(starts[first], 0), np.minimum(stops[last], steps))


def undefined(labels: Labels) -> str | None:
    """The reason if no detection metric is defined, because all labels are equal; else None."""
    if labels.all():
        return "every step is labelled anomalous: no false positive is possible"
    if not labels.any():
        return "no step is labelled anomalous: no true positive is possible"
    return None


def point_metrics(labels: Labels, flags: Labels) -> dict[str, Metric]:
    """Metrics of single steps: precision TP / (TP + FP), recall TP / (TP + FN), f1 2 TP / (2 TP + FP + FN).

    Precision is None if nothing is flagged; all are None if all labels are equal.
    """
    return _scores(labels, flags, int((labels & flags).sum()), "")


def adjusted_metrics(labels: Labels, flags: Labels) -> dict[str, Metric]:
    """pa_precision, pa_recall, pa_f1: `point_metrics` after point adjustment.

    Point adjustment flags every step of each true run that has a flagged step; other flags stay unchanged.
    """
    runs = Runs.of(labels)
    return _scores(labels, flags, int(runs.lengths[runs.count(flags) > 0].sum()), "pa_")


def pa_k_metrics(labels: Labels, flags: Labels) -> dict[str, Metric]:
    """PA%K of Kim et al. (2022): F1 after adjusting only runs of which more than K % of steps are flagged.

    pa_20_f1 is the value at K = 20, pa_k_f1 the area under it for K from 0 (point adjustment) to 100 (none).
    """
    if undefined(labels) is not None:
        return {"pa_20_f1": None, "pa_k_f1": None}
    runs = Runs.of(labels)
    counts = runs.count(flags)
    lengths = runs.lengths
    hits, flagged, true = int(counts.sum()), int(flags.sum()), int(lengths.sum())
    # integers: a run of which exactly K % are flagged is not above K
    tp = np.array([np.where(100 * counts > k * lengths, lengths, counts).sum() for k in range(101)])
    f1 = 2 * tp / (tp + (flagged - hits) + true)
    return {"pa_20_f1": float(f1[20]), "pa_k_f1": float(np.trapezoid(f1, np.arange(101) / 100))}


def range_metrics(labels: Labels, flags: Labels, *, existence: float = 0.5) -> dict[str, Metric]:
    """Precision, recall and F1 of ranges (Tatbul et al., 2018): flat bias, cardinality 1 / number of overlaps.

    A flagged run scores its share of true steps. A true run scores its share of flagged steps with weight
    1 - `existence`, plus `existence` if any of its steps is flagged. Definitions and defaults are those of aeon.
    """
    names = ("range_precision", "range_recall", "range_f1")
    if undefined(labels) is not None:
        return dict.fromkeys(names)
    true, flagged = Runs.of(labels), Runs.of(flags)
    if not len(flagged.starts):
        return dict(zip(names, (None, 0.0, 0.0), strict=True))
    precision = float((flagged.count(labels) / flagged.lengths / np.maximum(flagged.overlapping(true), 1)).mean())
    hits = true.count(flags)
    share = hits / true.lengths / np.maximum(true.overlapping(flagged), 1)
    recall = float((existence * (hits > 0) + (1.0 - existence) * share).mean())
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return dict(zip(names, (precision, recall, f1), strict=True))


def vus_metrics(
    labels: Labels, score: Float[np.ndarray, " t"], *, max_buffer: int = 500, rules: SurfaceRules = "aeon"
) -> dict[str, Metric]:
    """VUS-PR and VUS-ROC (Paparrizos et al., 2022): range-aware areas, averaged over buffers of 0 to `max_buffer`.

    They need no threshold. Computed from one sort of the score instead of one pass per threshold and buffer.

    Args:
        score: Higher for less usual steps.
        max_buffer: Largest width of the buffers around true runs.
        rules: "aeon" equals aeon's `range_pr_vus_score` and `range_roc_vus_score`. "tsb-ad" equals the `get_metrics` of
            TSB-AD with slidingWindow = max_buffer: it counts only flagged steps of the buffers as positives, and the
            area under precision is a sum of steps instead of trapezoids.
    """
    if undefined(labels) is not None or score.min() == score.max():
        return {"vus_pr": None, "vus_roc": None}
    tsb = rules == "tsb-ad"
    order = np.argsort(-score, kind="stable")
    falling = score[order]
    thresholds = falling[np.linspace(0, len(score) - 1, _THRESHOLDS, dtype=np.int_)]
    # steps at or above each threshold
    flagged = np.searchsorted(-falling, -thresholds, side="right")
    runs = Runs.of(labels)
    hits = np.cumsum(labels[order])[flagged - 1]  # (K,)

    def areas(buffer: int) -> tuple[float, float]:
        """Areas under precision-recall and ROC for labels that decay over half a buffer on both sides of a run."""
        soft = _soft_labels(labels, runs, buffer, behind=int(tsb))
        tp = np.cumsum(soft[order])[flagged - 1]  # (K,)
        positives = labels.sum() + (tp - hits if tsb else soft.sum() - labels.sum()) / 2
        wide = runs.widened(buffer // 2, len(labels)) if tsb else Runs.of(soft > 0)
        # the highest score of each run; a score below all others ends the last one
        bounds = np.stack((wide.starts, np.minimum(wide.stops, len(score))), 1).ravel()
        peaks = np.maximum.reduceat(np.append(score, -np.inf), bounds)[::2]
        met = len(peaks) - np.searchsorted(np.sort(peaks), thresholds)  # (K,)
        recall = np.concatenate(([0.0], np.minimum(tp / positives, 1.0) * met / len(peaks)))
        precision = np.concatenate(([1.0], tp / flagged))
        fpr = np.concatenate(([0.0], np.minimum((flagged - tp) / (len(labels) - positives), 1.0), [1.0]))
        pr = np.diff(recall) @ precision[1:] if tsb else np.trapezoid(precision, recall)
        return float(pr), float(np.trapezoid(np.append(recall, 1.0), fpr))

    pr, roc = np.mean([areas(buffer) for buffer in range(max_buffer + 1)], axis=0)
    return {"vus_pr": float(pr), "vus_roc": float(roc)}


def random_adjusted_f1(labels: Labels, rate: float, *, draws: int = 5, seed: int = 0) -> dict[str, Metric]:
    """PA-F1 of steps flagged at random at this rate: mean and standard deviation over draws with fixed seeds.

    A detector without any skill reaches this value, because of point adjustment.
    """
    if undefined(labels) is not None:
        return {"random_pa_f1": None, "random_pa_f1_std": None}
    drawn = (np.random.default_rng((seed, draw)).random(len(labels), dtype=np.float32) < rate for draw in range(draws))
    values: list[Any] = [adjusted_metrics(labels, flags)["pa_f1"] for flags in drawn]
    return {"random_pa_f1": float(np.mean(values)), "random_pa_f1_std": float(np.std(values))}


def _scores(labels: Labels, flags: Labels, tp: int, prefix: str) -> dict[str, Metric]:
    """Scores from the number of true positives, adjusted or not; adjustment never changes false positives."""
    if undefined(labels) is not None:
        return dict.fromkeys(f"{prefix}{name}" for name in ("precision", "recall", "f1"))
    fp = int((flags & ~labels).sum())
    fn = int(labels.sum()) - tp
    return {
        f"{prefix}precision": tp / (tp + fp) if tp + fp else None,
        f"{prefix}recall": tp / (tp + fn),
        f"{prefix}f1": 2 * tp / (2 * tp + fp + fn),
    }


def _soft_labels(labels: Labels, runs: Runs, buffer: int, *, behind: int = 0) -> Float[np.ndarray, " t"]:
    """1 inside a run, sqrt(1 - d / buffer) at a distance d of up to half the buffer; behind a run, less than half.

    `behind` is the number of further steps behind a run.
    """
    soft = labels.astype(np.float64)
    if buffer <= 1:
        return soft
    reach = buffer // 2
    for start, stop in zip(runs.starts, runs.stops, strict=True):
        last = stop - 1
        after = np.arange(last, min(last + reach + behind, len(soft)))
        soft[after] += np.sqrt(1.0 - (after - last) / buffer)
        before = np.arange(max(start - reach, 0), start)
        soft[before] += np.sqrt(1.0 - (start - before) / buffer)
    return np.minimum(soft, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SeriesScores:
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

    def flatten(self, labels: Labels) -> Bool[np.ndarray, " nl"]:
        """Repeat labels of steps in the layout of `flat`."""
        return np.lib.stride_tricks.sliding_window_view(labels, self.length)[self.starts].ravel()


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionRules:
    """How scores become flags, and which metric is the headline.

    Args:
        threshold_source: Scores whose percentile is the threshold.
        overlaps: Count a step in several windows once per window ("flattened"), or once ("averaged").
        point_adjust: The headline is the F1 after point adjustment.
    """

    name: str
    threshold_source: ThresholdSource
    overlaps: Overlaps
    point_adjust: bool

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
        threshold: Steps with a higher score are flagged.
        flag_rate: Share of flagged steps, counted as the rules do.
        flags: Whether the score of a step, averaged over windows, exceeds the threshold (T,).
        metrics: Values by name; None if undefined.
        undefined: The reason for each metric that is None.
    """

    rules: DetectionRules
    threshold: float
    flag_rate: float
    flags: Labels
    metrics: dict[str, Metric]
    undefined: dict[str, str]


def detect(
    train: SeriesScores, test: SeriesScores, labels: Labels, *, anomaly_ratio: float, random_draws: int = 5
) -> list[Detection]:
    """Flag the steps of a test series and compute the metrics, once per set of `RULES`.

    Metrics of single steps (f1, pa_f1, pa_k_f1, random_pa_f1, …) count steps as the rules do. Metrics of ranges
    (range_f1, vus_pr, vus_roc) need time order and always use each step once, its score averaged over windows.

    The threshold is the percentile 100 - `anomaly_ratio` of the scores. `random_draws` are those of the random score.
    """
    # needs no threshold, so it is the same under all rules
    surface = vus_metrics(labels, test.steps)
    found = []
    for rule in RULES:
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
        kinds = undefined(counted)
        reasons = {
            name: kinds or ("the score never changes" if name.startswith("vus") else "no step is flagged")
            for name, value in metrics.items()
            if value is None
        }
        found.append(
            Detection(rules=rule, threshold=threshold, flag_rate=rate, flags=steps, metrics=metrics, undefined=reasons)
        )
    return found
