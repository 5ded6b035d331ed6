"""Gradient boosting on lags for the protocol toa-wide: one LightGBM model per data set and horizon, for all channels.

    data = load_data(plan, "PEMS08-Last40", horizon=12)
    boosted_trees(data)                      # errors, and which of six settings validation chose

A row of the trees is a window, a channel and a step ahead. Rows of training, validation and test are drawn evenly from
all such rows of their part, with a fixed seed. The errors are means over the drawn rows. Only this file needs LightGBM.

Alphabet: W rows of the trees, L look-back, P horizon, C channels, T rows of the series, K inputs.
"""

from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from toa._checks import ArgumentError
from toa.data import Windows
from toa_bench.wide_rivals import RIVALS, RivalData

SEED = 2030
# rows of the trees
SEARCH_ROWS = 60_000
FINAL_ROWS = 200_000
VALIDATION_ROWS = 50_000
TEST_ROWS = 1_000_000
# rows that are forecast together
_BLOCK_ROWS = 200_000
# the last values of a channel that the trees read
_RECENT = 8
# numbers of last values that are averaged
_SPANS = (4, 12, 24)
# trees are added until validation has not improved for so many of them
_PATIENCE = 15
_MOST_TREES = 250
_SHARED = {"objective": "l2", "learning_rate": 0.1, "verbosity": -1, "deterministic": True, "num_threads": 1}


@dataclass(frozen=True, kw_only=True)
class TreeSetting:
    """What the search varies.

    Attributes:
        relative: Whether values count from the last value of the look-back, in inputs and target.
        leaves: Leaves of a tree.
        least_rows: Rows of a leaf, at least.
        feature_share: Share of the features that each tree may use.
    """

    relative: bool
    leaves: int
    least_rows: int = 50
    feature_share: float = 0.8


# four trials; then two more with the better choice of `relative` and `leaves`
FIRST_TRIALS = tuple(TreeSetting(relative=relative, leaves=leaves) for relative in (True, False) for leaves in (15, 63))


def later_trials(best: TreeSetting) -> tuple[TreeSetting, TreeSetting]:
    """The last two of six trials: larger leaves, and fewer features per tree."""
    return replace(best, least_rows=500), replace(best, feature_share=0.4)


def season_of(rows: Float64[np.ndarray, "t c"], longest: int) -> int:
    """The lag with the highest local maximum of the mean autocorrelation; `longest` if there is no maximum up to it."""
    centred = rows - rows.mean(0)
    power = np.square(centred).mean()
    lags = range(1, longest + 2)
    correlations = np.array([(centred[lag:] * centred[:-lag]).mean() / power for lag in lags])
    inner = correlations[1:-1]
    peaks = np.flatnonzero((inner > correlations[:-2]) & (inner >= correlations[2:]))
    return longest if len(peaks) == 0 else int(peaks[np.argmax(inner[peaks])]) + 2


