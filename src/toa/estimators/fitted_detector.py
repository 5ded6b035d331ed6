"""A fitted detector: a frozen value, and what it finds in the rows of a panel.

    fitted = fit_detector(panel, settings, ceiling)    # in toa.estimators.detection_fitting
    predict(fitted, panel, rule)                       # scores and flags, like the data of the panel
    list_events(fitted, panel, rule)                   # a frame with a row per event

Alphabet: C channels, T rows, S series.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from toa.data.frames import check_results, columns_by_row, to_native
from toa.data.frequency import Frequency
from toa.data.panel import Panel
from toa.estimators.alarms import AlarmRule, Event, event_columns, find_events, flag_rows
from toa.estimators.architecture import NO_NETWORK
from toa.estimators.detector_inputs import DetectorInputs
from toa.estimators.detector_score import DetectorScore
from toa.estimators.reconstruction import FittedReconstruction
from toa.estimators.scoring import Rows, Score
from toa.estimators.thresholds import Thresholds

# columns of the results of `alarms`
RESULTS = ("score", "anomaly", "event", "start", "end", "peak", "rows", "severity", "channel", "why")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedDetector:
    """All that scores and alarms need.

    Attributes:
        freq: Frequency of the times.
        day_first: Whether the day comes first in dates.
        constant: Places of the channels that are constant in fit.
        largest: Largest standardised value that methods of windows read; None for all values.
        score: The fitted methods, and how they score rows.
        truncated: Methods that the time limit left out.
    """

    freq: Frequency | None
    day_first: bool | None
    inputs: DetectorInputs
    constant: tuple[int, ...]
    largest: float | None
    score: DetectorScore
    thresholds: Thresholds
    truncated: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the channels."""
        return self.inputs.columns

    @property
    def context(self) -> int:
        """Rows before a row that its score on arrival depends on."""
        return self.inputs.context

    @property
    def architecture(self) -> Mapping[str, Any]:
        """Backbone, attention and settings of the network."""
        return NO_NETWORK if self.network is None else self.network.architecture

    @property
    def network(self) -> FittedReconstruction | None:
        """The network; None for none."""
        return self.score.network

    def require_network(self) -> FittedReconstruction:
        """The network of a detector that has one."""
        assert self.network is not None
        return self.network

    def scores(self, panel: Panel) -> list[Score]:
        """Score of each row of each series."""
        return [self.score.of_rows(series) for series in self.inputs.scale_panel(panel)]

    def parts(self, panel: Panel) -> list[Rows]:
        """Parts of the channels in these scores."""
        return [self.score.parts(series) for series in self.inputs.scale_panel(panel)]


def flagged(fitted: FittedDetector, score: Score, rule: AlarmRule) -> dict[str, np.ndarray]:
    """Result columns of the rows of a series."""
    return {"score": score, "anomaly": flag_rows(score > fitted.thresholds.rows, rule)}


def predict(fitted: FittedDetector, panel: Panel, rule: AlarmRule) -> Any:
    """Flags of arrays; for a frame its ids and times with columns "score" and "anomaly"."""
    return write_rows(fitted, panel, lambda score: flagged(fitted, score, rule))


def write_rows(fitted: FittedDetector, panel: Panel, columns: Callable[[Score], dict[str, np.ndarray]]) -> Any:
    """Result columns of each row: a frame, or the last column as arrays if the data were arrays."""
    parts = [columns(score) for score in fitted.scores(panel)]
    if panel.backend is not None:
        return to_native(panel, columns_by_row(panel, parts))
    arrays = [part.popitem()[1] for part in parts]
    return arrays[0] if panel.ids == (None,) else arrays


def channel_scores(fitted: FittedDetector, panel: Panel) -> Any:
    """The part of each channel in the score of each row, a column per channel."""
    check_results(panel, fitted.columns)
    parts = [dict(zip(fitted.columns, part.T, strict=True)) for part in fitted.parts(panel)]
    return write_frame(panel, columns_by_row(panel, parts))


def member_scores(fitted: FittedDetector, panel: Panel) -> dict[str, np.ndarray]:
    """The score of each method alone, a column per method that was fitted, with ids and times."""
    score = fitted.score
    check_results(panel, tuple(score.scorers))
    members = [
        {name: score.member(name, series).sum(1) for name in score.scorers}
        for series in fitted.inputs.scale_panel(panel)
    ]
    return columns_by_row(panel, members)


def rank_events(fitted: FittedDetector, parts: Sequence[Rows], rule: AlarmRule) -> list[tuple[int, Event]]:
    """Events with the index of their series, the most severe first, from the parts of `FittedDetector.parts`."""
    events = [
        (index, event) for index, part in enumerate(parts) for event in find_events(part, fitted.thresholds.rows, rule)
    ]
    return sorted(events, key=lambda pair: -pair[1].severity)


def find_alarms(fitted: FittedDetector, panel: Panel, rule: AlarmRule) -> tuple[Any, Any]:
    """The frame of `predict` with the columns "event", 0 for none, and "why", and the frame of events."""
    check_results(panel, RESULTS)
    parts = fitted.parts(panel)
    ranked = rank_events(fitted, parts, rule)
    summary = event_columns(panel, ranked, fitted.columns)
    rows: list[dict[str, np.ndarray]] = []
    for part in parts:
        columns = flagged(fitted, part.sum(1), rule)
        columns["event"] = np.zeros(len(part), dtype=np.int64)
        columns["why"] = np.full(len(part), "", dtype=object)
        rows.append(columns)
    for number, (index, event) in enumerate(ranked):
        rows[index]["event"][event.start : event.stop] = number + 1
        rows[index]["why"][event.start : event.stop] = summary["why"][number]
    return write_frame(panel, columns_by_row(panel, rows)), write_frame(panel, summary, index=False)


def write_frame(panel: Panel, columns: Mapping[str, Any], *, index: bool = True) -> Any:
    """A frame like the source; a pandas frame for arrays, and for events of a frame with times in its index."""
    if panel.backend is None or (panel.time_in_index and not index):
        return pd.DataFrame(dict(columns))
    return to_native(panel, columns)
