"""Which columns of a table help to forecast which, for the page of a forecaster.

    strongest_pairs(fitted)         # [("demand north", "temperature", -0.42), …]
    list(pair_parts(fitted))        # a text and a table for the page

Alphabet: C columns.
"""

from collections.abc import Iterator

import numpy as np

from toa.estimators import page_parts as draw
from toa.estimators.all_columns import ALL_COLUMNS, FittedAllColumns
from toa.estimators.fitted import FittedForecaster

# pairs that the page shows
_SHOWN = 12
# smallest effect that is shown, in standard deviations
_LEAST_EFFECT = 0.01

# the column that is forecast, the one that helps, and its effect
Pair = tuple[str, str, float]


def strongest_pairs(fitted: FittedForecaster, most: int = _SHOWN) -> list[Pair]:
    """Pairs of different columns with the largest effects by the method that reads all columns; none without it."""
    method = fitted.panel_methods.get(ALL_COLUMNS)
    if not isinstance(method, FittedAllColumns):
        return []
    influence = method.ridge.influence()  # (C, C)
    np.fill_diagonal(influence, 0.0)
    order = np.argsort(-np.abs(influence), axis=None, kind="stable")[:most]
    places = zip(*np.unravel_index(order, influence.shape), strict=True)
    pairs = [(fitted.columns[row], fitted.columns[column], float(influence[row, column])) for row, column in places]
    return [pair for pair in pairs if abs(pair[2]) >= _LEAST_EFFECT]


def pair_parts(fitted: FittedForecaster) -> Iterator[draw.Part]:
    """A paragraph and a table of the strongest pairs; nothing without the method that reads all columns."""
    pairs = strongest_pairs(fitted)
    method = fitted.panel_methods.get(ALL_COLUMNS)
    if not pairs or not isinstance(method, FittedAllColumns):
        return
    weight = fitted.weights.get(ALL_COLUMNS, 0.0)
    rows = method.ridge.component_rows
    yield draw.text(
        f"Which columns help which, by the method {ALL_COLUMNS} (weight {weight:.2f}): change of the forecast, mean "
        f"over the steps, if the helping column is one standard deviation higher in the last {rows} rows and all "
        "others stay. Both are in standard deviations of their column. Columns that move together share their effect."
    )
    table = [(column, helper, f"{effect:+.2f}") for column, helper, effect in pairs]
    yield draw.table([("forecast of", "is helped by", "effect"), *table], "Strongest pairs of columns", left=2)
