"""Choice: the weights of methods, by their errors at rolling origins, and their weighted mean.

    origins = RollingOrigins.choose(lengths, horizon=24, share=0.125)
    validated = validate(methods, training, Histories(values=origins.histories(series)))
    chosen, _ = fit_ensemble(series, origins, validated, training)
    chosen.weights                                       # {"linear 336": 0.6, "toa": 0.4}
    chosen.predict(series, others={"toa": forecasts})    # (N, P)

The weights are chosen for all series together, by errors that are divided by the seasonal error of their series, as
MASE does. With little data the best baseline gets a part of the weight.

Alphabet: N series of one column, P horizon, W windows, one per series and origin.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from toa.estimators.baselines import BASELINES, SEASONS_TO_TELL, has_season, repeat_season
from toa.estimators.comparison import is_clearly_lower, score_per_series
from toa.estimators.lag_methods import FittedBaseline, baseline_rows, local_rows
from toa.estimators.methods import FittedMethod, Histories, Training, UsesCovariates, Validated
from toa.estimators.origins import ROUNDING, RollingOrigins, SeriesList, align_series, series_scale
from toa.estimators.weights import MeanForecast, greedy_weights, mean_forecast, weighted_mean

# windows that the best baseline counts as in the weights
_PRIOR_WINDOWS = 6.0
# windows from which on the best baseline gets no weight of its own
_MANY_WINDOWS = 200.0
# how often the last origin counts in the choice of weights
_LAST_ORIGIN = 2.0
# baselines that the mean begins with
_FIRST_BASELINES = 3
# how often each of them counts
_FIRST_TIMES = 2
# largest error of such a baseline, in units of the least error
_CLOSE_ERROR = 1.15
# seasons in which a series must repeat exactly to be continued so
_EXACT_SEASONS = 3
# the method that tells the effect of covariates
_REGRESSION = "seasonal naive + covariates"
# least gain of the methods with covariates, as a share of the error without them
_LEAST_GAIN = 0.01
# and in standard errors of the gain
_STANDARD_ERRORS = 1.0
# without origins to validate at
_ONLY_METHOD = "seasonal naive"
# windows that do not overlap, below which errors at the origins are chance and the methods below share the weight
_TOO_FEW_WINDOWS = 1.5
_SHORT_METHODS = ("seasonal naive", "theta", "optimised theta")
# repeats the last value; without a season, the seasonal naive forecast does
_LAST_VALUE = "last value"
# largest error of a mean that is clearly below that of the last value, as a share of it
_HARDLY_BETTER = 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensemble:
    """A weighted mean of forecasts; a series that repeats its season exactly, or is constant, is continued so instead.

    Attributes:
        weights: Weight per method; they sum to 1.
        errors: Mean error at the origins, of each method and of the "ensemble"; all origins count the same.
        measure: "MASE"; "MAE" in the units of the data if the seasonal naive forecast has no error in any series.
        fitted: The fitted methods with a weight that read past values alone. Baselines, which are not fitted, the
            network and the methods with covariates are not among them.
        changes: By how much the error at the origins would change, as a share, with each method with covariates that
            has no weight.
        seasonal: Whether most series have a season. Then baselines repeat the last season of a series that is too short
            to tell; the weights and `errors` are measured without this.
    """

    season: int
    horizon: int
    weights: Mapping[str, float]
    errors: Mapping[str, float]
    fitted: Mapping[str, FittedMethod] = field(default_factory=dict)
    measure: str = "MASE"
    seasonal: bool = False
    changes: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows_read(self) -> int:
        """Rows that the baselines and the fitted methods with a weight read."""
        methods = [self.fitted[name].rows_read for name in self.weights if name in self.fitted]
        baselines = [baseline_rows(name, self.season) for name in self.weights if name in BASELINES]
        return max([*methods, *baselines], default=0)

    def predict(
        self, series: SeriesList, others: Mapping[str, Float64[np.ndarray, "n p"]] | None = None
    ) -> Float64[np.ndarray, "n p"]:
        """Forecast after the end of each series; `others` has the forecasts of other methods with a weight."""
        return self.forecast(series, others).mean

    def forecast(
        self, series: SeriesList, others: Mapping[str, Float64[np.ndarray, "n p"]] | None = None
    ) -> MeanForecast:
        """The forecast of `predict`, and how far the methods are apart."""
        members = self.members(series, self.weights) | dict(others or {})
        forecast = mean_forecast(self.weights, members)
        mean = _continue_exactly(series, self.season, forecast.mean, members.get(_REGRESSION))
        return MeanForecast(mean, forecast.spread)

    def members(self, series: SeriesList, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Forecasts (N, P) of those of the methods that are baselines or in `fitted`."""
        histories = Histories(values=series)
        forecasts: dict[str, np.ndarray] = {}
        for name in names:
            if name in self.fitted:
                forecasts[name] = self.fitted[name].forecast(histories)
            elif name in BASELINES:
                forecasts[name] = FittedBaseline(name, self.season, self.horizon).forecast(histories)
        # longer ones have at most the rows that baselines read
        least = min(SEASONS_TO_TELL * self.season, local_rows(self.season))
        short = [index for index, values in enumerate(series) if len(values) < least]
        if self.seasonal and short:
            last = repeat_season(align_series([series[index] for index in short]), self.season, self.horizon)
            for name in BASELINES.keys() & forecasts.keys():
                forecasts[name][short] = last
        return forecasts


