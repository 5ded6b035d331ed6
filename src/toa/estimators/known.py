"""What is known of steps before they come: calendar features and covariates, as features of a model.

Alphabet: T rows, K covariates, F features, P horizon, S series.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from toa.data.marks import mark_names, time_marks
from toa.data.scaling import StandardScaler
from toa.estimators.frames import Panel, read_panel
from toa.estimators.frequency import Frequency, calendar_of, continue_times


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """How features are made.

    Attributes:
        calendar: Which marks of `toa.data.time_marks`; None for none.
        covariates: Names of the columns that are known beforehand.
        scaler: Of these; None without any.
    """

    calendar: str | None
    covariates: tuple[str, ...]
    scaler: StandardScaler | None

    @classmethod
    def fit(cls, panel: Panel, *, calendar: bool, covariates: Sequence[str], borders: Sequence[int]) -> "Known":
        """Scale covariates by the rows of all series before their borders."""
        scaler = None
        if covariates:
            places = [panel.columns.index(name) for name in covariates]
            rows = [values[:border, places] for values, border in zip(panel.values, borders, strict=True)]
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
            parts.append(self.scaler.transform(covariates))
        return np.concatenate(parts, axis=1)  # (T, F)

    def past(self, panel: Panel, last: int | None = None) -> list[np.ndarray] | None:
        """Features of each series' rows, or of so many last ones; None if there are no features."""
        if not self.count:
            return None
        if self.calendar is not None and not (panel.times and isinstance(panel.times[0], pd.DatetimeIndex)):
            raise ValueError("data must have dates, which calendar features are made of, got none; pass a frame.")
        kept = slice(None) if last is None else slice(-last, None)
        places = [panel.columns.index(name) for name in self.covariates]
        times = [None] * len(panel.ids) if panel.times is None else [one[kept] for one in panel.times]
        return [self.features(when, rows[kept][:, places]) for when, rows in zip(times, panel.values, strict=True)]

    def future(self, panel: Panel, given: Any, steps: int, options: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Features of the steps after each series.

        Args:
            panel: The data that the forecast goes on from.
            given: Table of the covariates of the steps to come; None if there are no covariates.
            steps: How many.
            options: How to read it: id, time, missing.
        """
        if not self.covariates and given is not None:
            raise ValueError("future must be None for a forecaster without covariates, got a table; leave it out.")
        if not self.count:
            return None
        ahead = next_times(panel, steps)
        rows: list[Any] = [None] * len(panel.ids)
        if self.covariates:
            rows = self._given(panel, given, steps, ahead, options)
        return [self.features(when, row) for when, row in zip(ahead, rows, strict=True)]

    def _given(
        self, panel: Panel, given: Any, steps: int, ahead: Sequence[pd.Index | None], options: Mapping[str, Any]
    ) -> list[np.ndarray]:
        names = ", ".join(map(repr, self.covariates))
        if given is None:
            raise ValueError(f"future must have the covariates {names} of the {steps} steps to come, got None.")
        framed = not isinstance(given, np.ndarray | list | tuple)
        where = {"values": list(self.covariates), **options} if framed else {"missing": options["missing"]}
        # a single step has no frequency of its own
        table = read_panel(given, **where, freq=panel.freq if framed else None, name="future")
        if len(table.columns) != len(self.covariates):
            raise ValueError(f"future must have the columns {names}, got {len(table.columns)} columns.")
        found = []
        for place, one in enumerate(panel.ids):
            if one not in table.ids:
                raise ValueError(f"future must have rows of every id of data, got none of {one!r}.")
            own = table.ids.index(one)
            rows = table.values[own]
            if len(rows) < steps:
                raise ValueError(f"{table.label(own, 'future')} must have {steps} rows, got {len(rows)}.")
            expected = ahead[place]
            if table.times is not None and expected is not None:
                wrong = np.flatnonzero(table.times[own][:steps] != expected)
                if len(wrong):
                    raise ValueError(
                        f"{table.label(own, 'future')} must go on where data end, at {expected[wrong[0]]}, got "
                        f"{table.times[own][wrong[0]]} at its row {wrong[0] + 1}."
                    )
            found.append(rows[:steps])
        return found

    def state(self) -> dict[str, Any]:
        """As JSON has it."""
        scaler = None if self.scaler is None else self.scaler.json_state()
        return {"calendar": self.calendar, "covariates": list(self.covariates), "scaler": scaler}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Known":
        """From what `state` gave."""
        scaler = None if state["scaler"] is None else StandardScaler.from_state(state["scaler"])
        return cls(calendar=state["calendar"], covariates=tuple(state["covariates"]), scaler=scaler)


def next_times(panel: Panel, steps: int) -> list[pd.Index | None]:
    """The stamps that follow each series; None where there are no times."""
    if panel.times is None or panel.freq is None:
        return [None] * len(panel.ids)
    freq: Frequency = panel.freq
    # most series of a table end together
    ends = [times[-1] for times in panel.times]
    ahead: dict[Any, pd.Index] = {end: continue_times(end, freq, steps) for end in dict.fromkeys(ends)}
    return [ahead[end] for end in ends]


def tail(panel: Panel, rows: int) -> Panel:
    """The last rows of each series."""
    return replace(
        panel,
        values=tuple(values[-rows:] for values in panel.values),
        times=None if panel.times is None else tuple(times[-rows:] for times in panel.times),
        rows=tuple(own[-rows:] for own in panel.rows),
    )


def stacked(parts: Sequence[np.ndarray] | None) -> Tensor | None:
    """Features of all series (S, T, F) in float32."""
    return None if parts is None else torch.from_numpy(np.stack(parts)).float()
