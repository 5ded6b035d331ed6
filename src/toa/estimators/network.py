"""The network of a forecaster: what it reads, how it is trained, and what it forecasts.

    plan = plan_network(panel, columns, settings, season)    # inputs, architecture, schedule, windows
    network = train_network(plan, seed)                      # FittedNetwork, frozen
    network.predict(panel, places)                           # a Prediction in the units of the data

Alphabet: B batch, L look-back, P horizon, C columns, F features, S series, T rows, W windows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toa._checks import Argument, ArgumentError, Phrase, check_choice
from toa._limits import most_windows
from toa._threads import one_thread_if
from toa.data.panel import Id, Panel
from toa.data.scaling import StandardScaler, check_standardised
from toa.data.windows import Windows, place_series
from toa.estimators import sizes
from toa.estimators.architecture import attention_spec, train_task
from toa.estimators.covariates import Covariates
from toa.estimators.effort import Effort
from toa.estimators.methods import ForecastRows, Histories, to_rows
from toa.estimators.origins import series_scale
from toa.estimators.settings import ForecastSettings, NetworkSpec
from toa.estimators.units import MeanModel, Prediction, UnitsModel, conformal_width, join_batches, spread
from toa.models import BACKBONES, backbone_names
from toa.training.distributed import resolve_device
from toa.training.forecast import ForecastWindows, HorizonForecasting, evaluation_batches
from toa.training.optimization import TrainingConfig

# largest number of held-out windows times columns; if there are more, every second, third, … window is used
_HELD = 60_000
# windows per batch without gradients
_BATCH = 512
# weights times columns times windows below which a forecast has one thread: about five milliseconds of work
_ONE_THREAD = 2_000_000
# share of the epochs in which the rate rises: training does not stop early in them
_RISE = 0.3
# how a network is trained, beside the parameters of the forecaster
_TRAINING: Mapping[str, Any] = {"schedule": "onecycle", "weight_decay": 0.01, "clip_norm": 4.0}
# regular series keep this share of their deviation
_LEAST_DEVIATION = 0.01
# steps before and after a step whose covariates act on it
_AROUND = 2
_TASK = HorizonForecasting()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Inputs:
    """What a forecast is made from: the columns of known series, their scales, and features.

    Attributes:
        ids: Ids of the series; (None,) without ids.
        columns: Columns to forecast.
        lookback: Steps L of the network.
        covariates: Computes the features.
        scaler: "mean" and "std" (S, C); beside other methods std is the seasonal error, and "deviation" the deviation.
    """

    ids: tuple[Id, ...]
    columns: tuple[str, ...]
    lookback: int
    covariates: Covariates
    scaler: Mapping[str, Tensor]

    @property
    def deviation(self) -> Tensor:
        """Standard deviation (S, C)."""
        return self.scaler.get("deviation", self.scaler["std"])

    def owners(self, panel: Panel) -> Tensor:
        """Place in `ids` of each series of the panel."""
        places = {name: place for place, name in enumerate(self.ids)}
        return torch.tensor([0 if len(places) == 1 else places[name] for name in panel.ids])

    def check_range(self, panel: Panel) -> None:
        """Raise ValueError for values that are too far from those of fit."""
        owners = self.owners(panel).tolist()
        for index, (owner, values) in enumerate(zip(owners, panel.take(self.columns), strict=True)):
            scaler = StandardScaler(self.scaler["mean"][owner].numpy(), self.deviation[owner].numpy())
            check_standardised(scaler.transform(values), self.columns, panel.label(index))

    def standardise(self, panel: Panel) -> list[np.ndarray]:
        """Values (T, C) of the series of fit, in the order of `ids`, as the network reads them."""
        parts = zip(self.scaler["mean"].numpy(), self.scaler["std"].numpy(), panel.take(self.columns), strict=True)
        return [StandardScaler(mean, std).transform(values) for mean, std, values in parts]

    def with_series(self, ids: Sequence[Id], scaler: Mapping[str, Tensor]) -> "Inputs":
        """The inputs with further series."""
        joined = {name: torch.cat([part, scaler[name]]) for name, part in self.scaler.items()}
        wider: Inputs = replace(self, ids=(*self.ids, *ids), scaler=joined)
        return wider


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedNetwork:
    """A trained network, or the mean of several that differ in their seeds.

    Attributes:
        architecture: Backbone, attention and settings.
        schedule: Batch size, steps per epoch, maximum number of epochs and the factor of the operators' rate.
        validation: Loss on the held-out rows, standardised; of several networks the mean.
        best_epoch: Epoch with the least loss, from 0; of several networks that of the first.
        width: Half of the interval (P, C), in spreads; None without an interval of its own.
        counts: Mask (C,) of columns whose forecasts are at least 0; None where others see to that.
    """

    spec: NetworkSpec
    inputs: Inputs
    architecture: Mapping[str, Any]
    schedule: Mapping[str, Any]
    model: nn.Module
    seeds: tuple[int, ...]
    validation: float | None
    best_epoch: int = 0
    width: Tensor | None = None
    counts: Tensor | None = None

    @property
    def with_units(self) -> UnitsModel:
        """The model in the units of the data."""
        return self.add_units(self.model)

    def add_units(self, model: nn.Module) -> UnitsModel:
        """A copy of the model of the network in the units of the data."""
        scaler = self.inputs.scaler
        spec = self.spec
        limits = {"width": self.width, "counts": self.counts}
        units = UnitsModel(model, scaler["mean"], scaler["std"], point=spec.point, shown=spec.shown, **limits)
        return units.to(next(model.parameters()).device).eval()

    def predict(
        self, panel: Panel, places: Sequence[tuple[int, int]], ahead: Sequence[np.ndarray] | None = None
    ) -> Prediction:
        """Forecasts of windows: series of the panel, each with its first row to forecast.

        Features come from the panel; those after the end of a series are `ahead`, (P, F) per series.
        """
        lookback = self.inputs.lookback
        horizon = self.spec.horizon
        features = self.inputs.covariates.past(panel)
        if features is not None and ahead is not None:
            features = [np.concatenate(pair) for pair in zip(features, ahead, strict=True)]
        series = torch.tensor([index for index, _ in places])
        owners = self.inputs.owners(panel)[series]
        size = min(_BATCH, most_windows(len(self.inputs.columns), training=False))
        model = self.with_units
        weights = sum(weight.numel() for weight in model.parameters())
        parts = []
        for start in range(0, len(places), size):
            batch = places[start : start + size]
            before: Tensor | None = None
            after: Tensor | None = None
            if features is not None:
                marks = _cut_windows(features, batch, lookback, horizon)
                marks = self.inputs.covariates.hold(marks, features, panel, batch, lookback)
                before, after = torch.from_numpy(marks).float().tensor_split([lookback], 1)
            rows = torch.from_numpy(np.stack(panel.past(self.inputs.columns, batch, lookback)))
            with one_thread_if(weights * len(self.inputs.columns) * len(batch) < _ONE_THREAD):
                parts.append(model.predict(rows, owners[start : start + size], before, after))
        return join_batches(parts)

    def forecast(self, histories: Histories) -> ForecastRows:
        """See `FittedMethod`."""
        assert histories.panel is not None
        prediction = self.predict(histories.panel, histories.places, histories.ahead)
        return to_rows(prediction["forecast"].numpy())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NetworkPlan:
    """What is trained, and on which windows.

    Attributes:
        validation: Loss of an earlier training, if there are no windows to validate on.
        stop: Held-out windows that stop the training; None for none.
        held: Held-out windows that set the interval of the network alone.
    """

    spec: NetworkSpec
    inputs: Inputs
    architecture: Mapping[str, Any]
    schedule: Mapping[str, Any]
    train: Windows
    stop: Windows | None
    held: Windows | None = None
    validation: float | None = None

    @property
    def data(self) -> ForecastWindows:
        """The windows, with the sizes that the model depends on."""
        return ForecastWindows(channels=len(self.inputs.columns), train=self.train, val=self.stop)


def plan_network(
    panel: Panel,
    columns: tuple[str, ...],
    settings: ForecastSettings,
    season: int | None,
    *,
    plain: bool = False,
    rows: Sequence[int] = (),
) -> NetworkPlan:
    """Choose look-back, architecture and schedule of a network, and its windows.

    Args:
        season: Season by which errors are scaled, as in MASE; None standardises, for the network alone.
        plain: Whether to forecast the values themselves, not their difference from the last season.
        rows: Lengths of the series with the rows of the rolling origins, for the error; those of the panel if empty.
    """
    spec = settings.network
    borders = settings.borders(panel.lengths)
    lookback = int(spec.lookback or sizes.choose_lookback(int(np.median(borders)), spec.horizon, season))
    _check_rows(panel, borders, lookback, settings, rows or panel.lengths)
    covariates = settings.covariates.fit(panel, borders, calendar=settings.calendar)
    inputs = fit_inputs(panel, columns, lookback, covariates, borders, season)
    train, stop, held = split_windows(panel, inputs, borders, spec, halves=settings.halves)
    architecture, rate = choose_architecture(spec, inputs, len(train), season, plain=plain)
    schedule: dict[str, Any] = sizes.choose_schedule(
        len(train), len(columns), batch_size=spec.batch_size, epochs=spec.epochs
    )
    schedule["operator_rate"] = rate if spec.operator_rate is None else spec.operator_rate
    return NetworkPlan(
        spec=spec, inputs=inputs, architecture=architecture, schedule=schedule, train=train, stop=stop, held=held
    )


def _check_rows(
    panel: Panel, borders: Sequence[int], lookback: int, settings: ForecastSettings, rows: Sequence[int]
) -> None:
    """Raise ValueError if there are too few rows to train on."""
    need = lookback + settings.horizon
    # a given look-back is needed of every series; a chosen one of the longest, and shorter ones are padded
    least = min(borders) if settings.network.lookback is not None else max(borders)
    if least < need:
        index = list(borders).index(least)
        remedy = "rows (an interval holds out at least 4 horizons)" if settings.halves else "rows"
        raise ArgumentError(
            panel.label(index),
            Phrase(
                "have at least ",
                Argument("lookback"),
                " + ",
                Argument("horizon"),
                f" = {need} rows to train on besides the {rows[index] - borders[index]} held out",
            ),
            f"{rows[index]} rows in all",
            Phrase("shorten ", Argument("lookback"), " or ", Argument("horizon")),
            f"add {remedy}",
        )


def limit_plan(plan: NetworkPlan, effort: Effort) -> NetworkPlan | None:
    """The plan with the steps that the effort allows, unless the user chose the epochs; None if these are too few."""
    if plan.spec.epochs is not None:
        return plan
    schedule = limit_work(plan.schedule, len(plan.inputs.columns), effort)
    return None if schedule is None else replace(plan, schedule=schedule)


def limit_work(schedule: Mapping[str, Any], columns: int, effort: Effort) -> dict[str, Any] | None:
    """The schedule with the steps that the effort allows for this number of columns; None if these are too few."""
    per_step = schedule["batch_size"] * columns
    return sizes.limit_schedule(dict(schedule), min(effort.network_steps, effort.network_windows // per_step))


def training_seconds(plan: NetworkPlan, seed: int) -> float:
    """Expected time of a training by the schedule."""
    config = _config(plan.spec, plan.inputs, plan.architecture, plan.schedule, seed, epochs=1)
    return sizes.training_seconds(plan.schedule, _TASK.seconds_per_step(config, plan.data, plan.spec.device))


def train_network(plan: NetworkPlan, seed: int) -> FittedNetwork:
    """Train one network, without changing the global random state."""
    spec = plan.spec
    config = _config(spec, plan.inputs, plan.architecture, plan.schedule, seed, epochs=plan.schedule["epochs"])
    title = f"forecaster, horizon {spec.horizon}"
    model, state = train_task(_TASK, config, plan.data, device=spec.device, progress=spec.progress, title=title)
    return FittedNetwork(
        spec=spec,
        inputs=plan.inputs,
        architecture=plan.architecture,
        schedule=plan.schedule,
        model=model,
        seeds=(seed,),
        validation=plan.validation if plan.stop is None else state.best,
        best_epoch=state.best_epoch,
    )


def average_networks(networks: Sequence[FittedNetwork]) -> FittedNetwork:
    """The mean of networks that differ in their seeds; the network itself if there is one."""
    first = networks[0]
    if len(networks) == 1:
        return first
    mean: FittedNetwork = replace(
        first,
        model=MeanModel([network.model for network in networks]),
        seeds=tuple(seed for network in networks for seed in network.seeds),
        validation=mean_validation(networks),
    )
    return mean


def mean_validation(networks: Sequence[FittedNetwork]) -> float:
    """Mean loss of several networks on the held-out rows."""
    losses: Any = [network.validation for network in networks]
    return float(np.mean(losses))


@torch.no_grad()
def calibrate_network(network: FittedNetwork, held: Windows, level: float) -> Tensor:
    """Width (P, C) of the interval of a network alone, by held-out windows."""
    scores = []
    for x, y, *marks in evaluation_batches(held):
        forecast = network.model(x, *marks).sort(2).values[:, :, network.spec.point]  # (B, P, C)
        scores.append(((forecast - y).abs() / spread(x)).cpu())
    return conformal_width(torch.cat(scores), level).double()


def build_network(
    spec: NetworkSpec,
    inputs: Inputs,
    architecture: Mapping[str, Any],
    schedule: Mapping[str, Any],
    seeds: Sequence[int],
) -> nn.Module:
    """An untrained network, or the mean of as many as there are seeds."""
    config = _config(spec, inputs, architecture, schedule, seeds[0], epochs=1, batch_size=1)
    data = ForecastWindows(channels=len(inputs.columns), train=None, val=None)
    if len(seeds) == 1:
        return _TASK.build(config, data)
    return MeanModel(_TASK.build(config, data) for _ in seeds)


def _config(
    spec: NetworkSpec,
    inputs: Inputs,
    architecture: Mapping[str, Any],
    schedule: Mapping[str, Any],
    seed: int,
    *,
    epochs: int,
    batch_size: int | None = None,
) -> Any:
    """Config of the task; epochs, batch size and seed matter only in training."""
    attention = architecture.get("attention", spec.attention)
    return _TASK.config(
        protocol="",
        dataset="",
        backbone=architecture["backbone"],
        attention=None if attention is None else attention_spec(attention),
        model=architecture["settings"],
        training=TrainingConfig(
            epochs=epochs,
            learning_rate=spec.learning_rate,
            patience=spec.patience + int(_RISE * epochs),
            operator_rate=schedule.get("operator_rate", 1.0),
            **_TRAINING,
        ),
        batch_size=schedule["batch_size"] if batch_size is None else batch_size,
        seed=seed,
        horizon=int(spec.horizon),
        lookback=inputs.lookback,
        loss=spec.loss,
        season=architecture.get("season", 0),
        steps=schedule["steps"],
        features=inputs.covariates.count,
        past_features=inputs.covariates.past_count,
        # older files do not have it
        around=architecture.get("around", 0),
        levels=spec.levels,
    )


def choose_architecture(
    spec: NetworkSpec, inputs: Inputs, windows: int, season: int | None, *, plain: bool
) -> tuple[dict[str, Any], float]:
    """Backbone, attention and settings, unset ones by data size; and the factor of the operators' rate."""
    check_choice("backbone", spec.backbone, backbone_names("forecast"))
    lookback = inputs.lookback
    attention = spec.attention
    if attention is None and BACKBONES[spec.backbone].takes_attention:
        attention = sizes.DEFAULT_ATTENTION
    fields = None if attention is None else attention_spec(attention)
    recipe = sizes.choose_recipe(spec.backbone, None if fields is None else fields.name, windows)
    settings = sizes.choose_settings(spec.backbone, lookback, spec.horizon, season)
    facts = None if fields is None else {"name": fields.name, **fields.options()}
    if recipe and facts and isinstance(attention, str):
        settings |= {"dropout": recipe["dropout"]} if "dropout" in recipe else {}
        # with one column, its only token minus the mean over tokens would be zero
        if len(inputs.columns) > 1:
            facts["operator_init"] = recipe["operator_init"]
    settings |= spec.settings or {}
    architecture: dict[str, Any] = {"backbone": spec.backbone, "attention": facts}
    if season is not None:
        # the network forecasts the difference from the last season, if the look-back has two
        seasonal = 1 < season <= lookback // 2 and not plain
        architecture["season"] = season if seasonal else 0
    if inputs.covariates.covariates or inputs.covariates.holidays:
        architecture["around"] = _AROUND
    return architecture | {"settings": settings}, float(recipe.get("operator_rate", 1.0))


