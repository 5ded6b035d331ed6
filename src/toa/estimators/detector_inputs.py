"""What a detector reads: the channels, the window and the scale of each series.

    inputs = fit_inputs(panel, window_of_fit(panel, None))
    series = inputs.scale_panel(panel)    # standardised rows of each series, in float32

Alphabet: L window length, C channels, T rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from toa._checks import Argument, ArgumentError, Phrase, check_count
from toa._limits import shorten
from toa.data.panel import Id, Panel, Values
from toa.data.scaling import StandardScaler, check_standardised
from toa.estimators.scoring import Series
from toa.estimators.sizes import choose_window

# rows per window at most
LONGEST_WINDOW = 100_000
# a channel whose standardised values are all smaller is constant
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DetectorInputs:
    """Channels, window and scales.

    Attributes:
        columns: Names of the channels.
        window: Rows L per window.
        scalers: Scale per id; the only one of tables without ids and of arrays has the key None.
    """

    columns: tuple[str, ...]
    window: int
    scalers: Mapping[Id, StandardScaler]

    @property
    def ids(self) -> Mapping[Id, StandardScaler] | None:
        """Ids that can be scored; None for any."""
        return None if None in self.scalers else self.scalers

    @property
    def context(self) -> int:
        """Rows before a row that its score on arrival depends on: a window, and the rows of its mean."""
        return self.window - 1 + self.window // 2

    def scale(self, name: Id, values: Values) -> Series:
        """Standardised rows of a series; raises ValueError for values that are too far from those of fit."""
        scaler = self.scalers[None] if None in self.scalers else self.scalers[name]
        label = "data" if name is None else f"series {name!r} of data"
        return check_standardised(scaler.transform(values), self.columns, label).astype(np.float32)

    def scale_panel(self, panel: Panel) -> list[Series]:
        """Standardised rows of each series; raises ValueError for a series without a window."""
        what = f"one window of {self.window} rows"
        remedy = Phrase("fit with a smaller ", Argument("window"))
        panel.check_rows(self.window, what, "pass more of its rows", remedy)
        return [self.scale(name, values) for name, values in zip(panel.ids, panel.values, strict=True)]


def check_window(name: str, window: object) -> None:
    """Raise ValueError for a window of a parameter or a file that is no count, or takes minutes to score.

    A stream begins with as many rows as its window has, which a file of few bytes could state.
    """
    check_count(name, window, 2)
    if int(window) > LONGEST_WINDOW:  # type: ignore[call-overload]
        raise ArgumentError(name, f"be at most {LONGEST_WINDOW:,} rows", shorten(window), "use rows of longer steps")


def window_of_fit(panel: Panel, window: int | None) -> int:
    """The given or chosen window; raises ValueError if no series has two of them."""
    longest = max(panel.lengths)
    chosen = choose_window(window, longest)
    if longest < 2 * chosen:
        raise ArgumentError(
            panel.label(panel.lengths.index(longest)),
            f"have two windows of {chosen} rows, one to train on and one to hold out",
            f"{longest} rows",
            "add rows",
            Phrase("choose a smaller ", Argument("window")),
        )
    return chosen


def fit_inputs(panel: Panel, window: int) -> DetectorInputs:
    """Fit the scales: one per id of a frame; one with the key None for tables without ids and for arrays."""
    groups: dict[Id, list[Float64[np.ndarray, "t c"]]] = {}
    for name, values in zip(panel.ids, panel.values, strict=True):
        groups.setdefault(None if panel.id_column is None else name, []).append(values)
    scalers = {
        name: StandardScaler.fit(np.concatenate(values), columns=panel.columns, allow_constant=True)
        for name, values in groups.items()
    }
    return DetectorInputs(columns=panel.columns, window=window, scalers=scalers)


def constant_channels(series: Sequence[Series]) -> tuple[int, ...]:
    """Places of the channels that are constant in all standardised series."""
    largest = np.stack([np.abs(values).max(0) for values in series]).max(0)
    return tuple(np.flatnonzero(largest <= _ROUNDING).tolist())
