"""Classification: train a classifier on cases, choose by validation accuracy, measure on every test case.

Alphabet: B batch, L length, C channels, K classes.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa.data.cases import CaseBatch, Cases
from toa.tasks.batches import ShuffledBatches
from toa.tasks.metrics import class_scores, confusion_matrix

# values in a batch where no gradient is kept, and bounds on its cases
_EVALUATION_VALUES = 1 << 18
_EVALUATION_CASES = (16, 512)


class Evaluation(NamedTuple):
    """Scores, and how many cases of each class (rows) were taken for each (columns), (K, K)."""

    metrics: dict[str, float]
    confusion: Tensor


class CaseBatches(ShuffledBatches):
    """Shuffled cases for training: series, classes and, where there is padding, a mask.

    Args:
        cases: Where they come from.
        batch_size: Cases a batch.
        seed: Of the order.
    """

    def __init__(self, cases: Cases, batch_size: int, *, seed: int) -> None:
        super().__init__(cases, lambda index: _tensors(cases.batch(index)), batch_size, seed=seed)


def _tensors(batch: CaseBatch) -> tuple[Tensor, ...]:
    return (batch.series, batch.labels) if batch.mask is None else (batch.series, batch.labels, batch.mask)


def classification_loss(model: nn.Module, series: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of a batch."""
    return F.cross_entropy(model(series, mask).float(), labels)


@torch.no_grad()
def classify(model: nn.Module, cases: Cases, *, batch_size: int | None = None) -> Tensor:
    """Logits (n, K) of every case, in its order; `batch_size` changes speed and memory alone."""
    if batch_size is None:
        least, most = _EVALUATION_CASES
        batch_size = min(most, max(least, _EVALUATION_VALUES // cases.series[0].numel()))
    was_training = model.training
    model.eval()
    logits = []
    for index in torch.arange(len(cases)).split(batch_size):
        batch = cases.batch(index)
        logits.append(model(batch.series, batch.mask))
    model.train(was_training)
    return torch.cat(logits)


def evaluate_classifier(model: nn.Module, cases: Cases, *, batch_size: int | None = None) -> Evaluation:
    """Accuracy, balanced accuracy, macro F1 and the confusion matrix over all cases."""
    logits = classify(model, cases, batch_size=batch_size)
    confusion = confusion_matrix(cases.labels, logits.argmax(1), logits.shape[1]).cpu()
    return Evaluation(class_scores(confusion), confusion)


def validation_error(model: nn.Module, cases: Cases) -> float:
    """1 - accuracy, which training makes small; of epochs that tie it keeps the last."""
    return 1.0 - evaluate_classifier(model, cases).metrics["accuracy"]
