"""`.page()` of detectors and classifiers: one HTML file that needs no other; see `toa.estimators.page_parts`.

Alphabet: S series, T rows, C columns or channels, n cases, K classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toa.data.frames import columns_by_row
from toa.data.panel import Panel
from toa.estimators import page_parts as draw
from toa.estimators.alarms import Event, event_columns
from toa.estimators.importance import blocks_of
from toa.estimators.labels import class_codes, labels_by_row, unknown_labels
from toa.estimators.page_parts import Part
from toa.training.detection import Runs, point_metrics, undefined
from toa.training.metrics import class_scores, confusion_matrix

# most channels in a chart, and events in a table
_CHANNELS, _EVENTS = 12, 500
# most blocks of steps, and cases, that are replaced
_STEP_BLOCKS, _CASES = 8, 20
# an interval of the accuracy of fewer cases is not reliable
_RELIABLE = 30


def events_page(
    own: Any,
    path: str | Path,
    data: Any,
    y: Any = None,
    *,
    title: str = "Events",
    command: str = "",
    left_out: Sequence[str] = (),
) -> Path:
    """Write one HTML file: score and channels with the events, their channels, the methods, the model.

    Args:
        path: File to write.
        data: Rows as for `predict`.
        y: For each row whether it is known to be an anomaly, in the order of the table.
        title, command, left_out: As in `toa.Forecaster.page`.
    """
    whole = own._read_fitted(data)
    panel = replace(whole, backend=None)
    parts, ranked = own._events(panel)
    labels = None if y is None else np.asarray(y).ravel().astype(bool)
    shares = sum((event.shares for _, event in ranked), np.zeros(len(own.columns_)))
    first = np.argsort(-shares, kind="stable")[:_CHANNELS]
    by_channel = []
    if ranked:
        means = [(own.columns_[at], 100.0 * float(shares[at]) / len(ranked)) for at in first]
        by_channel = draw.bars("Mean share of each channel in the score of the events.", means, "{:.1f} %")
    sections = {
        "Events": _event_parts(own, panel, parts, ranked, labels, first),
        "Methods": _method_parts(own, panel, parts, labels),
        "What the events depend on": [*by_channel, *draw.network_parts(own, panel)],
    }
    flagged = sum(int(own._flag(part.sum(1))["anomaly"].sum()) for part in parts)
    lead = (
        f"{flagged} of {sum(whole.lengths)} rows{draw.describe_series(whole)} have scores above "
        f"{own.threshold_:.4g}, in "
        f"{len(ranked)} event{'s' * (len(ranked) != 1)}."
    )
    notes = draw.describe_data(whole, data, own, left_out, shown=draw.SERIES)
    return draw.write_page(own, path, [lead], sections, title=title, command=command, notes=notes)


def cases_page(
    own: Any,
    path: str | Path,
    X: Any,
    y: Any = None,
    *,
    title: str = "Classes",
    command: str = "",
    left_out: Sequence[str] = (),
) -> Path:
    """Write one HTML file: the confusion matrix with the cases behind it, the methods, the model.

    Args:
        path: File to write.
        X: Cases as for `predict`, not those of `fit`, whose classes are known.
        y: One label per case; None takes those of the frame, and without them all cases are listed.
        title, command, left_out: As in `toa.Forecaster.page`.
    """
    panel, proba = own.classify(X)
    labels = panel.labels if y is None else panel.with_labels(labels_by_row(y, X)).labels
    names, guess = list(map(str, own.classes_)), proba.argmax(1)
    true = None
    lead = [f"{len(panel)} cases, {len(names)} classes."]
    codes = class_codes(labels, own.classes_, len(panel))
    known = codes >= 0
    if known.any():
        true = codes if known.all() else None
        scores = class_scores(torch.from_numpy(codes[known]), torch.from_numpy(guess[known]))
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in scores.items())
        lead.append(f"On {known.sum()} cases with a label: {shown}.")
    if labels is not None and not known.all():
        lead.append(unknown_labels(labels[~known], len(panel)))
    sections = {
        "Cases": [_cases_part(panel, names, true, guess, proba)],
        "Methods": _stack_parts(own),
        "What the classes depend on": [*_occluded(own, panel, guess), *draw.network_parts(own, [panel.values[0].T])],
    }
    notes = draw.describe_data(panel, X, own, left_out)
    return draw.write_page(own, path, lead, sections, title=title, command=command, notes=notes)


def _event_parts(
    own: Any,
    panel: Panel,
    parts: Sequence[np.ndarray],
    ranked: Sequence[tuple[int, Event]],
    labels: np.ndarray | None,
    channels: np.ndarray,
) -> list[Part]:
    """The chart of score and channels, and the table of events."""
    table = event_columns(panel, ranked, own.columns_)
    shown = list(dict.fromkeys([*(index for index, _ in ranked), *range(len(panel))]))[: draw.SERIES]
    points = max(1_000, draw.VALUES // (len(shown) * (len(channels) + 1)))
    series, axes = [], {}
    for index in shown:
        rows = panel.lengths[index]
        axis = axes[index] = draw.axis(None if panel.times is None else panel.times[index], rows)
        spans = [
            [axis[event.start], axis[event.stop - 1], f"event {number}: {table['why'][number - 1]}", "event"]
            for number, (owner, event) in enumerate(ranked, 1)
            if owner == index
        ]
        if labels is not None:
            runs = Runs.of(np.where(panel.rows[index] < 0, False, labels[panel.rows[index]]))
            ends = zip(runs.starts.tolist(), runs.stops.tolist(), strict=True)
            spans = [[axis[start], axis[stop - 1], "known anomaly", "known"] for start, stop in ends] + spans
        columns = {"score": parts[index].sum(1)}
        columns |= {own.columns_[channel]: panel.values[index][:, channel] for channel in channels}
        size = -(-2 * rows // points)
        panels: list[Part] = [
            {"name": name, "lines": [draw.line("value", "past", 0, draw.outline(values, size))], "spans": spans}
            for name, values in columns.items()
        ]
        panels[0]["level"] = {"name": "threshold", "value": own.threshold_}
        x = axis
        if size > 2:
            x = [axis[at] for start in range(0, rows, size) for at in (start, min(start + size // 2, rows - 1))]
        series.append({"name": draw.series_name(panel.ids[index]), "x": x, "panels": panels})
    names = [str(own.columns_[channel]) for channel in channels[draw.COLUMNS_ON - 1 :]]
    chart = [draw.chart(series, panel, names)]
    size = -(-2 * max(panel.lengths[index] for index in shown) // points)
    if size > 2:
        chart.append(draw.text(f"Of up to {size} rows the chart shows the lowest and the highest value."))
    if not ranked:
        return [*chart, draw.text("No row has a score above the threshold.")]
    # per event its series in the chart, and its ends with some rows around it
    jumps: list[list[int] | None] = []
    for index, event in ranked[:_EVENTS]:
        axis, margin = axes.get(index, []), max(own.window_, event.stop - event.start)
        low, high = max(0, event.start - margin), min(len(axis) - 1, event.stop - 1 + margin)
        jumps.append([shown.index(index), axis[low], axis[high]] if axis else None)
    head = [name for name in table if name != "channel"]
    table["severity"] = [f"{value:.3g}" for value in table["severity"]]
    rows_of = [[str(table[name][row]) for name in head] for row in range(min(len(ranked), _EVENTS))]
    return [*chart, {**draw.table([head, *rows_of], "Events, the most severe first", len(head)), "jumps": jumps}]


def _method_parts(own: Any, panel: Panel, parts: Sequence[np.ndarray], labels: np.ndarray | None) -> list[Part]:
    """Which methods the score is the mean of, and how well each finds injected and known anomalies."""
    injected = {} if own.choice_ is None else own.choice_.precision
    columns = {"average precision on injected anomalies": injected} if injected else {}
    found = []
    reason = None if labels is None else undefined(labels)
    if reason is not None:
        found.append(draw.text(f"Not evaluated: {reason}."))
    elif labels is not None:
        from sklearn.metrics import average_precision_score

        table = columns_by_row(panel, [own._flag(part.sum(1)) for part in parts])
        metrics = point_metrics(labels, table["anomaly"] == 1)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items() if value is not None)
        found.append(draw.text(f"Against the labels: {shown}."))
        members = own.member_scores(panel)
        scores = {"combination": table["score"]} | {name: members[name] for name in own.scorers_}
        columns["average precision on known anomalies"] = {
            name: float(average_precision_score(labels, score)) for name, score in scores.items()
        }
    return [*found, draw.methods_table(own.weights_, columns)]


def _cases_part(
    panel: Panel, names: Sequence[str], true: np.ndarray | None, guess: np.ndarray, proba: np.ndarray
) -> Part:
    """The confusion matrix, or without labels the list of cases; the cases that were wrong are drawn first."""
    order = np.arange(len(panel)) if true is None else np.argsort(true == guess, kind="stable")
    most = max(1, draw.VALUES // (max(panel.lengths) * len(panel.columns)))
    drawn = {int(index): place for place, index in enumerate(order[:most])}
    titles = map(str, range(1, len(panel) + 1) if panel.backend is None else panel.ids)
    classes = [None] * len(panel) if true is None else true.tolist()
    places = map(drawn.get, range(len(panel)))
    cases = list(zip(titles, classes, guess.tolist(), draw.to_numbers(proba.max(1)), places, strict=True))
    series = []
    for index in drawn:
        values = panel.values[index]
        panels = [
            {"name": f"channel {column}", "lines": [draw.line("value", "past", 0, values[:, place])]}
            for place, column in enumerate(panel.columns)
        ]
        series.append({"name": cases[index][0], "x": draw.axis(None, len(values)), "panels": panels})
    off = [f"channel {column}" for column in panel.columns[draw.COLUMNS_ON :]]
    chart = draw.chart(series, replace(panel, times=None), off)
    part: Part = {"kind": "cases", "of": "case", "names": list(names), "cases": cases, "chart": chart}
    if true is None:
        return part
    counts = confusion_matrix(torch.from_numpy(true), torch.from_numpy(guess), len(names))
    return {**part, "kind": "matrix", "counts": counts.tolist()}


def interval_text(own: Any) -> str:
    """The interval of the accuracy of a classifier, and what it does not cover; empty without one."""
    if (interval := own.validation_interval_) is None:
        return ""
    few = f"; {own.cases_} cases are too few to rely on it" if own.cases_ < _RELIABLE else ""
    return f"95 % interval {interval[0]:.3f} to {interval[1]:.3f}, only for new cases of the same source{few}"


def _stack_parts(own: Any) -> list[Part]:
    if own.stack_ is None:
        return [draw.text("Method: the network alone.")]
    text = "Accuracy by cross-validation on the cases of fit"
    if shown := interval_text(own):
        text += f"; the stack: {shown}"
    text += ". The stack is what classifies: it "
    table = draw.methods_table(own.weights_, {"accuracy": own.stack_.accuracies})
    return [draw.text(f"{text}{'; '.join(own.stack_.verdicts())}."), table]


def _occluded(own: Any, panel: Panel, guess: np.ndarray) -> Iterator[Part]:
    """How much the probability of the predicted class changes if a channel or some steps are replaced."""
    channels = panel.columns[:_CHANNELS]
    blocks = blocks_of(min(panel.lengths), _STEP_BLOCKS)
    count = 1 + len(blocks) + len(channels)
    chosen = min(len(panel), _CASES, max(1, 5 * draw.VALUES // (count * max(panel.lengths) * len(panel.columns))))
    means = np.concatenate(panel.values).mean(0)[:_CHANNELS]
    copies = [copy for values in panel.values[:chosen] for copy in draw.occluded(values, blocks, means)]
    ids = tuple(range(len(copies)))
    many = replace(panel, values=tuple(copies), ids=ids, times=None, rows=(), labels=None, backend=None)
    proba = own.classify(many)[1].reshape(chosen, count, -1)
    own_class = np.take_along_axis(proba, guess[:chosen, None, None], 2)[..., 0]  # (n, copies)
    change = np.abs(own_class[:, 1:] - own_class[:, :1]).mean(0).tolist()
    about = f"Mean change of the probability of the predicted class, over {chosen} cases, if"
    if len(channels) > 1:
        by_channel = zip(channels, change[len(blocks) :], strict=True)
        yield from draw.bars(f"{about} a channel is replaced by its mean over all cases.", by_channel)
    names = [f"steps {low + 1} to {high}" for low, high in blocks]
    by_step = zip(names, change[: len(blocks)], strict=True)
    yield from draw.bars(f"{about} these steps are replaced by a straight line.", by_step)
