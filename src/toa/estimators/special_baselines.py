"""Baselines that are tried only on data that suit them: counts with many zeros, growing series, tables with a season.

    SPECIAL_BASELINES["croston"].suits(history, season=7)      # whether it is a candidate
    SPECIAL_BASELINES["croston"].forecast(history, 7, 14)      # (N, P)

A method is a candidate if it suits at least half of the series; errors at the rolling origins then decide its weight.

Alphabet: N series, T rows, P horizon.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from toa._checks import check_choice
from toa._registry import Registry
from toa.estimators import intermittent, logarithms
from toa.estimators.baselines import Baseline, Forecast, History
from toa.estimators.effort import Ceiling
from toa.estimators.lag_methods import forecast_in_blocks, local_rows
from toa.estimators.methods import Family, ForecastRows, Histories, Method, Training
from toa.estimators.settings import ForecastSettings

# share of the series that a method must suit
_LEAST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialBaseline:
    """A baseline, and the data that it suits.

    Attributes:
        suits_series: Which series of a history (N, T) with a season it suits.
    """

    forecast: Baseline
    suits_series: Callable[[History, int], Bool[np.ndarray, " n"]]

    def suits(self, history: History, season: int) -> bool:
        """Whether it suits at least half of the series."""
        return bool(self.suits_series(history, season).mean() >= _LEAST_SHARE)


SPECIAL_BASELINES: Registry[SpecialBaseline] = Registry("special baseline")


def last_value(history: History, season: int, horizon: int) -> Forecast:
    """Repeat the last value."""
    return np.repeat(history[:, -1:], horizon, axis=1)


def _has_steps_in_season(history: History, season: int) -> Bool[np.ndarray, " n"]:
    """All series of a table with a season; without one, "seasonal naive" repeats the last value."""
    return np.full(len(history), season > 1)


def _is_intermittent(history: History, season: int) -> Bool[np.ndarray, " n"]:
    return intermittent.is_intermittent(history)


def _grows(history: History, season: int) -> Bool[np.ndarray, " n"]:
    return logarithms.grows(history)


SPECIAL_BASELINES.register("last value")(SpecialBaseline(forecast=last_value, suits_series=_has_steps_in_season))
SPECIAL_BASELINES.register("croston")(SpecialBaseline(forecast=intermittent.croston, suits_series=_is_intermittent))
SPECIAL_BASELINES.register("sba")(SpecialBaseline(forecast=intermittent.sba, suits_series=_is_intermittent))
SPECIAL_BASELINES.register("tsb")(SpecialBaseline(forecast=intermittent.tsb, suits_series=_is_intermittent))
SPECIAL_BASELINES.register("median")(SpecialBaseline(forecast=intermittent.median, suits_series=_is_intermittent))
SPECIAL_BASELINES.register("log line")(SpecialBaseline(forecast=logarithms.log_line, suits_series=_grows))
SPECIAL_BASELINES.register("log drift")(SpecialBaseline(forecast=logarithms.log_drift, suits_series=_grows))
SPECIAL_BASELINES.register("log theta")(SpecialBaseline(forecast=logarithms.log_theta, suits_series=_grows))
SPECIAL_BASELINES.register("log damped trend")(
    SpecialBaseline(forecast=logarithms.log_damped_trend, suits_series=_grows)
)


@dataclass(frozen=True, slots=True)
class FittedSpecial:
    """A baseline of `SPECIAL_BASELINES`, which has nothing to fit."""

    name: str
    season: int
    horizon: int
    reads_panel: bool = False

    @property
    def rows_read(self) -> int:
        """See `FittedMethod`."""
        return local_rows(self.season)

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        baseline = partial(SPECIAL_BASELINES[self.name].forecast, season=self.season, horizon=self.horizon)
        return forecast_in_blocks(baseline, histories.values, self.rows_read)

    def refit(self, training: Training) -> "FittedSpecial":
        """The same baseline."""
        return self


@dataclass(frozen=True, slots=True)
class SpecialMethod:
    """A baseline of `SPECIAL_BASELINES` before the data are known."""

    name: str

    def fit(self, training: Training) -> FittedSpecial | None:
        """See `Method`; None for data that it does not suit."""
        if not SPECIAL_BASELINES[self.name].suits(training.history, training.season):
            return None
        return FittedSpecial(self.name, training.season, training.horizon)

    def seconds(self, ceiling: Ceiling) -> float:
        """The time so far: all methods are fitted again, to all rows."""
        return ceiling.passed


class SpecialBaselines(Family):
    """Baselines for counts with many zeros, growing series and tables with a season."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """One method per baseline."""
        return {name: SpecialMethod(name) for name in SPECIAL_BASELINES}

    def save(self, fitted: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Their names."""
        names = [name for name, method in fitted.items() if isinstance(method, FittedSpecial)]
        return {}, names or None

    def load(self, tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int) -> Mapping[str, FittedSpecial]:
        """From the result of `save`."""
        for name in facts:
            check_choice("baseline", name, SPECIAL_BASELINES)
        return {name: FittedSpecial(name, season, horizon) for name in facts}
