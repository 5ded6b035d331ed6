"""A fitted detector: a frozen value, and what it finds in the rows of a panel.

    fitted = fit_detector(panel, settings, ceiling)    # in toa.estimators.detection_fitting
    alarms = find_alarms(fitted, panel, rule)          # scores, flags and events
    write_alarms(fitted, alarms)                       # the same as frames

Alphabet: C channels, T rows, S series.
"""

from collections.abc import Mapping, Sequence
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
from toa.estimators.shift import ShareFlagged, describe_shift
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
    return {"score": score, "anomaly": flag_rows(score > fitted.thresholds.of_rows(score), rule)}


def describe_flags(
    fitted: FittedDetector, columns: Sequence[Mapping[str, np.ndarray]], expected: float | None
) -> str | None:
    """What a user must know of the flagged rows of a table, from the columns of `flagged`; None for nothing.

    `expected` is the expected share of flagged normal rows; None if the rule of the threshold has none.
    """
    if expected is None:
        return None
    thresholds = np.concatenate([fitted.thresholds.of_rows(part["score"]) for part in columns])
    flags = sum(int(part["anomaly"].sum()) for part in columns)
    share = ShareFlagged(flagged=flags, rows=len(thresholds), expected=expected)
    return describe_shift(share, thresholds, fitted.thresholds.rows)


def write_rows(panel: Panel, parts: Sequence[Mapping[str, np.ndarray]]) -> Any:
    """Result columns of each series as a frame, or the last column as arrays if the data were arrays."""
    if panel.backend is not None:
        return to_native(panel, columns_by_row(panel, parts))
    arrays = [list(part.values())[-1] for part in parts]
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Alarms:
    """What is found in the rows of a panel.

    Attributes:
        parts: Parts of the channels in the score of each row, per series.
        columns: Result columns of the rows of each series.
        ranked: Events with the index of their series, the most severe first.
    """

    panel: Panel
    parts: Sequence[Rows]
    columns: Sequence[dict[str, np.ndarray]]
    ranked: Sequence[tuple[int, Event]]


def find_alarms(fitted: FittedDetector, panel: Panel, rule: AlarmRule) -> Alarms:
    """Score the rows, flag them and merge the flagged ones into events."""
    parts = []
    columns = []
    events: list[tuple[int, Event]] = []
    for index, series in enumerate(fitted.inputs.scale_panel(panel)):
        part = fitted.score.parts(series)
        evidence = fitted.score.evidence(series)
        columns.append(flagged(fitted, part.sum(1), rule))
        thresholds = fitted.thresholds.of_rows(columns[-1]["score"])
        events += [(index, event) for event in find_events(part, thresholds, rule, evidence)]
        parts.append(part)
    ranked = sorted(events, key=lambda pair: -pair[1].severity)
    return Alarms(panel=panel, parts=parts, columns=columns, ranked=ranked)


def write_alarms(fitted: FittedDetector, alarms: Alarms) -> tuple[Any, Any]:
    """The frame of flags with the columns "event", 0 for none, and "why", and the frame of events."""
    panel = alarms.panel
    ranked = alarms.ranked
    summary = event_columns(panel, ranked, fitted.columns)
    rows: list[dict[str, np.ndarray]] = []
    for columns in alarms.columns:
        count = len(columns["score"])
        more = {"event": np.zeros(count, dtype=np.int64), "why": np.full(count, "", dtype=object)}
        rows.append({**columns, **more})
    for number, (index, event) in enumerate(ranked):
        rows[index]["event"][event.start : event.stop] = number + 1
        rows[index]["why"][event.start : event.stop] = summary["why"][number]
    return write_frame(panel, columns_by_row(panel, rows)), write_frame(panel, summary, index=False)


def write_frame(panel: Panel, columns: Mapping[str, Any], *, index: bool = True) -> Any:
    """A frame like the source; a pandas frame for arrays, and for events of a frame with times in its index."""
    if panel.backend is None or (panel.time_in_index and not index):
        return pd.DataFrame(dict(columns))
    return to_native(panel, columns)
