"""The network of a detector: it learns to reconstruct windows of normal rows.

Alphabet: L window length, C channels, T rows, S series.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from toa.data.frames import check_frequency, match_panel, read_panel
from toa.data.panel import Id, Panel, Values
from toa.data.splits import StandardScaler, check_standardised
from toa.data.windows import SeriesWindows
from toa.estimators import sizes
from toa.estimators.base import NETWORK, Estimator
from toa.estimators.combination import rows_for
from toa.estimators.effort import Ceiling
from toa.estimators.importance import Importance, in_float64, integrated_gradients, sample_rows
from toa.ops.dropout import initial_weights
from toa.training.anomaly import channel_errors, score_ends
from toa.training.base import TASKS
from toa.training.distributed import resolve_device, seeded


@dataclass(eq=False, repr=False)
class ReconstructionNetwork(Estimator):
    """Parameters, scaling and training of the network; see `AnomalyDetector`, which adds the other methods."""

    _kind = "anomaly detector"
    _task = TASKS["anomaly"]
    _training: ClassVar[Mapping[str, Any]] = {"schedule": "cosine", "clip_norm": 1.0}
    _counts = ("window",)
    _facts = ("freq_", "window_", "threshold_", "stream_threshold_", "validation_", "architecture_")

    _: KW_ONLY
    window: int | None = None
    contamination: float = 0.01
    freq: str | int | None = None

    def _fit_network(self, train: Sequence[Tensor], held: Sequence[Tensor], ceiling: Ceiling, *, needed: bool) -> bool:
        """Train the network; returns False if that is too much work or takes too long, and it is not `needed`."""
        channels = len(self.columns_)
        train, held = ([self._input(one) for one in part] for part in (train, held))
        self._choose(*sizes.choose_reconstructor(self.backbone, self.window_, channels))
        stride = sizes.choose_stride(sum(len(one) - self.window_ + 1 for one in train), channels)
        windows = SeriesWindows(train, self.window_, stride=stride)
        given = {"batch_size": self.batch_size, "epochs": self.epochs}
        schedule = sizes.detector_schedule(len(windows), channels, self.architecture_["backbone"], **given)
        # validation needs a window: a table whose series are all too short for two parts validates on its windows
        data = self._data(windows, SeriesWindows(held or train, self.window_, stride=self._stride))
        limited = self._limit_schedule(schedule, needed=needed)
        if limited is None:
            self._leave_out_network()
            return False
        if ceiling.seconds is not None and not needed:
            config = self._config(batch_size=schedule["batch_size"])
            seconds = sizes.training_seconds(limited, self._task.seconds_per_step(config, data, self.device))
            # at the end the other methods are fitted again, and score all rows
            if not ceiling.allows(NETWORK, seconds + 2.0 * ceiling.passed):
                self._leave_out_network()
                return False
        if limited["steps"] < schedule["steps"]:
            fewer = stride * -(-schedule["steps"] // limited["steps"])
            data = self._data(SeriesWindows(train, self.window_, stride=fewer), data.val)
        self.validation_ = self._fit_model(data, limited)
        return True

    def _limit_schedule(self, schedule: dict[str, Any], *, needed: bool) -> dict[str, Any] | None:
        """The schedule with the steps that the effort allows; None if these are too few and it is not `needed`."""
        effort = self._effort
        if not effort.has_networks and not needed:
            return None
        if self.epochs is not None:
            return schedule
        steps = min(effort.network_steps, effort.detector_windows // (schedule["batch_size"] * len(self.columns_)))
        return sizes.limit_schedule(schedule, max(steps, sizes.LEAST_STEPS) if needed else steps)

    def _check_network(self) -> None:
        """Raise ValueError for a network that cannot be built, before anything is fitted."""
        self._choose(*sizes.choose_reconstructor(self.backbone, self.window_, len(self.columns_)))
        with seeded(self.seed, torch.device("cpu")), initial_weights():
            self._task.build(self._config(epochs=self.epochs or 1), self._data())

    def _input(self, series: Tensor) -> Tensor:
        """Standardised rows as the network reads them."""
        return rows_for(NETWORK, series, self.largest_)

    def _network_rows(self, series: Tensor, *, ends: bool = False) -> Float64[np.ndarray, "t c"]:
        """Squared error of each channel, divided by C; of a channel that was constant in fit, the squared distance.

        With `ends`, that of the last row of each window, from the rows of the window alone.
        """
        if ends:
            errors = score_ends(self.model_, SeriesWindows(self._input(series), self.window_))
        else:
            windows = SeriesWindows(self._input(series), self.window_, stride=self._stride, whole=True)
            errors = channel_errors(self.model_, windows)
        constant = list(self.constant_)
        errors[:, constant] = series[-len(errors) :, constant].double().square().cpu().numpy()
        return errors / series.shape[1]

    def _split(self, series: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Parts to train on and held-out ends; a series that is too short for both parts only trains."""
        train, held = [], []
        for one in series:
            border = len(one) - max(self.window_, int(len(one) * self.validation_share))
            train.append(one[:border] if border >= self.window_ else one)
            held += [one[border:]] if border >= self.window_ else []
        return train, held

    @property
    def _stride(self) -> int:
        """Rows between two windows in scoring: each row is in ten windows."""
        return max(1, self.window_ // 10)

    def _fields(self) -> dict[str, Any]:
        ratio = 100.0 * self.contamination
        return {"lookback": self.window_, "window_stride": self._stride, "anomaly_ratio": ratio}

    def run_sample(self, data: Any, index: int = 0) -> None:
        """Score one window of a pandas frame, see `Estimator.run_sample`."""
        self._check_has_network()
        self.scores(sample_rows(data, self.id, index, self.window_))

    def explain(self, data: Any, index: int | None = None) -> Importance:
        """Parts of rows and columns in the error of the network, see `Estimator.explain`."""
        self._check_has_network()
        panel = self._read_fitted(data if index is None else sample_rows(data, self.id, index, self.window_))
        series = self._scaled(panel)
        errors = [self._network_rows(one).sum(1) for one in series]
        which = int(np.argmax([error.max() for error in errors]))
        # the row with the largest error is the last row of the window, if there are enough rows before it
        stop = max(self.window_, int(errors[which].argmax()) + 1)
        window = self._input(series[which])[stop - self.window_ : stop].cpu().double()[None]  # (1, L, C)
        model = in_float64(self.model_)

        def error(rows: Tensor) -> Tensor:
            return (model(rows) - rows).square().mean((1, 2))[:, None]

        (shares,), change = integrated_gradients(error, [window], [torch.zeros_like(window)])
        when = "" if panel.times is None else f" that ends at {panel.times[which][stop - 1]}"
        return Importance(
            what=f"the error of the network in the window{when}, compared with rows at the mean of fit",
            outputs=("score",),
            columns=self.columns_,
            shares=shares,
            ahead=np.zeros((1, len(self.columns_))),
            change=change,
            freq=self.freq_,
        )

    def _read(self, data: Any, **options: Any) -> Panel:
        return read_panel(data, values=self.values, **self._table | {"freq": self.freq} | options)

    def _read_fitted(self, data: Any, **options: Any) -> Panel:
        """The panel with the columns of fit; raises ValueError for other columns, ids or another frequency."""
        self._check_fitted("applied to rows")
        known = None if None in self.scalers_ else self.scalers_
        panel = match_panel(self._read(data, usual_freq=self.freq_, **options), self.columns_, known)
        check_frequency(panel, self.freq_)
        return panel

    def _scale(self, one: Id, values: Values) -> Tensor:
        scaler = self.scalers_[None] if None in self.scalers_ else self.scalers_[one]
        name = "data" if one is None else f"series {one!r} of data"
        scaled = check_standardised(scaler.transform(values), self.columns_, name).astype(np.float32)
        return torch.from_numpy(scaled).to(resolve_device(self.device))

    @property
    def _context(self) -> int:
        """Rows before a row that its score on arrival depends on: a window, and the rows of its mean."""
        return self.window_ - 1 + self.window_ // 2

    def _scaled(self, panel: Panel) -> list[Tensor]:
        what = f"one window of {self.window_} rows"
        panel.check_rows(self.window_, what, "pass more of its rows, or fit with a smaller window")
        return [self._scale(one, values) for one, values in zip(panel.ids, panel.values, strict=True)]

    def _fit_scalers(self, panel: Panel) -> None:
        """One scaler per id of a frame; for tables without ids and for arrays, one scaler with the key None."""
        groups: dict[Id, list[np.ndarray]] = {}
        for one, values in zip(panel.ids, panel.values, strict=True):
            groups.setdefault(None if panel.id_column is None else one, []).append(values)
        self.scalers_ = {
            one: StandardScaler.fit(np.concatenate(values), columns=panel.columns, allow_constant=True)
            for one, values in groups.items()
        }
