"""Forecasts from rolling origins, compared with the actual values.

Alphabet: N windows, P horizon, C columns, Q levels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from toa._checks import Argument, ArgumentError, Phrase, part_of
from toa.data.frames import forecast_columns, id_column, to_native
from toa.data.panel import Panel
from toa.estimators.baselines import BASELINES
from toa.estimators.choice import Ensemble
from toa.estimators.fitted import FittedForecaster
from toa.estimators.lag_methods import history_rows
from toa.estimators.methods import from_rows
from toa.estimators.origins import series_scale
from toa.estimators.units import Prediction, join_batches
from toa.training.metrics import Scores, pinball_error, score_forecasts

# scores of methods as they are shown
TITLES = {"mae": "MAE", "rmse": "RMSE", "mase": "MASE", "wape": "WAPE", "smape": "sMAPE"}
# windows times columns on which the baselines are compared with the model
_COMPARED = 2_000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Backtest:
    """Forecasts of N windows of P steps and C columns, in the units of the data.

    Attributes:
        metrics: Over all windows, steps and columns: "mse" and "mae" of standardised values, as in benchmarks, with an
            interval "coverage", the share of values inside it, and with quantiles "pinball", their standardised loss.
        by_column: Per column the mean absolute error in its units, and the coverage.
        series: Index of the series of each window (N,).
        origins: First forecast row of each window (N,).
        actual: What followed; NaN where the data have no value. Only the others are scored.
        comparison: Scores in the units of the data of the "model" and of the baselines, at the same origins; of many
            origins a part.
        compared: Number of windows of the comparison.
    """

    metrics: dict[str, float]
    by_column: dict[str, dict[str, float]]
    series: Int64[np.ndarray, " n"]
    origins: Int64[np.ndarray, " n"]
    forecast: Float64[np.ndarray, "n p c"]
    actual: Float64[np.ndarray, "n p c"]
    lower: Float64[np.ndarray, "n p c"] | None = None
    upper: Float64[np.ndarray, "n p c"] | None = None
    quantiles: Float64[np.ndarray, "n p q c"] | None = None
    levels: tuple[float, ...]
    panel: Panel
    comparison: dict[str, Scores]
    compared: int

    def __repr__(self) -> str:
        count, steps, columns = self.forecast.shape
        shown = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        scored = f", {self.scored} of {self.actual.size} values scored" if self.scored < self.actual.size else ""
        return f"Backtest({count} windows of {steps} steps and {columns} columns{scored}: {shown})"

    @property
    def scored(self) -> int:
        """Number of actual values that errors are measured on: those that the data have."""
        return int(np.isfinite(self.actual).sum())

    @property
    def note(self) -> str:
        """How many values were left out of the errors, as a sentence; empty if none was."""
        if self.scored == self.actual.size:
            return ""
        return f"{self.scored} of {self.actual.size} forecast values are scored: the data have no value at the others."

    def table(self) -> pd.DataFrame:
        """A row per method, the model first, and a column per score."""
        return pd.DataFrame({name: scores.overall for name, scores in self.comparison.items()}).T

    def rows(self, first: str) -> list[tuple[str, ...]]:
        """The table as text; `first` is the title of the methods. Scores that are not defined are "-".

        MASE leaves out windows whose seasonal naive forecast has no error within the history.
        """
        table = self.table()
        names = [name for name in TITLES if name in table]
        head = (first, *(TITLES[name] for name in names))
        lines = [(str(method), *(f"{scores[name]:.4g}" for name in names)) for method, scores in table.iterrows()]
        return [head, *(tuple("-" if cell == "nan" else cell for cell in line) for line in lines)]

    def verdicts(self) -> list[str]:
        """In words, per baseline: where the model has the larger MAE, or that all are equal."""
        model = self.comparison["model"]
        lines = []
        for name, other in self.comparison.items():
            if name == "model":
                continue
            gaps = {
                column: scores["mae"] - other.by_column[column]["mae"] for column, scores in model.by_column.items()
            }
            # a column without an actual value has no error
            gaps = {column: gap for column, gap in gaps.items() if np.isfinite(gap)}
            lost = [column for column, gap in gaps.items() if gap > 0]
            word = "beats" if any(gaps.values()) else "equals"
            if lost:
                word = "loses to"
            is_everywhere = not lost or 1 < len(lost) == len(gaps)
            where = "every column" if is_everywhere else ", ".join(lost)
            lines.append(f"{word} {name} on {where}")
        return lines

    def frame(self) -> Any:
        """All forecasts, one row per origin and step: a frame like the data; a pandas frame if the data were arrays."""
        count, steps, _ = self.forecast.shape
        rows = (self.origins[:, None] + np.arange(steps)).ravel()
        owners = np.repeat(self.series, steps)
        columns = id_column(self.panel, owners)
        columns["origin"] = self._stamps(owners, np.repeat(self.origins, steps))
        columns[self.panel.time_column or "row"] = self._stamps(owners, rows)
        columns["step"] = np.tile(np.arange(1, steps + 1), count)
        for index, name in enumerate(self.by_column):
            columns[f"{name}_actual"] = self.actual[:, :, index].ravel()
        parts = ("forecast", "quantiles", "lower", "upper")
        forecasts = {name: getattr(self, name) for name in parts if getattr(self, name) is not None}
        columns |= forecast_columns(forecasts, tuple(self.by_column), self.levels)
        return pd.DataFrame(columns) if self.panel.backend is None else to_native(self.panel, columns)

    def _stamps(self, owners: np.ndarray, rows: np.ndarray) -> Any:
        """Times of rows of series, or the rows without times."""
        if self.panel.times is None:
            return rows
        begins = np.cumsum([0, *self.panel.lengths])[:-1]
        first, *others = self.panel.times
        return first.append(others)[begins[owners] + rows]


def backtest_windows(panel: Panel, firsts: Sequence[int], horizon: int, stride: int) -> list[tuple[int, int]]:
    """Windows of each series from its first tested row on: the series, and the first row to forecast."""
    return [
        (index, origin)
        for index, (first, rows) in enumerate(zip(firsts, panel.lengths, strict=True))
        for origin in range(first, rows - horizon + 1, stride)
    ]


def compare_with_actual(
    fitted: FittedForecaster, prediction: Prediction, panel: Panel, places: Sequence[tuple[int, int]]
) -> Backtest:
    """Compare forecasts with actual values, and with those of the methods of the forecaster."""
    columns = fitted.columns
    season = fitted.season
    levels = tuple(map(float, fitted.quantiles))
    values = panel.observed(columns)
    owners = torch.tensor([index for index, _ in places])
    actual = torch.from_numpy(np.stack([values[index][first : first + fitted.horizon] for index, first in places]))
    with_values = np.flatnonzero(actual.isfinite().any(2).any(1).numpy())
    if not len(with_values):
        raise ArgumentError(
            "data", "have values in the tested rows", f"none in {len(places)} windows", "test more rows"
        )
    # standardises errors (N, 1, C)
    std = fitted.inputs.deviation[fitted.inputs.owners(panel)[owners]].unsqueeze(1)
    metrics, by_column = _errors(prediction, actual, std, columns, levels)
    # the model and the baselines at the same origins
    chosen = with_values[:: -(-len(with_values) * len(columns) // _COMPARED)]
    compared = [places[index] for index in chosen.tolist()]
    histories = panel.histories(columns, compared, history_rows(season, fitted.horizon))
    truth = actual[chosen].numpy()
    scale = series_scale(histories, season).reshape(len(chosen), len(columns))
    arrays: Any = {name: part.numpy() for name, part in prediction.items()}
    parts = {name: part[chosen] for name, part in arrays.items()}
    scores = {"model": score_forecasts(actual=truth, columns=columns, scale=scale, levels=levels, **parts)}
    ensemble = Ensemble(season=season, horizon=fitted.horizon, weights={}, errors={})
    if fitted.choice is not None:
        ensemble = fitted.choice.ensemble
    rows = ensemble.members(histories, [*BASELINES, *ensemble.fitted])
    forecasts = {name: from_rows(part, len(columns)) for name, part in rows.items()}
    for name, part in fitted.forecast_panel(panel, compared).items():
        forecasts[name] = np.ascontiguousarray(from_rows(part, len(columns)))
    for name, forecast in forecasts.items():
        scores[name] = score_forecasts(forecast, truth, columns=columns, scale=scale)
    return Backtest(
        metrics=metrics,
        by_column=by_column,
        series=owners.numpy(),
        origins=np.array([first for _, first in places]),
        actual=actual.numpy(),
        levels=levels,
        panel=panel,
        comparison=scores,
        compared=len(chosen),
        **arrays,
    )


def _errors(
    prediction: Prediction, actual: Tensor, std: Tensor, columns: Sequence[str], levels: Sequence[float]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Errors over all columns, standardised, and per column."""
    missed = prediction["forecast"] - actual  # (N, P, C), NaN without an actual value
    error = missed / std
    metrics = {"mse": float(error.square().nanmean()), "mae": float(error.abs().nanmean())}
    by_column = {name: {"mae": float(missed[:, :, index].abs().nanmean())} for index, name in enumerate(columns)}
    if "lower" in prediction:
        within = ((actual >= prediction["lower"]) & (actual <= prediction["upper"])).double()
        within = within.where(actual.isfinite(), torch.nan)
        metrics["coverage"] = float(within.nanmean())
        for index, name in enumerate(columns):
            by_column[name]["coverage"] = float(within[:, :, index].nanmean())
    if "quantiles" in prediction:
        loss = pinball_error(prediction["quantiles"], actual, torch.tensor(levels, dtype=torch.float64))
        metrics["pinball"] = float((loss / std.unsqueeze(1)).nanmean())
    return metrics, by_column


