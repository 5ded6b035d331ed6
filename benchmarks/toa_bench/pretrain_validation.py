"""Zero-shot errors of a pretrained model on the series of a validation list, beside those of seasonal naive.

    sets = read_validation(Path("benchmarks/pretrain-validation.toml"))
    scores = validate_model(model, sets, data_dir)     # by set, and their geometric mean

Alphabet: N series or windows, P horizon, Q quantiles.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from toa._checks import ArgumentError, check_choice, check_count
from toa.data import COLLECTIONS, DATASETS, load_collection, locate, read_dataset
from toa.data.synthetic import draw_series
from toa.estimators.baselines import BASELINES, align_histories
from toa.estimators.origins import SeriesList
from toa.estimators.pretrained_forecasts import PLAIN, InferenceOptions, forecast_quantiles
from toa.models.pretrained import PretrainedForecaster
from toa.training.metrics import seasonal_error

SOURCES = ("collection", "dataset", "synthetic")
# probability of the interval whose coverage is reported
_INTERVAL = 0.8
# fields that a set of each source needs
_FIELDS = {
    "collection": (),
    "dataset": ("until", "windows", "horizon", "season"),
    "synthetic": ("seed", "series", "context", "horizon", "season"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationSet:
    """Series of one set, see the list; fields that its source does not need are None.

    Attributes:
        data: Name of the collection or data set; None if it is that of the set.
        step_rows: Number of rows whose mean is one step.
        context: Last steps before a forecast that are kept; None for all.
    """

    name: str
    source: str
    data: str | None = None
    step_rows: int = 1
    horizon: int | None = None
    season: int | None = None
    until: float | None = None
    windows: int | None = None
    seed: int | None = None
    series: int | None = None
    context: int | None = None

    def __post_init__(self) -> None:
        check_choice("source", self.source, SOURCES)
        check_count("step_rows", self.step_rows, 1)
        for name in _FIELDS[self.source]:
            if getattr(self, name) is None:
                raise ArgumentError(name, f"be given for the {self.source} {self.name!r}", "nothing", "add it")
            if name != "until":
                check_count(name, getattr(self, name), 1)

    def load(self, data_dir: str | Path | None = None) -> "Windows":
        """Histories and what follows them."""
        if self.source == "collection":
            return self._collection_windows(data_dir)
        assert self.horizon is not None
        assert self.season is not None
        if self.source == "synthetic":
            assert self.series is not None
            assert self.context is not None
            assert self.seed is not None
            drawn = draw_series(self.series, self.context + self.horizon, seed=self.seed, step=0)
            values = drawn.double().numpy()
            return Windows(list(values[:, : self.context]), values[:, self.context :], self.season)
        dataset = DATASETS[self.data or self.name]
        table = read_dataset(dataset, locate(dataset, data_dir)).values[0]
        assert self.until is not None
        assert self.windows is not None
        rows = [self._steps(column) for column in table[: int(len(table) * self.until)].T]
        starts = [len(rows[0]) - number * self.horizon for number in range(self.windows, 0, -1)]
        histories = [self._last_steps(series[:start]) for start in starts for series in rows]
        actual = np.stack([series[start : start + self.horizon] for start in starts for series in rows])
        return Windows(histories, actual, self.season)

    def _collection_windows(self, data_dir: str | Path | None) -> "Windows":
        """The horizon before the last one of each series, which is tested elsewhere."""
        name = self.data or self.name
        spec = COLLECTIONS[name]
        horizon = self.horizon or spec.horizon
        series = [self._steps(values[:, 0]) for values in load_collection(name, data_dir).train.values]
        least = horizon + (self.context or horizon + 1)
        long_enough = [values for values in series if len(values) >= least]
        actual = np.stack([values[-horizon:] for values in long_enough])
        histories = [self._last_steps(values[:-horizon]) for values in long_enough]
        return Windows(histories, actual, self.season or spec.season)

    def _steps(self, values: np.ndarray) -> np.ndarray:
        """Means of so many rows as make a step, up to the last row."""
        if self.step_rows == 1:
            return values
        means: np.ndarray = values[len(values) % self.step_rows :].reshape(-1, self.step_rows).mean(1)
        return means

    def _last_steps(self, history: np.ndarray) -> np.ndarray:
        return history if self.context is None else history[-self.context :]


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Histories, the values (N, P) that follow, and the steps of a season."""

    histories: SeriesList
    actual: Float64[np.ndarray, "n p"]
    season: int


