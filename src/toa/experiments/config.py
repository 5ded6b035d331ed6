"""A forecasting run as data: every setting, checked once, with a hash."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from toa._checks import check_at_least, check_choice
from toa.nn import AttentionSpec
from toa.tasks.optimization import TrainingConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

Fill = Literal["ffill", "interpolate"]
Loss = Literal["mse", "mae"]
Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastRun:
    """One forecasting run, whole.

    Args:
        protocol: Where the settings come from.
        dataset: A name of `toa.data.DATASETS`, or the path of a CSV file.
        horizon: Steps to forecast.
        backbone: A name of `toa.models.BACKBONES`.
        attention: Its attention; None for a model that has none to choose.
        lookback: Steps seen.
        model: Sizes of the backbone.
        training: Optimizer, schedule, length.
        batch_size: Windows a batch.
        drop_last: Whether an epoch's last, smaller batch is left out in training. At test nothing is.
        marks: Whether the model is given calendar features.
        fill: What to do about missing values in a file: None refuses them, "ffill" or "interpolate".
        allow_constant: Whether a column that never changes in training is left unscaled instead of refused.
        date_column: Column of dates in a file of one's own; "" if it has none.
        loss: What is minimised, and compared on validation.
        seed: Of weights, batches, dropout and SOR.
        precision: "32-true", or "bf16-mixed" for autocast.
        share_drop_rate: Whether all layers draw one SOR drop rate a pass together, instead of one each.
        tf32: Whether CUDA may round factors of float32 products to TF32.
        deterministic: Whether to refuse operations whose result may change from run to run.
    """

    protocol: str
    dataset: str
    horizon: int
    backbone: str
    attention: AttentionSpec | None
    lookback: int
    model: Mapping[str, Any]
    training: TrainingConfig
    batch_size: int
    drop_last: bool = False
    marks: bool = False
    fill: Fill | None = None
    allow_constant: bool = False
    date_column: str = "date"
    loss: Loss = "mse"
    seed: int = 2024
    precision: Precision = "32-true"
    share_drop_rate: bool = False
    tf32: bool = True
    deterministic: bool = False

    @property
    def name(self) -> str:
        """The model: backbone, and attention if it has one to choose."""
        return self.backbone if self.attention is None else f"{self.backbone}/{self.attention.name}"

    def __post_init__(self) -> None:
        for name in ("horizon", "lookback", "batch_size"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("seed", self.seed, 0)
        if self.fill is not None:
            check_choice("fill", self.fill, ("ffill", "interpolate"))
        check_choice("loss", self.loss, ("mse", "mae"))
        check_choice("precision", self.precision, ("32-true", "bf16-mixed"))


def build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """A config from plain values; a key that it does not have is refused."""
    known = [field.name for field in fields(kind)]
    for key in values:
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {where}; known: {', '.join(known)}.")
    settled = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    try:
        return kind(**settled)
    except TypeError as error:
        raise ValueError(f"{where} must set every key without a default: {error}.") from None