def fit_ensemble(
    series: SeriesList, origins: RollingOrigins, validated: Mapping[str, Validated], training: Training
) -> tuple[Ensemble, MeanForecast | None]:
    """Choose weights at the origins, then fit the methods with a weight that read past values alone to all rows.

    Returns also the forecasts of the ensemble at the origins. Without origins with actual values these are None, and
    the ensemble is the seasonal naive forecast.
    """
    season = training.season
    horizon = training.horizon
    if not np.isfinite(origins.actual(series)).any():
        return Ensemble(season=season, horizon=horizon, weights={_ONLY_METHOD: 1.0}, errors={}), None
    forecasts = {name: method.forecasts for name, method in validated.items()}
    scale = series_scale(series, season)
    with_covariates = [name for name, method in validated.items() if isinstance(method.fitted, UsesCovariates)]
    weights, errors, changes = weigh_with_covariates(origins, series, forecasts, scale, with_covariates)
    last = _LAST_VALUE if season > 1 else _ONLY_METHOD
    if last in forecasts and not _beats(weighted_mean(weights, forecasts), forecasts[last], origins, series, scale):
        weights = {last: 1.0}
        times = errors["ensemble"] / errors[last]
        changes = {name: (1.0 + change) * times - 1.0 for name, change in changes.items()}
        errors["ensemble"] = errors[last]
    simple = [name for name in _SHORT_METHODS if name in forecasts]
    if is_too_short(origins) and simple:
        weights = {name: 1.0 / len(simple) for name in simple}
        changes = {}
    fitted: dict[str, FittedMethod] = {}
    for name in weights:
        method = validated[name].fitted
        if not method.reads_panel and not isinstance(method, FittedBaseline):
            refitted = method.refit(training)
            assert refitted is not None, "more rows than before the origins are enough"
            fitted[name] = refitted
    forecast = mean_forecast(weights, forecasts)
    # as in the forecasts to come; these windows have no part in the weights
    exact = np.flatnonzero(scale[origins.series] == 0)
    histories = origins.histories(series)
    regression = forecasts[_REGRESSION][exact] if _REGRESSION in forecasts else None
    mean = forecast.mean.copy()
    mean[exact] = _continue_exactly([histories[index] for index in exact], season, mean[exact], regression)
    ensemble = Ensemble(
        season=season,
        horizon=horizon,
        weights=weights,
        errors=errors,
        fitted=fitted,
        measure="MASE" if (np.where(origins.held, scale, 0.0)[origins.series] > 0).any() else "MAE",
        seasonal=has_season(training.history, season),
        changes=changes,
    )
    return ensemble, MeanForecast(mean, forecast.spread)


def is_too_short(origins: RollingOrigins) -> bool:
    """Whether errors at the origins are chance: then simple methods share the weight."""
    return origins.independent < _TOO_FEW_WINDOWS


