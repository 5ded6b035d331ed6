"""Parts of the pages that `.page()` of the estimators writes, as JSON values that `toa/report/results.js` draws.

    text, list, code    text; items; text
    facts               rows: [name, text]
    table               rows, the header first; jumps shows per row a part of the first chart: [series, low, high]
    bars                rows: [name, share of the longest bar, text]
    chart               series: [{name, x, view, panels: [{name, lines, band, spans, level}]}]; dates; off
    matrix, cases       names of classes, counts, cases: [name, true class, predicted class, probability, in the chart]
    operators           models: see `toa.report.operators`

Names and values of users stay text on the page, never markup. Numbers are rounded to six digits.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

import toa
from toa.data.panel import Panel

# most series and values on a page, and columns that are on at first
SERIES, VALUES, COLUMNS_ON = 40, 200_000, 6
# most blocks of lags, and columns, in bars
_BLOCKS = 16
# fitted attributes on the card of a model, those that an estimator has
_FITTED = {"look-back": "lookback_", "season": "season_", "window": "window_", "threshold": "threshold_"}
_FITTED |= {"longest case": "length_", "validation": "validation_"}

Part = dict[str, Any]


def write_page(
    own: Any,
    path: str | Path,
    lead: Sequence[str],
    sections: Mapping[str, Sequence[Part]],
    *,
    title: str,
    command: str,
    notes: Sequence[str],
) -> Path:
    """Write sections, those with parts, and after them notes on the data, the model card and what repeats the page."""
    code = command or f"toa.{own!r}.fit(…).page({str(path)!r}, …)"
    items = list(notes) or ["Nothing was filled or left out."]
    ends = {"Notes on the data": [{"kind": "list", "items": items}], "Model": [_card(own)]}
    ends["Repeat"] = [{"kind": "code", "text": code}]
    shown = [{"title": name, "parts": list(parts)} for name, parts in {**sections, **ends}.items() if parts]
    # loaded on use: it imports matplotlib
    from toa.report import write_results

    return write_results(title, {"title": title, "lead": list(lead), "sections": shown}, Path(path))


def to_numbers(values: np.ndarray) -> list[float | None]:
    """Numbers with six digits; None for NaN and infinities."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def axis(times: pd.Index | None, count: int) -> list[int]:
    """Places of rows: milliseconds of the wall clock, integer times, or row numbers from 1.

    Rows in which the wall clock was set back have the milliseconds of UTC.
    """
    if times is None:
        return list(range(1, count + 1))
    if isinstance(times, pd.DatetimeIndex):
        times = (times.tz_convert("UTC") if _set_back(times) else times).tz_localize(None).as_unit("ms")
        return cast(list[int], times.asi8.tolist())
    return cast(list[int], times.tolist())


def _set_back(times: pd.Index) -> bool:
    if not isinstance(times, pd.DatetimeIndex) or times.tz is None:
        return False
    clock = times.tz_localize(None)
    return not (clock.is_monotonic_increasing and clock.is_unique)


def series_name(one: Any) -> str:
    """Name of a series in the chart; empty if there is only one."""
    return "" if one is None else str(one)


def describe_series(panel: Panel) -> str:
    """The number of series, in words; empty for a table without ids."""
    return "" if panel.ids == (None,) else f" of {len(panel)} series"


def chart(series: list[Part], panel: Panel, panels: Sequence[str] = (), lines: Sequence[str] = ()) -> Part:
    """A chart; `panels` and `lines` are those that are off at first."""
    dates = panel.times is not None and isinstance(panel.times[0], pd.DatetimeIndex)
    off = {"panels": list(panels), "lines": list(lines)}
    return {"kind": "chart", "dates": dates, "series": series, "off": off}


def line(name: str, kind: str, start: int, values: np.ndarray) -> Part:
    """A line from the row `start` on; `kind` is "past", "forecast", "quantile" or "baseline"."""
    return {"name": name, "kind": kind, "start": start, "y": to_numbers(values)}


def outline(values: np.ndarray, size: int) -> np.ndarray:
    """The lowest and the highest of each `size` rows, if there are too many rows."""
    if size <= 2:
        return values
    starts = np.arange(0, len(values), size)
    return np.stack((np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)), 1).ravel()


def table(rows: Sequence[Sequence[str]], caption: str, left: int = 1) -> Part:
    """A table with a header; the first `left` columns are aligned left."""
    return {"kind": "table", "rows": [list(map(str, row)) for row in rows], "caption": caption, "left": left}


def text(text: str) -> Part:
    """A paragraph."""
    return {"kind": "text", "text": text}


def bars(about: str, values: Iterable[tuple[str, float]], form: str = "{:.3g}") -> list[Part]:
    """A paragraph, and bars of names and values."""
    rows = list(values)
    most = max((value for _, value in rows), default=0.0) or 1.0
    found = [[name, value / most, form.format(value)] for name, value in rows]
    return [text(about), {"kind": "bars", "rows": found}]


