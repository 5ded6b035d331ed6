"""Settings that the runs of every task share, and the options of one execution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from toa._checks import check_at_least, check_choice
from toa.nn import AttentionSpec
from toa.tasks.optimization import TrainingConfig
from toa.tasks.training import Observer

Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Settings that the runs of forecasting, anomaly detection and classification share.

    Args:
        protocol: Name of the protocol that the settings come from.
        dataset: A name of the task's catalogue, or the path of a file.
        backbone: A registered model of the task.
        attention: Its attention; None for a model without a choice of attention.
        model: Sizes of the backbone.
        training: Optimizer, schedule, number of epochs.
        batch_size: Windows or cases per batch.
        seed: Seed of weights, batches, dropout and SOR, and of the hold-out in classification.
        precision: "32-true", or "bf16-mixed" for autocast.
        share_drop_rate: Draw one SOR drop rate per pass for all layers, instead of one per layer.
        tf32: Let CUDA round factors of float32 products to TF32.
        deterministic: Raise an error on operations whose result may vary between runs.
    """

    task: ClassVar[str]

    protocol: str
    dataset: str
    backbone: str
    attention: AttentionSpec | None
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
        """Backbone and, where there is a choice, attention."""
        return self.backbone if self.attention is None else f"{self.backbone}/{self.attention.name}"

    def __post_init__(self) -> None:
        check_at_least("batch_size", self.batch_size, 1)
        check_at_least("seed", self.seed, 0)
        check_choice("precision", self.precision, ("32-true", "bf16-mixed"))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Where and how a config is run; none of this changes the config's hash.

    Args:
        folder: Folder of this run.
        key: Hash of the config.
        data_dir: Folder that is searched first for datasets.
        device: "auto", "cpu", "cuda" or "cuda:N".
        devices: Number of devices per node that train together.
        num_nodes: Number of nodes.
        command: Command line to store in the record.
        observe: Called with the progress of training.
    """

    folder: Path
    key: str
    data_dir: Path | None = None
    device: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    command: Sequence[str] = ()
    observe: Observer | None = None
