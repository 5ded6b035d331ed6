"""Anomaly detection: train a reconstruction on windows, score what it fails to reconstruct, flag and measure.

Alphabet: B batch, N windows, L window length, C channels, T steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from toa._checks import check_choice
from toa.data.windows import SeriesWindows
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
from toa.tasks.batches import ShuffledBatches
from toa.tasks.metrics import RunningMeans, squared_error

ThresholdSource = Literal["train and test", "train"]
Overlaps = Literal["flattened", "averaged"]

# windows a batch where no gradient is kept: a GPU wants many, a CPU its cache
_CUDA_BATCH = 1024
_CPU_BATCH = 256


class ReconstructionBatches(ShuffledBatches):
    """Shuffled windows (B, L, C) for training; arguments are those of `ShuffledBatches`."""

    def __init__(self, windows: SeriesWindows, batch_size: int, *, seed: int) -> None:
        super().__init__(windows, lambda chosen: (windows.batch(chosen),), batch_size, seed=seed)


def reconstruction_loss(model: nn.Module, x: Tensor) -> Tensor:
    """Mean squared error of a reconstruction."""
    return squared_error(model(x), x).mean()


@torch.no_grad()
def evaluate_reconstruction(model: nn.Module, windows: SeriesWindows) -> float:
    """Mean squared error over all windows, steps and channels."""
    means = RunningMeans({"mse": squared_error}, windows.starts.device)
    for _, x, estimate in _reconstructions(model, windows):
        means.add(estimate, x)
    return means.means()["mse"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scores:
    """Squared errors, averaged over channels.

    Args:
        flat: Of each step of each window at the regular stride, window after window (N * L,).
        steps: Of each step of the series once, in time order: the mean over the windows that hold it (T,).
        starts: First step of each of those windows (N,).
        length: Their length L.
    """

    flat: Float[np.ndarray, " nl"]
    steps: Float[np.ndarray, " t"]
    starts: np.ndarray
    length: int

    def flatten(self, labels: Bool[np.ndarray, " t"]) -> Bool[np.ndarray, " nl"]:
        """Labels of steps, as often and in the order that `flat` has them."""
        return np.lib.stride_tricks.sliding_window_view(labels, self.length)[self.starts].ravel()


@torch.no_grad()
def score_series(model: nn.Module, windows: SeriesWindows) -> Scores:
    """Scores of a series; overlaps are added up on the device, and nothing is waited for before the end.

    Args:
        model: Reconstructs windows.
        windows: Of the series. Only if they are `whole` is every step scored.
    """
    device = windows.starts.device
    total = torch.zeros(windows.rows, dtype=torch.float64, device=device)
    count = torch.zeros(windows.rows, dtype=torch.float64, device=device)
    inside = torch.arange(windows.length, device=device)
    flat = []
    for index, x, estimate in _reconstructions(model, windows):
        error = squared_error(estimate.float(), x).mean(2)  # (B, L)
        places = (windows.starts[index, None] + inside).view(-1)  # (B*L,)
        total.index_add_(0, places, error.double().view(-1))
        count.index_add_(0, places, torch.ones_like(places, dtype=torch.float64))
        flat.append(error)
    if bool((count == 0).any()):
        raise ValueError("windows must cover every step of the series, got some left out; make them with whole=True.")
    return Scores(
        flat=torch.cat(flat)[: windows.regular].reshape(-1).cpu().numpy(),
        steps=(total / count).cpu().numpy(),
        starts=windows.starts[: windows.regular].cpu().numpy(),
        length=windows.length,
    )


@torch.no_grad()
def score_ends(model: nn.Module, windows: SeriesWindows) -> Float[np.ndarray, " n"]:
    """Squared error of each window's last step, averaged over channels: what is known of a step as it arrives."""
    ends = [squared_error(estimate.float(), x)[:, -1].mean(1) for _, x, estimate in _reconstructions(model, windows)]
    return torch.cat(ends).double().cpu().numpy()


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionRules:
    """How scores become flags, and flags the number that is reported.

    Args:
        name: Of the rules.
        threshold_source: Scores that the threshold is a percentile of.
        overlaps: Whether a step that lies in several windows is counted in each, "flattened", or once, "averaged".
        point_adjust: Whether the headline is the F1 after point adjustment.
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
        """Name of the metric that the rules were made to report."""
        return "pa_f1" if self.point_adjust else "f1"


# what Time-Series-Library and the papers on it do, and what gives nothing away
RULES = (
    DetectionRules(name="tslib-pa", threshold_source="train and test", overlaps="flattened", point_adjust=True),
    DetectionRules(name="strict", threshold_source="train", overlaps="averaged", point_adjust=False),
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Detection:
    """What came of scores under some rules.

    Args:
        threshold: Steps with a higher score are flagged.
        flag_rate: Share of flagged steps, counted as the rules count them.
        flags: For each step of the series whether its score, averaged over windows, lies above the threshold (T,).
        metrics: By name; None where undefined.
        undefined: Why, for each that is None.
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
    """Flag the steps of a test series and measure that, under each of some rules.

    Metrics of single steps (f1, pa_f1, pa_k_f1, random_pa_f1, …) count steps as the rules do. Those of ranges
    (range_f1, vus_pr, vus_roc) need time order and always take each step once, its score averaged over windows.

    Args:
        train: Scores of the train series.
        test: Scores of the test series.
        labels: Of its steps.
        anomaly_ratio: Share of scores to lie above the threshold, in percent: it is their percentile 100 - ratio.
        rules: How; each gives a result.
        random_draws: Draws of the random score to compare with.
    """
    if not 0.0 < anomaly_ratio < 100.0:
        raise ValueError(f"anomaly_ratio must lie in (0, 100), in percent, got {anomaly_ratio}.")
    if len(labels) != len(test.steps):
        raise ValueError(f"labels must be one for each of the {len(test.steps)} test steps, got {len(labels)}.")
    # without a threshold, and so the same under all rules
    surface = vus_metrics(labels, test.steps)
    return [_detect(rule, train, test, labels, anomaly_ratio, random_draws, surface) for rule in rules]


def _detect(
    rules: DetectionRules,
    train: Scores,
    test: Scores,
    labels: Bool[np.ndarray, " t"],
    anomaly_ratio: float,
    random_draws: int,
    surface: dict[str, Metric],
) -> Detection:
    flattened = rules.overlaps == "flattened"
    parts = [train] if rules.threshold_source == "train" else [train, test]
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
    return Detection(
        rules=rules,
        threshold=threshold,
        flag_rate=rate,
        flags=steps,
        metrics=metrics,
        undefined={name: _reason(name, counted) for name, value in metrics.items() if value is None},
    )


def _reason(name: str, labels: Bool[np.ndarray, " t"]) -> str:
    one_kind = undefined(labels)
    if one_kind is not None:
        return one_kind
    return "the score never changes" if name.startswith("vus") else "no step is flagged"


def _reconstructions(model: nn.Module, windows: SeriesWindows) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Places of windows, the windows and their reconstructions, batch by batch, in evaluation mode."""
    was_training = model.training
    model.eval()
    device = windows.starts.device
    size = _CUDA_BATCH if device.type == "cuda" else _CPU_BATCH
    for index in torch.arange(len(windows), device=device).split(size):
        x = windows.batch(index)
        yield index, x, model(x)
    model.train(was_training)
