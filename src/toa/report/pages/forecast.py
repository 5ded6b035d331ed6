"""The page of a forecaster; see `toa.report.pages.parts`.

Alphabet: S series, T rows, C columns, P horizon.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toa.data.panel import Panel
from toa.estimators import Forecaster
from toa.estimators.all_columns import ALL_COLUMNS, FittedAllColumns
from toa.estimators.backtest import Backtest
from toa.estimators.baselines import BASELINES
from toa.estimators.column_pairs import strongest_pairs
from toa.estimators.fitted import FittedForecaster
from toa.estimators.importance import blocks_of, name_lags
from toa.estimators.lag_methods import history_rows
from toa.report.pages import parts as draw
from toa.report.pages.parts import PageText, Part

# blocks of lags that are replaced
_BLOCKS = 16
# horizons of past rows that are in view at first
_PAST = 5
# fewest rows that are in view at first
_LEAST_PAST = 60
# most series times columns of a forecast
_PANELS = 400
# most columns that the lead names
_NAMED = 8
# a smaller change of a forecast is rounding
_NO_CHANGE = 1e-9
# fields of a panel with an entry per series
_PER_SERIES = ("values", "ids", "times", "rows", "begins", "filled")


def forecast_page(
    forecaster: Forecaster,
    path: str | Path,
    data: Any,
    *,
    future: Any = None,
    horizon: int | None = None,
    tested: Backtest | None = None,
    title: str = "Forecast",
    command: str = "",
    left_out: Sequence[str] = (),
) -> Path:
    """Write the page of a forecaster, see `toa.Forecaster.page`."""
    fitted = forecaster.fitted_
    steps = fitted.horizon if horizon is None else horizon
    whole = forecaster.read_fitted(data)
    most = max(1, min(draw.SERIES, _PANELS // len(fitted.columns)))
    # covariates of other ids would not match
    panel = replace(whole if forecaster.covariates else _first(whole, most), backend=None)
    forecasts = _by_series(panel, forecaster.predict(panel, future=future, horizon=steps))
    baselines = {name: _by_series(panel, forecaster.predict_baseline(name, panel, horizon=steps)) for name in BASELINES}
    past = panel.tail(max(_LEAST_PAST, draw.VALUES // (min(len(panel), most) * len(panel.columns))))
    notes = draw.describe_data(
        whole,
        data,
        missing=forecaster.missing,
        used=(forecaster.id, forecaster.time),
        left_out=left_out,
        shown=most,
    )
    if max(past.lengths) < max(panel.lengths):
        notes.append(f"The chart shows the last {max(past.lengths)} rows of each series.")
    unused = fitted.inputs.covariates.describe_unused(fitted.unused)
    sections = {
        "Forecast": [_forecast_chart(fitted, _first(past, most), forecasts, baselines, steps)],
        "Errors": _errors(fitted) if tested is None else _backtest(tested),
        "What the forecast depends on": [
            *draw.bars("Weights of the methods.", list(forecaster.shown_weights().items())),
            *([draw.text(unused)] if unused else ()),
            *([] if forecaster.covariates else _lags(fitted, panel, forecaster.predict)),
            *_pair_parts(fitted),
            *draw.network_parts(forecaster, panel),
        ],
    }
    facts = {
        "look-back": fitted.inputs.lookback,
        "season": fitted.season,
        "validation": forecaster.validation_,
    }
    text = PageText(title=title, lead=_lead(fitted, whole, steps), notes=notes, facts=facts, command=command)
    return draw.write_page(forecaster, path, text, sections)


def _lead(fitted: FittedForecaster, whole: Panel, steps: int) -> list[str]:
    """What is forecast, and its errors at the rolling origins."""
    freq = "" if whole.freq is None else f", every {whole.freq}"
    names = ", ".join(fitted.columns[:_NAMED])
    if len(fitted.columns) > _NAMED:
        names += f" and {len(fitted.columns) - _NAMED} more"
    unit = "steps" if steps > 1 else "step"
    rows = sum(whole.lengths)
    lead = [f"{steps} {unit} of {names} after {rows} rows{draw.describe_series(whole)}{freq}."]
    if fitted.choice is not None:
        ensemble = fitted.choice.ensemble
        shown = {"forecast": "ensemble", "seasonal naive": "seasonal naive"}
        errors = [f"{name} {ensemble.errors[key]:.3f}" for name, key in shown.items() if key in ensemble.errors]
        if errors:
            lead.append(f"{ensemble.measure} at rolling origins: {', '.join(errors)}.")
    return lead


def _first(panel: Panel, count: int) -> Panel:
    parts: dict[str, Any] = {name: getattr(panel, name) for name in _PER_SERIES}
    parts = {name: part if part is None else part[:count] for name, part in parts.items()}
    return replace(panel, **parts)


def _by_series(panel: Panel, results: Any) -> list[Mapping[str, np.ndarray]]:
    """Results of arrays, one mapping per series."""
    parts = [results] if panel.ids == (None,) else results
    return [part if isinstance(part, Mapping) else {"forecast": part} for part in parts]


def _forecast_chart(
    fitted: FittedForecaster,
    past: Panel,
    forecasts: Sequence[Mapping[str, np.ndarray]],
    baselines: Mapping[str, Sequence[Mapping[str, np.ndarray]]],
    steps: int,
) -> Part:
    series = []
    band = "interval" if fitted.interval is None else f"{fitted.interval:.0%} interval"
    for index, after in enumerate(past.next_times(steps)):
        rows = past.lengths[index]
        times = None if past.times is None or after is None else past.times[index].append(after)
        values = past.take(fitted.columns)[index]
        parts = forecasts[index]
        if past.begins is not None:
            begins = past.begins[index][[past.columns.index(column) for column in fitted.columns]]
            values = np.where(np.arange(rows)[:, None] < begins, np.nan, values)
        panels = []
        for place, column in enumerate(fitted.columns):
            lines = [draw.line("past", "past", 0, values[:, place])]
            lines += [
                draw.line(name, "baseline", rows, ahead[index]["forecast"][:, place])
                for name, ahead in baselines.items()
            ]
            lines += [
                draw.line(f"quantile {level:g}", "quantile", rows, parts["quantiles"][:, at, place])
                for at, level in enumerate(fitted.quantiles)
                if "quantiles" in parts
            ]
            lines.append(draw.line("forecast", "forecast", rows, parts["forecast"][:, place]))
            ends = {name: draw.to_numbers(parts[name][:, place]) for name in ("lower", "upper") if name in parts}
            panels.append(
                {"name": column, "lines": lines, "band": {"name": band, "start": rows, **ends} if ends else None}
            )
        shown = [max(0, rows - max(_LEAST_PAST, _PAST * steps)), rows + steps - 1]
        axis = draw.axis(times, rows + steps)
        series.append({"name": draw.series_name(past.ids[index]), "x": axis, "view": shown, "panels": panels})
    hidden = [name for name in baselines if name != "seasonal naive"]
    return draw.chart(series, past, fitted.columns[draw.COLUMNS_ON :], hidden)


def _errors(fitted: FittedForecaster) -> list[Part]:
    """Errors of all methods at the rolling origins of fit."""
    if fitted.choice is None or not fitted.choice.ensemble.errors:
        return []
    ensemble = fitted.choice.ensemble
    order = sorted(ensemble.errors, key=ensemble.errors.__getitem__)
    errors = {"forecast" if name == "ensemble" else name: ensemble.errors[name] for name in order}
    text = (
        "Mean over rolling origins at the end of the rows of fit. They also chose the weights; there, the last origin "
        "counted twice. Lower is better."
    )
    return [draw.text(text), draw.methods_table(fitted.weights, {ensemble.measure: errors})]


def _backtest(tested: Backtest) -> list[Part]:
    coverage = tested.metrics.get("coverage")
    lines = tested.verdicts() + ([] if coverage is None else [f"{coverage:.1%} of values lie within the interval"])
    lines += [tested.note] if tested.note else []
    parts = [
        draw.text(f"Backtest at {tested.compared} origins, in the units of the data. Lower is better."),
        draw.table(tested.rows("method"), "Backtest of the model and the baselines"),
        {"kind": "list", "items": lines},
    ]
    if len(tested.by_column) > 1:
        methods = tested.comparison
        rows = [
            (name, *(f"{scores.by_column[name]['mae']:.4g}" for scores in methods.values()))
            for name in tested.by_column
        ]
        parts.append(draw.table([("column", *methods), *rows], "MAE per column"))
    return parts


def _lags(fitted: FittedForecaster, panel: Panel, predict: Callable[[Panel], Any]) -> Iterator[Part]:
    """How much the forecast of the first series changes if a part of its past is replaced."""
    panel = panel.tail(max(fitted.inputs.lookback, history_rows(fitted.season, fitted.horizon)))
    values = panel.values[0]
    rows = panel.lengths[0]
    read = min(rows, max(fitted.inputs.lookback, 2 * fitted.season))
    if read < 2:
        return
    blocks = blocks_of(read, _BLOCKS)
    ends = [(rows - high, rows - low) for low, high in blocks]
    # covariates stay: their importance has a table of its own
    places = [panel.columns.index(column) for column in fitted.columns]
    forecast_values = values[:, places]
    copies = []
    for changed in draw.occluded(forecast_values, ends, forecast_values.mean(0)[:_BLOCKS]):
        copy = values.copy()
        copy[:, places] = changed
        copies.append(copy)
    times = None if panel.times is None else panel.times[:1] * len(copies)
    begins = None if panel.begins is None else panel.begins[:1] * len(copies)
    ids = panel.ids[:1] * len(copies)
    many = replace(panel, values=tuple(copies), ids=ids, times=times, rows=(), begins=begins, filled=None)
    forecasts = np.stack([part["forecast"] for part in _by_series(many, predict(many))])  # (copies, P, C)
    deviation = forecast_values.std(0)
    spread = np.where(deviation > 0, deviation, 1.0)
    change = (np.abs(forecasts[1:] - forecasts[0]) / spread).mean(1)  # (copies - 1, C)
    names = [name_lags(*block) for block in blocks]
    where = "" if panel.ids == (None,) else f" of {panel.ids[0]}"
    step = "" if panel.freq is None else f" One lag is a step of {panel.freq}."
    yield from draw.bars(
        f"Mean change of the forecast{where}, in standard deviations, if these lags are replaced by a straight line. "
        f"Lag 1 is the last row.{step}",
        zip(names, change[: len(blocks)].mean(1).tolist(), strict=True),
    )
    if len(fitted.columns) > 1:
        others = change[len(blocks) :].copy()
        np.fill_diagonal(others, 0.0)
        if others.max() < _NO_CHANGE:
            yield draw.text("Each column is forecast from its own past: no column changes the forecast of another.")
            return
        means = others.sum(1) / (len(fitted.columns) - 1)
        about = "Mean change of the forecasts of the other columns if a column is replaced by its mean."
        yield from draw.bars(about, zip(fitted.columns, means.tolist(), strict=False))


def _pair_parts(fitted: FittedForecaster) -> Iterator[Part]:
    """A paragraph and a table of the strongest pairs; nothing without the method that reads all columns."""
    pairs = strongest_pairs(fitted)
    method = fitted.panel_methods.get(ALL_COLUMNS)
    if not pairs or not isinstance(method, FittedAllColumns):
        return
    weight = fitted.weights.get(ALL_COLUMNS, 0.0)
    rows = method.ridge.component_rows
    yield draw.text(
        f"Which columns help which, by the method {ALL_COLUMNS} (weight {weight:.2f}): change of the forecast, mean "
        f"over the steps, if the helping column is one standard deviation higher in the last {rows} rows and all "
        "others stay. Both are in standard deviations of their column. Columns that move together share their effect."
    )
    table = [(column, helper, f"{effect:+.2f}") for column, helper, effect in pairs]
    yield draw.table([("forecast of", "is helped by", "effect"), *table], "Strongest pairs of columns", left=2)
