"""What a file of a forecaster holds, and the fitted forecaster from it. See `toa.estimators.base` for the format."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toa._checks import ArgumentError, check_at_least, check_count, check_shape
from toa._limits import check_unpacked, shorten
from toa.data.frequency import season_of
from toa.estimators.architecture import NETWORK
from toa.estimators.baselines import REGRESSIONS
from toa.estimators.calibrated import Choice
from toa.estimators.context import ContextRows
from toa.estimators.covariate_effects import CovariateEffect
from toa.estimators.covariate_use import find_unused
from toa.estimators.covariates import Covariates
from toa.estimators.families import FAMILIES
from toa.estimators.files import tensors_under
from toa.estimators.fitted import FittedForecaster
from toa.estimators.methods import FittedMethod, UsesCovariates
from toa.estimators.network import FittedNetwork, Inputs, build_network
from toa.estimators.regressions import FittedRegression
from toa.estimators.saved_types import check_columns, check_frequency, check_ids, check_network
from toa.estimators.settings import ForecastSettings
from toa.training.checkpoint import model_with
from toa.training.distributed import resolve_device


def forecaster_state(fitted: FittedForecaster) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, without those of the network, and JSON values."""
    tensors = {f"scaler.{name}": part for name, part in fitted.inputs.scaler.items()}
    if fitted.network is not None:
        limits = {"width": fitted.network.width, "counts": fitted.network.counts}
        tensors |= {name: part for name, part in limits.items() if part is not None}
    if fitted.effect is not None:
        tensors["effect"] = torch.from_numpy(fitted.effect)
    if fitted.context is not None:
        tensors["context"] = torch.from_numpy(fitted.context.validated)
    facts: dict[str, Any] = {
        "columns": list(fitted.columns),
        "ids": list(fitted.inputs.ids),
        "id": fitted.id_column,
        "known": fitted.inputs.covariates.state(),
        "season": fitted.season,
        "day_first": fitted.day_first,
        "unused": dict(fitted.unused),
    }
    curves = fitted.covariate_effect
    if curves is not None:
        tensors["curves"] = torch.from_numpy(curves.weights.copy())
        facts["curves"] = curves.state()
    for key, family in FAMILIES.items():
        parts, state = family.save(fitted.panel_methods)
        if state:
            facts.setdefault("methods", {})[key] = state
            tensors |= {f"methods.{key}.{name}": part for name, part in parts.items()}
    if fitted.choice is not None:
        parts, facts["choice"] = fitted.choice.state()
        tensors |= {f"choice.{name}": part for name, part in parts.items()}
    return tensors, facts


def restore_forecaster(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], settings: ForecastSettings, where: str | Path
) -> FittedForecaster:
    """The forecaster of a file; raises an error for parts that do not fit one another."""
    freq = facts["freq_"]
    time_column = facts["time_"]
    check_count("lookback", facts["lookback_"], 1)
    # no asserts: `python -O` leaves them out
    for name, column in (("time", time_column), ("id", facts.get("id"))):
        if not isinstance(column, str | None):
            raise ArgumentError(name, "be the name of a column", shorten(column))
    check_frequency(freq)
    inputs = Inputs(
        ids=check_ids(facts["ids"]),
        columns=check_columns("columns", facts["columns"]),
        lookback=facts["lookback_"],
        covariates=_restore_covariates(facts, settings),
        scaler=tensors_under(tensors, "scaler."),
    )
    _check_shapes(tensors, inputs, settings)
    # older files hold the network alone
    season = facts["season"] if "season" in facts else season_of(freq) or 1
    panel_methods = _restore_panel_methods(tensors, facts, inputs, settings, season)
    choice = _restore_choice(tensors, facts, inputs, settings, season, panel_methods)
    fitted = FittedForecaster(
        horizon=settings.horizon,
        quantiles=settings.quantiles,
        interval=settings.interval,
        freq=freq,
        time_column=time_column,
        id_column=facts.get("id"),
        day_first=facts.get("day_first"),
        season=season,
        inputs=inputs,
        network=_restore_network(tensors, facts, inputs, settings, where),
        choice=choice,
        panel_methods=panel_methods,
        truncated=tuple(map(str, facts.get("truncated", ()))),
        unused=_restore_unused(facts, inputs, choice, panel_methods),
        # older files do not have it
        context=ContextRows(tensors["context"].cpu().numpy()) if "context" in tensors else None,
    )
    check_network(fitted.weights, fitted.network)
    return fitted


