"""Classification results to look at: the confusion matrix of a run."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from toa.experiments.records import Record

# beyond this many classes numbers in the cells would not be read
_NUMBERED = 15


def draw_confusion(record: Record) -> Figure:
    """How many cases of each true class (rows) were taken for each (columns), shaded by the share of the row.

    Raises:
        ValueError: If the record is of no classification.
    """
    if "confusion" not in record:
        raise ValueError(f"record must be of a classification, got task {record.get('task')!r}; choose another.")
    metrics, config = record["metrics"], record["config"]
    title = (
        f"{record['name']} on {Path(str(config['dataset'])).name.split('_TRAIN.ts')[0]}, {config['evaluation']}\n"
        f"accuracy {metrics['accuracy']:.3f}, balanced {metrics['balanced_accuracy']:.3f}, "
        f"macro F1 {metrics['macro_f1']:.3f}"
    )
    return draw_counts(np.array(record["confusion"]), [str(name) for name in record["classes"]], title)


def draw_counts(counts: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """A matrix (K, K) of how many cases of each true class (rows) were taken for each (columns)."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = max(4.0, 1.6 + 0.36 * len(names))
    figure = plt.figure(figsize=(size + 1.0, size), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0)
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    axis.set_title(title, fontsize=10)
    if len(names) <= _NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                shade = "white" if share[row, column] > 0.5 else "black"
                axis.text(column, row, str(count), ha="center", va="center", color=shade, fontsize=9)
    plt.colorbar(image, ax=axis, shrink=0.8, label="share of the true class")
    return figure


def draw_probabilities(proba: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Probability of each class (columns) for each case (rows), where true classes are not known."""
    figure = plt.figure(figsize=(max(4.0, 2.0 + 0.4 * len(names)), 6.0), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(proba, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_xlabel("class")
    axis.set_ylabel("case")
    axis.set_title(title, fontsize=10)
    plt.colorbar(image, ax=axis, shrink=0.8, label="probability")
    return figure


def write_confusion(record: Record, path: Path) -> Path:
    """Draw the confusion matrix of a record into a PNG file."""
    figure = draw_confusion(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
