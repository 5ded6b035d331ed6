"""The network of a detector: it learns to reconstruct windows of normal rows, and its error is a score.

    plan    = plan_reconstruction(train, held, spec, shape)    # architecture, schedule, windows
    plan    = limit_plan(plan, effort, needed=False)           # fewer steps; None if these are too few
    network = train_reconstruction(plan)                       # FittedReconstruction, frozen: a `Scorer`

Alphabet: L window length, C channels, T rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toa.data.frequency import Frequency
from toa.data.windows import SeriesWindows
from toa.estimators import sizes
from toa.estimators.architecture import attention_spec, train_task
from toa.estimators.effort import Effort
from toa.estimators.importance import Importance, in_float64, integrated_gradients
from toa.estimators.scoring import Rows, Series, clip
from toa.ops.dropout import initial_weights
from toa.training.anomaly import AnomalyDetection, ReconstructionWindows, channel_errors, score_ends
from toa.training.distributed import resolve_device, seeded
from toa.training.optimization import TrainingConfig

# how a network is trained, beside the parameters of the detector
_TRAINING: Mapping[str, Any] = {"schedule": "cosine", "clip_norm": 1.0}
# windows that contain each row in scoring
_WINDOWS_PER_ROW = 10
_TASK = AnomalyDetection()
_TITLE = "anomaly detector"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconstructionSpec:
    """What is trained, see the parameters of `toa.AnomalyDetector`."""

    backbone: str | None
    attention: str | Mapping[str, Any] | None
    settings: Mapping[str, Any] | None
    epochs: int | None
    batch_size: int | None
    learning_rate: float
    patience: int
    contamination: float
    seed: int
    device: str
    progress: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowShape:
    """What a network reads.

    Attributes:
        rows: Rows L per window.
        channels: Number of channels C.
        constant: Places of the channels that are constant in fit.
        largest: Largest standardised value that it reads; None for all values.
    """

    rows: int
    channels: int
    constant: tuple[int, ...] = ()
    largest: float | None = None

    @property
    def stride(self) -> int:
        """Rows between two windows in scoring."""
        return max(1, self.rows // _WINDOWS_PER_ROW)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedReconstruction:
    """A trained network.

    Attributes:
        architecture: Backbone and settings.
        validation: Mean squared error of the held-out rows.
    """

    spec: ReconstructionSpec
    shape: WindowShape
    architecture: Mapping[str, Any]
    model: nn.Module
    validation: float | None

    def rows(self, values: Series) -> Rows:
        """Squared error of each channel, divided by C; of a channel that was constant in fit, the squared distance."""
        windows = SeriesWindows(self.read(values), self.shape.rows, stride=self.shape.stride, whole=True)
        return self._divide(channel_errors(self.model, windows), values)

    def ends(self, values: Series, window: int) -> Rows:
        """The same of the last row of each window, from the rows of the window alone."""
        windows = SeriesWindows(self.read(values), self.shape.rows)
        return self._divide(score_ends(self.model, windows), values)

    def read(self, values: Series) -> Tensor:
        """Standardised rows as the network reads them."""
        return _to_tensor(values, self.shape.largest, self.spec.device)

    def _divide(self, errors: Rows, values: Series) -> Rows:
        constant = list(self.shape.constant)
        errors[:, constant] = np.square(values[-len(errors) :, constant].astype(np.float64))
        return errors / self.shape.channels


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReconstructionPlan:
    """What is trained, and on which windows.

    Attributes:
        schedule: Batch size, steps per epoch and maximum number of epochs.
        stride: Rows between two windows in training.
    """

    spec: ReconstructionSpec
    shape: WindowShape
    architecture: Mapping[str, Any]
    schedule: Mapping[str, Any]
    train: Sequence[Tensor]
    held: SeriesWindows
    stride: int

    @property
    def data(self) -> ReconstructionWindows:
        """The windows, with the sizes that the model depends on."""
        windows = SeriesWindows(self.train, self.shape.rows, stride=self.stride)
        return ReconstructionWindows(channels=self.shape.channels, train=windows, val=self.held)


def plan_reconstruction(
    train: Sequence[Series], held: Sequence[Series], spec: ReconstructionSpec, shape: WindowShape
) -> ReconstructionPlan:
    """Choose architecture, schedule and windows; without held-out rows the error is that of the rows to train on."""
    architecture = choose_architecture(spec, shape)
    train_rows = [_to_tensor(values, shape.largest, spec.device) for values in train]
    held_rows = [_to_tensor(values, shape.largest, spec.device) for values in held]
    count = sum(len(values) - shape.rows + 1 for values in train)
    stride = sizes.choose_stride(count, shape.channels)
    windows = SeriesWindows(train_rows, shape.rows, stride=stride)
    schedule = sizes.detector_schedule(
        len(windows), shape.channels, architecture["backbone"], batch_size=spec.batch_size, epochs=spec.epochs
    )
    return ReconstructionPlan(
        spec=spec,
        shape=shape,
        architecture=architecture,
        schedule=schedule,
        train=train_rows,
        held=SeriesWindows(held_rows or train_rows, shape.rows, stride=shape.stride),
        stride=stride,
    )


def limit_plan(plan: ReconstructionPlan, effort: Effort, *, needed: bool) -> ReconstructionPlan | None:
    """The plan with the steps that the effort allows; None if these are too few and it is not `needed`."""
    if not effort.has_networks and not needed:
        return None
    if plan.spec.epochs is not None:
        return plan
    schedule = dict(plan.schedule)
    steps = min(effort.network_steps, effort.detector_windows // (schedule["batch_size"] * plan.shape.channels))
    limited = sizes.limit_schedule(schedule, max(steps, sizes.LEAST_STEPS) if needed else steps)
    if limited is None:
        return None
    stride = plan.stride
    if limited["steps"] < schedule["steps"]:
        stride *= -(-schedule["steps"] // limited["steps"])
    smaller: ReconstructionPlan = replace(plan, schedule=limited, stride=stride)
    return smaller


def training_seconds(plan: ReconstructionPlan) -> float:
    """Expected time of a training by the schedule."""
    config = _config(plan.spec, plan.shape, plan.architecture, batch_size=plan.schedule["batch_size"])
    return sizes.training_seconds(plan.schedule, _TASK.seconds_per_step(config, plan.data, plan.spec.device))


def train_reconstruction(plan: ReconstructionPlan) -> FittedReconstruction:
    """Train the network, without changing the global random state."""
    spec = plan.spec
    schedule = plan.schedule
    config = _config(spec, plan.shape, plan.architecture, epochs=schedule["epochs"], batch_size=schedule["batch_size"])
    model, state = train_task(_TASK, config, plan.data, device=spec.device, progress=spec.progress, title=_TITLE)
    return FittedReconstruction(
        spec=spec, shape=plan.shape, architecture=plan.architecture, model=model, validation=state.best
    )


def choose_architecture(spec: ReconstructionSpec, shape: WindowShape) -> dict[str, Any]:
    """Backbone and settings; given settings replace the chosen sizes."""
    backbone, chosen = sizes.choose_reconstructor(spec.backbone, shape.rows, shape.channels)
    return {"backbone": backbone, "settings": {**chosen, **(spec.settings or {})}}


def check_reconstruction(spec: ReconstructionSpec, shape: WindowShape) -> None:
    """Raise ValueError for a network that cannot be built, before anything is fitted."""
    architecture = choose_architecture(spec, shape)
    with seeded(spec.seed, torch.device("cpu")), initial_weights():
        _build(spec, shape, architecture, epochs=spec.epochs or 1)


def build_network(spec: ReconstructionSpec, shape: WindowShape, architecture: Mapping[str, Any]) -> nn.Module:
    """An untrained network."""
    return _build(spec, shape, architecture, epochs=1)


def explain_reconstruction(
    network: FittedReconstruction, window: Series, columns: Sequence[str], freq: Frequency | None, when: str
) -> Importance:
    """Parts of rows and columns in the error of one window; `when` tells which, such as " that ends at 12:00"."""
    rows = network.read(window).cpu().double()[None]  # (1, L, C)
    model = in_float64(network.model)

    def error(rows: Tensor) -> Tensor:
        return (model(rows) - rows).square().mean((1, 2))[:, None]

    (shares,), change = integrated_gradients(error, [rows], [torch.zeros_like(rows)])
    return Importance(
        what=f"the error of the network in the window{when}, compared with rows at the mean of fit",
        outputs=("score",),
        columns=tuple(columns),
        shares=shares,
        ahead=np.zeros((1, len(columns))),
        change=change,
        freq=freq,
    )


def _to_tensor(values: Series, largest: float | None, device: str) -> Tensor:
    """Standardised rows as a network reads them, on its device."""
    return torch.from_numpy(clip(values, largest).astype(np.float32)).to(resolve_device(device))


def _build(spec: ReconstructionSpec, shape: WindowShape, architecture: Mapping[str, Any], *, epochs: int) -> nn.Module:
    data = ReconstructionWindows(channels=shape.channels, train=None, val=None)
    return _TASK.build(_config(spec, shape, architecture, epochs=epochs), data)


def _config(
    spec: ReconstructionSpec,
    shape: WindowShape,
    architecture: Mapping[str, Any],
    *,
    epochs: int = 1,
    batch_size: int = 1,
) -> Any:
    """Config of the task; epochs and batch size matter only in training."""
    attention = architecture.get("attention", spec.attention)
    return _TASK.config(
        protocol="",
        dataset="",
        backbone=architecture["backbone"],
        attention=None if attention is None else attention_spec(attention),
        model=architecture["settings"],
        training=TrainingConfig(
            epochs=epochs,
            learning_rate=spec.learning_rate,
            patience=spec.patience,
            operator_rate=1.0,
            **_TRAINING,
        ),
        batch_size=batch_size,
        seed=spec.seed,
        lookback=shape.rows,
        window_stride=shape.stride,
        anomaly_ratio=100.0 * spec.contamination,
    )
