"""A fitted forecaster: a frozen value that forecasts windows of a panel.

    fitted = fit_forecaster(panel, columns, settings, ceiling)    # in toa.estimators.fitting
    fitted.forecast(panel, places)                                # a Prediction in the units of the data
    fitted.with_new_series(panel, stops)                          # also for series that fit has not seen

Alphabet: P horizon, C columns, F features, W windows, S series.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from toa.data.continuation import continue_panel
from toa.data.frames import write_forecast
from toa.data.frequency import Frequency
from toa.data.panel import Panel
from toa.estimators.architecture import NETWORK, NO_NETWORK
from toa.estimators.baselines import BASELINES, align_histories
from toa.estimators.calibrated import Choice
from toa.estimators.context import ContextRows
from toa.estimators.covariate_effects import CovariateEffect
from toa.estimators.lag_methods import history_rows
from toa.estimators.methods import FittedMethod, ForecastRows, Histories, to_rows
from toa.estimators.network import FittedNetwork, Inputs, fit_scaler
from toa.estimators.origins import series_scale
from toa.estimators.regressions import FittedRegression
from toa.estimators.special_baselines import SPECIAL_BASELINES
from toa.estimators.units import Prediction, check_forecast, join_batches

# windows that are combined together: bounds the memory of their histories
WINDOWS = 2_000
# the same in windows times columns
HISTORIES = 40_000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedForecaster:
    """All that a forecast needs. The network alone has no choice; weighted methods may have no network.

    Attributes:
        quantiles: Levels to return.
        interval: Probability of the interval that was asked for; None for none.
        day_first: Whether the day comes first in dates.
        season: Steps of the season.
        network: The network, with or without a weight; None for none.
        choice: Weights, intervals and the methods that read past values alone; None for the network alone.
        panel_methods: The other methods that read the panel, such as those with covariates.
        truncated: Methods that the time limit left out.
        unused: Covariates that no method with a weight uses, and by how much the error at the rolling origins would
            change with each, as a share; None if that was not measured.
        context: Rows that each series had where it was validated; None in older files.
        tail: The last rows of each series, at most `rows_kept`; None after loading, because files hold no rows.
    """

    horizon: int
    quantiles: tuple[float, ...]
    interval: float | None
    freq: Frequency | None
    time_column: str | None
    id_column: str | None
    day_first: bool | None
    season: int
    inputs: Inputs
    network: FittedNetwork | None
    choice: Choice | None
    panel_methods: Mapping[str, FittedMethod] = field(default_factory=dict)
    truncated: tuple[str, ...] = ()
    unused: Mapping[str, float | None] = field(default_factory=dict)
    context: ContextRows | None = None
    tail: Panel | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to forecast."""
        return self.inputs.columns

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each method in the forecast; the name of the network is "toa"."""
        return {NETWORK: 1.0} if self.choice is None else dict(self.choice.ensemble.weights)

    @property
    def effect(self) -> np.ndarray | None:
        """Linear effect (F, C) of the features, in scales; None without methods with covariates."""
        effects = [method.linear for method in self.panel_methods.values() if isinstance(method, FittedRegression)]
        return effects[0] if effects else None

    @property
    def covariate_effect(self) -> CovariateEffect | None:
        """Effect of the features that the methods with covariates use; None without such methods."""
        effects = [method.effect for method in self.panel_methods.values() if isinstance(method, FittedRegression)]
        return effects[0] if effects else None

    @property
    def architecture(self) -> Mapping[str, Any]:
        """Backbone, attention and settings of the network."""
        return NO_NETWORK if self.network is None else self.network.architecture

    @property
    def rows_kept(self) -> int:
        """Rows of each series that are kept: those that a forecast or a baseline alone reads."""
        return max(self.inputs.lookback, history_rows(self.season, self.horizon))

    @property
    def rows_read(self) -> int:
        """Rows of each series that a forecast reads: those of the methods with a weight, and of the intervals."""
        if self.choice is None:
            return self.inputs.lookback
        rows = [self.choice.rows_read]
        rows += [method.rows_read for name, method in self.panel_methods.items() if name in self.weights]
        if NETWORK in self.weights:
            rows.append(self.inputs.lookback)
        return max(rows)

    def require_network(self) -> FittedNetwork:
        """The network of a forecaster that has one."""
        assert self.network is not None
        return self.network

    def forecast(
        self,
        panel: Panel,
        places: Sequence[tuple[int, int]],
        network: Prediction | None = None,
        ahead: Sequence[np.ndarray] | None = None,
        *,
        most_windows: int | None = None,
    ) -> Prediction:
        """Forecasts of windows: series of the panel, each with its first row to forecast.

        Args:
            network: Those of the network, if they were computed before.
            ahead: Features (P, F) of the forecast steps of each window; None takes those of the panel.
            most_windows: Windows that are combined together; None chooses by the number of columns.
        """
        if network is None and NETWORK in self.weights:
            network = self.require_network().predict(panel, places)
        if self.choice is None:
            assert network is not None
            return network
        size = most_windows or windows_together(len(self.columns))
        owners = self.inputs.owners(panel)[[index for index, _ in places]]
        parts = []
        features = self._features(panel)
        for start in range(0, len(places), size):
            piece = slice(start, start + size)
            others = {} if network is None else {NETWORK: to_rows(network["forecast"][piece].numpy())}
            others |= self.forecast_panel(panel, places[piece], None if ahead is None else ahead[piece], features)
            histories = panel.histories(self.columns, places[piece], history_rows(self.season, self.horizon))
            parts.append(self.choice.combine(histories, others, owners[piece]))
        return join_batches(parts)

    def forecast_panel(
        self,
        panel: Panel,
        places: Sequence[tuple[int, int]],
        ahead: Sequence[np.ndarray] | None = None,
        features: Sequence[np.ndarray] | None = None,
    ) -> dict[str, ForecastRows]:
        """Forecasts (N, P) of the methods that read the panel, by name.

        `features` are those of the rows of the panel, if they were computed before.
        """
        if not self.panel_methods or self.choice is None:
            return {}
        histories = Histories(
            values=(),
            panel=panel,
            columns=self.columns,
            places=places,
            scale=self.choice.scale[self.inputs.owners(panel).numpy()],
            features=self._features(panel) if features is None else features,
            ahead=ahead,
            covariates=self.inputs.covariates,
        )
        return {name: method.forecast(histories) for name, method in self.panel_methods.items()}

    def _features(self, panel: Panel) -> Sequence[np.ndarray]:
        """Features of the rows of the panel, for the methods that read them."""
        return (self.inputs.covariates.past(panel) or ()) if self.panel_methods else ()

    def with_rows(self, rows: Panel) -> "FittedForecaster":
        """The same after the last of these rows, without a fit; raises ValueError if they do not follow the kept ones.

        A forecaster that has no rows yet begins with these.
        """
        tail = rows.tail(self.rows_kept) if self.tail is None else continue_panel(self.tail, rows, self.rows_kept)
        self.with_new_series(tail, tail.lengths).inputs.check_range(rows)
        moved: FittedForecaster = replace(self, tail=tail)
        return moved

    def with_new_series(self, panel: Panel, stops: Sequence[int]) -> "FittedForecaster":
        """The same with the scales of series that fit has not seen, by their rows before `stops`."""
        ids = set(self.inputs.ids)
        new = [index for index, name in enumerate(panel.ids) if name not in ids]
        if not new:
            return self
        places = [(index, stops[index]) for index in new]
        season = self.season if "deviation" in self.inputs.scaler else None
        scaler = fit_scaler(panel, self.columns, places, season)
        inputs = self.inputs.with_series([panel.ids[index] for index in new], scaler)
        choice = self.choice
        if choice is not None:
            histories = panel.histories(self.columns, places)
            scale = series_scale(histories, self.season).reshape(len(new), -1)
            choice = choice.add_series(scale, inputs.scaler["mean"].abs().numpy(), histories)
        network = None if self.network is None else replace(self.network, inputs=inputs)
        wider: FittedForecaster = replace(self, inputs=inputs, network=network, choice=choice)
        return wider


def windows_together(columns: int) -> int:
    """Windows that are combined together."""
    return min(WINDOWS, max(1, HISTORIES // columns))


def predict(fitted: FittedForecaster, panel: Panel, steps: int, future: Any, options: Mapping[str, Any]) -> Any:
    """The next steps after each series, as a frame or array like the data of the panel.

    `future` is a table with the covariates of all steps of the horizon, and `options` are how it is read.
    """
    if fitted.context is not None:
        fitted.context.warn_of_short(panel, fitted.inputs.ids, fitted.columns, fitted.rows_read)
    fitted = fitted.with_new_series(panel, panel.lengths)
    fitted.inputs.check_range(panel)
    # covariates are checked even if the network has no weight
    last = panel.tail(fitted.inputs.lookback)
    ahead = fitted.inputs.covariates.future(last, future, fitted.horizon, options)
    network = None
    if NETWORK in fitted.weights:
        network = fitted.require_network().predict(last, list(enumerate(last.lengths)), ahead)
    if text := fitted.inputs.covariates.describe_unused(fitted.unused):
        warnings.warn(text, stacklevel=3)
    forecast = fitted.forecast(panel, list(enumerate(panel.lengths)), network, ahead)
    check_forecast(forecast, fitted.columns)
    missing = []
    if fitted.interval is not None and "lower" not in forecast:
        missing.append(f"interval of {fitted.interval}")
    if len(fitted.quantiles) and "quantiles" not in forecast:
        missing.append("quantiles")
    for what in missing:
        text = f"the forecast has no {what}: the rows of fit were too few; fit to more rows."
        warnings.warn(text, UserWarning, stacklevel=3)
    parts = {name: part[:, :steps].numpy() for name, part in forecast.items()}
    return write_forecast(panel, parts, steps, fitted.columns, fitted.quantiles)


def predict_baseline(fitted: FittedForecaster, name: str, panel: Panel, steps: int) -> Any:
    """The same by a baseline alone."""
    history = align_histories(panel.histories(fitted.columns), history_rows(fitted.season, fitted.horizon))
    baseline = BASELINES[name] if name in BASELINES else SPECIAL_BASELINES[name].forecast
    rows = baseline(history, fitted.season, steps)
    forecast = rows.reshape(len(panel), -1, steps).transpose(0, 2, 1)
    return write_forecast(panel, {"forecast": forecast}, steps, fitted.columns, ())


def example_inputs(network: FittedNetwork) -> tuple[torch.Tensor | None, ...]:
    """Arguments of `UnitsModel.forward` for two windows, to export the network."""
    inputs = network.inputs
    horizon = network.spec.horizon
    features = inputs.covariates.count
    lookback = inputs.lookback
    return (
        inputs.scaler["mean"][:1].double().unsqueeze(1).repeat(2, lookback, 1)
        + torch.arange(lookback).view(1, -1, 1) / lookback,
        torch.tensor([0, 1]) if len(inputs.ids) > 1 else None,
        torch.zeros(2, lookback, features) if features else None,
        torch.zeros(2, horizon, features) if features else None,
    )
