"""The demixing experiment: variants and seeds on the same signals, resumable, one record a run."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from toa._checks import check_choice
from toa._files import check_writable
from toa.data import DemixingBatch, HarmonicDemixing
from toa.experiments.records import Record, config_hash, make_record, read_record, write_record
from toa.models import PointEncoder
from toa.nn import AttentionSpec
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
from toa.tasks.device import allow_tf32, resolve_device
from toa.tasks.training import Observer

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
            steps=6000,
            learning_rate=3e-3,
        ),
        attentions=_ATTENTIONS,
        seeds=(2024, 2025, 2026),
    ),
    "demo": Preset(
        about="an eighth of the length, for two CPU cores and a few minutes",
        base=DemixingConfig(
            attention=AttentionSpec(name="toa-gated"),
            steps=2000,
            learning_rate=5e-3,
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
        sor: Whether TOA variants are regularized; as the preset has it if None.
        device: "auto", "cpu", "cuda" or "cuda:N".
        tf32: Whether CUDA may round factors of float32 products to TF32.
        command: The command line that the records shall name.
        watch: Told of progress.
    """
    check_choice("preset", preset, PRESETS)
    chosen = PRESETS[preset]
    names = tuple(chosen.attentions) if attentions is None else tuple(attentions)
    numbers = chosen.seeds if seeds is None else tuple(seeds)
    for what, values in (("attention", names), ("seed", numbers)):
        if not values or len(set(values)) != len(values):
            raise ValueError(f"{what} must be given at least once and none twice, got {list(values)}.")
    base = replace(
        chosen.base,
        steps=chosen.base.steps if steps is None else steps,
        learning_rate=chosen.base.learning_rate if learning_rate is None else learning_rate,
        tf32=tf32,
    )
    configs = [replace(base, attention=_attention(chosen, name, sor), seed=seed) for seed in numbers for name in names]
    where = resolve_device(device)
    check_writable(out)
    records: list[Record] = []
    models: dict[str, tuple[PointEncoder, float]] = {}
    for config in configs:
        record, model = _run(config, out, where, command, watch)
        records.append(record)
        models.setdefault(record["name"], (model, record["metrics"]["mse"]))
    return _result(base.signals, held_out_signals(base), records, models)


def _attention(preset: Preset, name: str, sor: bool | None) -> AttentionSpec:
    check_choice("attention", name, preset.attentions)
    spec = preset.attentions[name]
    if sor is not None and name.startswith("toa-"):
        spec = replace(spec, sor=sor)
    return spec.resolved()


def demixing_name(config: DemixingConfig) -> str:
    """The attention, as records name it."""
    return config.attention.name + ("-no-sor" if config.attention.sor is False else "")


def demixing_folder(config: DemixingConfig, out: Path) -> Path:
    """Where a run keeps what it makes: a name to read and the config's hash."""
    return out / f"{demixing_name(config)}-{config.seed}-{config_hash(config)[:8]}"


def demixing_config(preset: str, attention: str, seed: int) -> DemixingConfig:
    """One run of a preset."""
    check_choice("preset", preset, PRESETS)
    chosen = PRESETS[preset]
    return replace(chosen.base, attention=_attention(chosen, attention, None), seed=seed)


def run_demixing_config(
    config: DemixingConfig,
    out: Path,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    command: Sequence[str] = (),
    observe: Observer | None = None,
) -> Record:
    """One run as other tasks have theirs; signals are made, so that `data_dir` is not looked at."""
    where = resolve_device(device)
    path = demixing_folder(config, out) / "record.json"
    if path.exists():
        return read_record(path)
    check_writable(path.parent)

    def watch(name: str, seed: int, done: int, steps: int, loss: float | None) -> None:
        if observe is not None and loss is not None:
            observe(done, steps, loss, None)

    return _run(config, out, where, command, watch)[0]


def _run(
    config: DemixingConfig, out: Path, device: torch.device, command: Sequence[str], watch: Watcher | None
) -> tuple[Record, PointEncoder]:
    name = demixing_name(config)
    key = config_hash(config)
    folder = demixing_folder(config, out)

    def observe(done: int, total: int, loss: float, validation: float | None) -> None:
        if watch is not None:
            watch(name, config.seed, done, total, loss)

    if watch is not None:
        watch(name, config.seed, 0, config.steps, None)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with allow_tf32(config.tf32, device):
        # a run that is done resumes at its last step and trains no more
        model, state = train_demixer(
            config, device=device, key=key, checkpoint=folder / "checkpoint.safetensors", observe=observe
        )
        path = folder / "record.json"
        if path.exists():
            old = read_record(path)
            observe(config.steps, config.steps, old["metrics"]["mse"], None)
            return old, model
        batch = held_out_signals(config)
        metrics = regime_errors(demix(model, batch.noisy), batch)
    record = make_record(
        "demixing",
        name,
        config,
        seed=config.seed,
        tf32=config.tf32,
        data_checksum=checksum(batch),
        model=model,
        wall_s=state.seconds,
        metrics=metrics,
        command=command,
    )
    write_record(path, record)
    return record, model


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
