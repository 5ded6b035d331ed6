"""The demixing experiment: variants and seeds on the same signals, resumable, one record a run."""

import shlex
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from toa._checks import check_choice
from toa.data import DemixingBatch, HarmonicDemixing
from toa.experiments.records import Record, config_hash, make_record, read_record, write_record
from toa.models import PointEncoder
from toa.nn import Attention, AttentionSpec
from toa.tasks.demixing import (
    DemixingConfig,
    checksum,
    demix,
    frequency_response,
    held_out_signals,
    oracle_estimates,
    regime_errors,
    train_demixer,
)
from toa.tasks.training import TrainingConfig

# mean squared errors of the paper's section 4
PUBLISHED = {"toa-gated": 0.0028, "toa-relu": 0.0035, "softmax": 0.0972}


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A size of the experiment: the config but for attention and seed, and which of those it runs."""

    about: str
    base: DemixingConfig
    attentions: Mapping[str, AttentionSpec]
    seeds: tuple[int, ...]


_ATTENTIONS = {name: AttentionSpec(name=name) for name in ("toa-gated", "toa-relu", "toa-softmax", "softmax")} | {
    "toa-relu": AttentionSpec(name="toa-relu", score_norm="l2")
}

PRESETS = {
    "paper": Preset(
        about="the paper's size: length 672, three seeds",
        base=DemixingConfig(
            attention=AttentionSpec(name="toa-gated"),
            training=TrainingConfig(steps=6000, learning_rate=3e-3),
        ),
        attentions=_ATTENTIONS,
        seeds=(2024, 2025, 2026),
    ),
    "demo": Preset(
        about="an eighth of the length, for two CPU cores and a few minutes",
        base=DemixingConfig(
            attention=AttentionSpec(name="toa-gated"),
            training=TrainingConfig(steps=2000, learning_rate=5e-3),
            signals=HarmonicDemixing().scaled(84),
            embed_dim=32,
            ff_dim=64,
            batch_size=16,
            test_signals=1024,
        ),
        # SOR's noise on an operator's output falls with its length, and fresh signals cannot be overfitted: at an
        # eighth of the length it would cost more than it gives
        attentions={
            "toa-gated": replace(_ATTENTIONS["toa-gated"], sor=False),
            "toa-relu": replace(_ATTENTIONS["toa-relu"], sor=False),
            "softmax": _ATTENTIONS["softmax"],
        },
        seeds=(2024,),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantView:
    """What a figure shows of one trained model, for one noisy signal.

    Args:
        name: Name of the attention.
        operator: Mixing operator W_mix of the head that subtracts most, (L, L).
        place: Where that head is, layer and head counted from 1.
        estimate: The clean signal it sees, (L,).
        response: Its gain at each frequency of the DFT, (L // 2 + 1,).
        mse: Its error on all test signals.
    """

    name: str
    operator: Tensor
    place: tuple[int, int]
    estimate: Tensor
    response: Tensor
    mse: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DemixingResult:
    """All that an experiment gives: records, reference errors, and the first seed's models to look at."""

    signals: HarmonicDemixing
    records: list[Record]
    reference: Mapping[str, float]
    noisy: Tensor
    clean: Tensor
    oracle_response: Tensor
    views: list[VariantView]

    def medians(self) -> dict[str, float]:
        """Median error over seeds of each variant."""
        names = dict.fromkeys(record["name"] for record in self.records)
        return {
            name: statistics.median(r["metrics"]["mse"] for r in self.records if r["name"] == name) for name in names
        }


class Watcher(Protocol):
    """Told how a run goes."""

    def __call__(self, name: str, seed: int, done: int, steps: int, loss: float | None) -> None:
        """A run has done so many of its steps; the loss is None before the first."""
        ...


def resolve_device(name: str) -> torch.device:
    """A device by name; "auto" is CUDA where there is one.

    Raises:
        ValueError: If the name is no device, or the device is not here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} must be present, got a machine without CUDA; use --device cpu.")
    return device


def run_demixing(
    preset: str,
    out: Path,
    *,
    attentions: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    sor: bool = True,
    device: str = "auto",
    tf32: bool = True,
    command: Sequence[str] = (),
    watch: Watcher | None = None,
) -> DemixingResult:
    """Run a preset into a folder; runs that are done are read, runs that were stopped go on.

    Args:
        preset: A name of `PRESETS`.
        out: Folder of records and checkpoints.
        attentions: Which of the preset's attentions to run; all if None.
        seeds: The preset's if None.
        steps: The preset's if None.
        learning_rate: The preset's if None.
        sor: Whether TOA variants are regularized.
        device: "auto", "cpu", "cuda" or "cuda:N".
        tf32: Whether CUDA may round factors of float32 products to TF32.
        command: The command line that the records shall name.
        watch: Told of progress.
    """
    check_choice("preset", preset, PRESETS)
    chosen = PRESETS[preset]
    names = tuple(chosen.attentions) if attentions is None else tuple(attentions)
    for name in names:
        check_choice("attention", name, chosen.attentions)
    where = resolve_device(device)
    training = chosen.base.training
    if steps is not None:
        training = replace(training, steps=steps)
    if learning_rate is not None:
        training = replace(training, learning_rate=learning_rate)
    records: list[Record] = []
    models: dict[str, tuple[PointEncoder, float]] = {}
    for seed in chosen.seeds if seeds is None else seeds:
        for name in names:
            spec = chosen.attentions[name]
            if not sor and name.startswith("toa-"):
                spec = replace(spec, sor=False)
            config = replace(chosen.base, attention=spec, training=training, seed=seed)
            label = f"{name}-no-sor" if spec.sor is False else name
            record, model = _run(label, config, out, where, tf32, command, watch)
            records.append(record)
            models.setdefault(label, (model, record["metrics"]["mse"]))
    return _result(config.signals, held_out_signals(config), records, models)


def _run(
    name: str,
    config: DemixingConfig,
    out: Path,
    device: torch.device,
    tf32: bool,
    command: Sequence[str],
    watch: Watcher | None,
) -> tuple[Record, PointEncoder]:
    folder = out / f"{name}-{config.seed}"
    steps = config.training.steps

    def observe(done: int, loss: float) -> None:
        if watch is not None:
            watch(name, config.seed, done, steps, loss)

    if watch is not None:
        watch(name, config.seed, 0, steps, None)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    begin = time.perf_counter()
    with _tf32(tf32):
        # a run that is done resumes at its last step and trains no more
        model = train_demixer(
            config,
            device=device,
            key=config_hash(config),
            checkpoint=folder / "checkpoint.safetensors",
            observe=observe,
        )
        wall_s = time.perf_counter() - begin
        path = folder / "record.json"
        if path.exists() and (old := read_record(path))["config_hash"] == config_hash(config):
            observe(steps, old["metrics"]["mse"])
            return old, model
        batch = held_out_signals(config)
        metrics = regime_errors(demix(model, batch.noisy), batch)
    record = make_record(
        "demixing",
        name,
        config,
        seed=config.seed,
        data_checksum=checksum(batch),
        device=device,
        backend=backend_of(model),
        tf32=tf32 and device.type == "cuda",
        wall_s=wall_s,
        peak_memory=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        metrics=metrics,
        command=shlex.join(command),
    )
    write_record(path, record)
    return record, model


def backend_of(model: PointEncoder) -> str:
    """The backend that the model's attention layers use on their device."""
    return next(m for m in model.modules() if isinstance(m, Attention)).chosen_backend()


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _result(
    signals: HarmonicDemixing,
    batch: DemixingBatch,
    records: list[Record],
    models: Mapping[str, tuple[PointEncoder, float]],
) -> DemixingResult:
    estimates = oracle_estimates(signals, batch)
    # the vibrato is the regime that no stationary filter fits: show one of its signals
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
    model.eval()
    estimate, operators = model.encode(batch.noisy[shown : shown + 1, :, None].to(device), need_weights=True)
    heads = torch.cat(operators).flatten(0, 1)  # (layers * H, L, L), one signal
    # the share of its weight that is negative; softmax has none, and its first head is shown
    subtracts = heads.clamp(max=0.0).abs().sum((1, 2)) / heads.abs().sum((1, 2))
    best = int(subtracts.argmax())
    layer, head = divmod(best, operators[0].shape[1])
    return VariantView(
        name=name,
        operator=heads[best].cpu(),
        place=(layer + 1, head + 1),
        estimate=estimate[0, :, 0].cpu(),
        response=frequency_response(few, demix(model, few)),
        mse=mse,
    )
