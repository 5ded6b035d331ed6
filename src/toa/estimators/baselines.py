"""Forecasts without a network, for many series at once: the methods that a model must beat.

    history = align_histories(arrays)                     # (N, T), each series at the end of its row
    BASELINES["theta"](history, season=12, horizon=18)    # (N, P)
    LinearModel.fit(history, season=12, horizon=18, lookback=36).predict(history)

All of them take series of any length from one value on, without gaps.

Alphabet: N series, T rows, P horizon, L look-back, M steps of a season, K windows.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from toa._checks import ArgumentError
from toa._registry import Registry

History = Float64[np.ndarray, "n t"]
Forecast = Float64[np.ndarray, "n p"]
Baseline = Callable[..., np.ndarray]

BASELINES: Registry[Baseline] = Registry("baseline")
# methods that see covariates, each with the baseline that continues what the covariates do not explain
REGRESSIONS = {f"{name} + covariates": name for name in ("seasonal naive", "theta", "damped trend")}

# series or windows that are computed together: bounds the memory of a grid, or of steps on the way
_BLOCK = 2048
# values whose Fourier transforms are held at a time: each takes about a hundred bytes
_TRANSFORMED_VALUES = 2_000_000
# series times settings of a grid that are computed together: they stay in the cache of a processor
_GRID_VALUES = 10_000
# a season is used if the autocorrelation at its lag is significant at 90 %
_SIGNIFICANCE = 1.645
# and if there are this many seasons
_SEASONS = 3
# a series with fewer seasons is too short for this test
SEASONS_TO_TELL = 4
# seasons to search for in data without dates
_TRIED_SEASONS = (24, 12, 7, 4, 48, 52, 96)
# the autocorrelation that makes one
_LEAST_CORRELATION = 0.3
# series in which they are searched
_SEARCHED_SERIES = 200
# seasons at the end of each of these series that are read
_SEARCHED_SEASONS = 20
# smoothing: grid of the level
_LEVELS = np.concatenate(([0.01], np.linspace(0.05, 0.95, 19), [0.99]))
# damped trend: grid of level, trend and damping
_LEVEL_TREND_DAMPING = [
    (level, level * share, damping)
    for level in (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
    for share in (0.0, 0.05, 0.1, 0.2, 0.35)
    for damping in (0.8, 0.9, 0.95, 0.98)
]
# optimised Theta: grid of the level and of the share of the trend
_LEVEL_SHARE = [(level, share) for share in (0.0, 0.25, 0.5, 0.75, 1.0) for level in (0.05, *_LEVELS[2::2])]
# optimised Theta: values before errors count
_UNCOUNTED = 3
# linear model: windows to fit to, unless given
_WINDOWS = 40_000
# linear model: values of these windows
_VALUES = 15_000_000
# linear model: rounds of weights against outliers
_ROUNDS = 2
# linear model: strength of the ridge
_RIDGE = 1e-3
# linear model: largest target, in scales
_LARGEST = 50.0
# smallest scale of a window, in mean deviations
_LEAST_SCALE = 0.01
# linear model: smallest error that determines a weight, in medians
_LEAST_ERROR = 0.3


def align_histories(series: Sequence[Float64[np.ndarray, " _"]], most: int | None = None) -> History:
    """The series at the end of the rows of one array, NaN before them; at most the last `most` values."""
    rows = max(map(len, series))
    rows = rows if most is None else min(rows, most)
    history = np.full((len(series), rows), np.nan)
    for index, values in enumerate(series):
        last = values[-rows:]
        history[index, rows - len(last) :] = last
    return history


@BASELINES.register("seasonal naive")
def seasonal_naive(history: History, season: int, horizon: int) -> Forecast:
    """Repeat the last season; of a series that is shorter, the last value."""
    short = np.isnan(last_rows(history, season)[:, :1])
    return np.where(short, history[:, -1:], repeat_season(history, season, horizon))


def repeat_season(history: History, season: int, horizon: int) -> Forecast:
    """Repeat the last season; the last value where the series has no such step."""
    last = last_rows(history, season)
    last = np.where(np.isnan(last), history[:, -1:], last)
    return last[:, np.arange(horizon) % season]


@BASELINES.register("drift")
def drift(history: History, season: int, horizon: int) -> Forecast:
    """Continue the line from the first to the last value."""
    count = np.isfinite(history).sum(1)
    first = history[np.arange(len(history)), history.shape[1] - count]
    slope = (history[:, -1] - first) / np.maximum(count - 1, 1)
    return history[:, -1:] + slope[:, None] * np.arange(1, horizon + 1)


@BASELINES.register("theta")
def theta(history: History, season: int, horizon: int) -> Forecast:
    """The Theta method: exponential smoothing plus half of the linear trend, of the series without its season."""

    def forecast(values: History) -> Forecast:
        count = np.isfinite(values).sum(1)
        none = np.zeros_like(_LEVELS)
        best, chosen, _ = _smooth(values, _LEVELS, none, none, np.zeros(len(values)))
        weight = _LEVELS[best]
        # positions are counted from the middle of the series, so that their mean is zero
        place = np.arange(values.shape[1]) - (values.shape[1] - (count[:, None] + 1) / 2)
        place = np.where(np.isnan(values), 0.0, place)
        slope = (place * np.nan_to_num(values)).sum(1) / np.maximum((place**2).sum(1), 1e-12)
        offset = (1.0 - (1.0 - weight) ** count) / weight
        return chosen[:, None] + 0.5 * slope[:, None] * (np.arange(horizon) + offset[:, None])

    return without_season(history, season, horizon, forecast)


@BASELINES.register("damped trend")
def damped_trend(history: History, season: int, horizon: int) -> Forecast:
    """Exponential smoothing with a damped trend, of the series without its season."""
    alpha, beta, phi = (np.array(part) for part in zip(*_LEVEL_TREND_DAMPING, strict=True))

    def forecast(values: History) -> Forecast:
        rows = np.arange(len(values))
        first = values.shape[1] - np.isfinite(values).sum(1)
        second = np.minimum(first + 4, values.shape[1] - 1)
        start = (values[rows, second] - values[rows, first]) / np.maximum(second - first, 1)
        best, level, trend = _smooth(values, alpha, beta, phi, start)
        growth = np.cumsum(phi[best][:, None] ** np.arange(1, horizon + 1), 1)
        return level[:, None] + growth * trend[:, None]

    return without_season(history, season, horizon, forecast)


@BASELINES.register("optimised theta")
def optimised_theta(history: History, season: int, horizon: int) -> Forecast:
    """The dynamic optimised Theta method: Theta by the trend up to each step, with the share of it that fits best.

    Series of at most three values have the forecast of Theta.
    """
    alpha, share = (np.array(part) for part in zip(*_LEVEL_SHARE, strict=True))

    def forecast(values: History) -> Forecast:
        blocks = _grid_blocks(len(values), len(alpha))
        return np.concatenate([_follow_line(values[block], alpha, share, horizon) for block in blocks])

    forecasts = without_season(history, season, horizon, forecast)
    short = np.isfinite(history).sum(1) <= _UNCOUNTED
    # no error counts: there is nothing to choose by
    forecasts[short] = theta(history[short], season, horizon)
    return forecasts


class _Line(NamedTuple):
    """Level of series, and mean and slope of the straight line through their values so far."""

    level: np.ndarray
    rows: np.ndarray
    mean: np.ndarray
    slope: np.ndarray

    def next(self, share: np.ndarray, kept: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """The expected next value; `kept` and `spread` are those of `_line_factors` after these rows."""
        first = self.mean - self.slope * (self.rows + 1) / 2
        return self.level + share * (kept * first + spread * self.slope)

    def add(self, now: np.ndarray, alpha: np.ndarray) -> "_Line":
        """With one more value."""
        level, rows, mean, slope = self
        steeper = np.where(rows > 0, ((rows - 1) * slope + 6 * (now - mean) / (rows + 1)) / (rows + 2), 0.0)
        smoothed = alpha * now
        smoothed += (1.0 - alpha) * level
        if not rows.all():
            smoothed = np.where(rows > 0, smoothed, now)
        return _Line(smoothed, rows + 1, (rows * mean + now) / (rows + 1), steeper)


def _line_factors(alpha: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors of the first value and of the slope in the next value of a line after these rows."""
    kept = (1.0 - alpha) ** rows
    return kept, (1.0 - kept * (1.0 - alpha)) / alpha


