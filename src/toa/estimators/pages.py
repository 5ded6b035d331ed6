"""`.page()` of classifiers: one HTML file that needs no other; see `toa.estimators.page_parts`.

Alphabet: C channels, n cases, K classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toa.data.panel import Panel
from toa.estimators import page_parts as draw
from toa.estimators.importance import blocks_of
from toa.estimators.labels import class_codes, labels_by_row, unknown_labels
from toa.estimators.page_parts import Part
from toa.training.metrics import class_scores, confusion_matrix

# most channels that are replaced
_CHANNELS = 12
# most blocks of steps, and cases, that are replaced
_STEP_BLOCKS, _CASES = 8, 20
# an interval of the accuracy of fewer cases is not reliable
_RELIABLE = 30


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
    parts: dict[str, Any] = {
        "values": tuple(copies),
        "ids": ids,
        "times": None,
        "rows": (),
        "labels": None,
        "filled": None,
    }
    many = replace(panel, backend=None, **parts)
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