def read_validation(path: Path) -> dict[str, ValidationSet]:
    """The sets of a list, by name."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        return {name: ValidationSet(name=name, **fields) for name, fields in entries.items()}
    except TypeError as error:
        raise ArgumentError(path, "be a list of validation sets", f"an error: {error}", "correct the field") from None


def validate_model(
    model: PretrainedForecaster,
    sets: Mapping[str, ValidationSet],
    data_dir: str | Path | None = None,
    options: InferenceOptions = PLAIN,
) -> dict[str, Any]:
    """Scores by set, and geometric means of the ratios over the real sets."""
    scores = {}
    for name, entry in sets.items():
        windows = entry.load(data_dir)
        quantiles = forecast_quantiles(
            model, windows.histories, windows.actual.shape[1], season=windows.season, options=options
        )
        scores[name] = score(quantiles, windows, model.config.quantiles)
    real = [name for name, entry in sets.items() if entry.source != "synthetic"] or list(sets)
    means = {
        measure: float(np.exp(np.mean([np.log(scores[name][measure]) for name in real])))
        for measure in ("mase_ratio", "pinball_ratio")
    }
    return {"sets": scores, "geometric_mean": means}


def score(
    quantiles: Float64[np.ndarray, "n p q"], windows: Windows, levels: tuple[float, ...]
) -> dict[str, float | int]:
    """Errors in units of the seasonal error of each history; windows without such an error are left out.

    "pinball" is the mean over levels of twice the pinball loss, which for a point forecast is its absolute error.
    """
    actual = windows.actual
    scale = np.concatenate([seasonal_error(values[None], windows.season) for values in windows.histories])
    naive = _naive(windows, actual.shape[1])
    kept = np.isfinite(scale) & (scale > 0) & np.isfinite(actual).any(1) & np.isfinite(naive).all(1)
    actual, quantiles, naive, scale = actual[kept], quantiles[kept], naive[kept], scale[kept]
    error = (actual[..., None] - quantiles) / scale[:, None, None]
    level = np.asarray(levels)
    pinball = float(np.nanmean(2.0 * np.maximum(level * error, (level - 1.0) * error)))
    mase = float(np.nanmean(np.abs(error[..., levels.index(0.5)])))
    naive_mase = float(np.nanmean(np.abs(actual - naive) / scale[:, None]))
    low, high = (int(np.abs(level - bound).argmin()) for bound in ((1 - _INTERVAL) / 2, (1 + _INTERVAL) / 2))
    observed = np.isfinite(actual)
    inside = (quantiles[..., low] <= actual) & (actual <= quantiles[..., high])
    return {
        "windows": int(kept.sum()),
        "mase": mase,
        "pinball": pinball,
        "naive_mase": naive_mase,
        "mase_ratio": mase / naive_mase,
        "pinball_ratio": pinball / naive_mase,
        "coverage": float(inside[observed].mean()),
    }


def _naive(windows: Windows, horizon: int) -> Float64[np.ndarray, "n p"]:
    """Seasonal naive forecasts; missing values take the last one before them."""
    histories = [_filled(values) for values in windows.histories]
    return BASELINES["seasonal naive"](align_histories(histories), windows.season, horizon)


def _filled(values: np.ndarray) -> np.ndarray:
    place = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), -1))
    return np.where(place >= 0, values[place], np.nan)
