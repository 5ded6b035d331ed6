"""Methods that see covariates: a baseline or a linear model of what their effect leaves, with the effect added again.

    fitted = RegressionMethod("theta + covariates").fit(training)
    fitted.forecast(histories)                                       # (N, P)

The effect is that of `toa.estimators.covariate_effects`, the same for all of these methods.

Alphabet: N one per window and column, W windows, C columns, S series, P horizon, F features, T rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from toa.data.panel import Panel
from toa.estimators.baselines import BASELINES, REGRESSIONS, History, LinearModel, align_histories
from toa.estimators.clock import clock_of
from toa.estimators.covariate_effects import CovariateEffect, FeatureShape
from toa.estimators.effort import Ceiling
from toa.estimators.lag_methods import (
    baseline_rows,
    forecast_in_blocks,
    history_rows,
    linear_lookbacks,
)
from toa.estimators.methods import Family, ForecastRows, Histories, Method, Training, to_rows
from toa.estimators.origins import align_series
from toa.estimators.settings import ForecastSettings

# strength of the ridge of the linear effect, per row
_RIDGE = 1e-3
# the linear model of what the effect leaves
LINEAR = "linear + covariates"


@dataclass(frozen=True, slots=True, eq=False)
class EffectParts:
    """Histories without the effect of the features, and the effect in the forecast steps.

    Attributes:
        panel: The panel whose columns are without the effect.
        later: Effect (W, P, C) in the steps of each window.
    """

    panel: Panel
    later: Float64[np.ndarray, "w p c"]


def split_effect(histories: Histories, effect: CovariateEffect, horizon: int, rows_read: int) -> EffectParts:
    """Take the effect of the features from the columns, in the last `rows_read` rows before each window."""
    panel = histories.panel
    scale = histories.scale
    assert panel is not None
    assert scale is not None
    clocks = clock_of(panel, horizon)
    effects = [np.zeros((rows, len(histories.columns))) for rows in panel.lengths]
    owners = np.array([index for index, _ in histories.places])
    stops = np.array([stop for _, stop in histories.places])
    for index in np.unique(owners).tolist():
        own_stops = stops[owners == index]
        reached = slice(max(0, int(own_stops.min()) - rows_read), int(own_stops.max()) + horizon)
        rows = histories.features[index]
        effects[index][reached] = effect.of(rows[reached], clocks[index][: len(rows)][reached]) * scale[index]
    if histories.ahead is None:
        later = [effects[index][stop : stop + horizon] for index, stop in histories.places]
    else:
        later = [
            effect.of(rows, clocks[index][stop:]) * scale[index]
            for rows, (index, stop) in zip(histories.ahead, histories.places, strict=True)
        ]
    return EffectParts(_without_effects(panel, histories.columns, effects), np.stack(later))


@dataclass(frozen=True, slots=True, eq=False)
class FittedRegression:
    """A baseline with the effect of the features.

    Attributes:
        linear: Linear effect (F, C) of the features, in scales, which shows the mean influence of each.
        effect: Effect that is used; None takes the linear one: in older files, and with too
            few rows for curves.
    """

    name: str
    linear: Float64[np.ndarray, "f c"]
    effect: CovariateEffect | None
    season: int
    horizon: int
    reads_panel: bool = True

    @property
    def rows_read(self) -> int:
        """Those of the baseline."""
        return baseline_rows(REGRESSIONS[self.name], self.season)

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        rows_read = history_rows(self.season, self.horizon)
        parts = split_effect(histories, self._used_effect, self.horizon, rows_read)
        history = align_histories(parts.panel.histories(histories.columns, histories.places, rows_read))
        plain = BASELINES[REGRESSIONS[self.name]](history, self.season, self.horizon)
        return plain + to_rows(parts.later)

    def refit(self, training: Training) -> "FittedRegression":
        """With the effect in these rows."""
        fitted: FittedRegression = replace(self, linear=fit_linear_effect(training), effect=training.effect)
        return fitted

    def used_features(self, count: int) -> Bool[np.ndarray, " f"]:
        """See `UsesCovariates`."""
        return self._used_effect.used(count)

    @property
    def _used_effect(self) -> CovariateEffect:
        return linear_effect(self.linear) if self.effect is None else self.effect


@dataclass(frozen=True, slots=True)
class RegressionMethod:
    """A baseline with covariates."""

    name: str

    def fit(self, training: Training) -> FittedRegression:
        """See `Method`."""
        linear = fit_linear_effect(training)
        return FittedRegression(self.name, linear, training.effect, training.season, training.horizon)

    def seconds(self, ceiling: Ceiling) -> None:
        """It takes little time, which is not limited."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedLinearRegression:
    """A linear model on lags of what the effect of the features leaves."""

    model: LinearModel
    effect: CovariateEffect
    horizon: int
    reads_panel: bool = True

    @property
    def rows_read(self) -> int:
        """The look-back."""
        return len(self.model.weights) - 1

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        parts = split_effect(histories, self.effect, self.horizon, self.rows_read)
        history = parts.panel.histories(histories.columns, histories.places, self.rows_read)
        return forecast_in_blocks(self.model.predict, history, self.rows_read) + to_rows(parts.later)

    def refit(self, training: Training) -> "FittedLinearRegression | None":
        """Fitted to these rows."""
        return LinearRegressionMethod().fit(training)

    def used_features(self, count: int) -> Bool[np.ndarray, " f"]:
        """See `UsesCovariates`."""
        return self.effect.used(count)


