"""Covariates: features of each step that are known in advance, from the calendar and from covariate columns.

Alphabet: T rows, K covariates, F features, P horizon, S series.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from toa.data.frames import read_panel
from toa.data.frequency import calendar_of, mark_names, time_marks
from toa.data.panel import Panel
from toa.data.splits import StandardScaler, check_standardised


@dataclass(frozen=True, kw_only=True, slots=True)
class Covariates:
    """How to compute the features.

    Attributes:
        calendar: `freq` of `toa.data.time_marks`; None for no calendar features.
        scaler: Scaler of these columns; None without any.
    """

    calendar: str | None
    covariates: tuple[str, ...]
    scaler: StandardScaler | None

    @classmethod
    def fit(cls, panel: Panel, *, calendar: bool, covariates: Sequence[str], borders: Sequence[int]) -> "Covariates":
        """Fit the scaler to the rows of all series before their borders."""
        scaler = None
        if covariates:
            rows = [values[:border] for values, border in zip(panel.take(covariates), borders, strict=True)]
            scaler = StandardScaler.fit(np.concatenate(rows), columns=covariates, allow_constant=True)
        marks = calendar_of(panel.freq) if calendar else None
        return cls(calendar=marks, covariates=tuple(covariates), scaler=scaler)

    @property
    def count(self) -> int:
        """Number of features F."""
        return (0 if self.calendar is None else len(mark_names(self.calendar))) + len(self.covariates)

    def features(self, times: pd.Index | None, covariates: Float64[np.ndarray, "t k"] | None) -> np.ndarray:
        """Features (T, F) of steps."""
        parts = []
        if self.calendar is not None:
            assert isinstance(times, pd.DatetimeIndex)
            parts.append(time_marks(times, self.calendar))
        if self.scaler is not None:
            assert covariates is not None
            parts.append(check_standardised(self.scaler.transform(covariates), self.covariates, "covariates"))
        return np.concatenate(parts, axis=1)  # (T, F)

    def past(self, panel: Panel) -> list[np.ndarray] | None:
        """Features (T, F) of the rows of each series; None without features."""
        if not self.count:
            return None
        if self.calendar is not None and not (panel.times and isinstance(panel.times[0], pd.DatetimeIndex)):
            raise ValueError("data must have dates for calendar features, got none; pass a frame.")
        times = [None] * len(panel) if panel.times is None else panel.times
        return [self.features(when, rows) for when, rows in zip(times, panel.take(self.covariates), strict=True)]

    def future(self, panel: Panel, given: Any, steps: int, options: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Features (P, F) of the `steps` steps after each series of the panel; None without features.

        `given` is the table of future covariates; `options` are arguments of `read_panel`, with which it is read.
        """
        if not self.covariates and given is not None:
            raise ValueError("future must be None for a forecaster without covariates, got a table; leave it out.")
        if not self.count:
            return None
        ahead = panel.next_times(steps)
        rows: list[Any] = [None] * len(panel)
        if self.covariates:
            rows = self._read_future(panel, given, steps, ahead, options)
        return [self.features(when, row) for when, row in zip(ahead, rows, strict=True)]

    def _read_future(
        self, panel: Panel, given: Any, steps: int, ahead: Sequence[pd.Index | None], options: Mapping[str, Any]
    ) -> list[np.ndarray]:
        names = ", ".join(map(repr, self.covariates))
        if given is None:
            raise ValueError(f"future must have the covariates {names} of the next {steps} steps, got None.")
        # the frequency cannot be inferred from a single step
        table = read_panel(given, values=self.covariates, **options, freq=panel.freq, name="future")
        if len(table.columns) != len(self.covariates):
            raise ValueError(f"future must have the columns {names}, got {len(table.columns)} columns.")
        found = []
        for one, expected in zip(panel.ids, ahead, strict=True):
            if one not in table.ids:
                raise ValueError(f"future must have rows of every id of data, got none of {one!r}.")
            own = table.ids.index(one)
            rows = table.values[own]
            if len(rows) < steps:
                raise ValueError(f"{table.label(own, 'future')} must have {steps} rows, got {len(rows)}.")
            if table.times is not None and expected is not None:
                wrong = np.flatnonzero(table.times[own][:steps] != expected)
                if len(wrong):
                    raise ValueError(
                        f"{table.label(own, 'future')} must continue data, with {expected[wrong[0]]}, got "
                        f"{table.times[own][wrong[0]]} at its row {wrong[0] + 1}."
                    )
            found.append(rows[:steps])
        return found

    def state(self) -> dict[str, Any]:
        """The fields as JSON values."""
        scaler = self.scaler and {name: values.tolist() for name, values in self.scaler.state().items()}
        return {"calendar": self.calendar, "covariates": list(self.covariates), "scaler": scaler}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Covariates":
        """From the result of `state`."""
        scaler = None if state["scaler"] is None else StandardScaler.from_state(state["scaler"])
        return cls(calendar=state["calendar"], covariates=tuple(state["covariates"]), scaler=scaler)
