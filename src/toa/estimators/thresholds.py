"""Thresholds of anomaly scores, by one of four rules, from the scores of normal rows.

    rule = ThresholdRule("extreme value", contamination=0.001)
    rule.check(usual=0.01)                                      # ValueError for a number that the rule does not use
    rule.choose([scores], panel)                                # rows with a higher score are flagged
    thresholds = higher_thresholds(normal, held, choose)        # of a table and of streams

Alphabet: T rows, S series.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from toa._checks import Argument, ArgumentError, Phrase, check_choice, check_positive
from toa.data.panel import Panel
from toa.estimators.alarms import EVERY_ROW, AlarmRule, alarm_runs
from toa.estimators.scoring import Score, Series
from toa.estimators.shift import NormalLevels

# the default: the threshold of "quantile", which rises with the level of new scores
ADAPTIVE = "adaptive"
RULES = (ADAPTIVE, "quantile", "extreme value", "budget")
# scores above this quantile are the tail that extreme values follow
_TAIL = 0.98
# fewest scores that determine such a tail
_FEWEST = 10
# thresholds that are tried for a budget
_TRIED = 500
# lowest of them, as a share of the scores below it
_LOWEST_TRIED = 0.5
# rows whose scores on arrival set the threshold of streams
_STREAM_ROWS = 10_000
# contexts of rows per piece of a series
_PIECE = 10
# held-out rows have anomalies if their threshold is this many times the highest score of all rows
_FAR_ABOVE = 3.0
# fewest held-out rows that can show it
_MANY = 100
# the limit of a threshold is higher for few held-out rows: by the share that this is of their number
_FEW_HELD = 100.0
# fewest held-out rows for such a limit: normal rows may differ from fewer ones as much as anomalies do
_LEAST_HELD = 50
# mean score of normal rows by a combination
_MEAN_SCORE = 1.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Rows with a higher score are flagged.

    Attributes:
        rows: Threshold of the rows of a table.
        stream: Threshold of rows as they arrive, whose scores do not depend on later rows.
        row_levels: Scores of normal rows, with which those of a table are compared; None if a threshold is fixed.
        stream_levels: The same for rows as they arrive.
    """

    rows: float
    stream: float
    row_levels: NormalLevels | None = None
    stream_levels: NormalLevels | None = None

    def of_rows(self, scores: Score) -> Score:
        """The threshold of each row of a series of a table."""
        if self.row_levels is None:
            return np.full(len(scores), self.rows)
        return self.row_levels.raise_threshold(self.rows, scores)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NormalScores:
    """Scores of normal rows.

    Attributes:
        rows: Scores of the rows of series.
        stream: Scores of rows of series, or of parts of them, as they arrive.
    """

    rows: Sequence[Score]
    stream: Sequence[Score]


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """How thresholds are chosen, see the parameters of `toa.AnomalyDetector`."""

    rule: str
    contamination: float
    alarms_per_day: float | None = None
    alarms: AlarmRule = EVERY_ROW

    def check(self, usual: float) -> None:
        """Raise ValueError for a wrong number, or for one that the rule does not use; `usual` is the default share."""
        rule = self.rule
        contamination = self.contamination
        alarms_per_day = self.alarms_per_day
        check_choice("threshold", rule, RULES)
        if not 0.0 < contamination < 1.0:
            raise ArgumentError("contamination", "lie in (0, 1)", contamination)
        if alarms_per_day is not None:
            check_positive("alarms_per_day", alarms_per_day)
            if np.isinf(alarms_per_day):
                remedy = Phrase("give ", Argument("threshold", ADAPTIVE), " to flag by share")
                raise ArgumentError("alarms_per_day", "be finite", "inf", remedy)
        if rule == "budget":
            unused = "contamination"
            value = None if contamination == usual else contamination
            other_rule = ADAPTIVE
        else:
            unused = "alarms_per_day"
            value = alarms_per_day
            other_rule = "budget"
        if value is not None:
            raise ArgumentError(
                unused,
                f"be left out with the rule {rule!r}, which does not use it",
                value,
                "leave it out",
                Phrase("give ", Argument("threshold", other_rule)),
            )

    @property
    def expected(self) -> float | None:
        """Expected share of flagged normal rows; None for a budget."""
        return None if self.rule == "budget" else self.contamination

    def limit(self, thresholds: Thresholds, held: int) -> Thresholds:
        """The thresholds of a combination, limited by what its scores mean, if the rule is adaptive.

        Such a score is a mean of -log of shares of the held-out rows. So no threshold need be higher than

            -log(contamination) * (1 + 100 / held)

        where `held` is the number of these rows, and the factor allows for the error of few rows. Thresholds from the
        scores of one half of few rows, by comparison with the other half, are often many times as high, and no
        anomaly exceeds them. Without 50 held-out rows there is no limit.
        """
        if self.rule != ADAPTIVE or held < _LEAST_HELD:
            return thresholds
        highest = max(_MEAN_SCORE, -math.log(self.contamination)) * (1.0 + _FEW_HELD / held)
        return replace(thresholds, rows=min(thresholds.rows, highest), stream=min(thresholds.stream, highest))

    def add_levels(self, thresholds: Thresholds, normal: NormalScores, longest: int) -> Thresholds:
        """The thresholds with what lets them rise, if the rule is adaptive."""
        if self.rule != ADAPTIVE:
            return thresholds
        contamination = self.contamination
        return Thresholds(
            rows=thresholds.rows,
            stream=thresholds.stream,
            row_levels=NormalLevels.fit(normal.rows, contamination=contamination, longest=longest),
            stream_levels=NormalLevels.fit(normal.stream, contamination=contamination, longest=longest),
        )

    def check_dates(self, panel: Panel) -> None:
        """Raise ValueError for a budget of events per day without dates."""
        if self.rule == "budget" and days_of(panel) is None:
            raise ArgumentError(Argument("threshold", "budget"), "have data with dates", "none", "choose another rule")

    def choose(self, scores: Sequence[Score], panel: Panel) -> float:
        """The threshold of scores, one array per series or part of one; `panel` tells how many rows are a day."""
        days = days_of(panel) or 0.0
        return choose_threshold(
            self.rule,
            scores,
            contamination=self.contamination,
            events=(self.alarms_per_day or 1.0) * days / sum(panel.lengths) * sum(map(len, scores)),
            alarms=self.alarms,
        )


