"""Intervals, quantiles and scales of the weighted mean, by its errors at the rolling origins.

    calibrate(ensemble, forecasts, panel, columns, origins, interval=0.8, levels=())    # Choice, frozen

Alphabet: P horizon, C columns, Q levels, S series, W windows, N one per window and column.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from toa._checks import ArgumentError, ArgumentWarning
from toa.data.panel import Panel
from toa.estimators.baselines import align_histories, seasonal_naive
from toa.estimators.calibrated import Choice, usual_share
from toa.estimators.choice import Ensemble
from toa.estimators.error_scale import ErrorScale
from toa.estimators.origins import RollingOrigins, SeriesList, series_scale
from toa.estimators.units import check_windows, find_counts
from toa.estimators.weights import MeanForecast, weighted_mean

# windows of errors from which on quantiles come from them, as many as an interval of 80 % needs
_LEAST_WINDOWS = 4
# the size of errors is a mean over this part of the horizon on each side
_NEIGHBOURS = 8
# windows of other series on which the errors of short series are measured
_CUT_WINDOWS = 120
# numbers of rows to cut these windows to
_CUTS = 5
# differences of the rows from which an interval without errors of forecasts is made
_LEAST_DIFFERENCES = 2


def calibrate(
    ensemble: Ensemble,
    forecasts: MeanForecast | None,
    panel: Panel,
    columns: Sequence[str],
    origins: RollingOrigins,
    *,
    interval: float | None,
    levels: Sequence[float],
) -> Choice:
    """Scales, interval and quantiles by the forecasts of the ensemble at the origins of all columns.

    `forecasts` are None without origins; then there is no interval.
    """
    series = panel.histories(columns)
    scale = series_scale(series, ensemble.season)
    # one that is too short has the usual scale of its level; one that never changes the smallest of the others
    level = np.array([np.abs(part).mean() for part in series])
    scale = np.where(np.isnan(scale), level * usual_share(scale, level), scale)
    least = scale[scale > 0].min() if (scale > 0).any() else 1.0
    scale = np.maximum(scale, least).reshape(-1, len(columns))
    error_scale = ErrorScale.of_fit("series", scale, series, season=ensemble.season, horizon=origins.horizon)
    errors: OriginErrors | None = None
    if forecasts is not None:
        missed = origins.actual(series) - forecasts.mean
        share = usual_share(scale.ravel(), level)
        usual = float(np.nanmean(np.abs(missed) / scale.ravel()[origins.series][:, None]))
        growth = _short_growth(ensemble, series, origins, share, usual).reshape(scale.shape)
        error_scale, in_scales = _learn_error_scale(error_scale, forecasts, missed, series, origins)
        error_scale = replace(error_scale, scale=error_scale.scale * growth)
        errors = OriginErrors.of(in_scales, origins, len(columns))
    rows = _rows(series)
    offsets = _quantile_offsets(errors, rows, ensemble, len(columns), levels) if len(levels) else None
    width = None if interval is None else _interval_width(errors, rows, ensemble, len(columns), interval)
    counts = find_counts(panel, columns)
    return Choice(ensemble=ensemble, error_scale=error_scale, width=width, offsets=offsets, counts=counts)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OriginErrors:
    """Errors at the origins, y - ŷ, in scales: their size by step and column, and the shape that all share.

    Attributes:
        size: Mean |error| of each step and column (P, C), a mean over neighbouring steps.
        shape: Errors of all windows, steps and columns, in sizes.
        windows: Number of windows.
        independent: Number of windows whose errors count as independent.
    """

    size: Float64[np.ndarray, "p c"]
    shape: Float64[np.ndarray, " n"]
    windows: int
    independent: float

    @classmethod
    def of(cls, error: Float64[np.ndarray, "w p c"], origins: RollingOrigins, columns: int) -> "OriginErrors":
        """From errors without gaps at these origins of the columns."""
        size = _smooth_steps(np.abs(error).mean(0))
        has_errors = size > 0
        shape = error[:, has_errors] / size[has_errors]
        # columns of a series have the same windows
        owners = origins.series[::columns] // columns
        apart = float(origins.held.reshape(-1, columns).sum(0).max() / origins.horizon)
        independent = independent_windows(error, owners, apart)
        return cls(size=size, shape=shape.ravel(), windows=len(error), independent=independent)

    def half(self, level: float) -> float:
        """Size of the errors that lie within an interval of this probability, wider for few independent windows.

        It is the ceil((n + 1) level)-th smallest of n sizes, as in split-conformal prediction.
        """
        if not len(self.shape):
            return 0.0
        rank = min(len(self.shape), math.ceil((len(self.shape) + 1) * level)) - 1
        return float(np.partition(np.abs(self.shape), rank)[rank]) * _few_windows(self.independent, level)

    def quantiles(self, levels: Sequence[float]) -> Float64[np.ndarray, " q"]:
        """Quantiles of the errors in sizes, with the median 0, wider for few independent windows.

        The forecast is the median: that the errors at the origins had another one is mostly chance, or of that time.
        Their mean size stays what it was with that median.
        """
        centred = self.shape - np.median(self.shape) if len(self.shape) else self.shape
        if not centred.any():
            return np.zeros(len(levels))
        wider = np.array([_few_windows(self.independent, abs(2.0 * level - 1.0)) for level in levels])
        size = np.abs(self.shape).mean() / np.abs(centred).mean()
        quantiles: np.ndarray = np.quantile(centred, levels) * size * wider
        return quantiles


def _smooth_steps(size: Float64[np.ndarray, "p c"]) -> Float64[np.ndarray, "p c"]:
    """Means over neighbouring steps: an eighth of the horizon on each side."""
    reach = len(size) // _NEIGHBOURS
    padded = np.pad(size, ((reach, reach), (0, 0)), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=0).mean(-1)


def _interval_width(
    errors: OriginErrors | None, rows: float, ensemble: Ensemble, columns: int, interval: float
) -> Float64[np.ndarray, "p c"] | None:
    """Half of the interval in scales: by the errors at the origins or, with too few, by differences of the rows."""
    try:
        if errors is None:
            raise ArgumentError(
                "a series", "have more rows than the horizon", "none that has", "add rows", "shorten the horizon"
            )
        check_windows(errors.windows, interval)
    except ArgumentError as reason:
        steps = _difference_width(rows, ensemble, interval)
        text = f"the interval of {interval} comes from differences of the rows, not from errors of forecasts: "
        if steps is None:
            text = f"the forecast has no interval of {interval}: "
        warnings.warn(ArgumentWarning(text, reason), stacklevel=5)
        return None if steps is None else np.repeat(steps[:, None], columns, axis=1)
    width: np.ndarray = errors.size * errors.half(interval)
    return width


def _quantile_offsets(
    errors: OriginErrors | None, rows: float, ensemble: Ensemble, columns: int, levels: Sequence[float]
) -> Float64[np.ndarray, "p q c"] | None:
    """Quantiles minus forecast in scales: by the errors or, where the usual interval has too few, by differences."""
    if errors is not None and errors.windows >= _LEAST_WINDOWS:
        return errors.size[:, None] * errors.quantiles(levels)[:, None]
    sides = [_difference_width(rows, ensemble, abs(2.0 * level - 1.0)) for level in levels]
    if any(side is None for side in sides):
        return None
    halves = np.stack([side for side in sides if side is not None], axis=1)  # (P, Q)
    offsets = np.sign(np.array(levels) - 0.5) * halves
    return np.repeat(offsets[:, :, None], columns, axis=2)


def _rows(series: SeriesList) -> float:
    """Rows of the usual series."""
    return float(np.median([len(values) for values in series]))


def _difference_width(rows: float, ensemble: Ensemble, level: float) -> Float64[np.ndarray, " p"] | None:
    """Half of an interval of normal errors, in mean absolute seasonal differences; None with fewer than two of them.

    Errors add one seasonal difference per season of the horizon, as those of the seasonal naive forecast do (Hyndman
    and Athanasopoulos, Forecasting: principles and practice, section 5.5).
    """
    season = ensemble.season
    lag = season if rows > season else 1
    if rows - lag < _LEAST_DIFFERENCES:
        return None
    seasons = np.arange(ensemble.horizon) // lag + 1
    # of a normal distribution the standard deviation is sqrt(pi / 2) mean absolute deviations
    deviation = np.sqrt(np.pi / 2.0) * np.sqrt(seasons)
    width: np.ndarray = deviation * _student_quantile(rows - lag, level)
    return width


def _learn_error_scale(
    plain: ErrorScale,
    forecasts: MeanForecast,
    missed: Float64[np.ndarray, "n p"],
    series: SeriesList,
    origins: RollingOrigins,
) -> tuple[ErrorScale, Float64[np.ndarray, "w p c"]]:
    """The scale that is learned at the origins, and the errors in it."""
    columns = plain.scale.shape[1]
    histories = origins.histories(series)
    owners = origins.series[::columns] // columns
    learned = plain.learn(histories, owners, forecasts.spread, missed)
    scale = learned.at(histories, owners, forecasts.spread)  # (W, P, C)
    measured = missed.reshape(-1, columns, plain.horizon) / scale.swapaxes(1, 2)
    return learned, _fill(measured).swapaxes(1, 2)


def independent_windows(error: Float64[np.ndarray, "w p c"], owners: Int64[np.ndarray, " w"], apart: float) -> float:
    """Number of windows whose errors count as independent: W (1 - r) / (1 + r), r the correlation of neighbours.

    Windows of a series overlap. Errors of pure noise are independent nevertheless, those of a level that drifts are
    nearly equal. There are at least as many as windows that do not overlap.

    Args:
        owners: Series of each window; those of a series are adjacent, in the order of time.
        apart: Number of windows that do not overlap.
    """
    same = owners[1:] == owners[:-1]
    first = error[:-1][same]
    second = error[1:][same]
    power = float((first**2 + second**2).sum() / 2.0)
    correlation = 0.0 if power == 0.0 else max(0.0, float((first * second).sum()) / power)
    count = len(error) * (1.0 - correlation) / (1.0 + correlation)
    return max(1.0, count, min(apart, len(error)))


def _few_windows(independent: float, level: float) -> float:
    """How much wider an interval of few independent windows must be.

    The ratio of the quantiles of Student's t and of the normal distribution, as for an error whose standard deviation
    was measured on as many values.
    """
    if level == 0.0:
        return 1.0
    return _student_quantile(independent, level) / _student_quantile(np.inf, level)


def _student_quantile(count: float, level: float) -> float:
    """Half of the interval that holds a value of Student's t distribution with the probability `level`."""
    # imported on use: scipy takes long to import
    from scipy.special import stdtrit

    return float(stdtrit(count, (1.0 + level) / 2.0))


