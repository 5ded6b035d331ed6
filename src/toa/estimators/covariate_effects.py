"""The effect of covariates on each column: curves of numbers, a value per level, and both by the hour or the weekday.

    effect = fit_covariate_effect(panel, columns, features, past_features=0, scale=scale, season=24, seed=1)
    effect.of(features, clock)                     # (T, C) in scales

    effect = sum over features of
        levels of a feature with few values, such as a mark of holidays:  a value per level, and per level and hour
        other numbers:  a continuous piecewise linear curve with knots at quantiles, and a slope per hour

Groups are the hours of a day or, for days, the weekdays. Seasonal differences are regressed, so that trend and season
are no effect. The strength of the ridge is chosen per column by parts of the rows that are left out in turn; a column
that no effect forecasts better there has none.

Alphabet: T rows, F features, C columns, B terms of the effect, K known features, G groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from toa._checks import ArgumentError, check_count, check_finite
from toa._limits import shorten
from toa.data.panel import Panel
from toa.estimators.clock import Clock, clock_groups, clock_of

# quantiles of a feature at which its curve has knots
_KNOTS = (0.1, 0.3, 0.5, 0.7, 0.9)
# most values of a feature with a value per level
_MOST_LEVELS = 8
# how far a curve continues beyond the values of fit, as a share of their range
_BEYOND = 0.1
# terms of an effect beyond which features have no groups, then no curve; a line or level of each remains
_MOST_TERMS = 320
# rows that the effect is fitted to, at most
_MOST_ROWS = 24_000
# strengths of the ridge per row, of terms whose differences have variance 1
_STRENGTHS = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# parts of the rows that are left out in turn, and blocks of rows that form them
_FOLDS = 4
_BLOCKS = 16
# largest error with the effect, in squared errors without it, for an effect to be used
_USEFUL = 0.998
# rows of which the effect is computed at a time
_TOGETHER = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureShape:
    """How one feature acts.

    Attributes:
        place: Column of the features.
        levels: All its values but the lowest, each with an effect of its own, and a line between neighbours; () for a
            number with a curve.
        knots: Where its curve bends; () for a line.
        low: Values below count as this one; with levels the lowest value.
        high: Values above count as this one.
        by_group: Whether it acts differently by group.
    """

    place: int
    levels: tuple[float, ...]
    knots: tuple[float, ...]
    low: float
    high: float
    by_group: bool

    def check(self) -> None:
        """Raise ValueError for numbers of a file that describe no feature."""
        check_count("place", self.place, 0)
        numbers = (*self.levels, *self.knots, self.low, self.high)
        if not (np.isfinite(numbers).all() and self.low <= self.high and isinstance(self.by_group, bool)):
            raise ArgumentError("effect of covariates", "have finite numbers in order", shorten(numbers))
        if self.levels and not (np.diff((self.low, *self.levels)) > 0).all():
            raise ArgumentError("levels of an effect of covariates", "increase", shorten((self.low, *self.levels)))

    def curves(self, values: Float64[np.ndarray, " t"]) -> Float64[np.ndarray, "t b"]:
        """Terms of all groups together."""
        if self.levels:
            places = np.array((self.low, *self.levels))
            # a value that fit has not seen lies between its neighbours
            return np.stack([np.interp(values, places, places == level) for level in self.levels], 1)
        inside = values.clip(self.low, self.high)
        bends = [np.maximum(inside - knot, 0.0) for knot in self.knots]
        return np.stack([inside, *bends], 1)

    def terms(
        self, values: Float64[np.ndarray, " t"], group: Int64[np.ndarray, " t"], groups: int
    ) -> Float64[np.ndarray, "t b"]:
        """All terms: those of all groups together, then those by group."""
        together = self.curves(values)
        if not self.by_group:
            return together
        # numbers have a slope per group, which the first term is
        acting = together if self.levels else together[:, :1]
        apart = np.zeros((len(values), acting.shape[1], groups))
        apart[np.arange(len(values)), :, group] = acting
        return np.concatenate([together, apart.reshape(len(values), -1)], axis=1)

    def count(self, groups: int) -> int:
        """Number of terms."""
        together = len(self.levels) or 1 + len(self.knots)
        acting = len(self.levels) or 1
        return together + (acting * groups if self.by_group else 0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CovariateEffect:
    """Effect of features on columns, in scales.

    Attributes:
        shapes: How each feature acts that is known in advance.
        groups: Number of groups; 1 for none.
        by_week: Whether the groups are the days of the week, not the hours.
        weights: Weights (B, C) of the terms.
    """

    shapes: tuple[FeatureShape, ...]
    groups: int
    by_week: bool
    weights: Float64[np.ndarray, "b c"]

    def of(self, features: Float64[np.ndarray, "t f"], clock: Clock) -> Float64[np.ndarray, "t c"]:
        """Effect (T, C) of rows; the clock may have further rows."""
        parts = [np.zeros((0, self.weights.shape[1]))]
        for start in range(0, len(features), _TOGETHER):
            rows = slice(start, start + _TOGETHER)
            parts.append(self._terms(features[rows], clock[: len(features)][rows]) @ self.weights)
        effect = np.concatenate(parts)
        check_finite("effect of covariates", torch.from_numpy(effect))
        return effect

    def _terms(self, features: Float64[np.ndarray, "t f"], clock: Clock) -> Float64[np.ndarray, "t b"]:
        return _terms_of(self.shapes, features, clock[:, int(self.by_week)], self.groups)

    def used(self, features: int) -> Bool[np.ndarray, " f"]:
        """Which of this number of features act."""
        acts = np.zeros(features, dtype=bool)
        start = 0
        for shape in self.shapes:
            stop = start + shape.count(self.groups)
            acts[shape.place] = bool(self.weights[start:stop].any())
            start = stop
        return acts

    def state(self) -> dict[str, Any]:
        """The effect as JSON values, without the weights."""
        names = FeatureShape.__slots__
        shapes = [{name: getattr(shape, name) for name in names} for shape in self.shapes]
        return {"shapes": shapes, "groups": self.groups, "by_week": self.by_week}

    @classmethod
    def from_state(cls, facts: Mapping[str, Any], weights: Float64[np.ndarray, "b c"]) -> "CovariateEffect":
        """From the result of `state`; raises ValueError for weights of another size, and for shapes of no feature."""
        shapes = []
        for values in facts["shapes"]:
            lists = {name: tuple(map(float, values[name])) for name in ("levels", "knots")}
            shape = FeatureShape(**{**values, **lists})
            shape.check()
            shapes.append(shape)
        groups = facts["groups"]
        check_count("groups", groups, 1)
        count = sum(shape.count(groups) for shape in shapes)
        if weights.ndim != 2 or len(weights) != count:
            raise ArgumentError("effect of covariates", f"have {count} weights per column", str(weights.shape))
        return cls(shapes=tuple(shapes), groups=groups, by_week=bool(facts["by_week"]), weights=weights)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EffectRows:
    """Rows that an effect is fitted to, one entry per series.

    Attributes:
        features: Features (T, F) that are known in advance.
        clocks: Hours and days (T, 3) of the rows.
        values: Values (T, C) in scales.
        begins: First row (C,) of each column.
        groups: Number of groups of the day and of the week.
    """

    features: Sequence[Float64[np.ndarray, "t f"]]
    clocks: Sequence[Clock]
    values: Sequence[Float64[np.ndarray, "t c"]]
    begins: Sequence[Int64[np.ndarray, " c"]]
    groups: tuple[int, int]


def fit_covariate_effect(
    panel: Panel,
    columns: Sequence[str],
    features: Sequence[Float64[np.ndarray, "t f"]],
    *,
    past_features: int,
    scale: Float64[np.ndarray, "s c"],
    season: int,
    seed: int,
) -> CovariateEffect | None:
    """The effect in the rows of a panel of the features that are known in advance; None without any, or with few rows.

    Args:
        past_features: Number of features that are known only in the past, the last ones.
        scale: Seasonal error of each series and column.
    """
    places = [panel.columns.index(column) for column in columns]
    begins = [np.zeros(len(columns), dtype=np.int64)] * len(panel)
    if panel.begins is not None:
        begins = [begin[places] for begin in panel.begins]
    known = features[0].shape[1] - past_features
    rows = EffectRows(
        features=[part[:, :known] for part in features],
        clocks=clock_of(panel, 0),
        values=[values / unit for values, unit in zip(panel.take(columns), scale, strict=True)],
        begins=begins,
        groups=clock_groups(panel),
    )
    return fit_curves(rows, season, seed)


def fit_curves(rows: EffectRows, season: int, seed: int) -> CovariateEffect | None:
    """The effect of the features; None if nothing varies or there are too few rows."""
    # hours act differently within a day, and weekdays within a week
    by_week = rows.groups[0] == 1
    groups = rows.groups[1] if by_week else rows.groups[0]
    joined = np.concatenate(list(rows.features))
    # curves need no more rows than the effect is fitted to; drawn, because each n-th would miss weekdays
    if len(joined) > _MOST_ROWS:
        joined = joined[np.random.default_rng(seed).choice(len(joined), _MOST_ROWS, replace=False)]
    shapes = _choose_shapes(joined, groups)
    differences = _differences(rows, shapes, groups, by_week, season, seed)
    if not shapes or differences is None:
        return None
    return CovariateEffect(shapes=shapes, groups=groups, by_week=by_week, weights=_fit_columns(differences))


def _choose_shapes(features: Float64[np.ndarray, "t f"], groups: int) -> tuple[FeatureShape, ...]:
    """Levels, curves and groups of all features that vary, as far as the number of terms allows."""
    varying = [place for place in range(features.shape[1]) if np.ptp(features[:, place]) > 0]
    with_curves = len(varying) * (1 + len(_KNOTS)) <= _MOST_TERMS
    shapes = []
    terms = 0
    for place in varying:
        shape = _shape_of(features[:, place], place, with_curves=with_curves)
        shapes.append(shape)
        terms += shape.count(groups)
    chosen = []
    for shape in shapes:
        acting = (len(shape.levels) or 1) * groups
        by_group = groups > 1 and terms + acting <= _MOST_TERMS
        terms += acting if by_group else 0
        chosen.append(
            FeatureShape(
                place=shape.place,
                levels=shape.levels,
                knots=shape.knots,
                low=shape.low,
                high=shape.high,
                by_group=by_group,
            )
        )
    return tuple(chosen)


def _shape_of(values: Float64[np.ndarray, " t"], place: int, *, with_curves: bool) -> FeatureShape:
    low = float(values.min())
    high = float(values.max())
    levels: tuple[float, ...] = ()
    knots: tuple[float, ...] = ()
    distinct = np.unique(values)
    if len(distinct) <= _MOST_LEVELS:
        levels = tuple(map(float, distinct[1:]))
    if levels:
        return FeatureShape(place=place, levels=levels, knots=(), low=low, high=high, by_group=False)
    if with_curves:
        inner = np.unique(np.quantile(values, _KNOTS))
        knots = tuple(float(knot) for knot in inner if low < knot < high)
    margin = _BEYOND * (high - low)
    return FeatureShape(place=place, levels=levels, knots=knots, low=low - margin, high=high + margin, by_group=False)


def _terms_of(
    shapes: Sequence[FeatureShape], features: Float64[np.ndarray, "t f"], group: Int64[np.ndarray, " t"], groups: int
) -> Float64[np.ndarray, "t b"]:
    parts = [shape.terms(features[:, shape.place], group, groups) for shape in shapes]
    return np.concatenate([np.zeros((len(features), 0)), *parts], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Differences:
    """Seasonal differences of terms (V, B) and values (V, C), which of these count, and the fold of each row."""

    terms: Float64[np.ndarray, "v b"]
    values: Float64[np.ndarray, "v c"]
    counts: Bool[np.ndarray, "v c"]
    fold: Int64[np.ndarray, " v"]


def _differences(
    rows: EffectRows, shapes: Sequence[FeatureShape], groups: int, by_week: bool, season: int, seed: int
) -> _Differences | None:
    """Differences of rows drawn from all series, at most a fixed number."""
    usable = [max(0, len(values) - season) for values in rows.values]
    total = sum(usable)
    if total < 2 * _FOLDS:
        return None
    chosen = np.arange(total)
    if total > _MOST_ROWS:
        chosen = np.sort(np.random.default_rng(seed).choice(total, _MOST_ROWS, replace=False))
    terms, values, counts = [], [], []
    start = 0
    for index, count in enumerate(usable):
        places = chosen[(chosen >= start) & (chosen < start + count)] - start + season
        start += count
        if not len(places):
            continue
        features = rows.features[index]
        group = rows.clocks[index][:, int(by_week)]
        now = _terms_of(shapes, features[places], group[places], groups)
        terms.append(now - _terms_of(shapes, features[places - season], group[places - season], groups))
        values.append(rows.values[index][places] - rows.values[index][places - season])
        counts.append(places[:, None] - season >= rows.begins[index])
    # blocks of neighbours, so that a part that is left out is not like its neighbours
    fold = chosen * _BLOCKS // total % _FOLDS
    return _Differences(np.concatenate(terms), np.concatenate(values), np.concatenate(counts), fold)


def _fit_columns(differences: _Differences) -> Float64[np.ndarray, "b c"]:
    """Weights of the terms for each column; 0 for columns that they do not forecast in the parts that are left out."""
    weights = np.zeros((differences.terms.shape[1], differences.values.shape[1]))
    patterns, members = np.unique(differences.counts, axis=1, return_inverse=True)
    for place in range(patterns.shape[1]):
        # columns that begin together share the sums of their rows
        columns = np.flatnonzero(members.ravel() == place)
        counts = patterns[:, place]
        if counts.sum() >= 2 * _FOLDS:
            values = differences.values[np.ix_(counts, columns)]
            weights[:, columns] = _fit_rows(differences.terms[counts], values, differences.fold[counts])
    return weights


def _fit_rows(
    terms: Float64[np.ndarray, "v b"], values: Float64[np.ndarray, "v c"], fold: Int64[np.ndarray, " v"]
) -> Float64[np.ndarray, "b c"]:
    """Weights by ridge regression, whose strength is chosen per column."""
    weights = np.zeros((terms.shape[1], values.shape[1]))
    size = np.sqrt(np.square(terms).mean(0))
    acts = size > 0
    if not acts.any():
        return weights
    scaled = terms[:, acts] / size[acts]
    rows = len(terms)
    grams = [scaled[fold == part].T @ scaled[fold == part] for part in range(_FOLDS)]
    products = [scaled[fold == part].T @ values[fold == part] for part in range(_FOLDS)]
    gram = np.sum(grams, axis=0)
    product = np.sum(products, axis=0)
    # squared errors of the parts that are left out, less those without an effect
    errors = np.zeros((len(_STRENGTHS), values.shape[1]))
    for part in range(_FOLDS):
        for place, strength in enumerate(_STRENGTHS):
            rest = _solve(gram - grams[part], product - products[part], strength * rows)
            errors[place] += ((grams[part] @ rest - 2.0 * products[part]) * rest).sum(0)
    useful = errors.min(0) < (_USEFUL - 1.0) * np.square(values).sum(0)
    best = errors.argmin(0)
    for place, strength in enumerate(_STRENGTHS):
        columns = np.flatnonzero(useful & (best == place))
        if len(columns):
            fitted = _solve(gram, product[:, columns], strength * rows) / size[acts, None]
            weights[np.ix_(acts, columns)] = fitted
    return weights


def _solve(gram: np.ndarray, product: np.ndarray, ridge: float) -> Float64[np.ndarray, "b c"]:
    solution: np.ndarray = np.linalg.solve(gram + ridge * np.eye(len(gram)), product)
    return solution
