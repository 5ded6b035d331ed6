"""Labels of cases: by row or by id, as places among the classes of a classifier."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

# labels that a sentence names
_SHOWN = 8


def labels_by_row(y: Any, cases: Any) -> Any:
    """A pandas series with the index of the frame `cases` as the labels of its rows; any other y unchanged."""
    is_by_row = isinstance(y, pd.Series) and isinstance(cases, pd.DataFrame) and y.index.equals(cases.index)
    return y.to_numpy() if is_by_row else y


def class_codes(labels: Any, classes: np.ndarray, count: int) -> np.ndarray:
    """Places of the labels of `count` cases among the classes, compared as text if one of the two is; -1 for others."""
    if labels is None:
        return np.full(count, -1)
    label_list = np.asarray(labels).tolist()
    class_list = np.asarray(classes).tolist()
    is_text = any(isinstance(name, str) for name in (*label_list, *class_list))
    places = {str(name) if is_text else name: place for place, name in enumerate(class_list)}
    return np.array([places.get(str(label) if is_text else label, -1) for label in label_list])


def unknown_labels(labels: np.ndarray, count: int) -> str:
    """A sentence that names labels which are not classes of the model, of a number of cases."""
    counted = [f"{label!r} ({number})" for label, number in Counter(map(str, labels)).most_common()]
    listed = ", ".join(counted[:_SHOWN])
    if len(counted) > _SHOWN:
        listed += " …"
    return f"{len(labels)} of {count} cases are not evaluated: their labels are not classes of the model: {listed}."
