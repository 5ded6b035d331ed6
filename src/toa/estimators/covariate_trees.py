"""Boosted trees on lags and covariates: one model for all steps of the horizon, series and columns.

    fitted = CovariateTreeMethod().fit(training)      # None with too few rows
    fitted.forecast(histories)                        # (N, P)

The trees forecast what the effect of the covariates and the value a season before the step leave, in the scale of the
series; those "by level" the value itself. They read covariates around the step, values before the origin, the hour and
the day, so that they find what acts together. Covariates that are known only in the past are read up to the origin.

Alphabet: N one per window and column, W windows, R rows of a window, C columns, S series, P horizon, F features.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from toa.data.panel import Panel
from toa.estimators.boosting import USUAL_TREES, grow_trees, sum_of_trees, tree_tensors, trees_from_tensors
from toa.estimators.clock import PARTS, clock_of
from toa.estimators.covariate_effects import CovariateEffect
from toa.estimators.covariate_inputs import InputPlan, StepRows, Steps, join_rows, plan_inputs
from toa.estimators.effort import Ceiling
from toa.estimators.files import tensors_under
from toa.estimators.lag_methods import history_rows
from toa.estimators.methods import Family, ForecastRows, Histories, Method, Training
from toa.estimators.settings import ForecastSettings
from toa.estimators.trees import Trees

# how the methods are named among the weights
COVARIATE_TREES = "boosting + covariates"
LEVEL_TREES = "boosting + covariates by level"
# how their tensors are named
_KEYS = {COVARIATE_TREES: "change", LEVEL_TREES: "level"}
# steps of windows that trees are fitted to, for each window that trees on lags are fitted to
_STEPS_PER_WINDOW = 3
# trees times steps of a horizon, at most: long horizons have fewer trees
_TREES_TIMES_STEPS = 12_000
# longest horizon
_LONGEST = 240
# fewest steps to fit to
_FEWEST_STEPS = 60
# share of the inputs that a split may choose from
_SHARE = 0.5
# seasons of rows from which on there is a longer season
_LONGER_FROM = 21
# numbers of windows that are forecast together
_TOGETHER_VALUES = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class FittedCovariateTrees:
    """Fitted trees.

    Attributes:
        start: Forecast without trees.
        effect: Effect of the features that is taken from the values; None for none.
    """

    plan: InputPlan
    start: float
    trees: Trees
    effect: CovariateEffect | None
    reads_panel: bool = True

    @property
    def rows_read(self) -> int:
        """Those of the inputs."""
        return self.plan.rows_read

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        panel = histories.panel
        assert panel is not None
        columns = histories.columns
        horizon = self.plan.horizon
        clocks = clock_of(panel, horizon)
        width = self.rows_read + horizon
        size = max(1, _TOGETHER_VALUES // (width * (len(columns) + histories.features[0].shape[1])))
        parts = []
        for start in range(0, len(histories.places), size):
            chosen = slice(start, start + size)
            parts.append(self._forecast_windows(histories, panel, clocks, chosen))
        return np.concatenate(parts)

    def _forecast_windows(
        self, histories: Histories, panel: Panel, clocks: list[np.ndarray], chosen: slice
    ) -> Float64[np.ndarray, "n p"]:
        """Forecasts of some of the windows, one row per window and column."""
        assert histories.scale is not None
        places = list(histories.places)[chosen]
        columns = histories.columns
        read = self.rows_read
        horizon = self.plan.horizon
        units = np.stack([histories.scale[index] for index, _ in places])  # (W, C)
        features = _feature_windows(histories, places, chosen, read, horizon)  # (W, R + P, F)
        steps_of = np.arange(-read, horizon)
        clock = np.stack([clocks[index][(stop + steps_of).clip(0)] for index, stop in places])
        values = np.stack(panel.past(columns, places, read)) / units[:, None]  # (W, R, C)
        own = np.concatenate([values, np.full((len(places), horizon, len(columns)), np.nan)], axis=1)
        width = read + horizon
        effect = np.zeros(own.shape)
        if self.effect is not None:
            flat = self.effect.of(features.reshape(-1, features.shape[2]), clock.reshape(-1, PARTS))
            effect = flat.reshape(own.shape)
        own -= effect
        for window, (index, stop) in enumerate(places):
            for column, begin in enumerate(_begins(panel, columns, index).tolist()):
                # a late column, not one that begins at the first row of the series
                if begin > max(0, stop - read):
                    own[window, : max(0, begin - (stop - read)), column] = np.nan
        rows = StepRows(
            own=own.reshape(-1, len(columns)),
            effect=effect.reshape(-1, len(columns)),
            features=_hide_past(features, self.plan, read).reshape(-1, features.shape[2]),
            clock=clock.reshape(-1, PARTS),
        )
        first = width * np.arange(len(places))
        shorter = np.array([max(0, read - stop) for _, stop in places])
        steps = Steps(
            begin=np.repeat(first + shorter, horizon),
            origin=np.repeat(first + read, horizon),
            ahead=np.tile(np.arange(horizon), len(places)),
        )
        forecast = np.empty((len(places), len(columns), horizon))
        for column in range(len(columns)):
            scaled = self._forecast_steps(rows, column, steps).reshape(-1, horizon)
            forecast[:, column] = scaled * units[:, column, None]
        return forecast.reshape(-1, horizon)

    def _forecast_steps(self, rows: StepRows, column: int, steps: Steps) -> Float64[np.ndarray, " n"]:
        """Forecasts of steps in scales."""
        change = sum_of_trees(self.start, self.trees, self.plan.inputs(rows, column, steps))
        return self.plan.base(rows, column, steps) + rows.effect[steps.origin + steps.ahead, column] + change

    def refit(self, training: Training) -> "FittedCovariateTrees | None":
        """Fitted to these rows."""
        return CovariateTreeMethod(by_level=not self.plan.relative).fit(training)

    def used_features(self, count: int) -> Bool[np.ndarray, " f"]:
        """See `UsesCovariates`."""
        used = np.zeros(count, dtype=bool) if self.effect is None else self.effect.used(count)
        inner = self.trees.left != np.arange(len(self.trees.left))
        places = np.array(self.plan.names)[np.unique(self.trees.feature[inner])]
        used[places[places >= 0]] = True
        return used


@dataclass(frozen=True, slots=True)
class CovariateTreeMethod:
    """Trees on lags and covariates; `by_level` forecasts levels, not what an effect and the last season leave."""

    by_level: bool = False

    def fit(self, training: Training) -> FittedCovariateTrees | None:
        """See `Method`."""
        panel = training.panel
        covariates = training.covariates
        assert panel is not None
        assert covariates is not None
        if self.by_level:
            # trees that forecast levels find the whole effect
            training = replace(training, effect=None)
        longest = max(panel.lengths)
        plan = plan_inputs(
            covariates,
            season=training.season,
            horizon=training.horizon,
            relative=not self.by_level,
            limit=history_rows(training.season, training.horizon),
            with_longer=longest >= _LONGER_FROM * training.season,
        )
        rows, begins, stops = _training_rows(training)
        drawn = _draw_steps(plan, training, begins, stops)
        if drawn is None:
            return None
        columns, steps = drawn
        inputs = []
        targets = []
        for column in np.unique(columns).tolist():
            chosen = columns == column
            part = Steps(begin=steps.begin[chosen], origin=steps.origin[chosen], ahead=steps.ahead[chosen])
            step = part.origin + part.ahead
            inputs.append(plan.inputs(rows, column, part))
            targets.append(rows.own[step, column] - plan.base(rows, column, part))
        target = np.concatenate(targets)
        usable = np.isfinite(target)
        if usable.sum() < _FEWEST_STEPS:
            return None
        count = min(training.effort.trees, USUAL_TREES, max(1, _TREES_TIMES_STEPS // training.horizon))
        table = np.concatenate(inputs)[usable]
        start, trees = grow_trees(table, target[usable], seed=training.seed, trees=count, share=_SHARE)
        return FittedCovariateTrees(plan, start, trees, training.effect)

    def seconds(self, ceiling: Ceiling) -> float:
        """Twice the time so far, a cautious estimate."""
        return 2.0 * ceiling.passed


class CovariateTrees(Family):
    """Two methods, where there are covariates and the horizon is not very long."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """The methods, or none."""
        if not settings.has_features or settings.horizon > _LONGEST or not settings.effort.tree_windows:
            return {}
        return {COVARIATE_TREES: CovariateTreeMethod(), LEVEL_TREES: CovariateTreeMethod(by_level=True)}

    def save(self, fitted: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Arrays of the trees, the inputs, and the effect."""
        tensors: dict[str, Tensor] = {}
        facts: dict[str, Any] = {}
        for name, key in _KEYS.items():
            method = fitted.get(name)
            if method is None:
                continue
            tensors |= {f"{key}.{part}": tensor for part, tensor in tree_tensors(method.trees).items()}
            facts[name] = {"plan": asdict(method.plan), "start": method.start}
            if method.effect is not None:
                tensors[f"{key}.effect"] = torch.from_numpy(method.effect.weights.copy())
                facts[name]["effect"] = method.effect.state()
        return tensors, facts or None

    def load(
        self, tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int
    ) -> Mapping[str, FittedCovariateTrees]:
        """From the result of `save`."""
        return {
            name: _load_trees(tensors_under(tensors, f"{_KEYS[name]}."), state, season, horizon)
            for name, state in facts.items()
        }


