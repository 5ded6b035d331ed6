"""Demixing: recover a clean sum of harmonics from a noisy one under an unknown time warp.

Alphabet: B batch, L length, H heads.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from toa._checks import ArgumentError, check_at_least, check_choice, check_finite, check_seed
from toa.experiments.base import EXPERIMENTS, Experiment
from toa.experiments.settings import Protocol, change, merge
from toa.models import PointEncoder, PointEncoderConfig
from toa.nn import AttentionSpec
from toa.nn.registry import ADDED_LATER
from toa.training.base import Evaluation, Task, check_sample
from toa.training.distributed import make_fabric
from toa.training.loop import TrainingState
from toa.training.optimization import TrainingConfig
from toa_paper.demixing.signals import DemixingBatch, HarmonicDemixing

# seed of the test signals, far from all training seeds
_TEST_SEED = 1_000_000_007
# seed of the validation signals, far from all training seeds
_VALIDATION_SEED = 1_000_000_009


@dataclass(frozen=True, kw_only=True, slots=True)
class DemixingConfig:
    """Config of one run: the signals, the small model, its training and the seed.

    `tf32` lets CUDA round factors of float32 products to TF32. Without `test` the error is that of validation signals.
    """

    task: ClassVar[str] = "demixing"
    precision: ClassVar[str] = "32-true"
    share_drop_rate: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False

    attention: AttentionSpec
    steps: int
    learning_rate: float
    signals: HarmonicDemixing = field(default_factory=HarmonicDemixing)
    embed_dim: int = 64
    num_heads: int = 2
    num_layers: int = 2
    ff_dim: int = 128
    batch_size: int = 64
    test_signals: int = 4096
    seed: int = 2024
    tf32: bool = True
    test: bool = field(default=True, metadata=ADDED_LATER)

    @property
    def name(self) -> str:
        """The attention, and whether it is trained without SOR."""
        return self.attention.name + ("-no-sor" if self.attention.sor is False else "")

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "test_signals"):
            check_at_least(name, getattr(self, name), 1)
        check_seed(self.seed)
        if self.seed >= 2**31:
            raise ArgumentError("seed", "be below 2^31", self.seed)

    @property
    def training(self) -> TrainingConfig:
        """Training settings: each step has fresh signals, so there is one long epoch."""
        return TrainingConfig(
            epochs=1,
            learning_rate=self.learning_rate,
            betas=(0.9, 0.95),
            schedule="warmup-cosine",
            warmup=min(100, self.steps // 2),
            clip_norm=1.0,
        )

    def model(self) -> PointEncoderConfig:
        """Sizes of the model."""
        return PointEncoderConfig(
            lookback=self.signals.length,
            attention=self.attention,
            embed_dim=self.embed_dim,
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            ff_dim=self.ff_dim,
        )


class Demixing(Task):
    """Demix synthetic signals; see `Task` for the methods."""

    config = DemixingConfig
    parts: Mapping[str, type[Any]] = {"attention": AttentionSpec, "signals": HarmonicDemixing}
    record_fields = ()
    # fresh signals need no validation, so the last checkpoint holds the trained model
    model_file = "checkpoint.safetensors"

    def load(self, config: DemixingConfig, device: torch.device, data_dir: Path | None = None) -> DemixingBatch:
        """The held-out signals; training signals are drawn at every step."""
        return held_out_signals(config)

    def sample(self, config: DemixingConfig, index: int, data_dir: Path | None = None) -> tuple[Tensor | None, ...]:
        noisy = held_out_signals(config).noisy
        return (noisy[check_sample(index, len(noisy)), None, :, None],)  # (1, L, 1)

    def build(self, config: DemixingConfig, data: DemixingBatch | None) -> PointEncoder:
        return PointEncoder(config.model())

    def batches(self, config: DemixingConfig, data: DemixingBatch | None, device: torch.device) -> "FreshSignals":
        return FreshSignals(config, device)

    def loss(self, config: DemixingConfig, fabric: Any) -> Callable[..., Tensor]:
        return lambda model, noisy, clean: F.mse_loss(model(noisy.unsqueeze(-1)).squeeze(-1), clean)

    def evaluate(self, config: DemixingConfig, model: nn.Module, data: DemixingBatch) -> Evaluation:
        errors = regime_errors(demix(model, data.noisy), data)
        return Evaluation(metrics=errors if config.test else {f"val_{name}": error for name, error in errors.items()})


class DemixingExperiment(Experiment):
    """Runs of demixing; see `Experiment` for the methods."""

    subcommand = "demix"
    names = ("attention",)
    unit = "signal"
    summary_metrics: Mapping[str, str] = {"mse": "test"}

    def resolve(  # type: ignore[override]
        self,
        protocol: Protocol | None,
        *,
        attention: str | None = None,
        seed: int | None = None,
        changes: Iterable[str] = (),
    ) -> DemixingConfig:
        """Build the config of one run from a protocol; see `Experiment.resolve`."""
        assert protocol is not None
        name = "toa-gated" if attention is None else attention
        check_choice("attention", name, protocol.attention)
        settings = merge(protocol.tables["default"], {"attention": protocol.attention[name]})
        if seed is not None:
            settings["seed"] = seed
        for text in changes:
            change(settings, text)
        settings["attention"] = {"name": name, **settings["attention"]}
        config: DemixingConfig = self.task.config_from(settings, f"protocol {protocol.name!r} of demixing")
        return replace(config, attention=config.attention.resolved())

    def folder_name(self, config: DemixingConfig) -> str:
        return f"{config.name}-{config.seed}"

    def title(self, config: DemixingConfig) -> str:
        return f"demixing, {config.name}"

    def command(self, protocol: str, names: Mapping[str, Any]) -> list[str]:
        return ["toa", self.subcommand, "--preset", protocol, "--attention", str(names["attention"])]


# an entry point registers it as a task
DEMIXING = Demixing()
DEMIXING_RUNS = DemixingExperiment(DEMIXING)
EXPERIMENTS.register("demixing")(DEMIXING_RUNS)


def held_out_signals(config: DemixingConfig) -> DemixingBatch:
    """Test or validation signals, the same for every seed, variant and device: drawn on the CPU."""
    generator = torch.Generator().manual_seed(_TEST_SEED if config.test else _VALIDATION_SEED)
    return config.signals.sample(config.test_signals, generator=generator)


class FreshSignals:
    """Training signals; those of a step depend only on the seed and the step."""

    def __init__(self, config: DemixingConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._generator = Generator(device=device)
        # there is one epoch
        self.steps_per_epoch = config.steps

    def at(self, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Noisy and clean signals of a step, each (B, L)."""
        self._generator.manual_seed(self._config.seed * 1_000_003 + step)
        batch = self._config.signals.sample(self._config.batch_size, generator=self._generator, device=self._device)
        return batch.noisy, batch.clean


