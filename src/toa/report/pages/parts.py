"""Parts of the pages of estimators, as JSON values that `toa/report/results.js` draws.

    text, list, code    text; items; text
    facts               rows: [name, text]
    table               rows, the header first; jumps shows per row a part of the first chart: [series, low, high]
    bars                rows: [name, share of the longest bar, text]
    chart               series: [{name, x, view, panels: [{name, lines, band, spans, level}]}]; dates; off
    matrix, cases       names of classes, counts, cases: [name, true class, predicted class, probability, in the chart]
    operators           models: see `toa.report.operators`

Names and values of users stay text on the page, never markup. Numbers are rounded to six digits.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

import toa
from toa.data.panel import Panel
from toa.estimators import AnomalyDetector, Classifier, Forecaster
from toa.estimators.architecture import NETWORK
from toa.report.html_page import write_results
from toa.report.operators import describe_tokens, model_pictures

# most series on a page
SERIES = 40
# most values on a page
VALUES = 200_000
# columns that are on at first
COLUMNS_ON = 6
# most blocks of lags, and columns, in bars
_BLOCKS = 16
# parameters at these values are not on the card of a model
_UNSET = ("None", "()", "False")

Part = dict[str, Any]
FittedEstimator = Forecaster | AnomalyDetector | Classifier


@dataclass(frozen=True, kw_only=True, slots=True)
class PageText:
    """What a page says beside its sections.

    Attributes:
        lead: Sentences below the title.
        notes: Notes on the data.
        facts: What was fitted, on the card of the model.
        command: What repeats the page; Python code if empty.
    """

    title: str
    lead: Sequence[str]
    notes: Sequence[str]
    facts: Mapping[str, object]
    command: str


def write_page(
    estimator: FittedEstimator, path: str | Path, page: PageText, sections: Mapping[str, Sequence[Part]]
) -> Path:
    """Write sections, those with parts, and after them notes on the data, the model card and what repeats the page."""
    code = page.command or f"toa.{estimator!r}.fit(…).page({str(path)!r}, …)"
    notes = list(page.notes) or ["Nothing was filled or left out."]
    all_sections = {
        **sections,
        "Notes on the data": [{"kind": "list", "items": notes}],
        "Model": [_card(estimator, page.facts)],
        "Repeat": [{"kind": "code", "text": code}],
    }
    shown = [{"title": name, "parts": list(parts)} for name, parts in all_sections.items() if parts]
    return write_results(page.title, {"title": page.title, "lead": list(page.lead), "sections": shown}, Path(path))


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


def series_name(id: Any) -> str:
    """Name of a series in the chart; empty if there is only one."""
    return "" if id is None else str(id)


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
    shown = [[name, value / most, form.format(value)] for name, value in rows]
    return [text(about), {"kind": "bars", "rows": shown}]


def methods_table(weights: Mapping[str, float], columns: Mapping[str, Mapping[str, float]]) -> Part:
    """A table of methods with their weights and, per column, a score of each."""
    rows = [["method", "weight", *columns]]
    for name in dict.fromkeys(name for column in (*columns.values(), weights) for name in column):
        cells = [f"{column[name]:.3f}" if name in column else "" for column in columns.values()]
        rows.append([name, f"{weights[name]:.2f}" if name in weights else "", *cells])
    return table(rows, "Methods")


def network_parts(estimator: FittedEstimator, data: Any) -> Iterator[Part]:
    """What the network looked at, and pictures of its operators, if it has a weight; else which methods decide."""
    weights = estimator.weights_
    if not estimator.has_network or NETWORK not in weights:
        names = ", ".join(sorted(weights, key=lambda name: -weights[name]))
        yield text(f"No network decides here, only: {names}.")
        return
    importance = estimator.explain(data)
    # a classifier has one network per fold, a forecaster may have one per seed
    networks = list(getattr(estimator.model_, "models", [estimator.model_]))
    tokens = describe_tokens(networks[0], importance.freq, estimator.architecture_.get("patch", 1))
    about = f"What the network looked at: {importance.describe()} {tokens}"
    yield from bars(about, importance.blocks(_BLOCKS).items(), "{:.1%}")
    if len(importance.columns) > 1:
        yield from bars("The same by column.", list(importance.by_column().items())[:_BLOCKS], "{:.1%}")
    pictures = model_pictures(networks[0], estimator.architecture_["backbone"])
    if pictures is not None:
        which = f" in the first of {len(networks)} networks" if len(networks) > 1 else ""
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
    panel: Panel,
    data: Any,
    *,
    missing: str,
    used: Collection[str | None],
    left_out: Sequence[str] = (),
    shown: int | None = None,
) -> list[str]:
    """What was done to the data, what stands out in them, and how many series are shown.

    Args:
        data: The table of the panel.
        missing: How gaps were filled.
        used: Columns of the table that are used, beside those of the panel.
        left_out: Columns that were removed before.
        shown: Number of series in the chart; None for all.
    """
    columns = tuple(map(str, panel.columns))
    # an arrow table has its arrays in `columns`
    listed = () if panel.backend is None or panel.steps else getattr(data, "column_names", getattr(data, "columns", ()))
    names = {str(name): name for name in listed}
    lines = [*_describe_times(panel, missing), *_describe_missing(panel, data, names, missing)]
    used = {*columns, *used, panel.id_column, panel.time_column}
    unused = [name for name in (*names, *left_out) if name not in used]
    if unused:
        lines.append(f"Columns left out: {', '.join(unused)}.")
    ranges = np.max([np.ptp(values, axis=0) for values in panel.values], axis=0)
    constant = [name for name, spread in zip(columns, ranges, strict=True) if spread == 0]
    if constant:
        lines.append(f"Constant columns: {', '.join(constant)}.")
    if shown is not None and len(panel) > shown:
        lines.append(f"The chart shows {shown} of {len(panel)} series.")
    return lines


def _describe_times(panel: Panel, missing: str) -> Iterator[str]:
    """The first and the last time, and rows that were missing between them."""
    if panel.times is not None:
        first = min(times[0] for times in panel.times)
        last = max(times[-1] for times in panel.times)
        yield f"Rows from {first} to {last}."
        if any(map(_set_back, panel.times)):
            yield "The clock was set back in these rows, so the chart shows UTC."
    inserted = sum(int((rows < 0).sum()) for rows in panel.rows)
    if inserted:
        yield f"Gaps: {inserted} rows were missing in time and were filled ({missing})."


def _describe_missing(panel: Panel, data: Any, names: Mapping[str, Any], missing: str) -> Iterator[str]:
    """Columns that begin late, and missing values that were filled; `names` are those in the table."""
    columns = tuple(map(str, panel.columns))
    empty = {name: int(pd.isna(np.asarray(data[names[name]])).sum()) for name in columns if name in names}
    if isinstance(data, np.ndarray) and data.dtype.kind == "f":
        empty["all columns"] = int(np.isnan(data).sum())
    late = np.sum([np.zeros(len(columns), dtype=int), *(panel.begins or ())], axis=0).tolist()
    before = {name: count for name, count in zip(columns, late, strict=True) if count}
    if before:
        yield f"Columns that begin later than others: {', '.join(before)}."
    filled = {name: count - before.get(name, 0) for name, count in empty.items()}
    listed = [f"{count} in {name}" for name, count in filled.items() if count > 0]
    if listed:
        yield f"Missing values that were filled ({missing}): {', '.join(listed)}."


def _card(estimator: FittedEstimator, facts: Mapping[str, object]) -> Part:
    """The network, what was fitted, and the parameters."""
    architecture = estimator.architecture_
    rows = [
        ("estimator", type(estimator).__name__),
        ("version of toa", toa.__version__),
        ("network", architecture["backbone"] or "none"),
    ]
    if architecture.get("attention"):
        rows.append(("attention", str(architecture["attention"]["name"])))
    if estimator.has_network:
        weights = sum(parameter.numel() for parameter in estimator.model_.parameters())
        sizes = ", ".join(f"{name} {value}" for name, value in architecture["settings"].items())
        rows += [("weights", f"{weights:,}"), ("sizes", sizes)]
    for name, value in facts.items():
        if value is not None:
            rows.append((name, f"{value:.4g}" if isinstance(value, float) else str(value)))
    texts = {name: repr(value) for name, value in estimator.get_params(deep=False).items() if name != "progress"}
    rows.append(("parameters", ", ".join(f"{name}={text}" for name, text in texts.items() if text not in _UNSET)))
    return {"kind": "facts", "rows": rows}
