"""AnomalyDetector: learns to reconstruct windows of normal rows, and flags what it reconstructs badly.

Alphabet: L window length, C channels, T rows, S series.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_fraction
from toa.data.anomaly import SeriesWindows
from toa.data.scaling import StandardScaler
from toa.estimators.base import Estimator
from toa.estimators.fitting import attention_spec, choose_epochs, fit_model, restore_model
from toa.estimators.frames import Id, Missing, Panel, read_panel
from toa.estimators.rows import match_columns, rows_in_order
from toa.estimators.streams import RowStream
from toa.models import backbone_names, build_reconstructor
from toa.tasks.anomaly import (
    ReconstructionBatches,
    evaluate_reconstruction,
    reconstruction_loss,
    score_ends,
    score_series,
)
from toa.tasks.anomaly_metrics import point_metrics, undefined
from toa.tasks.device import resolve_device
from toa.tasks.optimization import TrainingConfig

# window by size: a fifth of the longest series, within these
_WINDOW = (8, 100)
# windows of an epoch at most, fewer of many channels; beyond, training takes every second, third, … of them
_WINDOWS = (2_000, 20_000)
_CHANNEL_WINDOWS = 60_000
# a token of each channel's patches costs more than one of each channel
_MANY_CHANNELS = 32
# of small tables; `settings` goes over it
_SIZES: dict[str, Any] = {"embed_dim": 32, "num_heads": 4, "num_layers": 2, "ff_dim": 64, "dropout": 0.1}
# learned, and plain enough for a file as it is
_FACTS = ("freq_", "window_", "threshold_", "stream_threshold_", "validation_", "architecture_")


class AnomalyDetector(Estimator):
    """Flags rows of time series that are not like those it was fitted on.

        detector = toa.AnomalyDetector().fit(normal)   # a frame or an array; most of its rows should be normal
        detector.predict(new)                          # a frame: time, score, anomaly; 0 and 1 for an array
        detector.detect(row)                           # a stream: each row is scored as it arrives

    A model learns to reconstruct windows. The score of a row is its squared error, scaled by the rows of `fit` and
    averaged over channels and over the windows that hold it; rows above `threshold_`, which a share `contamination` of
    the fitted rows are, are flagged. Frames with an id column hold several series: one model for all, with a level
    and a scale for each id. A column that never changes in `fit` is left unscaled.

    Args:
        window: Rows L of a window; None is a fifth of the longest series, from 8 to 100.
        contamination: Share of the rows of `fit` that lies above the threshold.
        backbone: A name of `toa.models.BACKBONES`; None is "patchtst", or "itransformer" for many channels.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`.
        settings: Sizes and parts of the backbone; what is left out is small.
        epochs: Passes over the data at most; None is by size.
        batch_size: Windows a batch.
        learning_rate: Highest of a schedule that falls to zero.
        patience: Epochs without a better reconstruction of the held-out rows after which training ends.
        validation_share: Last part of each series that is held out to choose the epoch by.
        id: Column of ids, in a frame of several series.
        time: Column of times; None finds it.
        values: Columns to read; None is all others.
        freq: Frequency of the times; None infers it.
        missing: What to do about missing values and rows: "error", "ffill", "interpolate" or "zero".
        seed: Of weights, batches, dropout and SOR.
        device: "auto", "cpu", "cuda" or "cuda:N".
        progress: Whether to show a bar while fitting.

    Attributes:
        model_: The trained model.
        window_: Rows of a window.
        threshold_: Rows with a higher score are flagged.
        stream_threshold_: The same for `detect`, whose scores know nothing of what follows a row.
        columns_: Names of the channels.
        validation_: Mean squared error of the held-out rows, in units of their variance.
    """

    _kind = "anomaly detector"

    def __init__(
        self,
        *,
        window: int | None = None,
        contamination: float = 0.01,
        backbone: str | None = None,
        attention: str | Mapping[str, Any] = "toa-gated",
        settings: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        patience: int = 3,
        validation_share: float = 0.2,
        id: str | None = None,
        time: str | None = None,
        values: Sequence[str] | None = None,
        freq: str | int | None = None,
        missing: Missing = "error",
        seed: int = 2024,
        device: str = "auto",
        progress: bool = False,
    ) -> None:
        self.window = window
        self.contamination = contamination
        self.backbone = backbone
        self.attention = attention
        self.settings = settings
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.validation_share = validation_share
        self.id = id
        self.time = time
        self.values = values
        self.freq = freq
        self.missing = missing
        self.seed = seed
        self.device = device
        self.progress = progress

    def fit(self, data: Any, y: Any = None) -> "AnomalyDetector":
        """Learn what rows are like.

        Args:
            data: A frame of pandas, polars or arrow, an array (T,) or (T, C), or a list of those.
            y: Not used; scikit-learn's pipelines pass it.

        Raises:
            ValueError: If the data cannot be read, or no series has two windows.
        """
        check_fraction("contamination", self.contamination)
        check_fraction("validation_share", self.validation_share)
        if not self.contamination > 0.0:
            raise ValueError(f"contamination must lie in (0, 1), got {self.contamination}.")
        panel = self._read(data)
        self.columns_ = panel.columns
        self.freq_ = panel.freq
        self.window_ = self._choose_window(panel)
        self.scalers_ = _fit_scalers(panel)
        self.architecture_ = self._choose_architecture()
        series = self._scaled(panel)
        train, held = self._split(panel, series)
        windows = JoinedWindows(train, self.window_, stride=self._every(train))
        val = JoinedWindows(held, self.window_, stride=self._stride)
        self.model_, state = fit_model(
            self._make,
            ReconstructionBatches(windows, self.batch_size, seed=self.seed),
            reconstruction_loss,
            self._training,
            validate=lambda model: evaluate_reconstruction(model, val),
            seed=self.seed,
            device=self.device,
            progress=self.progress,
            description=self._kind,
        )
        assert state.best is not None
        self.validation_ = state.best
        self._set_thresholds(series)
        self.reset_stream()
        return self

    def scores(self, data: Any) -> Any:
        """How badly each row is reconstructed: an array, a list of them, or a frame with a column "score"."""
        return self._answer(data, lambda found: {"score": found})

    def decision_function(self, data: Any) -> Any:
        """`scores` less the threshold: positive where a row is flagged."""
        return self._answer(data, lambda found: {"score": found - self.threshold_})

    def predict(self, data: Any) -> Any:
        """Flags: 0 and 1 for arrays; for a frame its ids and times with columns "score" and "anomaly"."""
        return self._answer(data, lambda found: {"score": found, "anomaly": (found > self.threshold_).astype(int)})

    def fit_predict(self, data: Any, y: Any = None) -> Any:
        """Fit to rows and flag among them."""
        return self.fit(data).predict(data)

    def score(self, data: Any, y: Any) -> float:
        """F1 of the flagged rows, each counted once and none adjusted.

        Args:
            data: What `predict` takes.
            y: For each row whether it is an anomaly, in the table's order; for a list of arrays, a list.

        Raises:
            ValueError: If labels are not one a row, or of one kind, so that it is undefined.
        """
        panel = self._read_known(data)
        found = self._scores(panel)
        if panel.backend is None:
            flat = np.concatenate(found)
        else:
            flat = rows_in_order(panel, [{"score": one} for one in found])["score"]
        labels = np.concatenate([np.asarray(one) for one in y]) if len(panel.ids) > 1 and panel.backend is None else y
        return _f1(np.asarray(labels), flat > self.threshold_)

    def detect(self, rows: Any) -> Any:
        """Score new rows of a stream as they arrive, in calls of one row or more; the state is carried along.

        A row's score is what `scores` would give it as the last of all rows so far, whatever the calls they came in:
        it knows nothing of what follows. Before a series has a window of rows it is NaN, and nothing is flagged.
        Missing values are refused. A stream starts at the first call after `fit`, `load` or `reset_stream`; those of
        several ids go side by side.

        Args:
            rows: A frame as `fit` had, an array (t,) or (t, C), or one row (C,).

        Returns:
            A frame with ids, times, "score" and "anomaly"; a pandas frame with the last two for arrays.

        Raises:
            ValueError: If rows are not what `predict` takes, or do not follow the last ones in time.
        """
        self._check_fitted("asked about rows")
        if isinstance(rows, np.ndarray) and rows.ndim == 1 and len(rows) == len(self.columns_) > 1:
            rows = rows[None]
        panel = self._read_known(rows, streamed=True)
        threshold = self.stream_threshold_
        # a row without a score is not flagged: NaN is above nothing
        parts = [{"score": one, "anomaly": (one > threshold).astype(int)} for one in self._stream().feed(panel)]
        if panel.backend is None:
            return pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)
        return panel.give_back(rows_in_order(panel, parts))

    def reset_stream(self) -> None:
        """Forget the rows that `detect` has seen."""
        self.__dict__.pop("_rows", None)

    def _stream(self) -> RowStream:
        if "_rows" not in self.__dict__:
            self._rows = RowStream(self.window_, self._score_ends)
        return self._rows

    def _read(self, data: Any, *, streamed: bool = False) -> Panel:
        framed = not isinstance(data, np.ndarray | list | tuple)
        if hasattr(data, "toarray"):
            raise ValueError(f"data must be dense, got sparse data, {type(data).__name__}; call toarray() on it.")
        for array in [data] if isinstance(data, np.ndarray) else [] if framed else data:
            if np.iscomplexobj(array):
                raise ValueError(f"data must be real, got {np.asarray(array).dtype}. Complex data not supported.")
        return read_panel(
            data,
            id=self.id if framed else None,
            time=self.time if framed else None,
            values=list(self.values) if framed and self.values is not None else None,
            # one row has no frequency of its own
            freq=self.freq_ if framed and streamed else self.freq if framed else None,
            missing="error" if streamed else self.missing,
        )

    def _read_known(self, data: Any, *, streamed: bool = False) -> Panel:
        """A panel of what was fitted, and of nothing else."""
        self._check_fitted("asked about rows")
        panel = match_columns(self._read(data, streamed=streamed), self.columns_)
        for one in panel.ids:
            if None not in self.scalers_ and one not in self.scalers_:
                known = ", ".join(repr(each) for each in list(self.scalers_)[:8])
                raise ValueError(
                    f"data must have ids that were fitted, {known}{' …' * (len(self.scalers_) > 8)}, got {one!r} in "
                    f"column {self.id!r}; fit on its rows too."
                )
        if None not in (panel.freq, self.freq_) and panel.freq != self.freq_:
            raise ValueError(f"data must have the frequency of fit, {self.freq_!r}, got {panel.freq!r}; resample it.")
        return panel

    def _choose_window(self, panel: Panel) -> int:
        longest = max(panel.lengths)
        least, most = _WINDOW
        window = max(least, min(most, longest // 5)) if self.window is None else self.window
        check_at_least("window", window, 2)
        if longest < 2 * window:
            place = panel.lengths.index(longest)
            raise ValueError(
                f"{panel.label(place)} must have two windows of {window} rows, one to train on and one to hold out, "
                f"got {longest} rows; add rows, or choose a smaller window."
            )
        return window

    def _choose_architecture(self) -> dict[str, Any]:
        """Backbone and settings, what was left open chosen."""
        backbone = self.backbone or ("itransformer" if len(self.columns_) > _MANY_CHANNELS else "patchtst")
        check_choice("backbone", backbone, backbone_names("reconstruct"))
        sizes = dict(_SIZES)
        if backbone == "patchtst":
            patch = max(2, min(16, self.window_ // 4))
            sizes |= {"patch_len": patch, "stride": max(1, patch // 2)}
        return {"backbone": backbone, "settings": sizes | dict(self.settings or {})}

    def _make(self) -> nn.Module:
        return build_reconstructor(
            self.architecture_["backbone"],
            lookback=self.window_,
            channels=len(self.columns_),
            attention=attention_spec(self.attention),
            settings=self.architecture_["settings"],
        )

    def _training(self, steps_per_epoch: int) -> TrainingConfig:
        return TrainingConfig(
            epochs=choose_epochs(self.epochs, steps_per_epoch),
            learning_rate=self.learning_rate,
            schedule="cosine",
            patience=self.patience,
            clip_norm=1.0,
        )

    def _split(self, panel: Panel, series: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The first part of each series to train on and its last to choose by; a short one trains only."""
        train, held = [], []
        for place, one in enumerate(series):
            _check_length(panel, place, self.window_)
            border = len(one) - max(self.window_, int(len(one) * self.validation_share))
            if border >= self.window_:
                train.append(one[:border])
                held.append(one[border:])
            else:
                train.append(one)
        return train, held

    def _set_thresholds(self, series: Sequence[Tensor]) -> None:
        share = 100.0 * (1.0 - self.contamination)
        pooled = np.concatenate([self._score(one) for one in series])
        ends = score_ends(self.model_, JoinedWindows(series, self.window_, stride=self._every(series)))
        self.threshold_ = float(np.percentile(pooled, share))
        self.stream_threshold_ = float(np.percentile(ends, share))

    def _every(self, series: Sequence[Tensor]) -> int:
        """Rows between two windows where a part of them says as much as all."""
        least, most = _WINDOWS
        limit = max(least, min(most, _CHANNEL_WINDOWS // len(self.columns_)))
        return -(-sum(len(one) - self.window_ + 1 for one in series) // limit)

    @property
    def _stride(self) -> int:
        """Rows between two windows in scoring: each row is in ten of them."""
        return max(1, self.window_ // 10)

    def _answer(self, data: Any, columns: Callable[[np.ndarray], dict[str, np.ndarray]]) -> Any:
        panel = self._read_known(data)
        parts = [columns(found) for found in self._scores(panel)]
        if panel.backend is not None:
            return panel.give_back(rows_in_order(panel, parts))
        arrays = [part.popitem()[1] for part in parts]
        return arrays[0] if panel.ids == (None,) else arrays

    def _scores(self, panel: Panel) -> list[Float64[np.ndarray, " t"]]:
        for place in range(len(panel.ids)):
            _check_length(panel, place, self.window_)
        return [self._score(one) for one in self._scaled(panel)]

    def _score(self, series: Tensor) -> Float64[np.ndarray, " t"]:
        return score_series(self.model_, SeriesWindows(series, self.window_, stride=self._stride, whole=True)).steps

    def _score_ends(self, one: Id, rows: Float64[np.ndarray, "t c"]) -> Float64[np.ndarray, " n"]:
        return score_ends(self.model_, SeriesWindows(self._scale(one, rows), self.window_))

    def _scaled(self, panel: Panel) -> list[Tensor]:
        return [self._scale(one, values) for one, values in zip(panel.ids, panel.values, strict=True)]

    def _scale(self, one: Id, values: Float64[np.ndarray, "t c"]) -> Tensor:
        scaler = self.scalers_[None] if None in self.scalers_ else self.scalers_[one]
        return torch.from_numpy(scaler.transform(values).astype(np.float32)).to(resolve_device(self.device))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        scalers = [scaler.state() for scaler in self.scalers_.values()]
        tensors = {f"scaler.{name}": torch.stack([one[name] for one in scalers]) for name in ("mean", "std")}
        tensors |= {f"model.{name}": value for name, value in self.model_.state_dict().items()}
        facts = {name: getattr(self, name) for name in _FACTS}
        return tensors, facts | {"columns_": list(self.columns_), "ids": list(self.scalers_)}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        for name in _FACTS:
            setattr(self, name, facts[name])
        self.columns_ = tuple(facts["columns_"])
        rows = zip(tensors["scaler.mean"], tensors["scaler.std"], strict=True)
        pairs = zip(facts["ids"], rows, strict=True)
        self.scalers_ = {one: StandardScaler.from_state({"mean": mean, "std": std}) for one, (mean, std) in pairs}
        self.model_ = restore_model(self._make, tensors, resolve_device(self.device))


class JoinedWindows(SeriesWindows):
    """Windows of several series, none of which reaches from one into the next.

    Args:
        series: Each (T, C), of L rows at least.
        length: Rows L of a window.
        stride: Rows between the starts of two.
    """

    def __init__(self, series: Sequence[Tensor], length: int, *, stride: int = 1) -> None:
        super().__init__(torch.cat(list(series)), length)
        begins = np.cumsum([0, *map(len, series)])[:-1]
        starts = [
            begin + torch.arange(0, len(one) - length + 1, stride)
            for begin, one in zip(begins.tolist(), series, strict=True)
        ]
        self.starts = torch.cat(starts).to(self.starts.device)
        self.regular = len(self.starts)


def _fit_scalers(panel: Panel) -> dict[Id, StandardScaler]:
    """A scaler for each id of a frame; one under None for a table without ids and for arrays."""
    groups: dict[Id, list[np.ndarray]] = {}
    for one, values in zip(panel.ids, panel.values, strict=True):
        groups.setdefault(None if panel.id_column is None else one, []).append(values)
    return {
        one: StandardScaler.fit(np.concatenate(values), columns=panel.columns, allow_constant=True)
        for one, values in groups.items()
    }


def _check_length(panel: Panel, place: int, window: int) -> None:
    if panel.lengths[place] < window:
        raise ValueError(
            f"{panel.label(place)} must have at least one window of {window} rows, got {panel.lengths[place]}; pass "
            "more of its rows, or fit with a smaller window."
        )


def _f1(labels: np.ndarray, flags: np.ndarray) -> float:
    if labels.shape != flags.shape:
        raise ValueError(f"y must have a label for each of the {len(flags)} rows, got shape {labels.shape}.")
    wrong = np.flatnonzero(~np.isin(labels, (0, 1)))
    if len(wrong):
        raise ValueError(f"y must be 0 or 1, 1 for an anomaly, got {labels[wrong[0]]!r} at data row {wrong[0] + 1}.")
    reason = undefined(labels.astype(bool))
    if reason is not None:
        raise ValueError(f"y must have anomalies and normal rows for a score, but {reason}.")
    return point_metrics(labels.astype(bool), flags)["f1"] or 0.0
