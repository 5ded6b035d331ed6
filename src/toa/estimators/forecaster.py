"""Forecaster: from a table of readings to what comes next, with intervals and quantiles.

Alphabet: B batch, L look-back, P horizon, C columns, Q levels, S series, T rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

import toa
from toa._checks import check_at_least, check_choice
from toa.data.scaling import StandardScaler
from toa.estimators.answers import answer
from toa.estimators.backtest import Backtest, measure
from toa.estimators.base import Estimator
from toa.estimators.fitting import attention_spec, fit_model, restore_model
from toa.estimators.frames import Missing, Panel, read_panel
from toa.estimators.horizon import (
    HorizonModel,
    UnitsModel,
    apply_in_batches,
    conformal_width,
    horizon_error,
    horizon_loss,
    join_outcomes,
    spread,
)
from toa.estimators.known import Known, stacked, tail
from toa.estimators.panel_windows import PanelWindows, cut, join, window_starts
from toa.estimators.rows import match_columns
from toa.estimators.sizes import choose_lookback, choose_schedule, choose_settings
from toa.models import BACKBONES, backbone_names, build_forecaster
from toa.tasks.batches import ShuffledBatches
from toa.tasks.device import resolve_device
from toa.tasks.forecast import inputs_and_targets
from toa.tasks.metrics import FORECAST_METRICS
from toa.tasks.optimization import TrainingConfig

_ATTENTION = "toa-softmax"
# windows of one channel that are validated or calibrated on at most: every second, third, … beyond
_HELD = 60_000
_BATCH = 512
# learned, and plain enough for a file as it is
_FACTS = ("lookback_", "freq_", "time_", "validation_", "architecture_", "schedule_")


class Forecaster(Estimator):
    """Forecasts time series.

        model = toa.Forecaster(horizon=24, interval=0.8).fit(frame)  # pandas, polars or arrow; or an array (T, C)
        model.predict()                       # the next 24 steps: a frame like the one that came, in its units
        model.predict(new)                    # the same after the end of other rows
        model.backtest(frame, test_size=0.2)  # errors and coverage over rolling origins
        model.save("model.toa"); toa.Forecaster.load("model.toa")

    A wide frame is one series of several columns; with `id` the rows of each id are a series, of any length. One model
    is trained for all, with a level and a scale for each id and column. The last part of each series is held out:
    training stops when its forecasts there get no better, and intervals are calibrated on it.

    Args:
        horizon: Steps P to forecast.
        lookback: Steps L that a forecast is made from; None is by size.
        backbone: A name of `toa.models.BACKBONES`.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`; None is "toa-softmax", or
            none for a model that has none to choose.
        settings: Sizes and parts of the backbone; what is left out is small.
        quantiles: Levels in (0, 1) to forecast as well, by pinball loss; the forecast itself is then the median.
        interval: Probability, such as 0.8, of an interval around each forecast: split-conformal, for each step and
            column by itself; None for none.
        calendar: Whether to use hour, day and so on of each step.
        covariates: Columns that are known beforehand: not forecast, but given to `predict` as `future`.
        loss: "mse" or "mae"; without quantiles.
        epochs: Passes over the data at most; None is by size.
        batch_size: Windows a batch; None is by size.
        learning_rate: Highest of a schedule that rises and falls.
        patience: Epochs without a better forecast of the held-out rows after which training ends.
        validation_share: Last part of each series that is held out, at least one horizon.
        id: Column of ids, in a frame of several series.
        time: Column of times; None finds it.
        values: Columns to forecast; None is all others.
        freq: Frequency of the times; None infers it.
        missing: What to do about missing values and rows: "error", "ffill", "interpolate" or "zero".
        seed: Of weights, batches, dropout and SOR.
        device: "auto", "cpu", "cuda" or "cuda:N".
        progress: Whether to show a bar while fitting.

    Attributes:
        model_: The trained model, on standardised values.
        lookback_: Steps L.
        columns_: Names of what is forecast.
        ids_: Ids of the series; (None,) without ids.
        freq_: Frequency of the times.
        time_: Name of their column.
        architecture_: Backbone and its settings.
        schedule_: Batch size, steps of an epoch, and epochs at most.
        validation_: Loss on the held-out rows, standardised.
    """

    _kind = "forecaster"

    def __init__(
        self,
        horizon: int,
        *,
        lookback: int | None = None,
        backbone: str = "patchtst",
        attention: str | Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        quantiles: Sequence[float] = (),
        interval: float | None = None,
        calendar: bool = False,
        covariates: Sequence[str] = (),
        loss: str = "mse",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 2e-3,
        patience: int = 3,
        validation_share: float = 0.125,
        id: str | None = None,
        time: str | None = None,
        values: Sequence[str] | None = None,
        freq: str | int | None = None,
        missing: Missing = "error",
        seed: int = 2024,
        device: str = "auto",
        progress: bool = False,
    ) -> None:
        self.horizon = horizon
        self.lookback = lookback
        self.backbone = backbone
        self.attention = attention
        self.settings = settings
        self.quantiles = quantiles
        self.interval = interval
        self.calendar = calendar
        self.covariates = covariates
        self.loss = loss
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.validation_share = validation_share
        self.id = id
        self.time = time
        self.values = values
        self.freq = freq
        self.missing = missing
        self.seed = seed
        self.device = device
        self.progress = progress

    def fit(self, data: Any, y: Any = None) -> "Forecaster":
        """Learn to forecast.

        Args:
            data: A frame of pandas, polars or arrow, an array (T,) or (T, C), or a list of those.
            y: Not used; scikit-learn's pipelines pass it.

        Raises:
            ValueError: If the data cannot be read, or a series is too short.
        """
        self._check_parameters()
        self.__dict__.pop("_units", None)
        panel = self._read(data, self.freq)
        self.columns_ = tuple(column for column in panel.columns if column not in self.covariates)
        if not self.columns_:
            raise ValueError("data must have a column to forecast, got covariates alone; name fewer covariates.")
        self.ids_, self.freq_, self.time_ = panel.ids, panel.freq, panel.time_column
        borders = [rows - max(self.horizon, int(rows * self.validation_share)) for rows in panel.lengths]
        self.lookback_ = choose_lookback(min(borders), self.horizon) if self.lookback is None else int(self.lookback)
        self._check_lengths(panel, borders)
        self.known_ = Known.fit(panel, calendar=self.calendar, covariates=self.covariates, borders=borders)
        self.architecture_ = self._choose_architecture()
        scalers = [
            StandardScaler.fit(values[:border], columns=self.columns_, allow_constant=True).state()
            for values, border in zip(self._targets(panel), borders, strict=True)
        ]
        self.scaler_ = {name: torch.stack([scaler[name] for scaler in scalers]) for name in ("mean", "std")}  # (S, C)
        train, held = self._windows(panel, borders)
        self._train(train, held)
        self.width_ = None if self.interval is None else self._calibrate(held, self.interval)
        self._tail = tail(panel, self.lookback_)
        return self

    def predict(self, data: Any = None, *, future: Any = None, horizon: int | None = None) -> Any:
        """Forecast the steps after the end of each series.

        Args:
            data: Rows to go on from, the last `lookback_` at least of each series; None is where `fit` ended.
            future: Covariates of the steps to come, a table like data.
            horizon: Fewer steps than the forecaster was fitted for; None is all of them.

        Returns:
            A frame as data is: ids, times, and for each column its forecast, with "_lower" and "_upper" for the
            interval and "_q0.1" for a quantile. For an array, (P, C); with an interval or quantiles, a mapping with
            "forecast", "lower", "upper" (P, C) and "quantiles" (P, Q, C). For a list, a list of those.

        Raises:
            ValueError: If data have another column, a new id or another frequency than those of `fit`, or too few
                rows, or the horizon is longer.
        """
        self._check_fitted("asked for a forecast")
        steps = self._check_horizon(horizon)
        if data is None:
            if not hasattr(self, "_tail"):
                raise ValueError(
                    "data must be given to a forecaster that was loaded, which keeps no rows, got None; pass the last "
                    f"{self.lookback_} rows of each series."
                )
            panel = self._tail
        else:
            panel = self._read_known(data)
        for place, rows in enumerate(panel.lengths):
            if rows < self.lookback_:
                raise ValueError(
                    f"{panel.label(place)} must have at least lookback={self.lookback_} rows to go on, got {rows}; "
                    "pass more rows, or fit with a shorter lookback."
                )
        options = {"id": self.id, "time": self.time, "missing": self.missing}
        past = self.known_.past(panel, self.lookback_)
        ahead = self.known_.future(panel, future, self.horizon, options)
        series = torch.from_numpy(np.stack([values[-self.lookback_ :] for values in self._targets(panel)]))  # (S, L, C)
        outcome = apply_in_batches(self._units, (series, self._which(panel), stacked(past), stacked(ahead)), _BATCH)
        return answer(panel, outcome, steps, self.columns_, self.quantiles)

    def score(self, data: Any, y: Any = None) -> float:
        """Minus the mean squared error of standardised values over all windows of data: higher is better."""
        return -self.backtest(data).metrics["mse"]

    def backtest(self, data: Any, *, test_size: float | int | None = None, stride: int = 1) -> Backtest:
        """Forecast from rolling origins within data, without fitting again, and compare with what came.

        Args:
            data: Rows; those before what is forecast are seen only as look-backs.
            test_size: Last part of each series that is forecast, a share or a number of rows; None is all but the first
                look-back. For an honest estimate, choose rows that `fit` has not seen.
            stride: Rows between two origins.
        """
        self._check_fitted("backtested")
        check_at_least("stride", stride, 1)
        panel = self._read_known(data)
        targets = [(self._first_tested(panel, place, test_size), rows) for place, rows in enumerate(panel.lengths)]
        starts, owners = window_starts(panel.lengths, targets, self.lookback_, self.horizon, stride=stride)
        values = torch.from_numpy(np.concatenate(self._targets(panel)))
        past = self.known_.past(panel)
        marks = None if past is None else torch.from_numpy(np.concatenate(past)).float()
        which = self._which(panel)
        parts, actual = [], []
        for index, own in zip(starts.split(_BATCH), owners.split(_BATCH), strict=True):
            x, y = cut(values, index, self.lookback_, self.horizon)
            m, n = (None, None) if marks is None else cut(marks, index, self.lookback_, self.horizon)
            parts.append(apply_in_batches(self._units, (x, None if which is None else which[own], m, n)))
            actual.append(y)
        outcome = join_outcomes(parts)
        std = self.scaler_["std"][slice(0, 1) if which is None else which[owners]].unsqueeze(1)
        begins = torch.tensor(np.cumsum([0, *panel.lengths])[:-1])
        origins = starts - begins[owners] + self.lookback_
        levels = tuple(map(float, self.quantiles))
        return measure(outcome, torch.cat(actual), std, levels, owners, origins, panel, self.columns_)

    def export(self, path: str | Path) -> None:
        """Write the model as an ONNX file, scaling and intervals inside: from rows in their units to forecasts in them.

        Inputs, for any number of windows B: `series` (B, L, C) in float64; with several ids `which` (B,), the number of
        each in `ids_`; with calendar features or covariates `marks` (B, L, F) and `future_marks` (B, P, F), as
        `known_.features` makes them. Outputs: "forecast", and "quantiles", "lower", "upper" where there are such. It
        needs the extra `toa[onnx]`.
        """
        self._check_fitted("exported")
        features = self.known_.count
        example = (
            self.scaler_["mean"][:1].unsqueeze(1).repeat(2, self.lookback_, 1)
            + torch.arange(self.lookback_).view(1, -1, 1) / self.lookback_,
            torch.tensor([0, 1]) if len(self.ids_) > 1 else None,
            torch.zeros(2, self.lookback_, features) if features else None,
            torch.zeros(2, self.horizon, features) if features else None,
        )
        model = self._make_units(restore_model(self._make, self._weights(), torch.device("cpu"))).eval()
        # loaded on use: `toa.integrations` itself builds on the estimators
        toa.integrations.export_onnx(model, path, example, output=model.outputs)

    def _check_parameters(self) -> None:
        for name in ("horizon", "lookback", "patience"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        check_choice("loss", self.loss, FORECAST_METRICS)
        chances = {"validation_share": self.validation_share}
        chances |= {} if self.interval is None else {"interval": self.interval}
        chances |= {f"quantiles[{place}]": level for place, level in enumerate(self.quantiles)}
        for name, share in chances.items():
            if not 0.0 < share < 1.0:
                raise ValueError(f"{name} must lie in (0, 1), got {share}.")

    def _check_horizon(self, horizon: int | None) -> int:
        steps = self.horizon if horizon is None else horizon
        if not 1 <= steps <= self.horizon:
            raise ValueError(
                f"horizon must be from 1 to {self.horizon}, which the forecaster was fitted for, got {steps}; fit with "
                f"horizon={steps}."
            )
        return steps

    def _check_lengths(self, panel: Panel, borders: Sequence[int]) -> None:
        need = self.lookback_ + self.horizon
        for place, border in enumerate(borders):
            if border < need:
                rows = panel.lengths[place]
                raise ValueError(
                    f"{panel.label(place)} must have at least lookback + horizon = {need} rows to train on besides the "
                    f"{rows - border} held out, got {rows} rows in all; shorten lookback or horizon, or add rows."
                )

    def _read(self, data: Any, freq: str | int | None) -> Panel:
        framed = not isinstance(data, np.ndarray | list | tuple)
        if not framed:
            return read_panel(data, missing=self.missing)
        values = None if self.values is None else [*self.values, *self.covariates]
        panel = read_panel(data, id=self.id, time=self.time, values=values, freq=freq, missing=self.missing)
        for name in self.covariates:
            if name not in panel.columns:
                raise ValueError(f"data must have the covariate {name!r}, got {', '.join(map(repr, panel.columns))}.")
        return panel

    def _read_known(self, data: Any) -> Panel:
        """A panel of what was fitted, and of nothing else."""
        panel = self._read(data, self.freq_)
        wanted = (*self.columns_, *self.covariates)
        if panel.backend is None and len(panel.columns) == len(wanted):
            # arrays have no names: columns are those of fit, covariates last
            panel = replace(panel, columns=wanted)
        panel = match_columns(panel, wanted)
        for one in panel.ids:
            if one not in self.ids_:
                known = ", ".join(map(repr, self.ids_[:8])) + " …" * (len(self.ids_) > 8)
                raise ValueError(f"data must have ids that were fitted, {known}, got {one!r}; fit on its rows too.")
        return panel

    def _targets(self, panel: Panel) -> list[Float64[np.ndarray, "t c"]]:
        places = [panel.columns.index(name) for name in self.columns_]
        return [values[:, places] for values in panel.values]

    def _which(self, panel: Panel) -> Tensor | None:
        """Number of each series among those of fit; None if there is one."""
        if len(self.ids_) == 1:
            return None
        numbers = {one: place for place, one in enumerate(self.ids_)}
        return torch.tensor([numbers[one] for one in panel.ids])

    def _choose_architecture(self) -> dict[str, Any]:
        """Backbone, attention and settings, what was left open chosen."""
        check_choice("backbone", self.backbone, backbone_names("forecast"))
        attention = self.attention
        if attention is None and BACKBONES[self.backbone].takes_attention:
            attention = _ATTENTION
        spec = None if attention is None else attention_spec(attention)
        settings = choose_settings(self.backbone, self.lookback_, self.horizon) | dict(self.settings or {})
        facts = None if spec is None else {"name": spec.name, **spec.options()}
        return {"backbone": self.backbone, "attention": facts, "settings": settings}

    @property
    def _levels(self) -> tuple[float, ...]:
        """Levels that are trained: those asked for, and the median; none without quantiles."""
        return tuple(sorted({*map(float, self.quantiles), 0.5})) if len(self.quantiles) else ()

    def _make(self) -> nn.Module:
        attention = self.architecture_["attention"]
        levels = max(1, len(self._levels))
        model = build_forecaster(
            self.architecture_["backbone"],
            lookback=self.lookback_,
            horizon=int(self.horizon) * levels,
            channels=len(self.columns_),
            attention=None if attention is None else attention_spec(attention),
            settings=self.architecture_["settings"],
        )
        return HorizonModel(model, levels=levels, features=self.known_.count, channels=len(self.columns_))

    def _windows(self, panel: Panel, borders: Sequence[int]) -> tuple[PanelWindows, PanelWindows]:
        """Windows to train on, and those to hold out."""
        means, stds = (self.scaler_[name].numpy() for name in ("mean", "std"))
        scaled = [(rows - mean) / std for rows, mean, std in zip(self._targets(panel), means, stds, strict=True)]
        sizes = self.lookback_, self.horizon
        table = join(scaled, self.known_.past(panel), *sizes, resolve_device(self.device))
        train, _ = window_starts(panel.lengths, [(0, border) for border in borders], *sizes)
        held, _ = window_starts(panel.lengths, list(zip(borders, panel.lengths, strict=True)), *sizes)
        stride = -(-len(held) * len(self.columns_) // _HELD)
        return PanelWindows(table, train), PanelWindows(table, held[::stride])

    def _train(self, train: PanelWindows, held: PanelWindows) -> None:
        schedule = choose_schedule(len(train), len(self.columns_), batch_size=self.batch_size, epochs=self.epochs)
        self.schedule_ = asdict(schedule)
        batches = ShuffledBatches(
            train, lambda index: inputs_and_targets(train.batch(index)), schedule.batch_size, seed=self.seed
        )
        batches.steps_per_epoch = schedule.steps
        levels = torch.tensor(self._levels, device=resolve_device(self.device)) if self._levels else None
        error = horizon_error(self.loss, levels)

        def validate(model: nn.Module) -> float:
            total = torch.zeros((), dtype=torch.float64)
            for index in torch.arange(len(held)).split(_BATCH):
                x, y, *marks = inputs_and_targets(held.batch(index))
                total += error(model(x, *marks), y).mean(dtype=torch.float64).cpu() * len(index)
            return float(total) / len(held)

        self.model_, state = fit_model(
            self._make,
            batches,
            horizon_loss(error),
            lambda steps: TrainingConfig(
                epochs=schedule.epochs,
                learning_rate=self.learning_rate,
                weight_decay=0.01,
                schedule="onecycle",
                patience=self.patience,
                clip_norm=4.0,
            ),
            validate=validate,
            seed=self.seed,
            device=self.device,
            progress=self.progress,
            description=f"forecaster, horizon {self.horizon}",
        )
        assert state.best is not None
        self.validation_ = state.best

    @torch.no_grad()
    def _calibrate(self, held: PanelWindows, level: float) -> Tensor:
        scores = []
        for index in torch.arange(len(held)).split(_BATCH):
            x, y, *marks = inputs_and_targets(held.batch(index))
            forecast = self.model_(x, *marks).sort(2).values[:, :, self._point]  # (B, P, C)
            scores.append(((forecast - y).abs() / spread(x)).cpu())
        return conformal_width(torch.cat(scores), level).double()

    @property
    def _point(self) -> int:
        return self._levels.index(0.5) if self._levels else 0

    @cached_property
    def _units(self) -> UnitsModel:
        assert isinstance(self.model_, HorizonModel)
        return self._make_units(self.model_).to(next(self.model_.parameters()).device).eval()

    def _make_units(self, model: nn.Module) -> UnitsModel:
        assert isinstance(model, HorizonModel)
        return UnitsModel(
            model,
            self.scaler_["mean"],
            self.scaler_["std"],
            point=self._point,
            shown=tuple(self._levels.index(float(level)) for level in self.quantiles),
            width=self.width_,
        )

    def _first_tested(self, panel: Panel, place: int, test_size: float | int | None) -> int:
        rows = panel.lengths[place]
        if test_size is None:
            first = self.lookback_
        elif isinstance(test_size, float) and not 0.0 < test_size < 1.0:
            raise ValueError(f"test_size must be a share in (0, 1) or a number of rows, got {test_size}.")
        else:
            first = rows - (int(rows * test_size) if isinstance(test_size, float) else test_size)
        first = max(self.lookback_, first)
        if first + self.horizon > rows:
            raise ValueError(
                f"{panel.label(place)} must have a look-back of {self.lookback_} and a horizon of {self.horizon} rows "
                f"within what is tested, got {rows} rows, {max(0, rows - first)} of them tested; test more rows."
            )
        return first

    def _weights(self) -> dict[str, Tensor]:
        return {f"model.{name}": value for name, value in self.model_.state_dict().items()}

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = self._weights() | {f"scaler.{name}": value for name, value in self.scaler_.items()}
        if self.width_ is not None:
            tensors["width"] = self.width_
        facts = {name: getattr(self, name) for name in _FACTS}
        return tensors, facts | {"columns": list(self.columns_), "ids": list(self.ids_), "known": self.known_.state()}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        for name in _FACTS:
            setattr(self, name, facts[name])
        self.columns_, self.ids_ = tuple(facts["columns"]), tuple(facts["ids"])
        self.known_ = Known.from_state(facts["known"])
        self.scaler_ = {name: tensors[f"scaler.{name}"] for name in ("mean", "std")}
        self.width_ = tensors.get("width")
        self.model_ = restore_model(self._make, tensors, resolve_device(self.device))
