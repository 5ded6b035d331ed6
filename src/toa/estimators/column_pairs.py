"""Which columns of a table help to forecast which.

    strongest_pairs(fitted)         # [("demand north", "temperature", -0.42), …]

Alphabet: C columns.
"""

import numpy as np

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
