"""A run of anomaly detection as data, and the named protocols that describe it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toa._checks import check_at_least, check_choice
from toa.data import ANOMALY_SETS, check_own_files
from toa.experiments.config import Precision
from toa.experiments.settings import Settings, merge, resolve_run
from toa.models import backbone_names
from toa.nn import AttentionSpec
from toa.tasks.optimization import TrainingConfig

Fill = Literal["ffill", "interpolate", "zero"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnomalyRun:
    """One run of anomaly detection, whole; it is measured under all of `toa.tasks.anomaly.RULES`.

    Args:
        protocol: Where the settings come from.
        dataset: A name of `toa.data.ANOMALY_SETS`, or the path of a train file.
        test_file: With a train file, the file of the test series; "" with a set of the catalogue.
        label_file: And the file with its labels.
        backbone: A name of `toa.models.BACKBONES`.
        attention: Its attention.
        lookback: Steps of a window.
        window_stride: Steps between the starts of two windows, in training and scoring.
        anomaly_ratio: Percentage of scores above the threshold.
        model: Sizes of the backbone.
        training: Optimizer, schedule, length.
        batch_size: Windows a batch.
        validation_share: Last part of the train series that the epoch is chosen by.
        validation_in_train: Whether training sees that part too, as in Time-Series-Library.
        fill: What to do about missing values in files of one's own: None refuses them.
        index_column: Whether the first column of one's own csv files is an index, to be left out.
        label_column: Whether the last column of one's own train and test files is the label; there is no label file.
        allow_constant: Whether a channel that never changes in training is left unscaled instead of refused.
        random_draws: Draws of a random score to compare with.
        seed: Of weights, batches, dropout and SOR.
        precision: "32-true", or "bf16-mixed" for autocast.
        share_drop_rate: Whether all layers draw one SOR drop rate a pass together, instead of one each.
        tf32: Whether CUDA may round factors of float32 products to TF32.
        deterministic: Whether to refuse operations whose result may change from run to run.
    """

    protocol: str
    dataset: str
    backbone: str
    attention: AttentionSpec
    lookback: int
    window_stride: int
    anomaly_ratio: float
    model: Mapping[str, Any]
    training: TrainingConfig
    batch_size: int
    test_file: str = ""
    label_file: str = ""
    validation_share: float = 0.2
    validation_in_train: bool = True
    fill: Fill | None = None
    index_column: bool = False
    label_column: bool = False
    allow_constant: bool = False
    random_draws: int = 5
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
        for name in ("lookback", "window_stride", "batch_size", "random_draws"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("seed", self.seed, 0)
        for name, most in (("anomaly_ratio", 100.0), ("validation_share", 1.0)):
            if not 0.0 < getattr(self, name) < most:
                raise ValueError(f"{name} must lie in (0, {most:g}), got {getattr(self, name)}.")
        if self.fill is not None:
            check_choice("fill", self.fill, ("ffill", "interpolate", "zero"))
        check_choice("precision", self.precision, ("32-true", "bf16-mixed"))
        check_own_files(self.dataset, self.test_file, self.label_file, label_column=self.label_column)


def resolve_anomaly(
    protocol: str,
    *,
    dataset: str,
    backbone: str,
    attention: str | None = None,
    test_file: str | None = None,
    label_file: str | None = None,
    seed: int | None = None,
    changes: Iterable[str] = (),
) -> AnomalyRun:
    """The run that a protocol describes.

    Args:
        protocol: A name of `protocol_names("anomaly")`.
        dataset: A set of the catalogue that the protocol has, or the path of a train file, which gets the backbone's
            default settings.
        backbone: A name of `toa.models.BACKBONES` that the protocol has.
        attention: A name of `toa.nn.ATTENTIONS`, "toa-gated" if None.
        test_file: The test series, with a train file.
        label_file: Its labels.
        seed: The protocol's if None.
        changes: Settings to change, as "key=value": "training.epochs=3", "anomaly_ratio=0.5", "window_stride=100".

    Raises:
        ValueError: If a name or key is unknown, or a value out of its bounds.
    """
    return resolve_run(
        AnomalyRun,
        "anomaly",
        protocol,
        backbone=backbone,
        backbones=dict.fromkeys(backbone_names("reconstruct"), True),
        attention=attention,
        names={"dataset": dataset, "test_file": test_file or "", "label_file": label_file or ""},
        settings_of=lambda table: _settings(table, protocol, dataset),
        seed=seed,
        changes=changes,
    )


def _settings(table: Settings, protocol: str, dataset: str) -> Settings:
    settings = merge({}, table["default"])
    if dataset not in ANOMALY_SETS:
        if not Path(dataset).suffix:
            check_choice("dataset", dataset, ANOMALY_SETS)
        return settings
    # the 28 machines share one table
    own = "SMD-machine" if dataset.startswith("SMD-machine-") else dataset
    check_choice(f"dataset of protocol {protocol!r}", own, [name for name in table if name != "default"])
    return merge(settings, table[own])