def fit_inputs(
    panel: Panel,
    columns: tuple[str, ...],
    lookback: int,
    covariates: Covariates,
    borders: Sequence[int],
    season: int | None,
) -> Inputs:
    """Inputs with the scales of the rows of each series before its border."""
    scaler = fit_scaler(panel, columns, list(enumerate(borders)), season)
    return Inputs(ids=panel.ids, columns=columns, lookback=lookback, covariates=covariates, scaler=scaler)


def fit_scaler(
    panel: Panel, columns: Sequence[str], ends: Sequence[tuple[int, int]], season: int | None
) -> dict[str, Tensor]:
    """Mean and std (S, C) of series, each before a row; with a season, std is the seasonal error."""
    histories = panel.histories(columns, ends)
    parts = [part[:, None] for part in histories]
    if panel.begins is None:
        parts = panel.past(columns, ends)
    scalers = [StandardScaler.fit(part, allow_constant=True) for part in parts]
    arrays = {name: np.stack([getattr(scaler, name) for scaler in scalers]) for name in ("mean", "std")}
    scaler = {name: torch.from_numpy(part.reshape(len(ends), -1)) for name, part in arrays.items()}
    if season is not None:
        scaler["deviation"] = scaler["std"]
        scale = torch.from_numpy(series_scale(histories, season))
        least = _LEAST_DEVIATION * scaler["std"]
        scaler["std"] = scale.view_as(scaler["std"]).nan_to_num(0.0).maximum(least)
    return scaler


