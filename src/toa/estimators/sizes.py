"""Defaults that depend on the size of the data: look-back, window, model, batch size and epochs of the estimators.

The default models are small: a forecaster trains on 10,000 rows of 7 columns in about a minute on a CPU, and an epoch
of a larger table uses a bounded number of windows.
"""

import math
from collections.abc import Mapping
from typing import Any

from toa._checks import check_at_least, check_choice
from toa._limits import most_windows
from toa.models import BACKBONES, backbone_names

# forecaster: default look-back, and the largest, for horizons of more than half the default
_LOOKBACK = (512, 1024)
# forecaster: look-back in seasons
_SEASONS_BACK = 14
# forecaster: the least look-back in rows, if the season is short
_LOOKBACK_WITHOUT_SEASON = 104
# forecaster: look-backs from this on are a multiple of `_LOOKBACK_STEP`
_LONG_LOOKBACK = 16
_LOOKBACK_STEP = 8
# fewest training steps that are worth a network
LEAST_STEPS = 30
# fewest epochs that a limit on the steps leaves, so that validation can choose one
_LEAST_EPOCHS = 3
# share of the time of training without validation
_TRAINING_SHARE = 0.75
# forecaster: approximate number of tokens per channel
_FORECAST_PATCHES = 21
# forecaster: bounds on the batch size, a part of the windows
_FORECAST_BATCH = (16, 128)
# forecaster: windows times channels per epoch, at most
_EPOCH_WINDOWS = 120_000
# forecaster: approximate number of training steps
_FORECAST_STEPS = 400
# forecaster: bounds on the epochs
_FORECAST_EPOCHS = (6, 60)
# forecaster: sizes of backbones with patches
_FORECAST_SIZES: dict[str, Any] = {"embed_dim": 16, "num_heads": 4, "num_layers": 2, "ff_dim": 64, "dropout": 0.2}
# forecaster: sizes of the others
_FORECAST_WIDE: dict[str, Any] = {"embed_dim": 64, "num_heads": 4, "num_layers": 2, "ff_dim": 128, "dropout": 0.1}
# default of models with a moving average; it must be odd and at most the number of averaged steps
_MOVING_AVERAGE = 25

# of all estimators: the attention that validation chose (results/search)
DEFAULT_ATTENTION = "toa-softmax"
# forecaster: the recipe of the protocol `toa` for TOA, by backbone and number of training windows, where it differs
# from the defaults; a test holds it to the protocol
_LARGE_FROM = 20_000
_RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("patchtst", "small"): {"operator_rate": 3.0, "operator_init": "filters"},
    ("itransformer", "large"): {"operator_rate": 2.0, "operator_init": "centering"},
    ("duet", "small"): {"operator_rate": 3.0, "operator_init": "centering", "dropout": 0.3},
    ("duet", "large"): {"operator_rate": 3.0, "operator_init": "centering", "dropout": 0.3},
}

# detector: approximate number of training steps
_STEPS = 1000
# detector: bounds on the epochs
_EPOCHS = (10, 100)
# detector: bounds on the window, a fifth of the longest series
_WINDOW = (8, 100)
# detector: bounds on the windows per epoch
_WINDOWS = (2_000, 20_000)
# detector: windows times channels per epoch, at most
_CHANNEL_WINDOWS = 60_000
# detector: with more channels, one token per channel costs less than patches of each channel
_MANY_CHANNELS = 32
# detector: windows per batch, at most
_DETECTOR_BATCH = 64
# detector: sizes of the network
_DETECTOR_SIZES: dict[str, Any] = {"embed_dim": 32, "num_heads": 4, "num_layers": 2, "ff_dim": 64, "dropout": 0.1}