def _short_growth(
    ensemble: Ensemble, series: SeriesList, origins: RollingOrigins, share: float, usual: float
) -> Float64[np.ndarray, " n"]:
    """How many times larger the error in scales is for a series without windows than the `usual` error; 1 for others.

    Measured on other series at some of their origins, cut to as few rows. An unknown scale is the `share` of the level.
    Networks and other methods that the ensemble does not hold are left out. Those that it holds were fitted to these
    rows too.
    """
    growth = np.ones(len(series))
    short = np.flatnonzero(origins.held == 0)
    windows = np.flatnonzero(np.isfinite(origins.actual(series)).any(1))
    if not len(short) or not len(windows) or usual <= 0:
        return growth
    windows = windows[np.unique(np.linspace(0, len(windows) - 1, _CUT_WINDOWS).astype(int))]
    rows = np.array([len(series[index]) for index in short])
    counts = np.unique(np.quantile(rows, np.linspace(0, 1, _CUTS)).astype(int))
    names = [name for name, weight in ensemble.weights.items() if weight > 0]
    past = origins.histories(series)
    actual = origins.actual(series)[windows]
    ratios = []
    for count in counts:
        cut = [past[index][-max(1, count) :] for index in windows]
        members = ensemble.members(cut, names)
        if not members:
            history = align_histories(cut, ensemble.season)
            members = {"naive": seasonal_naive(history, ensemble.season, origins.horizon)}
        shares = {name: ensemble.weights.get(name) or 1.0 for name in members}
        scale = series_scale(cut, ensemble.season)
        level = np.array([np.abs(part).mean() for part in cut])
        scale = np.where(np.isnan(scale), share * level, scale)
        missed = np.abs(actual - weighted_mean(shares, members) / sum(shares.values()))
        error = missed.mean(1, where=np.isfinite(missed))
        usable = scale > 0
        # not the mean of ratios: some short cuts hardly change
        ratio = float(error[usable].mean() / scale[usable].mean() / usual) if usable.any() else 1.0
        ratios.append(max(1.0, ratio))
    growth[short] = np.interp(rows, counts, ratios)
    return growth


def _fill(error: Float64[np.ndarray, "w c p"]) -> Float64[np.ndarray, "w c p"]:
    """Errors in which a column that does not count in a window has those of another column; the columns take turns.

    A step without an actual value has the error of the next window that has one there, or else in any step.
    """
    windows = np.arange(len(error))
    columns = np.arange(error.shape[1])
    turns = (windows[:, None] + columns) % len(columns)
    first = np.take_along_axis(np.isfinite(error).any(2), turns, 1).argmax(1)
    counts = np.isfinite(error).any(2, keepdims=True)
    filled = np.where(counts, error, error[windows, turns[windows, first]][:, None])
    for column in columns[np.isnan(filled).any((0, 2))].tolist():
        is_actual = np.isfinite(filled[:, column])
        anything = filled[:, column][is_actual]
        for step in np.flatnonzero(~is_actual.all(0)).tolist():
            rows = np.flatnonzero(is_actual[:, step])
            values = filled[rows, column, step] if len(rows) else anything
            empty = np.flatnonzero(~is_actual[:, step])
            later = np.searchsorted(rows, empty) if len(rows) else np.arange(len(empty))
            filled[empty, column, step] = values[later % len(values)]
    return filled
