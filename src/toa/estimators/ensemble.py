"""Ensemble: baselines and given forecasts, weighted by their errors at rolling origins.

    origins = RollingOrigins.choose(lengths, horizon=24, share=0.125)
    forecasts = validate_methods(series, origins, season=24, seed=0) | {"toa": forecasts_at_the_origins}
    chosen, _ = Ensemble.fit(series, origins, forecasts, season=24)
    chosen.weights                                       # {"linear 336": 0.6, "toa": 0.4}
    chosen.predict(series, others={"toa": forecasts})    # (N, P)

The weights are chosen for all series together, by errors that are divided by the seasonal error of their series, as
MASE does. With little data the best baseline gets a part of the weight.

Alphabet: N series of one column, P horizon, W windows, one per series and origin.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from jaxtyping import Float64, Int64

from toa.estimators.base import greedy_weights, weighted_mean
from toa.estimators.baselines import BASELINES, SEASONS_TO_TELL, LinearModel, align_histories, has_season, repeat_season
from toa.estimators.boosting import MOST_LAGS, BoostedTrees
from toa.estimators.effort import EFFORTS, Ceiling, Effort
from toa.training.metrics import seasonal_error

Series = Sequence[Float64[np.ndarray, " _"]]
Fitted = LinearModel | BoostedTrees

# windows to validate on that are enough to choose weights, and origins per series if there are many series
_ENOUGH_WINDOWS, _FEWEST_ORIGINS = 400, 2
# series to validate on, drawn at random from more
_MOST_SERIES = 4_000
# rows that methods of a single series read, at least and at most, and values that one method reads in all
_LOCAL_ROWS, _MOST_ROWS, _LINEAR_VALUES = 512, 4_320, 30_000_000
# values that trees forecast after at a time: each step copies them several times
_TREE_VALUES = 4_000_000
# how the second kind of linear models is named, and the boosted trees
_BY_LEVEL, TREES = " by level", "boosting"
# longest horizon that trees forecast, one step after another
_TREE_STEPS = 60
# windows that the best baseline counts as in the weights, and windows from which on it does not
_PRIOR_WINDOWS, _MANY_WINDOWS = 6.0, 200.0
# how often the last origin counts in the choice of weights
_LAST_ORIGIN = 2.0
# baselines that the mean begins with: how many, how often each counts, and their largest error, in least errors
_FIRST, _TIMES, _CLOSE = 3, 2, 1.15
# a seasonal error below this share of the largest value is rounding
_ROUNDING = 1e-12
# seasons in which a series must repeat exactly to be continued so, and the method that tells the effect of covariates
_SEASONS, _REGRESSION = 3, "seasonal naive + covariates"


@dataclass(frozen=True, kw_only=True, slots=True)
class RollingOrigins:
    """Windows to validate on: the forecast of `series` begins `back` rows before its end.

    Attributes:
        series: Index of the series of each window (W,).
        back: Rows from the origin to the end of the series (W,).
        held: Rows at the end of each series that lie after its first origin (N,); 0 if it is too short.
    """

    series: Int64[np.ndarray, " w"]
    back: Int64[np.ndarray, " w"]
    held: Int64[np.ndarray, " n"]
    horizon: int

    @classmethod
    def choose(
        cls,
        lengths: Sequence[int],
        *,
        horizon: int,
        share: float,
        columns: int = 1,
        seed: int = 2024,
        histories: int = EFFORTS["thorough"].histories,
        least: int = EFFORTS["thorough"].origins,
    ) -> "RollingOrigins":
        """Origins in the last `share` of each series, at least two horizons but at most half of its rows.

        A series that has more rows than the horizon has at least one origin; few series with few columns have many:
        up to `histories` windows times columns, but `least` windows in any case.
        """
        rows = np.asarray(lengths, dtype=np.int64)
        wanted = np.maximum(_FEWEST_ORIGINS * horizon, (rows * share).astype(np.int64))
        held = np.where(rows > horizon, np.maximum(horizon, np.minimum(rows // 2, wanted)), 0)
        chosen = np.flatnonzero(held)
        if len(chosen) > _MOST_SERIES:
            chosen = np.sort(np.random.default_rng(seed).choice(chosen, _MOST_SERIES, replace=False))
        windows = min(_ENOUGH_WINDOWS, max(least, histories // columns))
        count = max(_FEWEST_ORIGINS, -(-windows // max(1, len(chosen))))
        backs = [np.unique(np.linspace(horizon, held[one], count).astype(np.int64)) for one in chosen]
        series = np.repeat(chosen, [len(own) for own in backs])
        return cls(series=series, back=np.concatenate([series[:0], *backs]), held=held, horizon=horizon)

    def __len__(self) -> int:
        return len(self.series)

    @property
    def independent(self) -> float:
        """Number of windows that do not overlap and would fill the validated rows."""
        return float(self.held[np.unique(self.series)].sum() / self.horizon)

    def per_column(self, rows: Int64[np.ndarray, "s c"]) -> "RollingOrigins":
        """The same windows of each of C columns with these rows; column c of series s is the series s * C + c.

        A late column with fewer rows before the first origin than after it has `held` 0: its windows do not count.
        """
        columns, held = rows.shape[1], self.held[:, None]
        series = (self.series[:, None] * columns + np.arange(columns)).ravel()
        held = np.where(rows < np.minimum(2 * held, rows.max(1, keepdims=True)), 0, held).ravel()
        return RollingOrigins(series=series, back=np.repeat(self.back, columns), held=held, horizon=self.horizon)

    def histories(self, series: Series) -> list[np.ndarray]:
        """Values before the origin of each window, at least one."""
        return [
            series[one][: max(1, len(series[one]) - back)] for one, back in zip(self.series, self.back, strict=True)
        ]

    def actual(self, series: Series) -> Float64[np.ndarray, "w p"]:
        """Values (W, P) after the origins; NaN in windows that do not count."""
        ends, none = zip(self.series, self.back, strict=True), np.full(self.horizon, np.nan)
        found = [series[one][-back:][: self.horizon] if self.held[one] else none for one, back in ends]
        return np.stack(found).astype(np.float64)

    def weigh(
        self, series: Series, forecasts: Mapping[str, Float64[np.ndarray, "w p"]], scale: Float64[np.ndarray, " n"]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Weights and errors of forecasts at the origins, see `choose_weights`; `scale` is that of each series."""
        # the last origin is most like the forecasts to come
        counts = np.where(self.back == self.back.min(), _LAST_ORIGIN, 1.0)
        return choose_weights(forecasts, self.actual(series), scale[self.series], self.independent, counts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensemble:
    """A weighted mean of forecasts; a series that repeats its season exactly, or is constant, is continued so instead.

    Attributes:
        weights: Weight per method; they sum to 1.
        errors: Mean error at the origins, of each method and of the "ensemble"; all origins count the same.
        measure: "MASE"; "MAE" in the units of the data if the seasonal naive forecast has no error in any series.
        fitted: The linear models and the boosted trees with a weight.
        seasonal: Whether most series have a season. Then baselines repeat the last season of a series that is too short
            to tell; the weights and `errors` are measured without this.
    """

    season: int
    horizon: int
    weights: Mapping[str, float]
    errors: Mapping[str, float]
    fitted: Mapping[str, Fitted] = field(default_factory=dict)
    measure: str = "MASE"
    seasonal: bool = False

    @classmethod
    def fit(
        cls,
        series: Series,
        origins: RollingOrigins,
        forecasts: Mapping[str, Float64[np.ndarray, "w p"]],
        *,
        season: int,
        effort: Effort = EFFORTS["thorough"],
        seed: int = 2024,
    ) -> tuple["Ensemble", Float64[np.ndarray, "w p"] | None]:
        """Choose weights at the origins, then fit the linear models and trees with a weight to all rows.

        The methods of `forecasts` must not have seen the rows after the origins. Returns also the forecasts of the
        ensemble at the origins. Without origins these are None, and the ensemble is the seasonal naive forecast.
        """
        horizon = origins.horizon
        if not len(origins):
            return cls(season=season, horizon=horizon, weights={"seasonal naive": 1.0}, errors={}), None
        scale = series_scale(series, season)
        weights, errors = origins.weigh(series, forecasts, scale)
        rows = _aligned(series)
        fit = partial(fit_model, history=rows, season=season, horizon=horizon, seed=seed, effort=effort)
        fitted = {name: model for name in weights if (model := fit(name)) is not None}
        measure = "MASE" if (np.where(origins.held, scale, 0.0)[origins.series] > 0).any() else "MAE"
        mixed = weighted_mean(weights, forecasts)
        # as in the forecasts to come; these windows have no part in the weights
        exact, histories = np.flatnonzero(scale[origins.series] == 0), origins.histories(series)
        regression = forecasts[_REGRESSION][exact] if _REGRESSION in forecasts else None
        mixed[exact] = _repeat([histories[one] for one in exact], season, mixed[exact], regression)
        found = cls(weights=weights, errors=errors, fitted=fitted, season=season, horizon=horizon, measure=measure)
        return replace(found, seasonal=has_season(rows, season)), mixed

    def predict(
        self, series: Series, others: Mapping[str, Float64[np.ndarray, "n p"]] | None = None
    ) -> Float64[np.ndarray, "n p"]:
        """Forecast after the end of each series; `others` has the forecasts of other models with a weight."""
        members = self.members(series, self.weights) | dict(others or {})
        return _repeat(series, self.season, weighted_mean(self.weights, members), members.get(_REGRESSION))

    def members(self, series: Series, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Forecasts (N, P) of some methods, but not of other models."""
        known = [name for name in names if name in BASELINES or name in self.fitted]
        found = {name: _forecast(name, self.fitted.get(name), series, self.season, self.horizon) for name in known}
        # longer ones are given with at most the rows that baselines read
        least = min(SEASONS_TO_TELL * self.season, _local_rows(self.season))
        short = [one for one, values in enumerate(series) if len(values) < least]
        if self.seasonal and short:
            last = repeat_season(_aligned([series[one] for one in short]), self.season, self.horizon)
            for name in BASELINES.keys() & found.keys():
                found[name][short] = last
        return found


def choose_weights(
    forecasts: Mapping[str, Float64[np.ndarray, "w p"]],
    actual: Float64[np.ndarray, "w p"],
    scale: Float64[np.ndarray, " w"],
    independent: float = np.inf,
    counts: Float64[np.ndarray, " w"] | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Weights that lower the mean of |error| / scale, and that mean per forecast and for the "ensemble".

    The mean begins with the best baselines, if their errors are close to the least: the errors of models that learn
    from all series depend more on the time in which they are measured. The best baseline has the more weight, the fewer
    independent windows there are and the closer its error is. For the weights, windows count as `counts` has it; in
    the returned means, once. Those whose scale is 0 or NaN are left out; if all are, the units of the data are used.
    Windows without actual values do not count.
    """
    usable = np.isfinite(scale) & (scale > 0) & np.isfinite(actual).any(1)
    if not usable.any():
        usable, scale = np.ones(len(scale), dtype=bool), np.ones(len(scale))
    unit = scale[usable, None]
    target = actual[usable] / unit
    each = np.ones((len(target), 1)) if counts is None else counts[usable, None] / counts[usable].mean()
    members = {name: forecast[usable] / unit for name, forecast in forecasts.items()}

    def loss(mean: np.ndarray, times: np.ndarray | float = each) -> float:
        return float(np.nanmean(np.abs(mean - target) * times))

    errors = {name: loss(member) for name, member in members.items()}
    local = sorted((name for name in members if name in BASELINES), key=errors.__getitem__)
    first = [name for name in local[:_FIRST] if errors[name] <= _CLOSE * min(errors.values())]
    weights, best = greedy_weights(members, loss, first, _TIMES)
    if local and independent < _MANY_WINDOWS and best > 0:
        share = _PRIOR_WINDOWS / (_PRIOR_WINDOWS + independent) * (best / errors[local[0]]) ** 2
        weights = {one: (1.0 - share) * weight for one, weight in weights.items()}
        weights[local[0]] = weights.get(local[0], 0.0) + share
    members["ensemble"] = weighted_mean(weights, members)
    return weights, {name: loss(member, 1.0) for name, member in members.items()}


def series_scale(series: Series, season: int) -> Float64[np.ndarray, " n"]:
    """Seasonal error of each series; of its steps, if it has less than two seasons; 0 if it is only rounding."""
    history = _aligned(series)
    if history.shape[1] < 2:
        return np.full(len(series), np.nan)
    found = seasonal_error(history, season) if season < history.shape[1] else np.full(len(series), np.nan)
    found = np.where(np.isnan(found), seasonal_error(history, 1), found)
    return np.where(found <= _ROUNDING * np.nanmax(np.abs(history), axis=1), 0.0, found)


def _repeat(series: Series, season: int, forecasts: np.ndarray, regression: np.ndarray | None) -> np.ndarray:
    """Forecasts (N, P), but the value of a constant series, and the last season of one that repeats it exactly.

    Where covariates move the forecast `regression` from the last season, the forecast is kept.
    """
    steps = np.arange(forecasts.shape[1])
    for one, values in enumerate(series):
        if len(values) > 1 and np.ptp(values) == 0:
            forecasts[one] = values[-1]
        elif len(values) >= _SEASONS * season:
            last = values[-season:][steps % season]
            moved = 0.0 if regression is None else np.abs(regression[one] - last).max()
            if max(moved, np.abs(values[season:] - values[:-season]).max()) <= _ROUNDING * np.abs(values).max():
                forecasts[one] = last
    return forecasts


def linear_lookbacks(season: int, horizon: int) -> tuple[int, ...]:
    """Look-backs of the linear models: two, three and many seasons, at least the horizon, at most 720 rows."""
    many = 4 * season if season in (4, 12) else min(max(14 * season, 104), 720)
    wanted = max(2 * season, horizon, 4), max(3 * season, 2 * horizon), max(many, horizon)
    return tuple(sorted({min(rows, MOST_LAGS) for rows in wanted}))


def history_rows(season: int, horizon: int) -> int:
    """Rows that the methods read at most."""
    return max((_local_rows(season), *linear_lookbacks(season, horizon)))


def _local_rows(season: int) -> int:
    return max(_LOCAL_ROWS, min(8 * season, _MOST_ROWS))


def validate_methods(
    series: Series,
    origins: RollingOrigins,
    season: int,
    seed: int,
    effort: Effort = EFFORTS["thorough"],
    ceiling: Ceiling | None = None,
) -> dict[str, np.ndarray]:
    """Forecasts (W, P) of the methods at the origins; linear models are fitted to the rows before all origins.

    The ceiling allows the first method in any case, and the trees in the first quarter of the time.
    """
    if not len(origins):
        return {}
    histories, horizon = origins.histories(series), origins.horizon
    past = _aligned([values[: len(values) - held] for values, held in zip(series, origins.held, strict=True) if held])
    names = [*BASELINES]
    names += [f"linear {rows}{end}" for rows in linear_lookbacks(season, horizon) for end in ("", _BY_LEVEL)]
    names += [TREES] if horizon <= _TREE_STEPS and effort.tree_windows else []
    ceiling = Ceiling(None) if ceiling is None else ceiling
    found: dict[str, np.ndarray] = {}
    for name in names:
        # what is fitted here is fitted again to all rows; trees take as long as all other methods
        expected = (3.0 if name == TREES else 1.0) * ceiling.passed
        if found and not ceiling.allows(name, expected):
            continue
        model = fit_model(name, past, season=season, horizon=horizon, seed=seed, effort=effort)
        if name in BASELINES or model is not None:
            found[name] = _forecast(name, model, histories, season, horizon)
    return found


def _forecast(name: str, model: Fitted | None, histories: Series, season: int, horizon: int) -> np.ndarray:
    """Forecasts (N, P) after histories by a fitted model, or by a baseline."""
    method: Callable[[np.ndarray], np.ndarray]
    values = _LINEAR_VALUES
    if isinstance(model, BoostedTrees):
        method, rows, values = partial(model.predict, horizon=horizon), MOST_LAGS, _TREE_VALUES
    elif model is not None:
        method, rows = model.predict, len(model.weights) - 1
    else:
        method, rows = partial(BASELINES[name], season=season, horizon=horizon), _local_rows(season)
    # in blocks of at most this number of values
    size = max(1, values // rows)
    parts = [histories[start : start + size] for start in range(0, len(histories), size)]
    return np.concatenate([method(align_histories(part, rows)) for part in parts])


def fit_model(name: str, history: np.ndarray, *, season: int, horizon: int, seed: int, effort: Effort) -> Fitted | None:
    """Fit the trees, or a linear model such as "linear 336 by level"; None for other methods, and for short series."""
    if name == TREES:
        return fit_trees(history, season, horizon, seed=seed, windows=effort.tree_windows)
    if not name.startswith("linear"):
        return None
    return LinearModel.fit(
        history,
        lookback=int(name.split()[1]),
        season=season,
        horizon=horizon,
        by_season=not name.endswith(_BY_LEVEL),
        seed=seed,
        windows=effort.linear_windows,
    )


def fit_trees(
    history: np.ndarray, season: int, horizon: int, *, seed: int = 2024, windows: int | None = None
) -> BoostedTrees | None:
    """Trees on the longest look-back of the linear models; None if no series is long enough."""
    lookback = linear_lookbacks(season, horizon)[-1]
    return BoostedTrees.fit(history, season=season, lookback=lookback, seed=seed, windows=windows)


def _aligned(series: Series) -> np.ndarray:
    return align_histories(series, max(_LOCAL_ROWS, _LINEAR_VALUES // len(series)))
