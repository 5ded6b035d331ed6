"""Metrics of tensors, and their exact means over batches."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

squared_error = partial(F.mse_loss, reduction="none")
FORECAST_METRICS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": squared_error,
    "mae": partial(F.l1_loss, reduction="none"),
}


def pinball_error(estimate: Tensor, target: Tensor, levels: Tensor) -> Tensor:
    """max(q e, (q - 1) e) with e = y - ŷ, elementwise. Its mean is smallest if ŷ is the q-quantile of y."""
    error = target.unsqueeze(2) - estimate
    q = levels.view(-1, 1)
    return torch.maximum(q * error, (q - 1.0) * error)


def mean_metrics(
    metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]], pairs: Iterable[tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Means of metrics over all entries of all batches; synchronises with the device only at the end."""
    sums: dict[str, Tensor | float] = dict.fromkeys(metrics, 0.0)
    count = 0
    for estimate, target in pairs:
        for name, metric in metrics.items():
            sums[name] = sums[name] + metric(estimate.float(), target.float()).sum(dtype=torch.float64)
        count += target.numel()
    if count == 0:
        raise ValueError("means need at least one entry, got none; the split has no window.")
    return {name: float(total) / count for name, total in sums.items()}


def confusion_matrix(labels: Tensor, predictions: Tensor, num_classes: int) -> np.ndarray:
    """Number of cases per true class (row) and predicted class (column), (K, K)."""
    # imported on use: scikit-learn takes long to import
    from sklearn import metrics

    counts: np.ndarray = metrics.confusion_matrix(labels.cpu(), predictions.cpu(), labels=range(num_classes))
    return counts


def class_scores(labels: Tensor, predictions: Tensor) -> dict[str, float]:
    """Accuracy, balanced accuracy and macro F1, as scikit-learn defines them."""
    from sklearn import metrics

    if not len(labels):
        raise ValueError("scores need at least one case, got none; the split is empty.")
    true, predicted = labels.cpu().numpy(), predictions.cpu().numpy()
    # the mean recall of the classes that have cases; scikit-learn's own balanced accuracy warns about other predictions
    recall = metrics.recall_score(true, predicted, labels=np.unique(true), average="macro")
    return {
        "accuracy": float(metrics.accuracy_score(true, predicted)),
        "balanced_accuracy": float(recall),
        "macro_f1": float(metrics.f1_score(true, predicted, average="macro")),
    }
