"""How a forecaster is fitted, from a panel to a frozen value.

    origins   = rolling_origins(panel, columns, settings)                      # where methods are validated
    validated = validate(candidates(settings, season), training, histories)    # all methods, with forecasts there
    ensemble, forecasts = fit_ensemble(series, origins, validated, all_rows)   # weights, and methods of past values
    choice    = calibrate(ensemble, forecasts, …)                              # intervals and quantiles
    network   = _refit_network(…)                                              # trained again, on all rows
    methods   = _refit_panel_methods(…)                                        # the others that read the panel
    fitted    = FittedForecaster(…)                                            # frozen

Alphabet: S series, C columns, N one per window and column, F features.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from toa._checks import ArgumentError
from toa._console import show_steps
from toa.data.frequency import season_of
from toa.data.panel import Panel
from toa.estimators.architecture import NETWORK
from toa.estimators.baselines import choose_season
from toa.estimators.calibrated import Choice
from toa.estimators.channel_networks import FittedChannelNetwork
from toa.estimators.choice import fit_ensemble, is_too_short, weigh_at
from toa.estimators.context import ContextRows
from toa.estimators.covariate_use import find_unused
from toa.estimators.covariates import Covariates
from toa.estimators.effort import Ceiling
from toa.estimators.families import candidates
from toa.estimators.fit_rows import FitRows
from toa.estimators.fitted import FittedForecaster
from toa.estimators.intervals import calibrate
from toa.estimators.methods import FittedMethod, Histories, Training, UsesCovariates, Validated, validate
from toa.estimators.network import FittedNetwork, Inputs, average_networks
from toa.estimators.network_method import FittedNetworks, fit_alone
from toa.estimators.origins import RollingOrigins, SeriesList, series_scale
from toa.estimators.regressions import FittedRegression
from toa.estimators.settings import ForecastSettings
from toa.estimators.units import find_counts

# the sum of the squares of larger values may be infinite
_LARGEST = 1e150


def fit_forecaster(
    panel: Panel, columns: tuple[str, ...], settings: ForecastSettings, ceiling: Ceiling
) -> FittedForecaster:
    """Fit the network alone, or weight all methods.

    Args:
        columns: Columns to forecast; the others are covariates.
        ceiling: Limit on the time, which notes what it leaves out.
    """
    _check_sizes(panel, columns)
    season = choose_season(settings.season, season_of(panel.freq), panel.histories(columns))
    if settings.network.alone:
        fitted = _fit_alone(panel, columns, settings, season)
    else:
        fitted = _fit_weighted(panel, columns, settings, season, ceiling)
    with_tail: FittedForecaster = replace(fitted, tail=panel.tail(fitted.rows_kept))
    return with_tail


def _check_sizes(panel: Panel, columns: tuple[str, ...]) -> None:
    """Raise ValueError for values whose squares would have an infinite sum."""
    for values in panel.take(columns):
        largest = np.abs(values).max(0, initial=0.0)
        if (largest > _LARGEST).any():
            place = int(largest.argmax())
            raise ArgumentError(
                "data",
                f"have values of at most {_LARGEST:g}",
                f"{largest[place]:g} in column {columns[place]!r}",
                "give them in a larger unit",
            )


def _fit_alone(panel: Panel, columns: tuple[str, ...], settings: ForecastSettings, season: int) -> FittedForecaster:
    """The network without other methods; its work and time are not limited."""
    complete = panel.complete()
    network = fit_alone(complete, columns, settings)
    network = replace(network, counts=torch.from_numpy(find_counts(panel, columns)))
    borders = np.array(settings.borders(complete.lengths))
    context = ContextRows(np.repeat(borders[:, None], len(columns), axis=1))
    return _assemble(panel, settings, season, inputs=network.inputs, network=network, choice=None, context=context)


def _fit_weighted(
    panel: Panel, columns: tuple[str, ...], settings: ForecastSettings, season: int, ceiling: Ceiling
) -> FittedForecaster:
    """All methods, weighted by their errors at rolling origins."""
    # the network and the methods with covariates see the rows that have the most values
    complete = panel.complete(columns)
    series = panel.histories(columns)
    fit_rows = FitRows(complete, columns, series, settings, season, ceiling)
    origins = rolling_origins(complete, columns, settings)
    # the same windows, each column a series of its own
    column_origins = origins.per_column(fit_rows.rows_per_column, panel.gaps(columns), looks_ahead=panel.looks_ahead)
    validated: dict[str, Validated] = {}
    if np.isfinite(column_origins.actual(series)).any():
        validated = _validate_methods(fit_rows, origins, column_origins)
    all_rows = fit_rows.all_rows()
    ensemble, forecasts = fit_ensemble(series, column_origins, validated, all_rows)
    choice = calibrate(
        ensemble,
        forecasts,
        panel,
        columns,
        column_origins,
        interval=settings.interval,
        levels=tuple(map(float, settings.quantiles)),
    )
    network = _refit_network(validated, ensemble.weights, all_rows)
    inputs = fit_rows.plain_inputs() if network is None else network.inputs
    panel_methods = _refit_panel_methods(validated, all_rows, inputs.covariates, choice)
    unused = _find_unused(validated, panel_methods, inputs.covariates, choice)
    if unused and is_too_short(column_origins):
        _warn_of_short_rows(unused)
    return _assemble(
        panel,
        settings,
        season,
        inputs=inputs,
        network=network,
        choice=choice,
        unused=unused,
        context=ContextRows(column_origins.rows_before(fit_rows.rows_per_column)),
        panel_methods=panel_methods,
        truncated=tuple(ceiling.left_out),
    )


def _validate_methods(
    fit_rows: FitRows, origins: RollingOrigins, column_origins: RollingOrigins
) -> dict[str, Validated]:
    """Fit all methods to the rows before the origins, and forecast there. The rows are freed at the end."""
    training = fit_rows.before(origins, column_origins)
    histories = fit_rows.at(origins, column_origins)
    methods = candidates(fit_rows.settings, fit_rows.season)
    with show_steps("methods", len(methods), shown=fit_rows.settings.network.progress) as begin:
        validated = validate(methods, training, histories, begin)
    return _add_seeds(validated, training, histories, column_origins, fit_rows.series)


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


def _add_seeds(
    validated: Mapping[str, Validated],
    training: Training,
    histories: Histories,
    origins: RollingOrigins,
    series: SeriesList,
) -> dict[str, Validated]:
    """The validated methods, with networks of further seeds beside the network if it has a weight."""
    scale = series_scale(series, training.season)
    forecasts = {name: method.forecasts for name, method in validated.items()}
    if NETWORK not in validated:
        return dict(validated)
    weights, _ = weigh_at(origins, series, forecasts, scale)
    if NETWORK not in weights:
        return dict(validated)

    def error(rows: np.ndarray) -> float:
        _, errors = weigh_at(origins, series, {NETWORK: rows}, scale)
        return errors[NETWORK]

    networks = validated[NETWORK].fitted
    assert isinstance(networks, FittedNetworks)
    networks, mean = networks.add_seeds(training, histories, forecasts[NETWORK], error)
    return {**validated, NETWORK: Validated(networks, mean)}


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


def _refit_panel_methods(
    validated: Mapping[str, Validated], training: Training, covariates: Covariates, choice: Choice
) -> dict[str, FittedMethod]:
    """The methods that read the panel, fitted again to all rows; those with covariates also without a weight."""
    wanted = [
        name
        for name, method in validated.items()
        if method.fitted.reads_panel
        and name != NETWORK
        and (name in choice.ensemble.weights or isinstance(method.fitted, FittedRegression))
    ]
    if not wanted:
        return {}
    assert training.panel is not None
    features = covariates.past(training.panel)
    all_rows = training if features is None else training.with_features(covariates, features, choice.scale)
    methods: dict[str, FittedMethod] = {}
    for name in wanted:
        method = validated[name].fitted.refit(all_rows)
        assert method is not None, "more rows than before the origins are enough"
        methods[name] = method
    return methods


def _find_unused(
    validated: Mapping[str, Validated],
    panel_methods: Mapping[str, FittedMethod],
    covariates: Covariates,
    choice: Choice,
) -> dict[str, float | None]:
    """The covariates that no method with a weight uses; the network and networks of columns use all features."""
    weights = choice.ensemble.weights
    networks = (FittedNetworks, FittedChannelNetwork)
    if any(isinstance(validated[name].fitted, networks) for name in weights if name in validated):
        return {}
    count = covariates.count
    used = [
        method.used_features(count)
        for name, method in panel_methods.items()
        if name in weights and isinstance(method, UsesCovariates)
    ]
    others = {
        name: method.fitted.used_features(count)
        for name, method in validated.items()
        if name not in weights and isinstance(method.fitted, UsesCovariates)
    }
    return find_unused(covariates, used, others, choice.ensemble.changes)


def _warn_of_short_rows(unused: Mapping[str, float | None]) -> None:
    """Name the covariates that are not used because nothing could be validated."""
    names = ", ".join(map(repr, unused))
    warnings.warn(
        f"the rows are too few to validate methods, so simple ones share the weight, which do not use {names}; "
        "fit to more rows, or shorten the horizon.",
        UserWarning,
        stacklevel=5,
    )


def _assemble(
    panel: Panel,
    settings: ForecastSettings,
    season: int,
    *,
    inputs: Inputs,
    network: FittedNetwork | None,
    choice: Choice | None,
    context: ContextRows,
    panel_methods: Mapping[str, FittedMethod] | None = None,
    truncated: tuple[str, ...] = (),
    unused: Mapping[str, float | None] | None = None,
) -> FittedForecaster:
    """The forecaster of these parts, with what it must know of its table and parameters."""
    return FittedForecaster(
        horizon=settings.horizon,
        quantiles=settings.quantiles,
        interval=settings.interval,
        freq=panel.freq,
        time_column=panel.time_column,
        id_column=panel.id_column,
        day_first=panel.day_first,
        season=season,
        inputs=inputs,
        network=network,
        choice=choice,
        panel_methods={} if panel_methods is None else panel_methods,
        truncated=truncated,
        unused={} if unused is None else unused,
        context=context,
    )
