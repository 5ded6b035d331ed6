"""AnomalyDetector: learns to reconstruct windows of normal rows and flags rows that it reconstructs badly.

Alphabet: L window length, C channels, T rows, S series.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from toa._checks import check_fraction
from toa.data.frames import check_results, columns_by_row, match_panel, read_panel, to_native
from toa.data.frequency import continue_times
from toa.data.panel import Id, Missing, Panel, Values
from toa.data.splits import StandardScaler, check_standardised
from toa.data.windows import SeriesWindows
from toa.estimators.base import Estimator, sample_rows
from toa.estimators.sizes import DEFAULT_ATTENTION, choose_epochs, choose_reconstructor, choose_stride, choose_window
from toa.tasks.anomaly import score_ends, score_series
from toa.tasks.base import TASKS
from toa.tasks.detection import point_metrics, undefined
from toa.tasks.distributed import resolve_device


@dataclass(eq=False, repr=False)
class AnomalyDetector(Estimator):
    """Flag rows of time series that differ from the rows of `fit`.

        detector = toa.AnomalyDetector().fit(normal)   # a frame or an array; most of its rows should be normal
        detector.predict(new)                          # a frame: time, score, anomaly; 0 and 1 for an array
        detector.detect(row)                           # a stream: each row is scored as it arrives

    A model learns to reconstruct windows. The score of a row is its squared error, scaled by the rows of `fit` and
    averaged over channels and over the windows that contain it. Rows with a score above `threshold_`, the quantile
    1 - `contamination` of the scores in `fit`, are flagged. Frames with an id column hold several series: one model for
    all, with a mean and a scale per id. A constant column stays unscaled.

    Args:
        window: Rows L per window; None is a fifth of the longest series, from 8 to 100.
        contamination: Share of the rows of `fit` above the threshold.
        backbone: A name of `toa.models.BACKBONES`; None is "patchtst", or "itransformer" for many channels.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`.
        settings: Settings of the backbone; unset ones are chosen for a small model.
        epochs: Maximum number of epochs; None chooses by data size.
        batch_size: Windows per batch.
        learning_rate: Initial learning rate; it decays to zero.
        patience: Epochs without a better validation loss before training stops.
        validation_share: Share of each series that is held out at its end to select the epoch.
        id: Id column of a frame with several series.
        time: Time column; None finds it.
        values: Columns to read; None for all others.
        freq: Frequency of the times; None infers it.
        missing: Missing values and rows: "error", "ffill", "interpolate" or "zero".
        seed: Seed of weights, batches, dropout and SOR.
        device: "auto", "cpu", "cuda" or "cuda:N".
        progress: Whether to show a progress bar.

    Attributes:
        model_: The trained model.
        window_: Rows per window.
        threshold_: Rows with a higher score are flagged.
        stream_threshold_: Threshold of `detect`, whose scores do not depend on later rows.
        columns_: Names of the channels.
        validation_: Mean squared error of the held-out rows, in units of their variance.
    """

    _kind = "anomaly detector"
    _task = TASKS["anomaly"]
    _training: ClassVar[Mapping[str, Any]] = {"schedule": "cosine", "clip_norm": 1.0}
    _facts = ("freq_", "window_", "threshold_", "stream_threshold_", "validation_", "architecture_")

    _: KW_ONLY
    window: int | None = None
    contamination: float = 0.01
    backbone: str | None = None
    attention: str | Mapping[str, Any] = DEFAULT_ATTENTION
    epochs: int | None = None
    batch_size: int = 64
    learning_rate: float = 1e-3
    patience: int = 3
    validation_share: float = 0.2
    freq: str | int | None = None

    def fit(self, data: Any, y: Any = None) -> "AnomalyDetector":
        """Train on data and set the thresholds.

        Args:
            data: A pandas, polars or arrow frame, an array (T,) or (T, C), or a list of arrays.
            y: Ignored; scikit-learn pipelines pass it.

        Raises:
            ValueError: If the data cannot be read, or no series has two windows.
        """
        self._fit(self._read(data, freq=self.freq, missing=self.missing))
        return self

    def scores(self, data: Any) -> Any:
        """Reconstruction error per row: an array, a list of arrays, or a frame with a column "score"."""
        return self._per_row(self._read_fitted(data), lambda score: {"score": score})

    def decision_function(self, data: Any) -> Any:
        """`scores` minus the threshold: positive for flagged rows."""
        return self._per_row(self._read_fitted(data), lambda score: {"score": score - self.threshold_})

    def predict(self, data: Any) -> Any:
        """Flags: 0 and 1 for arrays; for a frame its ids and times with columns "score" and "anomaly"."""
        return self._per_row(self._read_fitted(data), self._flag)

    def fit_predict(self, data: Any, y: Any = None) -> Any:
        """Fit to rows and flag among them."""
        panel = self._read(data, freq=self.freq, missing=self.missing)
        self._fit(panel)
        return self._per_row(panel, self._flag)

    def score(self, data: Any, y: Any) -> float:
        """F1 of the flagged rows, each counted once, without point adjustment.

        Args:
            data: Rows as for `predict`.
            y: For each row whether it is an anomaly, in the order of the table; for a list of arrays, a list.

        Raises:
            ValueError: If there is not one label per row, or all labels are equal, so that F1 is undefined.
        """
        panel = self._read_fitted(data)
        flags = columns_by_row(panel, [self._flag(one) for one in self._scores(panel)])["anomaly"]
        labels = np.concatenate([np.asarray(one) for one in y]) if len(panel) > 1 and panel.backend is None else y
        return _f1(np.asarray(labels), flags == 1)

    def detect(self, rows: Any) -> Any:
        """Score new rows of a stream as they arrive, in calls of one or more rows.

        The score of a row is the one that `scores` gives to the last of all rows so far: it does not depend on later
        rows. It is NaN, and the row is not flagged, until a series has a window of rows. Missing values raise an error.
        A stream starts at the first call after `fit`, `load` or `reset_stream`; each id has its own stream.

        Args:
            rows: A frame like the one of `fit`, an array (t,) or (t, C), or one row (C,).

        Returns:
            A frame with ids, times, "score" and "anomaly"; a pandas frame with the last two for arrays.

        Raises:
            ValueError: If rows differ from `fit` in columns or ids, or do not follow the last ones in time.
        """
        self._check_fitted("applied to rows")
        if isinstance(rows, np.ndarray) and rows.ndim == 1 and len(rows) == len(self.columns_) > 1:
            rows = rows[None]
        # the frequency cannot be inferred from one row
        panel = self._check_fitted_panel(self._read(rows, freq=self.freq_, missing="error"))
        # NaN is never above the threshold, so a row without a score is not flagged
        parts = [{"score": one, "anomaly": (one > self.stream_threshold_).astype(int)} for one in self._advance(panel)]
        if panel.backend is None:
            return pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)
        return to_native(panel, columns_by_row(panel, parts))

    def reset_stream(self) -> None:
        """Forget the rows that `detect` has seen."""
        self._streams: dict[Id, _Stream] = {}

    def run_sample(self, data: Any, index: int = 0) -> None:
        """Score one window of a pandas frame, see `Estimator.run_sample`."""
        self.scores(sample_rows(data, self.id, index, self.window_))

    def _read(self, data: Any, *, freq: str | int | None, missing: Missing) -> Panel:
        return read_panel(data, id=self.id, time=self.time, values=self.values, freq=freq, missing=missing)

    def _read_fitted(self, data: Any) -> Panel:
        self._check_fitted("applied to rows")
        return self._check_fitted_panel(self._read(data, freq=self.freq, missing=self.missing))

    def _check_fitted_panel(self, panel: Panel) -> Panel:
        """The panel with the columns of fit; raises ValueError for other columns, ids or another frequency."""
        panel = match_panel(panel, self.columns_, None if None in self.scalers_ else self.scalers_)
        if None not in (panel.freq, self.freq_) and panel.freq != self.freq_:
            raise ValueError(f"data must have the frequency of fit, {self.freq_!r}, got {panel.freq!r}; resample it.")
        return panel

    def _advance(self, panel: Panel) -> list[Float64[np.ndarray, " t"]]:
        """Scores of new rows per series; NaN while a series has less than a window of rows. An error changes no stream.

        Raises:
            ValueError: If a series does not continue its stream.
        """
        if not hasattr(self, "_streams"):
            self.reset_stream()
        results, streams = [], {}
        for index, (one, values) in enumerate(zip(panel.ids, panel.values, strict=True)):
            times = None if panel.times is None else panel.times[index]
            past = self._streams.get(one)
            if past is not None and times is not None:
                assert panel.freq is not None
                expected = continue_times(past.time, panel.freq, 1)[0]
                if times[0] != expected:
                    raise ValueError(
                        f"{panel.label(index, 'rows')} must continue with {expected}, after {past.time}, got "
                        f"{times[0]} at data row {panel.rows[index][0] + 1}; pass each row once and in order, or call "
                        "reset_stream()."
                    )
            seen = values if past is None else np.concatenate((past.values, values))
            scores = np.full(len(values), np.nan)
            if len(seen) >= self.window_:
                found = score_ends(self.model_, SeriesWindows(self._scale(one, seen), self.window_))
                scores[len(values) - len(found) :] = found
            results.append(scores)
            kept = seen[max(0, len(seen) - self.window_ + 1) :].copy()
            streams[one] = _Stream(kept, None if times is None else times[-1])
        self._streams |= streams
        return results

    def _flag(self, score: np.ndarray) -> dict[str, np.ndarray]:
        return {"score": score, "anomaly": (score > self.threshold_).astype(int)}

    def _per_row(self, panel: Panel, columns: Callable[[np.ndarray], dict[str, np.ndarray]]) -> Any:
        """Result columns of each row: a frame, or the last column as arrays if the data were arrays."""
        parts = [columns(found) for found in self._scores(panel)]
        if panel.backend is not None:
            return to_native(panel, columns_by_row(panel, parts))
        arrays = [part.popitem()[1] for part in parts]
        return arrays[0] if panel.ids == (None,) else arrays

    def _check_lengths(self, panel: Panel) -> None:
        what = f"one window of {self.window_} rows"
        panel.check_rows(self.window_, what, "pass more of its rows, or fit with a smaller window")

    def _scores(self, panel: Panel) -> list[Float64[np.ndarray, " t"]]:
        self._check_lengths(panel)
        return [self._score(self._scale(one, values)) for one, values in zip(panel.ids, panel.values, strict=True)]

    def _scale(self, one: Id, values: Values) -> Tensor:
        scaler = self.scalers_[None] if None in self.scalers_ else self.scalers_[one]
        name = "data" if one is None else f"series {one!r} of data"
        scaled = check_standardised(scaler.transform(values), self.columns_, name).astype(np.float32)
        return torch.from_numpy(scaled).to(resolve_device(self.device))

    def _fit(self, panel: Panel) -> None:
        check_fraction("contamination", self.contamination)
        check_fraction("validation_share", self.validation_share)
        if not self.contamination > 0.0:
            raise ValueError(f"contamination must lie in (0, 1), got {self.contamination}.")
        check_results(panel, ("score", "anomaly"))
        self.columns_, self.freq_ = panel.columns, panel.freq
        longest = max(panel.lengths)
        self.window_ = choose_window(self.window, longest)
        if longest < 2 * self.window_:
            raise ValueError(
                f"{panel.label(panel.lengths.index(longest))} must have two windows of {self.window_} rows, one to "
                f"train on and one to hold out, got {longest} rows; add rows, or choose a smaller window."
            )
        self._check_lengths(panel)
        self.scalers_ = _fit_scalers(panel)
        self._choose(*choose_reconstructor(self.backbone, self.window_, len(self.columns_)))
        series = [self._scale(one, values) for one, values in zip(panel.ids, panel.values, strict=True)]
        train, held = [], []
        for one in series:
            # the last part of a series is held out; a series that is too short for both parts only trains
            border = len(one) - max(self.window_, int(len(one) * self.validation_share))
            train.append(one[:border] if border >= self.window_ else one)
            held += [one[border:]] if border >= self.window_ else []
        data = self._data(
            SeriesWindows(train, self.window_, stride=self._training_stride(train)),
            SeriesWindows(held, self.window_, stride=self._stride),
        )
        epochs = choose_epochs(self.epochs, len(data.train), self.batch_size)
        self.validation_ = self._fit_model(data, epochs=epochs, batch_size=self.batch_size)
        scores = np.concatenate([self._score(one) for one in series])
        ends = score_ends(self.model_, SeriesWindows(series, self.window_, stride=self._training_stride(series)))
        share = 100.0 * (1.0 - self.contamination)
        self.threshold_, self.stream_threshold_ = (float(np.percentile(one, share)) for one in (scores, ends))
        self.reset_stream()

    def _fields(self) -> dict[str, Any]:
        ratio = 100.0 * self.contamination
        return {"lookback": self.window_, "window_stride": self._stride, "anomaly_ratio": ratio}

    def _training_stride(self, series: Sequence[Tensor]) -> int:
        return choose_stride(sum(len(one) - self.window_ + 1 for one in series), len(self.columns_))

    @property
    def _stride(self) -> int:
        """Rows between two windows in scoring: each row is in ten windows."""
        return max(1, self.window_ // 10)

    def _score(self, series: Tensor) -> Float64[np.ndarray, " t"]:
        return score_series(self.model_, SeriesWindows(series, self.window_, stride=self._stride, whole=True)).steps

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        scalers = [scaler.state() for scaler in self.scalers_.values()]
        tensors = {f"scaler.{name}": torch.stack([one[name] for one in scalers]) for name in ("mean", "std")}
        return tensors, {"columns_": list(self.columns_), "ids": list(self.scalers_)}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.columns_ = tuple(facts["columns_"])
        statistics = zip(facts["ids"], tensors["scaler.mean"], tensors["scaler.std"], strict=True)
        self.scalers_ = {one: StandardScaler.from_state({"mean": mean, "std": std}) for one, mean, std in statistics}


class _Stream(NamedTuple):
    """The last window - 1 rows of a series, and the time of the last one."""

    values: Values
    time: object


def _fit_scalers(panel: Panel) -> dict[Id, StandardScaler]:
    """One scaler per id of a frame; for tables without ids and for arrays, one scaler with the key None."""
    groups: dict[Id, list[np.ndarray]] = {}
    for one, values in zip(panel.ids, panel.values, strict=True):
        groups.setdefault(None if panel.id_column is None else one, []).append(values)
    return {
        one: StandardScaler.fit(np.concatenate(values), columns=panel.columns, allow_constant=True)
        for one, values in groups.items()
    }


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
