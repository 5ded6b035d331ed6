"""The demixing experiment, and the other parts of the demo.

The first part is a table that the demo writes itself, for a forecast. Demixing runs variants and seeds on the same
signals, and views the trained models. `demo.toml` describes the other parts.
"""

import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from toa._checks import check_choice
from toa._files import check_writable, write_atomically
from toa.data import DemixingBatch, HarmonicDemixing
from toa.experiments.protocols import load_protocol, protocol_names, resolve
from toa.experiments.records import Record
from toa.experiments.run import load_run, run_folder, run_task
from toa.models import PointEncoder
from toa.nn import mixing_operators
from toa.tasks.demixing import DEMIXING, demix, frequency_response, held_out_signals, oracle_estimates, regime_errors

COMPARED = ("toa-gated", "toa-relu", "softmax")
SEEDS = (2024, 2025, 2026)

# the table to forecast: its rows, those that are kept for the test, the horizon, and seconds for the fit
# rows of the rentals
HOURS = 8 * 168
# rows to test on
TESTED = 168
# rows to forecast
HORIZON = 24

# parts on real data by the name of their folder, in the order of the page
PARTS: dict[str, Any] = tomllib.loads((files("toa.experiments") / "demo.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantView:
    """View of one trained model for one noisy signal, to be drawn.

    Args:
        operator: Mixing operator W_mix of the head with the largest negative share, (L, L).
        place: Layer and head of that operator, counted from 1.
        estimate: Estimated clean signal, (L,).
        response: Gain at each frequency of the DFT, (L // 2 + 1,).
    """

    name: str
    operator: Tensor
    place: tuple[int, int]
    estimate: Tensor
    response: Tensor
    mse: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DemixingResult:
    """Records, reference errors, and views of the models of the first seed."""

    signals: HarmonicDemixing
    records: list[Record]
    reference: Mapping[str, float]
    noisy: Tensor
    clean: Tensor
    oracle_response: Tensor
    views: list[VariantView]

    def medians(self) -> dict[str, float]:
        """Median error over seeds per variant."""
        names = dict.fromkeys(record["name"] for record in self.records)
        return {
            name: statistics.median(r["metrics"]["mse"] for r in self.records if r["name"] == name) for name in names
        }


def run_demixing(
    preset: str,
    out: Path,
    *,
    attentions: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    sor: bool | None = None,
    device: str = "auto",
    tf32: bool = True,
    command: Sequence[str] = (),
    observe: Callable[..., None] | None = None,
) -> DemixingResult:
    """Run the protocol `preset` of demixing into a folder. Finished runs are loaded, interrupted runs resume.

    Options that are None are those of the protocol; `sor` only affects the TOA variants. `device` and `command` are
    those of `run_task`; `observe` is called with the progress, and with the name and seed of the run as `title`.
    """
    check_choice("preset", preset, protocol_names("demixing"))
    protocol = load_protocol("demixing", preset)
    names = tuple(protocol.attention) if attentions is None else tuple(attentions)
    numbers = protocol.seeds if seeds is None else tuple(seeds)
    for what, values in (("attention", names), ("seed", numbers)):
        if not values or len(set(values)) != len(values):
            raise ValueError(f"{what} must be given at least once and none twice, got {list(values)}.")
    given = {"steps": steps, "learning_rate": learning_rate}
    changes = [f"{name}={value}" for name, value in given.items() if value is not None]
    changes.append(f"tf32={str(tf32).lower()}")
    regularize = [] if sor is None else [f"attention.sor={str(sor).lower()}"]
    configs = [
        DEMIXING.resolve(
            protocol,
            attention=name,
            seed=seed,
            changes=changes + (regularize if name.startswith("toa-") else []),
        )
        for seed in numbers
        for name in names
    ]
    check_writable(out)
    records: list[Record] = []
    models: dict[str, tuple[PointEncoder, float]] = {}
    for config in configs:
        watch = None if observe is None else partial(observe, title=f"{config.name}, seed {config.seed}")
        record = run_task(config, out, device=device, command=command, observe=watch)
        if watch is not None:
            watch(config.steps, config.steps, record["metrics"]["mse"], None)
        records.append(record)
        if config.name not in models:
            model: Any = load_run(run_folder(config, out)).model
            models[config.name] = (model, record["metrics"]["mse"])
    signals, batch = configs[0].signals, held_out_signals(configs[0])
    estimates = oracle_estimates(signals, batch)
    # show a signal with vibrato, the regime that no stationary filter fits
    shown = int((batch.regime == 1).int().argmax())
    views = [_view(name, model, mse, batch, shown) for name, (model, mse) in models.items()]
    return DemixingResult(
        signals=signals,
        records=records,
        reference={name: regime_errors(estimate, batch)["mse"] for name, estimate in estimates.items()},
        noisy=batch.noisy[shown],
        clean=batch.clean[shown],
        oracle_response=frequency_response(batch.noisy, estimates["oracle"]),
        views=views,
    )


@torch.no_grad()
def _view(name: str, model: PointEncoder, mse: float, batch: DemixingBatch, shown: int) -> VariantView:
    few = batch.noisy[:512]
    device = next(model.parameters()).device
    signal = batch.noisy[shown : shown + 1]
    operators = mixing_operators(model.eval(), lambda: model(signal.unsqueeze(-1).to(device)))
    heads = torch.cat(list(operators.values())).flatten(0, 1)  # (layers * H, L, L), one signal
    # share of negative weight; softmax has none, so its first head is shown; a head of zeros has no share
    whole = heads.abs().sum((1, 2))
    subtracts = torch.where(whole > 0, heads.clamp(max=0.0).abs().sum((1, 2)) / whole, -1.0)
    best = int(subtracts.argmax())
    layer, head = divmod(best, len(heads) // len(operators))
    return VariantView(
        name=name,
        operator=heads[best].cpu(),
        place=(layer + 1, head + 1),
        estimate=demix(model, signal)[0],
        response=frequency_response(few, demix(model, few)),
        mse=mse,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoRun:
    """A finished run and its folder."""

    record: Record
    folder: Path

    @property
    def attention(self) -> str:
        """Name of its attention."""
        return str(self.record["config"]["attention"]["name"])


def write_rentals(path: Path) -> Path:
    """Write a made-up CSV file: bicycles that are rented per hour, with a daily and a weekly season."""
    rng = np.random.default_rng(2024)
    hours = pd.date_range("2026-01-01", periods=HOURS, freq="h")
    hour = hours.hour.to_numpy()

    def peak(at: float, width: float) -> np.ndarray:
        return np.exp(-(((hour - at) / width) ** 2))

    workday = peak(8, 1.8) + 1.2 * peak(17.5, 2.2) + 0.3 * peak(12.5, 3)
    usual = 0.1 + np.where(hours.day_of_week >= 5, 0.7 * peak(14, 4), workday)
    # weather: it lasts for some hours
    weather = np.zeros(HOURS)
    for step in range(1, HOURS):
        weather[step] = 0.9 * weather[step - 1] + 0.05 * rng.standard_normal()
    rented = 300 * usual * np.exp(1e-4 * np.arange(HOURS) + weather) + 8 * rng.standard_normal(HOURS)
    table = pd.DataFrame({"hour": hours, "rented": np.maximum(rented, 0).round().astype(int)})
    write_atomically(path, table.to_csv(index=False).encode())
    return path


def part_configs(part: str, steps: int | None = None) -> list[Any]:
    """Configs of a part of `PARTS`, one per attention and seed.

    Args:
        steps: Steps of the demixing part; epochs change in proportion. None is the full length.
    """
    own, aeon = PARTS[part], Path(str(files("aeon"))) / "datasets" / "data"
    names = {name: value.format(aeon=aeon) for name, value in own["names"].items()}
    names["changes"] = [*own["changes"], f"training.epochs={max(1, round(own['epochs'] * demo_share(steps)))}"]
    return [
        resolve(own["task"], own["protocol"], attention=attention, seed=seed, **names)
        for seed in SEEDS
        for attention in COMPARED
    ]


def run_part(
    part: str,
    out: Path,
    *,
    steps: int | None = None,
    device: str = "auto",
    command: Sequence[str] = (),
    observe: Callable[..., None] | None = None,
) -> list[DemoRun]:
    """Run a part of `PARTS`. Finished runs are loaded, interrupted runs resume.

    The arguments are those of `part_configs`, `run_task` and `run_demixing`.
    """
    runs = []
    for config in part_configs(part, steps):
        watch = None if observe is None else partial(observe, title=f"{config.attention.name}, seed {config.seed}")
        record = run_task(config, out, device=device, command=command, observe=watch)
        runs.append(DemoRun(record=record, folder=run_folder(config, out)))
    return runs


def demo_share(steps: int | None) -> float:
    """The share of the whole demo that `steps` is of the demixing part; 1 for None."""
    return 1.0 if steps is None else float(steps / load_protocol("demixing", "demo").tables["default"]["steps"])
