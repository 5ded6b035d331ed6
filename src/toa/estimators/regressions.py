"""Methods that see covariates: a baseline of what their linear effect leaves, with the effect added again.

    fitted = RegressionMethod("theta + covariates").fit(training)
    fitted.forecast(histories)                                       # (N, P)

Alphabet: N one per window and column, W windows, C columns, S series, P horizon, F features, T rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from toa.data.panel import Panel
from toa.estimators.baselines import BASELINES, REGRESSIONS, align_histories
from toa.estimators.effort import Ceiling
from toa.estimators.lag_methods import baseline_rows, history_rows
from toa.estimators.methods import Family, ForecastRows, Histories, Method, Training, to_rows
from toa.estimators.settings import ForecastSettings

# strength of the ridge of the effect, per row
_RIDGE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class FittedRegression:
    """A baseline with the effect (F, C) of the features, in scales."""

    name: str
    effect: Float64[np.ndarray, "f c"]
    season: int
    horizon: int
    reads_panel: bool = True

    @property
    def rows_read(self) -> int:
        """Those of the baseline."""
        return baseline_rows(REGRESSIONS[self.name], self.season)

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        panel = histories.panel
        scale = histories.scale
        assert panel is not None
        assert scale is not None
        effects = [rows @ self.effect * unit for rows, unit in zip(histories.features, scale, strict=True)]
        without = _without_effects(panel, histories.columns, effects)
        rows_read = history_rows(self.season, self.horizon)
        history = align_histories(without.histories(histories.columns, histories.places, rows_read))
        if histories.ahead is None:
            later = np.stack([effects[index][stop : stop + self.horizon] for index, stop in histories.places])
        else:
            pairs = zip(histories.ahead, histories.places, strict=True)
            later = np.stack([rows @ self.effect * scale[index] for rows, (index, _) in pairs])  # (W, P, C)
        plain = BASELINES[REGRESSIONS[self.name]](history, self.season, self.horizon)
        return plain + to_rows(later)

    def refit(self, training: Training) -> "FittedRegression":
        """With the effect in these rows."""
        fitted: FittedRegression = replace(self, effect=fit_effect(training))
        return fitted


@dataclass(frozen=True, slots=True)
class RegressionMethod:
    """A baseline with covariates."""

    name: str

    def fit(self, training: Training) -> FittedRegression:
        """See `Method`."""
        return FittedRegression(self.name, fit_effect(training), training.season, training.horizon)

    def seconds(self, ceiling: Ceiling) -> None:
        """It takes little time, which is not limited."""


class Regressions(Family):
    """Baselines with covariates, where some are known in advance."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """One method per baseline that can have covariates."""
        return {name: RegressionMethod(name) for name in REGRESSIONS} if settings.has_known_features else {}


def fit_effect(training: Training) -> Float64[np.ndarray, "f c"]:
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
