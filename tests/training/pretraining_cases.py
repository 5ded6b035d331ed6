"""A tiny pretrained model, its training and simple series, shared by tests of several folders."""

import math
from typing import Any

import torch
from torch import Tensor

from toa.models.pretrained import PretrainedConfig, PretrainedForecaster
from toa.training.flat_adam import AdamConfig
from toa.training.pretraining import Pretraining, PretrainingConfig

TINY: dict[str, Any] = {
    "context": 32,
    "horizon": 8,
    "patch_len": 4,
    "embed_dim": 8,
    "num_heads": 2,
    "num_layers": 1,
    "ff_dim": 8,
    "quantiles": (0.1, 0.5, 0.9),
}


def tiny_model(**options: Any) -> PretrainedForecaster:
    torch.manual_seed(0)
    return PretrainedForecaster(PretrainedConfig(**TINY | options))


def tiny_training(**options: Any) -> PretrainingConfig:
    settings: dict[str, Any] = {
        "steps": 8,
        "batch_size": 4,
        "warmup": 2,
        "decay": 3,
        "mean_span": 4,
        "mean_every": 2,
        "least_context": 4,
        "precision": "float32",
        "log_every": 2,
    }
    return PretrainingConfig(**settings | options)


def seasons(step: int, count: int = 4, length: int = 40) -> Tensor:
    """Sines of random period and phase with noise, from the step alone; some values are missing."""
    generator = torch.Generator().manual_seed(step)
    period, phase = torch.rand(2, count, 1, generator=generator)
    time = torch.arange(length)
    series = torch.sin(2 * math.pi * (time / (4 + 12 * period) + phase))
    series = series + 0.1 * torch.randn(count, length, generator=generator)
    return series.masked_fill(torch.rand(count, length, generator=generator) < 0.05, float("nan"))


def tiny_run(model: dict[str, Any] | None = None, **options: Any) -> Pretraining:
    config = tiny_training(adam=AdamConfig(operator_rate=2.0), **options)
    return Pretraining(tiny_model(**model or {}), config, seasons, facts={"series": "seasons of a test"})
