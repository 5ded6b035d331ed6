"""The page of a detector; see `toa.report.pages.parts`.

Alphabet: S series, T rows, C channels.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from toa.data.frames import columns_by_row
from toa.estimators import AnomalyDetector
from toa.estimators.alarms import event_columns
from toa.estimators.fitted_detector import Alarms, FittedDetector, describe_flags, find_alarms, member_scores
from toa.report.pages import parts as draw
from toa.report.pages.parts import PageText, Part
from toa.training.detection import Labels, Runs, point_metrics, undefined

# most channels in a chart
_CHANNELS = 12
# most events in a table
_EVENTS = 500
# fewest values of a line
_LEAST_POINTS = 1_000


def events_page(
    detector: AnomalyDetector,
    path: str | Path,
    data: Any,
    y: Any = None,
    *,
    title: str = "Events",
    command: str = "",
    left_out: Sequence[str] = (),
) -> Path:
    """Write the page of a detector, see `toa.AnomalyDetector.page`."""
    whole = detector.read_fitted(data)
    fitted = detector.fitted_
    panel = replace(whole, backend=None)
    alarms = find_alarms(fitted, panel, detector.alarm_rule)
    labels = None if y is None else np.asarray(y).ravel().astype(bool)
    events = len(alarms.ranked)
    shares = sum((event.shares for _, event in alarms.ranked), np.zeros(len(fitted.columns)))
    first = np.argsort(-shares, kind="stable")[:_CHANNELS]
    by_channel = []
    if events:
        means = [(fitted.columns[place], 100.0 * float(shares[place]) / events) for place in first]
        by_channel = draw.bars("Mean share of each channel in the score of the events.", means, "{:.1f} %")
    sections = {
        "Events": _event_parts(fitted, alarms, labels, first),
        "Methods": _method_parts(fitted, alarms, labels),
        "What the events depend on": [*by_channel, *draw.network_parts(detector, panel)],
    }
    count = sum(int(columns["anomaly"].sum()) for columns in alarms.columns)
    noun = "event" if events == 1 else "events"
    lead = (
        f"{count} of {sum(whole.lengths)} rows{draw.describe_series(whole)} have scores above "
        f"{fitted.thresholds.rows:.4g}, in {events} {noun}."
    )
    shift = describe_flags(fitted, alarms.columns, detector.expected_share)
    leads = [lead] if shift is None else [lead, f"{shift[0].upper()}{shift[1:]}"]
    notes = draw.describe_data(
        whole,
        data,
        missing=detector.missing,
        used=(detector.id, detector.time),
        left_out=left_out,
        shown=draw.SERIES,
    )
    facts = {
        "window": detector.window_,
        "threshold": detector.threshold_,
        "validation": detector.validation_,
    }
    text = PageText(title=title, lead=leads, notes=notes, facts=facts, command=command)
    return draw.write_page(detector, path, text, sections)


def _event_parts(
    fitted: FittedDetector, alarms: Alarms, labels: Labels | None, channels: Int64[np.ndarray, " c"]
) -> list[Part]:
    """The chart of score and channels, and the table of events."""
    panel = alarms.panel
    ranked = alarms.ranked
    table = event_columns(panel, ranked, fitted.columns)
    shown = list(dict.fromkeys([*(index for index, _ in ranked), *range(len(panel))]))[: draw.SERIES]
    points = max(_LEAST_POINTS, draw.VALUES // (len(shown) * (len(channels) + 1)))
    axes = {
        index: draw.axis(None if panel.times is None else panel.times[index], panel.lengths[index]) for index in shown
    }
    series = []
    for index in shown:
        rows = panel.lengths[index]
        axis = axes[index]
        columns = {"score": alarms.columns[index]["score"]}
        columns |= {fitted.columns[channel]: panel.values[index][:, channel] for channel in channels}
        size = -(-2 * rows // points)
        spans = _spans(alarms, labels, index, axis, table["why"])
        panels: list[Part] = [
            {"name": name, "lines": [draw.line("value", "past", 0, draw.outline(values, size))], "spans": spans}
            for name, values in columns.items()
        ]
        panels[0]["level"] = {"name": "threshold", "value": fitted.thresholds.rows}
        thresholds = fitted.thresholds.of_rows(columns["score"])
        if thresholds.max() > fitted.thresholds.rows:
            raised = draw.line("raised threshold", "baseline", 0, draw.outline(thresholds, size))
            panels[0]["lines"].append(raised)
        x = axis
        if size > 2:
            x = [axis[place] for start in range(0, rows, size) for place in (start, min(start + size // 2, rows - 1))]
        series.append({"name": draw.series_name(panel.ids[index]), "x": x, "panels": panels})
    names = [str(fitted.columns[channel]) for channel in channels[draw.COLUMNS_ON - 1 :]]
    chart = [draw.chart(series, panel, names)]
    size = -(-2 * max(panel.lengths[index] for index in shown) // points)
    if size > 2:
        chart.append(draw.text(f"Of up to {size} rows the chart shows the lowest and the highest value."))
    if not ranked:
        return [*chart, draw.text("No row has a score above the threshold.")]
    # per event its series in the chart, and its ends with some rows around it
    jumps: list[list[int] | None] = []
    for index, event in ranked[:_EVENTS]:
        axis = axes.get(index, [])
        margin = max(fitted.inputs.window, event.stop - event.start)
        low = max(0, event.start - margin)
        high = min(len(axis) - 1, event.stop - 1 + margin)
        jumps.append([shown.index(index), axis[low], axis[high]] if axis else None)
    head = [name for name in table if name != "channel"]
    table["severity"] = [f"{value:.3g}" for value in table["severity"]]
    rows_of = [[str(table[name][row]) for name in head] for row in range(min(len(ranked), _EVENTS))]
    return [*chart, {**draw.table([head, *rows_of], "Events, the most severe first", len(head)), "jumps": jumps}]


def _spans(
    alarms: Alarms, labels: Labels | None, index: int, axis: Sequence[Any], why: Sequence[str]
) -> list[list[Any]]:
    """First and last place of each known anomaly and of each event of a series, with a text and the kind."""
    spans: list[list[Any]] = []
    if labels is not None:
        source = alarms.panel.rows[index]
        runs = Runs.of(np.where(source < 0, False, labels[source]))
        for start, stop in zip(runs.starts.tolist(), runs.stops.tolist(), strict=True):
            spans.append([axis[start], axis[stop - 1], "known anomaly", "known"])
    for number, (owner, event) in enumerate(alarms.ranked, 1):
        if owner == index:
            spans.append([axis[event.start], axis[event.stop - 1], f"event {number}: {why[number - 1]}", "event"])
    return spans


def _method_parts(fitted: FittedDetector, alarms: Alarms, labels: Labels | None) -> list[Part]:
    """Which methods the score is the mean of, and how well each finds injected and known anomalies."""
    combination = fitted.score.combination
    injected = {} if combination is None else combination.precision
    columns = {"average precision on injected anomalies": injected} if injected else {}
    texts = []
    reason = None if labels is None else undefined(labels)
    if reason is not None:
        texts.append(draw.text(f"Not evaluated: {reason}."))
    elif labels is not None:
        from sklearn.metrics import average_precision_score

        table = columns_by_row(alarms.panel, alarms.columns)
        metrics = point_metrics(labels, table["anomaly"] == 1)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items() if value is not None)
        texts.append(draw.text(f"Against the labels: {shown}."))
        members = member_scores(fitted, alarms.panel)
        scores = {"combination": table["score"]} | {name: members[name] for name in fitted.score.baselines}
        columns["average precision on known anomalies"] = {
            name: float(average_precision_score(labels, score)) for name, score in scores.items()
        }
    return [*texts, draw.methods_table(fitted.score.weights, columns)]
