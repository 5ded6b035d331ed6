"""AnomalyDetector: flags rows that differ from normal rows, and names the channels that do.

Alphabet: L window length, C channels, T rows, S series.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from toa._checks import check_at_least, check_count, check_finite, check_positive
from toa._limits import check_unpacked
from toa.data.frames import check_results, columns_by_row, to_native
from toa.data.panel import Id, MissingValuesError, Panel
from toa.data.splits import StandardScaler
from toa.estimators import alarms
from toa.estimators.alarms import Event, Stream
from toa.estimators.base import NETWORK, named
from toa.estimators.combination import LARGEST, MEAN, OLDER_LARGEST, Combination, inject_anomalies, rows_for
from toa.estimators.effort import Ceiling
from toa.estimators.pages import events_page
from toa.estimators.reconstruction import ReconstructionNetwork
from toa.estimators.scorers import SCORERS, Rows, Scorer, window_mean
from toa.estimators.sizes import choose_window

# columns of the results of `alarms`
RESULTS = ("score", "anomaly", "event", "start", "end", "peak", "rows", "severity", "channel", "why")
MODELS = ("auto", NETWORK, *SCORERS, f"mahalanobis{MEAN}")
# a channel whose standardised values are all smaller is constant
_ROUNDING = 1e-9

# scores of rows of a table, and scores of rows of a stream
_Scores = tuple[list[np.ndarray], list[np.ndarray]]


@dataclass(eq=False, repr=False)
class AnomalyDetector(ReconstructionNetwork):
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
            baseline of `toa.estimators.scorers.SCORERS`, such as "pca", or "mahalanobis mean".
        effort: Counted work of `fit`: "quick", or "thorough", which trains the network longer. No clock has a part in
            it.
        time_limit: Largest number of seconds of `fit`; None for none. "auto" leaves the network out, with a warning, if
            it would end later.
        threshold: Rule of the threshold, applied to the scores of held-out rows, by methods that were not fitted to
            them, and to those of all rows of `fit`; the higher threshold counts. "quantile": a share `contamination`
            is above it. "extreme value": that share is expected, by a generalised Pareto distribution of the highest
            scores; it may be far below one row. "budget": at most `alarms_per_day` events per day; it needs dates.
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
        choice_: The combination, with its weights and the average precision on injected anomalies; None for one method.
    """

    _models = MODELS
    page = events_page

    _: KW_ONLY
    threshold: str = "quantile"
    alarms_per_day: float | None = None
    min_length: int = 1
    cool_down: int = 0

    @property
    def weights_(self) -> dict[str, float]:
        """Weight of each method in the score."""
        return {self.model: 1.0} if self.choice_ is None else self.choice_.weights

    def fit(self, data: Any, y: Any = None) -> "AnomalyDetector":
        """Fit the methods to data and set the thresholds.

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
        return self._per_row(self._read_fitted(data), lambda score: {"score": score})

    def decision_function(self, data: Any) -> Any:
        """`scores` minus the threshold: positive for flagged rows, if `min_length` is 1."""
        return self._per_row(self._read_fitted(data), lambda score: {"score": score - self.threshold_})

    def predict(self, data: Any) -> Any:
        """Flags: 0 and 1 for arrays; for a frame its ids and times with columns "score" and "anomaly"."""
        return self._per_row(self._read_fitted(data), self._flag)

    def fit_predict(self, data: Any, y: Any = None) -> Any:
        """Fit to rows and flag among them."""
        return self._per_row(self._fit(data), self._flag)

    def channel_scores(self, data: Any) -> Any:
        """The part of each channel in the score of each row, a column per channel; they sum to `scores`."""
        panel = self._read_fitted(data)
        check_results(panel, self.columns_)
        parts = [self._parts(one, self.choice_).T for one in self._scaled(panel)]
        return _frame(panel, columns_by_row(panel, [dict(zip(self.columns_, part, strict=True)) for part in parts]))

    def member_scores(self, data: Any) -> Any:
        """The score of each method alone, a column per method with a weight, and of each baseline that was fitted."""
        panel = self._read_fitted(data)
        check_results(panel, self._methods)
        members = [{name: self._member(name, one).sum(1) for name in self._methods} for one in self._scaled(panel)]
        return _frame(panel, columns_by_row(panel, members))

    def events(self, data: Any) -> Any:
        """Alarms as events, the most severe first.

        Returns:
            A frame with a row per event: its number "event", ids, "start", "end" and "peak" as times, or as rows
            counted from 0, "rows", "severity" (the highest score, in thresholds), "channel" (the one with the largest
            share in the score) and "why" (up to three channels with their shares).
        """
        return self.alarms(data)[1]

    def alarms(self, data: Any) -> tuple[Any, Any]:
        """The frame of `predict` with the columns "event", 0 for none, and "why", and the frame of `events`."""
        panel = self._read_fitted(data)
        check_results(panel, RESULTS)
        parts, ranked = self._events(panel)
        summary = alarms.event_columns(panel, ranked, self.columns_)
        rows: list[dict[str, np.ndarray]] = []
        for part in parts:
            rows.append(self._flag(part.sum(1)))
            rows[-1] |= {"event": np.zeros(len(part), dtype=np.int64), "why": np.full(len(part), "", dtype=object)}
        for number, (index, event) in enumerate(ranked):
            rows[index]["event"][event.start : event.stop] = number + 1
            rows[index]["why"][event.start : event.stop] = summary["why"][number]
        return _frame(panel, columns_by_row(panel, rows)), _frame(panel, summary, index=False)

    def score(self, data: Any, y: Any) -> float:
        """F1 of the flagged rows, each counted once, without point adjustment.

        Args:
            data: Rows as for `predict`.
            y: For each row whether it is an anomaly, in the order of the table; for a list of arrays, a list.

        Raises:
            ValueError: If there is not one label per row, or all labels are equal, so that F1 is undefined.
        """
        panel = self._read_fitted(data)
        found = [self._flag(self._score(one, self.choice_)) for one in self._scaled(panel)]
        flags = columns_by_row(panel, found)["anomaly"]
        several = panel.backend is None and panel.ids != (None,)
        labels = np.concatenate([np.asarray(one) for one in y]) if several else y
        return alarms.flags_f1(np.asarray(labels), flags == 1)

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
        # the frequency cannot be inferred from one row
        rows = alarms.as_rows(rows, len(self.columns_))
        try:
            panel = self._read_fitted(rows, freq=self.freq_, missing="error")
        except MissingValuesError as error:
            # columns are those of fit, and later rows are not known
            raise ValueError(f"{error.problem}; fill it before the call, such as by the last value.") from None
        # an error changes no stream
        first, parts, changed = sum(one.seen for one in self._streams.values()), [], {}
        for index, (one, values) in enumerate(zip(panel.ids, panel.values, strict=True)):
            past = self._streams.get(one) or Stream(np.repeat(values[:1], self._context, 0))
            series = self._scale(one, np.concatenate((past.values, values)))
            scores = self._score(series, self.choice_, ends=True)[-len(values) :]
            known = past.seen + np.arange(len(values)) >= self.window_
            high = (scores > self.stream_threshold_) & known
            flags, changed[one] = past.advance(panel, index, high, self.min_length)
            parts.append({"score": scores, "anomaly": flags})
        self._streams |= changed
        found = _frame(panel, columns_by_row(panel, parts))
        if panel.times is None and isinstance(found, pd.DataFrame):
            found.index = pd.RangeIndex(first, first + len(found))
        return found

    def reset_stream(self) -> None:
        """Forget the rows that `detect` has seen."""
        self._streams: dict[Id, Stream] = {}

    def _events(self, panel: Panel) -> tuple[list[Rows], list[tuple[int, Event]]]:
        """Parts of the channels in the scores, and the events with their series, the most severe first."""
        parts = [self._parts(one, self.choice_) for one in self._scaled(panel)]
        events = [
            (index, event)
            for index, part in enumerate(parts)
            for event in alarms.find_events(part, self.threshold_, min_length=self.min_length, cool_down=self.cool_down)
        ]
        return parts, sorted(events, key=lambda pair: -pair[1].severity)

    def _flag(self, score: np.ndarray) -> dict[str, np.ndarray]:
        flags = np.zeros(len(score), dtype=np.int64)
        runs = alarms.alarm_runs(score > self.threshold_, self.min_length, 0)
        for start, stop in zip(runs.starts, runs.stops, strict=True):
            flags[start:stop] = 1
        return {"score": score, "anomaly": flags}

    def _per_row(self, panel: Panel, columns: Callable[[np.ndarray], dict[str, np.ndarray]]) -> Any:
        """Result columns of each row: a frame, or the last column as arrays if the data were arrays."""
        parts = [columns(self._score(one, self.choice_)) for one in self._scaled(panel)]
        if panel.backend is not None:
            return to_native(panel, columns_by_row(panel, parts))
        arrays = [part.popitem()[1] for part in parts]
        return arrays[0] if panel.ids == (None,) else arrays

    @property
    def _methods(self) -> tuple[str, ...]:
        """Methods that were fitted."""
        return (*self.scorers_, *([NETWORK] if self._has_network else []))

    def _member(self, name: str, series: Tensor, *, ends: bool = False) -> Rows:
        """Parts of the channels in the score of a method; `ends` scores rows after the first window by earlier ones."""
        if name == NETWORK:
            return self._network_rows(series, ends=ends)
        scorer, values = self.scorers_[name], rows_for(name, series, self.largest_).double().cpu().numpy()
        return scorer.ends(values, self.window_) if ends else scorer.rows(values)

    def _parts(self, series: Tensor, choice: Combination | None, *, ends: bool = False, channels: bool = True) -> Rows:
        """Parts of the channels in the score, or without `channels` one column, which takes less memory."""

        def member(name: str) -> Rows:
            part = self._member(name, series, ends=ends)
            return part if channels else part.sum(1, keepdims=True)

        if choice is not None:
            return choice.parts(member, self.window_, later=not ends)
        part, half = member(self.model.removesuffix(MEAN)), self.window_ // 2
        return window_mean(part, half, 0 if ends else half) if self.model.endswith(MEAN) else part

    def _score(self, series: Tensor, choice: Combination | None, *, ends: bool = False) -> Float64[np.ndarray, " t"]:
        return self._parts(series, choice, ends=ends, channels=False)[:, 0]

    def _check_parameters(self) -> None:
        super()._check_parameters()
        usual = AnomalyDetector.contamination
        alarms.check_rule(self.threshold, self.contamination, self.alarms_per_day, usual=usual)
        check_count("min_length", self.min_length, 1)
        check_count("cool_down", self.cool_down, 0)

    def _fit(self, data: Any) -> Panel:
        self._check_parameters()
        self.day_first_ = self.day_first
        panel = self._read(data)
        self.day_first_ = panel.day_first
        ceiling = Ceiling(self.time_limit)
        self.truncated_: tuple[str, ...] = ()
        check_results(panel, ("score", "anomaly"))
        days = alarms.days_of(panel)
        if self.threshold == "budget" and days is None:
            raise ValueError("threshold='budget' must have data with dates, got none; choose another rule.")
        self.columns_, self.freq_ = panel.columns, panel.freq
        self.largest_ = LARGEST if self.model == "auto" else None
        self.window_ = choose_window(self.window, longest := max(panel.lengths))
        if longest < 2 * self.window_:
            raise ValueError(
                f"{panel.label(panel.lengths.index(longest))} must have two windows of {self.window_} rows, one to "
                f"train on and one to hold out, got {longest} rows; add rows, or choose a smaller window."
            )
        self._check_network()
        self._fit_scalers(panel)
        series = self._scaled(panel)
        moves = torch.stack([one.abs().amax(0) for one in series]).amax(0) > _ROUNDING
        self.constant_ = tuple(np.flatnonzero(~moves.cpu().numpy()).tolist())
        held = self._fit_methods(series, ceiling)

        def choose(scores: Sequence[np.ndarray]) -> float:
            return alarms.choose_threshold(
                self.threshold,
                scores,
                contamination=self.contamination,
                alarms=(self.alarms_per_day or 1.0) * (days or 0.0) / sum(panel.lengths) * sum(map(len, scores)),
                min_length=self.min_length,
                cool_down=self.cool_down,
            )

        pairs = zip(self._normal_scores(series, self.choice_), held, strict=True)
        self.threshold_, self.stream_threshold_ = alarms.higher_thresholds(list(pairs), choose)
        self.reset_stream()
        self.truncated_ = tuple(ceiling.left_out)
        ceiling.warn(stacklevel=4)
        return panel

    def _normal_scores(self, series: Sequence[Tensor], choice: Combination | None) -> _Scores:
        scores = [self._score(one, choice) for one in series]
        pieces = alarms.spread_pieces(series, self._context)
        return scores, [self._score(part, choice, ends=True)[self.window_ // 2 :] for part in pieces]

    def _fit_methods(self, series: Sequence[Tensor], ceiling: Ceiling) -> _Scores:
        """Fit the network and the baselines; for "auto", make their scores comparable. Returns held-out scores."""
        self.choice_: Combination | None = None
        self._leave_out_network()
        train, held = self._split(series)
        names = list(SCORERS) if self.model == "auto" else [self.model.removesuffix(MEAN)]
        if self.model == NETWORK:
            names = []
            self._fit_network(train, held, ceiling, needed=True)
        self.scorers_ = self._fit_scorers(train, names)
        choices: Sequence[Combination | None] = [None]
        if self.model == "auto":
            held = held or train
            random = np.random.default_rng(self.seed)
            changed = [inject_anomalies(one.double().cpu().numpy(), self.window_, random) for one in held]
            injected = [torch.from_numpy(values.astype(np.float32)).to(held[0].device) for values, _ in changed]
            normal, anomalous = (
                {name: [self._member(name, one).sum(1) for one in part] for name in names} for part in (held, injected)
            )
            if self._fit_network(train, held, ceiling, needed=False):
                normal[NETWORK] = [self._network_rows(one).sum(1) for one in held]
                anomalous[NETWORK] = [self._network_rows(one).sum(1) for one in injected]
            self.choice_ = Combination.fit(normal, anomalous, [labels for _, labels in changed], self.window_)
            # tails are too flattering for the rows that they were fitted to
            choices = self.choice_.halves(normal, self.window_)
        scores = self._held_scores(series, train, choices)
        self.scorers_ = self._fit_scorers(series, names)
        return scores

    def _held_scores(self, series: Sequence[Tensor], train: Sequence[Tensor], choices: Sequence[Any]) -> _Scores:
        """Scores of the rows of series after those of `train`: as many parts of them as there are combinations."""
        scores, ends = [], []
        for number, choice in enumerate(choices):
            parts, counts = [], []
            for one, border in zip(series, map(len, train), strict=True):
                start, stop = (border + (len(one) - border) * k // len(choices) for k in (number, number + 1))
                if start < stop:
                    parts.append(one[max(0, start - self._context) : stop])
                    counts.append(stop - start)
            row_scores, end_scores = self._normal_scores(parts, choice)
            scores += [score[-count:] for score, count in zip(row_scores, counts, strict=True)]
            ends += end_scores
        return scores, ends

    def _fit_scorers(self, series: Sequence[Tensor], names: Sequence[str]) -> dict[str, Scorer]:
        found, wide = {}, [one.double().cpu() for one in series]
        for name in names:
            values = [rows_for(name, one, self.largest_).numpy() for one in wide]
            found[name] = SCORERS[name].fit(values, window=self.window_, seed=self.seed)
        return found

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        scalers = [scaler.state() for scaler in self.scalers_.values()]
        tensors = {f"scaler.{name}": torch.stack([one[name] for one in scalers]) for name in ("mean", "std")}
        facts: dict[str, Any] = {"columns_": list(self.columns_), "ids": list(self.scalers_), "largest": self.largest_}
        facts |= {"scorers": list(self.scorers_), "constant": list(self.constant_), "day_first": self.day_first_}
        for name, scorer in self.scorers_.items():
            tensors |= {f"scorer.{name}.{key}": value.contiguous() for key, value in scorer.state().items()}
        if self.choice_ is not None:
            own, facts["choice"] = self.choice_.state()
            tensors |= {f"choice.{key}": value for key, value in own.items()}
        return tensors, facts

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.columns_, self.constant_ = tuple(facts["columns_"]), tuple(facts.get("constant", ()))
        self.day_first_ = facts.get("day_first")
        check_at_least("window_", self.window_, 2)
        check_unpacked("window_", self._context * len(self.columns_), tensors)
        statistics = zip(facts["ids"], tensors["scaler.mean"], tensors["scaler.std"], strict=True)
        self.scalers_ = {one: StandardScaler.from_state({"mean": mean, "std": std}) for one, mean, std in statistics}
        if "scorers" not in facts:
            # older files hold the network alone
            self.model = NETWORK
        # and a number that the rule does not use
        unused = "contamination" if self.threshold == "budget" else "alarms_per_day"
        setattr(self, unused, getattr(AnomalyDetector, unused))
        self._check_parameters()
        self.scorers_ = {
            name: SCORERS[name].from_state(named(tensors, f"scorer.{name}."), len(self.columns_))
            for name in facts.get("scorers", ())
        }
        self.reset_stream()
        self.choice_ = self.largest_ = None
        if "choice" in facts:
            self.choice_ = Combination.from_state(named(tensors, "choice."), facts["choice"])
            check_positive("largest", largest := facts.get("largest", OLDER_LARGEST))
            self.largest_ = largest

    def _try(self) -> None:
        check_finite("thresholds", torch.tensor((self.threshold_, self.stream_threshold_)))
        series = self._scale(next(iter(self.scalers_)), np.zeros((self._context + 1, len(self.columns_))))
        if any(self._member(name, series).shape != series.shape for name in self._methods):
            raise ValueError("a method has scores of other channels")
        self._flag(self._score(series, self.choice_))
        self._score(series, self.choice_, ends=True)


def _frame(panel: Panel, columns: Mapping[str, Any], *, index: bool = True) -> Any:
    """A frame like the source; a pandas frame for arrays, and for events of a frame with times in its index."""
    if panel.backend is None or (panel.time_in_index and not index):
        return pd.DataFrame(dict(columns))
    return to_native(panel, columns)
