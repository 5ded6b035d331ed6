"""Pages of results: `.page()` of the estimators writes what they found as one HTML file that needs no other.

A page is a title, lines of text and sections with parts, as JSON values that `toa/report/results.js` draws:

    text, list, code    text; items; text
    table               rows, the header first; jumps shows per row a part of the first chart: [series, low, high]
    facts               rows: [name, text]
    bars                rows: [name, share of the longest bar, text]
    chart               series: [{name, x, view, panels: [{name, lines, band, spans, level}]}]; dates; off
    operators           models: see `toa.report.operators`

Names and values of users stay text on the page, never markup. Numbers are rounded to six digits.

Alphabet: S series, T rows, C columns, P horizon.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

import toa
from toa.data.panel import Panel
from toa.estimators.backtest import TITLES, Backtest
from toa.estimators.baselines import BASELINES
from toa.estimators.ensemble import history_rows

# most series, columns that are on at first, values of the past and blocks of lags on a page
_SERIES, _ON, _VALUES, _BLOCKS = 40, 6, 200_000, 16
# horizons of past rows, and fewest rows, that are in view at first
_PAST, _LEAST_PAST = 5, 60

# fitted attributes on the card of a model, those that an estimator has
_FITTED = {"look-back": "lookback_", "season": "season_", "window": "window_", "threshold": "threshold_"}
_FITTED |= {"longest case": "length_", "validation": "validation_"}

Part = dict[str, Any]


class ForecastPage:
    """The page of a forecaster."""

    def page(
        self,
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
        """Write one HTML file: series with forecast and baselines, errors, what the forecast depends on, the model.

        Args:
            path: File to write.
            data: Rows to forecast after, as for `predict`.
            future: Covariates of the forecast steps, as for `predict`.
            horizon: Number of steps; None for all.
            tested: Result of `backtest` to show; None shows the errors at the rolling origins of `fit`.
            title: Title of the page.
            command: What repeats the page; by default Python code.
            left_out: Columns of the table that were removed from data.
        """
        own: Any = self
        steps = own.horizon if horizon is None else horizon
        whole = own._read_fitted(data)
        # covariates of other ids would not match
        panel = replace(whole if own.covariates else _first(whole, _SERIES), backend=None)
        found = _by_series(panel, own.predict(panel, future=future, horizon=steps))
        baselines = {name: _by_series(panel, own.predict_baseline(name, panel, horizon=steps)) for name in BASELINES}
        past = panel.tail(max(_LEAST_PAST, _VALUES // (min(len(panel), _SERIES) * len(panel.columns))))
        notes = _notes(whole, data, own, left_out=left_out, shown=past)
        measured = _errors(own) if tested is None else _backtest(tested)
        looked = [*_weights(own.weights_), *_lags(own, panel), *_operators(own)]
        sections = [
            ("Forecast", [_forecast_chart(own, past, found, baselines, steps)]),
            ("Errors", measured),
            ("What the forecast depends on", looked),
            ("Notes on the data", [{"kind": "list", "items": notes}]),
            ("Model", _card(own)),
            ("Repeat", [{"kind": "code", "text": command or f"toa.{own!r}.fit(data).page({str(path)!r}, data)"}]),
        ]
        freq = "" if panel.freq is None else f", every {panel.freq}"
        lead = f"{steps} steps of {', '.join(own.columns_)} after {sum(whole.lengths)} rows{_series(whole)}{freq}."
        return _write(path, title, [lead, *_verdict(own)], sections)


def _write(path: str | Path, title: str, lead: Sequence[str], sections: Sequence[tuple[str, list[Part]]]) -> Path:
    parts = [{"title": name, "parts": parts} for name, parts in sections if parts]
    # loaded on use: it imports matplotlib
    written: Path = toa.report.write_results(title, {"title": title, "lead": list(lead), "sections": parts}, Path(path))
    return written


def _numbers(values: np.ndarray) -> list[float | None]:
    """Numbers with six digits; None for NaN and infinities."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def _first(panel: Panel, count: int) -> Panel:
    """The first series of a panel."""
    return replace(
        panel,
        values=panel.values[:count],
        ids=panel.ids[:count],
        times=None if panel.times is None else panel.times[:count],
        rows=panel.rows[:count],
    )