def weigh_with_covariates(
    origins: RollingOrigins,
    series: SeriesList,
    forecasts: Mapping[str, Float64[np.ndarray, "w p"]],
    scale: Float64[np.ndarray, " n"],
    with_covariates: Sequence[str],
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Weights and errors as by `weigh_at`, and the changes of `Ensemble`.

    The methods with covariates have a weight only if they lower the error of the others by a share that is no chance.
    """
    plain = {name: rows for name, rows in forecasts.items() if name not in with_covariates}
    weights, errors = weigh_at(origins, series, forecasts, scale)
    if not plain or not with_covariates:
        return weights, errors, {}
    plain_weights, plain_errors = weigh_at(origins, series, plain, scale)
    mean = weighted_mean(weights, forecasts)
    plain_mean = weighted_mean(plain_weights, plain)
    if not _is_clearly_better(origins, series, mean, plain_mean, scale):
        weights = plain_weights
        errors = {**errors, "ensemble": plain_errors["ensemble"]}
    changes = {}
    for name in with_covariates:
        if name not in weights and errors["ensemble"] > 0:
            wider = {**plain, name: forecasts[name]}
            _, with_method = weigh_at(origins, series, wider, scale, first=name)
            changes[name] = with_method["ensemble"] / errors["ensemble"] - 1.0
    return weights, errors, changes


def _is_clearly_better(
    origins: RollingOrigins,
    series: SeriesList,
    forecast: Float64[np.ndarray, "w p"],
    other: Float64[np.ndarray, "w p"],
    scale: Float64[np.ndarray, " n"],
) -> bool:
    """Whether a forecast has a lower error than another one by more than a small share, and by more than chance."""
    actual = origins.actual(series)
    unit = scale[origins.series]
    usable = np.isfinite(unit) & (unit > 0) & np.isfinite(actual).any(1)
    if not usable.any():
        usable = np.isfinite(actual).any(1)
        unit = np.ones(len(unit))
    target = actual[usable]
    error, other_error = (
        np.nanmean(np.abs(part[usable] - target), axis=1) / unit[usable] for part in (forecast, other)
    )
    gain = other_error - error
    windows = max(1.0, min(len(gain), origins.independent))
    chance = _STANDARD_ERRORS * float(gain.std()) / np.sqrt(windows)
    return bool(gain.mean() > max(chance, _LEAST_GAIN * float(other_error.mean())))


def weigh_at(
    origins: RollingOrigins,
    series: SeriesList,
    forecasts: Mapping[str, Float64[np.ndarray, "w p"]],
    scale: Float64[np.ndarray, " n"],
    first: str | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Weights and errors of forecasts at the origins, see `choose_weights`; `scale` is that of each series."""
    # the last origin is most like the forecasts to come
    counts = np.where(origins.back == origins.back.min(), _LAST_ORIGIN, 1.0)
    unit = scale[origins.series]
    return choose_weights(forecasts, origins.actual(series), unit, origins.independent, counts, first)


def _beats(
    mean: Float64[np.ndarray, "w p"],
    last: Float64[np.ndarray, "w p"],
    origins: RollingOrigins,
    series: SeriesList,
    scale: Float64[np.ndarray, " n"],
) -> bool:
    """Whether the mean of methods is better than the last value by a clear share, or by more than chance over series.

    A mean that is chosen by the same windows is a little better there even for a random walk. True without a scale.
    """
    unit = np.where(scale > 0, scale, np.nan)[origins.series][:, None]
    actual = origins.actual(series)
    error, plain = (
        score_per_series((np.abs(part - actual) / unit)[:, :, None], origins.series) for part in (mean, last)
    )
    if not plain.any():
        return True
    return bool(error.mean() < _HARDLY_BETTER * plain.mean()) or is_clearly_lower(error, plain)


def choose_weights(
    forecasts: Mapping[str, Float64[np.ndarray, "w p"]],
    actual: Float64[np.ndarray, "w p"],
    scale: Float64[np.ndarray, " w"],
    independent: float = np.inf,
    counts: Float64[np.ndarray, " w"] | None = None,
    first: str | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Weights that lower the mean of |error| / scale, and that mean per forecast and for the "ensemble".

    The mean begins with the best baselines, if their errors are close to the least: the errors of models that learn
    from all series depend more on the time in which they are measured. The best baseline has the more weight, the fewer
    independent windows there are and the closer its error is. For the weights, windows count as `counts` has it; in
    the returned means, once. Those whose scale is 0 or NaN are left out; if all are, the units of the data are used.
    Windows without actual values do not count. A forecast that is `first` has a weight in any case.
    """
    usable = np.isfinite(scale) & (scale > 0) & np.isfinite(actual).any(1)
    if not usable.any():
        usable = np.isfinite(actual).any(1)
        scale = np.ones(len(scale))
    unit = scale[usable, None]
    target = actual[usable] / unit
    window_counts = np.ones((len(target), 1))
    if counts is not None:
        window_counts = counts[usable, None] / counts[usable].mean()
    members = {name: forecast[usable] / unit for name, forecast in forecasts.items()}

    def loss(mean: np.ndarray, times: np.ndarray | float = window_counts) -> float:
        return float(np.nanmean(np.abs(mean - target) * times))

    errors = {name: loss(member) for name, member in members.items()}
    baselines = sorted((name for name in members if name in BASELINES), key=errors.__getitem__)
    close = _CLOSE_ERROR * min(errors.values())
    beginning = [name for name in baselines[:_FIRST_BASELINES] if errors[name] <= close]
    if first is not None:
        beginning.append(first)
    weights, least = greedy_weights(members, loss, beginning, _FIRST_TIMES)
    if baselines and independent < _MANY_WINDOWS and least > 0:
        best = baselines[0]
        share = _PRIOR_WINDOWS / (_PRIOR_WINDOWS + independent) * (least / errors[best]) ** 2
        weights = {name: (1.0 - share) * weight for name, weight in weights.items()}
        weights[best] = weights.get(best, 0.0) + share
    members["ensemble"] = weighted_mean(weights, members)
    return weights, {name: loss(member, 1.0) for name, member in members.items()}


def _continue_exactly(
    series: SeriesList, season: int, forecasts: np.ndarray, regression: np.ndarray | None
) -> np.ndarray:
    """The forecasts (N, P), in which a constant series keeps its value, and one that repeats its season repeats it.

    Where covariates move the forecast `regression` from the last season, the forecast is kept.
    """
    steps = np.arange(forecasts.shape[1])
    for index, values in enumerate(series):
        if len(values) > 1 and np.ptp(values) == 0:
            forecasts[index] = values[-1]
        elif len(values) >= _EXACT_SEASONS * season:
            last = values[-season:][steps % season]
            moved = 0.0 if regression is None else np.abs(regression[index] - last).max()
            if max(moved, np.abs(values[season:] - values[:-season]).max()) <= ROUNDING * np.abs(values).max():
                forecasts[index] = last
    return forecasts