def _load_trees(tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int) -> FittedCovariateTrees:
    plan = InputPlan.from_state(facts["plan"], season=season, horizon=horizon)
    trees = trees_from_tensors(tensors, len(plan.names))
    effect = None
    if "effect" in facts:
        effect = CovariateEffect.from_state(facts["effect"], tensors["effect"].double().cpu().numpy())
    return FittedCovariateTrees(plan, float(facts["start"]), trees, effect)


def _training_rows(training: Training) -> tuple[StepRows, list[np.ndarray], list[int]]:
    """Rows of all series one after another; of each series the first row (C,) of its columns, and the row after it."""
    panel = training.panel
    assert panel is not None
    assert training.scale is not None
    clocks = clock_of(panel, 0)
    parts = []
    begins = []
    stops = []
    start = 0
    for index, values in enumerate(panel.take(training.columns)):
        features = training.features[index]
        effect = np.zeros(values.shape)
        if training.effect is not None:
            effect = training.effect.of(features, clocks[index])
        begin = _begins(panel, training.columns, index)
        own = values / training.scale[index] - effect
        own = np.where(np.arange(len(values))[:, None] >= begin, own, np.nan)
        parts.append(StepRows(own=own, effect=effect, features=features, clock=clocks[index]))
        begins.append(start + begin)
        start += len(values)
        stops.append(start)
    return join_rows(parts), begins, stops


