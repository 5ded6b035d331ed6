"""How a forecaster is fitted, from a panel to a frozen value.

    origins   = rolling_origins(panel, columns, settings)
    validated = validate(candidates(settings, season), training, histories)
    ensemble  = weights at the origins, with its methods fitted again
    choice    = intervals and quantiles by the errors at the origins
    fitted    = FittedForecaster(…)

Alphabet: S series, C columns, N one per window and column, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from toa.data.frequency import season_of
from toa.data.panel import Panel
from toa.estimators.base import NETWORK
from toa.estimators.baselines import REGRESSIONS, choose_season
from toa.estimators.choice import fit_ensemble, weigh_at
from toa.estimators.covariates import Covariates
from toa.estimators.effort import Ceiling
from toa.estimators.families import candidates
from toa.estimators.fitted import FittedForecaster
from toa.estimators.intervals import Choice, calibrate
from toa.estimators.lag_methods import history_rows
from toa.estimators.methods import Histories, Training, Validated, validate
from toa.estimators.network import FittedNetwork, Inputs, average_networks, fit_inputs
from toa.estimators.network_method import FittedNetworks, fit_alone
from toa.estimators.origins import RollingOrigins, Series, align_series, series_scale
from toa.estimators.settings import ForecastSettings
from toa.estimators.units import find_counts


def fit_forecaster(
    panel: Panel, columns: tuple[str, ...], settings: ForecastSettings, ceiling: Ceiling
) -> FittedForecaster:
    """Fit the network alone, or weight all methods.

    Args:
        columns: Columns to forecast; the others are covariates.
        ceiling: Limit on the time, which notes what it leaves out.
    """
    season = choose_season(settings.season, season_of(panel.freq), panel.histories(columns))
    fit = _fit_alone if settings.network.alone else _fit_weighted
    fitted = fit(panel, columns, settings, season, ceiling)
    rows = max(fitted.inputs.lookback, history_rows(season, settings.horizon))
    with_rows: FittedForecaster = replace(fitted, tail=panel.tail(rows))
    return with_rows


def _fit_alone(
    panel: Panel, columns: tuple[str, ...], settings: ForecastSettings, season: int, ceiling: Ceiling
) -> FittedForecaster:
    """The network without other methods; its work and time are not limited."""
    network = fit_alone(panel.complete(), columns, settings)
    network = replace(network, counts=torch.from_numpy(find_counts(panel, columns)))
    facts = _facts(panel, settings, season)
    return FittedForecaster(**facts, inputs=network.inputs, network=network, choice=None)


def _fit_weighted(
    panel: Panel, columns: tuple[str, ...], settings: ForecastSettings, season: int, ceiling: Ceiling
) -> FittedForecaster:
    """All methods, weighted by their errors at rolling origins."""
    # the network and the methods with covariates see the rows that have the most values
    complete, series = panel.complete(columns), panel.histories(columns)
    origins = rolling_origins(complete, columns, settings)
    per_column = origins.per_column(_rows_per_column(complete, columns))
    rows = FitRows(complete, columns, series, settings, season, ceiling)
    validated: dict[str, Validated] = {}
    if len(origins):
        training, histories = rows.before(origins, per_column), rows.at(origins, per_column)
        validated = validate(candidates(settings, season), training, histories)
        validated = _add_seeds(validated, training, histories, per_column, series)
    everything = rows.training()
    ensemble, forecasts = fit_ensemble(series, per_column, validated, everything)
    choice = calibrate(
        ensemble,
        forecasts,
        panel,
        columns,
        per_column,
        interval=settings.interval,
        levels=tuple(map(float, settings.quantiles)),
    )
    network = _refit_network(validated, ensemble.weights, everything)
    inputs = rows.plain_inputs() if network is None else network.inputs
    regressions = _refit_regressions(validated, everything, inputs.covariates, choice)
    return FittedForecaster(
        **_facts(panel, settings, season),
        inputs=inputs,
        network=network,
        choice=choice,
        regressions=regressions,
        truncated=tuple(ceiling.left_out),
    )


def rolling_origins(panel: Panel, columns: tuple[str, ...], settings: ForecastSettings) -> RollingOrigins:
    """Origins of each series, as many as the effort and the interval ask for."""
    return RollingOrigins.choose(
        panel.lengths,
        horizon=settings.horizon,
        share=settings.validation_share,
        columns=len(columns),
        seed=settings.seed,
        histories=settings.effort.histories,
        least=settings.least_origins,
    )


@dataclass(frozen=True, slots=True, eq=False)
class FitRows:
    """The rows of a fit, and what methods are fitted to: the rows before the origins, then all.

    Attributes:
        panel: The rows in which all columns have begun.
        series: Each column by itself, from its first value on.
    """

    panel: Panel
    columns: tuple[str, ...]
    series: Series
    settings: ForecastSettings
    season: int
    ceiling: Ceiling

    def training(self) -> Training:
        """All rows."""
        return Training(
            history=align_series(self.series),
            season=self.season,
            horizon=self.settings.horizon,
            seed=self.settings.seed,
            effort=self.settings.effort,
            ceiling=self.ceiling,
            panel=self.panel,
            columns=self.columns,
        )

    def before(self, origins: RollingOrigins, per_column: RollingOrigins) -> Training:
        """The rows before the first origin of each series."""
        earlier = self.panel.before(origins.held.tolist())
        training = replace(
            self.training(),
            history=align_series(per_column.earlier(self.series)),
            panel=earlier,
            rows=self.panel.lengths,
        )
        if not self.settings.has_known_features:
            return training
        covariates = self._covariates()
        features = [rows[:length] for rows, length in zip(self._features(), earlier.lengths, strict=True)]
        return replace(training, scale=self._scale(earlier), features=features, past_features=covariates.past_count)

    def at(self, origins: RollingOrigins, per_column: RollingOrigins) -> Histories:
        """The windows at the origins."""
        histories = Histories(
            values=per_column.histories(self.series),
            panel=self.panel,
            columns=self.columns,
            places=origins.places(self.panel.lengths),
        )
        if not self.settings.has_known_features:
            return histories
        scale = self._scale(self.panel.before(origins.held.tolist()))
        return replace(histories, scale=scale, features=self._features())

    def plain_inputs(self) -> Inputs:
        """Inputs of a forecaster without a network."""
        lookback = min(max(self.panel.lengths), max(2 * self.season, self.settings.horizon))
        lengths = self.panel.lengths
        return fit_inputs(self.panel, self.columns, lookback, self._covariates(), lengths, self.season)

    def _covariates(self) -> Covariates:
        settings = self.settings
        return settings.covariates.fit(self.panel, self.panel.lengths, calendar=settings.calendar)

    def _features(self) -> list[np.ndarray]:
        return self._covariates().past(self.panel) or []

    def _scale(self, earlier: Panel) -> np.ndarray:
        """Seasonal error of each series and column in earlier rows; 1 where there is none."""
        scale = series_scale(earlier.histories(self.columns), self.season).reshape(len(earlier), -1)
        return np.where(np.nan_to_num(scale) > 0, scale, 1.0)


def _rows_per_column(panel: Panel, columns: tuple[str, ...]) -> np.ndarray:
    """Rows (S, C) of each column from its first value on."""
    return np.array(list(map(len, panel.histories(columns)))).reshape(len(panel), -1)


def _add_seeds(
    validated: Mapping[str, Validated],
    training: Training,
    histories: Histories,
    origins: RollingOrigins,
    series: Series,
) -> dict[str, Validated]:
    """With networks of further seeds beside the network, if it has a weight."""
    scale = series_scale(series, training.season)
    forecasts = {name: method.forecasts for name, method in validated.items()}
    if NETWORK not in validated or NETWORK not in weigh_at(origins, series, forecasts, scale)[0]:
        return dict(validated)

    def error(rows: np.ndarray) -> float:
        return weigh_at(origins, series, {NETWORK: rows}, scale)[1][NETWORK]

    networks: Any = validated[NETWORK].fitted
    found = networks.add_seeds(training, histories, forecasts[NETWORK], error)
    return {**validated, NETWORK: Validated(*found)}


def _refit_network(
    validated: Mapping[str, Validated], weights: Mapping[str, float], training: Training
) -> FittedNetwork | None:
    """The network trained again on all rows, or the first of those that were validated if they have no weight."""
    if NETWORK not in validated:
        return None
    networks = validated[NETWORK].fitted
    assert isinstance(networks, FittedNetworks)
    if NETWORK not in weights:
        return networks.networks[0]
    return average_networks(networks.refit(training).networks)


def _refit_regressions(
    validated: Mapping[str, Validated], training: Training, covariates: Covariates, choice: Choice
) -> dict[str, Any]:
    """The methods with covariates, with the effect in all rows."""
    names = [name for name in REGRESSIONS if name in validated]
    if not names:
        return {}
    assert training.panel is not None
    features = covariates.past(training.panel) or []
    again = replace(training, scale=choice.scale, features=features, past_features=covariates.past_count)
    return {name: validated[name].fitted.refit(again) for name in names}


def _facts(panel: Panel, settings: ForecastSettings, season: int) -> dict[str, Any]:
    """What a forecaster knows of its table and parameters."""
    return {
        "horizon": settings.horizon,
        "quantiles": settings.quantiles,
        "interval": settings.interval,
        "freq": panel.freq,
        "time_column": panel.time_column,
        "day_first": panel.day_first,
        "season": season,
    }
