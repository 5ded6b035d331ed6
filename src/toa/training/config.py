"""Configs of runs, and the options of one execution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from toa._checks import check_at_least, check_seed
from toa.nn import AttentionSpec
from toa.nn.registry import check_literals
from toa.training.distributed import resolve_device
from toa.training.loop import Observer
from toa.training.optimization import TrainingConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Settings that the runs of forecasting, anomaly detection and classification share.

    Args:
        protocol: Name of the protocol that the settings come from.
        dataset: A name of the task's catalogue, or the path of a file.
        model: Sizes of the backbone.
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
        check_seed(self.seed)
        check_literals(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Where and how a config is run; none of this changes the config's hash.

    Args:
        folder, key: Folder of the run, and the config's hash.
        device: "auto", "cpu", "cuda" or "cuda:N".
        devices: Number of devices per node that train together.
        command: Command line to store in the record.
    """

    folder: Path
    key: str
    data_dir: Path | None = None
    device: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    command: Sequence[str] = ()
    observe: Observer | None = None

    def __post_init__(self) -> None:
        # an unknown device raises an error even if the run is finished
        resolve_device(self.device)


def build_config(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a config from plain values."""
    known = [field.name for field in fields(kind)]
    for key in values:
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {where}; known: {', '.join(known)}.")
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    try:
        return kind(**plain)
    except TypeError as error:
        raise ValueError(f"{where} must set every key without a default: {error}.") from None
