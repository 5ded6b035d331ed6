"""Forecasts as a table of the kind that the data were."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from toa.estimators.frames import Panel
from toa.estimators.horizon import Outcome
from toa.estimators.known import next_times


def answer(panel: Panel, outcome: Outcome, steps: int, columns: Sequence[str], levels: Sequence[float]) -> Any:
    """The first steps of a forecast for each series: a frame, or arrays where the data were such."""
    found = {name: part[:, :steps].numpy() for name, part in outcome._asdict().items() if part is not None}
    if panel.backend is None:
        arrays = [{name: part[place] for name, part in found.items()} for place in range(len(panel.ids))]
        answers = [one if len(one) > 1 else one["forecast"] for one in arrays]
        return answers[0] if panel.ids == (None,) else answers
    table: dict[str, Any] = {}
    if panel.id_column is not None:
        table[panel.id_column] = ids_of(panel, np.repeat(np.arange(len(panel.ids)), steps))
    if panel.time_column is not None:
        first, *others = (times for times in next_times(panel, steps) if times is not None)
        table[panel.time_column] = first.append(others)
    else:
        table["step"] = np.tile(np.arange(1, steps + 1), len(panel.ids))
    return panel.give_back(table | named_columns(found, columns, levels))


def named_columns(found: dict[str, np.ndarray], columns: Sequence[str], levels: Sequence[float]) -> dict[str, Any]:
    """Arrays (N, P, C) and (N, P, Q, C) as columns of a table: "a", "a_q0.1", "a_lower", "a_upper"."""
    table: dict[str, Any] = {}
    for place, name in enumerate(columns):
        table[name] = found["forecast"][:, :, place].ravel()
        for number, level in enumerate(levels):
            table[f"{name}_q{level:g}"] = found["quantiles"][:, :, number, place].ravel()
        for end in ("lower", "upper"):
            if end in found:
                table[f"{name}_{end}"] = found[end][:, :, place].ravel()
    return table


def ids_of(panel: Panel, places: np.ndarray) -> np.ndarray:
    """Ids of these series, as whole numbers or text."""
    return pd.Series(np.asarray(panel.ids, dtype=object)[places]).infer_objects().to_numpy()
