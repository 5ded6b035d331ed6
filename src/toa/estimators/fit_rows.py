"""The rows of a fit: those before the rolling origins, the windows at the origins, and all rows.

    fit_rows = FitRows(panel, columns, series, settings, season, ceiling)
    fit_rows.before(origins, column_origins)     # Training: what methods are fitted to before they are validated
    fit_rows.at(origins, column_origins)         # Histories: what they forecast after there
    fit_rows.all_rows()                          # Training: what they are fitted to again

`origins` are windows of the series of the panel; `column_origins` are the same windows of each column, see
`RollingOrigins.per_column`.

Alphabet: S series, C columns, F features.
"""

from dataclasses import dataclass, replace

import numpy as np

from toa.data.panel import Panel
from toa.estimators.covariates import Covariates
from toa.estimators.effort import Ceiling
from toa.estimators.methods import Histories, Training
from toa.estimators.network import Inputs, fit_inputs
from toa.estimators.origins import RollingOrigins, SeriesList, align_series, series_scale
from toa.estimators.settings import ForecastSettings


@dataclass(frozen=True, slots=True, eq=False)
class FitRows:
    """The rows of a fit, and what methods are fitted to: the rows before the origins, then all.

    Attributes:
        panel: The rows in which all columns have begun.
        series: Each column by itself, from its first value on.
    """

    panel: Panel
    columns: tuple[str, ...]
    series: SeriesList
    settings: ForecastSettings
    season: int
    ceiling: Ceiling

    @property
    def rows_per_column(self) -> np.ndarray:
        """Rows (S, C) of each column from its first value on."""
        lengths = [len(part) for part in self.panel.histories(self.columns)]
        return np.array(lengths).reshape(len(self.panel), -1)

    def all_rows(self) -> Training:
        """All rows."""
        return self._training(self.series, self.panel)

    def _training(self, series: SeriesList, panel: Panel) -> Training:
        return Training(
            history=align_series(series),
            season=self.season,
            horizon=self.settings.horizon,
            seed=self.settings.seed,
            effort=self.settings.effort,
            ceiling=self.ceiling,
            panel=panel,
            columns=self.columns,
            rows=self.panel.lengths,
        )

    def before(self, origins: RollingOrigins, column_origins: RollingOrigins) -> Training:
        """The rows before the first origin of each series."""
        earlier = self.panel.before(origins.held.tolist())
        training = self._training(column_origins.earlier(self.series), earlier)
        if not self.settings.has_features:
            return training
        features = [rows[:length] for rows, length in zip(self._features(), earlier.lengths, strict=True)]
        return training.with_features(self._covariates(), features, self._scale(earlier))

    def at(self, origins: RollingOrigins, column_origins: RollingOrigins) -> Histories:
        """The windows at the origins."""
        histories = Histories(
            values=column_origins.histories(self.series),
            panel=self.panel,
            columns=self.columns,
            places=origins.places(self.panel.lengths),
        )
        if not self.settings.has_features:
            return histories
        scale = self._scale(self.panel.before(origins.held.tolist()))
        return replace(histories, scale=scale, features=self._features(), covariates=self._covariates())

    def plain_inputs(self) -> Inputs:
        """Inputs of a forecaster without a network."""
        lookback = min(max(self.panel.lengths), max(2 * self.season, self.settings.horizon))
        lengths = self.panel.lengths
        return fit_inputs(self.panel, self.columns, lookback, self._covariates(), lengths, self.season)

    def _covariates(self) -> Covariates:
        settings = self.settings
        return settings.covariates.fit(self.panel, self.panel.lengths, calendar=settings.calendar)

    def _features(self) -> list[np.ndarray]:
        return self._covariates().past(self.panel) or []

    def _scale(self, earlier: Panel) -> np.ndarray:
        """Seasonal error of each series and column in earlier rows; 1 where there is none."""
        scale = series_scale(earlier.histories(self.columns), self.season).reshape(len(earlier), -1)
        return np.where(np.nan_to_num(scale) > 0, scale, 1.0)