def days_of(panel: Panel) -> float | None:
    """Days that the series of a table cover together; None without dates."""
    if panel.times is None or not isinstance(panel.times[0], pd.DatetimeIndex):
        return None
    return sum(
        (times[-1] - times[0]) / pd.Timedelta(days=1) * len(times) / max(len(times) - 1, 1) for times in panel.times
    )


def choose_threshold(
    rule: str,
    scores: Sequence[Score],
    *,
    contamination: float,
    events: float = 0.0,
    alarms: AlarmRule = EVERY_ROW,
) -> float:
    """Threshold of the scores of normal series, one array each, by a rule of `toa.AnomalyDetector`.

    "extreme value" extrapolates the highest 2 %; with a larger `contamination`, or too few scores, it is "quantile".
    "budget" is the lowest threshold at which the series have at most `events` events.
    """
    joined = np.concatenate(scores)
    if rule == "budget":
        return _budget(scores, joined, events, alarms)
    start = float(np.quantile(joined, _TAIL))
    above = joined[joined > start] - start
    share = len(above) / len(joined)
    if rule != "extreme value" or contamination >= share or len(above) < _FEWEST:
        return float(np.percentile(joined, 100.0 * (1.0 - contamination)))
    from scipy.stats import genpareto

    shape, _, scale = genpareto.fit(above, floc=0.0)
    return start + float(genpareto.isf(contamination / share, shape, scale=scale))


def _budget(scores: Sequence[Score], joined: Score, events: float, alarms: AlarmRule) -> float:
    """The lowest of several thresholds at which there are at most `events` events."""
    best = float(joined.max())
    for threshold in np.quantile(joined, np.linspace(1.0, _LOWEST_TRIED, _TRIED)):
        runs = [alarm_runs(score > threshold, alarms) for score in scores]
        if sum(len(run.starts) for run in runs) > events:
            break
        best = float(threshold)
    return best


def higher_thresholds(
    normal: NormalScores, held: NormalScores, choose: Callable[[Sequence[Score]], float], *, stacklevel: int = 2
) -> Thresholds:
    """Thresholds from scores of all rows by the final fit, and of any held-out rows by a fit without them.

    The higher threshold counts. If that of the held-out rows is far above every score of the final fit, these rows have
    anomalies, and those of all rows count, with a warning.
    """
    of_all = Thresholds(rows=choose(normal.rows), stream=choose(normal.stream))
    of_held = Thresholds(
        rows=choose(held.rows) if held.rows else of_all.rows,
        stream=choose(held.stream) if held.stream else of_all.stream,
    )
    has_anomalies = _has_anomalies(of_held.rows, normal.rows, held.rows)
    if not has_anomalies and not _has_anomalies(of_held.stream, normal.stream, held.stream):
        return Thresholds(rows=max(of_all.rows, of_held.rows), stream=max(of_all.stream, of_held.stream))
    share = sum(map(len, held.rows)) / sum(map(len, normal.rows))
    warnings.warn(
        f"the last {share:.0%} of the rows, which were held out, score far higher than expected and may hold "
        "anomalies: the threshold is chosen from the scores of all rows; fit to normal rows for a threshold that holds "
        "for new ones.",
        stacklevel=stacklevel + 1,
    )
    return of_all


def _has_anomalies(threshold: float, normal: Sequence[Score], held: Sequence[Score]) -> bool:
    """Whether the threshold of many held-out rows is far above the highest score of all rows by the final fit."""
    return sum(map(len, held)) >= _MANY and threshold > _FAR_ABOVE * max(float(score.max()) for score in normal)


def spread_pieces(series: Sequence[Series], context: int) -> list[Series]:
    """Parts of the series, spread over them, with about as many rows as the threshold of streams needs."""
    share = max(1.0, sum(map(len, series)) / _STREAM_ROWS)
    pieces = []
    for values in series:
        count = -(-len(values) // (_PIECE * context))
        rows = max(context + 1, min(len(values), int(len(values) / count / share) + context))
        starts = np.unique(np.linspace(0, max(0, len(values) - rows), count).astype(int))
        pieces += [values[start : start + rows] for start in starts]
    return pieces
