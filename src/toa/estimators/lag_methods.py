"""Methods that read the past values of one column: baselines, linear models on lags, boosted trees on lags.

    FittedBaseline("theta", season=12, horizon=6).forecast(Histories(values=series))    # (N, P)
    LinearMethod(lookback=36, by_season=True).fit(training).forecast(histories)

Alphabet: N histories, P horizon, T rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toa.estimators.baselines import BASELINES, LinearModel, align_histories, seasonal_naive
from toa.estimators.boosting import MOST_LAGS, USUAL_TREES, BoostedTrees
from toa.estimators.effort import Ceiling
from toa.estimators.methods import Family, ForecastRows, Histories, Method, Training
from toa.estimators.origins import LOCAL_ROWS, MOST_VALUES, SeriesList
from toa.estimators.settings import ForecastSettings

# rows that methods of a single series read at most
_MOST_ROWS = 4_320
# values that trees forecast after at a time: each step copies them several times
_TREE_VALUES = 4_000_000
# how the second kind of linear models is named
_BY_LEVEL = " by level"
# how the boosted trees are named
TREES = "boosting"
# longest horizon that trees forecast, one step after another
_TREE_STEPS = 60
# time of the trees and of all fits that follow, in times that have passed when the trees begin: they take as long as
# the methods before them, and then both are fitted again
_TREE_TIME = 3.0


@dataclass(frozen=True, slots=True)
class FittedBaseline:
    """A baseline of `toa.estimators.baselines.BASELINES`, which has nothing to fit."""

    name: str
    season: int
    horizon: int
    reads_panel: bool = False

    @property
    def rows_read(self) -> int:
        """See `FittedMethod`."""
        return baseline_rows(self.name, self.season)

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        baseline = partial(BASELINES[self.name], season=self.season, horizon=self.horizon)
        return forecast_in_blocks(baseline, histories.values, local_rows(self.season))

    def refit(self, training: Training) -> "FittedBaseline":
        """The same baseline."""
        return self


@dataclass(frozen=True, slots=True)
class BaselineMethod:
    """A baseline before the season and the horizon are known."""

    name: str

    def fit(self, training: Training) -> FittedBaseline:
        """See `Method`."""
        return FittedBaseline(self.name, training.season, training.horizon)

    def seconds(self, ceiling: Ceiling) -> float:
        """The time so far: all methods are fitted again, to all rows."""
        return ceiling.passed


class Baselines(Family):
    """All baselines."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """One method per baseline."""
        return {name: BaselineMethod(name) for name in BASELINES}


@dataclass(frozen=True, slots=True)
class LinearMethod:
    """A linear model on a number of lags, see `LinearModel`."""

    lookback: int
    by_season: bool

    def fit(self, training: Training) -> "FittedLinear | None":
        """See `Method`."""
        model = LinearModel.fit(
            training.history,
            lookback=self.lookback,
            season=training.season,
            horizon=training.horizon,
            by_season=self.by_season,
            seed=training.seed,
            windows=training.effort.linear_windows,
        )
        return None if model is None else FittedLinear(model)

    def seconds(self, ceiling: Ceiling) -> float:
        """The time so far: all methods are fitted again, to all rows."""
        return ceiling.passed


@dataclass(frozen=True, slots=True)
class FittedLinear:
    """A fitted linear model."""

    model: LinearModel
    reads_panel: bool = False

    @property
    def rows_read(self) -> int:
        """The look-back."""
        return len(self.model.weights) - 1

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        return forecast_in_blocks(self.model.predict, histories.values, self.rows_read)

    def refit(self, training: Training) -> "FittedLinear | None":
        """Fitted to these rows."""
        return LinearMethod(self.rows_read, self.model.by_season).fit(training)


class LinearModels(Family):
    """Linear models on several numbers of lags, each with two kinds of scales."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """Two methods per look-back."""
        methods: dict[str, Method] = {}
        for lookback in linear_lookbacks(season, settings.horizon):
            methods[f"linear {lookback}"] = LinearMethod(lookback, by_season=True)
            methods[f"linear {lookback}{_BY_LEVEL}"] = LinearMethod(lookback, by_season=False)
        return methods

    def save(self, fitted: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Weights, and per model its season and scale."""
        models = {name: method.model for name, method in fitted.items() if isinstance(method, FittedLinear)}
        facts = {name: {"season": model.season, "by_season": model.by_season} for name, model in models.items()}
        return {name: torch.from_numpy(model.weights) for name, model in models.items()}, facts

    def load(self, tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int) -> Mapping[str, FittedLinear]:
        """From the result of `save`."""
        return {
            name: FittedLinear(LinearModel(weights=tensors[name].double().cpu().numpy(), **state))
            for name, state in facts.items()
        }