@dataclass(frozen=True, kw_only=True)
class LagFeatures:
    """Inputs of the trees from the look-back of a window.

    Attributes:
        season: Steps of a season: the trees read the values one and two seasons before the step ahead.
    """

    lookback: int
    season: int
    relative: bool

    def inputs(
        self, past: Float64[np.ndarray, "w l"], all_channels: Float64[np.ndarray, "w l"], step: Int64[np.ndarray, " w"]
    ) -> Float64[np.ndarray, "w k"]:
        """Inputs for a step ahead, 0 for the first.

        Args:
            past: The look-back of the channel.
            all_channels: The mean over all channels of the same rows.
        """
        last = past[:, -1]
        if self.relative:
            past = past - past[:, -1:]
            all_channels = all_channels - all_channels[:, -1:]
        place = np.arange(len(past))
        # the first place in the look-back that is a whole number of seasons before the step ahead
        seasons = step // self.season + 1
        aligned = self.lookback + step - self.season * seasons
        columns = [step, last]
        columns += [past[:, -back] for back in range(1, min(_RECENT, self.lookback) + 1)]
        for series in (past, all_channels):
            for moved in (0, -1, 1, -self.season):
                columns.append(series[place, (aligned + moved).clip(0, self.lookback - 1)])
        columns += [series[:, -span:].mean(1) for series in (past, all_channels) for span in _SPANS]
        columns += [past.mean(1), past.std(1), past.min(1), past.max(1), all_channels[:, -1], all_channels.mean(1)]
        return np.stack(columns, 1)

    def base(self, past: Float64[np.ndarray, "w l"]) -> Float64[np.ndarray, " w"]:
        """What is subtracted from the target."""
        return past[:, -1] if self.relative else np.zeros(len(past))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Rows of the trees before they are turned into inputs: look-backs, steps ahead, channels and targets."""

    past: np.ndarray
    all_channels: np.ndarray
    step: np.ndarray
    channel: np.ndarray
    target: np.ndarray


def draw_rows(data: RivalData, windows: Windows, count: int, rng: np.random.Generator) -> Drawn:
    """Windows, channels and steps ahead, each drawn evenly with replacement."""
    start = windows.segment.start + rng.integers(0, len(windows), count)
    channel = rng.integers(0, windows.channels, count)
    step = rng.integers(0, windows.horizon, count)
    places = start[:, None] + np.arange(windows.lookback)
    row_means = data.rows.mean(1)
    return Drawn(
        past=data.rows[places, channel[:, None]],
        all_channels=row_means[places],
        step=step,
        channel=channel,
        target=data.rows[start + windows.lookback + step, channel],
    )


def load_lightgbm() -> ModuleType:
    """The package of the trees."""
    try:
        import lightgbm
    except ImportError:
        raise ArgumentError(
            "boosted-trees", "have the package lightgbm", "no such package", "pip install lightgbm"
        ) from None
    found: ModuleType = lightgbm
    return found


def fit_trees(setting: TreeSetting, features: LagFeatures, train: Drawn, stop: Drawn) -> Any:
    """Add trees until validation stops to improve."""
    lightgbm = load_lightgbm()

    def table(rows: Drawn, reference: Any = None) -> Any:
        inputs = features.inputs(rows.past, rows.all_channels, rows.step)
        return lightgbm.Dataset(
            np.column_stack((inputs, rows.channel)),
            rows.target - features.base(rows.past),
            reference=reference,
            categorical_feature=[inputs.shape[1]],
            params=parameters,
        )

    parameters = _SHARED | {
        "num_leaves": setting.leaves,
        "min_data_in_leaf": setting.least_rows,
        "feature_fraction": setting.feature_share,
        "seed": SEED,
    }
    training = table(train)
    stopping = lightgbm.early_stopping(_PATIENCE, verbose=False)
    return lightgbm.train(
        parameters,
        training,
        num_boost_round=_MOST_TREES,
        valid_sets=[table(stop, training)],
        callbacks=[stopping],
    )


def measure_trees(trees: Any, features: LagFeatures, rows: Drawn) -> dict[str, float]:
    """Errors of the drawn rows."""
    missed = np.empty(len(rows.target))
    for start in range(0, len(missed), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        past = rows.past[part]
        inputs = features.inputs(past, rows.all_channels[part], rows.step[part])
        forecast = trees.predict(np.column_stack((inputs, rows.channel[part])), num_threads=1)
        missed[part] = forecast + features.base(past) - rows.target[part]
    return {"mse": float(np.square(missed).mean()), "mae": float(np.abs(missed).mean())}


def features_of(data: RivalData, setting: TreeSetting) -> LagFeatures:
    """The inputs of the trees; the season is that of the training rows."""
    lookback = data.windows.test.lookback
    season = season_of(data.rows[: data.border], lookback)
    return LagFeatures(lookback=lookback, season=season, relative=setting.relative)


def choose_setting(data: RivalData) -> TreeSetting:
    """The best of six settings by validation."""
    rng = np.random.default_rng(SEED)
    train = draw_rows(data, data.windows.train, SEARCH_ROWS, rng)
    validation = draw_rows(data, data.windows.val, VALIDATION_ROWS, rng)
    errors: dict[TreeSetting, float] = {}

    def try_settings(settings: tuple[TreeSetting, ...]) -> TreeSetting:
        for setting in settings:
            trees = fit_trees(setting, features_of(data, setting), train, validation)
            errors[setting] = trees.best_score["valid_0"]["l2"]
        return min(errors, key=errors.__getitem__)

    return try_settings(later_trials(try_settings(FIRST_TRIALS)))


@RIVALS.register("boosted-trees")
def boosted_trees(data: RivalData) -> dict[str, Any]:
    """Gradient boosting on lags of a channel and of the mean of all channels; validation chooses of six settings."""
    setting = choose_setting(data)
    rng = np.random.default_rng(SEED + 1)
    train = draw_rows(data, data.windows.train, FINAL_ROWS, rng)
    validation = draw_rows(data, data.windows.val, VALIDATION_ROWS, rng)
    features = features_of(data, setting)
    trees = fit_trees(setting, features, train, validation)
    test = draw_rows(data, data.windows.test, TEST_ROWS, rng)
    metrics = measure_trees(trees, features, test)
    metrics |= {f"val_{name}": value for name, value in measure_trees(trees, features, validation).items()}
    return {
        "metrics": metrics,
        "chosen": {"season": features.season, "trees": trees.best_iteration, **asdict(setting)},
        "drawn_rows": {"train": FINAL_ROWS, "val": VALIDATION_ROWS, "test": TEST_ROWS},
        "lightgbm": load_lightgbm().__version__,
    }
