"""Columns of text: categories become their places in a list, and constant text is left out."""

import warnings
from collections.abc import Collection, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from toa._limits import shorten


def is_number(text: str) -> bool:
    """Whether text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def categories_of(column: Any, known: Sequence[str] | None) -> tuple[str, ...] | None:
    """The texts of a column, sorted, or those that are known; None for a column of numbers."""
    if column.dtype.is_numeric() or (known is None and column.dtype.is_temporal()):
        return None
    texts = {str(cell) for cell in column.drop_nulls().unique().to_list()} if known is None else known
    return tuple(sorted(texts) if known is None else texts)


def to_codes(column: Any, known: Sequence[str], name: str) -> np.ndarray:
    """The place of each cell in the known categories."""
    places = {text: place for place, text in enumerate(known)}
    found = [None if cell is None or cell != cell else places.get(str(cell), -1) for cell in column.to_list()]
    for row, code in enumerate(found):
        if code is None or code < 0:
            cell = "none" if code is None else repr(column[row])
            raise ValueError(
                f"column {column.name!r} of {name} must have a category of fit in every row, {shorten(list(known))}, "
                f"got {cell} at data row {row + 1}; change it, or fit again."
            )
    return np.asarray(found, dtype=np.float64)


def without_text(frame: Any, columns: Sequence[Any], kept_text: Collection[str], ids: Any, name: str) -> list[Any]:
    """The columns but those of text that are constant in each series; a warning names these."""
    kept: list[Any] = []
    left: list[Any] = []
    for column in columns:
        cells = frame.get_column(column)
        constant = False
        named = str(column) in kept_text
        if (
            not named
            and cells.dtype in (nw.String, nw.Object, nw.Categorical)
            and len(cells)
            and isinstance(cells[0], str)
        ):
            found = pd.DataFrame({"id": 0 if ids is None else ids, "cell": cells.to_numpy()})
            # text that begins like a number, such as '12 MW', should have been one
            constant = (
                cells[0].strip()[:1] not in "+-.0123456789" and len(found.drop_duplicates()) == found["id"].nunique()
            )
        (left if constant else kept).append(column)
    if left:
        shown = ", ".join(map(repr, left))
        warnings.warn(
            f"columns of {name} with the same text in all rows of a series are left out: {shown}.", stacklevel=4
        )
    return kept