# classifier: approximate number of tokens, per channel for backbones with patches
_CASE_PATCHES = 64
# classifier: approximate number of training steps
_CASE_STEPS = 150
# classifier: bounds on the epochs
_CASE_EPOCHS = (5, 40)
# classifier: bounds on the batch size, an eighth of the cases
_CASE_BATCH = (8, 64)
# classifier: activations of a case, in those of a window of a forecaster
_CASE_FACTOR = 10
# classifier: sizes of the network
_CLASSIFIER_SIZES: dict[str, Any] = {"embed_dim": 64, "num_heads": 4, "num_layers": 2, "ff_dim": 128, "dropout": 0.1}


def choose_lookback(rows: int, horizon: int, season: int | None = None) -> int:
    """Look-back of a forecaster most of whose series have this many training rows; many seasons, if it is known."""
    wanted = min(max(_LOOKBACK[0], 2 * horizon), _LOOKBACK[1])
    if season is not None:
        wanted = min(max(_SEASONS_BACK * season, _LOOKBACK_WITHOUT_SEASON, horizon), _LOOKBACK[1])
    longest = max(1, (rows - horizon) // 2)
    if wanted <= longest:
        return wanted
    return longest - longest % _LOOKBACK_STEP if longest >= _LONG_LOOKBACK else longest


def choose_settings(backbone: str, lookback: int, horizon: int, season: int | None = None) -> dict[str, Any]:
    """Default settings of a forecasting backbone: those of the names below that it has."""
    settings = BACKBONES[backbone].settings("forecast")
    sizes = dict(_FORECAST_SIZES if "patch_len" in settings else _FORECAST_WIDE)
    patch = max(1, min(lookback, round(lookback / _FORECAST_PATCHES)))
    if season is not None and season > 1:
        # patches follow the season: the nearest divisor
        patch = min((d for d in range(1, season + 1) if season % d == 0), key=lambda d: abs(math.log(d / patch)))
    sizes |= {"patch_len": patch, "stride": patch, "label_len": max(1, min(lookback // 2, horizon))}
    # a model with a decoder also averages over its label_len + horizon steps
    steps = min(lookback, sizes["label_len"] + horizon) if "label_len" in settings else lookback
    if steps < _MOVING_AVERAGE:
        sizes["moving_average"] = max(1, steps - 1 + steps % 2)
    return {name: value for name, value in sizes.items() if name in settings}


def choose_recipe(backbone: str, attention: str | None, windows: int) -> dict[str, Any]:
    """Rate and start of the operators, and dropout, by the number of training windows; empty for the defaults."""
    if attention is None or not attention.startswith("toa-"):
        return {}
    return dict(_RECIPES.get((backbone, "large" if windows >= _LARGE_FROM else "small"), {}))


def choose_schedule(windows: int, channels: int, *, batch_size: int | None, epochs: int | None) -> dict[str, Any]:
    """Windows per batch, batches per epoch ("steps") and epochs of a forecaster.

    An epoch of a large table uses a random part of the windows. The activations of a batch fit the memory budget
    ($TOA_MEMORY), unless the batch size is given.
    """
    if batch_size is None:
        least, most = _FORECAST_BATCH
        batch_size = min(max(least, min(most, windows // 32)), most_windows(channels, training=True))
    used = min(windows, max(batch_size, _EPOCH_WINDOWS // channels))
    return _schedule(used, batch_size, epochs, _FORECAST_STEPS, _FORECAST_EPOCHS)


def _schedule(count: int, batch_size: int, epochs: int | None, steps: int, bounds: tuple[int, int]) -> dict[str, Any]:
    """Epochs of `count` samples: about `steps` steps in all, within bounds on the epochs, unless these are given."""
    least, most = bounds
    batches = -(-count // batch_size)
    chosen = min(most, max(least, -(-steps // batches))) if epochs is None else epochs
    return {"batch_size": batch_size, "steps": batches, "epochs": chosen}


def limit_schedule(schedule: dict[str, Any], most_steps: int) -> dict[str, Any] | None:
    """The schedule with at most `most_steps` steps in all; None if these are too few to train with.

    There are fewer epochs, at least three, and then fewer steps per epoch.
    """
    if most_steps >= schedule["epochs"] * schedule["steps"]:
        return schedule
    if most_steps < LEAST_STEPS:
        return None
    epochs = max(min(_LEAST_EPOCHS, schedule["epochs"]), most_steps // schedule["steps"])
    return schedule | {"epochs": epochs, "steps": max(1, min(schedule["steps"], most_steps // epochs))}


def training_seconds(schedule: Mapping[str, Any], seconds_per_step: float) -> float:
    """Expected time of training with validation."""
    return schedule["epochs"] * schedule["steps"] * seconds_per_step / _TRAINING_SHARE


def detector_schedule(
    windows: int, channels: int, backbone: str, *, batch_size: int | None, epochs: int | None
) -> dict[str, Any]:
    """The same for a detector, whose epochs use all windows."""
    if batch_size is None:
        batch_size = min(_DETECTOR_BATCH, most_windows(channels, training=True, mixed=backbone != "patchtst"))
    return _schedule(windows, batch_size, epochs, _STEPS, _EPOCHS)


def classifier_schedule(
    cases: int, channels: int, backbone: str, *, copies: int, batch_size: int | None, epochs: int | None
) -> dict[str, Any]:
    """The same for a classifier of which `copies` are trained together."""
    if batch_size is None:
        least, most = _CASE_BATCH
        # a transformer reads all channels as one sequence
        apart = 1 if backbone == "transformer" else channels
        fit = most_windows(apart, training=True, mixed=backbone != "patchtst") // (_CASE_FACTOR * copies)
        batch_size = max(1, min(max(least, min(most, cases // 8)), fit))
    return _schedule(cases, batch_size, epochs, _CASE_STEPS, _CASE_EPOCHS)


def choose_window(window: int | None, longest: int) -> int:
    """Window of a detector whose longest series has this many rows."""
    least, most = _WINDOW
    chosen = max(least, min(most, longest // 5)) if window is None else window
    check_at_least("window", chosen, 2)
    return chosen


def choose_stride(windows: int, channels: int) -> int:
    """Rows between two training windows of a detector."""
    least, most = _WINDOWS
    return -(-windows // max(least, min(most, _CHANNEL_WINDOWS // channels)))


def choose_reconstructor(backbone: str | None, window: int, channels: int) -> tuple[str, dict[str, Any]]:
    """Backbone and settings of a detector."""
    chosen = backbone or ("itransformer" if channels > _MANY_CHANNELS else "patchtst")
    check_choice("backbone", chosen, backbone_names("reconstruct"))
    sizes = dict(_DETECTOR_SIZES)
    if "patch_len" in BACKBONES[chosen].settings("reconstruct"):
        patch = max(2, min(16, window // 4))
        sizes |= {"patch_len": patch, "stride": max(1, patch // 2)}
    return chosen, sizes


def classifier_candidates(
    backbone: str | None, length: int, settings: Mapping[str, Any] | None
) -> list[tuple[str, dict[str, Any], int]]:
    """Networks of a classifier, each with its backbone, settings and steps per token; validation chooses one.

    They differ in the instance norm and in the length of patches, unless `settings` has these. A backbone without
    patches reads several steps of a long series as one token.
    """
    chosen = backbone or "transformer"
    check_choice("backbone", chosen, backbone_names("classify"))
    has_patches = "patch_len" in BACKBONES[chosen].settings("classify")
    patch = max(1, -(-length // _CASE_PATCHES))
    if has_patches:
        patch = max(1, min(length, 2 * length // _CASE_PATCHES or length // 2))
    candidates: list[tuple[str, dict[str, Any], int]] = []
    for factor, norm in ((1, False), (1, True), (2, False)):
        steps = min(length, factor * patch)
        sizes = {**_CLASSIFIER_SIZES, "instance_norm": norm}
        if has_patches:
            sizes |= {"patch_len": steps, "stride": max(1, steps // 2)}
        steps_per_token = 1 if has_patches else steps
        candidate = (chosen, {**sizes, **(settings or {})}, steps_per_token)
        if candidate not in candidates:
            candidates.append(candidate)
    return candidates
