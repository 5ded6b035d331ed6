"""A classification run as data, and the named protocols that describe it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toa._checks import check_at_least, check_choice
from toa.data import CLASSIFICATION_SETS
from toa.data.classification import EVALUATIONS, Evaluation
from toa.experiments.config import Precision
from toa.experiments.settings import Settings, merge, resolve_run
from toa.models import backbone_names
from toa.nn import AttentionSpec
from toa.tasks.optimization import TrainingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyRun:
    """One classification run, whole.

    Args:
        protocol: Where the settings come from.
        dataset: A name of `toa.data.CLASSIFICATION_SETS`, or the path of a file NAME_TRAIN.ts.
        backbone: A name of `toa.models.BACKBONES`.
        attention: Its attention.
        evaluation: "strict" or "tslib-uea"; see `toa.data.load_classification`.
        model: Sizes of the backbone.
        training: Optimizer, schedule, length.
        batch_size: Cases a batch.
        seed: Of what is held out, of weights, batches, dropout and SOR.
        precision: "32-true", or "bf16-mixed" for autocast.
        share_drop_rate: Whether all layers draw one SOR drop rate a pass together, instead of one each.
        tf32: Whether CUDA may round factors of float32 products to TF32.
        deterministic: Whether to refuse operations whose result may change from run to run.
    """

    protocol: str
    dataset: str
    backbone: str
    attention: AttentionSpec
    evaluation: Evaluation
    model: Mapping[str, Any]
    training: TrainingConfig
    batch_size: int
    seed: int = 2024
    precision: Precision = "32-true"
    share_drop_rate: bool = False
    tf32: bool = True
    deterministic: bool = False

    @property
    def name(self) -> str:
        """The model: backbone and attention."""
        return f"{self.backbone}/{self.attention.name}"

    def __post_init__(self) -> None:
        check_choice("evaluation", self.evaluation, EVALUATIONS)
        check_at_least("batch_size", self.batch_size, 1)
        check_at_least("seed", self.seed, 0)
        check_choice("precision", self.precision, ("32-true", "bf16-mixed"))


def resolve_classify(
    protocol: str,
    *,
    dataset: str,
    backbone: str,
    attention: str | None = None,
    seed: int | None = None,
    changes: Iterable[str] = (),
) -> ClassifyRun:
    """The run that a protocol describes.

    Args:
        protocol: A name of `protocol_names("classify")`.
        dataset: A set of the archive, or the path of a file NAME_TRAIN.ts beside NAME_TEST.ts.
        backbone: A name of `toa.models.BACKBONES` that the protocol has.
        attention: A name of `toa.nn.ATTENTIONS`, "toa-gated" if None.
        seed: The protocol's if None.
        changes: Settings to change, as "key=value": "training.epochs=3", "attention.sor=false".

    Raises:
        ValueError: If a name or key is unknown, or a value out of its bounds.
    """
    return resolve_run(
        ClassifyRun,
        "classify",
        protocol,
        backbone=backbone,
        backbones=dict.fromkeys(backbone_names("classify"), True),
        attention=attention,
        names={"dataset": dataset},
        settings_of=lambda table: _settings(table, dataset),
        seed=seed,
        changes=changes,
    )


def _settings(table: Settings, dataset: str) -> Settings:
    if dataset not in CLASSIFICATION_SETS and not Path(dataset).suffix:
        check_choice("dataset", dataset, CLASSIFICATION_SETS)
    # one table serves the whole archive; few sets have more of their own
    return merge(merge({}, table["default"]), table.get(dataset, {}))
