"""Anomaly detection: train a reconstruction on windows, score each step by its error, flag steps and measure.

Alphabet: B batch, N windows, L window length, C channels, T steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least, check_finite
from toa._limits import most_windows
from toa.data import ANOMALY_SETS, SeriesWindows, check_own_files, load_anomaly, locate_anomaly
from toa.data.anomaly import AnomalyData, own_files
from toa.models import build_reconstructor
from toa.training.base import TASKS, Evaluation, Record, Task, check_sample, model_checkpoint
from toa.training.checkpoint import Checkpoint
from toa.training.config import RunConfig
from toa.training.detection import Detection, SeriesScores, detect
from toa.training.metrics import evaluating, mean_metrics, squared_error

# file of test scores and flags in a run's folder
SCORES = "scores.safetensors"

# windows per batch without gradients: a GPU is faster with many, a CPU with few that fit its cache
_CUDA_BATCH = 1024
_CPU_BATCH = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class AnomalyRun(RunConfig):
    """Config of one run of anomaly detection. Each run is measured under all of `RULES`.

    Args:
        test_file: File of the test series, if `dataset` is the path of a train file; else "".
        label_file: File of its labels; "" with a dataset of the catalogue or with `label_column`.
        window_stride: Steps between the starts of two windows, in training and scoring.
        anomaly_ratio: Percentage of scores above the threshold.
        validation_share: Last part of the train series, used for validation.
        validation_in_train: Train on that part too, as Time-Series-Library does.
        index_column: The first column of user CSV files is an index and is dropped.
        label_column: The last column of the user's train and test files is the label.
        allow_constant: Leave a channel unscaled that is constant in training; otherwise it raises an error.
        random_draws: Number of draws of the random score for comparison.
    """

    task: ClassVar[str] = "anomaly"

    lookback: int
    window_stride: int
    anomaly_ratio: float
    test_file: str = ""
    label_file: str = ""
    validation_share: float = 0.2
    validation_in_train: bool = True
    fill: Literal["ffill", "interpolate", "zero"] | None = None
    index_column: bool = False
    label_column: bool = False
    allow_constant: bool = False
    random_draws: int = 5

    def __post_init__(self) -> None:
        # a dataclass with slots cannot use super() without arguments
        RunConfig.__post_init__(self)
        for name in ("lookback", "window_stride", "random_draws"):
            check_at_least(name, getattr(self, name), 1)
        for name, most in (("anomaly_ratio", 100.0), ("validation_share", 1.0)):
            if not 0.0 < getattr(self, name) < most:
                raise ArgumentError(name, f"lie in (0, {most:g})", getattr(self, name))
        # no name: the caller has the data in memory
        if self.dataset:
            check_own_files(self.dataset, self.test_file, self.label_file, label_column=self.label_column)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReconstructionWindows:
    """What `build`, `batches` and `validate` read of `DetectionData`.

    Attributes:
        train: Windows to train on; None to build a model only.
        val: Windows to choose the epoch by; None keeps the last epoch.
    """

    channels: int
    train: Any = None
    val: Any = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DetectionData:
    """The windows of a run, and the series that they are cut from."""

    channels: int
    train: SeriesWindows
    val: SeriesWindows
    source: AnomalyData

    @property
    def checksum(self) -> str:
        """Checksum of the files."""
        return self.source.checksum


class AnomalyDetection(Task):
    """Flag anomalous steps of a series; see `Task` for the methods.

    Metrics of the record are named RULES/METRIC. Undefined ones are left out; `detections` states the reasons.
    """

    config = AnomalyRun
    catalogue = ANOMALY_SETS
    model_kind = "reconstruct"

    def locate(self, dataset: str, data_dir: Path | None) -> Sequence[Path]:
        return locate_anomaly(ANOMALY_SETS[dataset], data_dir)[1]

    def own_files(self, config: AnomalyRun) -> Sequence[Path]:
        return own_files(config.dataset, config.test_file, config.label_file, label_column=config.label_column)

    def load(self, config: AnomalyRun, device: torch.device, data_dir: Path | None = None) -> DetectionData:
        names = ("fill", "index_column", "label_column", "allow_constant")
        how = {name: getattr(config, name) for name in names}
        files: dict[str, Any] = {"test_file": config.test_file or None, "label_file": config.label_file or None}
        data = load_anomaly(config.dataset, length=config.lookback, data_dir=data_dir, device=device, **files, **how)
        border = int(len(data.train) * (1.0 - config.validation_share))
        train = data.train if config.validation_in_train else data.train[:border]
        windows: dict[str, Any] = {}
        for name, part in (("train", train), ("val", data.train[border:])):
            if len(part) < config.lookback:
                raise ArgumentError(
                    f"the {name} part of {data.name}",
                    f"have at least one window of {config.lookback} rows",
                    f"{len(part)} of {len(data.train)}",
                    "shorten the window, or change validation_share",
                )
            windows[name] = SeriesWindows(part, config.lookback, stride=config.window_stride)
        return DetectionData(channels=data.train.shape[1], source=data, **windows)

    def sample(self, config: AnomalyRun, index: int, data_dir: Path | None = None) -> tuple[Tensor | None, ...]:
        series = self.load(config, torch.device("cpu"), data_dir).source.test
        length, stride = config.lookback, config.window_stride
        start = stride * check_sample(index, (len(series) - length) // stride + 1)
        return (series[None, start : start + length],)

    def build(self, config: AnomalyRun, data: ReconstructionWindows | DetectionData) -> nn.Module:
        assert config.attention is not None
        return build_reconstructor(
            config.backbone,
            lookback=config.lookback,
            channels=data.channels,
            attention=config.attention,
            settings=config.model,
        )

    def rebuild(self, config: AnomalyRun, saved: Checkpoint) -> nn.Module:
        return self.build(config, ReconstructionWindows(channels=len(saved.tensors["scaler.mean"])))

    def loss(self, config: AnomalyRun, fabric: Any) -> Callable[..., Tensor]:
        return lambda model, x: squared_error(model(x), x).mean()

    def validate(self, config: AnomalyRun, data: ReconstructionWindows | DetectionData) -> Callable[[nn.Module], float]:
        return lambda model: evaluate_reconstruction(model, data.val)

    def evaluate(self, config: AnomalyRun, model: nn.Module, data: DetectionData) -> Evaluation:
        validation = evaluate_reconstruction(model, data.val)
        train, test = (
            score_series(model, SeriesWindows(series, config.lookback, stride=config.window_stride, whole=True))
            for series in (data.source.train, data.source.test)
        )
        labels = data.source.labels
        detections = detect(train, test, labels, anomaly_ratio=config.anomaly_ratio, random_draws=config.random_draws)
        defined = {
            f"{detection.rules.name}/{name}": value
            for detection in detections
            for name, value in detection.metrics.items()
        }
        scores = {"score": torch.from_numpy(test.steps).float(), "labels": torch.from_numpy(labels)}
        scores |= {f"flags.{detection.rules.name}": torch.from_numpy(detection.flags) for detection in detections}
        thresholds = {detection.rules.name: detection.threshold for detection in detections}
        spec = data.source.spec
        return Evaluation(
            metrics={"val_mse": validation, **{name: value for name, value in defined.items() if value is not None}},
            facts={
                "windows": {"train": len(data.train), "val": len(data.val), "test": len(test.starts)},
                "detections": {detection.rules.name: _choices(detection, config) for detection in detections},
                "subset_of": None if spec is None else spec.subset_of,
            },
            artifacts={
                self.model_file: model_checkpoint(config, model, data.source.scaler),
                SCORES: Checkpoint(tensors=scores, facts={"thresholds": thresholds}),
            },
        )


TASKS.register("anomaly")(AnomalyDetection())


def _choices(detection: Detection, config: AnomalyRun) -> Record:
    """Every choice behind the metrics, by name."""
    rules = {name: value for name, value in asdict(detection.rules).items() if name != "name"}
    names = ("window_stride", "anomaly_ratio", "validation_in_train", "random_draws")
    return {
        **rules,
        **{name: getattr(config, name) for name in names},
        "headline": detection.rules.headline,
        "threshold": detection.threshold,
        "flag_rate": detection.flag_rate,
        "undefined": detection.undefined,
    }


def evaluate_reconstruction(model: nn.Module, windows: SeriesWindows) -> float:
    """Mean squared error over all windows, steps and channels."""
    pairs = ((estimate, x) for _, x, estimate in _reconstructions(model, windows))
    return mean_metrics({"mse": squared_error}, pairs)["mse"]


def score_series(model: nn.Module, windows: SeriesWindows, *, batch_size: int | None = None) -> SeriesScores:
    """Score a series.

    Args:
        windows: Windows of the series, made with whole=True so that they cover every step.
        batch_size: Number of windows per call of the model; None chooses it by the device.
    """
    flat: list[Tensor] = []

    def mean_error(estimate: Tensor, x: Tensor) -> Tensor:
        flat.append(squared_error(estimate.float(), x).mean(2))
        return flat[-1].unsqueeze(2)  # (B, L, 1)

    steps = _mean_over_windows(model, windows, mean_error, batch_size)[:, 0]
    return SeriesScores(
        flat=torch.cat(flat)[: windows.regular].reshape(-1).cpu().numpy(),
        steps=steps,
        starts=windows.starts[: windows.regular].cpu().numpy(),
        length=windows.length,
    )


def channel_errors(model: nn.Module, windows: SeriesWindows) -> Float[np.ndarray, "t c"]:
    """Squared error of each step and channel of a series, the mean over the windows that contain the step."""
    return _mean_over_windows(model, windows, lambda estimate, x: squared_error(estimate.float(), x))


def _mean_over_windows(
    model: nn.Module,
    windows: SeriesWindows,
    error: Callable[[Tensor, Tensor], Tensor],
    batch_size: int | None = None,
) -> Float[np.ndarray, "t e"]:
    """Mean of errors (B, L, E) of reconstructions over the windows that contain a step, summed on the device."""
    total: Any = None
    count = torch.zeros(windows.rows, dtype=torch.float64, device=windows.starts.device)
    inside = torch.arange(windows.length, device=windows.starts.device)
    for index, x, estimate in _reconstructions(model, windows, batch_size):
        found = error(estimate, x).double()
        if total is None:
            total = found.new_zeros(windows.rows, found.shape[2])
        steps = (windows.starts[index, None] + inside).view(-1)  # (B*L,)
        total.index_add_(0, steps, found.flatten(0, 1))
        count.index_add_(0, steps, torch.ones_like(steps, dtype=torch.float64))
    if bool((count == 0).any()):
        raise ArgumentError("windows", "cover every step of the series", "uncovered steps", "make them with whole=True")
    check_finite("scores", total)
    return (total / count[:, None]).cpu().numpy()


def score_ends(model: nn.Module, windows: SeriesWindows) -> Float[np.ndarray, "n c"]:
    """Squared error of each channel at the last step of each window: the score of a step on arrival."""
    ends = [squared_error(estimate.float(), x)[:, -1] for _, x, estimate in _reconstructions(model, windows)]
    scores = torch.cat(ends).double().cpu()
    check_finite("scores", scores)
    return scores.numpy()


def _reconstructions(
    model: nn.Module, windows: SeriesWindows, batch_size: int | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield indices of windows, the windows and their reconstructions, batch by batch, in evaluation mode."""
    device = windows.starts.device
    usual = _CUDA_BATCH if device.type == "cuda" else _CPU_BATCH
    size = min(batch_size or usual, most_windows(windows.channels, training=False, mixed=True))
    with evaluating(model):
        for index in torch.arange(len(windows), device=device).split(size):
            x = windows.batch(index)
            yield index, x, model(x)
