"""Intervals, quantiles and scales of the weighted mean, by its errors at the rolling origins.

    choice = calibrate(ensemble, forecasts, panel, columns, origins, interval=0.8, levels=())    # Choice, frozen
    choice.combine(histories, others, owners)               # forecasts with intervals and quantiles

A `Choice` is the `Ensemble` of `toa.estimators.choice` with its calibration.

Alphabet: P horizon, C columns, Q levels, S series, W windows, N one per window and column.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from toa._checks import ArgumentError, ArgumentWarning, check_shape, check_shares
from toa.data.panel import Panel
from toa.estimators.architecture import NETWORK
from toa.estimators.baselines import REGRESSIONS, align_histories, seasonal_naive
from toa.estimators.choice import Ensemble
from toa.estimators.error_scale import KINDS, ErrorScale
from toa.estimators.families import FAMILIES
from toa.estimators.files import tensors_under
from toa.estimators.lag_methods import history_rows
from toa.estimators.methods import FittedMethod
from toa.estimators.origins import RollingOrigins, SeriesList, series_scale
from toa.estimators.units import Prediction, conformal_width, find_counts
from toa.estimators.weights import weighted_mean

# quantiles of fewer windows are taken over all steps and columns
_FEW_WINDOWS = 40
# windows of other series on which the errors of short series are measured
_CUT_WINDOWS = 120
# numbers of rows to cut these windows to
_CUTS = 5
# arrays of a choice in a file
_ARRAYS = ("width", "offsets", "counts")
# series and columns from which on standard errors decide whether a kind of scale is better than another
_FEW_SERIES = 5
# difference of two scores that is no chance, in standard errors
_STANDARD_ERRORS = 2.0
# the same with fewer series, as a share of the other score
_CLEARLY_LOWER = 0.97
# differences of the rows from which an interval without errors of forecasts is made
_LEAST_DIFFERENCES = 2
# probability by which kinds of scales are compared if no interval is asked for
_USUAL_LEVEL = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Weights of the methods, and what intervals and quantiles need.

    Attributes:
        error_scale: Scale of the errors of each forecast: the seasonal error of the series and column, at least a small
            number, times a factor by the rows before the forecast.
        width: Half of the interval (P, C), in scales; None for no interval.
        offsets: Quantiles minus forecast (P, Q, C), in scales; None without quantiles.
        counts: Columns that hold counts, 0, 1, 2, …: their forecasts are at least 0.
    """

    ensemble: Ensemble
    error_scale: ErrorScale
    width: Float64[np.ndarray, "p c"] | None
    offsets: Float64[np.ndarray, "p q c"] | None
    counts: Bool[np.ndarray, " c"]

    @property
    def scale(self) -> Float64[np.ndarray, "s c"]:
        """Seasonal error of each series and column (S, C), at least a small number."""
        return self.error_scale.scale

    @property
    def rows_read(self) -> int:
        """Rows that the methods of past values and, if there are any, the intervals and quantiles read."""
        bounds = 0 if self.width is None and self.offsets is None else self.error_scale.rows_read
        rows = max(self.ensemble.rows_read, bounds)
        return min(rows, history_rows(self.ensemble.season, self.ensemble.horizon))

    def combine(
        self,
        histories: Sequence[Float64[np.ndarray, " _"]],
        others: Mapping[str, Float64[np.ndarray, "n p"]],
        owners: Tensor,
    ) -> Prediction:
        """Forecasts after histories, one per window and column; `owners` are the series of the windows.

        `others` has the forecasts of the methods that do not read the histories alone.
        """
        rows = self.ensemble.predict(histories, others)
        point = rows.reshape(len(owners), len(self.counts), -1).swapaxes(1, 2)
        scale = self.error_scale.at(histories, owners.numpy())[:, None]  # (W, 1, C)
        parts: dict[str, np.ndarray] = {"forecast": point}
        if self.offsets is not None:
            parts["quantiles"] = point[:, :, None] + self.offsets * scale[:, :, None]
        if self.width is not None:
            parts |= {"lower": point - self.width * scale, "upper": point + self.width * scale}
        floor = np.where(self.counts, 0.0, -np.inf)
        return {name: torch.from_numpy(np.maximum(part, floor)) for name, part in parts.items()}

    def add_series(
        self,
        scale: Float64[np.ndarray, "s c"],
        level: Float64[np.ndarray, "all c"],
        histories: Sequence[Float64[np.ndarray, " _"]],
    ) -> "Choice":
        """The choice with further series, of these seasonal errors; `level` is the size of the mean of all series."""
        fitted, new = np.split(level, [len(self.scale)])
        scale = np.where(np.isnan(scale), new * _usual_share(self.scale, fitted), scale)
        error_scale = self.error_scale.add_series(np.maximum(scale, self.scale.min()), histories)
        wider: Choice = replace(self, error_scale=error_scale)
        return wider

    def check(
        self, series: int, columns: int, horizon: int, levels: int, season: int, panel_methods: Iterable[str] = ()
    ) -> None:
        """Raise ValueError if a loaded choice has other sizes than its forecaster, or weights that are no shares."""
        arrays: dict[str, Any] = {"scale": self.scale, "reference": self.error_scale.reference, "counts": self.counts}
        arrays |= {name: part for name in ("width", "offsets") if (part := getattr(self, name)) is not None}
        shapes = {"scale": (series, columns), "reference": (series, columns), "counts": (columns,)}
        shapes |= {"width": (horizon, columns), "offsets": (horizon, levels, columns)}
        for name, part in arrays.items():
            check_shape(f"choice.{name}", part, str(shapes[name]), shapes[name])
        check_shares(self.ensemble.weights)
        steps = (self.ensemble.horizon, self.ensemble.season)
        if steps != (horizon, season):
            raise ArgumentError("choice", f"have horizon and season {(horizon, season)}", steps)
        others = dict.fromkeys((NETWORK, *REGRESSIONS, *panel_methods), np.zeros((columns, horizon)))
        forecast = self.combine([np.zeros(2)] * columns, others, torch.tensor([0]))["forecast"]
        check_shape("forecast", forecast, "(W, P, C)", (1, horizon, columns))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values to save."""
        ensemble = self.ensemble
        facts: dict[str, Any] = {name: getattr(ensemble, name) for name in ("season", "horizon", "measure", "seasonal")}
        facts |= {
            "weights": dict(ensemble.weights),
            "errors": dict(ensemble.errors),
            "error_scale": self.error_scale.kind,
        }
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {"scale": self.scale, "reference": self.error_scale.reference}
        tensors = {
            name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in arrays.items() if part is not None
        }
        for key, family in FAMILIES.items():
            parts, state = family.save(ensemble.fitted)
            tensors |= {f"{key}.{name}": part for name, part in parts.items()}
            facts |= {} if state is None else {key: state}
        return tensors, facts

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "Choice":
        """From the result of `state`."""
        arrays: dict[str, Any] = {name: tensors[name].cpu().numpy() if name in tensors else None for name in _ARRAYS}
        # older files hold no kind and no reference
        kind = facts.get("error_scale", KINDS[0])
        scale = tensors["scale"].cpu().numpy()
        reference = tensors["reference"].cpu().numpy() if "reference" in tensors else scale
        error_scale = ErrorScale(
            kind=kind, scale=scale, reference=reference, season=facts["season"], horizon=facts["horizon"]
        )
        rest = {name: value for name, value in facts.items() if name not in FAMILIES and name != "error_scale"}
        fitted: dict[str, FittedMethod] = {}
        for key, family in FAMILIES.items():
            if key in facts:
                fitted |= family.load(tensors_under(tensors, f"{key}."), facts[key], facts["season"], facts["horizon"])
        return cls(ensemble=Ensemble(**rest, fitted=fitted), error_scale=error_scale, **arrays)


def calibrate(
    ensemble: Ensemble,
    forecasts: Float64[np.ndarray, "n p"] | None,
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
    scale = np.where(np.isnan(scale), level * _usual_share(scale, level), scale)
    least = scale[scale > 0].min() if (scale > 0).any() else 1.0
    scale = np.maximum(scale, least).reshape(-1, len(columns))
    error_scale = ErrorScale.of_fit("series", scale, series, season=ensemble.season, horizon=origins.horizon)
    width: np.ndarray | None = None
    offsets: np.ndarray | None = None
    in_scales: np.ndarray | None = None
    if forecasts is not None:
        missed = origins.actual(series) - forecasts
        share = _usual_share(scale.ravel(), level)
        usual = float(np.nanmean(np.abs(missed) / scale.ravel()[origins.series][:, None]))
        growth = _short_growth(ensemble, series, origins, share, usual).reshape(scale.shape)
        error_scale, in_scales = _choose_error_scale(error_scale, missed, series, origins, interval or _USUAL_LEVEL)
        error_scale = replace(error_scale, scale=error_scale.scale * growth)
        if len(levels):
            offsets = _quantile_offsets(in_scales, levels)
    if interval is not None:
        width = _interval_width(in_scales, series, ensemble, origins, len(columns), interval)
    counts = find_counts(panel, columns)
    return Choice(ensemble=ensemble, error_scale=error_scale, width=width, offsets=offsets, counts=counts)


def _interval_width(
    error: Float64[np.ndarray, "w p c"] | None,
    series: SeriesList,
    ensemble: Ensemble,
    origins: RollingOrigins,
    columns: int,
    interval: float,
) -> Float64[np.ndarray, "p c"] | None:
    """Half of the interval in scales: by the errors at the origins or, with too few, by differences of the rows."""
    try:
        if error is None:
            raise ArgumentError(
                "a series", "have more rows than the horizon", "none that has", "add rows", "shorten the horizon"
            )
        width = conformal_width(torch.from_numpy(np.abs(error)), interval).numpy()
    except ArgumentError as reason:
        steps = _difference_width(series, ensemble.season, origins.horizon, interval)
        text = f"the interval of {interval} comes from differences of the rows, not from errors of forecasts: "
        if steps is None:
            text = f"the forecast has no interval of {interval}: "
        warnings.warn(ArgumentWarning(text, reason), stacklevel=5)
        return None if steps is None else np.repeat(steps[:, None], columns, axis=1)
    # columns of a series have the same windows
    owners = origins.series[::columns] // columns
    apart = float(origins.held.reshape(-1, columns).sum(0).max() / origins.horizon)
    wider: np.ndarray = width * _few_windows(independent_windows(error, owners, apart), interval)
    return wider


def _difference_width(series: SeriesList, season: int, horizon: int, level: float) -> Float64[np.ndarray, " p"] | None:
    """Half of an interval of normal errors, in mean absolute seasonal differences; None with fewer than two of them.

    Errors add one seasonal difference per season of the horizon, as those of the seasonal naive forecast do (Hyndman
    and Athanasopoulos, Forecasting: principles and practice, section 5.5).
    """
    rows = float(np.median([len(values) for values in series]))
    lag = season if rows > season else 1
    if rows - lag < _LEAST_DIFFERENCES:
        return None
    seasons = np.arange(horizon) // lag + 1
    # of a normal distribution the standard deviation is sqrt(pi / 2) mean absolute deviations
    deviation = np.sqrt(np.pi / 2.0) * np.sqrt(seasons)
    width: np.ndarray = deviation * _student_quantile(rows - lag, level)
    return width


def _choose_error_scale(
    plain: ErrorScale,
    missed: Float64[np.ndarray, "n p"],
    series: SeriesList,
    origins: RollingOrigins,
    level: float,
) -> tuple[ErrorScale, Float64[np.ndarray, "w p c"]]:
    """The kind of scale by which intervals have a low score at the origins, and the errors in it.

    "recent" is the usual one. "level" takes its place where its score is clearly below those of the others, as for
    series that grow.
    """
    columns = plain.scale.shape[1]
    histories = origins.histories(series)
    owners = origins.series[::columns] // columns
    unit = plain.scale[owners][:, None]  # (W, 1, C)
    kinds: dict[str, ErrorScale] = {}
    errors: dict[str, np.ndarray] = {}
    scores: dict[str, np.ndarray] = {}
    for kind in KINDS:
        kinds[kind] = ErrorScale.of_fit(kind, plain.scale, series, season=plain.season, horizon=plain.horizon)
        scale = kinds[kind].at(histories, owners)
        measured = missed.reshape(-1, columns, plain.horizon) / scale[:, :, None]  # (W, C, P)
        errors[kind] = _fill(measured).swapaxes(1, 2)  # (W, P, C)
        half = np.quantile(np.abs(errors[kind]), level, axis=0) * scale[:, None]
        # not the filled errors, which are those of other columns
        score = interval_score(np.abs(measured.swapaxes(1, 2)) * scale[:, None], half, level) / unit
        scores[kind] = _score_per_series(score, owners)
    grows = all(_is_clearly_lower(scores["level"], scores[other]) for other in ("series", "recent"))
    chosen = "level" if grows else "recent"
    return kinds[chosen], errors[chosen]


def _score_per_series(
    score: Float64[np.ndarray, "w p c"], owners: Int64[np.ndarray, " w"]
) -> Float64[np.ndarray, " n"]:
    """Mean score of each series and column that has actual values."""
    scored = np.isfinite(score)
    sums = np.where(scored, score, 0.0).sum(1)  # (W, C)
    series, places = np.unique(owners, return_inverse=True)
    totals = np.zeros((2, len(series), score.shape[2]))
    np.add.at(totals[0], places, sums)
    np.add.at(totals[1], places, scored.sum(1))
    has_values = totals[1] > 0
    means: np.ndarray = totals[0][has_values] / totals[1][has_values]
    return means


def _is_clearly_lower(score: Float64[np.ndarray, " n"], other: Float64[np.ndarray, " n"]) -> bool:
    """Whether a score is below another one by more than chance, or with few series by a clear share."""
    difference = score - other
    if len(difference) < _FEW_SERIES:
        return bool(score.mean() < _CLEARLY_LOWER * other.mean())
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return bool(difference.mean() < -_STANDARD_ERRORS * error)


def interval_score(
    error: Float64[np.ndarray, "*n"], half: Float64[np.ndarray, "*n"], level: float
) -> Float64[np.ndarray, "*n"]:
    """Score of intervals with these halves and errors |y - ŷ|: the width, and 2 / (1 - level) per unit outside."""
    score: np.ndarray = 2.0 * half + 2.0 / (1.0 - level) * np.maximum(error - half, 0.0)
    return score


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
    return _student_quantile(independent, level) / _student_quantile(np.inf, level)


def _student_quantile(count: float, level: float) -> float:
    """Half of the interval that holds a value of Student's t distribution with the probability `level`."""
    # imported on use: scipy takes long to import
    from scipy.special import stdtrit

    return float(stdtrit(count, (1.0 + level) / 2.0))


def _quantile_offsets(error: Float64[np.ndarray, "w p c"], levels: Sequence[float]) -> Float64[np.ndarray, "p q c"]:
    """Quantiles of the errors; of few windows those over all steps and columns."""
    offsets: np.ndarray = np.quantile(error, levels, axis=0)  # (Q, P, C)
    if len(error) < _FEW_WINDOWS:
        # those of the errors of all columns and steps, in mean errors of a column
        mean = np.abs(error).mean((0, 1))
        missed = error[..., mean > 0] / mean[mean > 0]
        shape = np.quantile(missed if missed.size else error, levels)[:, None, None]
        offsets = shape * np.broadcast_to(mean, offsets.shape)
    return offsets.swapaxes(0, 1)


def _usual_share(scale: np.ndarray, level: np.ndarray) -> float:
    """The usual scale of a series, as a share of its level."""
    usable = (scale > 0) & (level > 0)
    return float(np.median(scale[usable] / level[usable])) if usable.any() else 0.0


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
