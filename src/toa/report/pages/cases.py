"""The page of a classifier; see `toa.report.pages.parts`.

Alphabet: C channels, n cases, K classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toa.data.panel import Panel
from toa.estimators import Classifier
from toa.estimators.fitted_classifier import interval_text
from toa.estimators.importance import blocks_of
from toa.estimators.labels import class_codes, labels_by_row, unknown_labels
from toa.report.pages import parts as draw
from toa.report.pages.parts import PageText, Part
from toa.training.metrics import class_scores, confusion_matrix

# most channels that are replaced
_CHANNELS = 12
# most blocks of steps that are replaced
_STEP_BLOCKS = 8
# most cases in which they are
_CASES = 20
# values of changed cases that are classified, in values of a page
_CHANGED = 5


def cases_page(
    classifier: Classifier,
    path: str | Path,
    X: Any,
    y: Any = None,
    *,
    title: str = "Classes",
    command: str = "",
    left_out: Sequence[str] = (),
) -> Path:
    """Write the page of a classifier, see `toa.Classifier.page`."""
    panel, proba = classifier.classify(X)
    labels = panel.labels if y is None else panel.with_labels(labels_by_row(y, X)).labels
    names = list(map(str, classifier.classes_))
    predicted = proba.argmax(1)
    codes = class_codes(labels, classifier.classes_, len(panel))
    is_labelled = codes >= 0
    lead = [f"{len(panel)} cases, {len(names)} classes."]
    if is_labelled.any():
        scores = class_scores(torch.from_numpy(codes[is_labelled]), torch.from_numpy(predicted[is_labelled]))
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in scores.items())
        lead.append(f"On {is_labelled.sum()} cases with a label: {shown}.")
    if labels is not None and not is_labelled.all():
        lead.append(unknown_labels(labels[~is_labelled], len(panel)))
    true = codes if is_labelled.all() else None
    sections = {
        "Cases": [_cases_part(panel, names, true, predicted, proba)],
        "Methods": _stack_parts(classifier),
        "What the classes depend on": [
            *_occluded(classifier, panel, predicted),
            *draw.network_parts(classifier, [panel.values[0].T]),
        ],
    }
    notes = draw.describe_data(
        panel,
        X,
        missing=classifier.missing,
        used=(classifier.id, classifier.time, classifier.label),
        left_out=left_out,
    )
    facts = {"longest case": classifier.length_, "validation": classifier.validation_}
    text = PageText(title=title, lead=lead, notes=notes, facts=facts, command=command)
    return draw.write_page(classifier, path, text, sections)


def _cases_part(
    panel: Panel, names: Sequence[str], true: np.ndarray | None, predicted: np.ndarray, proba: np.ndarray
) -> Part:
    """The confusion matrix, or without labels the list of cases; the cases that were wrong are drawn first."""
    order = np.arange(len(panel)) if true is None else np.argsort(true == predicted, kind="stable")
    most = max(1, draw.VALUES // (max(panel.lengths) * len(panel.columns)))
    drawn = {int(index): place for place, index in enumerate(order[:most])}
    titles = map(str, range(1, len(panel) + 1) if panel.backend is None else panel.ids)
    classes = [None] * len(panel) if true is None else true.tolist()
    places = map(drawn.get, range(len(panel)))
    cases = list(zip(titles, classes, predicted.tolist(), draw.to_numbers(proba.max(1)), places, strict=True))
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
    counts = confusion_matrix(torch.from_numpy(true), torch.from_numpy(predicted), len(names))
    return {**part, "kind": "matrix", "counts": counts.tolist()}


def _stack_parts(classifier: Classifier) -> list[Part]:
    """How accurate the stack, its members and the baselines are."""
    stack = classifier.stack_
    if stack is None:
        return [draw.text("Method: the network alone.")]
    text = "Accuracy by cross-validation on the cases of fit"
    interval = interval_text(classifier.fitted_)
    if interval:
        text += f"; the stack: {interval}"
    text += f". The stack is what classifies: it {'; '.join(stack.verdicts())}."
    return [draw.text(text), draw.methods_table(classifier.weights_, {"accuracy": stack.accuracies})]


def _occluded(classifier: Classifier, panel: Panel, predicted: np.ndarray) -> Iterator[Part]:
    """How much the probability of the predicted class changes if a channel or some steps are replaced."""
    channels = panel.columns[:_CHANNELS]
    blocks = blocks_of(min(panel.lengths), _STEP_BLOCKS)
    count = 1 + len(blocks) + len(channels)
    values_per_case = count * max(panel.lengths) * len(panel.columns)
    chosen = min(len(panel), _CASES, max(1, _CHANGED * draw.VALUES // values_per_case))
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
    proba = classifier.classify(many)[1].reshape(chosen, count, -1)
    of_predicted = np.take_along_axis(proba, predicted[:chosen, None, None], 2)[..., 0]  # (n, copies)
    change = np.abs(of_predicted[:, 1:] - of_predicted[:, :1]).mean(0).tolist()
    about = f"Mean change of the probability of the predicted class, over {chosen} cases, if"
    if len(channels) > 1:
        by_channel = zip(channels, change[len(blocks) :], strict=True)
        yield from draw.bars(f"{about} a channel is replaced by its mean over all cases.", by_channel)
    names = [f"steps {low + 1} to {high}" for low, high in blocks]
    by_step = zip(names, change[: len(blocks)], strict=True)
    yield from draw.bars(f"{about} these steps are replaced by a straight line.", by_step)
