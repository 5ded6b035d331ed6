"""The stages of a fit on plain series, without a table."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np

from toa.estimators import Forecaster
from toa.estimators.architecture import NETWORK
from toa.estimators.choice import Ensemble, fit_ensemble
from toa.estimators.effort import EFFORTS, Ceiling
from toa.estimators.families import FAMILIES, candidates
from toa.estimators.methods import Histories, Training, Validated, validate
from toa.estimators.origins import RollingOrigins, align_series


@dataclass(frozen=True)
class Given:
    """A method of which only the forecasts at the origins are known."""

    reads_panel: bool = True
    rows_read: int = 1

    def forecast(self, histories: Histories) -> np.ndarray:
        raise AssertionError("only the forecasts at the origins are known")

    def refit(self, training: Training) -> "Given":
        return self


@contextmanager
def only(family: str) -> Iterator[None]:
    """Leave one family of methods in the choice."""
    with mock.patch.dict(FAMILIES):
        for name in FAMILIES.keys() - {family}:
            del FAMILIES[name]
        yield


def given_forecasts(forecasts: Mapping[str, np.ndarray]) -> dict[str, Validated]:
    return {name: Validated(Given(), rows) for name, rows in forecasts.items()}


def training_on(
    series: Sequence[np.ndarray], season: int, horizon: int, *, effort: str = "thorough", ceiling: Ceiling | None = None
) -> Training:
    return Training(
        history=align_series(series),
        season=season,
        horizon=horizon,
        seed=0,
        effort=EFFORTS[effort],
        ceiling=ceiling or Ceiling(None),
    )


def validate_series(
    series: Sequence[np.ndarray], origins: RollingOrigins, season: int, ceiling: Ceiling | None = None
) -> dict[str, Validated]:
    """All methods without the network, fitted before the origins."""
    if not len(origins):
        return {}
    settings = Forecaster(origins.horizon, effort="thorough").settings_of_fit()
    methods = {name: method for name, method in candidates(settings, season).items() if name != NETWORK}
    training = training_on(origins.earlier(series), season, origins.horizon, ceiling=ceiling)
    return validate(methods, training, Histories(values=origins.histories(series)))


def ensemble_of(
    series: Sequence[np.ndarray], origins: RollingOrigins, validated: Mapping[str, Validated], season: int
) -> tuple[Ensemble, np.ndarray | None]:
    ensemble, forecasts = fit_ensemble(series, origins, validated, training_on(series, season, origins.horizon))
    return ensemble, None if forecasts is None else forecasts.mean
