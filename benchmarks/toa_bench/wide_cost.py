"""What a run of the protocol toa-wide costs: weights, operations and memory, from its config alone."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from toa.data import DATASETS, split_rows
from toa.models import build_forecaster
from toa.nn import count_patches


def count_channels(config: Any) -> int:
    """Channels of a run."""
    channels = DATASETS[config.dataset].channels
    return channels if config.most_columns is None else int(config.most_columns)


def count_weights(config: Any, channels: int) -> int:
    """Number of trained weights of the model of a run."""
    with torch.device("meta"):
        model = build_forecaster(
            config.backbone,
            lookback=config.lookback,
            horizon=config.horizon,
            channels=channels,
            attention=config.attention,
            settings=config.model,
        )
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def window_operations(config: Any, channels: int) -> float:
    """Floating-point operations of a training step per window: three times those of the forward pass."""
    return 3.0 * 2.0 * _PRODUCTS[config.backbone](config, channels)


def _block_products(config: Any, tokens: int) -> float:
    """Products per token and layer of an encoder: projections, feed-forward, scores, values, operators."""
    model, attention = config.model, config.attention
    width = model["embed_dim"]
    heads = model["num_heads"]
    groups = 2 if attention.name.endswith("gated") else 1
    qk_width = groups * heads * (attention.qk_dim or width // heads)
    products = width * (2 * qk_width + 2 * width) + 2 * width * model["ff_dim"] + tokens * (qk_width + width)
    if attention.name.startswith("toa-"):
        products += tokens * (qk_width + width)
    return float(products)


def _itransformer_products(config: Any, channels: int) -> float:
    ends = config.model["embed_dim"] * (config.lookback + config.horizon)
    return channels * (config.model["num_layers"] * _block_products(config, channels) + ends)


def _count_patches(config: Any) -> int:
    return int(count_patches(config.lookback, config.model["patch_len"], config.model["stride"]))


def _patchtst_products(config: Any, channels: int) -> float:
    patches = _count_patches(config)
    ends = config.model["embed_dim"] * (config.model["patch_len"] + config.horizon)
    return channels * patches * (config.model["num_layers"] * _block_products(config, patches) + ends)


def _dlinear_products(config: Any, channels: int) -> float:
    return 2.0 * channels * config.lookback * config.horizon


def _tsmixer_products(config: Any, channels: int) -> float:
    mixing = 4.0 * channels * config.lookback * config.model["embed_dim"]
    return config.model["num_layers"] * mixing + channels * config.lookback * config.horizon


_PRODUCTS: Mapping[str, Callable[[Any, int], float]] = {
    "itransformer": _itransformer_products,
    "patchtst": _patchtst_products,
    "dlinear": _dlinear_products,
    "tsmixer": _tsmixer_products,
}


def memory_hungry(config: Any) -> bool:
    """Whether a run takes tens of GB: its feed-forward network has more than 1e8 values per batch and layer."""
    tokens = count_channels(config)
    if config.backbone == "patchtst":
        tokens *= _count_patches(config)
    return bool(config.batch_size * tokens * config.model.get("ff_dim", 0) > 1e8)


def run_cost(config: Any) -> float:
    """Operations of all epochs of a run, without evaluation."""
    windows = config.training.epochs * epoch_windows(config)
    return float(windows * window_operations(config, count_channels(config)))


def training_windows(config: Any) -> int:
    """Windows of the training part."""
    if config.train_windows is not None:
        return int(config.train_windows)
    rows = DATASETS[config.dataset].rows
    rule = config.split or DATASETS[config.dataset].split
    split = split_rows(rule, rows, lookback=config.lookback, horizon=config.horizon)
    return split.train.windows(config.lookback, config.horizon)


def epoch_windows(config: Any) -> int:
    """Windows that an epoch trains on."""
    windows = training_windows(config)
    return min(windows, config.batch_size * (config.epoch_steps or windows))