def _by_series(panel: Panel, found: Any) -> list[Mapping[str, np.ndarray]]:
    """Results of arrays, one mapping per series."""
    results = [found] if panel.ids == (None,) else found
    return [one if isinstance(one, Mapping) else {"forecast": one} for one in results]


def _axis(times: pd.Index | None, count: int) -> list[int]:
    """Places of rows: milliseconds of the wall clock, integer times, or row numbers from 1."""
    if times is None:
        return list(range(1, count + 1))
    if isinstance(times, pd.DatetimeIndex):
        times = times.tz_localize(None).as_unit("ms")
        return cast(list[int], times.asi8.tolist())
    return cast(list[int], times.tolist())


def _series_name(one: Any) -> str:
    return "" if one is None else str(one)


def _series(panel: Panel) -> str:
    return "" if panel.ids == (None,) else f" of {len(panel)} series"


def _forecast_chart(
    own: Any,
    past: Panel,
    found: Sequence[Mapping[str, np.ndarray]],
    baselines: Mapping[str, Sequence[Mapping[str, np.ndarray]]],
    steps: int,
) -> Part:
    series = []
    band = "interval" if own.interval is None else f"{own.interval:.0%} interval"
    for index, after in enumerate(past.next_times(steps)[:_SERIES]):
        rows = past.lengths[index]
        times = None if past.times is None or after is None else past.times[index].append(after)
        values, parts = past.take(own.columns_)[index], found[index]
        panels = []
        for place, column in enumerate(own.columns_):
            lines = [_line("past", "past", 0, values[:, place])]
            lines += [
                _line(name, "baseline", rows, ahead[index]["forecast"][:, place]) for name, ahead in baselines.items()
            ]
            lines += [
                _line(f"quantile {level:g}", "quantile", rows, parts["quantiles"][:, at, place])
                for at, level in enumerate(own.quantiles)
                if "quantiles" in parts
            ]
            lines.append(_line("forecast", "forecast", rows, parts["forecast"][:, place]))
            ends = {name: _numbers(parts[name][:, place]) for name in ("lower", "upper") if name in parts}
            panels.append(
                {"name": column, "lines": lines, "band": {"name": band, "start": rows, **ends} if ends else None}
            )
        shown = [max(0, rows - max(_LEAST_PAST, _PAST * steps)), rows + steps - 1]
        axis = _axis(times, rows + steps)
        series.append({"name": _series_name(past.ids[index]), "x": axis, "view": shown, "panels": panels})
    hidden = [name for name in baselines if name != "seasonal naive"]
    return _chart(series, past, [*hidden, *own.columns_[_ON:]])


def _chart(series: list[Part], panel: Panel, off: Sequence[str], of: str = "Series") -> Part:
    dates = panel.times is not None and isinstance(panel.times[0], pd.DatetimeIndex)
    return {"kind": "chart", "of": of, "dates": dates, "series": series, "off": list(off)}


def _line(name: str, kind: str, start: int, values: np.ndarray) -> Part:
    return {"name": name, "kind": kind, "start": start, "y": _numbers(values)}


def _table(rows: Sequence[Sequence[str]], caption: str, left: int = 1) -> Part:
    return {"kind": "table", "rows": [list(map(str, row)) for row in rows], "caption": caption, "left": left}


def _text(text: str) -> Part:
    return {"kind": "text", "text": text}


def _bars(rows: Sequence[tuple[str, float]], unit: str = "") -> Part:
    most = max((value for _, value in rows), default=0.0) or 1.0
    return {"kind": "bars", "rows": [[name, value / most, f"{value:.3g}{unit}"] for name, value in rows]}


def _weights(weights: Mapping[str, float]) -> list[Part]:
    return [_text("Weights of the methods."), _bars(sorted(weights.items(), key=lambda pair: -pair[1]))]