def _follow_line(values: History, alpha: np.ndarray, share: np.ndarray, horizon: int) -> Forecast:
    """Forecasts by the entry of the grid with the least error so far."""
    count = np.isfinite(values).sum(1)[:, None]
    line = _Line(*np.zeros((4, len(values), 1)))
    error = np.zeros((len(values), len(alpha)))
    # one row of factors per number of rows: powers take most of the time
    kept, spread = _line_factors(alpha, np.arange(values.shape[1] + 1.0)[:, None])
    for column, now in enumerate(np.split(values, values.shape[1], axis=1)):
        begun = count >= values.shape[1] - column
        rows = line.rows[:, 0].astype(np.int64)
        if (rows == rows[0]).all():
            rows = rows[:1]
        missed = now - line.next(share, kept[rows], spread[rows])
        if not (line.rows >= _UNCOUNTED).all():
            missed = np.where(line.rows >= _UNCOUNTED, missed, 0.0)
        error += missed**2
        after = line.add(now, alpha)
        if not begun.all():
            # a series that has not begun keeps its line
            after = _Line(*(np.where(begun, new, old) for new, old in zip(after, line, strict=True)))
        line = after
    best = error.argmin(1)[:, None]
    line = line._replace(level=np.take_along_axis(line.level, best, 1))
    steps = []
    for _ in range(horizon):
        steps.append(line.next(share[best], *_line_factors(alpha[best], line.rows)))
        line = line.add(steps[-1], alpha[best])
    return np.concatenate(steps, 1)


