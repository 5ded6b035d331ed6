"""AnomalyDetector: flags rows that differ from normal rows, and names the channels that do.

The shell of scikit-learn around the stages: parameters and tables are here, `toa.estimators.detection_fitting` fits,
and the functions of `toa.estimators.fitted_detector` and `toa.estimators.streams` take the frozen value `fitted_`.

Alphabet: L window length, C channels, T rows, S series.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from toa._checks import check_count
from toa._console import shows_progress
from toa.data.frames import check_frequency, check_results, columns_by_row, match_panel, read_panel
from toa.data.frequency import Frequency
from toa.data.panel import Id, MissingValuesError, Panel
from toa.data.scaling import StandardScaler
from toa.estimators.alarms import AlarmRule, flags_f1
from toa.estimators.architecture import NETWORK
from toa.estimators.base import Estimator
from toa.estimators.combination import Combination
from toa.estimators.detection_fitting import fit_detector
from toa.estimators.detector_files import detector_state, restore_detector, try_detector
from toa.estimators.detector_inputs import check_window
from toa.estimators.detector_score import MEAN
from toa.estimators.detector_settings import COMBINED, DetectorSettings
from toa.estimators.effort import Ceiling
from toa.estimators.fitted_detector import (
    RESULTS,
    FittedDetector,
    channel_scores,
    describe_flags,
    find_alarms,
    flagged,
    member_scores,
    write_alarms,
    write_frame,
    write_rows,
)
from toa.estimators.importance import Importance, sample_rows
from toa.estimators.reconstruction import ReconstructionSpec, explain_reconstruction
from toa.estimators.scorers import SCORERS
from toa.estimators.scoring import Baseline
from toa.estimators.streams import Stream, as_rows, rows_seen, score_stream
from toa.estimators.thresholds import ADAPTIVE, ThresholdRule

__all__ = ["MODELS", "RESULTS", "AnomalyDetector"]

# baselines whose mean over a window is a model too
_WITH_MEAN = ("mahalanobis", "pca", "z-score")
MODELS = (COMBINED, NETWORK, *SCORERS, *(f"{name}{MEAN}" for name in _WITH_MEAN))


@dataclass(eq=False, repr=False)
class AnomalyDetector(Estimator):
    """Flag rows of time series that differ from the rows of `fit`.

        detector = toa.AnomalyDetector().fit(normal)   # a frame or an array; most of its rows should be normal
        detector.predict(new)                          # a frame: time, score, anomaly; 0 and 1 for an array
        detector.events(new)                           # alarms merged: start, end, peak, severity, channels
        detector.detect(row)                           # a stream: each row is scored as it arrives

    The score is the mean of several ones: the distance from the usual level (z-score), the error of a reconstruction
    by PCA, the Mahalanobis distance, and the error of a network that reconstructs windows; an isolation forest and a
    PCA of sub-sequences join them if they find anomalies that are injected into held-out rows. Each counts for a row
    and as the mean over a window around it, and each is -log of the share of held-out rows with such a score or a
    higher one. The mean of these has no fixed level: compare it with `threshold_`, above which rows are flagged.
    Frames with an id column hold several series: one model for all, with a mean and a scale per id. A constant column
    stays unscaled.

    Args:
        model: "auto" for the combination; "toa" for the network alone, whose score is the squared error, scaled by the
            rows of `fit` and averaged over channels and over the windows that contain a row; or the name of one
            baseline of `toa.estimators.scorers.SCORERS`, such as "pca", or its mean over a window, such as "pca mean".
        effort: Counted work of `fit`: "quick", or "thorough", which trains the network longer. No clock has a part in
            it.
        time_limit: Largest number of seconds of `fit`; None for none. "auto" leaves the network out, with a warning, if
            it would end later.
        threshold: Rule of the threshold, applied to the scores of held-out rows, by methods that were not fitted to
            them, and to those of all rows of `fit`; the higher threshold counts. "quantile": a share `contamination`
            is above it. "adaptive": the same, but the threshold of the combination is at most what its score means
            (-log of that share, more for few held-out rows), and where the scores of many new rows, hundreds to
            thousands, have a higher level than those of `fit`, it rises with their median, with a warning. "extreme
            value": that share is expected, by a generalised Pareto distribution of the highest scores; it may be far
            below one row. "budget": at most `alarms_per_day` events per day; it needs dates.
        contamination: Share of new normal rows above the threshold, approximately. With fewer held-out rows than about
            10 / `contamination`, mostly far fewer are, sometimes several times that. Anomalies in them raise it.
        alarms_per_day: Events per day, for the rule "budget" alone, which uses no `contamination`; None is 1.
        min_length: Fewest rows in a row that are above the threshold to be flagged.
        cool_down: Largest number of rows between two alarms of one event.
        window: Rows L per window; None is a fifth of the longest series, from 8 to 100.
        backbone: A name of `toa.models.BACKBONES`; None is "patchtst", or "itransformer" for many channels.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`.
        settings: Settings of the backbone; unset ones are chosen for a small model.
        epochs: Maximum number of epochs; None chooses by data size.
        batch_size: Windows per batch; None is 64, or fewer that fit the memory budget ($TOA_MEMORY).
        learning_rate: Initial learning rate; it decays to zero.
        patience: Epochs without a better validation loss before training stops.
        validation_share: Share held out at the end of each series, to select the epoch and to compare the methods.
        values: Columns to read; None for all others.
        id, time, freq, missing, missing_values, day_first, time_zone, seed, device, progress: As in `toa.Forecaster`.

    Attributes:
        model_: The trained network; an identity if there is none.
        window_: Rows per window.
        threshold_: Rows with a higher score are flagged.
        stream_threshold_: Threshold of `detect`, whose scores do not depend on later rows.
        columns_: Names of the channels.
        validation_: Mean squared error of the held-out rows, in units of their variance; None without a network.
        scorers_: The fitted baselines by name.
        truncated_: Methods that `time_limit` left out.
        fitted_: All that was fitted, a frozen value.
        choice_: The combination, with its weights and the average precision on injected anomalies; None for one method.
    """

    _kind = "anomaly detector"
    _counts = ("window",)
    _facts = ("freq_", "window_", "threshold_", "stream_threshold_", "validation_", "architecture_")
    _models = MODELS

    _: KW_ONLY
    window: int | None = None
    contamination: float = 0.01
    freq: str | int | None = None
    threshold: str = ADAPTIVE
    alarms_per_day: float | None = None
    min_length: int = 1
    cool_down: int = 0

    def fit(self, data: Any, y: Any = None) -> "AnomalyDetector":
        """Fit the methods and set the thresholds. A fit that is stopped, or raises, leaves the detector as it was.

        Args:
            data: A pandas, polars or arrow frame, an array (T,) or (T, C), or a list of arrays.
            y: Ignored; scikit-learn pipelines pass it.

        Raises:
            ValueError: If the data cannot be read, or no series has two windows.
        """
        self._fit(data)
        return self

    def scores(self, data: Any) -> Any:
        """Score per row: an array, a list of arrays, or a frame with a column "score"."""
        panel = self.read_fitted(data)
        return write_rows(panel, [{"score": score} for score in self.fitted_.scores(panel)])

    def decision_function(self, data: Any) -> Any:
        """`scores` minus the threshold of each row: positive for flagged rows, if `min_length` is 1."""
        panel = self.read_fitted(data)
        thresholds = self.fitted_.thresholds
        scores = self.fitted_.scores(panel)
        return write_rows(panel, [{"score": score - thresholds.of_rows(score)} for score in scores])

    def predict(self, data: Any) -> Any:
        """Flags: 0 and 1 for arrays; for a frame its ids and times with columns "score" and "anomaly"."""
        panel = self.read_fitted(data)
        return write_rows(panel, self._flag(panel))

    def fit_predict(self, data: Any, y: Any = None) -> Any:
        """Fit to rows and flag among them."""
        panel = self._fit(data)
        return write_rows(panel, self._flag(panel))

    def channel_scores(self, data: Any) -> Any:
        """The part of each channel in the score of each row, a column per channel; they sum to `scores`."""
        panel = self.read_fitted(data)
        return channel_scores(self.fitted_, panel)

    def member_scores(self, data: Any) -> Any:
        """The score of each method alone, a column per method with a weight, and of each baseline that was fitted."""
        panel = self.read_fitted(data)
        return write_frame(panel, member_scores(self.fitted_, panel))

    def events(self, data: Any) -> Any:
        """Alarms as events, the most severe first.

        An event begins and ends with rows that stand out by themselves. Its reach is all rows above the threshold:
        rows beside unusual ones, whose windows contain them, have higher scores too.

        Returns:
            A frame with a row per event: its number "event", ids, "start", "end" and "peak" as times, or as rows
            counted from 0, "rows" (from start to end), "reach_start", "reach_end", "severity" (the highest score, in
            thresholds), "channel" (the one with the largest share in the score) and "why" (up to three channels with
            their shares).
        """
        return self._find_alarms(data)[1]

    def alarms(self, data: Any) -> tuple[Any, Any]:
        """The frame of `predict` with the columns "event", 0 for none, and "why", and the frame of `events`."""
        return self._find_alarms(data)

    def score(self, data: Any, y: Any) -> float:
        """F1 of the flagged rows, each counted once, without point adjustment.

        Args:
            data: Rows as for `predict`.
            y: For each row whether it is an anomaly, in the order of the table; for a list of arrays, a list.

        Raises:
            ValueError: If there is not one label per row, or all labels are equal, so that F1 is undefined.
        """
        panel = self.read_fitted(data)
        flags = columns_by_row(panel, self._flag(panel))["anomaly"]
        is_list = panel.backend is None and panel.ids != (None,)
        labels = np.concatenate([np.asarray(part) for part in y]) if is_list else np.asarray(y)
        return flags_f1(labels, flags == 1)

    def reset_stream(self) -> None:
        """Forget the rows that `detect` has seen."""
        self._streams: dict[Id, Stream] = {}

    def detect(self, rows: Any) -> Any:
        """Score new rows of a stream as they arrive, in calls of one or more rows.

        The score of a row does not depend on later rows. A stream starts at the first call after `fit`, `load` or
        `reset_stream`; before its first row, the series is taken to have had the values of that row. Each id has its
        own stream. A row is flagged if its score is above `stream_threshold_`, as are the `min_length` - 1 rows before.
        The first `window_` rows are not flagged, because what was before them is not known; pass known rows first to
        have flags at once. Missing values raise an error.

        Args:
            rows: A frame like the one of `fit`, a dict of one row or a list of dicts with its columns; or an array or
                lists (t, C), (t,) for one channel, or one row (C,).

        Returns:
            A frame with ids, times, "score" and "anomaly", a pandas one for arrays, lists and dicts. Without times,
            its index counts the rows of the stream from 0.

        Raises:
            ValueError: If rows differ from `fit` in columns or ids, or do not follow the last ones in time.
        """
        self._check_fitted("applied to rows")
        rows = as_rows(rows, len(self.columns_))
        try:
            # the frequency cannot be inferred from one row
            panel = self.read_fitted(rows, freq=self.freq_, missing="error")
        except MissingValuesError as error:
            # columns are those of fit, and later rows are not known
            raise error.with_remedies("fill it before the call, such as by the last value") from None
        first = rows_seen(self._streams)
        scored = score_stream(self.fitted_, self._streams, panel, self.alarm_rule, self.expected_share)
        self._streams = scored.streams
        for report in scored.reports:
            warnings.warn(report, stacklevel=2)
        table = write_frame(panel, columns_by_row(panel, scored.columns))
        if panel.times is None and isinstance(table, pd.DataFrame):
            table.index = pd.RangeIndex(first, first + len(table))
        return table

    def run_sample(self, data: Any, index: int = 0) -> None:
        """Score one window of a pandas frame, see `Estimator.run_sample`."""
        self._check_has_network()
        self.scores(sample_rows(data, self.id, index, self.window_))

    def explain(self, data: Any, index: int | None = None) -> Importance:
        """Parts of rows and columns in the error of the network, see `Estimator.explain`."""
        self._check_has_network()
        window = self.window_
        panel = self.read_fitted(data if index is None else sample_rows(data, self.id, index, window))
        network = self.fitted_.require_network()
        series = self.fitted_.inputs.scale_panel(panel)
        errors = [network.rows(values).sum(1) for values in series]
        which = int(np.argmax([error.max() for error in errors]))
        # the row with the largest error is the last row of the window, if there are enough rows before it
        stop = max(window, int(errors[which].argmax()) + 1)
        when = "" if panel.times is None else f" that ends at {panel.times[which][stop - 1]}"
        return explain_reconstruction(network, series[which][stop - window : stop], self.columns_, self.freq_, when)

    def page(
        self,
        path: str | Path,
        data: Any,
        y: Any = None,
        *,
        title: str = "Events",
        command: str = "",
        left_out: Sequence[str] = (),
    ) -> Path:
        """Write one HTML file: score and channels with the events, their channels, the methods, the model.

        Args:
            path: File to write.
            data: Rows as for `predict`.
            y: For each row whether it is known to be an anomaly, in the order of the table.
            title, command, left_out: As in `toa.Forecaster.page`.
        """
        self._check_fitted("shown on a page")
        # loaded on use: pages build on the estimators
        from toa.report import page

        return page(self, path, data, y, title=title, command=command, left_out=left_out)

    def read(self, data: Any) -> Panel:
        """The panel of a table as `fit` reads it; the detector need not be fitted."""
        return self._read(data, day_first=self.day_first)

    def read_fitted(self, data: Any, **options: Any) -> Panel:
        """A panel with the columns of fit; raises ValueError for other columns, ids or another frequency."""
        self._check_fitted("applied to rows")
        fitted = self.fitted_
        rows = self._read(data, usual_freq=fitted.freq, width=len(fitted.columns), **options)
        panel = match_panel(rows, fitted.columns, fitted.inputs.ids)
        check_frequency(panel, fitted.freq)
        return panel

    @property
    def alarm_rule(self) -> AlarmRule:
        """When rows above the threshold become alarms."""
        return AlarmRule(min_length=self.min_length, cool_down=self.cool_down)

    @property
    def expected_share(self) -> float | None:
        """Expected share of flagged normal rows; None for a budget of events."""
        return self._threshold_rule().expected

    def settings_of_fit(self) -> DetectorSettings:
        """The parameters that the stages of a fit take."""
        network = ReconstructionSpec(
            backbone=self.backbone,
            attention=self.attention,
            settings=self.settings,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=self.patience,
            contamination=self.contamination,
            seed=self.seed,
            device=self.device,
            progress=shows_progress(self.progress),
        )
        return DetectorSettings(
            model=self.model,
            window=self.window,
            validation_share=self.validation_share,
            effort=self._effort,
            seed=self.seed,
            threshold=self._threshold_rule(),
            network=network,
        )

    def _fit(self, data: Any) -> Panel:
        """Fit, and return the rows that were read."""
        self._check_parameters()
        panel = self.read(data)
        ceiling = Ceiling(self.time_limit)
        check_results(panel, ("score", "anomaly"))
        self.fitted_: FittedDetector = fit_detector(panel, self.settings_of_fit(), ceiling, stacklevel=4)
        self.reset_stream()
        ceiling.warn(stacklevel=4)
        return panel

    def _find_alarms(self, data: Any) -> tuple[Any, Any]:
        panel = self.read_fitted(data)
        check_results(panel, RESULTS)
        alarms = find_alarms(self.fitted_, panel, self.alarm_rule)
        self._warn_of_shift(alarms.columns)
        return write_alarms(self.fitted_, alarms)

    def _flag(self, panel: Panel) -> list[dict[str, np.ndarray]]:
        """Scores and flags of each series, with a warning if they show a shift."""
        columns = [flagged(self.fitted_, score, self.alarm_rule) for score in self.fitted_.scores(panel)]
        self._warn_of_shift(columns)
        return columns

    def _warn_of_shift(self, columns: Sequence[Mapping[str, np.ndarray]]) -> None:
        report = describe_flags(self.fitted_, columns, self.expected_share)
        if report is not None:
            warnings.warn(report, stacklevel=4)

    def _read(self, data: Any, **options: Any) -> Panel:
        return read_panel(data, values=self.values, **self._table | {"freq": self.freq} | options)

    def _threshold_rule(self) -> ThresholdRule:
        return ThresholdRule(self.threshold, self.contamination, self.alarms_per_day, self.alarm_rule)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.window is not None:
            check_window("window", self.window)
        self._threshold_rule().check(usual=AnomalyDetector.contamination)
        check_count("min_length", self.min_length, 1)
        check_count("cool_down", self.cool_down, 0)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return detector_state(self.fitted_)

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], where: str | Path) -> None:
        if "scorers" not in facts:
            # older files hold the network alone
            self.model = NETWORK
        # a file may also hold a number that the rule of the threshold does not use
        unused = "contamination" if self.threshold == "budget" else "alarms_per_day"
        setattr(self, unused, getattr(AnomalyDetector, unused))
        self._check_parameters()
        self.fitted_ = restore_detector(tensors, facts, self.settings_of_fit(), where)
        self.reset_stream()
        try_detector(self.fitted_, self.settings_of_fit())

    @property
    def weights_(self) -> dict[str, float]:
        """Weight of each method in the score."""
        self._check_fitted("asked for its weights")
        return self.fitted_.score.weights

    @property
    def model_(self) -> nn.Module:
        """The trained network; an identity if there is none."""
        return nn.Identity() if self.fitted_.network is None else self.fitted_.network.model

    @property
    def window_(self) -> int:
        """Rows per window."""
        return self.fitted_.inputs.window

    @property
    def threshold_(self) -> float:
        """Rows with a higher score are flagged; "adaptive" raises it where the level of new scores is higher."""
        return self.fitted_.thresholds.rows

    @property
    def stream_threshold_(self) -> float:
        """Threshold of `detect`."""
        return self.fitted_.thresholds.stream

    @property
    def columns_(self) -> tuple[str, ...]:
        """Names of the channels."""
        return self.fitted_.columns

    @property
    def freq_(self) -> Frequency | None:
        """Frequency of the times."""
        return self.fitted_.freq

    @property
    def day_first_(self) -> bool | None:
        """Whether the day comes first in dates."""
        return self.fitted_.day_first

    @property
    def architecture_(self) -> dict[str, Any]:
        """Backbone, attention and settings."""
        return dict(self.fitted_.architecture)

    @property
    def validation_(self) -> float | None:
        """Mean squared error of the held-out rows; None without a network."""
        return None if self.fitted_.network is None else self.fitted_.network.validation

    @property
    def scorers_(self) -> Mapping[str, Baseline]:
        """The fitted baselines by name."""
        return self.fitted_.score.baselines

    @property
    def scalers_(self) -> Mapping[Id, StandardScaler]:
        """Scale of each id; the only one of tables without ids has the key None."""
        return self.fitted_.inputs.scalers

    @property
    def largest_(self) -> float | None:
        """Largest standardised value that methods of windows read; None for all values."""
        return self.fitted_.largest

    @property
    def choice_(self) -> Combination | None:
        """The combination; None for one method."""
        return self.fitted_.score.combination

    @property
    def truncated_(self) -> tuple[str, ...]:
        """Methods that `time_limit` left out."""
        return self.fitted_.truncated
