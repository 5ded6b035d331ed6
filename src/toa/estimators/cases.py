"""Series to classify, read from what people have: arrays as aeon lays them out, lists of unequal length, long frames.

    read_cases(array)                              # (n, C, L), or (n, L) for one channel
    read_cases([first, second])                    # each (C, l) or (l,)
    read_cases(frame, id="case", label="class")    # long: the rows of an id are a case
    read_cases(frame, label="class")               # wide: a row is a case of one channel, a column a step

What is refused, naming case and channel or row and column: text among numbers, infinities, missing values unless
`missing` says how to fill them, cases that differ in channels or have no step, labels that are missing.

Alphabet: n cases, C channels, l steps of a case.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
from jaxtyping import Float64
from sklearn.exceptions import DataConversionWarning

from toa._checks import check_choice
from toa.data.series import fill_missing, to_numbers
from toa.estimators.frames import MISSING, Id, Missing, Panel, read_panel

Case = Float64[np.ndarray, "l c"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CaseTable:
    """Cases of one table.

    Attributes:
        cases: Each (l, C), finite.
        columns: Names of the channels.
        labels: One a case, where the table has them.
        panel: The frame that they were read from; None for arrays.
    """

    cases: tuple[Case, ...]
    columns: tuple[str, ...]
    labels: np.ndarray | None = None
    panel: Panel | None = None

    def name(self, place: int) -> str:
        """What errors call a case."""
        return f"case {place + 1}" if self.panel is None else f"case {self.panel.ids[place]!r}"


def read_cases(
    data: Any,
    *,
    id: str | None = None,
    time: str | None = None,
    values: Sequence[str] | None = None,
    label: str | None = None,
    missing: Missing = "error",
    name: str = "X",
) -> CaseTable:
    """Read an array, a list of arrays, or a frame of pandas, polars or arrow.

    Args:
        data: The cases.
        id: In a long frame, the column that says which case a row is of; None if each row is a case.
        time: In a frame, the column of times, or of steps; None finds dates.
        values: In a frame, the channels, or the steps of a wide one; None is all other columns.
        label: In a frame, the column of the class, the same in all rows of a case; it may be absent.
        missing: "error", or how missing values are filled within a case; see `toa.estimators.frames.read_panel`.
        name: What errors call the data.

    Raises:
        ValueError: For whatever cannot be read as it stands.
    """
    check_choice("missing", missing, MISSING)
    if hasattr(data, "toarray"):
        raise ValueError(f"{name} must be dense, got sparse data, {type(data).__name__}; call toarray() on it.")
    if not isinstance(data, list | tuple) and hasattr(data, "__array__") and not hasattr(data, "columns"):
        data = np.asarray(data)
    if isinstance(data, np.ndarray | list | tuple):
        return _read_arrays(data, missing, name)
    if id is None:
        return _read_wide(data, values, label, missing, name)
    labels, data = _take_labels(data, id, label, name)
    panel = read_panel(data, id=id, time=time, values=values, missing=missing, name=name)
    found = None if labels is None else labels_of(labels, panel, name)
    return CaseTable(cases=panel.values, columns=panel.columns, labels=found, panel=panel)


def labels_of(y: Any, panel: Panel | None, name: str = "y") -> np.ndarray:
    """Labels in the order of the cases, from one a case, or from a mapping or a pandas series by id."""
    if panel is not None and isinstance(y, Mapping | pd.Series):
        for one in panel.ids:
            if one not in y:
                raise ValueError(f"{name} must have a label for each case, got none for case {one!r}; add it.")
        y = [y[one] for one in panel.ids]
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        told = f"A column-vector {name} was passed when a 1d array was expected; its one column is taken."
        warnings.warn(told, DataConversionWarning, stacklevel=4)
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"{name} must be one label a case, got shape {labels.shape}.")
    empty = np.flatnonzero(pd.isna(labels))
    if len(empty):
        raise ValueError(f"{name} must have a label for each case, got none for case {empty[0] + 1}; add or drop it.")
    return labels


def _take_labels(data: Any, id: str, label: str | None, name: str) -> tuple[dict[Id, Any] | None, Any]:
    """The label of each id, and the frame without their column."""
    if label is None:
        return None, data
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        # reading says what is wrong
        return None, data
    if label not in frame.columns:
        return None, data
    rest = frame.drop(label).to_native()
    if id not in frame.columns:
        return None, rest
    found: dict[Id, Any] = {}
    pairs = zip(frame.get_column(id).to_list(), frame.get_column(label).to_list(), strict=True)
    for row, (one, kind) in enumerate(pairs, 1):
        if pd.isna(kind):
            raise ValueError(f"{name} must have a label in every row, got none in column {label!r} at data row {row}.")
        if found.setdefault(one, kind) != kind:
            raise ValueError(
                f"{name} must have one label a case, got {kind!r} after {found[one]!r} for case {one!r} in column "
                f"{label!r} at data row {row}."
            )
    return found, rest


def _read_wide(data: Any, values: Sequence[str] | None, label: str | None, missing: Missing, name: str) -> CaseTable:
    """A frame with a case in each row."""
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        raise ValueError(
            f"{name} must be an array, a list of arrays, or a frame of pandas, polars or arrow, got "
            f"{type(data).__name__}."
        ) from None
    labels = None
    if label is not None and label in frame.columns:
        labels = np.asarray(frame.get_column(label).to_list())
        empty = np.flatnonzero(frame.get_column(label).is_null().to_numpy())
        if len(empty):
            raise ValueError(
                f"{name} must have a label in every row, got none in column {label!r} at data row {empty[0] + 1}."
            )
        frame = frame.drop(label)
    if values is not None:
        frame = frame.select(list(values))
    table = pd.DataFrame({str(column): frame.get_column(column).to_numpy() for column in frame.columns})
    found = _read_arrays(to_numbers(table, name), missing, name)
    return CaseTable(cases=found.cases, columns=found.columns, labels=labels)


def _read_arrays(data: Any, missing: Missing, name: str) -> CaseTable:
    if isinstance(data, np.ndarray) and data.dtype != object:
        if data.ndim == 2:
            data = data[:, None]  # (n, 1, L)
        if data.ndim != 3:
            raise ValueError(
                f"{name} must be an array (n, C, L) of n cases with C channels, or (n, L), got shape {data.shape}. "
                "Reshape your data: one case is array[None]."
            )
    if not len(data):
        raise ValueError(f"{name} must have at least one case, got 0 sample(s).")
    cases = []
    for place, entry in enumerate(data, 1):
        case = np.asarray(entry)
        what = f"case {place} of {name}"
        if case.ndim == 1:
            case = case[None]
        if case.ndim != 2 or not case.size:
            raise ValueError(f"{what} must be an array (C, l) or (l,) with a step at least, got shape {case.shape}.")
        cases.append(_finite(_as_numbers(case.T, what), missing, what))
        if case.shape[0] != cases[0].shape[1]:
            raise ValueError(
                f"{what} must have {cases[0].shape[1]} channels, as the first case has, got {case.shape[0]}."
            )
    columns = tuple(str(place) for place in range(cases[0].shape[1]))
    return CaseTable(cases=tuple(cases), columns=columns)


def _as_numbers(case: np.ndarray, what: str) -> Case:
    if np.iscomplexobj(case):
        raise ValueError(f"{what} must hold real numbers, got {case.dtype}. Complex data not supported.")
    try:
        return np.ascontiguousarray(case, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what} must hold numbers alone, got {error}; convert it first.") from None


def _finite(case: Case, missing: Missing, what: str) -> Case:
    names = [f"channel {place}" for place in range(case.shape[1])]
    if np.isinf(case).any():
        step, channel = np.argwhere(np.isinf(case))[0].tolist()
        raise ValueError(f"{what} must be finite, got infinity (inf) in channel {channel} at step {step}; remove it.")
    absent = np.isnan(case)
    if absent.all(0).any():
        channel = absent.all(0).argmax()
        raise ValueError(f"{what} must have a value in each channel, got NaN alone in channel {channel}.")
    if missing == "error" and absent.any():
        step, channel = np.argwhere(absent)[0].tolist()
        raise ValueError(
            f"{what} must have no missing values, got {int(absent.sum())} NaN, the first in channel {channel} at step "
            f"{step}; fill them with missing='ffill' (the last value) or missing='interpolate' (linear)."
        )
    return fill_missing(case, names, what, None if missing == "error" else missing, option="missing")
