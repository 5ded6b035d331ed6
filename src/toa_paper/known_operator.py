"""A wide table whose best operator between channels is known: case C of the theory as rows to forecast.

    table = FactorTable(channels=24, seed=2024)
    table.operator()                               # (C, C): T* = A (AᵀA)⁻¹ Aᵀ, the projector on the factors
    compare(table, folder, attentions=("toa-gated", "softmax"))   # test MSE of each system

A few hidden cycles drive all channels by signed weights A, and each channel has noise of its own. A channel is forecast
best from the projection of all channels, which has negative entries, so no average of channels is as good.

Alphabet: T rows, C channels, r factors, L look-back, P horizon, W windows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toa._checks import check_at_least, check_positive
from toa._files import write_atomically
from toa.estimators.component_ridge import ComponentRidge, TrainingRows, fit_component_ridge
from toa.experiments.protocols import resolve
from toa.experiments.records import Record
from toa.experiments.run import run_task
from toa_paper.theory.cases import factor_mixing, latent_factors

# epochs of the networks
EPOCHS = 10
# seeds of the stored record; the demo has the first
SEEDS = tuple(range(2024, 2034))
# attentions of the networks
COMPARED = ("toa-gated", "softmax")
# steps of the look-back and of the forecast
LOOKBACK = 48
HORIZON = 8
# damping of a cycle per step, and its shortest and longest period
_DAMPING = 0.995
_PERIODS = (8.0, 40.0)
# shares of the rows: training, and training with validation
_SPLIT = (0.6, 0.8)
# the same small model and schedule for all attentions; no trial chose them
_CHANGES = (
    *("lookback=48", "training.learning_rate=2e-3", "training.patience=1000"),
    *("model.num_layers=2", "model.embed_dim=32", "model.ff_dim=64", "model.num_heads=4", "model.dropout=0.0"),
    *("model.instance_norm=false",),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FactorTable:
    """Rows of channels that hidden cycles drive.

    Attributes:
        factors: Hidden cycles r, fewer than channels.
        noise: Standard deviation of the noise of a channel; that of its signal is about 1.
        seed: Seed of the weights, the cycles and the noise.
    """

    channels: int = 24
    factors: int = 3
    length: int = 1_500
    noise: float = 1.0
    seed: int = 2024

    def __post_init__(self) -> None:
        check_at_least("length", self.length, 10 * (LOOKBACK + HORIZON))
        check_positive("noise", self.noise)

    def operator(self) -> np.ndarray:
        """The projector (C, C) that removes most of the noise, that of case C."""
        case = latent_factors(channels=self.channels, factors=self.factors, seed=self.seed)
        operator: np.ndarray = case.operators[0].numpy()
        return operator

    def rows(self) -> np.ndarray:
        """Rows (T, C)."""
        random = np.random.default_rng(self.seed)
        turns = np.exp(2j * np.pi / np.geomspace(*_PERIODS, self.factors))
        state = np.zeros(self.factors, dtype=complex)
        cycles = np.empty((self.length, self.factors))
        # the spread of a cycle is 1
        spread = np.sqrt(1.0 - _DAMPING**2)
        for step in range(self.length):
            pushes = random.standard_normal(self.factors) + 1j * random.standard_normal(self.factors)
            state = _DAMPING * turns * state + spread * pushes
            cycles[step] = state.real
        mixing = factor_mixing(self.channels, self.factors, self.seed).numpy()  # (C, r)
        signal = cycles @ mixing.T / np.sqrt(self.factors)
        return signal + self.noise * random.standard_normal((self.length, self.channels))

    def write(self, path: Path) -> Path:
        """Write the rows as a CSV file with dates."""
        frame = pd.DataFrame(self.rows(), columns=[f"channel {place + 1}" for place in range(self.channels)])
        frame.insert(0, "date", pd.date_range("2026-01-01", periods=self.length, freq="h"))
        write_atomically(path, frame.to_csv(index=False).encode())
        return path


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Test MSE of each system on standardised values, and the records of the networks."""

    errors: Mapping[str, float]
    records: tuple[Record, ...] = ()

    def gap_closed(self, name: str) -> float:
        """Part of the way from own lags to the known operator; 1 is as good as the known operator."""
        own = self.errors["own lags"]
        return (own - self.errors[name]) / (own - self.errors["known operator"])


def compare(
    table: FactorTable,
    folder: Path,
    *,
    attentions: Sequence[str] = COMPARED,
    epochs: int = EPOCHS,
    device: str = "auto",
    command: Sequence[str] = (),
    observe: Callable[..., None] | None = None,
) -> Comparison:
    """Test MSE of networks and linear models on the same windows. Finished runs are loaded, interrupted runs resume.

    Args:
        epochs: Epochs of the networks.
    """
    file = table.write(folder / f"factors-{table.channels}-{table.seed}.csv")
    errors = linear_errors(table)
    records = []
    for attention in attentions:
        config = network_config(file, attention, table.seed, epochs)
        watch = None if observe is None else partial(observe, title=f"{attention}, seed {table.seed}")
        record = run_task(config, folder, device=device, command=command, observe=watch)
        errors[attention] = record["metrics"]["mse"]
        records.append(record)
    return Comparison(errors=errors, records=tuple(records))


def network_config(file: Path, attention: str, seed: int, epochs: int = EPOCHS) -> Any:
    """Config of a network on the file."""
    changes = [*_CHANGES, f"training.epochs={epochs}"]
    names: dict[str, Any] = {"dataset": str(file), "horizon": HORIZON, "backbone": "itransformer"}
    return resolve("forecast", "toa-wide", attention=attention, seed=seed, changes=changes, **names)


def linear_errors(table: FactorTable) -> dict[str, float]:
    """Test MSE of ridge regressions: on own lags, on all channels, and on the channels after the known projection."""
    rows = table.rows()
    border, stop = (int(share * table.length) for share in _SPLIT)
    mean = rows[:border].mean(0)
    deviation = rows[:border].std(0)
    scaled = (rows - mean) / deviation
    # of the centred rows, in their units, then on the scale of the channels
    projected = ((rows - mean) @ table.operator().T) / deviation
    inputs = {"own lags": scaled, "all channels": scaled, "known operator": projected}
    return {
        name: _linear_error(values, scaled, border, stop, with_components=name != "own lags")
        for name, values in inputs.items()
    }


def _linear_error(inputs: np.ndarray, targets: np.ndarray, border: int, stop: int, *, with_components: bool) -> float:
    """Test MSE of a ridge regression that is fitted to the inputs before the border; the targets are forecast."""
    begins = np.zeros(inputs.shape[1], dtype=np.int64)
    ridge = fit_component_ridge(
        [TrainingRows(values=inputs[:stop], begins=begins, border=border)],
        horizon=HORIZON,
        season=1,
        lags=LOOKBACK,
        with_components=with_components,
        refit=False,
    )
    assert ridge is not None, "the table is long enough"
    return _test_error(ridge, inputs, targets, stop)


def _test_error(ridge: ComponentRidge, inputs: np.ndarray, targets: np.ndarray, stop: int) -> float:
    ends = np.arange(stop, len(inputs) - HORIZON + 1)
    windows = np.stack([inputs[end - ridge.rows_read : end] for end in ends])
    actual = np.stack([targets[end : end + HORIZON] for end in ends])
    return float(np.square(ridge.predict(windows) - actual).mean())
