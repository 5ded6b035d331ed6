"""Forecasting: train on windows of a series, choose the epoch by validation, test on every test window.

Alphabet: B batch, L look-back, P horizon, C channels, F features, Q quantile levels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toa._checks import check_at_least, check_choice, check_positive
from toa._limits import most_windows
from toa.data import DATASETS, SPLIT_RULES, ForecastData, load_forecast, locate, mark_names
from toa.data.windows import Windows
from toa.models import BackboneForecaster, ForecastModel, build_forecaster
from toa.nn.registry import ADDED_LATER
from toa.training.base import TASKS, Evaluation, Task, check_sample, model_checkpoint
from toa.training.checkpoint import Checkpoint
from toa.training.config import RunConfig
from toa.training.metrics import FORECAST_METRICS, evaluating, mean_metrics, pinball_error
from toa.training.step import ShuffledBatches

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# windows per batch without gradients, and windows times channels of one on a GPU
_EVALUATION_BATCH = 512
_EVALUATION_SERIES = 65_536
# width of the network from features to their effect
_FEATURE_WIDTH = 32

# windows times channels that a shortcut is fitted to, at most
_RIDGE_SERIES = 60_000

# PyTorch's own versions of the means of `FORECAST_METRICS`, with fused gradients
_LOSSES = {"mse": F.mse_loss, "mae": F.l1_loss}


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastRun(RunConfig):
    """Config of one forecasting run.

    Args:
        lookback: Number of steps that the model sees.
        drop_last: Drop the last, smaller batch of an epoch in training. Evaluation uses every window.
        marks: Give the model calendar features.
        fill: How to fill missing values in a file: "ffill" or "interpolate"; None raises an error.
        allow_constant: Leave a column unscaled that is constant in training; otherwise it raises an error.
        date_column: Column of dates in a user's file; "" if it has none.
        loss: The loss that is minimised, and compared on validation.
        test: Whether to measure the test split. A search sets it to false: then no test error exists to choose by.
        split: Rule of the split, a name of `toa.data.SPLIT_RULES`; None for that of the dataset.
        clip: Standardised values beyond this size count as this size, in inputs and targets; None changes no value.
        epoch_steps: Most batches of an epoch, of windows drawn again for each epoch; None for all windows.
        missing_values: Numbers that mean a missing value in a user's file, such as -9999; None warns of such numbers.
        most_columns: Columns that are used, drawn evenly; fewer are a part of more. None for all.
        train_windows: Windows to train on, the last before validation; None for all.
    """

    task: ClassVar[str] = "forecast"

    horizon: int
    lookback: int
    drop_last: bool = False
    marks: bool = False
    fill: Literal["ffill", "interpolate"] | None = None
    allow_constant: bool = False
    date_column: str = "date"
    loss: Literal["mse", "mae"] = "mse"
    test: bool = field(default=True, metadata=ADDED_LATER)
    split: str | None = field(default=None, metadata=ADDED_LATER)
    clip: float | None = field(default=None, metadata=ADDED_LATER)
    epoch_steps: int | None = field(default=None, metadata=ADDED_LATER)
    missing_values: float | tuple[float, ...] | None = field(default=None, metadata=ADDED_LATER)
    most_columns: int | None = field(default=None, metadata=ADDED_LATER)
    train_windows: int | None = field(default=None, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        # a dataclass with slots cannot use super() without arguments
        RunConfig.__post_init__(self)
        check_at_least("horizon", self.horizon, 1)
        check_at_least("lookback", self.lookback, 1)
        if self.split is not None:
            check_choice("split", self.split, SPLIT_RULES)
        if self.clip is not None:
            check_positive("clip", self.clip)
        if self.epoch_steps is not None:
            check_at_least("epoch_steps", self.epoch_steps, 1)
        if self.most_columns is not None:
            check_at_least("most_columns", self.most_columns, 1)
        if self.train_windows is not None:
            check_at_least("train_windows", self.train_windows, 1)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ForecastWindows:
    """What `build`, `batches` and `validate` read of `ForecastData`.

    Attributes:
        train: Windows to train on; None to build a model only.
        val: Windows to choose the epoch by; None keeps the last epoch.
    """

    channels: int
    train: Any = None
    val: Any = None


class Forecasting(Task):
    """Forecast all channels of a series; see `Task` for the methods."""

    config = ForecastRun
    catalogue = DATASETS

    def locate(self, dataset: str, data_dir: Path | None) -> Sequence[Path]:
        return (locate(DATASETS[dataset], data_dir),)

    def load(self, config: ForecastRun, device: torch.device, data_dir: Path | None = None) -> ForecastData:
        """Load the windows; runs of one process with the same windows share one copy."""
        path = locate(DATASETS[config.dataset], data_dir) if config.dataset in DATASETS else Path(config.dataset)
        path = path.expanduser()
        # a file that was rewritten is read again
        stamp = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
        names = (
            *("lookback", "horizon", "marks", "fill", "allow_constant", "split", "clip", "missing_values"),
            *("most_columns", "train_windows"),
        )
        how = {name: getattr(config, name) for name in names} | {"date_column": config.date_column or None}
        return _load_shared(config.dataset, stamp, data_dir, device, **how)

    def sample(self, config: ForecastRun, index: int, data_dir: Path | None = None) -> tuple[Tensor | None, ...]:
        windows = self.load(config, torch.device("cpu"), data_dir).test
        x, _, marks, future = windows.batch(torch.tensor([check_sample(index, len(windows))]))
        return x, marks, future

    def build(self, config: ForecastRun, data: ForecastData | ForecastWindows) -> nn.Module:
        """Build the untrained model; a shortcut that starts as a ridge regression is fitted to training windows."""
        model = build_forecaster(
            config.backbone,
            lookback=config.lookback,
            horizon=config.horizon,
            channels=data.channels,
            num_marks=len(mark_names()) if config.marks else 0,
            attention=config.attention,
            settings=config.model,
        )
        # a model of quantiles has a longer horizon than its windows
        fits = data.train is not None and data.train.horizon == config.horizon
        if isinstance(model, BackboneForecaster) and model.shortcut is not None and fits:
            count = min(len(data.train), max(1, _RIDGE_SERIES // data.channels))
            index = torch.linspace(0, len(data.train) - 1, count).long()
            batches = (data.train.batch(part)[:2] for part in index.split(_EVALUATION_BATCH))
            model.fit_shortcut((x, self.target(config, x, y)) for x, y in batches)
        return model

    def target(self, config: Any, x: Tensor, y: Tensor) -> Tensor:
        """What the inner model forecasts."""
        return y

    def rebuild(self, config: ForecastRun, saved: Checkpoint) -> nn.Module:
        facts: Any = saved.facts
        return self.build(config, ForecastWindows(channels=len(facts["columns"])))

    def batches(
        self, config: ForecastRun, data: ForecastData | ForecastWindows, device: torch.device
    ) -> ShuffledBatches:
        batches = ShuffledBatches(data.train, config.batch_size, seed=config.seed, drop_last=config.drop_last)
        if config.epoch_steps is not None:
            batches.steps_per_epoch = min(config.epoch_steps, batches.steps_per_epoch)
        return batches

    def loss(self, config: ForecastRun, fabric: "Fabric") -> Callable[..., Tensor]:
        return partial(forecast_loss, error=_LOSSES[config.loss], autocast=fabric.autocast)

    def validate(self, config: ForecastRun, data: ForecastData | ForecastWindows) -> Callable[[nn.Module], float]:
        return lambda model: evaluate_forecaster(model, data.val)[config.loss]

    def evaluate(self, config: ForecastRun, model: nn.Module, data: ForecastData) -> Evaluation:
        test = evaluate_forecaster(model, data.test) if config.test else {}
        validation = evaluate_forecaster(model, data.val)
        return Evaluation(
            metrics=test | {f"val_{name}": value for name, value in validation.items()},
            facts={
                "windows": {"train": len(data.train), "val": len(data.val), "test": len(data.test)},
                "subset_of": None if data.spec is None else data.spec.subset_of,
            },
            artifacts={self.model_file: model_checkpoint(config, model, data.scaler, columns=list(data.columns))},
        )


FORECASTING = Forecasting()
TASKS.register("forecast")(FORECASTING)


@lru_cache(maxsize=8)
def _load_shared(dataset: str, stamp: object, data_dir: Path | None, device: torch.device, **how: Any) -> ForecastData:
    return load_forecast(dataset, data_dir=data_dir, device=device, **how)


def evaluation_batches(windows: Windows, batch_size: int = _EVALUATION_BATCH) -> Iterator[tuple[Tensor, ...]]:
    """x, y and, if any, the marks of both, for all windows in order.

    Batches fit the memory budget on a CPU; on other devices, those of many channels are smaller.
    """
    if windows.device.type != "cpu":
        batch_size = max(1, min(batch_size, _EVALUATION_SERIES // windows.channels))
    elif len(windows):
        batch_size = min(
            batch_size, most_windows(windows.batch(torch.zeros(1, dtype=torch.long))[0].shape[2], training=False)
        )
    for index in torch.arange(len(windows)).split(batch_size):
        yield tuple(part for part in windows.batch(index) if part is not None)


def forecast_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    marks: Tensor | None = None,
    future_marks: Tensor | None = None,
    *,
    error: Callable[[Tensor, Tensor], Tensor] = F.mse_loss,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Tensor:
    """Training loss: the mean error, plus the penalty of a model that has `forecast_and_penalty`.

    `error` maps forecast and target to their mean error. `autocast` sets the precision of `forecast_and_penalty`;
    Fabric sets only that of `forward`.
    """
    with_penalty = getattr(model, "forecast_and_penalty", None)
    if with_penalty is None:
        return error(model(x, marks, future_marks), y)
    with autocast():
        forecast, penalty = with_penalty(x, marks, future_marks)
    return error(forecast.to(y.dtype), y) + penalty.to(y.dtype)


def evaluate_forecaster(model: nn.Module, windows: Windows, *, batch_size: int = _EVALUATION_BATCH) -> dict[str, float]:
    """MSE and MAE over all windows, steps and channels."""
    with evaluating(model):
        batches = evaluation_batches(windows, batch_size)
        return mean_metrics(FORECAST_METRICS, ((model(x, *marks), y) for x, y, *marks in batches))


class HorizonModel(nn.Module):
    """Forecast the next P values of a series (B, L, C) at each of Q quantile levels: (B, P, Q, C).

    The inner model f forecasts P * Q values per channel, the levels of a step next to each other. A network g learns
    the effect of the features (calendar, covariates): f(x - g(past features)) + g(future features), initially g = 0.

    Features that are known only in the past are the last ones: a linear map of their values in the look-back is added,
    initially 0.

    Args:
        season: Steps of a season: f forecasts the difference from the last season; 0 for none.
        features: Number of all features F.
        past_features: Number of features that are known only in the past.
        around: Steps before and after a step whose features g reads too; the last step of the horizon is repeated.
    """

    def __init__(
        self,
        model: ForecastModel,
        *,
        levels: int,
        features: int,
        channels: int,
        season: int = 0,
        past_features: int = 0,
        around: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.levels = levels
        self.season = season
        self.known = features - past_features
        self.around = around
        self.effect: nn.Module | None = None
        self.lagged: nn.Linear | None = None
        if self.known:
            last = nn.Linear(_FEATURE_WIDTH, channels)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.effect = nn.Sequential(nn.Linear(self.known * (2 * around + 1), _FEATURE_WIDTH), nn.GELU(), last)
        if past_features:
            steps = model.horizon // levels
            self.lagged = nn.Linear(model.lookback * past_features, steps * channels, bias=False)
            nn.init.zeros_(self.lagged.weight)

    def forward(self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None) -> Tensor:
        """Forecast at all levels."""
        return self._forecast(self.model, series, marks, future_marks)[0]

    def forecast_and_penalty(
        self, series: Tensor, marks: Tensor | None = None, future_marks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Forecast at all levels, and the auxiliary loss of the inner model, zero if it has none."""
        inner = getattr(self.model, "forecast_and_penalty", None)
        if inner is None:
            return self(series, marks, future_marks), series.new_zeros(())
        return self._forecast(inner, series, marks, future_marks)

    def _forecast(
        self, inner: Callable[..., Any], series: Tensor, marks: Tensor | None, future_marks: Tensor | None
    ) -> tuple[Tensor, Any]:
        """Forecast at all levels from the outputs of `inner`, and its second output, None if it has one output."""
        before, after = self._effects(marks, future_marks)
        if before is not None:
            series = series - before
        found = inner(series)
        forecast, penalty = (found, None) if isinstance(found, Tensor) else found
        split: Tensor = forecast.unflatten(1, (-1, self.levels))  # (B, P, Q, C)
        if self.season:
            split = split + _last_season(series, self.season, split.shape[1]).unsqueeze(2)
        if self.lagged is not None and marks is not None:
            added = self.lagged(marks[..., self.known :].flatten(1)).unflatten(1, (split.shape[1], -1))  # (B, P, C)
            split = split + added.unsqueeze(2)
        if after is not None:
            split = split + after.unsqueeze(2)
        return split, penalty

    def _effects(self, marks: Tensor | None, future_marks: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Effects of the features in the look-back (B, L, C) and in the forecast steps (B, P, C)."""
        parts = [part[..., : self.known] for part in (marks, future_marks) if part is not None]
        if self.effect is None or not parts:
            return None, None
        # both together, because steps at their border are neighbours
        effects = self.effect(_with_neighbours(torch.cat(parts, 1), self.around))
        if marks is None:
            return None, effects
        rows = marks.shape[1]
        return effects[:, :rows], None if future_marks is None else effects[:, rows:]


def _with_neighbours(features: Tensor, around: int) -> Tensor:
    """Features (B, T, F) of each step and of its neighbours, (B, T, (2 around + 1) F); the ends are repeated."""
    if not around:
        return features
    steps = features.shape[1]
    moved = torch.arange(-around, around + 1, device=features.device)
    places = (torch.arange(steps, device=features.device)[:, None] + moved).clamp(0, steps - 1)  # (T, 2 around + 1)
    return features[:, places].flatten(2)


def _last_season(series: Tensor, season: int, horizon: int) -> Tensor:
    """The last season, repeated, minus the mean of the series, which the inner model adds: (B, P, C)."""
    steps = torch.arange(horizon, device=series.device) % season
    return series[:, -season:][:, steps] - series.mean(1, keepdim=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class HorizonRun(ForecastRun):
    """Config of a `HorizonModel`.

    Args:
        levels: Quantile levels, trained with the pinball loss; none trains with `loss`.
        season: Steps of a season whose last values are added; 0 for none.
        steps: Batches per epoch, which may use only a part of the windows.
        around: Steps before and after a step whose features act on it.
    """

    levels: tuple[float, ...] = ()
    features: int = 0
    past_features: int = 0
    season: int = 0
    steps: int = 1
    around: int = 0


class HorizonForecasting(Forecasting):
    """The task of `HorizonModel`: forecasting with quantiles and features."""

    config = HorizonRun

    def build(self, config: Any, data: Any) -> nn.Module:
        levels = max(1, len(config.levels))
        model: Any = super().build(replace(config, horizon=config.horizon * levels), data)
        sizes = {name: getattr(config, name) for name in ("features", "past_features", "season", "around")}
        return HorizonModel(model, levels=levels, channels=data.channels, **sizes)

    def target(self, config: Any, x: Tensor, y: Tensor) -> Tensor:
        """The difference from the last season, if the config has one."""
        return y - _last_season(x, config.season, y.shape[1]) if config.season else y

    def batches(self, config: Any, data: Any, device: torch.device) -> ShuffledBatches:
        batches = super().batches(config, data, device)
        batches.steps_per_epoch = config.steps
        return batches

    def loss(self, config: Any, fabric: Any) -> Callable[..., Tensor]:
        error = _error_of(config, fabric.device)
        return partial(forecast_loss, error=lambda forecast, y: error(forecast, y).mean(), autocast=fabric.autocast)

    def validate(self, config: Any, data: Any) -> Any:
        if data.val is None:
            return None
        error = _error_of(config, data.val.device)

        def validate(model: nn.Module) -> float:
            total = torch.zeros((), dtype=torch.float64)
            for x, y, *marks in evaluation_batches(data.val):
                total += error(model(x, *marks), y).mean(dtype=torch.float64).cpu() * len(x)
            return float(total) / len(data.val)

        return validate


def _error_of(config: HorizonRun, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Elementwise error of a forecast (B, P, Q, C) against (B, P, C): pinball for levels, else the metric `loss`."""
    if not config.levels:
        metric = FORECAST_METRICS[config.loss]
        return lambda forecast, y: metric(forecast.squeeze(2), y)
    # on the training device, so that a step does not wait for a copy
    levels = torch.tensor(config.levels, device=device)
    return lambda forecast, y: pinball_error(forecast, y, levels)
