"""A linear forecast of each column from its own lags and from the principal components of the last rows of all columns.

    ridge = fit_component_ridge([TrainingRows(values, begins, border)], horizon=12, season=288)
    ridge.predict(windows)         # (W, rows_read, C) -> (W, P, C), all standardised
    ridge.influence()              # (C, C): how much each column moves the forecast of each other

Column c is forecast by own(x_c) A_c + z(x) B_c + a_c. own(x_c) are its last L values and, with a longer season, those
one season before the forecast steps. z(x) are components of the last R rows of all columns, the same for all of them.
Each A_c is drawn to the map that fits all columns, each B_c to zero: ridge regression in closed form. Strengths and
number of components are those with the least error on later rows than those of the first fit.

Alphabet: T rows, C columns, W windows, P horizon, L lags, R rows, A own values, K components, D features of a column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from jaxtyping import Bool, Float64, Int64

# fewest columns for which components of all columns are tried
FEWEST_COLUMNS = 5
# most columns: above, the maps of all columns would take too much memory
MOST_COLUMNS = 4_000
# own lags, at most
LAGS = 48
# own lags, at most, as a share of the rows
_SHARE_OF_LAGS = 0.125
# rows whose components are read
_COMPONENT_ROWS = 12
# components of the columns within a row
_ROW_COMPONENTS = 60
# numbers of components of all rows together that are tried
_COMPONENTS = (40, 150, 400)
# strengths of the ridge per window that are tried: for the difference of a column's own map from that of all columns
_OWN_STRENGTHS = (0.01, 0.1, 1.0)
# likewise for the map from the components
_COMPONENT_STRENGTHS = (0.01, 0.1, 1.0, 10.0)
# strength of the ridge of the map that fits all columns
_POOLED_STRENGTH = 1e-3
# strength of the ridge of constants, in all: it keeps a system without windows solvable
_LEAST_STRENGTH = 1e-6
# columns on which the strengths are compared
_COMPARED_COLUMNS = 32
# windows of all columns together, and of each, at most
_MOST_VALUES = 3_000_000
_MOST_WINDOWS = 8_000
# fewest windows to fit to, and to compare strengths on
_FEWEST_WINDOWS = 30
# steps of the search for the components of a row
_POWER_STEPS = 4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingRows:
    """Standardised rows (T, C) of one series.

    Attributes:
        begins: First row (C,) of each column; earlier values are not used.
        border: The windows whose targets lie in rows from here on compare strengths.
    """

    values: Float64[np.ndarray, "t c"]
    begins: Int64[np.ndarray, " c"]
    border: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComponentRidge:
    """A fitted map; arrays are float32, as they are saved.

    Attributes:
        back: Distance (A,) of each own value from the last row: 0 is the last row.
        row_components: Map (C, J) from a row to its components.
        components: Map (R J, K) from the components of the last R rows to those of all together.
        own: Map (C, A, P) from the own values.
        shared: Map (K, C, P) from the components.
        constant: Constant (C, P).
        strengths: Strengths of the ridge that were chosen, of the "own" and the "shared" map.
    """

    back: np.ndarray
    row_components: np.ndarray
    components: np.ndarray
    own: np.ndarray
    shared: np.ndarray
    constant: np.ndarray
    strengths: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows_read(self) -> int:
        """Rows before a forecast that are read."""
        return max(int(self.back.max()) + 1, self.component_rows)

    @property
    def component_rows(self) -> int:
        """Number of rows R whose components are read."""
        return len(self.components) // max(1, self.row_components.shape[1])

    def predict(self, windows: Float64[np.ndarray, "w t c"]) -> Float64[np.ndarray, "w p c"]:
        """Forecasts of standardised windows, whose last row is the last known one."""
        last = windows.shape[1] - 1
        own = windows[:, last - self.back].transpose(2, 0, 1)  # (C, W, A)
        forecast = own @ self.own.astype(np.float64) + self.constant[:, None].astype(np.float64)  # (C, W, P)
        rows = windows[:, windows.shape[1] - self.component_rows :] @ self.row_components.astype(np.float64)
        scores = rows.reshape(len(windows), -1) @ self.components.astype(np.float64)  # (W, K)
        forecast += np.tensordot(scores, self.shared.astype(np.float64), 1).transpose(1, 0, 2)
        return forecast.transpose(1, 2, 0)

    def influence(self) -> Float64[np.ndarray, "c c"]:
        """Change of the forecast of a column, mean over the steps, if another is 1 higher in its last rows.

        Row: the column that is forecast. All values are standardised: 1 is a standard deviation of its column.
        """
        rows = self.component_rows
        width = self.row_components.shape[1]
        summed = self.components.reshape(rows, width, -1).sum(0)  # (J, K)
        # (C, K) @ (K, C): column that is higher, column that is forecast
        moved = self.row_components @ summed @ self.shared.mean(2)
        near = self.back < rows
        own = self.own[:, near].sum(1).mean(1)
        return moved.T.astype(np.float64) + np.diag(own.astype(np.float64))


@dataclass(frozen=True, slots=True)
class _Strengths:
    """What is chosen by the error on later rows."""

    components: int
    own: float
    shared: float


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """Windows of all series: series and last known row of each, and whether it compares strengths."""

    series: Int64[np.ndarray, " w"]
    last: Int64[np.ndarray, " w"]
    compares: Bool[np.ndarray, " w"]


def fit_component_ridge(
    parts: Sequence[TrainingRows],
    *,
    horizon: int,
    season: int,
    lags: int = LAGS,
    with_components: bool = True,
    refit: bool = True,
    seed: int = 2024,
) -> ComponentRidge | None:
    """Fit to windows of all series; None if there are too few.

    Args:
        season: Steps of a season; 1 for none.
        lags: Own lags, at most; short series have fewer.
        with_components: False leaves the components out: own lags alone.
        refit: Whether the rows that compared the strengths are used for the map too.
    """
    columns = parts[0].values.shape[1]
    back = own_places(max(len(part.values) for part in parts), horizon, season, lags)
    rows = min(_COMPONENT_ROWS, int(back.max()) + 1)
    windows = _choose_windows(parts, int(back.max()), horizon, columns)
    earlier = ~windows.compares
    if min(earlier.sum(), windows.compares.sum()) < _FEWEST_WINDOWS:
        return None
    row_components = _row_components(parts, seed)
    stacked = _stack_rows(parts, windows, row_components, rows)  # (W, R J)
    components = _rotation(stacked[earlier], _COMPONENTS[-1] if with_components else 0)
    scores = stacked @ components  # (W, K)
    del stacked
    fit = _ColumnFits(parts, windows, back, scores, horizon)
    compared = np.unique(np.linspace(0, columns - 1, _COMPARED_COLUMNS).astype(int)).tolist()
    first = fit.select(earlier)
    pooled = fit.pooled_map(compared, first)
    best = fit.choose(compared, first, pooled, _tried(scores.shape[1]))
    used = fit.select(np.ones_like(earlier)) if refit else first
    own = np.empty((columns, len(back), horizon), dtype=np.float32)
    shared = np.empty((best.components, columns, horizon), dtype=np.float32)
    constant = np.empty((columns, horizon), dtype=np.float32)
    for column in range(columns):
        weights = fit.solve(column, used, pooled, best)
        own[column] = weights[: len(back)]
        constant[column] = weights[len(back)]
        shared[:, column] = weights[len(back) + 1 :]
    return ComponentRidge(
        back=back,
        row_components=row_components.astype(np.float32),
        components=components[:, : best.components].astype(np.float32),
        own=own,
        shared=shared,
        constant=constant,
        strengths={"own": best.own, "shared": best.shared},
    )


def own_places(rows: int, horizon: int, season: int, lags: int = LAGS) -> Int64[np.ndarray, " a"]:
    """Distances of the own values from the last row: the lags, and with a longer season those before the forecast."""
    back = set(range(max(2, min(lags, int(rows * _SHARE_OF_LAGS)))))
    # a season must have passed three times, so that two of three windows have one before them
    if season > 1 and 3 * season + horizon <= rows:
        # the last row a season before, and the steps after it
        back |= {season - step for step in range(min(horizon, season - 1) + 1)}
    return np.array(sorted(back), dtype=np.int64)


def _choose_windows(parts: Sequence[TrainingRows], before: int, horizon: int, columns: int) -> _Windows:
    """Windows at equal distances, those that fit and those that compare strengths; none has targets in both parts."""
    most = max(_FEWEST_WINDOWS, min(_MOST_WINDOWS, _MOST_VALUES // columns))
    series: list[np.ndarray] = []
    last: list[np.ndarray] = []
    for index, part in enumerate(parts):
        places = np.arange(before, len(part.values) - horizon)
        places = places[(places + horizon < part.border) | (places + 1 >= part.border)]
        series.append(np.full(len(places), index))
        last.append(places)
    owners = np.concatenate(series)
    ends = np.concatenate(last)
    kept = np.arange(len(ends))
    if len(kept) > most:
        kept = np.linspace(0, len(ends) - 1, most).astype(int)
    owners = owners[kept]
    ends = ends[kept]
    borders = np.array([part.border for part in parts])
    return _Windows(owners, ends, ends + 1 >= borders[owners])


def _row_components(parts: Sequence[TrainingRows], seed: int) -> Float64[np.ndarray, "c j"]:
    """Principal directions of the rows before the borders, found by a few power steps."""
    rows = np.concatenate([part.values[: part.border] for part in parts])  # (T, C)
    if len(rows) > _MOST_WINDOWS:
        rows = rows[np.linspace(0, len(rows) - 1, _MOST_WINDOWS).astype(int)]
    columns = rows.shape[1]
    count = min(_ROW_COMPONENTS, columns)
    if count == columns:
        return np.eye(columns)
    start = np.random.default_rng(seed).standard_normal((columns, min(columns, count + 10)))
    basis = np.linalg.qr(start)[0]
    for _ in range(_POWER_STEPS):
        basis = np.linalg.qr(rows.T @ (rows @ basis))[0]
    _, _, within = np.linalg.svd(rows @ basis, full_matrices=False)
    return basis @ within[:count].T


def _stack_rows(
    parts: Sequence[TrainingRows], windows: _Windows, row_components: np.ndarray, rows: int
) -> Float64[np.ndarray, "w rj"]:
    """Components of the last rows of each window, one row after another."""
    steps = np.arange(1 - rows, 1)
    stacked = np.empty((len(windows.last), rows * row_components.shape[1]))
    for index, part in enumerate(parts):
        chosen = windows.series == index
        scores = part.values @ row_components  # (T, J)
        stacked[chosen] = scores[windows.last[chosen, None] + steps].reshape(int(chosen.sum()), -1)
    return stacked


def _rotation(stacked: np.ndarray, count: int) -> Float64[np.ndarray, "rj k"]:
    """Principal directions of rows that have mean zero, nearly; the first has the largest variance."""
    values, vectors = np.linalg.eigh(stacked.T @ stacked)
    order = np.argsort(values)[::-1]
    rotation: np.ndarray = vectors[:, order[:count]]
    return rotation


def _tried(components: int) -> list[_Strengths]:
    """All that is compared; without components too."""
    counts = sorted({min(count, components) for count in _COMPONENTS} - {0})
    tried = [_Strengths(*values) for values in product(counts, _OWN_STRENGTHS, _COMPONENT_STRENGTHS)]
    return tried + [_Strengths(0, own, 1.0) for own in _OWN_STRENGTHS]


@dataclass(frozen=True, slots=True, eq=False)
class _Selected:
    """Some of the windows: which (W,), and the components of these with the products of them."""

    windows: Bool[np.ndarray, " w"]
    scores: Float64[np.ndarray, "v k"]
    products: Float64[np.ndarray, "k k"]


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Sums over the windows of a column: products of features (D, D), with targets (D, P), and number of windows.

    Features are the own values, a constant, and the components.
    """

    gram: Float64[np.ndarray, "d d"]
    with_targets: Float64[np.ndarray, "d p"]
    windows: int


