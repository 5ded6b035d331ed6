"""The demixing experiment: run variants and seeds on the same signals, and view the trained models."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toa._checks import ArgumentError, check_choice
from toa._files import check_writable
from toa.experiments.protocols import load_protocol, protocol_names
from toa.experiments.records import Record
from toa.experiments.run import load_run, run_folder, run_task
from toa.models import PointEncoder
from toa.nn import mixing_operators
from toa_paper.demixing.signals import DemixingBatch, HarmonicDemixing
from toa_paper.demixing.task import (
    DEMIXING_RUNS,
    demix,
    frequency_response,
    held_out_signals,
    oracle_estimates,
    regime_errors,
)


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
            raise ArgumentError(what, "be given at least once and none twice", list(values))
    given = {"steps": steps, "learning_rate": learning_rate}
    changes = [f"{name}={value}" for name, value in given.items() if value is not None]
    changes.append(f"tf32={str(tf32).lower()}")
    regularize = [] if sor is None else [f"attention.sor={str(sor).lower()}"]
    configs = [
        DEMIXING_RUNS.resolve(
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
    signals = configs[0].signals
    batch = held_out_signals(configs[0])
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
