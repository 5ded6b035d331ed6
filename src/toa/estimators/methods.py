"""Methods of a forecast, behind one interface.

    methods = candidates(settings, season)              # in toa.estimators.families
    validated = validate(methods, training, histories)  # fitted before the origins, with forecasts there
    validated["theta"].fitted.refit(training)           # fitted again, to all rows

A new method is one file with a `Family`, and one line in `toa.estimators.families`. A `Method` is what can be fitted; a
`FittedMethod` forecasts after histories and can be fitted again to more rows. Both are frozen values.

Alphabet: N histories, one per window and column, W windows, C columns, S series, P horizon, F features.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64
from torch import Tensor

from toa.data.panel import Panel
from toa.estimators.baselines import History
from toa.estimators.covariate_effects import CovariateEffect, fit_covariate_effect
from toa.estimators.covariates import Covariates
from toa.estimators.effort import Ceiling, Effort
from toa.estimators.origins import SeriesList

if TYPE_CHECKING:
    from toa.estimators.settings import ForecastSettings

# forecasts, one row per window and column
ForecastRows = Float64[np.ndarray, "n p"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histories:
    """Rows before each forecast. Most methods read `values` alone; the rest is for those that see covariates.

    Attributes:
        values: The values of each window and column before its forecast; the columns of a window are adjacent.
        panel: Series with the windows, and with the covariates.
        columns: Columns to forecast.
        places: Of each window its series in the panel, and the first row to forecast.
        scale: Seasonal error of each series of the panel and column (S, C).
        features: Features (T, F) of the rows of each series of the panel; empty without any.
        ahead: Features (P, F) of the forecast steps of each window; None takes those of the panel.
        covariates: What computed the features; None without any.
    """

    values: SeriesList
    panel: Panel | None = None
    columns: tuple[str, ...] = ()
    places: Sequence[tuple[int, int]] = ()
    scale: Float64[np.ndarray, "s c"] | None = None
    features: Sequence[np.ndarray] = ()
    ahead: Sequence[np.ndarray] | None = None
    covariates: Covariates | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Training:
    """Rows that methods are fitted to, and how much work they may take.

    Attributes:
        history: Each column of each series (N, T), NaN before it begins.
        panel: The rows in which all columns have begun, with the covariates.
        columns: Columns to forecast.
        scale: Seasonal error of each series and column (S, C), at least a small number.
        features: Features (T, F) of the rows of each series of the panel; empty without any.
        past_features: Number of features that are known only in the past, the last ones.
        covariates: What computed the features; None without any.
        effect: Effect of the features that are known in advance; None without any.
        rows: Rows of each series with those that are left out for the rolling origins, for messages.
    """

    history: History
    season: int
    horizon: int
    seed: int
    effort: Effort
    ceiling: Ceiling
    panel: Panel | None = None
    columns: tuple[str, ...] = ()
    scale: Float64[np.ndarray, "s c"] | None = None
    features: Sequence[np.ndarray] = ()
    past_features: int = 0
    covariates: Covariates | None = None
    effect: CovariateEffect | None = None
    rows: tuple[int, ...] = ()

    def with_features(
        self, covariates: Covariates, features: Sequence[np.ndarray], scale: Float64[np.ndarray, "s c"]
    ) -> "Training":
        """The same with the features (T, F) of the rows of each series, and their effect in scales."""
        assert self.panel is not None
        effect = fit_covariate_effect(
            self.panel,
            self.columns,
            features,
            past_features=covariates.past_count,
            scale=scale,
            season=self.season,
            seed=self.seed,
        )
        wider: Training = replace(
            self,
            covariates=covariates,
            features=features,
            scale=scale,
            past_features=covariates.past_count,
            effect=effect,
        )
        return wider


class FittedMethod(Protocol):
    """A method that can forecast."""

    @property
    def reads_panel(self) -> bool:
        """Whether it reads the panel and the features of histories, not their values alone."""

    @property
    def rows_read(self) -> int:
        """Rows before a forecast that it reads, at most."""

    @abstractmethod
    def forecast(self, histories: Histories) -> ForecastRows:
        """Forecasts (N, P), one row per window and column."""

    @abstractmethod
    def refit(self, training: Training) -> "FittedMethod | None":
        """The method fitted again, to other rows; None if these are too few."""


@runtime_checkable
class UsesCovariates(Protocol):
    """A fitted method that reads features."""

    @abstractmethod
    def used_features(self, count: int) -> Bool[np.ndarray, " f"]:
        """Which of this number of features have an influence on its forecasts."""


class Method(Protocol):
    """A method that can be fitted."""

    @abstractmethod
    def fit(self, training: Training) -> FittedMethod | None:
        """Fit to rows; None if they are too few, or if it would be too much work."""

    @abstractmethod
    def seconds(self, ceiling: Ceiling) -> float | None:
        """Seconds from the begin of its fit to the end of the whole fit, at least; it begins only if these are left.

        None if time does not limit it, or if `fit` asks the ceiling itself.
        """


class Family:
    """Methods of one kind: which of them are candidates, and how fitted ones are saved.

    A loaded forecaster has the methods that `load` returns. Only baselines, regressions and the network need neither
    `save` nor `load`: `toa.estimators.forecast_files` and `Ensemble` make them from the rest of the file.
    """

    def candidates(self, settings: "ForecastSettings", season: int) -> dict[str, Method]:
        """Methods by name."""
        raise NotImplementedError

    def save(self, fitted: Mapping[str, FittedMethod]) -> tuple[dict[str, Tensor], Any]:
        """Tensors by name, and JSON values, of those fitted methods that are of this family.

        The values are None if there are none of them, and not empty if there are any: `load` is called with them.
        """
        return {}, None

    def load(self, tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int) -> Mapping[str, FittedMethod]:
        """From the result of `save`."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Validated:
    """A method that was fitted to the rows before the origins, and its forecasts (N, P) there."""

    fitted: FittedMethod
    forecasts: ForecastRows


def validate(
    methods: Mapping[str, Method],
    training: Training,
    histories: Histories,
    begin: Callable[[str], None] = lambda name: None,
) -> dict[str, Validated]:
    """Fit each method to the rows before the origins, and forecast after the histories there.

    The ceiling of the training allows the first method in any case. `begin` is called with the name of each method.
    """
    validated: dict[str, Validated] = {}
    for name, method in methods.items():
        begin(name)
        seconds = method.seconds(training.ceiling)
        if validated and seconds is not None and not training.ceiling.allows(name, seconds):
            continue
        fitted = method.fit(training)
        if fitted is not None:
            validated[name] = Validated(fitted, fitted.forecast(histories))
    return validated


def to_rows(parts: Float64[np.ndarray, "w p c"]) -> ForecastRows:
    """A row per window and column."""
    return np.ascontiguousarray(parts.transpose(0, 2, 1)).reshape(-1, parts.shape[1])


def from_rows(rows: ForecastRows, columns: int) -> Float64[np.ndarray, "w p c"]:
    """The opposite of `to_rows`."""
    return rows.reshape(-1, columns, rows.shape[1]).transpose(0, 2, 1)
