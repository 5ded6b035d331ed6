"""Metrics as pure functions of tensors, and their exact means over batches."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def squared_error(estimate: Tensor, target: Tensor) -> Tensor:
    """(ŷ - y)², entry by entry."""
    return (estimate - target).square()


def absolute_error(estimate: Tensor, target: Tensor) -> Tensor:
    """|ŷ - y|, entry by entry."""
    return (estimate - target).abs()


def pinball_error(estimate: Tensor, target: Tensor, levels: Tensor) -> Tensor:
    """max(q e, (q - 1) e) with e = y - ŷ, entry by entry: least in the mean where ŷ is the q-quantile of y.

    Args:
        estimate: (B, P, Q, C), at the levels q.
        target: (B, P, C).
        levels: (Q,).
    """
    error = target.unsqueeze(2) - estimate
    q = levels.view(-1, 1)
    return torch.maximum(q * error, (q - 1.0) * error)


FORECAST_METRICS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": squared_error, "mae": absolute_error}


class RunningMeans:
    """Means of several metrics over all entries of all batches, summed in float64 on the device."""

    def __init__(self, metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]], device: torch.device) -> None:
        self._metrics = metrics
        self._sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in metrics}
        self._count = 0

    def add(self, estimate: Tensor, target: Tensor) -> None:
        """Take in a batch; nothing waits for the device."""
        for name, metric in self._metrics.items():
            self._sums[name] += metric(estimate.float(), target.float()).sum(dtype=torch.float64)
        self._count += target.numel()

    def means(self) -> dict[str, float]:
        """The means so far.

        Raises:
            ValueError: If nothing was added.
        """
        if self._count == 0:
            raise ValueError("means need at least one entry, got none; the split has no window.")
        return {name: float(total) / self._count for name, total in self._sums.items()}


def confusion_matrix(labels: Tensor, predictions: Tensor, num_classes: int) -> Tensor:
    """How many cases of each class (rows) were taken for each (columns): (K, K)."""
    return torch.bincount(labels * num_classes + predictions, minlength=num_classes**2).view(num_classes, num_classes)


def class_scores(confusion: Tensor) -> dict[str, float]:
    """Accuracy, balanced accuracy and macro F1 of a confusion matrix (K, K), defined as scikit-learn defines them.

    Balanced accuracy is the mean recall of the classes that have cases; macro F1 the mean of 2 tp / (2 tp + fp + fn)
    over those that have cases or are predicted.
    """
    counts = confusion.double().cpu()
    if not counts.sum() > 0:
        raise ValueError("scores need at least one case, got none; the split is empty.")
    hits, true, taken = counts.diagonal(), counts.sum(1), counts.sum(0)
    present, seen = true > 0, (true + taken) > 0
    return {
        "accuracy": float(hits.sum() / counts.sum()),
        "balanced_accuracy": float((hits[present] / true[present]).mean()),
        "macro_f1": float((2.0 * hits[seen] / (true + taken)[seen]).mean()),
    }