def _errors(own: Any) -> list[Part]:
    """Errors of all methods at the rolling origins of fit."""
    if own.choice_ is None or not own.choice_.ensemble.errors:
        return []
    found = {"forecast" if name == "ensemble" else name: value for name, value in own.choice_.ensemble.errors.items()}
    rows = [("method", "MASE"), *((name, f"{value:.4g}") for name, value in sorted(found.items(), key=lambda x: x[1]))]
    text = "At rolling origins at the end of the rows of fit, which also chose the weights. Lower is better."
    return [_text(text), _table(rows, "Errors of methods")]


def _backtest(tested: Backtest) -> list[Part]:
    table = tested.table()
    names = [name for name in TITLES if name in table]
    rows = [("method", *(TITLES[name] for name in names))]
    rows += [(str(method), *(f"{scores[name]:.4g}" for name in names)) for method, scores in table.iterrows()]
    parts = [_text(f"Backtest at {tested.compared} origins, in the units of the data. Lower is better.")]
    parts.append(_table(rows, "Backtest of the model and the baselines"))
    coverage = tested.metrics.get("coverage")
    lines = tested.verdicts() + ([] if coverage is None else [f"{coverage:.1%} of values lie within the interval"])
    parts.append({"kind": "list", "items": lines})
    if len(tested.by_column) > 1:
        methods = tested.comparison
        head = ("column", *methods)
        own = [(name, *(f"{m.by_column[name]['mae']:.4g}" for m in methods.values())) for name in tested.by_column]
        parts.append(_table([head, *own], "MAE per column"))
    return parts


def _verdict(own: Any) -> list[str]:
    errors = {} if own.choice_ is None else own.choice_.ensemble.errors
    pairs = [
        (name, errors[key])
        for name, key in (("forecast", "ensemble"), ("seasonal naive", "seasonal naive"))
        if key in errors
    ]
    return (
        ["MASE at rolling origins: " + ", ".join(f"{name} {value:.3f}" for name, value in pairs) + "."] if pairs else []
    )


def _lags(own: Any, panel: Panel) -> Iterator[Part]:
    """How much the forecast of the first series changes if a part of its past is replaced."""
    panel = panel.tail(max(own.lookback_, history_rows(own.season_, own.horizon)))
    values, rows = panel.values[0], panel.lengths[0]
    read = min(rows, max(own.lookback_, 2 * own.season_))
    if own.covariates or read < 2:
        return
    edges = np.unique(np.linspace(0, read, min(read, _BLOCKS) + 1).astype(int))
    blocks = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    copies = [values, *(_without_lags(values, low, high) for low, high in blocks)]
    for place in range(min(len(own.columns_), _BLOCKS)):
        copies.append(values.copy())
        copies[-1][:, place] = values[:, place].mean()
    many = replace(
        panel,
        values=tuple(copies),
        ids=(panel.ids[0],) * len(copies),
        times=None if panel.times is None else (panel.times[0],) * len(copies),
        rows=(),
    )
    forecasts = np.stack([one["forecast"] for one in _by_series(many, own.predict(many))])  # (copies, P, C)
    spread = np.where(values.std(0) > 0, values.std(0), 1.0)
    change = (np.abs(forecasts[1:] - forecasts[0]) / spread).mean(1)  # (copies - 1, C)
    names = [f"lag {low + 1}" if high == low + 1 else f"lags {low + 1} to {high}" for low, high in blocks]
    where = "" if panel.ids == (None,) else f" of {panel.ids[0]}"
    step = "" if panel.freq is None else f" One lag is a step of {panel.freq}."
    yield _text(
        f"Mean change of the forecast{where}, in standard deviations, if these lags are replaced by a straight line. "
        f"Lag 1 is the last row.{step}"
    )
    yield _bars(list(zip(names, change[: len(blocks)].mean(1).tolist(), strict=True)))
    if len(own.columns_) > 1:
        others = change[len(blocks) :].copy()
        others[np.arange(len(others)), np.arange(len(others))] = 0.0
        if others.max() < 1e-9:
            yield _text("Each column is forecast from its own past: no column changes the forecast of another.")
            return
        yield _text("Mean change of the forecasts of the other columns if a column is replaced by its mean.")
        means = others.sum(1) / (len(own.columns_) - 1)
        yield _bars(list(zip(own.columns_, means.tolist(), strict=False)))