@dataclass(frozen=True, slots=True)
class TreeMethod:
    """Boosted trees on the longest look-back of the linear models."""

    def fit(self, training: Training) -> "FittedTrees | None":
        """See `Method`."""
        trees = fit_trees(
            training.history,
            training.season,
            training.horizon,
            seed=training.seed,
            windows=training.effort.tree_windows,
            trees=training.effort.trees,
        )
        return None if trees is None else FittedTrees(trees, training.horizon)

    def seconds(self, ceiling: Ceiling) -> float:
        """Three times the time so far: trees may begin in the first quarter of the time."""
        return _TREE_TIME * ceiling.passed


@dataclass(frozen=True, slots=True)
class FittedTrees:
    """Fitted trees."""

    trees: BoostedTrees
    horizon: int
    reads_panel: bool = False

    @property
    def rows_read(self) -> int:
        """The lags, and the value a season before."""
        return max(self.trees.lags, self.trees.season)

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        predict = partial(self.trees.predict, horizon=self.horizon)
        return forecast_in_blocks(predict, histories.values, MOST_LAGS, _TREE_VALUES)

    def refit(self, training: Training) -> "FittedTrees | None":
        """Fitted to these rows."""
        return TreeMethod().fit(training)


class Trees(Family):
    """Boosted trees, for horizons that are not long."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """One method, or none."""
        if settings.horizon > _TREE_STEPS or not settings.effort.tree_windows:
            return {}
        return {TREES: TreeMethod()}

    def save(self, fitted: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Arrays of the trees."""
        method = fitted.get(TREES)
        return ({}, None) if method is None else method.trees.state()

    def load(self, tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int) -> Mapping[str, FittedTrees]:
        """From the result of `save`."""
        return {TREES: FittedTrees(BoostedTrees.from_state(tensors, facts, season), horizon)}


def forecast_in_blocks(
    predict: Callable[[np.ndarray], np.ndarray], histories: SeriesList, rows: int, values: int = MOST_VALUES
) -> ForecastRows:
    """Forecasts (N, P) after the last `rows` of the histories, in blocks of at most this number of values."""
    size = max(1, values // rows)
    blocks = [histories[start : start + size] for start in range(0, len(histories), size)]
    return np.concatenate([predict(align_histories(block, rows)) for block in blocks])


def linear_lookbacks(season: int, horizon: int) -> tuple[int, ...]:
    """Look-backs of the linear models: two, three and many seasons, at least the horizon, at most 720 rows."""
    # many seasons: four years of months or quarters; else 14, such as two weeks of hours
    many = min(max(14 * season, 104), 720)
    if season in (4, 12):
        many = 4 * season
    few = max(2 * season, horizon, 4)
    middle = max(3 * season, 2 * horizon)
    return tuple(sorted({min(rows, MOST_LAGS) for rows in (few, middle, max(many, horizon))}))


def history_rows(season: int, horizon: int) -> int:
    """Rows that the methods read at most."""
    return max((local_rows(season), *linear_lookbacks(season, horizon)))


def baseline_rows(name: str, season: int) -> int:
    """Rows that a baseline reads: the last season, or all that baselines read."""
    return season if BASELINES[name] is seasonal_naive else local_rows(season)


def local_rows(season: int) -> int:
    """Rows that baselines read at most."""
    return max(LOCAL_ROWS, min(8 * season, _MOST_ROWS))


def fit_trees(
    history: np.ndarray,
    season: int,
    horizon: int,
    *,
    seed: int = 2024,
    windows: int | None = None,
    trees: int = USUAL_TREES,
) -> BoostedTrees | None:
    """Trees on the longest look-back of the linear models; None if no series is long enough."""
    lookback = linear_lookbacks(season, horizon)[-1]
    return BoostedTrees.fit(history, season=season, lookback=lookback, seed=seed, windows=windows, trees=trees)
