"""Forecasts from rolling origins, compared with the actual values.

Alphabet: N windows, P horizon, C columns, Q levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64
from sklearn.base import clone
from torch import Tensor

from toa._checks import check_count
from toa.data.frames import forecast_columns, id_column, to_native
from toa.data.panel import Panel
from toa.estimators.baselines import BASELINES
from toa.estimators.ensemble import Ensemble, history_rows, series_scale
from toa.estimators.intervals import Prediction, join_batches
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
        comparison: Scores in the units of the data of the "model" and of the baselines, at the same origins; of many
            origins a part.
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
        return f"Backtest({count} windows of {steps} steps and {columns} columns: {shown})"

    def table(self) -> pd.DataFrame:
        """A row per method, the model first, and a column per score."""
        return pd.DataFrame({name: found.overall for name, found in self.comparison.items()}).T

    def rows(self, first: str) -> list[tuple[str, ...]]:
        """The table as text; `first` is the title of the methods. Scores that are not defined are "-".

        MASE leaves out windows whose seasonal naive forecast has no error within the history.
        """
        table = self.table()
        names = [name for name in TITLES if name in table]
        head = (first, *(TITLES[name] for name in names))
        lines = [(str(one), *(f"{scores[name]:.4g}" for name in names)) for one, scores in table.iterrows()]
        return [head, *(tuple("-" if cell == "nan" else cell for cell in line) for line in lines)]

    def verdicts(self) -> list[str]:
        """In words, per baseline: where the model has the larger MAE, or that all are equal."""
        own, lines = self.comparison["model"], []
        for name, other in self.comparison.items():
            if name == "model":
                continue
            gaps = {column: one["mae"] - other.by_column[column]["mae"] for column, one in own.by_column.items()}
            lost = [column for column, gap in gaps.items() if gap > 0]
            word = "loses to" if lost else "beats" if any(gaps.values()) else "equals"
            everywhere = not lost or 1 < len(lost) == len(gaps)
            lines.append(f"{word} {name} on {'every column' if everywhere else ', '.join(lost)}")
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
        found = {name: getattr(self, name) for name in parts if getattr(self, name) is not None}
        columns |= forecast_columns(found, tuple(self.by_column), self.levels)
        return pd.DataFrame(columns) if self.panel.backend is None else to_native(self.panel, columns)

    def _stamps(self, owners: np.ndarray, rows: np.ndarray) -> Any:
        if self.panel.times is None:
            return rows
        begins = np.cumsum([0, *self.panel.lengths])[:-1]
        first, *others = self.panel.times
        return first.append(others)[begins[owners] + rows]


def measure(forecaster: Any, found: Prediction, panel: Panel, owners: Tensor, origins: Tensor) -> Backtest:
    """Compare forecasts of a forecaster with actual values, and with those of its methods."""
    columns, season, levels = forecaster.columns_, forecaster.season_, tuple(map(float, forecaster.quantiles))
    windows = list(zip(owners.tolist(), origins.tolist(), strict=True))
    values = panel.take(columns)
    actual = torch.from_numpy(np.stack([values[one][first : first + forecaster.horizon] for one, first in windows]))
    # standardises errors (N, 1, C)
    std = forecaster.scaler_.get("deviation", forecaster.scaler_["std"])[forecaster._owners(panel)[owners]].unsqueeze(1)
    missed = found["forecast"] - actual  # (N, P, C)
    error = missed / std
    metrics = {"mse": float(error.square().mean()), "mae": float(error.abs().mean())}
    by_column = {name: {"mae": float(missed[:, :, index].abs().mean())} for index, name in enumerate(columns)}
    if "lower" in found:
        within = (actual >= found["lower"]) & (actual <= found["upper"])
        metrics["coverage"] = float(within.double().mean())
        for index, name in enumerate(columns):
            by_column[name]["coverage"] = float(within[:, :, index].double().mean())
    if "quantiles" in found:
        loss = pinball_error(found["quantiles"], actual, torch.tensor(levels, dtype=torch.float64))
        metrics["pinball"] = float((loss / std.unsqueeze(1)).mean())
    # the model and the baselines at the same origins
    chosen = torch.arange(0, len(owners), -(-len(owners) * len(columns) // _COMPARED))
    places = [windows[one] for one in chosen]
    histories = panel.histories(columns, places, history_rows(season, forecaster.horizon))
    truth, shape = actual[chosen].numpy(), (len(chosen), len(columns))
    scale = series_scale(histories, season).reshape(shape)
    arrays: Any = {name: part.numpy() for name, part in found.items()}
    # a tensor with one place would be a number to numpy
    parts = {name: part[chosen.numpy()] for name, part in arrays.items()}
    scores = {"model": score_forecasts(actual=truth, columns=columns, scale=scale, levels=levels, **parts)}
    ensemble = Ensemble(season=season, horizon=forecaster.horizon, weights={}, errors={})
    if forecaster.choice_ is not None:
        ensemble = forecaster.choice_.ensemble
    rows = ensemble.members(histories, [*BASELINES, *ensemble.fitted])
    forecasts = {name: part.reshape(*shape, -1).transpose(0, 2, 1) for name, part in rows.items()}
    for name, forecast in (forecasts | forecaster._regressions(panel, places)).items():
        scores[name] = score_forecasts(forecast, truth, columns=columns, scale=scale)
    return Backtest(
        metrics=metrics,
        by_column=by_column,
        series=owners.numpy(),
        origins=origins.numpy(),
        actual=actual.numpy(),
        levels=levels,
        panel=panel,
        comparison=scores,
        compared=len(chosen),
        **arrays,
    )


def forecast_with_refits(
    forecaster: Any, panel: Panel, owners: Tensor, origins: Tensor, firsts: Sequence[int], every: int | None
) -> Prediction:
    """Forecasts of windows, of the series `owners` from the rows `origins` on, by copies that are fitted again.

    Each copy is fitted to the rows before the first tested row of each series, `firsts`, and a multiple of `every`;
    None does not fit again.
    """
    if every is None:
        found: Prediction = forecaster._forecast_at(panel, owners, origins)
        return found
    check_count("refit", every, 1)
    blocks = (origins - torch.tensor(firsts)[owners]).div(every, rounding_mode="floor")
    order, parts = [], []
    for block in blocks.unique().tolist():
        last = [max(0, rows - first - every * block) for first, rows in zip(firsts, panel.lengths, strict=True)]
        fitted = clone(forecaster).fit(panel.before(last))
        chosen = (blocks == block).nonzero()[:, 0]
        order.append(chosen)
        parts.append(fitted._forecast_at(panel, owners[chosen], origins[chosen]))
    # without enough rows for an interval, no copy has one
    back = torch.cat(order).argsort()
    return {name: part[back] for name, part in join_batches(parts).items()}


def first_tested(panel: Panel, index: int, test_size: float | int | None, lookback: int, horizon: int) -> int:
    """First tested row of the series with this index; `test_size` as in `Forecaster.backtest`."""
    rows, whole = panel.lengths[index], hasattr(test_size, "__index__")
    if test_size is None:
        first = lookback
    elif not hasattr(test_size, "__float__") or not 0.0 < test_size < (rows if whole else 1.0):
        raise ValueError(
            f"test_size must be a share in (0, 1) or a number of rows below the {rows} of {panel.label(index)}, got "
            f"{test_size!r}{'; to test from a date on, count its rows' * isinstance(test_size, str)}."
        )
    else:
        first = rows - int(test_size if whole else rows * test_size)
    # all columns must have begun
    lookback += 0 if panel.begins is None else int(panel.begins[index].max())
    first = max(lookback, first)
    if first + horizon > rows:
        raise ValueError(
            f"{panel.label(index)} must have at least {lookback} rows before the tested part and at least {horizon} "
            f"rows, the horizon, in it, got {rows} rows, {max(0, rows - first)} of them tested; test more rows, or "
            "shorten the horizon."
        )
    return first


def without_last(forecaster: Any, frame: pd.DataFrame, test_size: float) -> pd.DataFrame:
    """The frame without the rows that `backtest` of this share tests; rows that fill gaps count there.

    The forecaster reads the table; it need not be fitted. Texts that only the tested rows have raise ValueError.
    """
    if not 0.0 < test_size < 1.0:
        raise ValueError(f"the share of rows to test on must lie in (0, 1), got {test_size}.")
    panel = forecaster._read(frame, forecaster.freq)
    kept = [rows[: len(rows) - int(len(rows) * test_size)] for rows in panel.rows]
    for index, begins in enumerate(panel.begins or ()):
        if begins.max() >= len(kept[index]):
            name, row = panel.columns[int(begins.argmax())], int(begins.max()) + 1
            raise ValueError(
                f"column {name!r} of {panel.label(index)} must begin before the tested rows, got its first value in "
                f"its row {row} and test={test_size}; test fewer rows, or choose the other columns with values."
            )
    for index in range(len(panel)):
        # `backtest` would raise after training; with the network alone it needs more rows before
        first_tested(panel, index, test_size, 1, forecaster.horizon)
    places = np.sort(np.concatenate(kept))
    early = frame.iloc[places[places >= 0]]
    for name, texts in panel.categories.items():
        if late := sorted(set(texts) - set(map(str, early[name]))):
            row = int((frame[name].astype(str) == late[0]).to_numpy().argmax()) + 1
            raise ValueError(
                f"column {name!r} of data must have each of its texts before the tested rows, got {late[0]!r} only in "
                f"the rows of test={test_size}, first at data row {row}; test fewer rows, or use an earlier text."
            )
    return early
