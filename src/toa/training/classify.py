"""Classification: train on cases, choose the epoch by validation accuracy, test on every test case.

A small set is validated by folds: one model per fold trains on the cases of the other folds, all models in one training
run. The validation error is that of every case under the model that was not trained on it, so one epoch is chosen for
all. In the test the models vote (`FoldModels`).

Alphabet: B batch, L length, C channels, K classes, F folds.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa._limits import memory_budget
from toa.data import CLASSIFICATION_SETS, ClassificationData, load_classification, locate_classification
from toa.data.classification import Cases, EvaluationSplit, FoldCases, fold_rows, own_pair
from toa.models import BACKBONES, build_classifier
from toa.nn.registry import ADDED_LATER
from toa.training.base import TASKS, Evaluation, Task, check_sample, model_checkpoint
from toa.training.checkpoint import Checkpoint
from toa.training.config import RunConfig
from toa.training.metrics import class_scores, confusion_matrix, evaluating
from toa.training.step import ShuffledBatches

# bytes of activations per value without gradients
_EVALUATION_BYTES = 1 << 12
# largest number of cases per batch without gradients
_EVALUATION_CASES = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyRun(RunConfig):
    """Config of one classification run.

    Args:
        evaluation: "strict", "folds" or "tslib-uea"; see `toa.data.load_classification`.
        test: Whether to measure the test cases. A search sets it to false: then no test accuracy exists to choose by.
    """

    task: ClassVar[str] = "classify"

    evaluation: EvaluationSplit
    test: bool = field(default=True, metadata=ADDED_LATER)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingCases:
    """What `build`, `batches` and `validate` read of `ClassificationData`.

    Attributes:
        train: Cases to train on; None to build a model only.
        val: Cases to choose the epoch by; None keeps the last epoch.
        folds: Fold of each training case, one model per fold; None for one model.
    """

    channels: int
    length: int
    classes: Sequence[Any] | np.ndarray
    train: Any = None
    val: Any = None
    folds: Tensor | None = None


Loaded = ClassificationData | TrainingCases


class Classification(Task):
    """Classify series; see `Task` for the methods.

    Under the evaluation "tslib-uea" validation uses the test cases, so its accuracy is the best of all epochs and
    estimates no other accuracy.
    """

    config = ClassifyRun
    model_kind = "classify"
    catalogue = CLASSIFICATION_SETS

    def locate(self, dataset: str, data_dir: Path | None) -> Sequence[Path]:
        return locate_classification(CLASSIFICATION_SETS[dataset], data_dir)

    def own_files(self, config: ClassifyRun) -> Sequence[Path]:
        return own_pair(Path(config.dataset).expanduser())

    def load(self, config: ClassifyRun, device: torch.device, data_dir: Path | None = None) -> ClassificationData:
        # a series shorter than one patch is padded
        has_patches = "patch_len" in BACKBONES[config.backbone].settings("classify")
        return load_classification(
            config.dataset,
            evaluation=config.evaluation,
            seed=config.seed,
            min_length=config.model.get("patch_len", 16) if has_patches else 1,
            data_dir=data_dir,
            device=device,
        )

    def sample(self, config: ClassifyRun, index: int, data_dir: Path | None = None) -> tuple[Tensor | None, ...]:
        cases = self.load(config, torch.device("cpu"), data_dir).test
        batch = cases.batch(torch.tensor([check_sample(index, len(cases))]))
        return batch.series, batch.mask

    def build(self, config: ClassifyRun, data: Loaded) -> nn.Module:
        build = partial(
            build_classifier,
            config.backbone,
            lookback=data.length,
            channels=data.channels,
            num_classes=len(data.classes),
            attention=config.attention,
            settings=config.model,
        )
        folds = _count_folds(data)
        return FoldModels(build() for _ in range(folds)) if folds else build()

    def rebuild(self, config: ClassifyRun, saved: Checkpoint) -> nn.Module:
        facts: Any = saved.facts
        # data without a scaler leave the number of channels to the catalogue or the files
        if "scaler.mean" in saved.tensors:
            channels = len(saved.tensors["scaler.mean"])
        elif config.dataset in CLASSIFICATION_SETS:
            channels = CLASSIFICATION_SETS[config.dataset].channels
        else:
            channels = self.load(config, torch.device("cpu")).channels
        # on the CPU also inside of `torch.device("meta")`
        folds = torch.arange(facts["folds"], device="cpu") if facts.get("folds") else None
        sizes = {"length": facts["length"], "classes": facts["classes"]}
        return self.build(config, TrainingCases(channels=channels, folds=folds, **sizes))

    def batches(self, config: ClassifyRun, data: Loaded, device: torch.device) -> ShuffledBatches:
        source = data.train if data.folds is None else FoldCases(cases=data.train, rows=fold_rows(data.folds))
        return ShuffledBatches(source, config.batch_size, seed=config.seed)

    def loss(self, config: ClassifyRun, fabric: Any) -> Callable[..., Tensor]:
        return classification_loss

    def validate(self, config: ClassifyRun, data: Loaded) -> Callable[[nn.Module], float] | None:
        if data.val is None:
            return None
        return lambda model: validation_error(validation_logits(model, data), data.val.labels)

    def evaluate(self, config: ClassifyRun, model: nn.Module, data: ClassificationData) -> Evaluation:
        validation = class_scores(data.val.labels, validation_logits(model, data).argmax(1))
        metrics = {f"val_{name}": value for name, value in validation.items()}
        facts: dict[str, Any] = {
            "cases": {"train": len(data.train), "val": len(data.val), "test": len(data.test)},
            "classes": list(data.classes),
            "evaluation": dict(data.facts),
        }
        if config.test:
            predicted = classify(model, data.test).argmax(1)
            metrics |= class_scores(data.test.labels, predicted)
            facts["confusion"] = confusion_matrix(data.test.labels, predicted, len(data.classes)).tolist()
        saved = {"classes": list(data.classes), "length": data.length, "folds": _count_folds(data)}
        return Evaluation(
            metrics=metrics,
            facts=facts,
            artifacts={self.model_file: model_checkpoint(config, model, data.scaler, **saved)},
        )


TASKS.register("classify")(Classification())


class FoldModels(nn.Module):
    """One model per fold: series of all folds (B, F, L, C) to their logits (B, F, K), or (B, L, C) to the vote (B, K).

    The vote is the logarithm of the mean of the models' probabilities.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, series: Tensor, mask: Tensor | None = None) -> Tensor:
        separate = series.ndim == 4
        logits = [
            model(series[:, f], None if mask is None else mask[:, f]) if separate else model(series, mask)
            for f, model in enumerate(self.models)
        ]
        stacked = torch.stack(logits, dim=1)  # (B, F, K)
        return stacked if separate else stacked.softmax(-1).mean(1).log()


