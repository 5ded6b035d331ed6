"""What boosted trees with covariates read of a step of a window: values before the origin, covariates, the clock.

    plan = plan_inputs(covariates, season=24, horizon=48, limit=512)    # which inputs there are, frozen
    plan.inputs(rows, column, steps)                                    # (N, I), NaN where a value is not known

A step τ lies h steps after its origin. Own values are without the effect of the covariates and relative to the value a
season before the step, or for levels neither. Nothing of the origin or later is read, but for features that are known
in advance, and these only within the horizon.

Alphabet: R rows, C columns, F features, P horizon, N steps of windows, I inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from toa._checks import ArgumentError
from toa.estimators.clock import PARTS, Clock
from toa.estimators.covariates import Covariates

# last values before the origin
_RECENT = 4
# seasons before the last one whose values are read
_SEASONS = (0, 1, 2)
# seasons of a longer one, such as a week of days
_LONGER = 7
# seasons for which there may be a longer one: the hours, half hours or quarters of a day
_DAILY = (24, 48, 96)
# steps around a step whose features are read
_AROUND = (0, -1, -2, 1)
# features beyond which only those of the step itself are read
_FEW_FEATURES = 12
# steps back to which features of the past are read, and numbers of them in all
_PAST_STEPS = 30
_LEAST_PAST_STEPS = 12
_PAST_INPUTS = 90


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepRows:
    """Rows of series or windows, one after another.

    Attributes:
        own: Values (R, C) in scales without the effect of covariates; NaN before a column begins and where not known.
        effect: Effect (R, C) of the covariates in scales.
        features: Features (R, F); those of the past are NaN where not known.
        clock: Hour and day (R, 3) of the rows.
    """

    own: Float64[np.ndarray, "r c"]
    effect: Float64[np.ndarray, "r c"]
    features: Float64[np.ndarray, "r f"]
    clock: Clock


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Steps:
    """Steps of windows: the first row of the series of each, its origin, and the steps after it, 0 for the first."""

    begin: Int64[np.ndarray, " n"]
    origin: Int64[np.ndarray, " n"]
    ahead: Int64[np.ndarray, " n"]

    def part(self, chosen: slice) -> "Steps":
        """Some of the steps."""
        return Steps(begin=self.begin[chosen], origin=self.origin[chosen], ahead=self.ahead[chosen])


@dataclass(frozen=True, kw_only=True, slots=True)
class InputPlan:
    """Which inputs there are; JSON values.

    Attributes:
        relative: Whether the change from a season before is forecast, not the level.
        longer: Steps of a longer season, such as a week; 0 for none.
        limit: Rows before an origin that are read at most.
        around: Pairs of a known feature and the distance of its row from the step.
        references: Known features whose value a season before is read too.
        past: Pairs of a feature of the past and the number of steps before the step.
    """

    season: int
    horizon: int
    relative: bool
    longer: int
    limit: int
    around: tuple[tuple[int, int], ...]
    references: tuple[int, ...]
    past: tuple[tuple[int, int], ...]

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, season: int, horizon: int) -> "InputPlan":
        """From JSON values; raises ValueError for features or steps that are none."""
        around = _pairs(state["around"])
        past = _pairs(state["past"])
        references = tuple(map(int, state["references"]))
        longer = int(state["longer"])
        limit = int(state["limit"])
        least = min([longer, limit, *references, *(place for place, _ in (*around, *past))])
        backs = [1, *(steps for _, steps in past)]
        if least < 0 or min(backs) < 1 or max(backs) > _PAST_STEPS:
            raise ArgumentError("inputs of trees", "be features and steps back", "others", "the file is damaged")
        return cls(
            season=season,
            horizon=horizon,
            relative=bool(state["relative"]),
            longer=longer,
            limit=limit,
            around=around,
            references=references,
            past=past,
        )

    @property
    def rows_read(self) -> int:
        """Rows before an origin that are read."""
        lags = [_RECENT, self.season * (_SEASONS[-1] + 1) + 1, self.longer, *(back for _, back in self.past)]
        return min(max(lags), self.limit)

    @property
    def names(self) -> tuple[int, ...]:
        """Of each input the feature that it is made of; -1 for others."""
        features = [place for place, _ in self.around]
        features += [*self.references, *(place for place, _ in self.past)]
        return (*[-1] * self._own_count, *features)

    @property
    def _own_count(self) -> int:
        # step, clock and column; values and a mean; a longer season; effects
        return 2 + PARTS + _RECENT + len(_SEASONS) + 2 + 1 + (2 if self.longer else 0) + 2

    def base(self, rows: StepRows, column: int, steps: Steps) -> Float64[np.ndarray, " n"]:
        """What forecasts are relative to: the value a season before each step, or the last one; 0 for levels."""
        own = rows.own[:, column]
        if not self.relative:
            return np.zeros(len(steps.ahead))
        last = _at(own, steps.origin - 1, steps)
        return _first_known(self._before(own, steps, self.season, 0), last, np.zeros(len(last)))

    def inputs(self, rows: StepRows, column: int, steps: Steps) -> Float64[np.ndarray, "n i"]:
        """Inputs of steps of a column."""
        step = steps.origin + steps.ahead
        own = rows.own[:, column]
        effect = rows.effect[:, column]
        base = self.base(rows, column, steps)
        inputs = [steps.ahead, *rows.clock[step].T, np.full(len(step), column)]
        inputs += [_at(own, steps.origin - back, steps) - base for back in range(1, _RECENT + 1)]
        inputs += [self._before(own, steps, self.season, seasons) - base for seasons in _SEASONS]
        inputs += [self._before(own, steps, self.season, 0, moved) - base for moved in (-1, 1)]
        inputs.append(_mean_before(own, steps.origin, self.season, steps) - base)
        if self.longer:
            inputs.append(self._before(own, steps, self.longer, 0) - base)
            inputs.append(_mean_before(own, steps.origin, self.longer, steps) - base)
        inputs += [effect[step], effect[step] - self._before(effect, steps, self.season, 0)]
        inputs += self._feature_inputs(rows, steps)
        return np.stack([np.asarray(part, dtype=np.float64) for part in inputs], axis=1)

    def _feature_inputs(self, rows: StepRows, steps: Steps) -> list[np.ndarray]:
        step = steps.origin + steps.ahead
        last = steps.origin + self.horizon - 1
        inputs = []
        for place, moved in self.around:
            values = _at(rows.features[:, place], np.minimum(step + moved, last), steps)
            inputs.append(np.where(step + moved <= last, values, np.nan))
        inputs += [self._before(rows.features[:, place], steps, self.season, 0) for place in self.references]
        for place, back in self.past:
            values = _at(rows.features[:, place], step - back, steps)
            inputs.append(np.where(step - back < steps.origin, values, np.nan))
        return inputs

    def _before(
        self, values: Float64[np.ndarray, " r"], steps: Steps, season: int, more: int, moved: int = 0
    ) -> Float64[np.ndarray, " n"]:
        """Values whole seasons before steps: the last ones before the origin, or `more` seasons before these."""
        seasons = steps.ahead // season + 1 + more
        row = steps.origin + steps.ahead - season * seasons + moved
        return np.where(row < steps.origin, _at(values, np.minimum(row, steps.origin - 1), steps), np.nan)


def plan_inputs(
    covariates: Covariates, *, season: int, horizon: int, relative: bool, limit: int, with_longer: bool
) -> InputPlan:
    """The inputs for these features.

    Args:
        relative: See `InputPlan`.
        limit: Rows before an origin that may be read.
        with_longer: Whether the rows are long enough for a season of seven seasons.
    """
    names = covariates.names
    past_count = covariates.past_count
    known = len(names) - past_count
    marks = [place for place in range(known) if names[place] == "calendar"]
    others = [place for place in range(known) if names[place] not in ("calendar", *covariates.static)]
    static = [place for place in range(known) if names[place] in covariates.static]
    moves = _AROUND if len(others) <= _FEW_FEATURES else _AROUND[:1]
    around = [(place, 0) for place in (*marks, *static)]
    around += [(place, moved) for place in others for moved in moves]
    # the level does not depend on the covariates a season before
    references = tuple(others) if relative and len(others) <= _FEW_FEATURES else ()
    past = []
    if past_count:
        back = min(max(season + 2, _LEAST_PAST_STEPS), _PAST_STEPS, max(1, _PAST_INPUTS // past_count))
        past = [(place, steps) for place in range(known, len(names)) for steps in range(1, back + 1)]
    longer = _LONGER * season if with_longer and season in _DAILY and _LONGER * season <= limit else 0
    return InputPlan(
        season=season,
        horizon=horizon,
        relative=relative,
        longer=longer,
        limit=limit,
        around=tuple(around),
        references=references,
        past=tuple(past),
    )


def _pairs(values: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(place), int(steps)) for place, steps in values)


def join_rows(parts: Sequence[StepRows]) -> StepRows:
    """Rows of series one after another."""
    return StepRows(
        own=np.concatenate([part.own for part in parts]),
        effect=np.concatenate([part.effect for part in parts]),
        features=np.concatenate([part.features for part in parts]),
        clock=np.concatenate([part.clock for part in parts]),
    )


def _at(values: Float64[np.ndarray, " r"], row: Int64[np.ndarray, " n"], steps: Steps) -> Float64[np.ndarray, " n"]:
    """Values at rows; NaN before the series of a step begins."""
    inside = row >= steps.begin
    return np.where(inside, values[np.where(inside, row, steps.begin)], np.nan)


def _mean_before(
    values: Float64[np.ndarray, " r"], end: Int64[np.ndarray, " n"], count: int, steps: Steps
) -> Float64[np.ndarray, " n"]:
    """Mean of the known values of at most `count` rows before a row; NaN without any."""
    exists = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(exists, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(exists)])
    first = np.maximum(end - count, steps.begin)
    number = counts[end] - counts[first]
    mean: np.ndarray = np.where(number > 0, (sums[end] - sums[first]) / np.maximum(number, 1), np.nan)
    return mean


def _first_known(*parts: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The first of several values that is no NaN."""
    values = parts[-1]
    for part in parts[-2::-1]:
        values = np.where(np.isfinite(part), part, values)
    return values
