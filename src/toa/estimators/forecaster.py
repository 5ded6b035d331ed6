"""Forecaster: forecasts of a user's table, with intervals and quantiles.

Alphabet: B batch, L look-back, P horizon, C columns, Q levels, S series, T rows.
"""

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import toa
from toa._checks import check_at_least, check_choice, check_count, check_shape
from toa._limits import check_unpacked
from toa.data.columns import warn_of_late_columns
from toa.data.frames import check_results, forecast_names, write_forecast
from toa.data.frequency import season_of
from toa.data.panel import Panel
from toa.estimators.backtest import Backtest, first_tested, forecast_with_refits, measure
from toa.estimators.base import NETWORK, named
from toa.estimators.baselines import BASELINES, REGRESSIONS, align_histories, choose_season
from toa.estimators.covariates import Covariates
from toa.estimators.effort import Ceiling
from toa.estimators.ensemble import RollingOrigins, history_rows, series_scale, validate_methods
from toa.estimators.importance import Importance, explain_forecast, sample_rows
from toa.estimators.intervals import Choice, Prediction, check_forecast, find_counts, join_batches
from toa.estimators.network import ForecastNetwork
from toa.estimators.pages import forecast_page

# windows that are combined together: bounds the memory of their histories
_WINDOWS = 2_000
# the same in windows times columns
_HISTORIES = 40_000
# windows per column at rolling origins, in the fewest that an interval needs
_INTERVAL_WINDOWS = 2


