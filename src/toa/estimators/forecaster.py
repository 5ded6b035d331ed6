"""Forecaster: forecasts of a user's table, with intervals and quantiles.

Alphabet: B batch, L look-back, P horizon, C columns, Q levels, S series, T rows.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import toa
from toa._checks import check_at_least, check_choice, check_shape
from toa.data.frames import check_results, match_panel, read_panel
from toa.data.panel import Panel
from toa.data.splits import StandardScaler, check_standardised
from toa.data.windows import Windows, place_series, window_starts
from toa.estimators.backtest import Backtest, first_tested, forecast_names, measure, write_forecast
from toa.estimators.base import Estimator, attention_spec, sample_rows
from toa.estimators.covariates import Covariates
from toa.estimators.intervals import Prediction, UnitsModel, conformal_width, spread
from toa.estimators.sizes import DEFAULT_ATTENTION, choose_lookback, choose_recipe, choose_schedule, choose_settings
from toa.models import BACKBONES, backbone_names
from toa.tasks.distributed import resolve_device
from toa.tasks.forecast import HorizonForecasting, HorizonModel, evaluation_batches
from toa.tasks.metrics import FORECAST_METRICS

# largest number of held-out windows times columns; if there are more, every second, third, … window is used
_HELD = 60_000
# windows per batch without gradients
_BATCH = 512


@dataclass(eq=False, repr=False)
class Forecaster(Estimator):
    """Forecast time series.

        model = toa.Forecaster(horizon=24, interval=0.8).fit(frame)  # pandas, polars or arrow; or an array (T, C)
        model.predict()                       # the next 24 steps: a frame like the input, in its units
        model.predict(new)                    # the 24 steps after other rows
        model.backtest(frame, test_size=0.2)  # errors and coverage over rolling origins
        model.save("model.toa"); toa.Forecaster.load("model.toa")

    A wide frame is one series with several columns. With `id`, the rows of each id are a series of any length. One
    model is trained for all series, with a mean and a scale per id and column. The last part of each series is held out
    to stop training and to calibrate intervals.

    Args:
        horizon: Steps P to forecast.
        lookback: Input steps L; None chooses by data size.
        backbone: A name of `toa.models.BACKBONES`.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`; None is "toa-softmax" for
            models that take an attention.
        settings: Settings of the backbone; unset ones are chosen for a small model.
        quantiles: Levels in (0, 1) to forecast too, trained with the pinball loss; the forecast is then the median.
        interval: Probability, such as 0.8, of a split-conformal interval around each forecast, calibrated per step and
            column; None for no interval.
        calendar: Whether to use calendar features such as the hour and the day.
        covariates: Columns that are known in advance: not forecast, but passed to `predict` as `future`.
        loss: "mse" or "mae", without quantiles.
        epochs: Maximum number of epochs; None chooses by data size.
        batch_size: Windows per batch; None chooses by data size.
        learning_rate: Peak learning rate of the schedule.
        operator_rate: Factor of the learning rate of the operators; None uses the recipe of the protocol `toa` for this
            backbone and data size. An attention given by name, or none, then also starts its operators by that recipe.
        patience: Epochs without a better validation loss before training stops.
        validation_share: Share of each series that is held out at its end, at least one horizon.
        id: Id column of a frame with several series.
        time: Time column; None finds it.
        values: Columns to forecast; None for all others.
        freq: Frequency of the times; None infers it.
        missing: Missing values and rows: "error", "ffill", "interpolate" or "zero".
        seed: Seed of weights, batches, dropout and SOR.
        device: "auto", "cpu", "cuda" or "cuda:N".
        progress: Whether to show a progress bar.

    Attributes:
        model_: The trained model, on standardised values.
        lookback_: Steps L.
        columns_: Names of the forecast columns.
        ids_: Ids of the series; (None,) without ids.
        freq_: Frequency of the times.
        time_: Name of the time column.
        architecture_: Backbone, attention and settings.
        schedule_: Batch size, steps per epoch, maximum number of epochs and the factor of the operators' rate.
        validation_: Loss on the held-out rows, standardised.
        known_: Computes the features of the calendar and the covariates.
    """

    _kind = "forecaster"
    _task = HorizonForecasting()
    _training: ClassVar[Mapping[str, Any]] = {"schedule": "onecycle", "weight_decay": 0.01, "clip_norm": 4.0}
    _facts = ("lookback_", "freq_", "time_", "validation_", "architecture_", "schedule_")

    horizon: int
    _: KW_ONLY
    lookback: int | None = None
    backbone: str = "patchtst"
    attention: str | Mapping[str, Any] | None = None
    quantiles: Sequence[float] = ()
    interval: float | None = None
    calendar: bool = False
    covariates: Sequence[str] = ()
    loss: str = "mse"
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 2e-3
    operator_rate: float | None = None
    patience: int = 3
    validation_share: float = 0.125
    freq: str | int | None = None

    def fit(self, data: Any, y: Any = None) -> "Forecaster":
        """Train on data.

        Args:
            data: A pandas, polars or arrow frame, an array (T,) or (T, C), or a list of arrays.
            y: Ignored; scikit-learn pipelines pass it.

        Raises:
            ValueError: If the data cannot be read, or a series is too short.
        """
        self._check_parameters()
        self.__dict__.pop("_units", None)
        panel = self._read(data, self.freq)
        self.columns_ = tuple(column for column in panel.columns if column not in self.covariates)
        if not self.columns_:
            raise ValueError("data must have a column to forecast, got only covariates; name fewer covariates.")
        names = [name for column in self.columns_ for name in self._result_names(column)]
        check_results(panel, names if panel.time_column else ["step", *names])
        self.ids_, self.freq_, self.time_ = panel.ids, panel.freq, panel.time_column
        borders = [rows - max(self.horizon, int(rows * self.validation_share)) for rows in panel.lengths]
        self.lookback_ = choose_lookback(min(borders), self.horizon) if self.lookback is None else int(self.lookback)
        need = self.lookback_ + self.horizon
        for index, (rows, border) in enumerate(zip(panel.lengths, borders, strict=True)):
            if border < need:
                raise ValueError(
                    f"{panel.label(index)} must have at least lookback + horizon = {need} rows to train on besides the "
                    f"{rows - border} held out, got {rows} rows in all; shorten lookback or horizon, or add rows."
                )
        self.known_ = Covariates.fit(panel, calendar=self.calendar, covariates=self.covariates, borders=borders)
        train, held = self._scale_and_split(panel, borders)
        rate = self._choose_architecture(len(train))
        self.schedule_ = choose_schedule(len(train), len(self.columns_), batch_size=self.batch_size, epochs=self.epochs)
        self.schedule_["operator_rate"] = rate if self.operator_rate is None else self.operator_rate
        self.validation_ = self._fit_model(
            self._data(train, held),
            epochs=self.schedule_["epochs"],
            batch_size=self.schedule_["batch_size"],
            title=f"forecaster, horizon {self.horizon}",
        )
        self.width_ = None if self.interval is None else self._calibrate(held, self.interval)
        self._tail = panel.tail(self.lookback_)
        return self

    def predict(self, data: Any = None, *, future: Any = None, horizon: int | None = None) -> Any:
        """Forecast the steps after the end of each series.

        Args:
            data: At least the last `lookback_` rows of each series; None forecasts after the rows of `fit`.
            future: Covariates of the forecast steps, a table like data.
            horizon: Number of steps, at most the horizon of `fit`; None for all.

        Returns:
            A frame like data: ids, times, and for each column its forecast, with "_lower" and "_upper" for the interval
            and "_q0.1" for a quantile. For an array, (P, C); with an interval or quantiles, a mapping with "forecast",
            "lower", "upper" (P, C) and "quantiles" (P, Q, C). For a list, a list of those.

        Raises:
            ValueError: If data differ from `fit` in columns, ids or frequency or have too few rows, or if the horizon
                is too long.
        """
        self._check_fitted("asked for a forecast")
        steps = self.horizon if horizon is None else horizon
        if not 1 <= steps <= self.horizon:
            raise ValueError(
                f"horizon must be from 1 to {self.horizon}, the horizon of fit, got {steps}; fit with horizon={steps}."
            )
        if data is None and not hasattr(self, "_tail"):
            raise ValueError(
                "data must be given to a forecaster that was loaded, because files hold no rows, got None; pass the "
                f"last {self.lookback_} rows of each series."
            )
        panel = self._tail if data is None else self._read_fitted(data)
        remedy = "pass more rows, or fit with a shorter lookback"
        panel.check_rows(self.lookback_, f"lookback={self.lookback_} rows", remedy)
        panel = panel.tail(self.lookback_)
        options = {"id": self.id, "time": self.time, "missing": self.missing}
        features = self.known_.past(panel), self.known_.future(panel, future, self.horizon, options)
        inputs = (
            torch.from_numpy(np.stack(panel.take(self.columns_))),  # (S, L, C)
            self._series_indices(panel),
            *(None if part is None else torch.from_numpy(np.stack(part)).float() for part in features),  # (S, ·, F)
        )
        pieces = (slice(start, start + _BATCH) for start in range(0, len(panel), _BATCH))
        self._check_range(panel)
        found = self._units.predict(tuple(None if x is None else x[piece] for x in inputs) for piece in pieces)
        _check_answer(found, self.columns_)
        parts = {name: part[:, :steps].numpy() for name, part in found._asdict().items() if part is not None}
        return write_forecast(panel, parts, steps, self.columns_, self.quantiles)

    def score(self, data: Any, y: Any = None) -> float:
        """Minus the mean squared error of standardised values over all windows of data: higher is better."""
        return -self.backtest(data).metrics["mse"]

    def backtest(self, data: Any, *, test_size: float | int | None = None, stride: int = 1) -> Backtest:
        """Forecast from rolling origins in data, without fitting again, and compare with the actual values.

        Args:
            data: Rows to test on, with a look-back before them.
            test_size: Tested part at the end of each series, a share or a number of rows; None for all rows but the
                first look-back. For an unbiased estimate, test rows that `fit` has not used.
            stride: Rows between two origins.
        """
        self._check_fitted("backtested")
        check_at_least("stride", stride, 1)
        panel = self._read_fitted(data)
        names = [name for column in self.columns_ for name in (f"{column}_actual", *self._result_names(column))]
        check_results(panel, [*(() if panel.time_column else ("row",)), "origin", "step", *names])
        sizes = self.lookback_, self.horizon
        targets = [(first_tested(panel, index, test_size, *sizes), rows) for index, rows in enumerate(panel.lengths)]
        starts, owners = window_starts(panel.lengths, targets, *sizes, stride=stride)
        values = torch.from_numpy(np.concatenate(panel.take(self.columns_)))
        past = self.known_.past(panel)
        marks = None if past is None else torch.from_numpy(np.concatenate(past)).float()
        indices = self._series_indices(panel)
        which = None if indices is None else indices[owners]
        actual = []

        def batches() -> Iterator[tuple[Tensor | None, ...]]:
            for piece in torch.arange(len(starts)).split(_BATCH):
                rows = starts[piece].view(-1, 1) + torch.arange(self.lookback_ + self.horizon)  # (B, L + P)
                x, y = values[rows].tensor_split([self.lookback_], 1)
                actual.append(y)
                m, n = (None, None) if marks is None else marks[rows].tensor_split([self.lookback_], 1)
                yield x, None if which is None else which[piece], m, n

        self._check_range(panel)
        found = self._units.predict(batches())
        _check_answer(found, self.columns_)
        std = self.scaler_["std"][slice(0, 1) if which is None else which].unsqueeze(1)
        begins = torch.tensor(np.cumsum([0, *panel.lengths])[:-1])
        origins = starts - begins[owners] + self.lookback_
        levels = tuple(map(float, self.quantiles))
        return measure(found, torch.cat(actual), std, levels, owners, origins, panel, self.columns_)

    def export(self, path: str | Path) -> None:
        """Write the model as an ONNX file that maps rows to forecasts in the units of the data.

        Inputs, for any number of windows B: `series` (B, L, C) in float64; with several ids `which` (B,), the index of
        each in `ids_`; with calendar features or covariates `marks` (B, L, F) and `future_marks` (B, P, F), which
        `known_.features` computes. Outputs: "forecast", and "quantiles", "lower" and "upper" if fitted with them. It
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
        model = self._add_units(copy.deepcopy(self.model_).cpu()).eval()
        # loaded on use: `toa.integrations` builds on the estimators
        toa.integrations.export_onnx(model, path, example, output=model.outputs)

    def run_sample(self, data: Any, index: int = 0) -> None:
        """Forecast one window of a pandas frame, see `Estimator.run_sample`."""
        # a backtest takes the covariates of the forecast steps from the window
        self.backtest(sample_rows(data, self.id, index, self.lookback_ + self.horizon))

    def _check_parameters(self) -> None:
        for name in ("horizon", "lookback", "patience"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        check_choice("loss", self.loss, FORECAST_METRICS)
        shares = {"validation_share": self.validation_share}
        shares |= {} if self.interval is None else {"interval": self.interval}
        shares |= {f"quantiles[{index}]": level for index, level in enumerate(self.quantiles)}
        for name, share in shares.items():
            if not 0.0 < share < 1.0:
                raise ValueError(f"{name} must lie in (0, 1), got {share}.")

    def _result_names(self, column: str) -> list[str]:
        return forecast_names(column, self.quantiles, self.interval is not None)

    def _read(self, data: Any, freq: str | int | None) -> Panel:
        values = None if self.values is None else [*self.values, *self.covariates]
        panel = read_panel(data, id=self.id, time=self.time, values=values, freq=freq, missing=self.missing)
        for name in self.covariates if panel.backend is not None else ():
            if name not in panel.columns:
                raise ValueError(f"data must have the covariate {name!r}, got {', '.join(map(repr, panel.columns))}.")
        return panel

    def _read_fitted(self, data: Any) -> Panel:
        """A panel with the columns, ids and frequency of fit."""
        panel = self._read(data, self.freq_)
        wanted = (*self.columns_, *self.covariates)
        if panel.backend is None and len(panel.columns) == len(wanted):
            # arrays have no names: their columns are those of fit, covariates last
            panel = replace(panel, columns=wanted)
        return match_panel(panel, wanted, self.ids_)

    def _check_range(self, panel: Panel) -> None:
        """Raise ValueError for values that are too far from those of fit."""
        owners = self._series_indices(panel)
        mean, std = (self.scaler_[name].numpy() for name in ("mean", "std"))
        for index, values in enumerate(panel.take(self.columns_)):
            own = 0 if owners is None else int(owners[index])
            check_standardised((values - mean[own]) / std[own], self.columns_, panel.label(index))

    def _series_indices(self, panel: Panel) -> Tensor | None:
        """Index of each series in `ids_`; None if fit had one series."""
        if len(self.ids_) == 1:
            return None
        indices = {one: index for index, one in enumerate(self.ids_)}
        return torch.tensor([indices[one] for one in panel.ids])

    def _choose_architecture(self, windows: int) -> float:
        """Backbone, attention and settings; unset ones are chosen by data size. Returns the factor of the rate."""
        check_choice("backbone", self.backbone, backbone_names("forecast"))
        attention = self.attention
        if attention is None and BACKBONES[self.backbone].takes_attention:
            attention = DEFAULT_ATTENTION
        spec = None if attention is None else attention_spec(attention)
        recipe = choose_recipe(self.backbone, None if spec is None else spec.name, windows)
        sizes = choose_settings(self.backbone, self.lookback_, self.horizon)
        facts = None if spec is None else {"name": spec.name, **spec.options()}
        if recipe and facts and isinstance(attention, str):
            sizes |= {name: recipe[name] for name in ("dropout",) if name in recipe}
            # with one column, its only token minus the mean over tokens would be zero
            if len(self.columns_) > 1:
                facts["operator_init"] = recipe["operator_init"]
        self._choose(self.backbone, sizes, attention=facts)
        return float(recipe.get("operator_rate", 1.0))

    @property
    def _levels(self) -> tuple[float, ...]:
        """Trained levels: those of `quantiles` and the median; none without quantiles."""
        return tuple(sorted({*map(float, self.quantiles), 0.5})) if len(self.quantiles) else ()

    @property
    def _point(self) -> int:
        return self._levels.index(0.5) if self._levels else 0

    def _fields(self) -> dict[str, Any]:
        own = {"horizon": int(self.horizon), "lookback": self.lookback_, "loss": self.loss}
        return own | {"levels": self._levels, "features": self.known_.count, "steps": self.schedule_["steps"]}

    def _scale_and_split(self, panel: Panel, borders: Sequence[int]) -> tuple[Windows, Windows]:
        """Fit the scalers; standardised windows to train on, and held-out ones."""
        targets = panel.take(self.columns_)
        scalers = [
            StandardScaler.fit(values[:border], columns=self.columns_, allow_constant=True)
            for values, border in zip(targets, borders, strict=True)
        ]
        self.scaler_ = {name: torch.stack([scaler.state()[name] for scaler in scalers]) for name in ("mean", "std")}
        scaled = [scaler.transform(values) for scaler, values in zip(scalers, targets, strict=True)]
        device = resolve_device(self.device)
        values = place_series(np.concatenate(scaled), device=device)
        past = self.known_.past(panel)
        marks = None if past is None else torch.from_numpy(np.concatenate(past)).float().to(device)
        sizes = self.lookback_, self.horizon
        train, _ = window_starts(panel.lengths, [(0, border) for border in borders], *sizes)
        held, _ = window_starts(panel.lengths, list(zip(borders, panel.lengths, strict=True)), *sizes)
        held = held[:: -(-len(held) * len(self.columns_) // _HELD)]
        segment = (0, len(values))
        return (
            Windows(values, marks, segment, *sizes, starts=train, device=device),
            Windows(values, marks, segment, *sizes, starts=held, device=device),
        )

    @torch.no_grad()
    def _calibrate(self, held: Windows, level: float) -> Tensor:
        scores = []
        for x, y, *marks in evaluation_batches(held):
            forecast = self.model_(x, *marks).sort(2).values[:, :, self._point]  # (B, P, C)
            scores.append(((forecast - y).abs() / spread(x)).cpu())
        return conformal_width(torch.cat(scores), level).double()

    @cached_property
    def _units(self) -> UnitsModel:
        return self._add_units(self.model_).to(next(self.model_.parameters()).device).eval()

    def _add_units(self, model: nn.Module) -> UnitsModel:
        assert isinstance(model, HorizonModel)
        return UnitsModel(
            model,
            self.scaler_["mean"],
            self.scaler_["std"],
            point=self._point,
            shown=tuple(self._levels.index(float(level)) for level in self.quantiles),
            width=self.width_,
        )

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"scaler.{name}": value for name, value in self.scaler_.items()}
        if self.width_ is not None:
            tensors["width"] = self.width_
        return tensors, {"columns": list(self.columns_), "ids": list(self.ids_), "known": self.known_.state()}

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._check_parameters()
        self.columns_, self.ids_ = tuple(facts["columns"]), tuple(facts["ids"])
        self.known_ = Covariates.from_state(facts["known"])
        self.scaler_ = {name: tensors[f"scaler.{name}"] for name in ("mean", "std")}
        self.width_ = tensors.get("width")
        sizes = len(self.ids_), len(self.columns_)
        for name, tensor in self.scaler_.items():
            check_shape(f"scaler.{name}", tensor, "(S, C)", sizes)
        if self.width_ is not None:
            check_shape("width", self.width_, "(P, C)", (self.horizon, sizes[1]))


def _check_answer(found: Prediction, columns: Sequence[str]) -> None:
    """Raise ValueError for a forecast that is not finite."""
    for name, part in found._asdict().items():
        wrong = None if part is None else ~part.isfinite()
        if wrong is not None and wrong.any():
            window, step, *_, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"the {name} of column {columns[column]!r} must be finite, got another number at step {step + 1} of "
                f"window {window + 1}; check the units of its rows, or fit again."
            )