def split_windows(
    panel: Panel, inputs: Inputs, borders: Sequence[int], spec: NetworkSpec, *, halves: bool = False
) -> tuple[Windows, Windows, Windows]:
    """Standardised windows to train on, of the rows before the borders, and held-out ones twice.

    These are the same unless `halves`: then those of the first half of the held-out rows, and of the second.
    """
    size = (inputs.lookback, spec.horizon)
    scaled = inputs.standardise(panel)
    # a series that is too short for a window gets rows before it: up to a horizon of windows, if it has values
    need = sum(size)
    most = spec.horizon
    pads = [need - stop + max(0, min(most, stop - most - 2)) if stop < need else 0 for stop in borders]
    device = resolve_device(spec.device)
    values = place_series(_join(scaled, pads), device=device)
    marks = None
    past = inputs.covariates.past(panel)
    if past is not None:
        marks = torch.from_numpy(_join(past, pads)).float().to(device)
    lengths = [rows + pad for rows, pad in zip(panel.lengths, pads, strict=True)]
    ends = [stop + pad for stop, pad in zip(borders, pads, strict=True)]
    middles = [(end + rows) // 2 for end, rows in zip(ends, lengths, strict=True)]
    spans = [(ends, middles), (middles, lengths)] if halves else [(ends, lengths)] * 2
    train = window_starts(lengths, [0] * len(panel), ends, *size)
    held = [window_starts(lengths, firsts, stops, *size) for firsts, stops in spans]
    held = [starts[:: -(-max(1, len(starts)) * len(inputs.columns) // _HELD)] for starts in held]

    def windows_at(starts: Tensor) -> Windows:
        return Windows(values, marks, (0, len(values)), inputs.lookback, spec.horizon, starts=starts, device=device)

    first, second = (windows_at(starts) for starts in held)
    return windows_at(train), first, second


def window_starts(
    lengths: Sequence[int], firsts: Sequence[int], stops: Sequence[int], lookback: int, horizon: int
) -> Tensor:
    """First row of each window in the table of all series joined along time.

    `lengths` are the rows of each series; its windows may forecast the rows from `firsts` up to `stops`.
    """
    begins = np.cumsum([0, *lengths]).tolist()
    starts = []
    for begin, first, stop in zip(begins, firsts, stops, strict=False):
        low = max(0, first - lookback)
        high = stop - lookback - horizon + 1
        # a short series may have no window
        starts.append(torch.arange(begin + low, begin + max(low, high)))
    return torch.cat(starts)


def _join(parts: Sequence[np.ndarray], pads: Sequence[int]) -> np.ndarray:
    """Arrays (T, ·) one after another, each with its first row repeated before it."""
    pairs = zip(parts, pads, strict=True)
    return np.concatenate([np.pad(part, ((pad, 0), (0, 0)), mode="edge") if pad else part for part, pad in pairs])


def _cut_windows(
    parts: Sequence[np.ndarray], places: Sequence[tuple[int, int]], lookback: int, later: int
) -> np.ndarray:
    """Rows of windows: the look-back before the first row to forecast, and `later` rows from it on."""
    # the first row is repeated before a series
    steps = np.arange(-lookback, later)
    return np.stack([parts[index][(first + steps).clip(0)] for index, first in places])