def _grid_blocks(series: int, settings: int) -> list[slice]:
    """Slices of series that are computed together."""
    size = max(1, _GRID_VALUES // settings)
    return [slice(first, first + size) for first in range(0, series, size)]


def _smooth(
    values: History, alpha: np.ndarray, beta: np.ndarray, phi: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exponential smoothing with damped trends from `start` on: the best entry of a grid, its last level and trend."""
    blocks = _grid_blocks(len(values), len(alpha))
    parts = [_smooth_block(values[block], alpha, beta, phi, start[block]) for block in blocks]
    best, level, trend = (np.concatenate(part) for part in zip(*parts, strict=True))
    return best, level, trend


def _smooth_block(
    values: History, alpha: np.ndarray, beta: np.ndarray, phi: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first = values.shape[1] - np.isfinite(values).sum(1)[:, None]
    level = np.full((len(values), len(alpha)), np.nan)
    trend = np.repeat(start[:, None], len(alpha), 1)
    error = np.zeros_like(level)
    # written in place: a block stays in the cache of the processor
    damped = np.empty_like(level)
    expected = np.empty_like(level)
    missed = np.empty_like(level)
    for column, now in enumerate(np.split(values, values.shape[1], axis=1)):
        begun = column > first
        np.multiply(phi, trend, out=damped)
        np.add(level, damped, out=expected)
        np.subtract(now, expected, out=missed)
        if begun.all():
            np.multiply(beta, missed, out=trend)
            np.add(damped, trend, out=trend)
            np.multiply(alpha, missed, out=level)
            np.add(expected, level, out=level)
        else:
            missed[~begun[:, 0]] = 0.0
            level = np.where(begun, expected + alpha * missed, now)
            trend = np.where(begun, damped + beta * missed, trend)
        np.multiply(missed, missed, out=missed)
        error += missed
    best = error.argmin(1)[:, None]
    best_level = np.take_along_axis(level, best, 1)[:, 0]
    best_trend = np.take_along_axis(trend, best, 1)[:, 0]
    return best[:, 0], best_level, best_trend


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearModel:
    """A linear map from the last L values to the next P, one for all series, on values scaled per window.

    A window is centred on the mean of its last season and divided by its scale; the map forecasts the difference from
    the seasonal naive forecast. Windows with large errors get small weights, as the mean absolute error asks.

    Attributes:
        by_season: Scale of a window: the mean |x[t] - x[t - season]|, or else the mean |x[t] - centre|.
        weights: (L + 1, P), the constant last.
    """

    season: int
    by_season: bool
    weights: Float64[np.ndarray, "lags p"]

    @classmethod
    def fit(
        cls,
        history: History,
        *,
        season: int,
        horizon: int,
        lookback: int,
        by_season: bool = True,
        seed: int = 2024,
        windows: int | None = None,
    ) -> "LinearModel | None":
        """Fit to windows of all series, at most `windows`; None if no series is long enough."""
        sample = sample_windows(history, lookback, horizon, np.random.default_rng(seed), windows)
        if sample is None:
            return None
        pasts, nexts = sample
        model = cls(season=season, by_season=by_season, weights=np.zeros((lookback + 1, horizon)))
        inputs, centre, scale = model._inputs(pasts)
        target = (nexts - centre) / scale - model._naive(inputs)
        target = np.clip(target, -_LARGEST, _LARGEST)
        # all windows take much memory: two arrays of them at a time, the values of the first in place of others
        del sample, pasts, nexts
        weighted = np.abs(inputs)
        weight = 1.0 / np.maximum(weighted.mean(1), 1.0)
        for _ in range(_ROUNDS + 1):
            np.multiply(inputs, weight[:, None], out=weighted)
            gram = weighted.T @ inputs
            ridge = np.full(len(gram), _RIDGE * np.trace(gram) / len(gram))
            ridge[-1] = 1e-9
            weights = np.linalg.solve(gram + np.diag(ridge), weighted.T @ target)
            error = np.abs(inputs @ weights - target).mean(1)
            weight = 1.0 / np.maximum(error, max(_LEAST_ERROR * float(np.median(error)), 1e-9))
            weight /= weight.mean()
        return cls(season=season, by_season=by_season, weights=weights)

    def predict(self, history: History) -> Forecast:
        """Forecast the values after each series; a short one is centred at the steps that it lacks."""
        inputs, centre, scale = self._inputs(last_rows(history, len(self.weights) - 1))
        return (inputs @ self.weights + self._naive(inputs)) * scale + centre

    def _inputs(self, window: Float64[np.ndarray, "n l"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scaled lags and a constant (N, L + 1), centre and scale (N, 1)."""
        inputs = np.ones((len(window), window.shape[1] + 1))
        centre = np.empty((len(window), 1))
        scale = np.empty((len(window), 1))
        # in blocks, because steps on the way are as large as the windows
        # the last season; without one, the whole window
        centred_from = -self.season if self.season > 1 else 0
        for block in row_blocks(window):
            part = window[block]
            centre[block] = np.nanmean(part[:, centred_from:], 1, keepdims=True)
            scale[block] = window_scale(part, centre[block], self.season if self.by_season else None)
            inputs[block, :-1] = np.nan_to_num((part - centre[block]) / scale[block])
        return inputs, centre, scale

    def _naive(self, inputs: np.ndarray) -> np.ndarray:
        """The seasonal naive forecast (N, P) of scaled lags; the centre without a season."""
        if self.season == 1 or self.season >= inputs.shape[1]:
            return np.zeros((1, self.weights.shape[1]))
        last = inputs[:, -1 - self.season : -1]
        return last[:, np.arange(self.weights.shape[1]) % self.season]


def choose_season(season: int | None, usual: int | None, series: Sequence[Float64[np.ndarray, " _"]]) -> int:
    """The season of the user, or if None the usual one of the frequency if a series is as long, or one by the data."""
    longest = max(map(len, series))
    if season is not None and season > longest // 2:
        raise ArgumentError(
            "season",
            f"be at most half of the rows of the longest series, {longest // 2}",
            season,
            "give a shorter season or more rows",
        )
    if season:
        return season
    return usual if usual and usual <= longest else find_season(series)


def find_season(series: Sequence[Float64[np.ndarray, " _"]]) -> int:
    """Season of most series, by the autocorrelation of their changes; 1 if there is none."""
    means = {}
    for season in _TRIED_SEASONS:
        correlations = []
        for values in series[:_SEARCHED_SERIES]:
            changes = np.diff(values[-_SEARCHED_SEASONS * season - 1 :])
            if len(changes) >= _SEASONS * season:
                centred = changes - changes.mean()
                power = float(centred @ centred)
                correlations.append(float(centred[season:] @ centred[:-season]) / power if power > 0 else 0.0)
        means[season] = float(np.mean(correlations)) if correlations else 0.0
    best = max(means, key=means.__getitem__)
    return best if means[best] >= _LEAST_CORRELATION else 1


def sample_windows(
    history: History, lookback: int, horizon: int, rng: np.random.Generator, most: int | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Windows (K, L) with NaN before a series begins, and the values (K, P) after them; None if there are none.

    Of more than `most` windows, as many are drawn at random.
    """
    rows = history.shape[1]
    count = np.isfinite(history).sum(1)
    # a window has L values, or half of a short series
    first = rows - count + np.minimum(lookback, np.maximum(count // 2, 2))
    windows = np.maximum(rows - horizon + 1 - first, 0)
    total = int(windows.sum())
    if not total:
        return None
    chosen = np.arange(total)
    limit = min(_WINDOWS if most is None else most, max(1, _VALUES // (lookback + horizon)))
    if total > limit:
        chosen = np.sort(rng.choice(total, limit, replace=False))
    ends = np.cumsum(windows)
    series = np.searchsorted(ends, chosen, side="right")
    start = (first[series] + chosen - (ends - windows)[series])[:, None]
    column = start + np.arange(-lookback, horizon)
    before = column < 0
    sample = history[series[:, None], np.maximum(column, 0, out=column)]
    sample[before] = np.nan
    return sample[:, :lookback], sample[:, lookback:]


def window_scale(window: Float64[np.ndarray, "n l"], level: np.ndarray, season: int | None) -> np.ndarray:
    """Scale (N, 1) of windows: their mean change over a season, or without one their mean distance from a level.

    The change counts as at least a hundredth of the distance. A scale of 0, or of no value, is 1.
    """
    with warnings.catch_warnings():
        # the mean of nothing is NaN: a window shorter than a season
        warnings.simplefilter("ignore", RuntimeWarning)
        scale = np.nanmean(np.abs(window - level), 1, keepdims=True)
        if season is not None:
            changes = np.abs(window[:, season:] - window[:, :-season])
            scale = np.fmax(np.nanmean(changes, 1, keepdims=True), _LEAST_SCALE * scale)
    return np.where(scale > 0, scale, 1.0)


def row_blocks(rows: np.ndarray) -> Iterator[slice]:
    """Slices of rows that are computed together."""
    return (slice(start, start + _BLOCK) for start in range(0, len(rows), _BLOCK))


def without_season(
    history: History, season: int, horizon: int, forecast: Callable[[np.ndarray], np.ndarray]
) -> Forecast:
    """Apply a method to the series without their seasons, in blocks of similar lengths."""
    forecasts = np.empty((len(history), horizon))
    count = np.isfinite(history).sum(1)
    order = np.argsort(count, kind="stable")
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        values = history[block, history.shape[1] - count[block[-1]] :]
        factor, shift = _seasonal_pattern(values, season)
        # the last column of a pattern is the last step of the series
        phase = (np.arange(values.shape[1]) - values.shape[1]) % season
        ahead = np.arange(horizon) % season
        plain = forecast((values - shift[:, phase]) / factor[:, phase])
        forecasts[block] = plain * factor[:, ahead] + shift[:, ahead]
    return forecasts


def _seasonal_pattern(history: History, season: int) -> tuple[np.ndarray, np.ndarray]:
    """Factor and shift (N, M) per step of the season: factors for positive series, shifts for others.

    They come from the mean ratio to, or difference from, the centred moving average. Series without a significant
    season have factor 1 and shift 0.
    """
    count, rows = history.shape
    factor = np.ones((count, season))
    shift = np.zeros((count, season))
    seasonal = _is_seasonal(history, season)
    if not seasonal.any():
        return factor, shift
    values = history[seasonal]
    weights = np.ones(season) if season % 2 else np.concatenate(([0.5], np.ones(season - 1), [0.5]))
    spans = np.lib.stride_tricks.sliding_window_view(values, len(weights), axis=1)
    average = spans @ (weights / season)  # NaN unless the whole span lies in the series
    inner = values[:, season // 2 : season // 2 + average.shape[1]]
    positive = np.nanmin(values, 1, keepdims=True) > 0
    ratio = np.where(positive, inner / np.where(average == 0, 1.0, average), inner - average)
    # the steps of the pattern: those after the last value come first
    complete = np.full((len(values), rows + -rows % season), np.nan)
    start = -rows % season + season // 2
    complete[:, start : start + ratio.shape[1]] = ratio
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        pattern = np.nanmean(complete.reshape(len(values), -1, season), 1)  # (K, M)
    is_complete = np.isfinite(pattern).all(1, keepdims=True)
    mean = pattern.mean(1, keepdims=True)
    factor[seasonal] = np.where(is_complete & positive, np.maximum(pattern / np.where(mean == 0, 1.0, mean), 0.01), 1.0)
    shift[seasonal] = np.where(is_complete & ~positive, pattern - mean, 0.0)
    return factor, shift


def has_season(history: History, season: int) -> bool:
    """Whether most of the series that are long enough to tell have a season."""
    long = np.flatnonzero(np.isfinite(history).sum(1) >= SEASONS_TO_TELL * season)
    size = max(1, _TRANSFORMED_VALUES // max(1, history.shape[1]))
    votes = [_is_seasonal(history[long[start : start + size]], season) for start in range(0, len(long), size)]
    return bool(votes) and bool(np.concatenate(votes).mean() > 0.5)


def _is_seasonal(history: History, season: int) -> Bool[np.ndarray, " n"]:
    """Whether the autocorrelation at the season is significant, per series."""
    count = np.isfinite(history).sum(1)
    if season == 1 or history.shape[1] <= season:
        return np.zeros(len(history), dtype=bool)
    centred = np.nan_to_num(history - np.nanmean(history, 1, keepdims=True))
    # zeros after the series, so that the circular products of the transform are those of lags
    spectrum = np.abs(np.fft.rfft(centred, 2 * history.shape[1])) ** 2
    products = np.fft.irfft(spectrum, 2 * history.shape[1])[:, : season + 1]
    lags = products[:, 1:] / np.where(products[:, :1] > 0, products[:, :1], 1.0)
    limit = _SIGNIFICANCE * np.sqrt((1.0 + 2.0 * np.square(lags[:, :-1]).sum(1)) / count)
    return (lags[:, -1] > limit) & (count >= _SEASONS * season)


def last_rows(history: History, rows: int) -> np.ndarray:
    """The last rows (N, rows) of the series, NaN before they begin."""
    lacking = max(0, rows - history.shape[1])
    return np.pad(history, ((0, 0), (lacking, 0)), constant_values=np.nan)[:, -rows:]