@dataclass(frozen=True, slots=True, eq=False)
class _ColumnFits:
    """Ridge regressions of the columns, which share windows and components."""

    parts: Sequence[TrainingRows]
    windows: _Windows
    back: Int64[np.ndarray, " a"]
    scores: Float64[np.ndarray, "w k"]
    horizon: int

    def select(self, windows: Bool[np.ndarray, " w"]) -> _Selected:
        """Some of the windows."""
        scores = self.scores[windows]
        return _Selected(windows, scores, scores.T @ scores)

    def column(self, column: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Own values and a constant (W, A + 1), targets (W, P), and which windows count (W,): it may begin late."""
        count = len(self.windows.last)
        own = np.ones((count, len(self.back) + 1))
        targets = np.empty((count, self.horizon))
        begun = np.empty(count, dtype=bool)
        ahead = np.arange(1, self.horizon + 1)
        for index, part in enumerate(self.parts):
            chosen = self.windows.series == index
            last = self.windows.last[chosen, None]
            values = part.values[:, column]
            own[chosen, :-1] = values[last - self.back]
            targets[chosen] = values[last + ahead]
            # half of the lags are known
            begun[chosen] = last[:, 0] >= part.begins[column] + len(self.back) // 2
        return own, targets, begun

    def sums(self, column: int, selected: _Selected) -> _Sums:
        """The sums of a column over the selected windows in which it has begun."""
        own, targets, begun = self.column(column)
        kept = begun & selected.windows
        own = own[kept]
        targets = targets[kept]
        scores = selected.scores
        products = selected.products
        if len(own) < len(scores):
            scores = scores[begun[selected.windows]]
            products = scores.T @ scores
        mixed = own.T @ scores
        gram = np.block([[own.T @ own, mixed], [mixed.T, products]])
        return _Sums(gram, np.concatenate([own.T @ targets, scores.T @ targets]), len(own))

    def pooled_map(self, columns: Sequence[int], selected: _Selected) -> Float64[np.ndarray, "d p"]:
        """The map from own values and a constant that fits these columns together; zero for the components."""
        size = len(self.back) + 1
        gram = np.zeros((size, size))
        with_targets = np.zeros((size, self.horizon))
        windows = 0
        for column in columns:
            own, targets, begun = self.column(column)
            kept = begun & selected.windows
            gram += own[kept].T @ own[kept]
            with_targets += own[kept].T @ targets[kept]
            windows += int(kept.sum())
        ridge = np.full(size, _POOLED_STRENGTH * windows + _LEAST_STRENGTH)
        ridge[-1] = _LEAST_STRENGTH
        pooled = np.zeros((size + self.scores.shape[1], self.horizon))
        pooled[:size] = np.linalg.solve(gram + np.diag(ridge), with_targets)
        return pooled

    def choose(
        self, columns: Sequence[int], selected: _Selected, pooled: np.ndarray, tried: Sequence[_Strengths]
    ) -> _Strengths:
        """What has the least error of these columns in the windows that compare strengths."""
        errors = np.zeros(len(tried))
        size = len(self.back) + 1
        for column in columns:
            own, targets, begun = self.column(column)
            compares = begun & self.windows.compares
            own = own[compares]
            targets = targets[compares]
            scores = self.scores[compares]
            sums = self.sums(column, selected)
            for place, strengths in enumerate(tried):
                weights = self._map(sums, pooled, strengths)
                forecast = own @ weights[:size] + scores[:, : strengths.components] @ weights[size:]
                errors[place] += np.square(forecast - targets).sum()
        return tried[int(errors.argmin())]

    def solve(self, column: int, selected: _Selected, pooled: np.ndarray, strengths: _Strengths) -> np.ndarray:
        """Map of one column from own values, a constant and the components that are used."""
        return self._map(self.sums(column, selected), pooled, strengths)

    def _map(self, sums: _Sums, pooled: np.ndarray, strengths: _Strengths) -> np.ndarray:
        """The map with the least squared error and ridge; the pooled one if there are no windows."""
        size = len(self.back) + 1
        kept = size + strengths.components
        gram = sums.gram[:kept, :kept]
        missed = sums.with_targets[:kept] - gram[:, :size] @ pooled[:size]
        ridge = np.full(kept, strengths.shared * sums.windows + _LEAST_STRENGTH)
        ridge[:size] = strengths.own * sums.windows + _LEAST_STRENGTH
        ridge[size - 1] = _LEAST_STRENGTH
        change: np.ndarray = pooled[:kept] + np.linalg.solve(gram + np.diag(ridge), missed)
        return change