def methods_table(weights: Mapping[str, float], columns: Mapping[str, Mapping[str, float]]) -> Part:
    """A table of methods with their weights and, per column, a score of each."""
    rows = [["method", "weight", *columns]]
    for name in dict.fromkeys(name for column in (*columns.values(), weights) for name in column):
        cells = [f"{column[name]:.3f}" if name in column else "" for column in columns.values()]
        rows.append([name, f"{weights[name]:.2f}" if name in weights else "", *cells])
    return table(rows, "Methods")


def network_parts(own: Any, data: Any) -> Iterator[Part]:
    """What the network looked at, and pictures of its operators, if it has a weight; else which methods decide."""
    if not own.has_network or "toa" not in own.weights_:
        names = ", ".join(sorted(own.weights_, key=lambda name: -own.weights_[name]))
        yield text(f"No network decides here, only: {names}.")
        return
    # loaded on use, as above
    from toa.report.operators import describe_tokens, model_pictures

    found = own.explain(data)
    # a classifier has one network per fold, a forecaster may have one per seed
    network, *others = getattr(own.model_, "models", [own.model_])
    tokens = describe_tokens(network, found.freq, own.architecture_.get("patch", 1))
    about = f"What the network looked at: {found.describe()} {tokens}"
    yield from bars(about, found.blocks(_BLOCKS).items(), "{:.1%}")
    if len(found.columns) > 1:
        yield from bars("The same by column.", list(found.by_column().items())[:_BLOCKS], "{:.1%}")
    pictures = model_pictures(network, own.architecture_["backbone"])
    if pictures is not None:
        which = f" in the first of {len(others) + 1} networks" if others else ""
        yield text(
            "The network mixes tokens by signed matrices S = I + M. Red adds, blue subtracts. Shown is the head with "
            f"the largest M of each layer{which}. Point at an entry, or move with the arrow keys; click for the gain "
            "of a row."
        )
        yield {"kind": "operators", "models": [pictures]}


def occluded(values: np.ndarray, blocks: Sequence[tuple[int, int]], means: np.ndarray) -> list[np.ndarray]:
    """The rows, copies with a block of them on a line between its neighbours, and copies with a column at its mean.

    The first rows are replaced by the one after them, the last rows by the one before.
    """
    copies = [values, *(values.copy() for _ in (*blocks, *means))]
    for copy, (start, stop) in zip(copies[1:], blocks, strict=False):
        before = values[start - 1] if start > 0 else values[min(stop, len(values) - 1)]
        after = values[stop] if stop < len(values) else before
        share = np.linspace(0.0, 1.0, stop - start + 2)[1:-1, None]
        copy[start:stop] = before + (after - before) * share
    for place, mean in enumerate(means):
        copies[1 + len(blocks) + place][:, place] = mean
    return copies


def describe_data(
    panel: Panel, data: Any, own: Any, left_out: Sequence[str] = (), *, shown: int | None = None
) -> list[str]:
    """What was done to the data, what stands out in them, and how many series are shown."""
    columns, lines = tuple(map(str, panel.columns)), []
    if panel.times is not None:
        first, last = min(times[0] for times in panel.times), max(times[-1] for times in panel.times)
        lines.append(f"Rows from {first} to {last}.")
        if any(map(_set_back, panel.times)):
            lines.append("The clock was set back in these rows, so the chart shows UTC.")
    inserted = sum(int((rows < 0).sum()) for rows in panel.rows)
    if inserted:
        lines.append(f"Gaps: {inserted} rows were missing in time and were filled ({own.missing}).")
    # an arrow table has its arrays in `columns`
    listed = () if panel.backend is None or panel.steps else getattr(data, "column_names", getattr(data, "columns", ()))
    names = {str(name): name for name in listed}
    empty = {name: int(pd.isna(np.asarray(data[names[name]])).sum()) for name in columns if name in names}
    if isinstance(data, np.ndarray) and data.dtype.kind == "f":
        empty["all columns"] = int(np.isnan(data).sum())
    late = np.sum([np.zeros(len(columns), dtype=int), *(panel.begins or ())], axis=0).tolist()
    before = {name: count for name, count in zip(columns, late, strict=True) if count}
    if before:
        lines.append(f"Columns that begin later than others: {', '.join(before)}.")
    filled = [
        f"{count - before.get(name, 0)} in {name}" for name, count in empty.items() if count > before.get(name, 0)
    ]
    if filled:
        lines.append(f"Missing values that were filled ({own.missing}): {', '.join(filled)}.")
    used = {*columns, own.id, own.time, panel.id_column, panel.time_column, getattr(own, "label", None)}
    if left := [name for name in (*names, *left_out) if name not in used]:
        lines.append(f"Columns left out: {', '.join(left)}.")
    ranges = np.max([np.ptp(values, axis=0) for values in panel.values], axis=0)
    if constant := [name for name, one in zip(columns, ranges, strict=True) if one == 0]:
        lines.append(f"Constant columns: {', '.join(constant)}.")
    if shown is not None and len(panel) > shown:
        lines.append(f"The chart shows {shown} of {len(panel)} series.")
    return lines


def _card(own: Any) -> Part:
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
    return {"kind": "facts", "rows": rows}
