"""Small tables with a daily wave, and a forecaster that learns it in a second."""

from typing import Any

import numpy as np
import pandas as pd

from toa.estimators import Forecaster

PERIOD = 12


def wave(rows: int, *, level: float = 0.0, scale: float = 1.0, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    steps = np.arange(rows)
    random = np.random.default_rng(seed).standard_normal(rows)
    return level + scale * (np.sin(2 * np.pi * steps / PERIOD) + noise * random)


def wide(rows: int = 240, **how: Any) -> pd.DataFrame:
    dates = pd.date_range("2024-01-01", periods=rows, freq="2h")
    return pd.DataFrame(
        {
            "date": dates,
            "load": wave(rows, level=100.0, scale=10.0, **how),
            "heat": wave(rows + 3, level=-3.0, seed=1, **how)[3:],
        }
    )


def long(**lengths: int) -> pd.DataFrame:
    """Series by id, each ten times as large as the one before, with a covariate that raises y by half."""
    parts = []
    for place, (name, rows) in enumerate((lengths or {"x": 160, "y": 120}).items()):
        promo = (np.random.default_rng(place).random(rows) < 0.3).astype(float)
        y = wave(rows, level=10.0**place, scale=0.5 * 10.0**place, seed=place) * (1.0 + 0.5 * promo)
        dates = pd.date_range("2024-01-01", periods=rows, freq="D")
        parts.append(pd.DataFrame({"id": name, "day": dates, "y": y, "promo": promo}))
    return pd.concat(parts, ignore_index=True)


def quick(horizon: int = 6, **options: Any) -> Forecaster:
    """A linear network alone: enough for a wave, and fast to fit."""
    chosen: dict[str, Any] = {
        "model": "toa",
        "loss": "mse",
        "backbone": "dlinear",
        "lookback": 24,
        "epochs": 8,
        "learning_rate": 0.02,
    }
    return Forecaster(horizon, **chosen | options)
