"""The rows before a forecast: how many it reads, and how many it had where it was validated.

    context = ContextRows(validated)                    # rows (S, C) before the first origin of each series and column
    context.warn_of_short(panel, ids, columns, read=512)

A forecast from fewer rows than at the rolling origins is another one than was validated. Rows that no method with a
weight reads make no difference.

Alphabet: S series, C columns.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from toa._checks import ArgumentWarning, Phrase, as_part
from toa.data.panel import Id, Panel


@dataclass(frozen=True, slots=True, eq=False)
class ContextRows:
    """Rows (S, C) that each column of each series of fit had before its first origin; 0 if it had no origin."""

    validated: Int64[np.ndarray, "s c"]

    def of_series(self, owner: int | None) -> Int64[np.ndarray, " c"]:
        """Rows of each column of a series of fit, by its place; of a new series the fewest that were validated."""
        if owner is not None:
            return self.validated[owner]
        most = self.validated.max(initial=0)
        fewest: np.ndarray = np.where(self.validated > 0, self.validated, most).min(axis=0, initial=most)
        return fewest

    def warn_of_short(self, panel: Panel, ids: Sequence[Id], columns: Sequence[str], read: int) -> None:
        """Warn, once for all series, of those with fewer rows than are read and than were validated.

        Args:
            ids: Ids of the series of fit.
            read: Rows that a forecast reads.
        """
        owners = {name: place for place, name in enumerate(ids)}
        short = []
        for index, rows in enumerate(panel.lengths):
            owner = 0 if ids == (None,) else owners.get(panel.ids[index])
            needed = np.minimum(self.of_series(owner), read)
            begins = np.zeros(len(columns), dtype=np.int64)
            if panel.begins is not None:
                begins = panel.begins[index][[panel.columns.index(name) for name in columns]]
            lacking = needed - (rows - begins)
            if lacking.max() > 0:
                place = int(lacking.argmax())
                short.append((index, rows - int(begins[place]), int(needed[place])))
        if short:
            index, rows, needed_rows = short[0]
            others = f" (and {len(short) - 1} more series have too few)" if len(short) > 1 else ""
            text = Phrase(
                as_part(panel.label(index)),
                f" has {rows} {'row' if rows == 1 else 'rows'}{others}, but the forecast read {needed_rows} rows or "
                f"more wherever it was validated: its errors may be larger than measured; pass at least the last "
                f"{needed_rows} rows.",
            )
            warnings.warn(ArgumentWarning(text), stacklevel=4)