def train_demixer(config: DemixingConfig) -> tuple[PointEncoder, TrainingState]:
    """Train a model on the CPU, on fresh signals at every step."""
    model, state, _ = DEMIXING.fit(config, None, make_fabric(torch.device("cpu")), key="demixing")
    assert isinstance(model, PointEncoder)
    return model, state


@torch.no_grad()
def demix(model: nn.Module, noisy: Tensor, *, batch_size: int = 256) -> Tensor:
    """Clean signals (B, L), in batches on the model's device."""
    check_finite("noisy", noisy)
    model.eval()
    device = next(model.parameters()).device
    parts = [model(part.to(device).unsqueeze(-1)).squeeze(-1).cpu() for part in noisy.split(batch_size)]
    return torch.cat(parts)


def regime_errors(estimate: Tensor, batch: DemixingBatch) -> dict[str, float]:
    """Mean squared error over all signals ("mse") and over each regime's that occurs ("mse_0", …)."""
    error = (estimate - batch.clean).square().mean(1)  # (B,)
    errors = {"mse": float(error.mean())}
    for regime in batch.regime.unique().tolist():
        errors[f"mse_{regime}"] = float(error[batch.regime == regime].mean())
    return errors


def oracle_estimates(signals: HarmonicDemixing, batch: DemixingBatch) -> dict[str, Tensor]:
    """Estimates of two linear estimators: one that knows the warp ("oracle"), and the best fixed one ("filter")."""
    noisy = batch.noisy.double()
    projectors = signals.oracle()
    known = torch.empty_like(noisy)
    for regime, projector in enumerate(projectors):
        chosen = batch.regime == regime
        known[chosen] = noisy[chosen] @ projector.mT
    return {"oracle": known.float(), "filter": (noisy @ signals.best_fixed_filter().mT).float()}


def frequency_response(noisy: Tensor, estimate: Tensor) -> Tensor:
    """Gain of an estimator at each frequency of the DFT, (L // 2 + 1,): |E[Y X*]| / E[|X|²] over signals.

    The least-squares fit of one gain per frequency to inputs and outputs. White noise in the input excites every
    frequency.
    """
    x, y = torch.fft.rfft(noisy), torch.fft.rfft(estimate)
    return (y * x.conj()).mean(0).abs() / x.abs().square().mean(0)