def _without_lags(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Rows with lags low + 1 to high replaced by a line between their neighbours; the last rows by the one before."""
    copy, last = values.copy(), len(values)
    start, stop = last - high, last - low
    before = values[start - 1] if start > 0 else values[min(stop, last - 1)]
    after = values[stop] if stop < last else before
    share = np.linspace(0.0, 1.0, stop - start + 2)[1:-1, None]
    copy[start:stop] = before + (after - before) * share
    return copy


def _operators(own: Any) -> Iterator[Part]:
    """Pictures of the operators of the network, if it has a weight."""
    if own.architecture_["backbone"] is None or "toa" not in own.weights_:
        return
    # a classifier has one network per fold
    network = getattr(own.model_, "models", [own.model_])[0]
    found = toa.report.operators.model_pictures(network, own.architecture_["backbone"])
    if found is not None:
        yield _text(
            "The network mixes tokens by signed matrices S = I + M. Red adds, blue subtracts. Shown is the head with "
            "the largest M of each layer. Point at an entry, or move with the arrow keys; click for the gain of a row."
        )
        yield {"kind": "operators", "models": [found]}


def _notes(panel: Panel, data: Any, own: Any, *, left_out: Sequence[str] = (), shown: Panel | None = None) -> list[str]:
    """What was done to the data, and what stands out in them."""
    columns, lines = tuple(map(str, panel.columns)), []
    if panel.times is not None:
        first, last = min(times[0] for times in panel.times), max(times[-1] for times in panel.times)
        lines.append(f"Rows from {first} to {last}.")
    inserted = sum(int((rows < 0).sum()) for rows in panel.rows)
    if inserted:
        lines.append(f"Gaps: {inserted} rows were missing in time and were filled ({own.missing}).")
    # an arrow table has its arrays in `columns`
    names = list(map(str, getattr(data, "column_names", getattr(data, "columns", ()))))
    empty = {name: int(pd.isna(np.asarray(data[name])).sum()) for name in columns if name in names}
    filled = [f"{count} in {name}" for name, count in empty.items() if count]
    if filled:
        lines.append(f"Missing values that were filled ({own.missing}): {', '.join(filled)}.")
    used = {*columns, own.id, own.time, panel.time_column, getattr(own, "label", None)}
    if left := [name for name in (*names, *left_out) if name not in used]:
        lines.append(f"Columns left out: {', '.join(left)}.")
    constant = [
        n
        for n, values in zip(columns, zip(*(v.T for v in panel.values), strict=True), strict=True)
        if all(np.ptp(v) == 0 for v in values)
    ]
    if constant:
        lines.append(f"Constant columns: {', '.join(constant)}.")
    if shown is not None and (len(shown) > _SERIES or max(shown.lengths) < max(panel.lengths)):
        lines.append(f"The chart shows the last {max(shown.lengths)} rows of each series.")
    if len(panel) > _SERIES:
        lines.append(f"The chart shows the first {_SERIES} of {len(panel)} series.")
    return lines or ["Nothing was filled or left out."]


def _card(own: Any) -> list[Part]:
    """Parameters and what was chosen."""
    rows = [("estimator", type(own).__name__), ("version of toa", toa.__version__)]
    rows.append(("network", own.architecture_["backbone"] or "none"))
    if own.architecture_.get("attention"):
        rows.append(("attention", str(own.architecture_["attention"]["name"])))
    if own.architecture_["backbone"] is not None:
        sizes = ", ".join(f"{name} {value}" for name, value in own.architecture_["settings"].items())
        rows += [("weights", f"{sum(p.numel() for p in own.model_.parameters()):,}"), ("sizes", sizes)]
    for name, attribute in _FITTED.items():
        value = getattr(own, attribute, None)
        if value is not None:
            rows.append((name, f"{value:.4g}" if isinstance(value, float) else str(value)))
    given = {name: repr(value) for name, value in own.get_params(deep=False).items() if name != "progress"}
    set_ones = [f"{name}={value}" for name, value in given.items() if value not in ("None", "()", "False")]
    rows.append(("parameters", ", ".join(set_ones)))
    return [{"kind": "facts", "rows": rows}]
