"""Tables as other libraries have them: names of columns that need no options, and ids and times in the index.

layout = find_layout(frame.columns)           # StatsForecast, NeuralForecast, MLForecast; AutoGluon, Chronos
data, id, time = to_table(data, id, time)     # a Series, dates and ids in the index, periods
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from narwhals.dependencies import is_polars_series

# name of the values of a Series without a name
_VALUES = "value"
# levels of an index with ids and times
_LEVELS = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of ids, of times and of the values to forecast."""

    id: str
    time: str
    target: str


LAYOUTS = (
    # StatsForecast, NeuralForecast, MLForecast
    Layout("unique_id", "ds", "y"),
    # AutoGluon, Chronos
    Layout("item_id", "timestamp", "target"),
)


def find_layout(columns: Iterable[object]) -> Layout | None:
    """The layout whose columns of ids and times a table has; None if it has none."""
    names = set(map(str, columns))
    return next((layout for layout in LAYOUTS if {layout.id, layout.time} <= names), None)


def to_table(data: Any, id: str | None, time: str | None) -> tuple[Any, str | None, str | None]:
    """The data as a frame with ids and times in columns or times in the index, and the names of both if they are known.

    A Series becomes a frame with one column. A pandas index of ids and dates becomes two columns, and periods their
    first days. Names of columns in several levels are joined by a space.
    """
    if isinstance(data, pd.Series):
        data = data.to_frame(_VALUES if data.name is None else data.name)
    elif is_polars_series(data):
        return data.to_frame(data.name or _VALUES), id, time
    if not isinstance(data, pd.DataFrame):
        return data, id, time
    if isinstance(data.columns, pd.MultiIndex):
        data = data.set_axis([" ".join(map(str, parts)).strip() for parts in data.columns], axis=1)
    if isinstance(data.index, pd.PeriodIndex):
        data = data.set_axis(data.index.to_timestamp(), axis=0)
    if id is None and time is None and isinstance(data.index, pd.MultiIndex) and data.index.nlevels == _LEVELS:
        dated = [isinstance(level, pd.DatetimeIndex | pd.PeriodIndex) for level in data.index.levels]
        if sum(dated) == 1 and not pd.api.types.is_float_dtype(data.index.levels[dated.index(False)].dtype):
            return _levels_as_columns(data, dated.index(True))
    return data, id, time


def _levels_as_columns(data: pd.DataFrame, dated: int) -> tuple[pd.DataFrame, str, str]:
    """The frame with the levels of its index as columns; the level `dated` has the times."""
    levels = data.index.levels[dated]
    if isinstance(levels, pd.PeriodIndex):
        data = data.set_axis(data.index.set_levels(levels.to_timestamp(), level=dated), axis=0)
    time = str(data.index.names[dated] or "time")
    id = str(data.index.names[1 - dated] or "id")
    return data.rename_axis([id, time] if dated else [time, id]).reset_index(), id, time
