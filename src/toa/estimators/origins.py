"""Rolling origins: the windows at the end of each series that methods are validated on.

    origins = RollingOrigins.choose(lengths, horizon=24, share=0.125)
    origins.earlier(series)      # rows that methods are fitted to before they are validated
    origins.histories(series)    # rows before each origin
    origins.actual(series)       # what follows: (W, P)

Alphabet: N series of one column, S series, C columns, P horizon, W windows, one per series and origin.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from toa.estimators.baselines import History, align_histories
from toa.estimators.effort import EFFORTS
from toa.training.metrics import seasonal_error

# values of series of any length, each of one column
SeriesList = Sequence[Float64[np.ndarray, " _"]]

# windows to validate on that are enough to choose weights
_ENOUGH_WINDOWS = 400
# origins per series if there are many series
_FEWEST_ORIGINS = 2
# series to validate on, drawn at random from more
_MOST_SERIES = 4_000
# rows that methods of a single series read at least
LOCAL_ROWS = 512
# values that one method reads in all
MOST_VALUES = 30_000_000
# a seasonal error below this share of the largest value is rounding
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class RollingOrigins:
    """Windows to validate on: the forecast of `series` begins `back` rows before its end.

    Attributes:
        series: Index of the series of each window (W,).
        back: Rows from the origin to the end of the series (W,).
        held: Rows at the end of each series that lie after its first origin (N,); 0 if it is too short.
        filled: Which values of each series were missing and are filled; None if none was.
        looks_ahead: Whether filled values depend on later ones.
    """

    series: Int64[np.ndarray, " w"]
    back: Int64[np.ndarray, " w"]
    held: Int64[np.ndarray, " n"]
    horizon: int
    filled: Sequence[Bool[np.ndarray, " _"]] | None = None
    looks_ahead: bool = False

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
        backs = [np.unique(np.linspace(horizon, held[index], count).astype(np.int64)) for index in chosen]
        series = np.repeat(chosen, [len(back) for back in backs])
        return cls(series=series, back=np.concatenate([series[:0], *backs]), held=held, horizon=horizon)

    def __len__(self) -> int:
        return len(self.series)

    @property
    def independent(self) -> float:
        """Number of windows that do not overlap and would fill the validated rows."""
        return float(self.held[np.unique(self.series)].sum() / self.horizon)

    def per_column(
        self,
        rows: Int64[np.ndarray, "s c"],
        filled: Sequence[Bool[np.ndarray, " _"]] | None = None,
        *,
        looks_ahead: bool = False,
    ) -> "RollingOrigins":
        """The same windows of each of C columns with these rows; column c of series s is the series s * C + c.

        A late column with fewer rows before the first origin than after it has `held` 0: its windows do not count.
        """
        columns = rows.shape[1]
        held = self.held[:, None]
        series = (self.series[:, None] * columns + np.arange(columns)).ravel()
        held = np.where(rows < np.minimum(2 * held, rows.max(1, keepdims=True)), 0, held).ravel()
        return RollingOrigins(
            series=series,
            back=np.repeat(self.back, columns),
            held=held,
            horizon=self.horizon,
            filled=filled,
            looks_ahead=looks_ahead,
        )

    def rows_before(self, rows: Int64[np.ndarray, "s c"]) -> Int64[np.ndarray, "s c"]:
        """Of the origins of columns with these rows: rows before the first origin; 0 for columns without one."""
        held = self.held.reshape(rows.shape)
        return np.where(held > 0, rows - held, 0)

    def places(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Of each window its series, and its first row in a series of this length."""
        firsts = np.asarray(lengths)[self.series] - self.back
        return list(zip(self.series.tolist(), firsts.tolist(), strict=True))

    def earlier(self, series: SeriesList) -> list[np.ndarray]:
        """The rows before the first origin of each series that has one, as they were known then."""
        return [
            self._rows_before(values, index, len(values) - held)
            for index, (values, held) in enumerate(zip(series, self.held, strict=True))
            if held
        ]

    def _rows_before(self, values: Float64[np.ndarray, " _"], index: int, end: int) -> np.ndarray:
        """The values of a series before a row, as they were known then: an open gap repeats its last value."""
        before = values[:end]
        if self.filled is None or not self.looks_ahead or not end or not self.filled[index][end - 1]:
            return before
        gap = int(self.filled[index][:end][::-1].argmin())
        return np.append(before[: end - gap], np.full(gap, before[end - gap - 1])) if gap else before

    def histories(self, series: SeriesList) -> list[np.ndarray]:
        """Values before the origin of each window, at least one, as they were known then."""
        return [
            self._rows_before(series[index], index, max(1, len(series[index]) - back))
            for index, back in zip(self.series.tolist(), self.back.tolist(), strict=True)
        ]

    def actual(self, series: SeriesList) -> Float64[np.ndarray, "w p"]:
        """Values (W, P) after the origins; NaN where the data have none, and in windows that do not count."""
        actual = np.full((len(self), self.horizon), np.nan)
        for row, (index, back) in enumerate(zip(self.series.tolist(), self.back.tolist(), strict=True)):
            if self.held[index]:
                actual[row] = series[index][-back:][: self.horizon]
                if self.filled is not None:
                    actual[row, self.filled[index][-back:][: self.horizon]] = np.nan
        return actual


def align_series(series: SeriesList) -> History:
    """The last values of the series at the end of the rows of one array, NaN before them."""
    return align_histories(series, max(LOCAL_ROWS, MOST_VALUES // len(series)))


def series_scale(series: SeriesList, season: int) -> Float64[np.ndarray, " n"]:
    """Seasonal error of each series; of its steps, if it has less than two seasons; 0 if it is only rounding."""
    history = align_series(series)
    if history.shape[1] < 2:
        return np.full(len(series), np.nan)
    scale = seasonal_error(history, season) if season < history.shape[1] else np.full(len(series), np.nan)
    scale = np.where(np.isnan(scale), seasonal_error(history, 1), scale)
    return np.where(scale <= ROUNDING * np.nanmax(np.abs(history), axis=1), 0.0, scale)