@dataclass(eq=False, repr=False)
class Forecaster(ForecastNetwork):
    """Forecast time series.

        model = toa.Forecaster(horizon=24, interval=0.8).fit(frame)  # pandas, polars or arrow; or an array (T, C)
        model.predict()                       # the next 24 steps: a frame like the input, in its units
        model.predict(new)                    # the 24 steps after other rows
        model.backtest(frame, test_size=0.2)  # errors and coverage over rolling origins
        model.save("model.toa"); toa.Forecaster.load("model.toa")

    A wide frame is one series with several columns. With `id`, the rows of each id are a series of any length. The
    forecast is a weighted mean of the network and of baselines: seasonal naive, drift, Theta, optimised Theta, damped
    trend, linear models on lags and, up to 60 steps, boosted trees on lags. The weights, the same for all series, are
    chosen by the errors from rolling origins at the end of each series, in rows that the methods have not seen. There,
    the last origin counts twice. Then all methods with a weight are fitted again to all rows. With effort="thorough"
    networks of further seeds are trained too: their mean takes the place of the network if its error at these origins
    is not larger. Intervals and quantiles come from the errors at
    these origins. A column that holds only 0, 1, 2, … has forecasts and bounds of at least 0. A column that repeats its
    season exactly, three times or more, is continued so, without the weights.

    Args:
        horizon: Steps P to forecast.
        model: "auto" weights the network and the baselines; "toa" is the network alone, without its last held-out rows.
        season: Steps of a season, such as 24 for hours; None takes it from the frequency, or finds it.
        effort: Counted work of "auto": "quick" or "thorough", which validates at more origins, fits larger trees and
            trains longer, also networks of other kinds and seeds. No clock has a part in it: the same data, settings,
            seed and number of threads give the same forecasts.
        time_limit: Largest number of seconds of "auto"; None for none. Methods that would end later are left out, with
            a warning that names them. A method that runs is not stopped.
        lookback: Input steps L of the network; None chooses by season and data size, and pads shorter series with their
            first value.
        backbone: A name of `toa.models.BACKBONES`.
        attention: A name of `toa.nn.ATTENTIONS`, or the fields of `toa.nn.AttentionSpec`; None is "toa-softmax" for
            models that take an attention.
        settings: Settings of the backbone; unset ones are chosen for a small model.
        quantiles: Levels in (0, 1) to forecast too; the network is trained with the pinball loss.
        interval: Probability, such as 0.8, of an interval around each forecast, per step and column; None for none. For
            "toa" it is split-conformal: the second half of the held-out rows sets it, the first half stops training.
            For "auto" it is set by the errors that chose the weights. Too few windows raise ValueError, or warn.
        calendar: Whether to use calendar features such as the hour and the day.
        covariates: Columns that are known in advance: not forecast, but passed to `predict` as `future`. With them and
            holidays, "auto" also has baselines of what their linear effect leaves. Text becomes categories.
        past_covariates: Columns that are known only in the past, such as a measured temperature.
        static: Columns that are constant in each series, such as a region.
        holidays: Country whose holidays are a feature, such as "DE" or "US-CA"; needs the extra `toa[holidays]`.
        loss: Loss of the network, "mae" or "mse", without quantiles.
        epochs: Maximum number of epochs; None chooses by data size.
        batch_size: Windows per batch; None chooses by data size.
        learning_rate: Peak learning rate of the schedule.
        operator_rate: Factor of the learning rate of the operators; None uses the recipe of the protocol `toa` for this
            backbone and data size. An attention given by name, or none, then also starts its operators by that recipe.
        patience: Epochs without a better validation loss before training stops, and three tenths of all epochs more, in
            which the rate rises.
        validation_share: Share of each series held out at its end, at least one horizon, or four for "toa" with an
            interval.
        id: Id column of a frame with several series.
        time: Time column; None finds it.
        values: Columns to forecast; None for all others.
        freq: Frequency of the times; None infers it.
        missing: Missing values and rows: "error", "ffill", "interpolate" or "zero". Columns may begin late.
        day_first: Whether the day comes first in dates such as 01/02/2015; None finds it.
        time_zone: Time zone of the dates, such as "Europe/Rome"; None leaves them as they are.
        seed: Seed of weights, batches, dropout and SOR.
        seeds: Networks with the seeds `seed`, `seed` + 1, … whose forecasts are averaged. "toa" trains all of them, or
            one if None; "auto" trains up to that many, by effort if None, as the error of the mean allows.
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
        seeds_: Seeds of the networks that `model_` averages.
        validation_: Loss on the held-out rows, standardised; of several networks the mean.
        known_: Computes the features of the calendar and the covariates.
        season_: Steps of the season.
        choice_: The chosen weights and what intervals need; None for "toa".
        truncated_: Methods that `time_limit` left out.
    """

    page = forecast_page

    def fit(self, data: Any, y: Any = None) -> "Forecaster":
        """Train on data.

        Args:
            data: A pandas, polars or arrow frame, an array (T,) or (T, C), or a list of arrays.
            y: Ignored; scikit-learn pipelines pass it.

        Raises:
            ValueError: If the data cannot be read, or a series is too short.
        """
        self._check_parameters()
        self.day_first_ = self.day_first
        panel = self._read(data, self.freq)
        self.columns_ = tuple(column for column in panel.columns if column not in self._inputs)
        if not self.columns_:
            raise ValueError("data must have a column to forecast, got only covariates; name fewer covariates.")
        names = forecast_names(self.columns_, self.quantiles, self.interval is not None)
        check_results(panel, names if panel.time_column else ["step", *names])
        self.ids_, self.freq_, self.time_ = panel.ids, panel.freq, panel.time_column
        self.day_first_ = panel.day_first
        if panel.begins is not None:
            warn_of_late_columns(panel, alone=self.model == NETWORK)
        self.truncated_: tuple[str, ...] = ()
        self.season_ = choose_season(self.season, season_of(panel.freq), panel.histories(self.columns_))
        self.effect_: np.ndarray | None = None
        if self.model == "auto":
            self._fit_choice(panel)
        else:
            self.choice_: Choice | None = None
            held = self._fit_network(panel.complete())
            assert held is not None
            self.width_ = None if self.interval is None else self._calibrate(held, self.interval)
            self.counts_: Tensor | None = torch.from_numpy(find_counts(panel, self.columns_))
        self._tail = panel.tail(max(self.lookback_, history_rows(self.season_, self.horizon)))
        return self

    @property
    def weights_(self) -> dict[str, float]:
        """Weight of each method in the forecast; the name of the network is "toa"."""
        self._check_fitted("asked for its weights")
        return {NETWORK: 1.0} if self.choice_ is None else dict(self.choice_.ensemble.weights)

    def _shown_weights(self) -> dict[str, float]:
        """The weights, the largest first; the name of a mean of networks tells how many there are."""
        several = f" ({len(self.seeds_)} seeds)" * (len(self.seeds_) > 1)
        shown = sorted(self.weights_.items(), key=lambda pair: -pair[1])
        return {name + several * (name == NETWORK): weight for name, weight in shown}

    def predict(self, data: Any = None, *, future: Any = None, horizon: int | None = None) -> Any:
        """Forecast the steps after the end of each series.

        Args:
            data: The last rows of each series, at least a given `lookback` for "toa"; shorter ones are padded. None
                forecasts after the rows of `fit`.
            future: Covariates of all steps of the horizon of `fit`, a table like data.
            horizon: Number of steps, at most the horizon of `fit`; None for all.

        Returns:
            A frame like data: ids, times, and for each column its forecast, with "_lower" and "_upper" for the interval
            and "_q0.1" for a quantile. For an array, (P, C); with an interval or quantiles, a mapping with "forecast",
            "lower", "upper" (P, C) and "quantiles" (P, Q, C). For a list, a list of those.

        Raises:
            ValueError: If data differ from `fit` in columns, ids or frequency or have too few rows, or if the horizon
                is too long.
        """
        panel, steps = self._read_rows(data, horizon)
        if (wider := self._with_new_series(panel, panel.lengths)) is not self:
            return wider.predict(panel, future=future, horizon=horizon)
        if self.choice_ is None and self.lookback is not None:
            remedy = "pass more rows, or fit with a shorter lookback"
            panel.check_rows(self.lookback_, f"lookback={self.lookback_} rows", remedy)
        self._check_range(panel)
        # covariates are checked even if the network has no weight
        last, owners = panel.tail(self.lookback_), torch.arange(len(panel))
        ahead = self.known_.future(last, future, self.horizon, self._table)
        network = None
        if NETWORK in self.weights_:
            network = self._network_at(last, owners, torch.tensor(last.lengths), ahead)
        if text := self.known_.unused(self.weights_, self.effect_):
            warnings.warn(text, stacklevel=2)
        found = self._forecast_at(panel, owners, torch.tensor(panel.lengths), network, ahead)
        check_forecast(found, self.columns_)
        parts = {name: part[:, :steps].numpy() for name, part in found.items()}
        return write_forecast(panel, parts, steps, self.columns_, self.quantiles)

    def predict_baseline(self, name: str, data: Any = None, *, horizon: int | None = None) -> Any:
        """Forecast by a baseline of `toa.estimators.baselines.BASELINES` alone; see `predict`."""
        check_choice("name", name, BASELINES)
        panel, steps = self._read_rows(data, horizon)
        history = align_histories(panel.histories(self.columns_), history_rows(self.season_, self.horizon))
        rows = BASELINES[name](history, self.season_, steps)
        forecast = rows.reshape(len(panel), -1, steps).transpose(0, 2, 1)
        return write_forecast(panel, {"forecast": forecast}, steps, self.columns_, ())

    def _read_rows(self, data: Any, horizon: int | None) -> tuple[Panel, int]:
        """The rows before a forecast, and its number of steps."""
        self._check_fitted("asked for a forecast")
        steps, whole = self.horizon if horizon is None else horizon, horizon is None or hasattr(horizon, "__index__")
        if not whole or not 1 <= steps <= self.horizon:
            remedy = f"; fit with horizon={steps}" if whole and steps > 0 else ""
            raise ValueError(f"horizon must be from 1 to {self.horizon}, the horizon of fit, got {steps!r}{remedy}.")
        if data is None and not hasattr(self, "_tail"):
            read = 0 if self.choice_ is None else history_rows(self.season_, self.horizon)
            raise ValueError(
                "data must be given to a forecaster that was loaded, because files hold no rows, got None; pass the "
                f"last {max(self.lookback_, read)} rows of each series."
            )
        return self._tail if data is None else self._read_fitted(data), steps

    def score(self, data: Any, y: Any = None) -> float:
        """Minus the mean squared error of standardised values over all windows of data: higher is better."""
        return -self.backtest(data).metrics["mse"]

    def backtest(
        self, data: Any, *, test_size: float | int | None = None, stride: int = 1, refit: int | None = None
    ) -> Backtest:
        """Forecast from rolling origins in data and compare with the actual values.

        Args:
            data: Rows to test on, with a look-back before them.
            test_size: Tested part at the end of each series, a share or a number of rows; None for all rows but the
                first look-back. For an unbiased estimate, test rows that `fit` has not used.
            stride: Rows between two origins.
            refit: Rows after which a copy is fitted again, to all rows before them; None does not fit again.
        """
        self._check_fitted("backtested")
        check_count("stride", stride, 1)
        panel = self._read_fitted(data)
        names = forecast_names(self.columns_, self.quantiles, self.interval is not None)
        names += [f"{column}_actual" for column in self.columns_]
        check_results(panel, [*(() if panel.time_column else ("row",)), "origin", "step", *names])
        # only the network alone needs its whole look-back
        least = self.lookback_ if self.choice_ is None or test_size is None else 1
        firsts = [first_tested(panel, index, test_size, least, self.horizon) for index in range(len(panel))]
        if (wider := self._with_new_series(panel, firsts)) is not self:
            return wider.backtest(panel, test_size=test_size, stride=stride, refit=refit)
        spans = zip(firsts, panel.lengths, strict=True)
        parts = [torch.arange(first, rows - self.horizon + 1, stride) for first, rows in spans]
        owners = torch.cat([torch.full_like(part, index) for index, part in enumerate(parts)])
        origins = torch.cat(parts)
        self._check_range(panel)
        found = forecast_with_refits(self, panel, owners, origins, firsts, refit)
        check_forecast(found, self.columns_)
        return measure(self, found, panel, owners, origins)

    def export(self, path: str | Path) -> None:
        """Write the model as an ONNX file that maps rows to forecasts in the units of the data.

        Inputs, for any number of windows B: `series` (B, L, C) in float32; with several ids `which` (B,), the index of
        each in `ids_`; with calendar features or covariates `marks` (B, L, F) and `future_marks` (B, P, F), which
        `known_.features` computes. Outputs: "forecast", and "quantiles", "lower" and "upper" if fitted with them. It
        needs the extra `toa[onnx]`.
        """
        self._check_fitted("exported")
        if set(self.weights_) != {NETWORK}:
            parts = ", ".join(f"{name} {weight:.2f}" for name, weight in self.weights_.items())
            raise ValueError(f"an exported forecaster must be the network alone, got {parts}; fit with model='toa'.")
        features = self.known_.count
        example = (
            self.scaler_["mean"][:1].float().unsqueeze(1).repeat(2, self.lookback_, 1)
            + torch.arange(self.lookback_).view(1, -1, 1) / self.lookback_,
            torch.tensor([0, 1]) if len(self.ids_) > 1 else None,
            torch.zeros(2, self.lookback_, features) if features else None,
            torch.zeros(2, self.horizon, features) if features else None,
        )
        model = self._add_units(copy.deepcopy(self.model_).cpu())
        # loaded on use: `toa.integrations` builds on the estimators
        toa.integrations.export_onnx(model, path, example, output=model.outputs)

    def run_sample(self, data: Any, index: int = 0) -> None:
        """Forecast one window of a pandas frame, see `Estimator.run_sample`."""
        self._check_has_network()
        # the covariates of the forecast steps come from the window
        panel = self._read_fitted(sample_rows(data, self.id, index, self.lookback_ + self.horizon))
        self._network_at(panel, torch.tensor([0]), torch.tensor([self.lookback_]))

    def explain(self, data: Any, index: int | None = None) -> Importance:
        """Parts of lags and columns in the forecast of the network, see `Estimator.explain`.

        With covariates or a calendar, the last window is that before the last horizon of data.
        """
        self._check_has_network()
        rows = data if index is None else sample_rows(data, self.id, index, self.lookback_ + self.horizon)
        panel = self._read_fitted(rows)
        wider = self._with_new_series(panel, panel.lengths)
        ahead = self.horizon if index is not None or self.known_.count else 0
        if panel.lengths[0] <= ahead:
            raise ValueError(f"{panel.label(0)} must have more than {ahead} rows, got {panel.lengths[0]}; add rows.")
        return explain_forecast(wider, panel, panel.lengths[0] - ahead)

    def _fit_choice(self, panel: Panel) -> None:
        """Weight the network and the baselines."""
        ceiling = Ceiling(self.time_limit)
        # the network sees the rows that have the most values
        complete = panel.complete(self.columns_)
        origins = RollingOrigins.choose(
            complete.lengths,
            horizon=self.horizon,
            share=self.validation_share,
            columns=len(self.columns_),
            seed=self.seed,
            histories=self._effort.histories,
            least=self._least_origins,
        )
        rows = np.array(list(map(len, complete.histories(self.columns_)))).reshape(len(panel), -1)
        each, series = origins.per_column(rows), panel.histories(self.columns_)
        forecasts = validate_methods(series, each, self.season_, self.seed, self._effort, ceiling)
        self.width_ = self.counts_ = None
        network = self._validate_network(complete, origins, ceiling)
        if len(origins) and (self.covariates or self.holidays):
            forecasts |= self._validate_regressions(complete, origins)
        networks, scale = [self], series_scale(series, self.season_)
        if network is not None:
            forecasts[NETWORK] = network
            if NETWORK in each.weigh(series, forecasts, scale)[0]:

                def error(rows: np.ndarray) -> float:
                    return each.weigh(series, {NETWORK: rows}, scale)[1][NETWORK]

                networks, forecasts[NETWORK] = self._validate_seeds(complete, origins, network, error, ceiling)
        self.choice_ = Choice.fit(
            panel,
            self.columns_,
            each,
            season=self.season_,
            forecasts=forecasts,
            interval=self.interval,
            levels=tuple(map(float, self.quantiles)),
            effort=self._effort,
            seed=self.seed,
        )
        if NETWORK in self.choice_.ensemble.weights:
            self._train_again(networks, complete)
        if forecasts.keys() & REGRESSIONS.keys():
            self.effect_ = self.known_.fit_effect(complete, self.columns_, self.choice_.scale, self.season_)
        self.truncated_ = tuple(ceiling.left_out)
        ceiling.warn(stacklevel=4)

    @property
    def _least_origins(self) -> int:
        """Fewest windows per column at the rolling origins: twice those that an interval needs."""
        if self.interval is None:
            return self._effort.origins
        return max(self._effort.origins, _INTERVAL_WINDOWS * math.ceil(self.interval / (1.0 - self.interval)))

    def _forecast_at(
        self,
        panel: Panel,
        owners: Tensor,
        origins: Tensor,
        network: Prediction | None = None,
        ahead: Sequence[np.ndarray] | None = None,
    ) -> Prediction:
        """Forecasts of windows: of the series `owners`, from the rows `origins` on.

        Args:
            network: Those of the network, if they are known.
            ahead: Features (P, F) of the forecast steps of each window; None takes those of the panel.
        """
        if network is None and NETWORK in self.weights_:
            network = self._network_at(panel, owners, origins)
        if self.choice_ is None:
            assert network is not None
            return network
        most, which, parts = history_rows(self.season_, self.horizon), self._owners(panel)[owners], []
        for piece in torch.arange(len(owners)).split(min(_WINDOWS, max(1, _HISTORIES // len(self.columns_)))):
            places = list(zip(owners[piece].tolist(), origins[piece].tolist(), strict=True))
            histories = panel.histories(self.columns_, places, most)
            others = {} if network is None else {NETWORK: network["forecast"][piece].numpy()}
            others |= self._regressions(panel, places, None if ahead is None else [ahead[one] for one in piece])
            parts.append(self.choice_.combine(histories, others, which[piece]))
        return join_batches(parts)

    def _with_new_series(self, panel: Panel, stops: Sequence[int]) -> "Forecaster":
        """This forecaster, or a copy with the scales of series that fit has not seen, by their rows before `stops`."""
        known = set(self.ids_)
        new = [index for index, one in enumerate(panel.ids) if one not in known]
        if not new:
            return self
        places = [(index, stops[index]) for index in new]
        found, wider = self._fit_scaler(panel, places), copy.copy(self)
        wider.ids_ = (*self.ids_, *(panel.ids[index] for index in new))
        wider.scaler_ = {name: torch.cat([part, found[name]]) for name, part in self.scaler_.items()}
        if self.choice_ is not None:
            scale = series_scale(panel.histories(self.columns_, places), self.season_).reshape(len(new), -1)
            wider.choice_ = self.choice_.add_series(scale, wider.scaler_["mean"].abs().numpy())
        return wider

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"scaler.{name}": value for name, value in self.scaler_.items()}
        added = {"width": self.width_, "counts": self.counts_}
        tensors |= {name: part for name, part in added.items() if part is not None}
        facts = {"columns": list(self.columns_), "ids": list(self.ids_), "known": self.known_.state()}
        tensors |= {} if self.effect_ is None else {"effect": torch.from_numpy(self.effect_)}
        facts |= {"season": self.season_, "day_first": self.day_first_}
        if self.choice_ is not None:
            own, facts["choice"] = self.choice_.state()
            tensors |= {f"choice.{name}": value for name, value in own.items()}
        return tensors, facts

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._check_parameters()
        self.columns_, self.ids_ = tuple(facts["columns"]), tuple(facts["ids"])
        # the mean of several networks has their weights under their numbers
        networks = {name.split(".")[2] for name in tensors if name.startswith("model.models.")}
        self.seeds_ = tuple(range(self.seed, self.seed + (len(networks) or int(self._has_network))))
        self.known_ = Covariates.from_state(facts["known"])
        check_count("lookback", self.lookback_, 1)
        assert isinstance(self.time_, str | None), "a name that is none"
        assert type(self.freq_) in (str, int, type(None)), "a frequency that is none"
        self.scaler_ = named(tensors, "scaler.")
        self.width_, self.counts_ = tensors.get("width"), tensors.get("counts")
        sizes = len(self.ids_), len(self.columns_)
        for name in ("mean", "std", *self.scaler_):
            check_shape(f"scaler.{name}", self.scaler_[name], "(S, C)", sizes)
        for name, axes, shape in (("width", "(P, C)", (self.horizon, sizes[1])), ("counts", "(C,)", sizes[1:])):
            if name in tensors:
                check_shape(name, tensors[name], axes, shape)
        self.effect_ = None
        if "effect" in tensors:
            check_shape("effect", tensors["effect"], "(F, C)", (self.known_.count, sizes[1]))
            self.effect_ = tensors["effect"].cpu().numpy()
        self.day_first_ = facts.get("day_first")
        # older files hold the network alone
        self.season_ = facts["season"] if "season" in facts else season_of(self.freq_) or 1
        self.choice_ = None
        if "choice" in facts:
            self.choice_ = Choice.from_state(named(tensors, "choice."), facts["choice"])
            check_at_least("season", self.season_, 1)
            check_unpacked("season", self.season_ * sizes[1], tensors)
            self.choice_.check(*sizes, self.horizon, len(self.quantiles), self.season_)
        else:
            self.model = NETWORK
