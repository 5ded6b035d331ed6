"""What is said of each row of a table, given back in the order of the table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from toa.estimators.frames import Panel


def match_columns(panel: Panel, wanted: Sequence[str], name: str = "data") -> Panel:
    """A panel with its channels in the order of fit.

    Raises:
        ValueError: If one is missing or new.
    """
    missing = [column for column in wanted if column not in panel.columns]
    new = [column for column in panel.columns if column not in wanted]
    if missing or new:
        found = f"no {missing[0]!r}" if missing else f"a new one, {new[0]!r}"
        raise ValueError(
            f"{name} must have the columns of fit, {', '.join(map(repr, wanted))}, got {found}; choose columns with "
            "values, or fit again."
        )
    order = [panel.columns.index(column) for column in wanted]
    return replace(panel, columns=tuple(wanted), values=tuple(values[:, order] for values in panel.values))


def rows_in_order(panel: Panel, parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Columns of an answer, a row for each of the table: ids, times, and what `parts` say of each series' rows.

    Rows that were filled in are left out.
    """
    real = [rows >= 0 for rows in panel.rows]
    order = np.argsort(np.concatenate([rows[kept] for rows, kept in zip(panel.rows, real, strict=True)]))
    columns: dict[str, Any] = {}
    if panel.id_column is not None:
        repeated = np.repeat(np.asarray(panel.ids, dtype=object), [int(kept.sum()) for kept in real])
        columns[panel.id_column] = pd.Series(repeated[order]).infer_objects().to_numpy()
    if panel.times is not None:
        assert panel.time_column is not None
        first, *others = (times[kept] for times, kept in zip(panel.times, real, strict=True))
        columns[panel.time_column] = first.append(others).take(order)
    for name in parts[0]:
        whole = np.concatenate([part[name][kept] for part, kept in zip(parts, real, strict=True)])
        columns[name] = whole[order]
    return columns