def _restore_covariates(facts: Mapping[str, Any], settings: ForecastSettings) -> Covariates:
    """The features; raises ValueError for others than those of the parameters."""
    covariates = Covariates.from_state(facts["known"])
    wanted = settings.covariates
    for name in ("covariates", "static", "past_covariates", "holidays"):
        if getattr(covariates, name) != getattr(wanted, name):
            raise ArgumentError(f"known {name}", "be those of the parameters", shorten(getattr(covariates, name)))
    return covariates


def _restore_panel_methods(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], inputs: Inputs, settings: ForecastSettings, season: int
) -> dict[str, FittedMethod]:
    """The methods that read a whole table; raises an error for those of other features."""
    panel_methods: dict[str, FittedMethod] = {}
    if "effect" in tensors:
        linear = tensors["effect"].cpu().numpy()
        # older files hold the linear effect alone
        curves = None
        if "curves" in facts:
            curves = CovariateEffect.from_state(facts["curves"], tensors["curves"].cpu().numpy())
        for name in REGRESSIONS:
            panel_methods[name] = FittedRegression(name, linear, curves, season, settings.horizon)
    for key, state in facts.get("methods", {}).items():
        parts = tensors_under(tensors, f"methods.{key}.")
        panel_methods |= FAMILIES[key].load(parts, state, season, settings.horizon)
    for method in panel_methods.values():
        if isinstance(method, UsesCovariates):
            # raises an error for features beyond the last one
            method.used_features(inputs.covariates.count)
    return panel_methods


def _restore_unused(
    facts: Mapping[str, Any], inputs: Inputs, choice: Choice | None, panel_methods: Mapping[str, FittedMethod]
) -> dict[str, float | None]:
    """Covariates without an influence on the forecast; older files do not hold by how much the error would change."""
    if "unused" in facts:
        return {str(name): None if change is None else float(change) for name, change in facts["unused"].items()}
    weights = {} if choice is None else choice.ensemble.weights
    if choice is None or NETWORK in weights:
        return {}
    methods = [method for name, method in panel_methods.items() if name in weights]
    used = [method.used_features(inputs.covariates.count) for method in methods if isinstance(method, UsesCovariates)]
    return find_unused(inputs.covariates, used, {}, {})


def _check_shapes(tensors: Mapping[str, Tensor], inputs: Inputs, settings: ForecastSettings) -> None:
    """Raise ValueError for tensors of other sizes than the columns, ids and features."""
    series = len(inputs.ids)
    columns = len(inputs.columns)
    for name in ("mean", "std", *inputs.scaler):
        check_shape(f"scaler.{name}", inputs.scaler[name], "(S, C)", (series, columns))
    sizes = {
        "width": ("(P, C)", (settings.horizon, columns)),
        "counts": ("(C,)", (columns,)),
        "context": ("(S, C)", (series, columns)),
        "effect": ("(F, C)", (inputs.covariates.count, columns)),
    }
    for name, (axes, shape) in sizes.items():
        if name in tensors:
            check_shape(name, tensors[name], axes, shape)


def _restore_choice(
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    inputs: Inputs,
    settings: ForecastSettings,
    season: int,
    panel_methods: Iterable[str],
) -> Choice | None:
    if "choice" not in facts:
        return None
    choice = Choice.from_state(tensors_under(tensors, "choice."), facts["choice"])
    check_at_least("season", season, 1)
    series = len(inputs.ids)
    columns = len(inputs.columns)
    check_unpacked("season", season * columns, tensors)
    choice.check(series, columns, settings.horizon, len(settings.quantiles), season, panel_methods)
    return choice


def _restore_network(
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    inputs: Inputs,
    settings: ForecastSettings,
    where: str | Path,
) -> FittedNetwork | None:
    architecture = facts["architecture_"]
    schedule = facts["schedule_"]
    spec = settings.network
    if architecture["backbone"] is None:
        return None
    # the mean of several networks has their weights under their numbers
    numbers = {name.split(".")[2] for name in tensors if name.startswith("model.models.")}
    seeds = tuple(range(settings.seed, settings.seed + (len(numbers) or 1)))
    model = model_with(
        lambda: build_network(spec, inputs, architecture, schedule, seeds), tensors, architecture["settings"], where
    )
    return FittedNetwork(
        spec=spec,
        inputs=inputs,
        architecture=architecture,
        schedule=schedule,
        model=model.to(resolve_device(spec.device)),
        seeds=seeds,
        validation=facts["validation_"],
        width=tensors.get("width"),
        counts=tensors.get("counts"),
    )