def _count_folds(data: Loaded) -> int:
    return 0 if data.folds is None else int(data.folds.max()) + 1


def classification_loss(model: nn.Module, series: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of a batch, over all folds if there are several."""
    return F.cross_entropy(model(series, mask).float().flatten(0, -2), labels.flatten())


def classify(model: nn.Module, cases: Cases | FoldCases, *, batch_size: int | None = None) -> Tensor:
    """Logits (n, K) of all cases in order, (n, F, K) of folds; `batch_size` affects only speed and memory."""
    if batch_size is None:
        values = cases.batch(torch.zeros(1, dtype=torch.long)).series.numel()
        batch_size = min(_EVALUATION_CASES, max(1, memory_budget() // (_EVALUATION_BYTES * values)))
    with evaluating(model):
        batches = map(cases.batch, torch.arange(len(cases)).split(batch_size))
        return torch.cat([model(batch.series, batch.mask) for batch in batches])


def validation_logits(model: nn.Module, data: Loaded) -> Tensor:
    """Logits (n, K) of the validation cases; with folds, of the model that was not trained on the case."""
    if data.folds is None:
        return classify(model, data.val)
    cases = torch.arange(len(data.val), device=data.folds.device)
    rows = cases[:, None].expand(-1, _count_folds(data))
    return classify(model, FoldCases(cases=data.val, rows=rows))[cases, data.folds]


def validation_error(logits: Tensor, labels: Tensor) -> float:
    """1 - accuracy, the validation loss of classification."""
    return 1.0 - int((logits.argmax(1) == labels).sum()) / len(labels)
