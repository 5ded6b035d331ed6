"""Scale of the errors of a forecast: it follows how uneven the rows before the forecast are, or their level.

    scale = ErrorScale.of_fit("recent", scale, series, season=24, horizon=24)
    scale.at(histories, owners)    # (W, 1, C), or (W, P, C) if it differs between steps

After a calm season errors are smaller than after a rough one, and a series that grows has growing errors. The scale of
a series and column, its seasonal error, is therefore multiplied per forecast by

    (measure of the last rows before it / reference of the series) ** power

    "series"    no factor, as in older files
    "recent"    measure: mean |x[t] - x[t - season]| of the last rows; reference: the scale; power 1/2
    "level"     measure: mean |x[t]| of the last season; reference: that of the rows of the fit; power 1
    "learned"   the factor of `toa.estimators.error_effects`, whose coefficients are fitted at the rolling origins

The first three are those of older files.

Alphabet: S series, C columns, W windows, P horizon, N one per window and column, or per series and column.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from toa._checks import check_choice
from toa.estimators.baselines import align_histories
from toa.estimators.error_effects import (
    FEATURES,
    ErrorEffects,
    make_features,
    measure_phases,
    phase_rows,
)

# kinds with a fixed factor
FIXED_KINDS = ("series", "recent", "level")
LEARNED = "learned"
KINDS = (*FIXED_KINDS, LEARNED)
# coefficients to which the learned ones are drawn; the others are drawn to 0
_PRIOR = {"recent": 0.5, "phase": 0.5}
# exponent of the factor: half of the way on a logarithmic scale, because recent rows are few
_POWER = {"recent": 0.5, "level": 1.0}
# fewest rows in which "recent" measures
_RECENT_ROWS = 16
# fewest differences by which "recent" measures
_LEAST_STEPS = 8
# smallest and largest measure, in references: one window must not make an interval vanish or explode
_LEAST_RATIO = 0.05
_LARGEST_RATIO = 20.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ErrorScale:
    """Scales of series and columns, and how they follow the rows before a forecast.

    Attributes:
        kind: One of `KINDS`.
        scale: Scale (S, C), above 0.
        reference: Measure (S, C) at which the factor is 1; NaN or 0 for series whose factor is always 1. Of "learned"
            the seasonal error, in which features are measured.
        effects: Coefficients of "learned"; None for the other kinds.
    """

    kind: str
    scale: Float64[np.ndarray, "s c"]
    reference: Float64[np.ndarray, "s c"]
    season: int
    horizon: int
    effects: ErrorEffects | None = None

    def __post_init__(self) -> None:
        check_choice("error scale", self.kind, KINDS)

    @classmethod
    def of_fit(
        cls,
        kind: str,
        scale: Float64[np.ndarray, "s c"],
        series: Sequence[Float64[np.ndarray, " _"]],
        *,
        season: int,
        horizon: int,
    ) -> "ErrorScale":
        """References by the rows of the fit; the columns of a series are adjacent."""
        reference = scale
        if kind == "level":
            reference = measure_rows(kind, series, season, horizon).reshape(scale.shape)
        return cls(kind=kind, scale=scale, reference=reference, season=season, horizon=horizon)

    def at(
        self,
        histories: Sequence[Float64[np.ndarray, " _"]],
        owners: Int64[np.ndarray, " w"],
        spread: Float64[np.ndarray, "n p"] | None = None,
    ) -> Float64[np.ndarray, "w p c"]:
        """Scales of forecasts after histories.

        Args:
            owners: Series of each window.
            spread: Mean distance of the methods from each forecast; only "learned" reads it.
        """
        scale = self.scale[owners][:, None]  # (W, 1, C)
        if self.kind == "series":
            return scale
        if self.effects is not None:
            assert spread is not None
            features = self.features(histories, owners, spread)
            factors = self.effects.factor(features).reshape(len(owners), scale.shape[2], -1)
            return scale * factors.swapaxes(1, 2)
        measured = measure_rows(self.kind, histories, self.season, self.horizon).reshape(len(owners), -1)
        reference = self.reference[owners]
        usable = np.isfinite(measured) & (reference > 0)
        ratio = np.ones_like(reference)
        ratio[usable] = np.clip(measured[usable] / reference[usable], _LEAST_RATIO, _LARGEST_RATIO)
        return scale * (ratio ** _POWER[self.kind])[:, None]

    def features(
        self,
        histories: Sequence[Float64[np.ndarray, " _"]],
        owners: Int64[np.ndarray, " w"],
        spread: Float64[np.ndarray, "n p"],
    ) -> list[Float64[np.ndarray, "n _"]]:
        """What the errors of these forecasts depend on, in the order of `FEATURES`."""
        return make_features(
            measure_rows("recent", histories, self.season, self.horizon),
            measure_rows("level", histories, self.season, self.horizon),
            measure_phases(histories, self.season, self.horizon),
            spread,
            self.reference[owners].ravel(),
        )

    def learn(
        self,
        histories: Sequence[Float64[np.ndarray, " _"]],
        owners: Int64[np.ndarray, " w"],
        spread: Float64[np.ndarray, "n p"],
        missed: Float64[np.ndarray, "n p"],
    ) -> "ErrorScale":
        """The learned scale by forecasts at the origins and their errors, NaN where there is no actual value."""
        error = missed / self.scale[owners].reshape(-1, 1)
        # columns without any error, such as constant ones, tell nothing of the others
        by_column = error.reshape(len(owners), -1, self.horizon)
        has_errors = np.nan_to_num(by_column).any(axis=(0, 2))
        error = np.where(has_errors[:, None], by_column, np.nan).reshape(error.shape)
        drawn_to = np.array([_PRIOR.get(name, 0.0) for name in FEATURES])
        plain: ErrorScale = replace(self, kind=LEARNED, reference=self.scale)
        effects = ErrorEffects.fit(plain.features(histories, owners, spread), error, drawn_to)
        learned: ErrorScale = replace(plain, effects=effects)
        return learned

    @property
    def rows_read(self) -> int:
        """Rows before a forecast that the factor depends on."""
        if self.kind == "series":
            return 0
        recent = self.season + (0 if self.kind == "level" else _recent_rows(self.season, self.horizon))
        return max(recent, phase_rows(self.season)) if self.kind == LEARNED else recent

    def add_series(
        self, scale: Float64[np.ndarray, "new c"], histories: Sequence[Float64[np.ndarray, " _"]]
    ) -> "ErrorScale":
        """With further series, of these scales and rows."""
        new = ErrorScale.of_fit(self.kind, scale, histories, season=self.season, horizon=self.horizon)
        wider: ErrorScale = replace(
            self,
            scale=np.concatenate([self.scale, new.scale]),
            reference=np.concatenate([self.reference, new.reference]),
        )
        return wider


def _recent_rows(season: int, horizon: int) -> int:
    """Differences over a season by which "recent" measures, at most."""
    return max(2 * season, 2 * horizon, _RECENT_ROWS)


def measure_rows(
    kind: str, histories: Sequence[Float64[np.ndarray, " _"]], season: int, horizon: int
) -> Float64[np.ndarray, " n"]:
    """How uneven the last rows of each history are, or their level; NaN for histories that are too short."""
    if kind == "level":
        return np.nanmean(np.abs(align_histories(histories, season)), axis=1)
    last = align_histories(histories, _recent_rows(season, horizon) + season)
    if last.shape[1] <= season:
        return np.full(len(last), np.nan)
    steps = np.abs(last[:, season:] - last[:, :-season])
    counts = np.isfinite(steps).sum(1)
    sums = np.nansum(steps, axis=1)
    return np.where(counts >= _LEAST_STEPS, sums / np.maximum(counts, 1), np.nan)