def _draw_steps(
    plan: InputPlan, training: Training, begins: list[np.ndarray], stops: list[int]
) -> tuple[Int64[np.ndarray, " n"], Steps] | None:
    """Column of each of some steps of windows, drawn evenly, and these steps; None without any."""
    horizon = plan.horizon
    starts = [0, *stops[:-1]]
    firsts = []
    counts = []
    for begin, start, stop in zip(begins, starts, stops, strict=True):
        # a short series has windows with fewer lags
        before = min(plan.rows_read, plan.season + 1, max(2, (stop - start) // 4))
        first = begin + before
        firsts.append(first)
        counts.append(np.maximum(0, stop - horizon + 1 - first))
    count = np.concatenate(counts) * horizon  # one per series and column
    total = int(count.sum())
    if total < _FEWEST_STEPS:
        return None
    most = _STEPS_PER_WINDOW * training.effort.tree_windows
    chosen = np.arange(total)
    if total > most:
        chosen = np.sort(np.random.default_rng(training.seed).choice(total, most, replace=False))
    ends = np.cumsum(count)
    owner = np.searchsorted(ends, chosen, side="right")
    place = chosen - (ends - count)[owner]
    width = len(training.columns)
    origin = np.concatenate(firsts)[owner] + place // horizon
    begin = np.maximum(np.array(starts)[owner // width], origin - plan.rows_read)
    return owner % width, Steps(begin=begin, origin=origin, ahead=place % horizon)


def _feature_windows(
    histories: Histories, places: list[tuple[int, int]], chosen: slice, read: int, horizon: int
) -> Float64[np.ndarray, "w t f"]:
    """Features of the rows and steps of windows, as they were known at the origins."""
    before = np.arange(-read, 0)
    past = np.stack([histories.features[index][(stop + before).clip(0)] for index, stop in places])
    if histories.ahead is None:
        later = np.stack([histories.features[index][stop : stop + horizon] for index, stop in places])
    else:
        later = np.stack(list(histories.ahead)[chosen])
    windows = np.concatenate([past, later], axis=1)
    assert histories.covariates is not None
    assert histories.panel is not None
    return histories.covariates.hold(windows, histories.features, histories.panel, places, read)


def _hide_past(features: Float64[np.ndarray, "w t f"], plan: InputPlan, read: int) -> Float64[np.ndarray, "w t f"]:
    """The windows, NaN in the steps of features that are known only in the past."""
    hidden = sorted({place for place, _ in plan.past})
    if not hidden:
        return features
    windows = features.copy()
    windows[:, read:, hidden] = np.nan
    return windows


def _begins(panel: Panel, columns: tuple[str, ...], index: int) -> Int64[np.ndarray, " c"]:
    """First row of each column of a series."""
    if panel.begins is None:
        return np.zeros(len(columns), dtype=np.int64)
    begins: np.ndarray = panel.begins[index][[panel.columns.index(name) for name in columns]]
    return begins
