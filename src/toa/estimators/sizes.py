"""What a forecaster chooses by size where nothing is said: look-back, model, batches and epochs.

The default PatchTST is small, its patches do not overlap, and an epoch has a bounded number of windows: 10,000 rows of
7 columns train in about a minute on a CPU, and a table of any size in a few.
"""

from dataclasses import dataclass
from typing import Any

from toa._checks import check_at_least, check_choice
from toa.models import BACKBONES, backbone_names

# look-back: so many rows, or twice the horizon up to the second, as far as the shortest series has them
_LOOKBACK = (512, 1024)
# tokens of a channel, about
_PATCHES = 21
_BATCH = (16, 128)
# windows of one channel that an epoch has at most
_EPOCH = 120_000
# training goes on for about so many steps, within these bounds on the epochs
_STEPS = 400
_EPOCHS = (6, 60)
# of the models with such sizes; `settings` goes over it
_SIZES: dict[str, Any] = {"embed_dim": 16, "num_heads": 4, "num_layers": 2, "ff_dim": 64, "dropout": 0.2}
_WIDE: dict[str, Any] = {"embed_dim": 64, "num_heads": 4, "num_layers": 2, "ff_dim": 128, "dropout": 0.1}
# its default where a model has one; it is odd, and no longer than the look-back
_MOVING_AVERAGE = 25


def choose_lookback(rows: int, horizon: int) -> int:
    """Rows to see, if the shortest series has so many to train on."""
    wanted = min(max(_LOOKBACK[0], 2 * horizon), _LOOKBACK[1])
    room = max(1, (rows - horizon) // 2)
    return wanted if wanted <= room else room - room % 8 if room >= 16 else room


def choose_settings(backbone: str, lookback: int, horizon: int) -> dict[str, Any]:
    """Sizes and parts of a model; none for what it does not have."""
    check_choice("backbone", backbone, backbone_names("forecast"))
    known = BACKBONES[backbone].settings("forecast")
    sizes = dict(_SIZES if backbone == "patchtst" else _WIDE)
    patch = max(1, min(lookback, round(lookback / _PATCHES)))
    sizes |= {"patch_len": patch, "stride": patch, "label_len": max(1, min(lookback // 2, horizon))}
    if lookback < _MOVING_AVERAGE:
        sizes["moving_average"] = max(1, lookback - 1 + lookback % 2)
    return {name: value for name, value in sizes.items() if name in known}


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How long to train.

    Attributes:
        batch_size: Windows a batch.
        steps: Batches an epoch.
        epochs: Passes at most.
    """

    batch_size: int
    steps: int
    epochs: int


def choose_schedule(windows: int, channels: int, *, batch_size: int | None, epochs: int | None) -> Schedule:
    """Batches and epochs for so many windows; an epoch of a large table sees a random part of them."""
    least, most = _BATCH
    size = max(least, min(most, windows // 32)) if batch_size is None else batch_size
    check_at_least("batch_size", size, 1)
    shown = min(windows, max(size, _EPOCH // channels))
    steps = -(-shown // size)
    if epochs is not None:
        check_at_least("epochs", epochs, 1)
    chosen = min(_EPOCHS[1], max(_EPOCHS[0], -(-_STEPS // steps))) if epochs is None else epochs
    return Schedule(batch_size=size, steps=steps, epochs=chosen)
