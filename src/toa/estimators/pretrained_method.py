"""The pretrained model as one of the methods of a forecaster; nothing is fitted.

It is a candidate only where its weights are part of the package. A saved forecaster holds the weights, so that it gives
the same forecasts in another version. It forecasts on the CPU, also beside networks on a GPU.

Alphabet: N histories, P horizon.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toa.estimators.effort import Ceiling
from toa.estimators.lag_methods import history_rows
from toa.estimators.methods import Family, FittedMethod, ForecastRows, Histories, Method, Training
from toa.estimators.pretrained_forecasts import forecast_quantiles, longest_horizon, stored_options
from toa.estimators.settings import ForecastSettings
from toa.estimators.zero_shot_tables import load_to_forecast, on_device
from toa.models.pretrained import DEFAULT_NAME, PretrainedForecaster, load_weights, shipped_names

# how the method is named
PRETRAINED = "pretrained"


@dataclass(frozen=True, slots=True)
class PretrainedMethod:
    """The model before the season and the horizon are known."""

    def fit(self, training: Training) -> "FittedPretrained | None":
        """See `Method`; None for a horizon that is too long for the model."""
        model = load_to_forecast(None, torch.device("cpu"))
        if training.horizon > longest_horizon(model):
            return None
        return FittedPretrained(model, training.season, training.horizon)

    def seconds(self, ceiling: Ceiling) -> float:
        """The time so far: all methods are fitted again, to all rows."""
        return ceiling.passed


@dataclass(frozen=True, slots=True, eq=False)
class FittedPretrained:
    """The model with a season and a horizon."""

    model: PretrainedForecaster
    season: int
    horizon: int
    reads_panel: bool = False

    @property
    def rows_read(self) -> int:
        """The context of the model, or fewer rows if the fitted forecaster keeps fewer."""
        return min(self.model.config.context, history_rows(self.season, self.horizon))

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`; the median."""
        # as many rows as forecasts of the fitted forecaster have
        rows = history_rows(self.season, self.horizon)
        series = [values[-rows:] for values in histories.values]
        quantiles = forecast_quantiles(self.model, series, self.horizon, season=self.season, median_alone=True)
        median: ForecastRows = quantiles[..., self.model.config.quantiles.index(0.5)]
        return median

    def refit(self, training: Training) -> "FittedPretrained":
        """The same model."""
        return self


class Pretrained(Family):
    """One method, if its weights are shipped."""

    def candidates(self, settings: ForecastSettings, season: int) -> dict[str, Method]:
        """The model."""
        return {PRETRAINED: PretrainedMethod()} if DEFAULT_NAME in shipped_names() else {}

    def save(self, fitted: Mapping[str, FittedMethod]) -> tuple[dict[str, Tensor], Any]:
        """Weights, in 16 bits if that loses nothing, the config, and the options of inference."""
        method = fitted.get(PRETRAINED)
        if not isinstance(method, FittedPretrained):
            return {}, None
        weights = {name: value.detach().cpu() for name, value in method.model.state_dict().items()}
        halves = {name: value.bfloat16() for name, value in weights.items()}
        exact = all(torch.equal(halves[name].to(value.dtype), value) for name, value in weights.items())
        inference = stored_options(method.model).to_json()
        return halves if exact else weights, {"config": method.model.config.to_json(), "inference": inference}

    def load(
        self, tensors: Mapping[str, Tensor], facts: Any, season: int, horizon: int
    ) -> Mapping[str, FittedPretrained]:
        """From the result of `save`."""
        inference = {"inference": facts["inference"]}
        model = load_weights(facts["config"], tensors, "the pretrained model", facts=inference)
        # options that are wrong raise here, not in the first forecast
        stored_options(model)
        return {PRETRAINED: FittedPretrained(on_device(model, torch.device("cpu")), season, horizon)}