@dataclass(frozen=True, slots=True)
class LinearRegressionMethod:
    """The linear model with the longest look-back on what the effect of the features leaves."""

    def fit(self, training: Training) -> FittedLinearRegression | None:
        """See `Method`."""
        if training.effect is None:
            return None
        model = LinearModel.fit(
            history_without_effect(training),
            lookback=linear_lookbacks(training.season, training.horizon)[-1],
            season=training.season,
            horizon=training.horizon,
            seed=training.seed,
            windows=training.effort.linear_windows,
        )
        return None if model is None else FittedLinearRegression(model, training.effect, training.horizon)

    def seconds(self, ceiling: Ceiling) -> float:
        """The time so far: all methods are fitted again, to all rows."""
        return ceiling.passed


class Regressions(Family):
    """Baselines and a linear model with covariates, where some are known in advance.

    `toa.estimators.forecast_files` holds the baselines.
    """

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """One method per baseline that can have covariates, and the linear model."""
        if not settings.has_known_features:
            return {}
        methods: dict[str, Method] = {name: RegressionMethod(name) for name in REGRESSIONS}
        return {**methods, LINEAR: LinearRegressionMethod()}

    def save(self, fitted: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Weights of the linear model and of the effect."""
        method = fitted.get(LINEAR)
        if method is None:
            return {}, None
        tensors = {
            "weights": torch.from_numpy(method.model.weights),
            "effect": torch.from_numpy(method.effect.weights.copy()),
        }
        return tensors, {"by_season": method.model.by_season, "effect": method.effect.state()}

    def load(
        self, tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int
    ) -> Mapping[str, FittedLinearRegression]:
        """From the result of `save`."""
        weights = tensors["weights"].double().cpu().numpy()
        model = LinearModel(weights=weights, season=season, by_season=bool(facts["by_season"]))
        effect = CovariateEffect.from_state(facts["effect"], tensors["effect"].double().cpu().numpy())
        return {LINEAR: FittedLinearRegression(model, effect, horizon)}


def history_without_effect(training: Training) -> History:
    """Each column of each series (N, T) without the effect of the features."""
    panel = training.panel
    effect = training.effect
    assert panel is not None
    assert effect is not None
    assert training.scale is not None
    rows = zip(training.features, clock_of(panel, 0), training.scale, strict=True)
    effects = [effect.of(features, clock) * unit for features, clock, unit in rows]
    return align_series(_without_effects(panel, training.columns, effects).histories(training.columns))


def linear_effect(weights: Float64[np.ndarray, "f c"]) -> CovariateEffect:
    """An effect that is linear in each feature, without limits."""
    shapes = tuple(
        FeatureShape(place=place, levels=(), knots=(), low=-np.inf, high=np.inf, by_group=False)
        for place in range(len(weights))
    )
    return CovariateEffect(shapes=shapes, groups=1, by_week=False, weights=weights)


def fit_linear_effect(training: Training) -> Float64[np.ndarray, "f c"]:
    """Linear effect of the features on the columns, in scales.

    Differences over a season are regressed, so that trend and season are no effect.
    """
    panel = training.panel
    columns = training.columns
    season = training.season
    assert panel is not None
    assert training.scale is not None
    # (C, S) rows of each column from its first value on
    lengths = np.reshape([len(part) for part in panel.histories(columns)], (len(panel), -1)).T
    x = []
    y = []
    for features, values, unit in zip(training.features, panel.take(columns), training.scale, strict=True):
        x.append(features[season:] - features[:-season])
        y.append((values[season:] - values[:-season]) / unit)
    count = training.features[0].shape[1]
    # the model does not know the last features in advance
    for part in x:
        part[:, count - training.past_features :] = 0.0
    effect = np.empty((count, len(columns)))
    for rows in np.unique(lengths, axis=0):
        chosen = (lengths == rows).all(1)
        # without the differences of rows before the column begins
        begins = [len(part) - max(0, length - season) for part, length in zip(x, rows.tolist(), strict=True)]
        left = np.concatenate([part[begin:] for part, begin in zip(x, begins, strict=True)])
        right = np.concatenate([part[begin:] for part, begin in zip(y, begins, strict=True)])
        ridge = max(1.0, _RIDGE * len(left)) * np.eye(count)
        effect[:, chosen] = np.linalg.solve(left.T @ left + ridge, left.T @ right[:, chosen])
    return effect


def _without_effects(panel: Panel, columns: Sequence[str], effects: Sequence[np.ndarray]) -> Panel:
    """The columns without the effects (T, C) of the features."""
    plain = tuple(values - effect for values, effect in zip(panel.take(columns), effects, strict=True))
    return panel.with_columns(columns, plain)
