"""Covariates: features of each step, from the calendar, holidays and columns that are not forecast.

Alphabet: T rows, K covariates, F features, P horizon, S series.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from toa._checks import Argument, ArgumentError, Phrase
from toa._limits import shorten
from toa.data.frames import read_panel
from toa.data.frequency import calendar_of, mark_names, time_marks
from toa.data.panel import Panel
from toa.data.scaling import StandardScaler, check_standardised


@dataclass(frozen=True, kw_only=True, slots=True)
class Covariates:
    """How to compute the features: calendar, holidays, then the columns, those that are known only in the past last.

    Attributes:
        calendar: `freq` of `toa.data.time_marks`; None for no calendar features.
        scaler: Scaler of the columns of numbers; None without any.
        static: Columns that are constant in each series.
        past_covariates: Columns that are known only in the past.
        categories: Texts of the columns that hold text; such a column has a feature per text.
        holidays: Country, with or without a region: "DE", "US-CA"; None for no holidays.
    """

    calendar: str | None = None
    covariates: tuple[str, ...] = ()
    scaler: StandardScaler | None = None
    static: tuple[str, ...] = ()
    past_covariates: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    holidays: str | None = None

    def fit(self, panel: Panel, borders: Sequence[int], *, calendar: bool) -> "Covariates":
        """The same with the scaler of the rows of all series before their borders, and with or without a calendar."""
        names = self.columns
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ArgumentError("a covariate", "have one kind", f"{twice!r} twice", "name it once")
        numbers = [name for name in names if name not in panel.categories]
        scaler = None
        if numbers:
            rows = [values[:border] for values, border in zip(panel.take(numbers), borders, strict=True)]
            scaler = StandardScaler.fit(np.concatenate(rows), columns=numbers, allow_constant=True)
        if self.holidays is not None:
            dated = isinstance(panel.freq, str)
            if not dated or calendar_of(panel.freq) == "W":
                where = "steps longer than a day" if dated else "data without dates"
                raise ArgumentError("holidays", f"be left out for {where}", repr(self.holidays))
        marks = calendar_of(panel.freq) if calendar else None
        return replace(self, calendar=marks, scaler=scaler, categories=dict(panel.categories))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that features are made of, those that are known only in the past last."""
        return (*self.covariates, *self.static, *self.past_covariates)

    @property
    def names(self) -> tuple[str, ...]:
        """Of each feature the column that it is made of, or "calendar" or "holidays"."""
        marks = 0 if self.calendar is None else len(mark_names(self.calendar))
        holidays = [] if self.holidays is None else ["holidays"]
        columns = (name for name in self.columns for _ in range(self._width(name)))
        return (*["calendar"] * marks, *holidays, *columns)

    @property
    def count(self) -> int:
        """Number of features F."""
        return len(self.names)

    @property
    def past_count(self) -> int:
        """Number of features that are known only in the past."""
        return sum(map(self._width, self.past_covariates))

    def _width(self, column: str) -> int:
        return len(self.categories.get(column, ("",)))

    def features(self, times: pd.Index | None, rows: Float64[np.ndarray, "t k"]) -> np.ndarray:
        """Features (T, F) of steps, from the values of `columns`."""
        parts = []
        if self.calendar is not None:
            assert isinstance(times, pd.DatetimeIndex)
            parts.append(time_marks(times, self.calendar))
        if self.holidays is not None:
            assert isinstance(times, pd.DatetimeIndex)
            parts.append(_holiday_marks(times, self.holidays))
        places = {name: place for place, name in enumerate(self.columns)}
        columns = {name: rows[:, [places[name]]] == np.arange(len(texts)) for name, texts in self.categories.items()}
        if self.scaler is not None:
            numbers = [name for name in self.columns if name not in self.categories]
            scaled = self.scaler.transform(rows[:, [places[name] for name in numbers]])
            check_standardised(scaled, numbers, "covariates")
            columns |= {name: scaled[:, [place]] for place, name in enumerate(numbers)}
        return np.concatenate([*parts, *(columns[name] for name in self.columns)], axis=1, dtype=np.float64)  # (T, F)

    def past(self, panel: Panel) -> list[np.ndarray] | None:
        """Features (T, F) of the rows of each series; None without features."""
        if not self.count:
            return None
        self._check(panel)
        times = [None] * len(panel) if panel.times is None else panel.times
        return [self.features(when, rows) for when, rows in zip(times, panel.take(self.columns), strict=True)]

    def hold(
        self,
        marks: np.ndarray,
        features: Sequence[np.ndarray],
        panel: Panel,
        places: Sequence[tuple[int, int]],
        lookback: int,
    ) -> np.ndarray:
        """Windows of features (W, T, F) in which a past covariate with an open gap repeats its last value.

        Args:
            features: Features (T, F) of the rows of each series, of which the windows are a part.
            places: Of each window its series and the first row after the look-back.
        """
        numbers = [name for name in self.past_covariates if name not in self.categories]
        if not numbers:
            return marks
        for window, (index, end) in enumerate(places):
            steps = np.arange(end - lookback, end).clip(0)
            for column, last in panel.open_gaps(index, end).items():
                if column in numbers:
                    place = self.names.index(column)
                    marks[window, :lookback][steps > last, place] = features[index][last, place]
        return marks

    def _check(self, panel: Panel) -> None:
        dated = panel.times and isinstance(panel.times[0], pd.DatetimeIndex)
        if (self.calendar is not None or self.holidays is not None) and not dated:
            raise ArgumentError("data", "have dates for calendar features", "none", "pass a frame")
        for index, rows in enumerate(panel.take(self.static)):
            varying = np.flatnonzero(np.ptp(rows, axis=0))
            if len(varying):
                raise ArgumentError(
                    panel.label(index),
                    f"have one value in the static column {self.static[varying[0]]!r}",
                    "several",
                    "name it as a covariate instead",
                )

    def future(self, panel: Panel, table: Any, steps: int, options: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Features (P, F) of the `steps` steps after each series of the panel; None without features.

        `table` has the future covariates; `options` are arguments of `read_panel`, with which it is read.
        """
        if not self.covariates and table is not None:
            raise ArgumentError(
                "future",
                "be None for a forecaster without covariates",
                "a table",
                "leave it out",
                Phrase("fit with ", Argument("covariates")),
            )
        if not self.count:
            return None
        self._check(panel)
        ahead = panel.next_times(steps)
        covariates = [np.zeros((steps, 0))] * len(panel)
        if self.covariates:
            covariates = self._read_future(panel, table, steps, ahead, options)
        # static columns keep their value, and the model does not use the others
        kept = [np.repeat(rows[-1:], steps, axis=0) for rows in panel.take((*self.static, *self.past_covariates))]
        both = [np.concatenate(pair, axis=1) for pair in zip(covariates, kept, strict=True)]
        return [self.features(when, row) for when, row in zip(ahead, both, strict=True)]

    def _read_future(
        self, panel: Panel, table: Any, steps: int, ahead: Sequence[pd.Index | None], options: Mapping[str, Any]
    ) -> list[np.ndarray]:
        """Covariates (P, K) of the steps after each series, by their ids and times."""
        names = ", ".join(map(repr, self.covariates))
        if table is None:
            raise ArgumentError(
                "future",
                f"have the covariates {names} of the next {steps} steps",
                "None",
                "pass a table with them",
                Phrase("fit with ", Argument("past_covariates"), " if they are not known in advance"),
            )
        # the frequency cannot be inferred from a single step
        kinds = {name: texts for name, texts in self.categories.items() if name in self.covariates}
        later = read_panel(table, values=self.covariates, **options, freq=panel.freq, categories=kinds, name="future")
        if len(later.columns) != len(self.covariates):
            raise ArgumentError("future", f"have the columns {names}", f"{len(later.columns)} columns")
        parts = []
        for id, expected in zip(panel.ids, ahead, strict=True):
            if id not in later.ids:
                raise ArgumentError("future", Phrase("have rows of every id of ", Argument("data")), f"none of {id!r}")
            place = later.ids.index(id)
            rows = later.values[place]
            if len(rows) < steps:
                raise ArgumentError(
                    later.label(place, "future"),
                    f"have {steps} rows, the horizon of fit",
                    len(rows),
                    "add the rows, also for a shorter forecast",
                    Phrase("fit with a shorter ", Argument("horizon")),
                )
            if later.times is not None and expected is not None:
                wrong = np.flatnonzero(later.times[place][:steps] != expected)
                if len(wrong):
                    raise ArgumentError(
                        later.label(place, "future"),
                        Phrase("continue ", Argument("data"), f", with {expected[wrong[0]]}"),
                        f"{later.times[place][wrong[0]]} at its row {wrong[0] + 1}",
                    )
            parts.append(rows[:steps])
        return parts

    def describe_unused(self, unused: Mapping[str, float | None]) -> str:
        """A sentence that names what has no influence on a forecast; "" if all features have one.

        Args:
            unused: By how much the error at the rolling origins would change with it, as a share; None if unknown.
        """
        if not unused:
            return ""
        parts = []
        names = list(unused)
        for place, name in enumerate(names):
            parts.append(repr(name))
            change = unused[name]
            # neighbours with the same change share the words about it
            is_last = place + 1 == len(names) or unused[names[place + 1]] != change
            if change is not None and is_last:
                parts[-1] += f" ({_describe_change(change)})"
        pronoun = "them" if len(unused) > 1 else "it"
        return f"The forecast does not depend on {', '.join(parts)}: no method with a weight uses {pronoun}."

    def state(self) -> dict[str, Any]:
        """The fields as JSON values."""
        scaler = None
        if self.scaler is not None:
            scaler = {name: values.tolist() for name, values in self.scaler.state().items()}
        return {part.name: getattr(self, part.name) for part in fields(self)} | {"scaler": scaler}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Covariates":
        """From the result of `state`; older files have fewer fields."""
        values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in state.items()}
        values["categories"] = {name: tuple(texts) for name, texts in state.get("categories", {}).items()}
        values["scaler"] = None if state["scaler"] is None else StandardScaler.from_state(state["scaler"])
        covariates = cls(**values)
        if not all(isinstance(name, str) for name in covariates.names):
            raise ArgumentError("covariates", "be names of columns", shorten(covariates.columns))
        return covariates


def _describe_change(change: float) -> str:
    """By how much an error would change, in words."""
    percent = f"{abs(100.0 * change):.1f} %"
    if percent == "0.0 %":
        return "with it the error at the rolling origins would be the same"
    direction = "higher" if change > 0 else "lower"
    note = "" if change > 0 else ", which is too little for a weight"
    return f"with it the error at the rolling origins would be {percent} {direction}{note}"


def _holiday_marks(times: pd.DatetimeIndex, country: str) -> Float64[np.ndarray, "t 1"]:
    """1 on holidays of the country, else 0."""
    try:
        import holidays
    except ImportError as error:
        raise ImportError("holidays must be installed for holidays of a country; install toa[holidays].") from error
    code, _, region = country.partition("-")
    days = times.tz_localize(None).normalize()
    try:
        days_off = holidays.country_holidays(code, subdiv=region or None, years=range(days[0].year, days[-1].year + 1))
    except (NotImplementedError, KeyError) as error:
        raise ArgumentError(
            "holidays",
            "be the code of a country, with or without a region, such as 'DE' or 'US-CA'",
            f"{country!r} ({error})",
        ) from None
    return days.isin(pd.DatetimeIndex(list(days_off))).astype(np.float64)[:, None]
