"""From scores to alarms: thresholds by three rules, events with their channels, and rows that arrive in streams.

    threshold = choose_threshold("extreme value", [scores], contamination=0.001)
    events = find_events(parts, threshold, min_length=2, cool_down=10)       # of one series
    event_columns(panel, [(0, event) for event in events], columns)
    Stream(values).advance(panel, index, scores > threshold, min_length)     # rows that arrive one after another

Alphabet: T rows, C channels, S series.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from toa._checks import check_choice, check_positive
from toa.data.frames import id_column
from toa.data.frequency import make_times
from toa.data.panel import Panel, Values
from toa.estimators.scorers import Rows
from toa.training.detection import Runs, point_metrics, undefined

RULES = ("quantile", "extreme value", "budget")
# scores above this quantile are the tail that extreme values follow, and the fewest that determine it
_TAIL, _FEWEST = 0.98, 10
# thresholds that are tried for a budget
_TRIED = 500
# channels that are named for an event
_NAMED = 3
# rows whose scores on arrival set the threshold of streams, and contexts of rows per piece of a series
_ROWS, _PIECE = 10_000, 10
# held-out rows have anomalies if their threshold is this many times the highest score of all rows, and they are many
_FAR_ABOVE, _MANY = 3.0, 100


class Event(NamedTuple):
    """Rows [start, stop) of a series, the row of the highest score, that score in thresholds, and channel shares."""

    start: int
    stop: int
    peak: int
    severity: float
    shares: Float64[np.ndarray, " c"]


def days_of(panel: Panel) -> float | None:
    """Days that the series of a table cover together; None without dates."""
    if panel.times is None or not isinstance(panel.times[0], pd.DatetimeIndex):
        return None
    return sum(
        (times[-1] - times[0]) / pd.Timedelta(days=1) * len(times) / max(len(times) - 1, 1) for times in panel.times
    )


def check_rule(rule: str, contamination: float, alarms_per_day: float | None, *, usual: float) -> None:
    """Raise ValueError for a wrong number, or for one that the rule does not use; `usual` is the default share."""
    check_choice("threshold", rule, RULES)
    if not 0.0 < contamination < 1.0:
        raise ValueError(f"contamination must lie in (0, 1), got {contamination}.")
    if alarms_per_day is not None:
        check_positive("alarms_per_day", alarms_per_day)
        if np.isinf(alarms_per_day):
            raise ValueError("alarms_per_day must be finite, got inf; choose the rule 'quantile' to flag by share.")
    name, value, other = "alarms_per_day", alarms_per_day, "budget"
    if rule == "budget":
        name, value, other = "contamination", None if contamination == usual else contamination, "quantile"
    if value is not None:
        text = f"{name} must be left out with the rule {rule!r}, which does not use it, got {value}; leave it out"
        raise ValueError(f"{text}, or give threshold={other!r}.")


def choose_threshold(
    rule: str,
    scores: Sequence[Float64[np.ndarray, " t"]],
    *,
    contamination: float,
    alarms: float = 0.0,
    min_length: int = 1,
    cool_down: int = 0,
) -> float:
    """Threshold of the scores of normal series, one array each, by a rule of `toa.AnomalyDetector`.

    "extreme value" extrapolates the highest 2 %; with a larger `contamination`, or too few scores, it is "quantile".
    "budget" is the lowest threshold at which the series have at most `alarms` events, see `alarm_runs`.
    """
    joined = np.concatenate(scores)
    if rule == "budget":
        best = float(joined.max())
        for threshold in np.quantile(joined, np.linspace(1.0, 0.5, _TRIED)):
            runs = [alarm_runs(one > threshold, min_length, cool_down) for one in scores]
            if sum(len(one.starts) for one in runs) > alarms:
                break
            best = float(threshold)
        return best
    start = float(np.quantile(joined, _TAIL))
    above = joined[joined > start] - start
    share = len(above) / len(joined)
    if rule == "quantile" or contamination >= share or len(above) < _FEWEST:
        return float(np.percentile(joined, 100.0 * (1.0 - contamination)))
    from scipy.stats import genpareto

    shape, _, scale = genpareto.fit(above, floc=0.0)
    return start + float(genpareto.isf(contamination / share, shape, scale=scale))


def alarm_runs(flags: Bool[np.ndarray, " t"], min_length: int, cool_down: int) -> Runs:
    """Runs of at least `min_length` rows; runs with at most `cool_down` rows between them become one."""
    runs = Runs.of(flags)
    kept = runs.lengths >= min_length
    starts, stops = runs.starts[kept], runs.stops[kept]
    apart = starts[1:] - stops[:-1] > cool_down
    return Runs(starts[np.append(True, apart)[: len(starts)]], stops[np.append(apart, True)[: len(stops)]])


def find_events(parts: Rows, threshold: float, *, min_length: int, cool_down: int) -> list[Event]:
    """Events of a series from the parts of the channels in the score of each row, in the order of time."""
    score = parts.sum(1)
    runs = alarm_runs(score > threshold, min_length, cool_down)
    events = []
    for start, stop in zip(runs.starts.tolist(), runs.stops.tolist(), strict=True):
        peak = start + int(score[start:stop].argmax())
        # rows between two alarms of the event are not its cause
        high = np.flatnonzero(score[start:stop] > threshold) + start
        share = np.maximum(parts[high], 0.0).sum(0)
        severity = float(score[peak]) / threshold if threshold > 0 else float("inf")
        events.append(Event(start, stop, peak, severity, share / max(float(share.sum()), 1e-300)))
    return events


def describe_channels(shares: Float64[np.ndarray, " c"], columns: Sequence[str]) -> str:
    """The channels with the largest shares: "temperature 71 %, load 20 %"."""
    order = np.argsort(-shares, kind="stable")[:_NAMED]
    return ", ".join(f"{columns[index]} {100.0 * shares[index]:.0f} %" for index in order if shares[index] >= 0.005)


def event_columns(panel: Panel, ranked: Sequence[tuple[int, Event]], columns: Sequence[str]) -> dict[str, Any]:
    """Columns of the table of events, numbered from 1; `ranked` has the index of the series of each."""
    owners = np.array([index for index, _ in ranked], dtype=np.int64)
    found: dict[str, Any] = {"event": np.arange(1, len(ranked) + 1), **id_column(panel, owners)}
    if panel.backend is None and len(panel) > 1:
        found["series"] = owners
    places = np.array([(event.start, event.stop - 1, event.peak) for _, event in ranked], dtype=np.int64)
    for name, rows in zip(("start", "end", "peak"), places.reshape(-1, 3).T.tolist(), strict=True):
        if panel.times is None:
            found[name] = np.array(rows, dtype=np.int64)
        else:
            times = [panel.times[index][row] for index, row in zip(owners, rows, strict=True)]
            found[name] = type(panel.times[0])(times, dtype=panel.times[0].dtype)
    found["rows"] = np.array([event.stop - event.start for _, event in ranked], dtype=np.int64)
    found["severity"] = np.array([event.severity for _, event in ranked], dtype=np.float64)
    found["channel"] = np.array([columns[int(event.shares.argmax())] for _, event in ranked], dtype=object)
    found["why"] = np.array([describe_channels(event.shares, columns) for _, event in ranked], dtype=object)
    return found


def flags_f1(labels: np.ndarray, flags: Bool[np.ndarray, " t"]) -> float:
    """F1 of flagged rows; raises ValueError for labels with which it is undefined."""
    if labels.shape != flags.shape:
        raise ValueError(f"y must have a label for each of the {len(flags)} rows, got shape {labels.shape}.")
    wrong = np.flatnonzero(~np.isin(labels, (0, 1)))
    if len(wrong):
        raise ValueError(f"y must be 0 or 1, 1 for an anomaly, got {labels[wrong[0]]!r} at data row {wrong[0] + 1}.")
    reason = undefined(labels.astype(bool))
    if reason is not None:
        raise ValueError(f"y must have anomalies and normal rows for a score, but {reason}.")
    return point_metrics(labels.astype(bool), flags)["f1"] or 0.0


class Stream(NamedTuple):
    """The last rows of a series, the time of the last one, rows so far, and last rows above the threshold."""

    values: Values
    time: object = None
    seen: int = 0
    run: int = 0

    def advance(
        self, panel: Panel, index: int, high: Bool[np.ndarray, " t"], min_length: int
    ) -> tuple[Int64[np.ndarray, " t"], "Stream"]:
        """Flags of the new rows, those of a series of a panel, and the stream after them.

        `high` states which rows are above the threshold; the last of `min_length` such rows is flagged. Rows that do
        not continue the stream raise ValueError.
        """
        values, times = panel.values[index], None if panel.times is None else panel.times[index]
        if times is not None and self.seen:
            assert panel.freq is not None
            expected = make_times(self.time, panel.freq, 2)[1]
            if times[0] != expected:
                raise ValueError(
                    f"{panel.label(index, 'rows')} must continue with {expected}, after {self.time}, got {times[0]} at "
                    f"data row {panel.rows[index][0] + 1}; pass each row once and in order, or call reset_stream()."
                )
        run, flags = self.run, np.zeros(len(high), dtype=np.int64)
        for row, above in enumerate(high):
            run = run + 1 if above else 0
            flags[row] = run >= min_length
        last = np.concatenate((self.values, values))[len(values) :].copy()
        return flags, Stream(last, None if times is None else times[-1], self.seen + len(values), run)


def as_rows(rows: Any, channels: int) -> Any:
    """Dicts as a frame, and lists or one row of numbers as an array (t, C); anything else unchanged.

    Raises:
        ValueError: If lists have different lengths.
    """
    rows = [rows] if isinstance(rows, Mapping) else rows
    if isinstance(rows, list | tuple) and rows and all(isinstance(row, Mapping) for row in rows):
        return pd.DataFrame(list(rows))
    if isinstance(rows, list | tuple) and not any(isinstance(row, np.ndarray) for row in rows):
        sizes = {len(row) if isinstance(row, list | tuple) else 0 for row in rows}
        if len(sizes) > 1:
            raise ValueError(f"rows must be lists of {channels} numbers, got lists of different lengths.")
        rows = np.asarray(rows)
    return rows[None] if isinstance(rows, np.ndarray) and rows.ndim == 1 and len(rows) == channels > 1 else rows


def higher_thresholds(
    pairs: Sequence[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]], choose: Callable[[Sequence[np.ndarray]], float]
) -> list[float]:
    """The threshold of each pair: scores of all rows by the final fit, and of held-out rows by a fit without them.

    The higher threshold counts. If that of the held-out rows is far above every score of the final fit, these rows have
    anomalies, and those of all rows count, with a warning.
    """
    levels = [[choose(scores) for scores in pair if scores] for pair in pairs]
    if not any(_has_anomalies(level[-1], *pair) for level, pair in zip(levels, pairs, strict=True)):
        return list(map(max, levels))
    warnings.warn(
        "the last fifth of the rows scores far higher than expected and may hold anomalies: the threshold is chosen "
        "from the scores of all rows; fit to normal rows for a threshold that holds for new ones.",
        stacklevel=5,
    )
    return [level[0] for level in levels]


def _has_anomalies(threshold: float, scores: Sequence[np.ndarray], held: Sequence[np.ndarray]) -> bool:
    return sum(map(len, held)) >= _MANY and threshold > _FAR_ABOVE * max(float(one.max()) for one in scores)


def spread_pieces(series: Sequence[Tensor], context: int) -> list[Tensor]:
    """Parts of the series, spread over them, with about as many rows as the threshold of streams needs."""
    share = max(1.0, sum(map(len, series)) / _ROWS)
    pieces = []
    for one in series:
        count = -(-len(one) // (_PIECE * context))
        rows = max(context + 1, min(len(one), int(len(one) / count / share) + context))
        starts = np.unique(np.linspace(0, max(0, len(one) - rows), count).astype(int))
        pieces += [one[start : start + rows] for start in starts]
    return pieces
