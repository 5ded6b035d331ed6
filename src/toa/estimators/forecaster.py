"""Forecaster: forecasts of a user's table, with intervals and quantiles.

The shell of scikit-learn around the stages: parameters and tables are here, `toa.estimators.fitting` fits, and the
functions of `toa.estimators.fitted` and `toa.estimators.backtest` take the frozen value `fitted_`.

Alphabet: B batch, L look-back, P horizon, C columns, Q levels, S series, T rows, F features.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from sklearn.base import clone
from torch import Tensor, nn

from toa._checks import Argument, ArgumentError, Phrase, check_choice, check_count
from toa._console import shows_progress
from toa._limits import shorten
from toa.data.columns import warn_of_ended_columns, warn_of_late_columns
from toa.data.frames import check_results, forecast_names, match_panel, read_panel
from toa.data.frequency import Frequency
from toa.data.panel import Id, MissingValuesError, Panel
from toa.estimators.architecture import NETWORK
from toa.estimators.backtest import Backtest, backtest_windows, compare_with_actual, first_tested, forecast_with_refits
from toa.estimators.base import Estimator
from toa.estimators.baselines import BASELINES
from toa.estimators.calibrated import Choice
from toa.estimators.covariates import Covariates
from toa.estimators.effort import Ceiling
from toa.estimators.fitted import FittedForecaster, example_inputs, predict, predict_baseline
from toa.estimators.fitting import fit_forecaster
from toa.estimators.forecast_files import forecaster_state, restore_forecaster
from toa.estimators.importance import Importance, sample_rows
from toa.estimators.network_importance import explain_network
from toa.estimators.settings import ForecastSettings, NetworkSpec
from toa.estimators.special_baselines import SPECIAL_BASELINES
from toa.estimators.streams import as_rows
from toa.estimators.units import check_forecast
from toa.training.metrics import FORECAST_METRICS


@dataclass(eq=False, repr=False)
class Forecaster(Estimator):
    """Forecast time series.

        model = toa.Forecaster(horizon=24, interval=0.8).fit(frame)  # pandas, polars or arrow; or an array (T, C)
        model.predict()                       # the next 24 steps: a frame like the input, in its units
        model.predict(new)                    # the 24 steps after other rows
        model.update(row).predict()           # a stream: the 24 steps after the rows so far
        model.backtest(frame, test_size=0.2)  # errors and coverage over rolling origins
        model.save("model.toa")
        toa.Forecaster.load("model.toa").predict(new)

    A wide frame is one series with several columns. With `id`, the rows of each id are a series of any length.

    The forecast is a weighted mean of several methods: the network; the baselines seasonal naive, drift, Theta,
    optimised Theta and damped trend; linear models on lags; up to 60 steps, boosted trees on lags; with covariates also
    boosted trees on these, and three baselines and a linear model of what their effect leaves; with five columns or
    more a linear model that reads all of them and, with effort="thorough" or on a GPU, networks that mix them; for
    counts with many zeros Croston's method, SBA, TSB and the median; for growing series methods on logarithms; for
    tables with a season the last value; and the pretrained model. If the mean of all is hardly better than the last
    value at the rolling origins, the last value has all the weight.

    The weights, the same for all series, are chosen by the errors from rolling origins at the end of each series, in
    rows that the methods have not seen. There, the last origin counts twice. Then all methods with a weight are fitted
    again to all rows. With effort="thorough" networks of further seeds are trained too: their mean takes the place of
    the network if its error at these origins is not larger. Intervals and quantiles come from the errors at these
    origins. A column that holds only 0, 1, 2, … has forecasts and bounds of at least 0. A column that repeats its
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
            For "auto" it is set by the errors that chose the weights. Too few windows raise ValueError for "toa", and
            lead to a warning for "auto".
        calendar: Whether to use calendar features such as the hour and the day.
        covariates: Columns that are known in advance: not forecast, but passed to `predict` as `future`. They act as
            curves, by the hour or the weekday, and in boosted trees. Text becomes categories.
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
        id: Id column of a frame with several series. None takes `unique_id` with `ds`, and `item_id` with `timestamp`,
            as other libraries name them, and then forecasts `y` or `target`.
        time: Time column; None finds it.
        values: Columns to forecast; None for all others.
        freq: Frequency of the times; None infers it.
        missing: Missing values and rows: "error", "ffill", "interpolate" or "zero". Columns may begin late.
        missing_values: Numbers that mean a missing value, such as [-9999]; None takes none, and warns of numbers that
            look like such codes.
        day_first: Whether the day comes first in dates such as 01/02/2015; None finds it.
        time_zone: Time zone of the dates, such as "Europe/Rome"; None leaves them as they are.
        seed: Seed of weights, batches, dropout and SOR.
        seeds: Networks with the seeds `seed`, `seed` + 1, … whose forecasts are averaged. "toa" trains all of them, or
            one if None; "auto" trains up to that many, by effort if None, as the error of the mean allows.
        device: "auto", "cpu", "cuda" or "cuda:N".
        progress: Whether to show progress bars; None shows them in a terminal or a notebook, but in no file or pipe.

    Attributes:
        model_: The trained model, on standardised values.
        lookback_: Steps L.
        columns_: Names of the forecast columns.
        ids_: Ids of the series; (None,) without ids.
        freq_: Frequency of the times.
        id_: Name of the id column.
        time_: Name of the time column.
        day_first_: Whether the day comes first in dates.
        architecture_: Backbone, attention and settings.
        schedule_: Batch size, steps per epoch, maximum number of epochs and the factor of the operators' rate.
        seeds_: Seeds of the networks that `model_` averages.
        validation_: Loss on the held-out rows, standardised; of several networks the mean.
        fitted_: All that was fitted, a frozen value.
        known_: Computes the features of the calendar and the covariates.
        season_: Steps of the season.
        weights_: Weight of each method in the forecast.
        choice_: The chosen weights and what intervals need; None for "toa".
        effect_: Linear effect of the features, in scales; None without methods with covariates.
        width_: Half of the interval of the network alone, in spreads; None without one.
        truncated_: Methods that `time_limit` left out.
    """

    _kind = "forecaster"
    _counts = ("horizon", "lookback", "season", "seeds")
    _facts = ("lookback_", "freq_", "time_", "validation_", "architecture_", "schedule_")

    horizon: int
    _: KW_ONLY
    lookback: int | None = None
    backbone: str = "patchtst"
    attention: str | Mapping[str, Any] | None = None
    quantiles: Sequence[float] = ()
    interval: float | None = None
    season: int | None = None
    calendar: bool = False
    covariates: Sequence[str] = ()
    past_covariates: Sequence[str] = ()
    static: Sequence[str] = ()
    holidays: str | None = None
    loss: str = "mae"
    learning_rate: float = 2e-3
    operator_rate: float | None = None
    validation_share: float = 0.125
    freq: str | int | None = None
    seeds: int | None = None

    def fit(self, data: Any, y: Any = None) -> "Forecaster":
        """Train on data. A fit that is stopped, or raises, leaves the forecaster as it was.

        Args:
            data: A pandas, polars or arrow frame, an array (T,) or (T, C), or a list of arrays.
            y: Ignored; scikit-learn pipelines pass it.

        Raises:
            ValueError: If the data cannot be read, or a series is too short.
        """
        self._check_parameters()
        panel = self.read(data)
        columns = tuple(column for column in panel.columns if column not in self.inputs)
        if not columns:
            raise ArgumentError("data", "have a column to forecast", "only covariates", "name fewer covariates")
        names = forecast_names(columns, self.quantiles, self.interval is not None)
        check_results(panel, names if panel.time_column else ["step", *names])
        if panel.begins is not None:
            warn_of_late_columns(panel, alone=self.model == NETWORK)
        warn_of_ended_columns(panel, columns)
        ceiling = Ceiling(self.time_limit)
        self.fitted_: FittedForecaster = fit_forecaster(panel, columns, self.settings_of_fit(), ceiling)
        ceiling.warn(stacklevel=3)
        return self

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
        return predict(self.fitted_, panel, steps, future, self._table)

    def update(self, rows: Any) -> "Forecaster":
        """Take new rows of a stream: `predict()` then forecasts the steps after them. Nothing is fitted.

        The last rows of each series are kept, as many as a forecast reads. They begin with those of `fit`; a forecaster
        that was loaded has none, because files hold no rows, and begins with the rows of the first call: pass at least
        the last `fitted_.rows_read` ones. Later rows follow them without gaps, in calls of one or more rows, with a
        value in each column, also of covariates. `predict()` then returns what it returns for all these rows in one
        table.
        A call that raises changes nothing.

        Args:
            rows: A frame like the one of `fit`, a dict of one row or a list of dicts with its columns; or an array or
                lists (t, C), (t,) for one column, or one row (C,). Series without new rows stay where they are, and
                rows of new ids begin new series.

        Raises:
            ValueError: If rows differ from `fit` in columns, ids or frequency, miss a value, or do not follow the last
                ones in time.
        """
        self._check_fitted("given rows")
        fitted = self.fitted_
        rows = as_rows(rows, len(fitted.columns) + len(self.inputs))
        try:
            panel = self.read_fitted(rows, is_complete=fitted.tail is not None)
        except MissingValuesError as error:
            if fitted.tail is None:
                raise
            # columns are those of fit, and later rows are not known
            raise error.with_remedies("fill it before the call, such as by the last value") from None
        self.fitted_ = fitted.with_rows(panel)
        return self

    def predict_baseline(self, name: str, data: Any = None, *, horizon: int | None = None) -> Any:
        """Forecast by a baseline of `BASELINES` or `SPECIAL_BASELINES` of `toa.estimators` alone; see `predict`."""
        check_choice("name", name, (*BASELINES, *SPECIAL_BASELINES))
        panel, steps = self._read_rows(data, horizon)
        return predict_baseline(self.fitted_, name, panel, steps)

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
        panel = self.read_fitted(data)
        fitted = self.fitted_
        names = forecast_names(fitted.columns, fitted.quantiles, fitted.interval is not None)
        names += [f"{column}_actual" for column in fitted.columns]
        check_results(panel, [*(() if panel.time_column else ("row",)), "origin", "step", *names])
        # only the network alone needs its whole look-back
        least = fitted.inputs.lookback if fitted.choice is None or test_size is None else 1
        firsts = [first_tested(panel, index, test_size, least, fitted.horizon) for index in range(len(panel))]
        fitted = fitted.with_new_series(panel, firsts)
        places = backtest_windows(panel, firsts, fitted.horizon, stride)
        fitted.inputs.check_range(panel)
        if refit is None:
            prediction = fitted.forecast(panel, places)
        else:
            check_count("refit", refit, 1)
            prediction = forecast_with_refits(lambda rows: clone(self).fit(rows).fitted_, panel, places, firsts, refit)
        check_forecast(prediction, fitted.columns)
        return compare_with_actual(fitted, prediction, panel, places)

    def page(
        self,
        path: str | Path,
        data: Any,
        *,
        future: Any = None,
        horizon: int | None = None,
        tested: Backtest | None = None,
        title: str = "Forecast",
        command: str = "",
        left_out: Sequence[str] = (),
    ) -> Path:
        """Write one HTML file: series with forecast and baselines, errors, what the forecast depends on, the model.

        Args:
            path: File to write.
            data: Rows to forecast after, as for `predict`.
            future: Covariates of the forecast steps, as for `predict`.
            horizon: Number of steps; None for all.
            tested: Result of `backtest` to show; None shows the errors at the rolling origins of `fit`.
            title: Title of the page.
            command: What repeats the page; by default Python code.
            left_out: Columns of the table that were removed from data.
        """
        self._check_fitted("shown on a page")
        # loaded on use: pages build on the estimators
        from toa.report import page

        return page(
            self,
            path,
            data,
            future=future,
            horizon=horizon,
            tested=tested,
            title=title,
            command=command,
            left_out=left_out,
        )

    def export(self, path: str | Path) -> None:
        """Write the model as an ONNX file that maps rows to forecasts in the units of the data.

        Inputs, for any number of windows B: `series` (B, L, C) in float64; with several ids `which` (B,), the index of
        each in `ids_`; with calendar features or covariates `marks` (B, L, F) and `future_marks` (B, P, F) in float32,
        which `known_.features` computes. Outputs in float64: "forecast", and "quantiles", "lower" and "upper" if fitted
        with them. The network computes in float32, after the scaling: no digits are lost far from zero. It needs the
        extra `toa[onnx]`.
        """
        self._check_fitted("exported")
        fitted = self.fitted_
        if set(fitted.weights) != {NETWORK}:
            parts = ", ".join(f"{name} {weight:.2f}" for name, weight in fitted.weights.items())
            raise ArgumentError(
                "an exported forecaster", "be the network alone", parts, Phrase("fit with ", Argument("model", "toa"))
            )
        network = fitted.require_network()
        model = network.add_units(copy.deepcopy(network.model).cpu())
        # loaded on use: `toa.integrations` builds on the estimators
        from toa.integrations import export_onnx

        export_onnx(model, path, example_inputs(network), output=model.outputs)

    def run_sample(self, data: Any, index: int = 0) -> None:
        """Forecast one window of a pandas frame, see `Estimator.run_sample`."""
        self._check_has_network()
        lookback = self.fitted_.inputs.lookback
        # the covariates of the forecast steps come from the window
        panel = self.read_fitted(sample_rows(data, self.id_, index, lookback + self.fitted_.horizon))
        self.fitted_.require_network().predict(panel, [(0, lookback)])

    def explain(self, data: Any, index: int | None = None) -> Importance:
        """Parts of lags and columns in the forecast of the network, see `Estimator.explain`.

        With covariates or a calendar, the last window is that before the last horizon of data.
        """
        self._check_has_network()
        fitted = self.fitted_
        inputs = fitted.inputs
        horizon = fitted.horizon
        rows = data if index is None else sample_rows(data, self.id_, index, inputs.lookback + horizon)
        panel = self.read_fitted(rows)
        network = fitted.with_new_series(panel, panel.lengths).require_network()
        ahead = horizon if index is not None or inputs.covariates.count else 0
        if panel.lengths[0] <= ahead:
            raise ArgumentError(panel.label(0), f"have more than {ahead} rows", panel.lengths[0], "add rows")
        return explain_network(network, panel, panel.lengths[0] - ahead, fitted.freq)

    def check_future(self, data: Any, future: Any) -> None:
        """Raise ValueError, before training, if `future` does not fit the steps after data; see `predict`."""
        self._check_parameters()
        panel = self.read(data)
        settings = self.settings_of_fit()
        covariates = settings.covariates.fit(panel, panel.lengths, calendar=settings.calendar)
        covariates.future(panel, future, self.horizon, self._table | {"day_first": panel.day_first})

    def read(self, data: Any) -> Panel:
        """The panel of a table as `fit` reads it; the forecaster need not be fitted."""
        return self._read(data, self.freq, dict.fromkeys(self.inputs), self.day_first)

    def read_fitted(self, data: Any, *, is_complete: bool = False) -> Panel:
        """A panel with the columns, ids and frequency of fit; `is_complete` raises an error for any missing value."""
        fitted = self.fitted_
        wanted = (*fitted.columns, *self.inputs)
        options: dict[str, Any] = {"missing": "error", "late_columns": False} if is_complete else {}
        categories = fitted.inputs.covariates.categories
        panel = self._read(data, fitted.freq, categories, self._table["day_first"], width=len(wanted), **options)
        if panel.backend is None and len(panel.columns) == len(wanted):
            # arrays have no names: their columns are those of fit, covariates last
            panel = replace(panel, columns=wanted)
        # series of other ids can be forecast, but not a table without ids by a model with ids, nor the other way
        ids = fitted.inputs.ids
        return match_panel(panel, wanted, ids if None in (*ids, *panel.ids) else None)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that are not forecast; `fitted_.inputs` also has what is forecast, with its scales."""
        return (*self.covariates, *self.static, *self.past_covariates)

    def shown_weights(self) -> dict[str, float]:
        """The weights, the largest first; the name of a mean of networks tells how many there are."""
        weights = self.weights_
        shown = {}
        for name in sorted(weights, key=lambda name: -weights[name]):
            is_mean = name == NETWORK and len(self.seeds_) > 1
            label = f"{name} ({len(self.seeds_)} seeds)" if is_mean else name
            shown[label] = weights[name]
        return shown

    def settings_of_fit(self) -> ForecastSettings:
        """The parameters that the stages of a fit take."""
        covariates = Covariates(
            covariates=tuple(self.covariates),
            static=tuple(self.static),
            past_covariates=tuple(self.past_covariates),
            holidays=self.holidays,
        )
        quantiles = tuple(map(float, self.quantiles))
        network = NetworkSpec(
            horizon=self.horizon,
            alone=self.model == NETWORK,
            lookback=self.lookback,
            backbone=self.backbone,
            attention=self.attention,
            settings=self.settings,
            quantiles=quantiles,
            loss=cast(Any, self.loss),
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            operator_rate=self.operator_rate,
            patience=self.patience,
            device=self.device,
            progress=shows_progress(self.progress),
        )
        return ForecastSettings(
            horizon=self.horizon,
            season=self.season,
            interval=self.interval,
            quantiles=quantiles,
            validation_share=self.validation_share,
            effort=self._effort,
            seed=self.seed,
            seeds=self.seeds,
            covariates=covariates,
            calendar=self.calendar,
            network=network,
        )

    def _read_rows(self, data: Any, horizon: int | None) -> tuple[Panel, int]:
        """The rows before a forecast, and its number of steps."""
        self._check_fitted("asked for a forecast")
        fitted = self.fitted_
        steps = fitted.horizon if horizon is None else horizon
        is_count = horizon is None or hasattr(horizon, "__index__")
        if not is_count or not 1 <= steps <= fitted.horizon:
            remedies = [Phrase("fit with ", Argument("horizon", steps))] if is_count and steps > 0 else []
            raise ArgumentError("horizon", f"be from 1 to {fitted.horizon}, the horizon of fit", repr(steps), *remedies)
        if data is None and fitted.tail is None:
            raise ArgumentError(
                "data",
                "be given to a forecaster that was loaded, because files hold no rows",
                "None",
                f"pass the last {fitted.rows_read} rows of each series",
                "give them to update()",
            )
        panel = fitted.tail if data is None else self.read_fitted(data)
        assert panel is not None
        if fitted.choice is None and self.lookback is not None:
            lookback = fitted.inputs.lookback
            what = Phrase(Argument("lookback", lookback), " rows")
            remedy = Phrase("fit with a shorter ", Argument("lookback"))
            panel.check_rows(lookback, what, "pass more rows", remedy)
        return panel, steps

    def _read(
        self,
        data: Any,
        freq: Frequency | None,
        categories: Mapping[str, Any],
        day_first: bool | None,
        **changes: Any,
    ) -> Panel:
        values = None if self.values is None else [*self.values, *self.inputs]
        options = self._table | {"day_first": day_first, "late_columns": True}
        options |= {"freq": freq, "categories": categories, "beside_target": self.inputs} | changes
        panel = read_panel(data, values=values, **options)
        if panel.backend is None:
            # arrays have no names
            return panel
        for name in self.inputs:
            if name not in panel.columns:
                raise ArgumentError("data", f"have the covariate {name!r}", ", ".join(map(repr, panel.columns)))
        return panel

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("loss", self.loss, FORECAST_METRICS)
        for name in ("covariates", "past_covariates", "static"):
            columns = getattr(self, name)
            if not isinstance(columns, Sequence) or isinstance(columns, str):
                raise ArgumentError(name, "be a list of columns", repr(columns))
        shares = {"validation_share": self.validation_share}
        if self.interval is not None:
            shares["interval"] = self.interval
        if not isinstance(self.quantiles, list | tuple | np.ndarray):
            raise ArgumentError(
                "quantiles", "be a list of levels in (0, 1)", repr(self.quantiles), "such as [0.1, 0.9]"
            )
        shares |= {f"quantiles[{index}]": level for index, level in enumerate(self.quantiles)}
        for name, share in shares.items():
            if not hasattr(share, "__float__") or not 0.0 < share < 1.0:
                raise ArgumentError(name, "lie in (0, 1)", repr(share))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return forecaster_state(self.fitted_)

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], where: str | Path) -> None:
        if "choice" not in facts:
            self.model = NETWORK
        self._check_parameters()
        if None not in (self.id, facts.get("id")) and self.id != facts["id"]:
            raise ArgumentError("id of the fit", "be that of the parameters", shorten(facts["id"]))
        self.fitted_ = restore_forecaster(tensors, facts, self.settings_of_fit(), where)

    @property
    def model_(self) -> nn.Module:
        """The trained model, on standardised values."""
        return nn.Identity() if self.fitted_.network is None else self.fitted_.network.model

    @property
    def lookback_(self) -> int:
        """Steps L."""
        return self.fitted_.inputs.lookback

    @property
    def columns_(self) -> tuple[str, ...]:
        """Names of the forecast columns."""
        return self.fitted_.columns

    @property
    def ids_(self) -> tuple[Id, ...]:
        """Ids of the series; (None,) without ids."""
        return self.fitted_.inputs.ids

    @property
    def freq_(self) -> Frequency | None:
        """Frequency of the times."""
        return self.fitted_.freq

    @property
    def id_(self) -> str | None:
        """Name of the id column."""
        # older files do not have it
        return self.id if self.fitted_.id_column is None else self.fitted_.id_column

    @property
    def time_(self) -> str | None:
        """Name of the time column."""
        return self.fitted_.time_column

    @property
    def day_first_(self) -> bool | None:
        """Whether the day comes first in dates."""
        return self.fitted_.day_first

    @property
    def architecture_(self) -> dict[str, Any]:
        """Backbone, attention and settings."""
        return dict(self.fitted_.architecture)

    @property
    def schedule_(self) -> dict[str, Any]:
        """Batch size, steps per epoch, maximum number of epochs and the factor of the operators' rate."""
        return {} if self.fitted_.network is None else dict(self.fitted_.network.schedule)

    @property
    def seeds_(self) -> tuple[int, ...]:
        """Seeds of the networks that `model_` averages."""
        return () if self.fitted_.network is None else self.fitted_.network.seeds

    @property
    def validation_(self) -> float | None:
        """Loss on the held-out rows, standardised; of several networks the mean."""
        return None if self.fitted_.network is None else self.fitted_.network.validation

    @property
    def known_(self) -> Covariates:
        """Computes the features of the calendar and the covariates."""
        return self.fitted_.inputs.covariates

    @property
    def effect_(self) -> np.ndarray | None:
        """Linear effect (F, C) of the features, in scales; None without methods with covariates."""
        return self.fitted_.effect

    @property
    def width_(self) -> Tensor | None:
        """Half of the interval (P, C) of the network alone, in spreads; None without one."""
        return None if self.fitted_.network is None else self.fitted_.network.width

    @property
    def season_(self) -> int:
        """Steps of the season."""
        return self.fitted_.season

    @property
    def choice_(self) -> Choice | None:
        """The chosen weights and what intervals need; None for "toa"."""
        return self.fitted_.choice

    @property
    def truncated_(self) -> tuple[str, ...]:
        """Methods that `time_limit` left out."""
        return self.fitted_.truncated

    @property
    def weights_(self) -> dict[str, float]:
        """Weight of each method in the forecast; the name of the network is "toa"."""
        self._check_fitted("asked for its weights")
        return self.fitted_.weights
