"""The network as one of the methods of a forecaster: validated, joined by further seeds, trained again on all rows.

    networks = NetworkMethod(settings).fit(training)          # before the origins; None if it would be too much work
    networks, rows = networks.add_seeds(training, …)          # of further seeds, while they lower the error
    networks.refit(training)                                  # on all rows, for the epochs that were best

Alphabet: W windows, C columns, P horizon.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from toa.data.panel import Panel
from toa.estimators.architecture import NETWORK
from toa.estimators.effort import Ceiling
from toa.estimators.methods import Family, ForecastRows, Histories, Method, Training
from toa.estimators.network import (
    FittedNetwork,
    NetworkPlan,
    average_networks,
    calibrate_network,
    fit_inputs,
    limit_plan,
    mean_validation,
    plan_network,
    split_windows,
    train_network,
    training_seconds,
)
from toa.estimators.settings import ForecastSettings

# a network that is validated is trained again on all rows
_TRAININGS = 2.0
# fewest rows to train on beside a horizon
LEAST_ROWS = 2


@dataclass(frozen=True, slots=True)
class NetworkMethod:
    """The network beside other methods."""

    settings: ForecastSettings

    def fit(self, training: Training) -> "FittedNetworks | None":
        """See `Method`. With more effort also a network of the values themselves is trained; the better one is kept."""
        panel = training.panel
        effort = training.effort
        assert panel is not None
        borders = self.settings.borders(panel.lengths)
        if not effort.has_networks or max(borders) < training.horizon + LEAST_ROWS:
            return None
        network = self._train(training, plain=False)
        if network is None:
            return None
        if network.architecture["season"] and effort.networks > 1:
            plain = self._train(training, plain=True)
            if plain is not None and (plain.validation or 0.0) < (network.validation or 0.0):
                network = plain
        return FittedNetworks(self.settings, (network,))

    def _train(self, training: Training, *, plain: bool) -> FittedNetwork | None:
        """One network, if the effort and the time allow it."""
        panel = training.panel
        ceiling = training.ceiling
        assert panel is not None
        plan = plan_network(panel, training.columns, self.settings, training.season, plain=plain, rows=training.rows)
        limited = limit_plan(plan, training.effort)
        if limited is None:
            return None
        if not ceiling.allows(NETWORK, _TRAININGS * _seconds(limited, training.seed, ceiling)):
            return None
        return train_network(limited, training.seed)

    def seconds(self, ceiling: Ceiling) -> None:
        """It asks by itself, when it knows its schedule."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedNetworks:
    """Networks that differ in their seeds, each trained; the forecast is their mean."""

    settings: ForecastSettings
    networks: tuple[FittedNetwork, ...]
    reads_panel: bool = True

    @property
    def rows_read(self) -> int:
        """The look-back, the same for all networks."""
        return self.networks[0].inputs.lookback

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        return average_networks(self.networks).forecast(histories)

    def refit(self, training: Training) -> "FittedNetworks":
        """Trained again, on all rows, for the epochs that were best."""
        validation = mean_validation(self.networks)
        return FittedNetworks(
            self.settings,
            tuple(
                train_again(network, self.settings, training, season=training.season, validation=validation)
                for network in self.networks
            ),
        )

    def add_seeds(
        self, training: Training, histories: Histories, forecasts: ForecastRows, error: Callable[[np.ndarray], float]
    ) -> tuple["FittedNetworks", ForecastRows]:
        """These networks and those of further seeds, and their mean forecasts (N, P) at the origins.

        `forecasts` are those of the first network. One that raises the error of the mean is left out and ends the
        search.
        """
        panel = training.panel
        ceiling = training.ceiling
        assert panel is not None
        networks = list(self.networks)
        first = self.networks[0]
        borders = self.settings.borders(panel.lengths)
        while len(networks) < (self.settings.seeds or training.effort.networks):
            train, stop, _ = split_windows(panel, first.inputs, borders, first.spec)
            plan = NetworkPlan(
                spec=first.spec,
                inputs=first.inputs,
                architecture=first.architecture,
                schedule=first.schedule,
                train=train,
                stop=stop,
            )
            # all networks are trained again on all rows
            trainings = len(networks) + 2
            if not ceiling.allows(f"network {len(networks) + 1}", trainings * _seconds(plan, training.seed, ceiling)):
                break
            other = train_network(plan, training.seed + len(networks))
            del plan, train, stop
            mean = forecasts + (other.forecast(histories) - forecasts) / (len(networks) + 1)
            if error(mean) > error(forecasts):
                break
            networks.append(other)
            forecasts = mean
        return FittedNetworks(self.settings, tuple(networks)), forecasts


def train_again(
    network: FittedNetwork,
    settings: ForecastSettings,
    training: Training,
    *,
    season: int | None,
    validation: float,
) -> FittedNetwork:
    """A network trained on all rows, for the epochs that were best.

    Args:
        season: Season by which errors are scaled; None standardises.
        validation: Loss of the earlier training.
    """
    panel = training.panel
    assert panel is not None
    borders = settings.borders(panel.lengths)
    covariates = settings.covariates.fit(panel, borders, calendar=settings.calendar)
    inputs = fit_inputs(panel, training.columns, network.inputs.lookback, covariates, panel.lengths, season)
    train, *_ = split_windows(panel, inputs, panel.lengths, network.spec)
    epochs = min(network.schedule["epochs"], network.best_epoch + 1)
    plan = NetworkPlan(
        spec=network.spec,
        inputs=inputs,
        architecture=network.architecture,
        schedule={**network.schedule, "epochs": epochs},
        train=train,
        stop=None,
        validation=validation,
    )
    return train_network(plan, network.seeds[0])


class Networks(Family):
    """One network; networks of further seeds join it where it has a weight."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """The network."""
        return {NETWORK: NetworkMethod(settings)}


def fit_alone(panel: Panel, columns: tuple[str, ...], settings: ForecastSettings) -> FittedNetwork:
    """The network without other methods, with an interval of its own."""
    plan = plan_network(panel, columns, settings, None)
    seeds = range(settings.seed, settings.seed + (settings.seeds or 1))
    network = average_networks([train_network(plan, seed) for seed in seeds])
    width = None
    if settings.interval is not None:
        assert plan.held is not None
        width = calibrate_network(network, plan.held, settings.interval)
    alone: FittedNetwork = replace(network, width=width)
    return alone


def _seconds(plan: NetworkPlan, seed: int, ceiling: Ceiling) -> float:
    """Expected time of a training; 0 where no time is limited."""
    return 0.0 if ceiling.seconds is None else training_seconds(plan, seed)