def forecast_with_refits(
    fit_again: Callable[[Panel], FittedForecaster],
    panel: Panel,
    places: Sequence[tuple[int, int]],
    firsts: Sequence[int],
    every: int,
) -> Prediction:
    """Forecasts of windows by forecasters that are fitted again.

    Each is fitted to the rows before the first tested row of each series, `firsts`, and a multiple of `every`.
    """
    blocks = np.array([(origin - firsts[index]) // every for index, origin in places])
    order = []
    parts = []
    for block in np.unique(blocks).tolist():
        last = [max(0, rows - first - every * block) for first, rows in zip(firsts, panel.lengths, strict=True)]
        fitted = fit_again(panel.before(last))
        chosen = np.flatnonzero(blocks == block)
        order.append(chosen)
        parts.append(fitted.forecast(panel, [places[index] for index in chosen]))
    # without enough rows for an interval, no forecaster has one
    back = np.concatenate(order).argsort()
    return {name: part[back] for name, part in join_batches(parts).items()}


def first_tested(panel: Panel, index: int, test_size: float | int | None, lookback: int, horizon: int) -> int:
    """First tested row of the series with this index; `test_size` as in `Forecaster.backtest`."""
    rows = panel.lengths[index]
    is_count = hasattr(test_size, "__index__")
    if test_size is None:
        first = lookback
    elif not hasattr(test_size, "__float__") or not 0.0 < test_size < (rows if is_count else 1.0):
        # users give dates too
        size: object = test_size
        remedies = ["to test from a date on, count its rows"] if isinstance(size, str) else []
        raise ArgumentError(
            "test_size",
            Phrase(f"be a share in (0, 1) or a number of rows below the {rows} of ", panel.label(index)),
            repr(test_size),
            *remedies,
        )
    else:
        first = rows - int(test_size if is_count else rows * test_size)
    # all columns must have begun
    lookback += 0 if panel.begins is None else int(panel.begins[index].max())
    first = max(lookback, first)
    if first + horizon > rows:
        raise ArgumentError(
            panel.label(index),
            f"have at least {lookback} rows before the tested part and at least {horizon} rows, the horizon, in it",
            f"{rows} rows, {max(0, rows - first)} of them tested",
            "test more rows, or shorten the horizon",
        )
    return first


def without_last(panel: Panel, frame: pd.DataFrame, test_size: float, horizon: int) -> pd.DataFrame:
    """The frame without the rows that `backtest` of this share tests; rows that fill gaps count there.

    The panel is the frame as `fit` reads it. Texts that only the tested rows have raise ValueError.
    """
    if not 0.0 < test_size < 1.0:
        raise ArgumentError("test_size", "lie in (0, 1)", test_size)
    kept = [rows[: len(rows) - int(len(rows) * test_size)] for rows in panel.rows]
    for index, begins in enumerate(panel.begins or ()):
        if begins.max() >= len(kept[index]):
            name = panel.columns[int(begins.argmax())]
            row = int(begins.max()) + 1
            raise ArgumentError(
                part_of(panel.label(index), f"column {name!r}"),
                "begin before the tested rows",
                Phrase(f"its first value in its row {row} and ", Argument("test_size", test_size)),
                "test fewer rows",
                Phrase("choose the other columns with ", Argument("values")),
            )
    for index in range(len(panel)):
        # `backtest` would raise after training; with the network alone it needs more rows before
        first_tested(panel, index, test_size, 1, horizon)
    places = np.sort(np.concatenate(kept))
    early = frame.iloc[places[places >= 0]]
    for name, texts in panel.categories.items():
        late = sorted(set(texts) - set(map(str, early[name])))
        if late:
            row = int((frame[name].astype(str) == late[0]).to_numpy().argmax()) + 1
            share = Argument("test_size", test_size)
            raise ArgumentError(
                part_of("data", f"column {name!r}"),
                "have each of its texts before the tested rows",
                Phrase(f"{late[0]!r} only in the rows of ", share, f", first at data row {row}"),
                "test fewer rows, or use an earlier text",
            )
    return early
